//! Waits that end with the request's own deadline, or with the timeout of an outer layer.

use crate::support::*;
use http::Request;
use http_body_util::Full;
use std::time::Duration;
use tokio::time::Instant;
use tower::{Layer, Service, ServiceBuilder, ServiceExt};
use tower_permit::DistributedConcurrencyLimitLayer as LimitLayer;
use tower_permit::ErrorKind;
use tower_permit::layers::Deadline;

/// A full limit, with waits in `call`, over a service that responds at once.
async fn full() -> (tower_permit::Permit, LimitLayer) {
    let semaphore = semaphore(1);
    let held = semaphore.acquire().await.unwrap();
    (held, LimitLayer::new(semaphore).acquire_in_call())
}

fn hello() -> Full<bytes::Bytes> {
    Full::new("hello".into())
}

#[tokio::test(start_paused = true)]
async fn poll_ready_acquires_nothing_and_the_future_waits() {
    let (held, layer) = full().await;
    let mut service = layer.release_at_response().layer(echo());
    ready(&mut service).await.unwrap();
    let mut response = std::pin::pin!(service.call("hello"));
    assert!(futures_util::poll!(&mut response).is_pending());
    drop(held);
    assert_eq!(response.await.unwrap(), "hello");
}

#[tokio::test(start_paused = true)]
async fn an_outer_timeout_bounds_the_wait_in_the_future() {
    let (_held, layer) = full().await;
    let service = ServiceBuilder::new()
        .timeout(millis(150))
        .layer(layer.release_at_response())
        .service(echo());
    let start = Instant::now();
    let error = service.oneshot("hello").await.unwrap_err();
    assert!(error.is::<tower::timeout::error::Elapsed>(), "{error}");
    assert_eq!(start.elapsed(), millis(150));
}

#[tokio::test(start_paused = true)]
async fn load_shed_does_not_shed_an_idle_limit() {
    let service = ServiceBuilder::new()
        .load_shed()
        .layer(
            LimitLayer::new(semaphore(1))
                .acquire_in_call()
                .release_at_response(),
        )
        .service(echo());
    for _ in 0..10 {
        assert_eq!(service.clone().oneshot("hello").await.unwrap(), "hello");
    }
}

#[tokio::test(start_paused = true)]
async fn the_earlier_of_deadline_and_grpc_timeout_bounds_the_wait() {
    let (_held, layer) = full().await;
    let service = layer.reject_with_response().layer(bodies(hello));
    for (deadline, grpc, waits) in [
        (Some(200), None, 200),
        (None, Some("300m"), 300),
        (Some(200), Some("300m"), 200),
        (Some(200), Some("100m"), 100),
        (None, Some("soon"), 30_000),
        (None, Some("0n"), 0),
        (None, Some("99999999H"), 30_000),
    ] {
        let mut request = Request::new(());
        let extensions = request.extensions_mut();
        deadline.map(|after| extensions.insert(Deadline::after(millis(after))));
        if let Some(timeout) = grpc {
            request
                .headers_mut()
                .insert("grpc-timeout", timeout.parse().unwrap());
        }
        let start = Instant::now();
        let response = service.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), 429);
        let error = response.extensions().get::<tower_permit::Error>().unwrap();
        assert_eq!(error.kind(), ErrorKind::WaitTimeout);
        let waited = start.elapsed();
        let expected = Duration::from_millis(waits);
        assert!(
            waited >= expected && waited <= expected + millis(5),
            "{waited:?} {waits}"
        );
    }
}
