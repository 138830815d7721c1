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
//! | drops a permit when no runtime is left | the permit is free when the process next uses the coordinator on any runtime, one lease later at most; at once with [`dedicated_thread`] | – |
//! | blocks all threads of its runtime for longer than a lease | its permits are free one lease after its last heartbeat; nothing, with [`dedicated_thread`] | as after a pause: see [`cpu_bound`](super::cpu_bound) |
//! | panics while it holds | the permit goes back when it is dropped in the unwinding | – |
//!
//! # An outage
//!
//! The server, or the majority of the servers, is down, paused or unreachable, and remembers (in a cluster also the one node
//! that a name is at: then this is about its names only):
//!
//! | who | what happens |
//! | --- | --- |
//! | holds | a permit is in doubt one lease after its last confirmation, and valid again afterwards. A **mutex is lost** then, although nobody else could get it |
//! | waits | waits on, until its own timeout |
//! | comes | waits for up to 1 s ([`outage_after`]), then, at once from there on, is refused with [`Unavailable`], or let pass ([`OnUnavailable`]); with a shorter timeout of its own it is refused by that in the first second |
//! | had a right withdrawn, or the password changed | the same; newcomers are refused at once with [`Denied`] |
//!
//! All is as before within 2 s of its return, or once there is a majority and a leader, however long it was away: releases
//! are resent until they are acknowledged. A call that is executed late or twice, or whose reply is lost, does no harm: calls
//! are numbered, and a later one wins.
//!
//! What a server can forget, and what happens when one of several goes, differs: see the pages of [`redis`](super::redis),
//! [`redlock`](super::redlock), [`etcd`](super::etcd) and [`zookeeper`](super::zookeeper), and the table of
//! [`guarantees`](super::guarantees).
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
//! * **A store that forgets** lets in at most `limit` more: Redis after a flush, an eviction, or a failover or restart that
//!   loses data, etcd and ZooKeeper when they are wiped. Those who held hear of it within a third of a lease, or a session.
//! * **A paused process** can act after its lease. That is what the [token](super::leases#tokens) is for.
//! * **Tokens** start anew when an etcd or a ZooKeeper is wiped, and can fall back when a Redis forgets and its clock has
//!   fallen behind.
//! * **Order** is that of arrival at the backend. Who was thrown out of line (a pause, a flush) stands at its end. With
//!   Redlock there is none. A try ([`try_acquire`], [`reject_when_full`]) never passes the line.
//!
//! [`Memory`](crate::Memory) forgets only with its process, and nobody else is there to notice.
//!
//! [`shutdown`]: crate::Coordinator::shutdown
//! [`dedicated_thread`]: crate::CoordinatorBuilder::dedicated_thread
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
