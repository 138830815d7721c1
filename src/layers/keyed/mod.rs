//! One request at a time for each key, or at most so many, counted over every process.
//!
//! # Example
//!
//! One purchase of a product at a time, over the whole fleet; purchases of different products do not wait for each
//! other:
//!
//! ```
//! use axum::{Router, routing::post};
//! use tower_permit::layers::keyed::path_segment;
//! use tower_permit::{Coordinator, KeyedMutexLayer, Memory};
//!
//! # async fn buy() {}
//! # fn main() -> Result<(), tower_permit::Error> {
//! let permits = Coordinator::new(Memory::new()); // `Redis` for a fleet
//!
//! let app: Router = Router::new()
//!     .route("/products/{id}/buy", post(buy))
//!     .layer(KeyedMutexLayer::new(&permits, "buy", path_segment(1))?.reject_with_response());
//! # Ok(())
//! # }
//! ```
//!
//! A [`KeyedConcurrencyLimitLayer`] lets in more than one: three requests of each tenant, say, or as many as the tenant
//! has paid for ([`Key::with_limit`]).
//!
//! # The key
//!
//! A [`KeyExtractor`] finds it: [`path_segment`], [`path`], [`header`], [`query`], a tuple of extractors whose keys are
//! joined, or a closure:
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
//! A key may be several names, as here. They are taken one after the other in an order that all processes agree on, so
//! requests with overlapping names never wait for each other in a ring; the request goes on when it has all of them, and
//! what it took is given back if it does not get the rest. At most 64.
//!
//! Two requests for one thing must give one key, byte by byte. What the ready-made extractors do about spellings is said
//! at each of them; none changes upper or lower case.
//!
//! A request without a key passes, or is refused by choice ([`KeyedLayer::on_missing_key`]). Choose to refuse where the
//! key comes from the client and a request without one would do harm.
//!
//! Within a router that is nested (`axum::Router::nest`) a layer sees the path without the prefix: see [`path_segment`].
//!
//! # When a key is taken, and when it goes back
//!
//! [`poll_ready`](tower_service::Service::poll_ready) is always ready, for the key is not known before the request is.
//! The request gets in line at the first poll of its future, and waits there: for at most
//! [`wait_timeout`](KeyedLayer::wait_timeout), behind at most [`max_waiting`](KeyedLayer::max_waiting) others for the
//! same key, while at most [`max_waiting_total`](KeyedLayer::max_waiting_total) wait for any; or not at all, with
//! [`reject_when_full`](KeyedLayer::reject_when_full). Requests for one key are served in the order in which they came,
//! and one for another key never waits for them.
//!
//! Only when it has its key is a clone of the inner service made ready and called: a request that waits holds nothing of
//! the inner service. That is why it must be [`Clone`].
//!
//! The key goes back when the response is there, so that a slow reader of the response keeps nobody waiting; with
//! [`hold_until_body_end`](KeyedLayer::hold_until_body_end) when its body has ended. It also goes back when the inner
//! service fails, when the future is dropped, and in any case after [`max_hold`](KeyedLayer::max_hold).
//!
//! Nothing is kept for a key that is not in use, so there may be any number of them.
//!
//! # The token, and holding beyond the response
//!
//! The extensions of an HTTP request have [`HeldKeys`]: with axum, a handler takes `Extension(held): Extension<HeldKeys>`
//! (see there for an example). From it come
//!
//! * the **fencing token** of a mutex, to be written along with whatever the key protects, and compared there
//!   ([`MutexGuard::token`](crate::MutexGuard::token) tells why);
//! * a **guard** for work that goes on after the response ([`HeldKey::keep`]).
//!
//! And by it an inner layer of the same name knows a key that its own request holds already, and **re-enters**: it shares
//! the hold instead of waiting for itself. This goes by the extensions of the one request only; two requests are two
//! holders, always. For requests other than HTTP, [`KeyExtractor::extensions`] says where the extensions are.
//!
//! # When a key is lost
//!
//! A process that is cut off from the backend, or paused, for longer than its lease loses what it holds, and another may
//! get in. A keyed mutex then ends the request with [`Lost`](crate::ErrorKind::Lost) (as a response: 503): the inner
//! future is dropped, and a body that is under way ends with an error, never as if it were complete. A keyed limit goes
//! on. Both by choice: [`on_lost`](KeyedLayer::on_lost). Of several names, the first that is lost counts.
//!
//! # Order of layers
//!
//! From the outside in: **trace, key, limit, timeout, retry**, and then the service.
//!
//! * **Trace** sees the wait, and the refusals too.
//! * **The key before the limit**: a request that waits for its key holds no permit of a
//!   [`DistributedConcurrencyLimit`](crate::DistributedConcurrencyLimit) inside. The other way round a queue for one hot
//!   key would fill the limit with requests that do nothing, and starve all the others.
//! * **Timeout** inside bounds the work alone: the wait has its own bound, and a request that was let in late has as much
//!   time as one that was let in at once. It also bounds how long a key is held.
//! * **Retry** inside: the key stays held from one attempt to the next, so nobody comes between. If others may come
//!   between, put it outside everything; then each attempt stands in line anew.
//! * **Several keyed layers** over one another must come in the same order everywhere; else two requests can wait for
//!   each other until their `wait_timeout`. Names of one layer that are taken together are in order by themselves.
//! * **`tower::load_shed`** outside does nothing, since this layer is always ready: use `reject_when_full`, `max_waiting`
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
//!     .layer(KeyedMutexLayer::new(&permits, "buy", path_segment(1))?)
//!     .layer(DistributedConcurrencyLimitLayer::new(permits.semaphore("database", 20)?))
//!     .timeout(Duration::from_secs(5))
//!     .service(database);
//! # drop(service);
//! # Ok(())
//! # }
//! ```
//!
//! # Differences from a map of local mutexes
//!
//! |  | `HashMap<K, Arc<tokio::sync::Mutex<()>>>` | `KeyedMutex` |
//! | --- | --- | --- |
//! | excludes | within this process | every process with the same backend and name |
//! | a key that nobody uses | stays in the map, unless somebody sweeps it | leaves nothing |
//! | waits | for ever, behind any number | for `wait_timeout`, behind at most `max_waiting`, or not at all |
//! | takes | nanoseconds | a trip to the backend |
//! | can be lost | never | after a lease without the backend; then the request ends, and the token tells on it |
//! | several keys | deadlock, unless all sort them | sorted, all or none |
//! | the same key again, further in | waits for itself for ever | re-enters by the request's extensions |
//! | a request that hangs | holds for ever | ends after `max_hold` |

mod extract;
mod future;
mod held;
mod key;
mod layer;
mod line;
mod service;

pub use extract::{Header, Path, PathSegment, Query, header, path, path_segment, query};
pub use future::ResponseFuture;
pub use held::{HeldKey, HeldKeys};
pub use key::{IntoKey, Key, KeyExtractor, KeyFn, key_fn};
pub use layer::{
    Exclusive, KeyedConcurrencyLimitLayer, KeyedLayer, KeyedMutexLayer, Limited, OnMissingKey,
};
pub use service::{Keyed, KeyedConcurrencyLimit, KeyedMutex};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Coordinator, Memory};
    use std::convert::Infallible;
    use std::time::Duration;
    use tower::{Layer, Service, service_fn};

    #[tokio::test(start_paused = true)]
    async fn keys_leave_nothing() {
        let memory = Memory::new();
        let permits = Coordinator::new(memory.clone());
        let id = key_fn(|id: &u32| *id);
        let mutex = KeyedMutexLayer::new(&permits, "buy", id).unwrap();
        let limit = KeyedConcurrencyLimitLayer::new(&permits, "tenant", 3, id).unwrap();
        let inner = service_fn(|_: u32| async { Ok::<_, Infallible>(()) });
        let mut service = mutex.layer(limit.layer(inner));
        // 50,000 for each of the two.
        for round in 0..500 {
            let requests = (0..100).map(|at| service.call(100 * round + at));
            futures_util::future::try_join_all(requests).await.unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
            assert_eq!(permits.client().names(), 0, "in round {round}");
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(permits.client().names(), 0);
        // The store forgets a name one lease after its use, by and by, in the course of other calls.
        tokio::time::sleep(Duration::from_secs(10)).await;
        for _ in 0..1000 {
            service.call(0).await.unwrap();
            tokio::task::yield_now().await;
        }
        assert!(memory.names() <= 2, "{} names left", memory.names());
    }
}
