//! Which layer goes outside which, and what tower's own do with a limit over a network.
//!
//! # The order
//!
//! ```text
//! request ─► trace ─► key lock ─► limit ─► timeout ─► retry ─► the service
//! ```
//!
//! | layer | why there |
//! | --- | --- |
//! | trace | outermost, so that it sees waits and refusals too. So do authentication and everything else that refuses without work: nobody should wait in order to be sent away |
//! | key lock | outside the limit: a request that waits for its key holds no permit. The other way round, the limit fills with requests that all wait for one key |
//! | limit | next to the work that it counts |
//! | timeout | inside the limit: its clock starts when the work does. The wait has a bound of its own, [`wait_timeout`] |
//! | retry | inside: one permit for all attempts, and the place in the line is not lost |
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
//! (`axum::Router::layer` turns this round: the layer that is added last is the outermost. Put several into one
//! `ServiceBuilder`, and they read from the top.)
//!
//! **Two limits**, one inside the other: nest them in the same order everywhere. Requests that hold A and wait for B,
//! beside others that hold B and wait for A, end with their `wait_timeout` only. The same goes for two keyed mutexes; a
//! key of several names has no such trouble.
//!
//! **Bodies.** An axum handler reads the request's body itself, so a client that sends slowly holds the permit
//! meanwhile. Bound the size and the time of a body, or read it before the limit.
//!
//! # Timeout
//!
//! `tower::timeout` outside a limit does less than one thinks: its clock starts at `call`, and the limit waits in
//! `poll_ready`. So it does not bound the wait; `wait_timeout` does. Where the wait is in the future it counts: under
//! an own `Router::layer` in axum, which makes a service ready inside its future; with [`reject_when_full`]; and for
//! the keyed layers, which are always ready. A request that is cut off in its wait gives its place up.
//!
//! # Retry
//!
//! Inside a limit, one permit covers all attempts and the pauses between them. Outside, each attempt takes a permit of
//! its own, at the end of the line, and none is held during the pause. So put it outside when pauses are long. A
//! refusal of ours is then an attempt that failed: let the policy look at its [`kind`](crate::Error::kind), and not
//! repeat what has just waited for 30 s.
//!
//! # LoadShed
//!
//! `tower::load_shed` refuses what is not ready at the first look. A permit from another machine never is, so outside a
//! limit that waits it sheds everything. Say [`reject_when_full`]: then readiness is the inner service's, and the one
//! try is in the future. Inside a limit it does what it always does.
//!
//! # Buffer
//!
//! `tower::buffer` outside a limit is sound: a refusal never comes out of `poll_ready`, where one error would end the
//! buffer for good. But its worker makes the service ready for one request after another. So
//!
//! * only the first in the buffer stands in the fleet's line, and other processes, whose requests all stand there, get
//!   more turns;
//! * permits are taken one by one, a trip over the network each;
//! * `wait_timeout` starts when a request is at the head of the buffer, not when it came.
//!
//! Where that matters, clone the service for each request instead (all clones share the limit), or use
//! [`reject_when_full`], whose try is in the future. A buffer inside a limit changes nothing.
//!
//! # Balance
//!
//! `tower::balance` makes every endpoint ready and then chooses. With a limit round each endpoint, those that were not
//! chosen have a permit reserved and do nothing with it. It goes back after [`reservation_ttl`], 1 s; the endpoint
//! stays ready all the same, and the call that comes later takes its permit in its future. So nothing is stuck, but
//! each idle `Balance` of the fleet takes permits for a second now and then, and what `Balance` believes to be ready
//! may have to wait. Better: one limit outside `Balance`; or `reject_when_full` round each endpoint, which reserves
//! nothing; or a short `reservation_ttl`.
//!
//! # Steer
//!
//! `tower::steer` is ready only when **all** of its services are. With limits that wait inside, one that is full holds
//! up the requests for all others. Put the limit outside, use `reject_when_full` inside, or let a router choose that
//! makes ready what it has chosen, as axum's does. The keyed layers are always ready and do no harm here.
//!
//! # One limit in process beside it
//!
//! `tower::limit::ConcurrencyLimit` outside, with a number that one process bears, keeps a flood from standing in the
//! fleet's line at all. [`max_waiting`] does nearly the same, and refuses.
//!
//! [`wait_timeout`]: crate::DistributedConcurrencyLimitLayer::wait_timeout
//! [`max_waiting`]: crate::DistributedConcurrencyLimitLayer::max_waiting
//! [`reject_when_full`]: crate::DistributedConcurrencyLimitLayer::reject_when_full
//! [`reservation_ttl`]: crate::DistributedConcurrencyLimitLayer::reservation_ttl
