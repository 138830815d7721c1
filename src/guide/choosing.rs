//! Choosing between a limit, a limit per key, a mutex and a database constraint; and choosing a backend.
//!
//! # Which primitive
//!
//! | you need | use |
//! | --- | --- |
//! | at most N requests in progress: a model, a partner's API, a report that needs much memory | a limit: [`DistributedConcurrencyLimitLayer`], or [`Semaphore`] without tower |
//! | the same for each tenant, customer or host | a limit per key: [`KeyedConcurrencyLimitLayer`] |
//! | one at a time for each product, account or document | a mutex per key: [`KeyedMutexLayer`], or [`Mutex`] without tower |
//! | one at a time over several things, such as both accounts of a transfer | [`Coordinator::lock_all`], or a key with several names ([`Key::all`](crate::Key::all)) |
//! | one process of the fleet that does a job (leader election) | a [`Mutex`] that is held for as long as the process lives; [`MutexGuard::lost`] resolves when the job has to stop |
//! | data that is never wrong | a constraint, a transaction or an atomic statement in the database |
//! | at most N requests per second | a rate limiter: permits count requests in progress, not requests that have started |
//!
//! A limit, keyed or not, holds its permit until the response body has ended, so a stream counts while it is sent. A keyed mutex
//! releases the key when the response is ready, so that a slow reader does not keep the key. Both can be changed
//! ([`release_at_response`], [`hold_until_body_end`]).
//!
//! A mutex is a limit of 1 with a fencing [token](crate::MutexGuard::token). A mutex and a semaphore of the same name are
//! independent of each other.
//!
//! # The database first
//!
//! A permit is held over a network, under a lease. It orders work; it does not guard data ([`leases`](super::leases) explains
//! why no such lock can). Where a mistake is not acceptable, let the database reject it:
//!
//! ```sql
//! UPDATE product SET stock = stock - 1 WHERE id = ? AND stock > 0
//! ```
//!
//! This is often sufficient, and then no lock is needed. A mutex adds what the statement cannot provide:
//!
//! * **order**: requests are served in order of arrival, over all processes;
//! * **less contention**: fifty buyers wait in a queue instead of colliding in the database and retrying;
//! * **work outside the database** between the read and the write: a price from a partner, a payment, a file.
//!
//! The example `shop` has both: a lock per product, and a write that rejects an outdated token.
//!
//! # Which backend
//!
//! | | counts over | use it |
//! | --- | --- | --- |
//! | [`Memory`] | one process | for tests, for a service with a single instance, and to get started. Nothing can fail, and its state ends with the process |
//! | [`Redis`] | all processes that use the same server and prefix | by default. It is as safe as the memory of that server: [its page](super::redis) describes a flush and a failover |
//! | [`Redlock`] | the same, by a majority of three or five servers | for mutexes that must stay available while a server is down. No limit above 1 and no order: [its page](super::redlock) |
//! | [`Etcd`] | all processes that use the same cluster and prefix | where a failover must not admit an additional holder, and an etcd is available: [its page](super::etcd) |
//! | [`ZooKeeper`] | all processes that use the same ensemble and prefix | likewise, with a ZooKeeper: [its page](super::zookeeper) |
//!
//! All backends follow the same rules and pass the same tests as far as their capabilities go, so a service that works with one
//! works with another. [`guarantees`](super::guarantees) compares them fault by fault, and [`Coordinator::capabilities`] returns
//! what a backend supports. [`Coordinator::from_url`] selects one by URL.
//!
//! `tower::limit` is sufficient if a service runs in one process and needs neither keys, nor streams that count until they end,
//! nor bounded waits.
//!
//! # Names
//!
//! A name is any string or bytes up to 64 KiB. All users of a name on the same backend share it, so choose it by what is
//! protected (`llm:gpt-5`, `export`), not by the caller. Names are case-sensitive, and none is special. The name of a keyed layer
//! and its keys are joined so that `buy` + `1` never equals a key of another layer or a plain name.
//!
//! [`DistributedConcurrencyLimitLayer`]: crate::DistributedConcurrencyLimitLayer
//! [`KeyedConcurrencyLimitLayer`]: crate::KeyedConcurrencyLimitLayer
//! [`KeyedMutexLayer`]: crate::KeyedMutexLayer
//! [`release_at_response`]: crate::DistributedConcurrencyLimitLayer::release_at_response
//! [`hold_until_body_end`]: crate::layers::keyed::KeyedLayer::hold_until_body_end
//! [`Semaphore`]: crate::Semaphore
//! [`Mutex`]: crate::Mutex
//! [`MutexGuard::lost`]: crate::MutexGuard::lost
//! [`Coordinator::lock_all`]: crate::Coordinator::lock_all
//! [`Coordinator::from_url`]: crate::Coordinator::from_url
//! [`Coordinator::capabilities`]: crate::Coordinator::capabilities
//! [`Memory`]: crate::Memory
//! [`Redis`]: crate::Redis
//! [`Redlock`]: crate::Redlock
//! [`Etcd`]: crate::Etcd
//! [`ZooKeeper`]: crate::ZooKeeper
