//! Tower layers over permits that a whole fleet shares.
//!
//! A [`DistributedConcurrencyLimitLayer`] wraps any [`tower::Service`](tower_service::Service): a request goes on only
//! with a permit, and at most `limit` permits of a name are out at a time, over every process that uses the same
//! backend. The permit is given back when the response has ended, streamed ones included. A [`KeyedMutexLayer`] lets in one
//! request at a time for each key: for each product, say, of a shop.
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
//! # The map
//!
//! | you want | look at |
//! | --- | --- |
//! | a limit round a service, in a server or a client | [`DistributedConcurrencyLimitLayer`], the guide in [`layers::limit`] |
//! | one request at a time for each key, or so many for each tenant | [`KeyedMutexLayer`], [`KeyedConcurrencyLimitLayer`], the guide in [`layers::keyed`] |
//! | a lock without tower | [`Coordinator::mutex`], [`Coordinator::lock_all`], [`MutexGuard`] |
//! | a permit without tower | [`Coordinator::semaphore`], [`Semaphore`], [`Permit`] |
//! | to choose where permits live | [`Memory`], [`Redis`], [`Redlock`], [`Etcd`], [`ZooKeeper`], [`Coordinator::connect`], [`guide::guarantees`] |
//! | to see who holds and who waits, and to throw somebody out | [`Coordinator::inspect`], [`Coordinator::evict`] |
//! | to end a process cleanly | [`Coordinator::shutdown`] |
//! | to know what went wrong | [`Error`], [`ErrorKind`] |
//! | to choose, to order layers, to know what happens when something breaks, to run it | the [`guide`] |
//!
//! # How it works
//!
//! Whoever wants in takes a **ticket** in a queue that bears a **name**. The oldest `limit` tickets hold **permits**.
//! Releasing, giving up and cancelling are the same act: the ticket leaves the queue. Tickets live under a **lease**
//! that their process renews in the background; a process that dies is out one lease later. The backend grants, by its
//! own clock, in order of arrival, and tells the process whose ticket was granted.
//!
//! Nothing of that runs in your futures: a caller holds the end of a channel, and may drop it at any time.
//!
//! # What is logged
//!
//! With [`tracing`]: a span `permit.wait` for each wait (`name`, `outcome`, `waited_ms`); a line at `INFO` for a wait of
//! more than 2 s that says who holds; a warning when an outage of the backend begins, and a line when it ends; an error
//! when a permit is lost. Names appear in their safe form ([`Semaphore::name`]), URLs never.

#![forbid(unsafe_code)]
#![warn(missing_docs, missing_debug_implementations, unreachable_pub)]
#![cfg_attr(docsrs, feature(doc_cfg))]
// The docs link to every backend. One that is not built in is no place to link to.
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
pub use coordinator::{Coordinator, CoordinatorBuilder};
pub use error::{BoxError, Error, ErrorKind};
pub use layers::keyed::{
    HeldKeys, Key, KeyedConcurrencyLimit, KeyedConcurrencyLimitLayer, KeyedMutex, KeyedMutexLayer,
};
pub use layers::limit::{DistributedConcurrencyLimit, DistributedConcurrencyLimitLayer};
pub use mutex::{Mutex, MutexGuard, MutexGuards};
pub use permit::{Permit, PermitHandle};
pub use semaphore::{Semaphore, Stats};

/// The examples of the README compile.
#[cfg(all(doctest, feature = "redis"))]
#[doc = include_str!("../README.md")]
struct Readme;
