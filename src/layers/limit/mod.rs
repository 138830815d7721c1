//! Limits the concurrent requests to a service, over all processes that use the same [`Semaphore`](crate::Semaphore).
//!
//! # Example
//!
//! A client of a slow model: at most 20 concurrent requests of the whole fleet. Each counts until its stream ends.
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
//! drop(response); // releases the permit, if the body has not been read to its end
//! # Ok(())
//! # }
//! ```
//!
//! A server rejects requests with a response, so that the service keeps its error type:
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
//! # When a permit is acquired and released
//!
//! [`poll_ready`](tower_service::Service::poll_ready) polls the inner service first and then enqueues a ticket. When the
//! permit is granted, it is reserved for the next `call`. While the inner service is not ready, no permit is held and no
//! ticket is queued.
//!
//! A reservation lasts for [`reservation_ttl`](DistributedConcurrencyLimitLayer::reservation_ttl) (default: 1 s), so that a
//! service that is ready but never called does not hold a permit. It stays ready after that: a later `call`, or one without
//! `poll_ready`, acquires its permit in its future. For that the inner service must be [`Clone`]. A clone of the
//! service starts without a reservation.
//!
//! The permit is held until the response's body ends: with its last frame, its trailers, an error, or its drop. With
//! [`release_at_response`](DistributedConcurrencyLimitLayer::release_at_response) it is released when the response is
//! ready. It is also released when the inner service fails, when the response future is dropped, when the body is not read for
//! [`stall_timeout`](DistributedConcurrencyLimitLayer::stall_timeout) (30 s), and at the latest after
//! [`max_hold`](DistributedConcurrencyLimitLayer::max_hold). The last two end the request with an error.
//!
//! A response type without a body that could hold the permit compiles only with `release_at_response`:
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
//! is_service(DistributedConcurrencyLimit::new(numbers, semaphore)); // `u32` cannot hold a permit
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
//! The compiler's message is clearest if the code requires a `Service` explicitly, as
//! `tower::ServiceBuilder::check_service` does.
//!
//! # When no permit is free
//!
//! A request waits for at most [`wait_timeout`](DistributedConcurrencyLimitLayer::wait_timeout), together with at most
//! [`max_waiting`](DistributedConcurrencyLimitLayer::max_waiting) requests of this process. With
//! [`reject_when_full`](DistributedConcurrencyLimitLayer::reject_when_full) it is rejected at once instead. A rejection is
//! returned by `call`'s future, and the inner service is not called. `poll_ready` returns only errors of the inner
//! service, since a single error of `poll_ready` ends a `tower::buffer::Buffer` permanently.
//!
//! # Order of layers
//!
//! * **Retry** outside: each attempt acquires its own permit, and none is held during the pause between two attempts.
//! * **Timeout** inside bounds the request. Outside it bounds a wait only with
//!   [`acquire_in_call`](DistributedConcurrencyLimitLayer::acquire_in_call), since its clock starts at `call`. Then a request's
//!   own [`Deadline`](super::Deadline) or `grpc-timeout` bounds its wait as well. `wait_timeout` bounds every wait.
//! * **`tower::load_shed`** outside sheds every request, since it rejects what is not ready at the first poll, and a permit
//!   of another process never is. Use `reject_when_full` instead, or `acquire_in_call` to shed for the inner service.
//! * **Buffer** outside works. It acquires one permit after the other.
//!
//! More in the [guide](crate::guide::layer_order).
//!
//! # Differences from `tower::limit::ConcurrencyLimit`
//!
//! |  | `tower::limit::ConcurrencyLimit` | `DistributedConcurrencyLimit` |
//! | --- | --- | --- |
//! | counts requests of | this process | all processes with the same backend and name |
//! | two layers with one name | two limits, unless they share a semaphore | one limit |
//! | releases the permit | when the response is ready | at the end of its body, or when the response is ready |
//! | waits | without a bound | for `wait_timeout`, with at most `max_waiting` others, or not at all |
//! | ready but never called | holds its permit for ever | releases it after `reservation_ttl` |
//! | `call` without `poll_ready` | panics | acquires its permit in the future |
//! | a request that hangs | holds its permit for ever | ends after `max_hold` |
//! | a process that crashes | its count ends with it | its permits stay taken until its lease expires |
//! | errors of its own | none | as [`AsError`](super::AsError) or [`AsResponse`](super::AsResponse) |

mod future;
mod layer;
mod reservation;
mod service;

pub use future::ResponseFuture;
pub use layer::DistributedConcurrencyLimitLayer;
pub use service::DistributedConcurrencyLimit;
