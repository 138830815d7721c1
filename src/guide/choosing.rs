//! A limit, a limit for each key, a mutex, or a constraint in the database; and which backend.
//!
//! # What to take
//!
//! | you want | take |
//! | --- | --- |
//! | something that bears so many requests at a time: a model, a partner, a report that eats memory | a limit: [`DistributedConcurrencyLimitLayer`], or [`Semaphore`] without tower |
//! | the same for each tenant, customer, host | a limit for each key: [`KeyedConcurrencyLimitLayer`] |
//! | one at a time for each product, account, document | a mutex for each key: [`KeyedMutexLayer`], or [`Mutex`] without tower |
//! | one at a time over several things, such as both accounts of a transfer | [`Coordinator::lock_all`], or a key of several names ([`Key::all`](crate::Key::all)) |
//! | one process of the fleet that does a job | a [`Mutex`] that is kept for as long as the process lives; [`MutexGuard::lost`] says when the job is over |
//! | data that is never wrong | a constraint, a transaction or an atomic statement in your database |
//! | so many requests a second | a rate limiter: permits count what is under way, not what was |
//!
//! A limit holds its permit until the response's body has ended, so that a stream counts while it streams. The keyed
//! layers let go when the response is there, so that a slow reader does not keep the key; both by choice
//! ([`release_at_response`], [`hold_until_body_end`]).
//!
//! A mutex is a limit of 1 with a fencing [token](crate::MutexGuard::token). A mutex and a semaphore of the same name
//! have nothing to do with each other.
//!
//! # The database first
//!
//! A permit is kept over a network, under a lease. It orders work; it does not guard data ([`leases`](super::leases)
//! says why no such lock can). Where a mistake must not happen, let the place where the data is say no:
//!
//! ```sql
//! UPDATE product SET stock = stock - 1 WHERE id = ? AND stock > 0
//! ```
//!
//! Often that is all that is needed, and then you need no lock. A mutex adds what the statement cannot give:
//!
//! * **order**: who came first is served first, over all processes;
//! * **less contention**: fifty buyers stand in a line instead of colliding in the database and trying again;
//! * **work outside the database** between the read and the write: a price from a partner, a payment, a file.
//!
//! The example `shop` has both, a lock by product and a write that refuses an old token.
//!
//! # Which backend
//!
//! | | counts over | take it |
//! | --- | --- | --- |
//! | [`Memory`] | one process | for tests, for a service that runs once, and to start with. It has nothing to fail, and forgets with its process only |
//! | [`Redis`] | every process that uses the same server and prefix | as a rule. As safe as that server's memory: [its page](super::redis) says what a flush or a failover does |
//! | [`Redlock`] | the same, by a majority of three or five servers | for mutexes that must be to be had while a server is down. No limit above 1, no order: [its page](super::redlock) |
//! | [`Etcd`] | every process that uses the same cluster and prefix | where no failover should let one more in, and an etcd is at hand: [its page](super::etcd) |
//! | [`ZooKeeper`] | every process that uses the same ensemble and prefix | the same, with a ZooKeeper: [its page](super::zookeeper) |
//!
//! All keep the same rules and pass the same tests as far as they promise them, so that what works over one works over
//! the other. [`guarantees`](super::guarantees) compares them fault by fault, and [`Coordinator::capabilities`] says what a
//! backend can do. [`Coordinator::from_url`] picks one by URL.
//!
//! If a service runs in one process and needs no keys, no streams that count until they end and no waits with an end,
//! then `tower::limit` is enough.
//!
//! # Names
//!
//! A name is any string or bytes up to 64 KiB. All who use it on the same backend share it, so choose it by what is
//! protected (`llm:gpt-5`, `export`), not by who asks. Names differ in case, and none is special. The name of a keyed
//! layer and its key are joined so that `buy` + `1` is never the same as another layer's, nor as a plain name.
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
//! [`Coordinator::capabilities`]: crate::Coordinator::promises
//! [`Memory`]: crate::Memory
//! [`Redis`]: crate::Redis
//! [`Redlock`]: crate::Redlock
//! [`Etcd`]: crate::Etcd
//! [`ZooKeeper`]: crate::ZooKeeper
