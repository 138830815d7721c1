//! Invalid, missing and panicking keys.

use crate::shop::*;
use crate::support::*;
use http::{Request, Response};
use tower::{Layer, Service, ServiceExt};
use tower_permit::layers::keyed::{KeyExtractor, OnMissingKey, path_segment, query};
use tower_permit::{Error, ErrorKind, Key, KeyedConcurrencyLimitLayer, KeyedMutexLayer};

/// Returns the error of a request with this extractor, and its HTTP and gRPC status.
async fn refused<K>(extractor: K) -> (Error, u16, String)
where
    K: KeyExtractor<Request<()>> + Clone,
{
    let (permits, shop) = (permits(), Shop::default());
    let layer = KeyedConcurrencyLimitLayer::new(&permits, "buy", 1, extractor).unwrap();
    let layer = layer.release_at_response();
    let inner = shop.service(millis(1));
    let mut service = layer.clone().layer(inner.clone());
    ready(&mut service).await.expect("always ready");
    let error = service.call(buy("7")).await.unwrap_err();
    let error = error
        .downcast_ref::<Error>()
        .expect("an error of this crate")
        .clone();

    let service = layer.reject_with_response().layer(inner.clone());
    let response = service.clone().oneshot(buy("7")).await.unwrap();
    let noted = response
        .extensions()
        .get::<Error>()
        .expect("for middleware");
    assert_eq!(noted.kind(), error.kind());
    let mut grpc = buy("7");
    grpc.headers_mut()
        .insert("content-type", "application/grpc".parse().unwrap());
    let answer = service.oneshot(grpc).await.unwrap();
    let code = answer.headers()["grpc-status"].to_str().unwrap().to_owned();

    assert_eq!(inner.control.calls(), 0);
    (error, response.status().as_u16(), code)
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_the_extractor_rejects_the_request() {
    let (error, status, code) =
        refused(|_: &Request<()>| -> String { panic!("no such header") }).await;
    assert_eq!(error.kind(), ErrorKind::ExtractorPanicked);
    assert_eq!(
        error.to_string(),
        "the key extractor of the layer \"buy\" panicked: return `None` for a request without a key"
    );
    assert_eq!((status, &*code), (500, "13"));
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_the_extractor_affects_one_request() {
    let (permits, shop) = (permits(), Shop::default());
    let careless = |request: &Request<()>| {
        let id = request.uri().path().split('/').nth(2).unwrap();
        id.parse::<u32>().unwrap()
    };
    let layer = KeyedMutexLayer::new(&permits, "buy", careless).unwrap();
    let mut service = layer.layer(shop.service(millis(1)));
    let error = service.call(buy("seven")).await.unwrap_err();
    assert_eq!(kind(&error), ErrorKind::ExtractorPanicked);
    service.call(buy("7")).await.unwrap();
    assert!(all_free(&permits, &["7", "seven"]).await);
}

#[tokio::test(start_paused = true)]
async fn a_panic_within_a_tuple_of_extractors_is_caught() {
    let panics = |_: &Request<()>| -> u32 { panic!("no such header") };
    let (error, status, code) = refused((path_segment(1), panics, query("id"))).await;
    assert_eq!(error.kind(), ErrorKind::ExtractorPanicked);
    assert_eq!((status, &*code), (500, "13"));
    // Extractors after a missing key are not called.
    let (error, ..) = refused((query("id"), panics)).await;
    assert_eq!(error.kind(), ErrorKind::MissingKey);
}

#[tokio::test(start_paused = true)]
async fn a_key_of_a_megabyte_is_rejected() {
    let (error, status, code) = refused(|_: &Request<()>| vec![b'a'; 1 << 20]).await;
    assert_eq!(error.kind(), ErrorKind::InvalidKey);
    assert_eq!(
        error.to_string(),
        "invalid key: a name of 1048579 bytes is too long: use at most 65536"
    );
    assert_eq!((status, &*code), (400, "3"));
}

#[tokio::test(start_paused = true)]
async fn a_long_key_is_accepted() {
    let (permits, shop) = (permits(), Shop::default());
    let long = |request: &Request<()>| {
        let mut key = vec![b'a'; 60_000];
        key.extend(request.uri().path().bytes());
        key
    };
    let layer = KeyedMutexLayer::new(&permits, "buy", long).unwrap();
    let service = layer.reject_when_full().layer(shop.service(secs(1)));
    let first = tokio::spawn(service.clone().oneshot(buy("7")));
    settle().await;
    assert!(service.clone().oneshot(buy("7")).await.is_err());
    service.oneshot(buy("8")).await.unwrap();
    first.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn too_many_names_are_rejected() {
    let (error, status, code) = refused(|_: &Request<()>| Key::all(0..65)).await;
    assert_eq!(error.kind(), ErrorKind::InvalidKey);
    assert_eq!(
        error.to_string(),
        "the key has more than 64 names: use at most 64"
    );
    assert_eq!((status, &*code), (400, "3"));

    // Repeated names count once.
    let (permits, shop) = (permits(), Shop::default());
    let same = |_: &Request<()>| Key::all((0..1000).map(|n| n % 64));
    let layer = KeyedMutexLayer::new(&permits, "buy", same).unwrap();
    let service = layer.layer(shop.service(millis(1)));
    // 64 names are accepted.
    service.clone().oneshot(buy("7")).await.unwrap();
    service.oneshot(buy("7")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_limit_of_zero_is_rejected() {
    let (error, status, code) = refused(|_: &Request<()>| Key::from("7").with_limit(0)).await;
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert_eq!((status, &*code), (500, "13"));
    let layer = KeyedConcurrencyLimitLayer::new(&permits(), "buy", 0, path_segment(1));
    assert_eq!(layer.unwrap_err().kind(), ErrorKind::InvalidConfig);
    // A mutex ignores the limit.
    let shop = Shop::default();
    let odd = |_: &Request<()>| Key::from("7").with_limit(0);
    let layer = KeyedMutexLayer::new(&permits(), "buy", odd).unwrap();
    layer
        .layer(shop.service(millis(1)))
        .oneshot(buy("7"))
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_required_key_is_missing() {
    let none: [&str; 0] = [];
    for (error, status, code) in [
        refused(query("id")).await,
        refused((path_segment(1), query("id"))).await,
        refused(|_: &Request<()>| None::<String>).await,
        refused(move |_: &Request<()>| Key::all(none)).await,
        refused(move |_: &Request<()>| Key::joined(none)).await,
    ] {
        assert_eq!(error.kind(), ErrorKind::MissingKey);
        assert_eq!(
            error.to_string(),
            "the request has no key for the layer \"buy\", which requires one"
        );
        assert_eq!((status, &*code), (400, "3"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_missing_key_passes_if_set() {
    let (permits, shop) = (permits(), Shop::default());
    let layer = KeyedMutexLayer::new(&permits, "buy", query("id")).unwrap();
    let layer = layer.on_missing_key(OnMissingKey::Pass);
    let service = layer.layer(shop.service(secs(1)));
    let both = [(); 2].map(|()| tokio::spawn(service.clone().oneshot(buy("7"))));
    settle().await;
    assert_eq!(shop.product("7").inside(), 2);
    for one in both {
        one.await.unwrap().unwrap();
    }
}

#[test]
fn a_layer_name_that_is_too_long_is_an_error() {
    let layer = KeyedMutexLayer::new(&permits(), "a".repeat(70_000), path_segment(1));
    assert_eq!(layer.unwrap_err().kind(), ErrorKind::InvalidConfig);
}

#[test]
fn a_call_outside_a_runtime_is_rejected() {
    let mut service = mutex(&permits()).layer(Strict::new(|_: Request<()>| async {
        Ok::<_, Boom>(Response::new(()))
    }));
    let error = futures_util::FutureExt::now_or_never(service.call(buy("7")));
    assert_eq!(kind(&error.unwrap().unwrap_err()), ErrorKind::NoRuntime);
}
