//! What happens when something breaks, how long until all is normal again, and what is not promised.
//!
//! Times are for the default lease of 10 s, a third of which is 3.3 s. "In doubt" and "lost" are explained on the page
//! about [`leases`](super::leases).
//!
//! # A process
//!
//! | it | what the others see | what it sees itself |
//! | --- | --- | --- |
//! | ends after [`shutdown`] | its permits are free at once | – |
//! | dies (killed, out of memory, power), or ends without `shutdown` | its permits and its places in line are free one lease after its last word, so after 6.7 to 10 s as a rule. If nobody asked for the name meanwhile: half a lease (the longest in use) after somebody does, at the latest | – |
//! | is paused or cut off for less than 6.7 s | nothing | nothing |
//! | is paused or cut off for longer than a lease | its permits are free one lease after its last word | on its return, at once: [`is_valid`] is `false`, a mutex is lost. A permit is lost as soon as the backend has answered. Who waits joins the line anew, at its end |
//! | has a wrong clock, by any amount | nothing | nothing: only the server's clock counts |
//! | drops a permit when its runtime is gone | the permit is free when the process next asks for that name, one lease later at most | – |
//! | panics while it holds | the permit goes back when it is dropped in the unwinding | – |
//!
//! # The server
//!
//! | what happens | who holds | who waits | newcomers | normal again |
//! | --- | --- | --- | --- | --- |
//! | **outage**: down, paused, unreachable; its memory survives | a permit is in doubt one lease after its last confirmation, and valid again afterwards. A **mutex is lost** then, although nobody else could get it | waits on, until its own timeout | wait for up to 1 s ([`outage_after`]), then, at once from there on, refused with [`Unavailable`], or let pass ([`OnUnavailable`]) | within 2 s of its return |
//! | **restart** that loses its memory | lost, at the next renewal after its return | is back in line when the connection is; the order may be another | as in an outage | within 2 s for newcomers and waiters, a third of a lease for those who held |
//! | **flush** (`FLUSHALL`) | lost, at the next renewal: within a third of a lease | is back in line within a third of a lease; the order may be another | come in at once | a third of a lease |
//! | **failover** to a replica | as in an outage; what the replica had not heard of yet is lost as in a flush | as in an outage | as in an outage | within 2 s of the new master's answer at the same address; with `Redis::sentinel` and `Redis::cluster`, of its promotion |
//! | a **slot moves** to another node of a cluster | its names are not renewed meanwhile, unless all their keys exist: as in an outage | waits on | wait with them | at once |
//! | **eviction** of our keys, since `maxmemory-policy` allows it | as in a flush, for that name | as in a flush | come in at once | a third of a lease |
//! | memory is full, with `noeviction` | renewed and given back as ever | get their turn as ever | come in as ever | – |
//! | writes are refused (disk full, too few replicas, loading) | as in an outage | as in an outage | as in an outage | within 2 s |
//! | a right is withdrawn, the password changed | as in an outage | waits on | refused at once with [`Denied`] | when the right is back |
//! | its **clock steps**, forward or back, or it stalls for less than a lease | nobody alive loses anything | keeps the place | – | at once; what a dead process held may stay half a lease longer |
//! | scripts are flushed | nothing | nothing | nothing | at once |
//! | pushes get lost, or are not allowed | nothing | asks by itself: when a lease could have run out, within half a lease, or ten times a second where pushes are refused | nothing | – |
//!
//! A call that runs late, twice, or whose answer is lost does no harm. Each has a number, and what was said later wins.
//! An outage of more than an hour is a restart that loses its memory: by then the server has let our keys expire.
//!
//! # Several servers: Redlock
//!
//! | what happens | who holds | who waits and newcomers | normal again |
//! | --- | --- | --- | --- |
//! | fewer than half are down, slow or cut off | nothing | nothing | – |
//! | half or more are | in doubt, and lost one lease after the last confirmation | as in an outage of one server | within 2 s if they remember, one longest lease if they came back empty |
//! | one **restarts** empty, or is flushed | nothing, if a majority of the others knows of the lock; it is told anew at the next renewal | nothing, if a majority of the others is there | it has its vote back one longest lease later |
//! | all restart empty, or are flushed | lost, one lease after the last confirmation | wait | one longest lease later |
//! | keys are **evicted**, on a majority | lost, at the next renewal | come in at once: two holders until then | a third of a lease |
//! | a **clock steps** ahead by a lease, on a majority | the same | the same | the same |
//! | a clock steps back | nothing | a dead holder's lock there lives longer by that; a server whose clock is behind the time it began to remember has no vote for one longest lease | by itself |
//!
//! Tokens rise over all of these, as long as one server of every majority remembers, or no clock has fallen behind.
//!
//! # What an outage costs
//!
//! While the server is down no permit can be counted, so a layer has to choose. [`OnUnavailable::Reject`], the default,
//! keeps the limit and refuses requests (`503`). [`OnUnavailable::Allow`] serves them and forgets the limit meanwhile:
//! fair for a limit that only saves money, wrong for one that protects something that breaks. What is under way goes on
//! in both, as [`OnLost`] says.
//!
//! # What is not promised
//!
//! * **A single Redis can forget.** After a flush, an eviction, or a failover or restart that loses data, those who
//!   held are not counted any more, and at most `limit` newcomers come in beside them. Those who held hear of it within
//!   a third of a lease. A request that [goes on](crate::layers::OnLost::Continue) all the same is one too many until
//!   it ends. For a mutex: two holders until the older one hears of it and stops; the newer one has the higher token.
//!   Replicas do not change this, since Redis answers before they have heard.
//! * **A master that was cut off** may go on answering some processes while a new one answers the others: each side
//!   keeps the limit, both together do not. See `min-replicas-to-write` in [`running`](super::running).
//! * **A paused process** can act after its lease. That is what the [token](super::leases#tokens) is for.
//! * **Somebody who deletes our keys by hand** can let more in. One of the three keys of a name, `…:meta`, gone twice
//!   within one lease, while the others stay, is not protected against.
//! * **Tokens** rise over a flush as long as the server's clock has not fallen behind meanwhile.
//! * **Order** is that of arrival at the backend. Who was thrown out of line (a pause, a flush) stands at its end. A
//!   try ([`try_acquire`], [`reject_when_full`]) never passes the line.
//!
//! [`Memory`](crate::Memory) forgets only with its process, and nobody else is there to notice.
//!
//! [`shutdown`]: crate::Coordinator::shutdown
//! [`is_valid`]: crate::Permit::is_valid
//! [`outage_after`]: crate::CoordinatorBuilder::outage_after
//! [`Unavailable`]: crate::ErrorKind::Unavailable
//! [`Denied`]: crate::ErrorKind::Denied
//! [`OnUnavailable`]: crate::layers::OnUnavailable
//! [`OnUnavailable::Reject`]: crate::layers::OnUnavailable::Reject
//! [`OnUnavailable::Allow`]: crate::layers::OnUnavailable::Allow
//! [`OnLost`]: crate::layers::OnLost
//! [`try_acquire`]: crate::Semaphore::try_acquire
//! [`reject_when_full`]: crate::DistributedConcurrencyLimitLayer::reject_when_full
