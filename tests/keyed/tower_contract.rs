//! What tower and axum require of a service.

use crate::shop::*;
use crate::support::*;
use http::{Request, Response};
use http_body_util::Full;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::task::{Context, Poll};
use tower::{Layer, Service, ServiceExt};
use tower_permit::layers::UntilBodyEnd;
use tower_permit::layers::keyed::{
    Header, KeyFn, Path, PathSegment, Query, ResponseFuture, path_segment,
};
use tower_permit::{
    HeldKeys, Key, KeyedConcurrencyLimit, KeyedConcurrencyLimitLayer, KeyedMutex, KeyedMutexLayer,
};

fn shareable<T: Clone + Send + Sync + 'static>() {}
fn is_shareable<T: Clone + Send + Sync + 'static>(_: &T) {}
fn is_future<F: Future + Send + 'static>(_: F) {}

/// Not `Clone`: extractors need not be.
struct OwnExtractor;

impl tower_permit::layers::keyed::KeyExtractor<Request<()>> for OwnExtractor {
    fn key(&self, _: &Request<()>) -> Option<Key> {
        Some("key".into())
    }
}

#[test]
fn layers_services_and_futures_have_auto_traits() {
    shareable::<KeyedMutexLayer<OwnExtractor>>();
    shareable::<KeyedConcurrencyLimitLayer<OwnExtractor>>();
    shareable::<KeyedMutex<(), OwnExtractor>>();
    shareable::<KeyedConcurrencyLimit<(), OwnExtractor, UntilBodyEnd>>();
    shareable::<(Path, PathSegment, Header, Query, KeyFn<()>)>();
    shareable::<(HeldKeys, Key)>();

    let layer = KeyedMutexLayer::new(&permits(), "buy", OwnExtractor).unwrap();
    let mut service = layer.layer(Shop::default().service(secs(1)));
    is_shareable(&service);
    is_future(service.call(buy("7")));
    drop::<ResponseFuture<_, _, _, _>>(service.call(buy("7")));

    let layer = mutex(&permits())
        .hold_until_body_end()
        .reject_with_response();
    let mut service = layer.layer(bodies(|| Full::new(bytes::Bytes::new())));
    is_shareable(&service);
    is_future(service.call(buy("7")));
}

/// The types can be named in a struct.
struct Named {
    _service: KeyedMutex<(), PathSegment>,
    _closure: KeyedConcurrencyLimit<(), fn(&Request<()>) -> String>,
}

#[test]
fn the_types_can_be_named() {
    let key: fn(&Request<()>) -> String = |request| request.uri().to_string();
    let limit = KeyedConcurrencyLimitLayer::new(&permits(), "tenant", 3, key).unwrap();
    let _named = Named {
        _service: mutex(&permits()).layer(()),
        _closure: limit.layer(()),
    };
}

#[test]
fn debug_shows_the_settings_and_needs_no_bounds() {
    let layer = mutex(&permits()).max_waiting(7);
    let text = format!("{layer:?}");
    assert!(
        text.contains("mutex:\"buy\"") && text.contains("max_waiting: 7"),
        "{text}"
    );
    let mut service = layer.layer(Shop::default().service(secs(1)));
    let future = format!("{:?}", service.call(buy("7")));
    assert_eq!(future, "ResponseFuture { state: \"waiting\", .. }");
    assert_eq!(format!("{:?}", Key::joined(["a", "ü"])), "{[\"a\", \"ü\"]}");
}

#[tokio::test(start_paused = true)]
async fn the_inner_service_is_made_ready_once_the_key_is_held() {
    let (permits, shop) = (permits(), Shop::default());
    let inner = shop.service(millis(10));
    let control = inner.control.clone();
    let mut service = mutex(&permits).layer(inner);
    control.busy(true);
    // Always ready, since the key is not known.
    assert!(poll_ready(&mut service).is_ready());
    let first = tokio::spawn(service.call(buy("7")));
    settle().await;
    assert_eq!(control.calls(), 0);
    // It holds its key already.
    let refused = mutex(&permits)
        .reject_when_full()
        .layer(shop.service(millis(1)));
    assert!(refused.oneshot(buy("7")).await.is_err());
    control.busy(false);
    first.await.unwrap().unwrap();
    // Without `poll_ready`: `Strict` panics if the clone is called while not ready.
    service.call(buy("7")).await.unwrap();
    let all: Vec<_> = (0..5).map(|_| service.call(buy("7"))).collect();
    futures_util::future::try_join_all(all).await.unwrap();
    assert_eq!(control.calls(), 7);
}

#[tokio::test(start_paused = true)]
async fn an_inner_error_releases_the_key() {
    let (permits, shop) = (permits(), Shop::default());
    let inner = shop.service(millis(10));
    let control = inner.control.clone();
    let mut service = mutex(&permits).layer(inner);
    control.fail();
    ready(&mut service).await.expect("always ready");
    let error = service.call(buy("7")).await.unwrap_err();
    assert_eq!(error.downcast_ref(), Some(&Boom("not ready, ever")));
    assert!(all_free(&permits, &["7"]).await);

    let fails = Strict::new(|_: Request<()>| async { Err::<Response<()>, _>(Boom("inside")) });
    let error = mutex(&permits)
        .layer(fails)
        .oneshot(buy("7"))
        .await
        .unwrap_err();
    assert_eq!(error.downcast_ref(), Some(&Boom("inside")));
    assert!(all_free(&permits, &["7"]).await);
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_the_inner_future_releases_the_key() {
    let permits = permits();
    let panics = Strict::new(|request: Request<()>| async move {
        assert!(request.uri().path().is_empty(), "always");
        Ok(Response::new(()))
    });
    let task = tokio::spawn(mutex(&permits).layer(panics).oneshot(buy("7")));
    assert!(task.await.unwrap_err().is_panic());
    assert!(all_free(&permits, &["7"]).await);
}

/// Panics in `poll_ready` or in `call`.
#[derive(Clone, Copy)]
enum Panics {
    Readied,
    Called,
}

impl Service<Request<()>> for Panics {
    type Response = Response<()>;
    type Error = Boom;
    type Future = std::future::Ready<Result<Response<()>, Boom>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Boom>> {
        match self {
            Self::Readied => panic!("when it is made ready"),
            Self::Called => Poll::Ready(Ok(())),
        }
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        panic!("when it is called")
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_the_inner_service_releases_the_key() {
    for inner in [Panics::Readied, Panics::Called] {
        let permits = permits();
        let request = mutex(&permits).layer(inner).oneshot(buy("7"));
        let caught = futures_util::FutureExt::catch_unwind(AssertUnwindSafe(request)).await;
        assert!(caught.is_err());
        settle().await;
        assert!(all_free(&permits, &["7"]).await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_dropped_before_the_inner_service_is_ready_releases_the_key() {
    let (permits, shop) = (permits(), Shop::default());
    let inner = shop.service(secs(1));
    inner.control.busy(true);
    let request = tokio::spawn(mutex(&permits).layer(inner).oneshot(buy("7")));
    settle().await;
    assert_eq!(mutex(&permits).inspect(7).await.unwrap().in_use, 1);
    request.abort();
    settle().await;
    assert!(all_free(&permits, &["7"]).await);
}

#[tokio::test(start_paused = true)]
async fn building_a_layer_neither_connects_nor_spawns() {
    // No runtime is needed to build a layer or a service.
    std::thread::spawn(|| {
        let layer = KeyedMutexLayer::new(&permits(), "buy", path_segment(1)).unwrap();
        drop(layer.clone().layer(()).clone());
    })
    .join()
    .unwrap();
}

#[tokio::test(start_paused = true)]
async fn inspect_shows_the_holder_of_a_key() {
    let (permits, shop) = (permits(), Shop::default());
    let layer = mutex(&permits);
    let service = layer.layer(shop.service(secs(1)));
    let both = [(); 2].map(|()| tokio::spawn(service.clone().oneshot(buy("7"))));
    settle().await;
    let inspection = layer.inspect(7).await.unwrap();
    assert_eq!((inspection.in_use, inspection.queued), (1, 1));
    assert_eq!(inspection.holders[0].node, permits.node());
    assert_eq!(layer.inspect("8").await.unwrap().in_use, 0);
    assert!(
        !layer
            .evict("8", &inspection.holders[0].ticket)
            .await
            .unwrap()
    );
    let error = layer.inspect(Key::all([7, 8])).await.unwrap_err();
    assert_eq!(error.kind(), tower_permit::ErrorKind::InvalidKey);
    for one in both {
        one.await.unwrap().unwrap();
    }
}
