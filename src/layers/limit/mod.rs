//! At most so many requests at a time, counted over every process that uses the same [`Semaphore`](crate::Semaphore).
//!
//! # Example
//!
//! A client of a slow model: at most 20 requests at a time over the whole fleet, and each counts until its stream ends.
//!
//! ```
//! use std::convert::Infallible;
//! use std::time::Duration;
//! use http::{Request, Response};
//! use http_body_util::Full;
//! use bytes::Bytes;
//! use tower::{Service, ServiceBuilder, ServiceExt};
//! use tower_permit::{Coordinator, DistributedConcurrencyLimitLayer, Memory};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tower_permit::BoxError> {
//! # let client = tower::service_fn(|_: Request<()>| async {
//! #     Ok::<_, Infallible>(Response::new(Full::new(Bytes::from("hello"))))
//! # });
//! let permits = Coordinator::new(Memory::new());
//! let limit = DistributedConcurrencyLimitLayer::new(permits.semaphore("llm:gpt-5", 20)?)
//!     .wait_timeout(Duration::from_secs(3));
//!
//! let mut llm = ServiceBuilder::new().layer(limit).service(client);
//!
//! let response = llm.ready().await?.call(Request::new(())).await?;
//! drop(response); // here the permit goes back, had the body not been read to its end before
//! # Ok(())
//! # }
//! ```
//!
//! A server answers a refusal itself, so that its error type stays what it was:
//!
//! ```
//! use axum::{Router, routing::get};
//! use tower_permit::{Coordinator, DistributedConcurrencyLimitLayer, Memory};
//!
//! # fn main() -> Result<(), tower_permit::Error> {
//! let permits = Coordinator::new(Memory::new());
//! let limit = DistributedConcurrencyLimitLayer::new(permits.semaphore("reports", 4)?).reject_with_response();
//!
//! let app: Router = Router::new().route("/report", get(|| async { "…" })).layer(limit);
//! # Ok(())
//! # }
//! ```
//!
//! # When a permit is taken, and when it goes back
//!
//! [`poll_ready`](tower_service::Service::poll_ready) asks the inner service first and then joins the queue; when it is
//! ready, a permit is reserved for the next `call`. While the inner service is not ready, no permit is held and no place
//! in the queue is kept.
//!
//! A reservation is good for [`reservation_ttl`](DistributedConcurrencyLimitLayer::reservation_ttl), a second by
//! default, so that a service that is made ready and then forgotten takes nothing from the others. What was ready stays
//! ready all the same: a `call` that comes later, or without any `poll_ready`, takes its permit inside its future. That
//! is why the inner service must be [`Clone`]. A clone of the service starts without a reservation.
//!
//! The permit is held until the response's body ends: its last frame, its trailers, an error, or its drop. With
//! [`release_at_response`](DistributedConcurrencyLimitLayer::release_at_response) it goes back when the response is
//! there. It also goes back when the inner service fails, when the response future is dropped, and in any case after
//! [`max_hold`](DistributedConcurrencyLimitLayer::max_hold), which ends the request with an error.
//!
//! A response that has no body to carry the permit does not compile, until `release_at_response` is said:
//!
//! ```compile_fail,E0277
//! use std::convert::Infallible;
//! use tower::{Service, service_fn};
//! use tower_permit::{Coordinator, DistributedConcurrencyLimit, Memory};
//!
//! fn is_service<S: Service<()>>(_: S) {}
//!
//! let semaphore = Coordinator::new(Memory::new()).semaphore("numbers", 4).unwrap();
//! let numbers = service_fn(|()| async { Ok::<u32, Infallible>(7) });
//! is_service(DistributedConcurrencyLimit::new(numbers, semaphore)); // `u32` cannot carry a permit
//! ```
//!
//! ```
//! # use std::convert::Infallible;
//! # use tower::{Layer, Service, service_fn};
//! # use tower_permit::{Coordinator, DistributedConcurrencyLimitLayer, Memory};
//! # fn is_service<S: Service<()>>(_: S) {}
//! # let semaphore = Coordinator::new(Memory::new()).semaphore("numbers", 4).unwrap();
//! # let numbers = service_fn(|()| async { Ok::<u32, Infallible>(7) });
//! is_service(DistributedConcurrencyLimitLayer::new(semaphore).release_at_response().layer(numbers));
//! ```
//!
//! The compiler is clearest where a `Service` is asked for by name; `tower::ServiceBuilder::check_service` does that.
//!
//! # When there is no room
//!
//! A request waits its turn, for at most [`wait_timeout`](DistributedConcurrencyLimitLayer::wait_timeout) and behind at
//! most [`max_waiting`](DistributedConcurrencyLimitLayer::max_waiting) others of this process; or it is refused at once,
//! with [`reject_when_full`](DistributedConcurrencyLimitLayer::reject_when_full). Either way the refusal comes out of
//! `call`'s future, and the inner service is not called. `poll_ready` reports the inner service's errors only: one error
//! there would end a `tower::buffer::Buffer` for good.
//!
//! # Order of layers
//!
//! * **Retry** outside: each attempt takes a permit of its own, and none is held during the pause between two.
//! * **Timeout** inside bounds the request. Outside it bounds a wait inside the future too, but not the one in
//!   `poll_ready`, since its clock starts at `call`: `wait_timeout` bounds both.
//! * **`tower::load_shed`** outside refuses whatever is not ready at the first look, and a permit from another machine
//!   never is: it would shed everything. Use `reject_when_full` instead.
//! * **Buffer** outside is sound; it takes permits one by one.
//!
//! More in the [guide](crate::guide::layer_order).
//!
//! # Differences from `tower::limit`
//!
//! |  | `tower::limit::ConcurrencyLimit` | `DistributedConcurrencyLimit` |
//! | --- | --- | --- |
//! | counts | this process | every process with the same backend and name |
//! | two layers of one name | two limits, unless they share a semaphore | one limit |
//! | the permit goes back | when the response is ready | when its body has ended, or by choice when it is ready |
//! | waits | for ever | for `wait_timeout`, behind at most `max_waiting`, or not at all |
//! | ready, but never called | holds its place for ever | gives it back after `reservation_ttl` |
//! | `call` without `poll_ready` | panics | takes its permit inside the future |
//! | a request that hangs | holds its place for ever | ends after `max_hold` |
//! | a process that dies | takes its own count with it | holds its permits for one more lease |
//! | fails | never | as [`AsError`](super::AsError) or [`AsResponse`](super::AsResponse) says |

mod future;
mod layer;
mod service;

pub use future::ResponseFuture;
pub use layer::DistributedConcurrencyLimitLayer;
pub use service::DistributedConcurrencyLimit;
