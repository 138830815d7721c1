//! Requests that are rejected.

use crate::support::*;
use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderMap, Request, Response, StatusCode, header};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use std::convert::Infallible;
use std::task::Poll;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_permit::{DistributedConcurrencyLimitLayer as LimitLayer, Error, ErrorKind};

#[tokio::test(start_paused = true)]
async fn a_wait_timeout_is_reported_by_call() {
    let semaphore = semaphore(1);
    let _held = semaphore.acquire().await.unwrap();
    let inner = echo();
    let control = inner.control.clone();
    let mut service = LimitLayer::new(semaphore)
        .wait_timeout(secs(3))
        .release_at_response()
        .layer(inner);
    let start = tokio::time::Instant::now();
    ready(&mut service)
        .await
        .expect("never an error of the layer");
    let waited = start.elapsed();
    assert!(waited >= secs(3) && waited < millis(3100), "{waited:?}");

    let error = service.call("hello").await.unwrap_err();
    assert_eq!(kind(&error), ErrorKind::WaitTimeout);
    assert_eq!(control.calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_wait_in_the_future_times_out() {
    let semaphore = semaphore(1);
    let _held = semaphore.acquire().await.unwrap();
    let mut service = LimitLayer::new(semaphore)
        .wait_timeout(secs(3))
        .release_at_response()
        .layer(echo());
    let start = tokio::time::Instant::now();
    let error = service.call("hello").await.unwrap_err();
    assert_eq!(kind(&error), ErrorKind::WaitTimeout);
    let waited = start.elapsed();
    assert!(waited >= secs(3) && waited < millis(3100), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_rejection_applies_to_one_call() {
    let semaphore = semaphore(1);
    let held = semaphore.acquire().await.unwrap();
    let mut service = LimitLayer::new(semaphore)
        .wait_timeout(secs(1))
        .release_at_response()
        .layer(echo());
    ready(&mut service).await.unwrap();
    service.call("hello").await.unwrap_err();
    drop(held);
    ready(&mut service).await.unwrap();
    assert_eq!(service.call("hello").await.unwrap(), "hello");
}

#[tokio::test(start_paused = true)]
async fn an_old_rejection_is_discarded() {
    let semaphore = semaphore(1);
    let held = semaphore.acquire().await.unwrap();
    let mut service = LimitLayer::new(semaphore)
        .wait_timeout(secs(1))
        .release_at_response()
        .layer(echo());
    ready(&mut service).await.unwrap();
    drop(held);
    tokio::time::sleep(secs(2)).await;
    assert!(matches!(poll_ready(&mut service), Poll::Ready(Ok(()))));
    assert_eq!(service.call("hello").await.unwrap(), "hello");
}

#[tokio::test(start_paused = true)]
async fn a_request_above_max_waiting_is_rejected_at_once() {
    let semaphore = semaphore(1);
    let _held = semaphore.acquire().await.unwrap();
    let layer = LimitLayer::new(semaphore)
        .max_waiting(2)
        .release_at_response();
    let mut waiting = [layer.layer(echo()), layer.layer(echo())];
    for service in &mut waiting {
        assert!(stays_pending(service).await);
    }
    let mut third = layer.layer(echo());
    ready(&mut third).await.unwrap();
    let error = third.call("hello").await.unwrap_err();
    assert_eq!(kind(&error), ErrorKind::TooManyWaiting);

    // A cancelled wait no longer counts.
    let [_, second] = waiting;
    drop(second);
    assert!(stays_pending(&mut third).await);
}

#[tokio::test(start_paused = true)]
async fn a_burst_within_the_limit_is_not_rejected() {
    let layer = LimitLayer::new(semaphore(100)).max_waiting(10);
    let burst = (0..50).map(|_| {
        layer
            .clone()
            .release_at_response()
            .layer(echo())
            .oneshot("hello")
    });
    for response in futures_util::future::join_all(burst).await {
        assert_eq!(response.unwrap(), "hello");
    }
}

#[tokio::test(start_paused = true)]
async fn reject_when_full_tries_once_in_call() {
    let semaphore = semaphore(1);
    let inner = echo();
    let control = inner.control.clone();
    let mut service = LimitLayer::new(semaphore.clone())
        .reject_when_full()
        .release_at_response()
        .layer(inner);

    // `poll_ready` only polls the inner service, and acquires nothing.
    assert!(matches!(poll_ready(&mut service), Poll::Ready(Ok(()))));
    assert!(is_free(&semaphore).await);
    control.busy(true);
    assert!(poll_ready(&mut service).is_pending());
    control.busy(false);

    let held = semaphore.acquire().await.unwrap();
    ready(&mut service).await.unwrap();
    let start = tokio::time::Instant::now();
    let error = service.call("hello").await.unwrap_err();
    assert_eq!(kind(&error), ErrorKind::LimitReached);
    assert!(start.elapsed() < millis(100));
    assert_eq!(control.calls(), 0);

    drop(held);
    ready(&mut service).await.unwrap();
    assert_eq!(service.call("hello").await.unwrap(), "hello");
    assert_eq!(service.call("not ready").await.unwrap(), "not ready");
}

#[tokio::test(start_paused = true)]
async fn inner_errors_are_not_wrapped() {
    let inner = Strict::new(|()| std::future::ready(Err::<(), _>(Boom("boom"))));
    let mut service = LimitLayer::new(semaphore(1))
        .release_at_response()
        .layer(inner);
    ready(&mut service).await.unwrap();
    let error = service.call(()).await.unwrap_err();
    assert_eq!(error.downcast_ref::<Boom>(), Some(&Boom("boom")));
}

#[tokio::test(start_paused = true)]
async fn a_disabled_layer_acquires_nothing() {
    let semaphore = semaphore(1);
    let _held = semaphore.acquire().await.unwrap();
    let layer = LimitLayer::new(semaphore).enabled(false);
    let mut service = layer.clone().release_at_response().layer(echo());
    assert!(matches!(poll_ready(&mut service), Poll::Ready(Ok(()))));
    assert_eq!(service.call("hello").await.unwrap(), "hello");

    let service = layer
        .reject_with_response()
        .layer(bodies(|| Full::new(Bytes::from("hello"))));
    let response = service.oneshot(Request::new(())).await.unwrap();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, "hello");
}

#[test]
fn a_call_outside_a_runtime_is_rejected() {
    let mut service = LimitLayer::new(semaphore(1))
        .release_at_response()
        .layer(service_fn(|()| async { Ok::<_, Boom>(()) }));
    let call = async {
        ready(&mut service).await.unwrap();
        service.call(()).await.unwrap_err()
    };
    let error = call.now_or_never().expect("at once");
    assert_eq!(kind(&error), ErrorKind::NoRuntime);
}

// === rejections as responses ===

/// Returns the rejection of a request by a reached limit.
async fn refused(layer: LimitLayer, request: Request<()>) -> Response<impl Body<Data = Bytes>> {
    let service = layer
        .reject_with_response()
        .layer(bodies(|| Full::new(Bytes::from("hello"))));
    service.oneshot(request).await.unwrap()
}

async fn full() -> (tower_permit::Permit, LimitLayer) {
    let semaphore = semaphore(1);
    let held = semaphore.acquire().await.unwrap();
    (held, LimitLayer::new(semaphore))
}

async fn text<B: Body<Data = Bytes>>(body: B) -> String {
    let Ok(body) = body.collect().await else {
        panic!("a refusal is read without an error");
    };
    String::from_utf8(body.to_bytes().to_vec()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn http_gets_429_with_retry_after() {
    let (_held, layer) = full().await;
    let layers = [
        (
            layer.clone().reject_when_full().retry_after(millis(1001)),
            "2",
            ErrorKind::LimitReached,
        ),
        (
            layer.clone().wait_timeout(secs(1)),
            "1",
            ErrorKind::WaitTimeout,
        ),
        (layer.max_waiting(0), "1", ErrorKind::LimitReached),
    ];
    for (layer, retry_after, kind) in layers {
        let response = refused(layer, Request::new(())).await;
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(response.headers()[header::RETRY_AFTER], retry_after);
        assert_eq!(
            response.headers()[header::CONTENT_TYPE],
            "text/plain; charset=utf-8"
        );
        let error = response.extensions().get::<Error>().unwrap();
        assert_eq!(error.kind(), kind);
        let length = response.body().size_hint().exact();
        let text = text(response.into_body()).await;
        assert_eq!(text, "too many concurrent requests, retry later");
        assert_eq!(length, Some(text.len() as u64));
    }
}

#[tokio::test(start_paused = true)]
async fn http_gets_503_when_the_client_is_not_the_cause() {
    // Held for too long, before there was a response.
    let service = LimitLayer::new(semaphore(1))
        .max_hold(secs(5))
        .reject_with_response()
        .layer(service_fn(|_: Request<()>| {
            std::future::pending::<Result<Response<Full<Bytes>>, Infallible>>()
        }));
    let response = service.oneshot(Request::new(())).await.unwrap();
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(response.headers()[header::RETRY_AFTER], "1");
    let error = response.extensions().get::<Error>().unwrap();
    assert_eq!(error.kind(), ErrorKind::HeldTooLong);
    assert_eq!(
        text(response.into_body()).await,
        "temporarily unavailable, retry later"
    );
}

#[tokio::test(start_paused = true)]
async fn grpc_gets_a_trailers_only_response() {
    let (_held, layer) = full().await;
    for (content_type, answer) in [
        ("application/grpc", "application/grpc"),
        ("application/grpc+proto", "application/grpc"),
        ("application/grpc-web+proto", "application/grpc-web"),
        ("application/grpc-web-text", "application/grpc-web-text"),
    ] {
        let request = Request::builder()
            .header(header::CONTENT_TYPE, content_type)
            .body(())
            .unwrap();
        let response = refused(layer.clone().reject_when_full(), request).await;
        assert_eq!(response.status(), StatusCode::OK);
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, answer.parse().unwrap());
        headers.insert("grpc-status", "8".parse().unwrap());
        headers.insert("grpc-retry-pushback-ms", "1000".parse().unwrap());
        headers.insert(
            "grpc-message",
            "too many concurrent requests, retry later".parse().unwrap(),
        );
        assert_eq!(response.headers(), &headers);
        assert!(response.body().is_end_stream());
        assert_eq!(text(response.into_body()).await, "");
    }
}

#[tokio::test(start_paused = true)]
async fn hold_and_rejection_policies_are_independent() {
    let (held, layer) = full().await;
    let layer = layer.reject_when_full();
    let answers = bodies(|| Full::new(Bytes::from("hello")));
    let early = layer
        .clone()
        .release_at_response()
        .reject_with_response()
        .layer(answers.clone());
    let late = layer.clone().reject_with_response().layer(answers.clone());
    let status = |response: Response<_>| response.status();
    assert_eq!(
        status(early.clone().oneshot(Request::new(())).await.unwrap()),
        429
    );
    assert_eq!(
        late.clone()
            .oneshot(Request::new(()))
            .await
            .unwrap()
            .status(),
        429
    );
    drop(held);
    let one = early.clone().oneshot(Request::new(())).await.unwrap();
    assert_eq!(one.status(), 200);
    // The first permit was released with the response, the second is held by the body.
    let two = late.clone().oneshot(Request::new(())).await.unwrap();
    assert_eq!(two.status(), 200);
    assert_eq!(
        late.clone()
            .oneshot(Request::new(()))
            .await
            .unwrap()
            .status(),
        429
    );
    drop(two);
    assert_eq!(late.oneshot(Request::new(())).await.unwrap().status(), 200);
}

#[tokio::test(start_paused = true)]
async fn reject_with_response_keeps_the_error_type() {
    let mut service = LimitLayer::new(semaphore(1))
        .reject_with_response()
        .layer(service_fn(|_: Request<()>| async {
            Err::<Response<Full<Bytes>>, _>(Boom("boom"))
        }));
    let result: Result<_, Boom> = service.ready().await.unwrap().call(Request::new(())).await;
    assert_eq!(result.err(), Some(Boom("boom")));
}
