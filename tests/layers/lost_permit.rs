//! Permits that are lost while their requests run.

use crate::modes;
use crate::support::*;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use std::convert::Infallible;
use std::pin::Pin;
use tokio::sync::watch;
use tower::{Layer, ServiceExt, service_fn};
use tower_permit::layers::{OnLost, PermitBody};
use tower_permit::{
    Coordinator, DistributedConcurrencyLimitLayer as LimitLayer, ErrorKind, Memory,
};

fn limit() -> (Coordinator, LimitLayer) {
    let permits = modes::coordinator(Memory::new());
    let semaphore = permits.semaphore("test", 1).unwrap();
    (permits, LimitLayer::new(semaphore))
}

/// Evicts the only permit, and waits until its process has noticed.
async fn evict(permits: &Coordinator) {
    let inspection = permits.inspect("test").await.unwrap();
    let ticket = &inspection.holders[0].ticket;
    assert!(permits.evict("test", ticket).await.unwrap());
    tokio::time::sleep(secs(10)).await;
}

/// A service that runs until a signal to respond.
fn slow(
    witness: Witness,
    answer: watch::Receiver<bool>,
) -> impl tower::Service<Request<()>, Response = Response<Full<Bytes>>, Error = Infallible, Future: Send>
+ Clone
+ Send {
    service_fn(move |_: Request<()>| {
        let (inside, mut answer) = (witness.enter(), answer.clone());
        async move {
            let _ = answer.wait_for(|answer| *answer).await;
            drop(inside);
            Ok(Response::new(Full::new(Bytes::from("hello"))))
        }
    })
}

#[tokio::test(start_paused = true)]
async fn a_request_continues_by_default() {
    let (permits, layer) = limit();
    let (answer, answered) = watch::channel(false);
    let witness = Witness::default();
    let service = layer.layer(slow(witness.clone(), answered));
    let request = tokio::spawn(service.oneshot(Request::new(())));
    settle().await;
    evict(&permits).await;
    assert_eq!(witness.inside(), 1);
    answer.send(true).unwrap();
    let response = request.await.unwrap().unwrap();
    let body = response.into_body().collect().await.unwrap();
    assert_eq!(body.to_bytes(), "hello");
}

#[tokio::test(start_paused = true)]
async fn a_request_ends_with_on_lost_end() {
    let (permits, layer) = limit();
    let (_answer, answered) = watch::channel(false);
    let witness = Witness::default();
    let service = layer
        .on_lost(OnLost::End)
        .layer(slow(witness.clone(), answered));
    let request = tokio::spawn(service.oneshot(Request::new(())));
    settle().await;
    assert_eq!(witness.inside(), 1);
    evict(&permits).await;
    assert_eq!(witness.inside(), 0, "the inner future is dropped");
    let error = request.await.unwrap().unwrap_err();
    assert_eq!(kind(&error), ErrorKind::Lost);
}

#[tokio::test(start_paused = true)]
async fn a_lost_permit_can_be_reported_as_a_response() {
    let (permits, layer) = limit();
    let (_answer, answered) = watch::channel(false);
    let service = layer
        .on_lost(OnLost::End)
        .reject_with_response()
        .layer(slow(Witness::default(), answered));
    let request = tokio::spawn(service.oneshot(Request::new(())));
    settle().await;
    evict(&permits).await;
    assert_eq!(request.await.unwrap().unwrap().status(), 503);
}

async fn streaming(layer: LimitLayer) -> (Feed, Pin<Box<PermitBody<Fed>>>) {
    let (feed, body) = fed();
    let response = layer
        .layer(one_body(body))
        .oneshot(Request::new(()))
        .await
        .unwrap();
    (feed, Box::pin(response.into_body()))
}

#[tokio::test(start_paused = true)]
async fn a_body_continues_by_default() {
    let (permits, layer) = limit();
    let (feed, mut body) = streaming(layer).await;
    evict(&permits).await;
    feed.data("hello");
    let frame = body.frame().await.unwrap().unwrap();
    assert_eq!(frame.into_data().unwrap(), "hello");
    drop(feed);
    assert!(body.frame().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_pending_body_ends_with_on_lost_end() {
    let (permits, layer) = limit();
    let (_feed, mut body) = streaming(layer.on_lost(OnLost::End)).await;
    let read = tokio::spawn(async move { body.frame().await });
    settle().await;
    evict(&permits).await;
    let error = read.await.unwrap().unwrap().unwrap_err();
    assert_eq!(kind(&error), ErrorKind::Lost);
}

#[tokio::test(start_paused = true)]
async fn a_lost_permit_cannot_be_held_too_long() {
    // Lost while the inner future runs, which continues. So does the body.
    let (permits, layer) = limit();
    let (answer, answered) = watch::channel(false);
    let service = layer
        .max_hold(secs(60))
        .layer(slow(Witness::default(), answered));
    let request = tokio::spawn(service.oneshot(Request::new(())));
    settle().await;
    evict(&permits).await;
    tokio::time::sleep(secs(120)).await;
    assert!(!request.is_finished());
    answer.send(true).unwrap();
    let response = request.await.unwrap().unwrap();
    let body = response.into_body().collect().await.unwrap();
    assert_eq!(body.to_bytes(), "hello");
}

#[tokio::test(start_paused = true)]
async fn a_lost_reservation_is_acquired_again() {
    let (permits, layer) = limit();
    let mut service = layer
        .reservation_ttl(secs(60))
        .release_at_response()
        .layer(echo());
    ready(&mut service).await.unwrap();
    evict(&permits).await;
    assert_eq!(permits.inspect("test").await.unwrap().in_use, 0);
    use tower::Service;
    assert_eq!(service.call("hello").await.unwrap(), "hello");
    assert_eq!(service.get_ref().control.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_rejects_new_requests() {
    let (permits, layer) = limit();
    permits.shutdown(secs(1)).await.unwrap();
    let service = layer
        .reject_with_response()
        .layer(bodies(|| Full::new(Bytes::new())));
    let response = service.oneshot(Request::new(())).await.unwrap();
    assert_eq!(response.status(), 503);
}
