//! Keys that are lost while their request runs.

use crate::modes;
use crate::shop::*;
use crate::support::*;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use std::sync::{Arc, Mutex};
use tower::{Layer, Service, ServiceExt};
use tower_permit::layers::keyed::{KeyedLayer, PathSegment};
use tower_permit::layers::{OnLost, PermitBody};
use tower_permit::{
    BoxError, ErrorKind, HeldKeys, Key, KeyedConcurrencyLimitLayer, KeyedMutexLayer, Memory,
};

/// Evicts a key, and waits until its process has noticed.
async fn evict<M, K, H, R>(layer: &KeyedLayer<M, K, H, R>, key: &str) {
    let inspection = layer.inspect(key).await.unwrap();
    let ticket = &inspection.holders[0].ticket;
    assert!(layer.evict(key, ticket).await.unwrap());
    tokio::time::sleep(secs(10)).await;
}

#[tokio::test(start_paused = true)]
async fn a_mutex_ends_its_request() {
    let (permits, shop) = (permits(), Shop::default());
    let layer = mutex(&permits);
    let request = tokio::spawn(layer.layer(shop.service(secs(60))).oneshot(buy("7")));
    settle().await;
    evict(&layer, "7").await;
    assert_eq!(shop.all().inside(), 0, "the inner future is dropped");
    assert_eq!(kind(&request.await.unwrap().unwrap_err()), ErrorKind::Lost);
}

#[tokio::test(start_paused = true)]
async fn a_lost_key_as_a_response_is_503() {
    let (permits, shop) = (permits(), Shop::default());
    let layer = mutex(&permits).reject_with_response();
    let request = tokio::spawn(layer.layer(shop.service(secs(60))).oneshot(buy("7")));
    settle().await;
    evict(&layer, "7").await;
    let response = request.await.unwrap().unwrap();
    assert_eq!(response.status(), 503);
    assert_eq!(response.headers()["retry-after"], "1");
}

#[tokio::test(start_paused = true)]
async fn on_lost_continue_is_an_option_for_a_mutex_and_the_default_for_a_limit() {
    let (permits, shop) = (permits(), Shop::default());
    let layer = mutex(&permits).on_lost(OnLost::Continue);
    let request = tokio::spawn(layer.layer(shop.service(secs(60))).oneshot(buy("7")));
    settle().await;
    evict(&layer, "7").await;
    assert_eq!(shop.all().inside(), 1);
    request.await.unwrap().unwrap();

    let segment = tower_permit::layers::keyed::path_segment(1);
    let layer = KeyedConcurrencyLimitLayer::new(&permits, "buy", 1, segment).unwrap();
    let layer = layer.release_at_response();
    let request = tokio::spawn(layer.layer(shop.service(secs(60))).oneshot(buy("7")));
    settle().await;
    evict(&layer, "7").await;
    request.await.unwrap().unwrap();

    let layer = layer.on_lost(OnLost::End);
    let request = tokio::spawn(layer.layer(shop.service(secs(60))).oneshot(buy("7")));
    settle().await;
    evict(&layer, "7").await;
    assert_eq!(kind(&request.await.unwrap().unwrap_err()), ErrorKind::Lost);
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_inner_service_is_not_ready_ends_too() {
    let (permits, shop) = (permits(), Shop::default());
    let inner = shop.service(secs(60));
    let control = inner.control.clone();
    control.busy(true);
    let layer = mutex(&permits);
    let request = tokio::spawn(layer.layer(inner).oneshot(buy("7")));
    settle().await;
    evict(&layer, "7").await;
    assert!(request.is_finished());
    assert_eq!(kind(&request.await.unwrap().unwrap_err()), ErrorKind::Lost);
    assert_eq!(control.calls(), 0);
}

/// A mutex with all these products as the key of each request.
fn several(
    permits: &tower_permit::Coordinator,
    products: &'static [&'static str],
) -> KeyedMutexLayer<impl Fn(&Request<()>) -> Key + Send + Sync + 'static> {
    let key = move |_: &Request<()>| Key::all(products.iter().copied());
    KeyedMutexLayer::new(permits, "buy", key).unwrap()
}

#[tokio::test(start_paused = true)]
async fn the_loss_of_any_name_ends_the_request() {
    for lost in ["1", "2", "3"] {
        let (permits, shop) = (permits(), Shop::default());
        let layer = several(&permits, &["1", "2", "3"]);
        let request = tokio::spawn(layer.layer(shop.service(secs(60))).oneshot(buy("7")));
        settle().await;
        evict(&layer, lost).await;
        assert_eq!(
            kind(&request.await.unwrap().unwrap_err()),
            ErrorKind::Lost,
            "{lost}"
        );
        assert!(all_free(&permits, &["1", "2", "3"]).await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_loss_during_the_wait_for_other_names_ends_the_request() {
    let (permits, shop) = (permits(), Shop::default());
    let layer = several(&permits, &["1", "2"]);
    let holder = tokio::spawn(
        mutex(&permits)
            .layer(shop.service(secs(60)))
            .oneshot(buy("2")),
    );
    settle().await;
    let request = tokio::spawn(layer.layer(shop.service(secs(60))).oneshot(buy("7")));
    settle().await;
    evict(&layer, "1").await;
    assert!(request.is_finished(), "at once, not when it has its turn");
    assert_eq!(kind(&request.await.unwrap().unwrap_err()), ErrorKind::Lost);
    holder.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lost_name_is_not_held_for_too_long() {
    for lost in ["1", "2"] {
        let (permits, shop) = (permits(), Shop::default());
        let layer = several(&permits, &["1", "2"]);
        let layer = layer.on_lost(OnLost::Continue).max_hold(secs(60));
        let request = tokio::spawn(layer.layer(shop.service(secs(600))).oneshot(buy("7")));
        settle().await;
        evict(&layer, lost).await;
        tokio::time::sleep(secs(45)).await;
        assert!(!request.is_finished());
        tokio::time::sleep(secs(10)).await;
        assert!(request.is_finished());
        let error = request.await.unwrap().unwrap_err();
        assert_eq!(kind(&error), ErrorKind::HeldTooLong);
    }
}

#[tokio::test(start_paused = true)]
async fn a_finished_future_holds_no_key() {
    let (permits, shop) = (permits(), Shop::default());
    let layer = mutex(&permits).max_hold(secs(20));
    let mut service = layer.layer(shop.service(secs(60)));
    let mut ends = Box::pin(service.call(buy("7")));
    assert_eq!(
        kind(&ends.as_mut().await.unwrap_err()),
        ErrorKind::HeldTooLong
    );
    assert!(all_free(&permits, &["7"]).await);

    let layer = several(&permits, &["1", "2"]).wait_timeout(secs(1));
    let holder = tokio::spawn(
        mutex(&permits)
            .layer(shop.service(secs(60)))
            .oneshot(buy("2")),
    );
    settle().await;
    let mut service = layer.layer(shop.service(secs(60)));
    let mut ends = Box::pin(service.call(buy("7")));
    assert_eq!(
        kind(&ends.as_mut().await.unwrap_err()),
        ErrorKind::WaitTimeout
    );
    assert!(all_free(&permits, &["1"]).await);
    // A poll after the end does not panic.
    assert!(futures_util::poll!(ends.as_mut()).is_pending());
    holder.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_key_held_for_too_long_ends_its_request() {
    let (permits, shop) = (permits(), Shop::default());
    let layer = mutex(&permits).max_hold(secs(20)).on_lost(OnLost::Continue);
    let service = layer.layer(shop.service(secs(60)));
    let start = tokio::time::Instant::now();
    let error = service.oneshot(buy("7")).await.unwrap_err();
    assert_eq!(kind(&error), ErrorKind::HeldTooLong);
    assert!(start.elapsed() < secs(21));
    assert!(all_free(&permits, &["7"]).await);
}

#[tokio::test(start_paused = true)]
async fn an_inner_layer_notices_the_loss_of_a_reentered_key() {
    let (permits, shop) = (permits(), Shop::default());
    let layer = mutex(&permits);
    let outer = layer.clone().on_lost(OnLost::Continue);
    let service = outer.layer(layer.layer(shop.service(secs(60))));
    let request = tokio::spawn(service.oneshot(buy("7")));
    settle().await;
    evict(&layer, "7").await;
    assert_eq!(kind(&request.await.unwrap().unwrap_err()), ErrorKind::Lost);
}

// --- bodies ---

type Body = std::pin::Pin<Box<PermitBody<Fed>>>;

/// A streamed response that holds its key until its end.
async fn streaming<K>(layer: &KeyedMutexLayer<K>) -> (Feed, Body)
where
    K: tower_permit::layers::keyed::KeyExtractor<Request<()>>,
{
    let (feed, body) = fed();
    let service = layer.clone().hold_until_body_end().layer(one_body(body));
    let response = service.oneshot(buy("7")).await.unwrap();
    (feed, Box::pin(response.into_body()))
}

async fn is_held(layer: &KeyedMutexLayer<PathSegment>) -> bool {
    settle().await;
    layer.inspect("7").await.unwrap().in_use == 1
}

#[tokio::test(start_paused = true)]
async fn the_key_is_released_with_the_response_or_with_its_body() {
    let permits = permits();
    let layer = mutex(&permits);
    let (feed, body) = fed();
    let service = layer.layer(one_body(body));
    let response = service.oneshot(buy("7")).await.unwrap();
    assert!(!is_held(&layer).await);
    drop((feed, response));

    let (feed, mut body) = streaming(&layer).await;
    feed.data("hello");
    body.frame().await.unwrap().unwrap();
    assert!(is_held(&layer).await);
    drop(feed);
    assert!(body.frame().await.is_none());
    assert!(!is_held(&layer).await);

    let (_feed, body) = streaming(&layer).await;
    assert!(is_held(&layer).await);
    drop(body);
    assert!(!is_held(&layer).await);
}

#[tokio::test(start_paused = true)]
async fn a_body_cut_by_a_loss_ends_with_an_error() {
    let permits = permits();
    for (layer, lost) in [
        (&["7"][..], "7"),
        (&["6", "7", "8"], "8"),
        (&["6", "7", "8"], "6"),
    ]
    .map(|(products, lost)| (several(&permits, products), lost))
    {
        let (feed, mut body) = streaming(&layer).await;
        feed.data("hel");
        body.frame().await.unwrap().unwrap();
        evict(&layer, lost).await;
        // Even though the rest and the end of the body are ready.
        feed.data("lo");
        drop(feed);
        let error = body.frame().await.expect("not the end").unwrap_err();
        assert_eq!(kind(&error), ErrorKind::Lost);
        assert!(body.frame().await.is_none());
        assert!(all_free(&permits, &["6", "7", "8"]).await);
    }
}

#[tokio::test]
async fn a_body_ends_after_a_pause_before_any_timer_fires() {
    let builder = modes::builder(Memory::new()).lease(secs(2));
    let layer = mutex(&builder.build().unwrap());
    let (feed, mut body) = streaming(&layer).await;
    feed.data("hel");
    body.frame().await.unwrap().unwrap();
    feed.data("lo");
    drop(feed);
    // The whole process is paused, and then continues to read at once.
    std::thread::sleep(millis(2100));
    let error = body.frame().await.expect("not the end").unwrap_err();
    assert_eq!(kind(&error), ErrorKind::Lost);
}

#[tokio::test(start_paused = true)]
async fn a_pending_body_ends_with_its_key() {
    let permits = permits();
    let layer = mutex(&permits);
    let (_feed, mut body) = streaming(&layer).await;
    let read = tokio::spawn(async move { body.frame().await });
    settle().await;
    evict(&layer, "7").await;
    let error: BoxError = read.await.unwrap().unwrap().unwrap_err();
    assert_eq!(kind(&error), ErrorKind::Lost);
}

#[tokio::test(start_paused = true)]
async fn an_empty_body_holds_no_key() {
    let permits = permits();
    let layer = mutex(&permits);
    let service = layer.clone().hold_until_body_end();
    let mut service = service.layer(bodies(|| Full::new(Bytes::new())));
    let response = service.call(buy("7")).await.unwrap();
    assert!(!is_held(&layer).await);
    drop(response);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_revokes_keys_and_reports_it() {
    let (permits, shop) = (permits(), Shop::default());
    let layer = mutex(&permits);
    let request = tokio::spawn(layer.layer(shop.service(secs(60))).oneshot(buy("7")));
    settle().await;
    permits.shutdown(secs(1)).await.unwrap_err();
    assert_eq!(
        kind(&request.await.unwrap().unwrap_err()),
        ErrorKind::ShuttingDown
    );
}

#[tokio::test(start_paused = true)]
async fn a_request_knows_its_token_from_the_start() {
    let permits = permits();
    let tokens = Arc::new(Mutex::new(Vec::new()));
    let note = tokens.clone();
    let service = mutex(&permits).layer(Strict::new(move |request: Request<()>| {
        let held = request.extensions().get::<HeldKeys>();
        note.lock()
            .unwrap()
            .push(held.unwrap().token("buy").unwrap());
        async { Ok(Response::new(())) }
    }));
    for _ in 0..100 {
        service.clone().oneshot(buy("7")).await.unwrap();
    }
    let tokens = tokens.lock().unwrap();
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}
