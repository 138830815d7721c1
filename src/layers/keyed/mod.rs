//! Limits the concurrent requests of each key, to one or to a number, over all processes.
//!
//! # Example
//!
//! One purchase of a product at a time, over the whole fleet. Purchases of different products do not wait for each other.
//!
//! ```
//! use axum::{Router, routing::post};
//! use tower_permit::layers::keyed::path_segment;
//! use tower_permit::{Coordinator, KeyedMutexLayer, Memory};
//!
//! # async fn buy(_: axum::extract::Path<u64>) {}
//! # fn main() -> Result<(), tower_permit::Error> {
//! let permits = Coordinator::new(Memory::new()); // `Redis` for a fleet
//! // The product as the handler parses it: `7`, `07` and `+7` are one key.
//! let lock = KeyedMutexLayer::new(&permits, "buy", path_segment(1).parse::<u64>())?.reject_with_response();
//!
//! let app: Router = Router::new().route("/products/{id}/buy", post(buy)).route_layer(lock);
//! # Ok(())
//! # }
//! ```
//!
//! A [`KeyedConcurrencyLimitLayer`] admits more than one request: for example three of each tenant, or as many as the
//! tenant's plan allows ([`Key::with_limit`]).
//!
//! # The key
//!
//! A [`KeyExtractor`] returns it: [`path_segment`], [`path`], [`header`], [`query`], with the feature `axum` `route_param`, a
//! tuple of extractors with joined keys, or a closure:
//!
//! ```
//! use http::Request;
//! use tower_permit::{Coordinator, Key, KeyedMutexLayer, Memory};
//!
//! #[derive(Clone)]
//! struct Cart(Vec<u64>);
//!
//! # fn main() -> Result<(), tower_permit::Error> {
//! let permits = Coordinator::new(Memory::new());
//! let layer = KeyedMutexLayer::new(&permits, "buy", |request: &Request<String>| {
//!     let Cart(products) = request.extensions().get()?;
//!     Some(Key::all(products.iter().copied()))
//! })?;
//! # let _: tower_permit::KeyedMutex<_, _> = tower::Layer::layer(&layer, ());
//! # Ok(())
//! # }
//! ```
//!
//! A key may have several names, at most 64, as here. They are acquired one after the other in an order that is the same in
//! all processes, so requests with overlapping names do not deadlock. The request is called when it holds all of them. If
//! it does not get all, those acquired before are released.
//!
//! Two requests for one thing must have one key, byte by byte. The extractors of this module compare text: they decode it,
//! as each of them documents, and none changes the case. If the handler parses the text, [parse](PathSegment::parse) it in the
//! extractor, as the example does: with `path_segment(1)`, `/products/07/buy` would bypass the lock of `/products/7/buy`.
//!
//! A request without a key is rejected, or admitted without a permit with [`OnMissingKey::Pass`]. Pass only if the client does
//! not choose the key: else it would avoid its limit by leaving it out.
//!
//! In a nested router (`axum::Router::nest`) a layer sees the path without the prefix: see [`path_segment`].
//!
//! # When a key is acquired and released
//!
//! [`poll_ready`](tower_service::Service::poll_ready) is always ready, since the key is known only with the request. The
//! request is enqueued at the first poll of its future. It waits there for at most
//! [`wait_timeout`](KeyedLayer::wait_timeout), together with at most [`max_waiting`](KeyedLayer::max_waiting) requests for
//! the same key and [`max_waiting_total`](KeyedLayer::max_waiting_total) for all keys. With
//! [`reject_when_full`](KeyedLayer::reject_when_full) it does not wait. Requests for one key are served in order of
//! arrival. A request never waits for one with another key.
//!
//! A clone of the inner service is made ready and called once the request holds its key, so a waiting request does not
//! occupy the inner service. For that the inner service must be [`Clone`].
//!
//! A keyed limit releases its permit when the response's body has ended, since the request uses resources until then; a keyed
//! mutex when the response is ready, so that a slow reader of the body does not delay other requests.
//! [`hold_until_body_end`](KeyedLayer::hold_until_body_end) and [`release_at_response`](KeyedLayer::release_at_response)
//! change this. The permit is also released when the inner service fails, when the future is dropped, when the body is not read
//! for [`stall_timeout`](KeyedLayer::stall_timeout), and at the latest after [`max_hold`](KeyedLayer::max_hold).
//!
//! An unused key keeps no state, so there may be any number of keys.
//!
//! # The fencing token, and holding a key beyond the response
//!
//! The extensions of an HTTP request contain [`HeldKeys`]: an axum handler extracts `Extension(held): Extension<HeldKeys>`.
//! It provides
//!
//! * the **fencing token** of a mutex, to be written with the data that the key protects, and compared there
//!   ([`MutexGuard::token`](crate::MutexGuard::token) explains it);
//! * a **guard** for work that continues after the response ([`HeldKey::upgrade`]).
//!
//! An inner layer with the same name finds there a key that its request already holds, and **re-enters** it instead of
//! waiting for itself. This uses the extensions of that request only: two requests are always two holders. For requests
//! other than HTTP, [`KeyExtractor::extensions`] returns the extensions.
//!
//! # When a key is lost
//!
//! A process that is cut off from the backend, or paused, for longer than its lease loses its permits, and the backend
//! grants them to other requests. A keyed mutex then ends the request with [`Lost`](crate::ErrorKind::Lost) (as a response:
//! 503): the inner future is dropped, or the body ends with an error, never as if it were complete. A keyed limit lets the
//! request finish. [`on_lost`](KeyedLayer::on_lost) changes both. If a request holds several names, the first loss counts.
//!
//! # Order of layers
//!
//! From the outside in: **trace, key, limit, timeout, retry**, and then the service.
//!
//! * **Trace** sees the wait and the rejections.
//! * **The key before the limit**: a request that waits for its key holds no permit of a
//!   [`DistributedConcurrencyLimit`](crate::DistributedConcurrencyLimit) inside. In the other order, the queue of one hot
//!   key would fill the limit with idle requests and starve all others.
//! * **Timeout** inside bounds the work alone, since the wait has its own bound. It also bounds how long a key is held.
//! * **Retry** inside holds the key from one attempt to the next. If other requests may run between two attempts, place it
//!   outside: each attempt is then enqueued again.
//! * **Several keyed layers** must have the same order everywhere. Otherwise two requests can wait for each other until
//!   their `wait_timeout`. Names of one layer that are acquired together are sorted automatically.
//! * **`tower::load_shed`** outside has no effect, since this layer is always ready: use `reject_when_full`, `max_waiting`
//!   and `max_waiting_total`.
//!
//! ```
//! use std::convert::Infallible;
//! use std::time::Duration;
//! use http::{Request, Response};
//! use tower::ServiceBuilder;
//! use tower_permit::layers::keyed::path_segment;
//! use tower_permit::{Coordinator, DistributedConcurrencyLimitLayer, KeyedMutexLayer, Memory};
//!
//! # fn main() -> Result<(), tower_permit::Error> {
//! # let database = tower::service_fn(|_: Request<String>| async { Ok::<_, Infallible>(Response::new(String::new())) });
//! let permits = Coordinator::new(Memory::new());
//! let service = ServiceBuilder::new()
//!     .layer(KeyedMutexLayer::new(&permits, "document", path_segment(1))?)
//!     .layer(DistributedConcurrencyLimitLayer::new(permits.semaphore("database", 20)?))
//!     .timeout(Duration::from_secs(5))
//!     .service(database);
//! # drop(service);
//! # Ok(())
//! # }
//! ```
//!
//! # Differences from `tower::limit::ConcurrencyLimit`
//!
//! |  | `tower::limit::ConcurrencyLimit` | `KeyedMutex`, `KeyedConcurrencyLimit` |
//! | --- | --- | --- |
//! | limits | all requests of the service | the requests of each key |
//! | counts requests of | this process | all processes with the same backend and name |
//! | waits | in `poll_ready`, without a bound | in `call`'s future, for `wait_timeout`, or not at all |
//! | can be lost | never | one lease after the last heartbeat |
//!
//! # Differences from a map of local mutexes
//!
//! |  | `HashMap<K, Arc<tokio::sync::Mutex<()>>>` | `KeyedMutex` |
//! | --- | --- | --- |
//! | excludes requests of | this process | all processes with the same backend and name |
//! | an unused key | stays in the map until it is removed | keeps no state |
//! | waits | without a bound | for `wait_timeout`, with at most `max_waiting` others, or not at all |
//! | takes | nanoseconds | a round trip to the backend |
//! | can be lost | never | one lease after the last heartbeat; the request ends, and its token is outdated |
//! | several keys | deadlock unless all callers sort them | sorted, all or none |
//! | the same key in an inner layer | deadlock | re-enters by the request's extensions |
//! | a request that hangs | holds the key for ever | ends after `max_hold` |

mod acquire_keys;
mod extract;
mod future;
mod held_keys;
mod key;
mod keyspace;
mod layer;
#[cfg(feature = "axum")]
mod route_param;
mod service;
mod settings;

pub use extract::{
    Header, IntoHeaderName, Parsed, Path, PathSegment, Query, header, path, path_segment, query,
};
pub use future::ResponseFuture;
pub use held_keys::{HeldKey, HeldKeys};
pub use key::{IntoKey, Key, KeyExtractor, KeyFn, key_fn};
pub use layer::{KeyedConcurrencyLimitLayer, KeyedLayer, KeyedMutexLayer};
#[cfg(feature = "axum")]
pub use route_param::{RouteParam, route_param};
pub use service::{Exclusive, Keyed, KeyedConcurrencyLimit, KeyedMutex, Limited};
pub use settings::OnMissingKey;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Coordinator, Memory};
    use std::convert::Infallible;
    use std::time::Duration;
    use tower::{Layer, Service, service_fn};

    #[tokio::test(start_paused = true)]
    async fn released_keys_leave_no_state() {
        let memory = Memory::new();
        let permits = Coordinator::new(memory.clone());
        let id = key_fn(|id: &u32| *id);
        let mutex = KeyedMutexLayer::new(&permits, "buy", id).unwrap();
        let limit = KeyedConcurrencyLimitLayer::new(&permits, "tenant", 3, id).unwrap();
        let limit = limit.release_at_response();
        let inner = service_fn(|_: u32| async { Ok::<_, Infallible>(()) });
        let mut service = mutex.layer(limit.layer(inner));
        // 50,000 keys for each layer.
        for round in 0..500 {
            let requests = (0..100).map(|at| service.call(100 * round + at));
            futures_util::future::try_join_all(requests).await.unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
            assert_eq!(permits.entries(), 0, "in round {round}");
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(permits.entries(), 0);
        // The store removes a name one lease after its last use, as part of other calls.
        tokio::time::sleep(Duration::from_secs(10)).await;
        for _ in 0..1000 {
            service.call(0).await.unwrap();
            tokio::task::yield_now().await;
        }
        assert!(memory.names() <= 2, "{} names left", memory.names());
    }
}
