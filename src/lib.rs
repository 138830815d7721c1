//! Tower middleware that limits **concurrency over a whole fleet**: a distributed concurrency limit and a keyed mutex, over
//! Redis, Redlock, etcd, ZooKeeper or in process.
//!
//! A [`DistributedConcurrencyLimitLayer`] wraps any [`tower::Service`](tower_service::Service). Each request holds a permit,
//! and at most `limit` permits of a name are held at a time, over all processes that use the same backend. The permit is
//! released at the end of the response's body, so that a streamed response counts until it ends. A [`KeyedMutexLayer`] runs
//! one request at a time for each key, such as a customer or a document.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tower_permit::BoxError> {
//! use tower::{Service, ServiceBuilder, ServiceExt};
//! use tower_permit::{Coordinator, DistributedConcurrencyLimitLayer, Memory};
//!
//! // Once per process. `Memory` serves one process; `Redis` serves a fleet.
//! let permits = Coordinator::new(Memory::new());
//!
//! let mut service = ServiceBuilder::new()
//!     .layer(DistributedConcurrencyLimitLayer::new(permits.semaphore("greeter", 20)?))
//!     .service_fn(|name: http::Request<String>| async move {
//!         Ok::<_, tower_permit::BoxError>(http::Response::new(format!("hello {}", name.body())))
//!     });
//!
//! let response = service.ready().await?.call(http::Request::new("you".into())).await?;
//! # drop(response);
//! # Ok(())
//! # }
//! ```
//!
//! # When not to use it
//!
//! * **To limit a rate**, such as 100 requests per second: this crate limits how many requests run *at the same time*. Use
//!   `tower::limit::RateLimit` or the `governor` crate.
//! * **For one process**: `tower::limit::ConcurrencyLimit` and `tokio::sync::Mutex` need no backend.
//! * **As the only protection of data**: a permit can be lost while its holder runs. Use a constraint of the database first,
//!   and the [fencing token](MutexGuard::token) of a mutex where there is none.
//!
//! # What to use
//!
//! | to | use |
//! | --- | --- |
//! | limit the concurrent requests to a service, in a server or a client | [`DistributedConcurrencyLimitLayer`]; guide: [`layers::limit`] |
//! | run one request at a time for each key | [`KeyedMutexLayer`]; guide: [`layers::keyed`] |
//! | limit the concurrent requests of each key, such as a tenant | [`KeyedConcurrencyLimitLayer`] |
//! | lock without tower | [`Coordinator::mutex`], [`Coordinator::lock_all`], [`MutexGuard`] |
//! | acquire a permit without tower | [`Coordinator::semaphore`], [`Semaphore`], [`Permit`] |
//! | choose a backend | [`Memory`], [`Redis`], [`Redlock`], [`Etcd`], [`ZooKeeper`], [`Coordinator::from_url`]; guide: [`guide::choosing`] |
//! | list holders and queued tickets, and evict them | [`Coordinator::inspect`], [`Coordinator::evict`] |
//! | shut a process down | [`Coordinator::shutdown`] |
//! | handle errors | [`Error`], [`ErrorKind`] |
//! | know the guarantees, order layers, run it in production | the [`guide`] |
//!
//! # Features
//!
//! | feature | adds | default |
//! | --- | --- | --- |
//! | `redis` | [`Redis`]: a single server | yes |
//! | `redis-cluster` | Redis Cluster: `Redis::cluster` | no |
//! | `redis-sentinel` | Redis with Sentinel: `Redis::sentinel` | no |
//! | `redis-tls` | `rediss://` URLs, by rustls with ring | no |
//! | `redlock` | [`Redlock`]: a mutex over several independent Redis servers | no |
//! | `etcd` | [`Etcd`]; the build needs `protoc` | no |
//! | `zookeeper` | [`ZooKeeper`] | no |
//! | `axum` | [`route_param`](layers::keyed): keys by the parameters of an axum route | no |
//! | `reqwest` | `reqwest::Response` holds its permit until the end of its body | no |
//!
//! [`Memory`] is always available.
//!
//! # How it works
//!
//! A request enqueues a **ticket** in the queue of a **name**. The oldest `limit` tickets hold **permits**. Releasing a
//! permit and cancelling a wait are the same operation: the ticket is removed. Tickets live under a **lease** that their
//! process renews in the background. If a process crashes, its permits stay taken until the lease expires (10 s by default).
//! The backend grants permits by its own clock, in order of arrival, and notifies the process of a granted ticket.
//!
//! None of that runs in the caller's futures. A caller holds the receiving end of a channel and may drop it at any time.
//!
//! # What is logged
//!
//! With [`tracing`]:
//!
//! * a span `permit.wait` for each wait, with `name`, `outcome` and `waited_ms`;
//! * an `INFO` event for a wait of more than 2 s, with the holders;
//! * a `WARN` event when an outage of the backend begins, and an `INFO` event when it ends;
//! * a `WARN` event when a permit exceeds `max_hold`, or is revoked by a shutdown;
//! * an `ERROR` event when a permit is lost otherwise.
//!
//! Names are logged in encoded form ([`Semaphore::name`]). URLs are not logged.

#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]
// The docs link to every backend, also to those that are not compiled in.
#![cfg_attr(
    not(all(
        feature = "etcd",
        feature = "redis-cluster",
        feature = "redis-sentinel",
        feature = "redis-tls",
        feature = "redlock",
        feature = "zookeeper"
    )),
    allow(rustdoc::broken_intra_doc_links)
)]

mod acquire;
mod backend;
mod client;
mod clock;
mod coordinator;
mod error;
pub mod guide;
pub mod layers;
mod mutex;
mod name;
mod permit;
mod semaphore;

pub use backend::any::AnyBackend;
#[cfg(feature = "etcd")]
#[cfg_attr(docsrs, doc(cfg(feature = "etcd")))]
pub use backend::etcd::Etcd;
pub use backend::memory::Memory;
#[cfg(feature = "redis")]
#[cfg_attr(docsrs, doc(cfg(feature = "redis")))]
pub use backend::redis::Redis;
#[cfg(feature = "redlock")]
#[cfg_attr(docsrs, doc(cfg(feature = "redlock")))]
pub use backend::redlock::Redlock;
#[cfg(feature = "zookeeper")]
#[cfg_attr(docsrs, doc(cfg(feature = "zookeeper")))]
pub use backend::zookeeper::ZooKeeper;
pub use backend::{Backend, Capabilities, Inspection, TicketInfo};
pub use coordinator::{Coordinator, CoordinatorBuilder, NameInUse, NameKind};
pub use error::{BoxError, Error, ErrorKind};
pub use layers::keyed::{
    HeldKeys, Key, KeyedConcurrencyLimit, KeyedConcurrencyLimitLayer, KeyedMutex, KeyedMutexLayer,
};
pub use layers::limit::{DistributedConcurrencyLimit, DistributedConcurrencyLimitLayer};
pub use mutex::{Mutex, MutexGuard, MutexGuards};
pub use permit::{Permit, PermitHandle};
pub use semaphore::{Semaphore, Stats};

/// Compiles the examples of the README.
#[cfg(all(doctest, feature = "redis"))]
#[doc = include_str!("../README.md")]
struct Readme;
