//! What happens when something fails, how long until operation is normal again, and what is not guaranteed.
//!
//! Times are for the default lease of 10 s, a third of which is 3.3 s. The page about [`leases`](super::leases) explains "in
//! doubt" and "lost".
//!
//! # A process
//!
//! | it | effect on other processes | effect on the process itself |
//! | --- | --- | --- |
//! | ends after [`shutdown`] | its permits are free at once | – |
//! | crashes (killed, out of memory, power), or ends without `shutdown` | its permits and queue entries expire one lease after its last heartbeat, so typically after 6.7 to 10 s. If no request for the name arrives meanwhile: at the latest half a lease (the longest in use) after the next request arrives | – |
//! | is paused or cut off for less than 6.7 s | none | none |
//! | is paused or cut off for longer than a lease | its permits are free one lease after its last heartbeat | as soon as it is back, [`is_valid`] returns `false` and a mutex is lost. A permit is lost as soon as the backend has answered. Waiters join the queue again, at its end |
//! | has a wrong clock, by any amount | none | none: only the server's clock counts |
//! | drops a permit when no runtime is left | the permit is free when the process next uses the coordinator on any runtime, and one lease later at the latest; at once with [`dedicated_thread`] | – |
//! | blocks all threads of its runtime for longer than a lease | its permits are free one lease after its last heartbeat; none with [`dedicated_thread`] | as after a pause: see [`cpu_bound`](super::cpu_bound) |
//! | panics while it holds a permit | the permit is released when it is dropped during unwinding | – |
//!
//! # An outage
//!
//! The server, or the majority of the servers, is down, paused or unreachable, and keeps its data. In a Redis Cluster the same
//! holds for a single node, for the names on that node.
//!
//! | affected | what happens |
//! | --- | --- |
//! | holders | a permit is in doubt one lease after its last confirmation, and valid again afterwards. A **mutex is lost** then, although no other process could be granted it |
//! | waiters | keep waiting, until their own timeout |
//! | new requests | wait for up to 1 s ([`outage_after`]). From then on they are rejected at once with [`Unavailable`], or admitted without a permit ([`OnUnavailable`]). During the first second a request with a shorter timeout is rejected by that |
//! | all, if a right was revoked or the password changed | the same; new requests are rejected at once with [`Denied`] |
//!
//! Operation is normal within 2 s of the server's return, or once there is a majority and a leader, however long the outage took:
//! releases are resent until they are acknowledged. A call that is executed late or twice, or loses its reply, is harmless:
//! calls are numbered, and a later one wins.
//!
//! What a server can forget, and what happens when one of several servers fails, depends on the backend: see the pages of
//! [`redis`](super::redis), [`redlock`](super::redlock), [`etcd`](super::etcd) and [`zookeeper`](super::zookeeper), and the table
//! of [`guarantees`](super::guarantees).
//!
//! # What an outage costs
//!
//! While the server is down permits cannot be counted, so a layer has to choose. [`OnUnavailable::Reject`], the default,
//! keeps the limit and rejects requests (`503`). [`OnUnavailable::Allow`] serves them and suspends the limit: appropriate for a
//! limit that saves money, wrong for one that protects a fragile service. Requests that are already running continue in both
//! cases, as configured by [`OnLost`].
//!
//! # What is not guaranteed
//!
//! * **A backend that loses its state** admits at most `limit` more requests: Redis after a flush, an eviction, or a failover or
//!   restart that loses data; etcd and ZooKeeper when they are wiped. The earlier holders learn of it within a third of a lease,
//!   or one session.
//! * **A paused process** can act after its lease. The [token](super::leases#tokens) protects against that.
//! * **Tokens** restart when an etcd or a ZooKeeper is wiped, and can decrease when a Redis loses its state and its clock has
//!   fallen behind.
//! * **Order** is the order of arrival at the backend. A ticket that was removed from the queue (by a pause, a flush) is enqueued
//!   again at its end. Redlock has no order. A try ([`try_acquire`], [`reject_when_full`]) never overtakes the queue.
//!
//! [`Memory`](crate::Memory) loses its state only with its process.
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
