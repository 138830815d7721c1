//! The order of layers, and how tower's own middleware works with a distributed limit.
//!
//! # The order
//!
//! ```text
//! request ─► trace ─► key lock ─► limit ─► timeout ─► retry ─► the service
//! ```
//!
//! | layer | position |
//! | --- | --- |
//! | trace | outermost, so that it records waits and rejections too. The same goes for authentication and all else that rejects without work: a request should not wait only to be rejected |
//! | key lock | outside the limit: a request that waits for its key holds no permit. The other way round, the limit fills with requests that all wait for one key |
//! | limit | next to the work that it counts |
//! | timeout | inside the limit: its clock starts when the work does. The wait has a bound of its own, [`wait_timeout`] |
//! | retry | inside: one permit covers all attempts, and the request keeps its position in the queue |
//!
//! In code, with the outermost first:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tower_permit::BoxError> {
//! use http::{Request, Response};
//! use std::time::Duration;
//! use tower::{Service, ServiceBuilder, ServiceExt};
//! use tower_permit::layers::keyed::path_segment;
//! use tower_permit::{Coordinator, DistributedConcurrencyLimitLayer, KeyedMutexLayer, Memory};
//!
//! # let shop = tower::service_fn(|_: Request<String>| async { Ok::<_, tower_permit::BoxError>(Response::new(String::new())) });
//! let permits = Coordinator::new(Memory::new());
//! let mut service = ServiceBuilder::new()
//!     .layer(KeyedMutexLayer::new(&permits, "buy", path_segment(1))?)
//!     .layer(DistributedConcurrencyLimitLayer::new(permits.semaphore("orders", 20)?))
//!     .timeout(Duration::from_secs(5))
//!     .service(shop);
//!
//! let request = Request::post("/products/7/buy").body(String::new())?;
//! let response = service.ready().await?.call(request).await?;
//! # drop(response);
//! # Ok(())
//! # }
//! ```
//!
//! `axum::Router::layer` reverses this: the layer that is added last is the outermost. Put several layers into one
//! `ServiceBuilder` to read them from the top.
//!
//! **Two limits**, one inside the other: nest them in the same order everywhere. Otherwise requests that hold A and wait for B,
//! and requests that hold B and wait for A, block each other until their `wait_timeout`. The same goes for two keyed mutexes. A
//! key with several names cannot deadlock.
//!
//! **Request bodies.** An axum handler reads the request body itself, so a client that sends slowly keeps the permit in use
//! meanwhile. Bound the size and the duration of a body, or read it before the limit.
//!
//! # Timeout
//!
//! `tower::timeout` outside a limit does not bound the wait: its clock starts at `call`, and the limit waits in `poll_ready`.
//! `wait_timeout` bounds it. Where the wait takes place in the future, the timeout covers it: with [`acquire_in_call`]; for a
//! layer that is added by a separate `Router::layer` call in axum, which makes a service ready inside its future; with
//! [`reject_when_full`]; and for the keyed layers, which are always ready. A request that times out while it waits leaves the
//! queue. The timeout of `tonic::transport::Server` is outside all layers: use [`acquire_in_call`].
//!
//! A request's own deadline bounds its wait in the future as well: a `grpc-timeout` header, or a
//! [`Deadline`](crate::layers::Deadline) in its extensions.
//!
//! # Retry
//!
//! Inside a limit, one permit covers all attempts and the pauses between them. Outside, each attempt acquires its own permit at
//! the end of the queue, and no permit is held during a pause; choose this where pauses are long. A rejection by the limit is
//! then a failed attempt: let the policy check its [`kind`](crate::Error::kind), and not retry a request that has already waited
//! for 30 s.
//!
//! # LoadShed
//!
//! `tower::load_shed` rejects a request if the service is not ready at the first poll. A permit that needs a round trip never is,
//! so outside a limit that waits it rejects nearly everything. Use [`reject_when_full`] or [`acquire_in_call`]: readiness is then
//! that of the inner service, and the permit is acquired in the future. Inside a limit `load_shed` works as usual.
//!
//! # Buffer
//!
//! `tower::buffer` outside a limit works: a rejection is never returned by `poll_ready`, where one error would close the buffer
//! for good. But its worker makes the service ready for one request after another. Therefore
//!
//! * only the first request of the buffer is in the distributed queue, and processes that enqueue all of their requests get more
//!   turns;
//! * permits are acquired one by one, with a round trip each;
//! * `wait_timeout` starts when a request is at the head of the buffer, not when it arrived.
//!
//! Where that matters, clone the service for each request instead (all clones share the limit), or use [`reject_when_full`],
//! which tries in the future. A buffer inside a limit changes nothing.
//!
//! # Balance
//!
//! `tower::balance` makes every endpoint ready and then chooses one. With a limit around each endpoint, the endpoints that were
//! not chosen have reserved a permit without using it. It is released after [`reservation_ttl`], 1 s; the endpoint
//! stays ready, and a later call acquires its permit in its future. So nothing blocks, but each idle `Balance` of the fleet
//! reserves permits for a second now and then, and a call to an endpoint that `Balance` considers ready may have to wait. Better:
//! one limit outside `Balance`; or `reject_when_full` around each endpoint, which reserves nothing; or a short `reservation_ttl`.
//!
//! # Steer
//!
//! `tower::steer` is ready only when **all** of its services are. If they contain limits that wait, one that is full blocks
//! the requests for all others. Put the limit outside, use `reject_when_full` inside, or use a router that makes only the chosen
//! service ready, as axum's does. The keyed layers are always ready and work unchanged.
//!
//! # An additional limit in process
//!
//! `tower::limit::ConcurrencyLimit` outside, with a number that one process can handle, keeps a flood out of the distributed
//! queue altogether. [`max_waiting`] has nearly the same effect, and rejects.
//!
//! [`wait_timeout`]: crate::DistributedConcurrencyLimitLayer::wait_timeout
//! [`max_waiting`]: crate::DistributedConcurrencyLimitLayer::max_waiting
//! [`acquire_in_call`]: crate::DistributedConcurrencyLimitLayer::acquire_in_call
//! [`reject_when_full`]: crate::DistributedConcurrencyLimitLayer::reject_when_full
//! [`reservation_ttl`]: crate::DistributedConcurrencyLimitLayer::reservation_ttl
