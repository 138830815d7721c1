//! When a response releases its permit.

use crate::support::*;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{HeaderMap, Request, Response};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use std::convert::Infallible;
use std::pin::{Pin, pin};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_permit::layers::{HoldPermit, PermitBody, ResponsePermit};
use tower_permit::{
    BoxError, DistributedConcurrencyLimitLayer as LimitLayer, ErrorKind, PermitHandle, Semaphore,
};

/// The response of one request through a limit of one.
async fn limited<B>(layer: LimitLayer, body: B) -> Response<Pin<Box<PermitBody<B>>>>
where
    B: Body + Send + 'static,
{
    let response = layer
        .layer(one_body(body))
        .oneshot(Request::new(()))
        .await
        .unwrap();
    response.map(Box::pin)
}

fn limit() -> (Semaphore, LimitLayer) {
    let semaphore = semaphore(1);
    (semaphore.clone(), LimitLayer::new(semaphore))
}

#[tokio::test(start_paused = true)]
async fn a_streamed_body_holds_the_permit_until_its_end() {
    let (semaphore, layer) = limit();
    let frames = stream::iter(0..3).then(|_| async {
        tokio::time::sleep(secs(1)).await;
        Ok::<_, Infallible>(Frame::data(Bytes::from("token")))
    });
    let start = tokio::time::Instant::now();
    let response = limited(layer, StreamBody::new(frames)).await;
    let next = tokio::spawn(async move {
        let permit = semaphore.acquire().await.unwrap();
        (permit, tokio::time::Instant::now())
    });
    let body = response.into_body().collect().await.unwrap();
    assert_eq!(body.to_bytes(), "tokentokentoken");
    let (_permit, since) = next.await.unwrap();
    let held = since - start;
    assert!(held >= secs(3) && held < millis(3010), "{held:?}");
}

#[tokio::test(start_paused = true)]
async fn an_empty_body_holds_no_permit() {
    let (semaphore, layer) = limit();
    let response = limited(layer, Empty::<Bytes>::new()).await;
    assert!(response.body().is_end_stream());
    assert!(is_free(&semaphore).await);

    // Responses with status 204 and to HEAD requests also have an empty body.
    let (semaphore, layer) = limit();
    let response = limited(layer, Full::new(Bytes::new())).await;
    assert!(is_free(&semaphore).await);
    drop(response);
}

#[tokio::test(start_paused = true)]
async fn the_last_frame_releases_if_the_body_reports_its_end() {
    let (semaphore, layer) = limit();
    let mut response = limited(layer, Full::new(Bytes::from("hello"))).await;
    assert!(!is_free(&semaphore).await);
    let frame = response.body_mut().frame().await.unwrap().unwrap();
    assert_eq!(frame.into_data().unwrap(), "hello");
    assert!(is_free(&semaphore).await, "though the body is still there");
    assert!(response.body_mut().frame().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_body_without_end_hint_holds_the_permit_until_it_ends() {
    let (semaphore, layer) = limit();
    let (feed, body) = fed();
    let mut response = limited(layer, body).await;
    feed.data("hello");
    response.body_mut().frame().await.unwrap().unwrap();
    assert!(!is_free(&semaphore).await);
    drop(feed);
    assert!(!is_free(&semaphore).await);
    assert!(response.body_mut().frame().await.is_none());
    assert!(is_free(&semaphore).await);
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_body_releases_and_is_not_wrapped() {
    let (semaphore, layer) = limit();
    let (feed, body) = fed();
    let mut response = limited(layer, body).await;
    feed.data("hello");
    feed.send(Err(Boom("cut")));
    response.body_mut().frame().await.unwrap().unwrap();
    assert!(!is_free(&semaphore).await);
    let error = response.body_mut().frame().await.unwrap().unwrap_err();
    assert_eq!(error.downcast_ref::<Boom>(), Some(&Boom("cut")));
    assert!(is_free(&semaphore).await);
}

#[tokio::test(start_paused = true)]
async fn trailers_are_passed_on_and_release() {
    let (semaphore, layer) = limit();
    let (feed, body) = fed();
    let mut response = limited(layer, body).await;
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().unwrap());
    feed.data("hello");
    feed.send(Ok(Frame::trailers(trailers.clone())));
    response.body_mut().frame().await.unwrap().unwrap();
    assert!(!is_free(&semaphore).await);
    let frame = response.body_mut().frame().await.unwrap().unwrap();
    assert_eq!(frame.into_trailers().unwrap(), trailers);
    assert!(is_free(&semaphore).await);
}

#[tokio::test(start_paused = true)]
async fn a_body_dropped_unread_releases() {
    let (semaphore, layer) = limit();
    let (_feed, body) = fed();
    let response = limited(layer, body).await;
    assert!(!is_free(&semaphore).await);
    drop(response);
    assert!(is_free(&semaphore).await);
}

#[tokio::test(start_paused = true)]
async fn a_body_dropped_midway_releases() {
    let (semaphore, layer) = limit();
    let (feed, body) = fed();
    let mut response = limited(layer, body).await;
    feed.data("hello");
    response.body_mut().frame().await.unwrap().unwrap();
    drop(response);
    assert!(is_free(&semaphore).await);
}

#[tokio::test(start_paused = true)]
async fn a_permit_is_released_once() {
    let (semaphore, layer) = limit();
    let mut response = limited(layer, Full::new(Bytes::from("hello"))).await;
    response.body_mut().frame().await.unwrap().unwrap();
    let held = semaphore.acquire().await.unwrap();
    assert!(response.body_mut().frame().await.is_none());
    drop(response);
    assert!(!is_free(&semaphore).await, "another permit was released");
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn size_hints_are_those_of_the_inner_body() {
    let (_, layer) = limit();
    let response = limited(layer, Full::new(Bytes::from("hello"))).await;
    assert_eq!(response.body().size_hint().exact(), Some(5));
    assert!(!response.body().is_end_stream());

    let (_, layer) = limit();
    let (feed, mut body) = fed();
    body.hint = (3, Some(9));
    let mut response = limited(layer, body).await;
    let hint = response.body().size_hint();
    assert_eq!((hint.lower(), hint.upper()), (3, Some(9)));
    feed.data("hello");
    feed.end_stream();
    assert!(!response.body().is_end_stream());
    response.body_mut().frame().await.unwrap().unwrap();
    assert!(response.body().is_end_stream());
}

#[tokio::test(start_paused = true)]
async fn a_body_held_for_too_long_ends_with_an_error() {
    let (semaphore, layer) = limit();
    let (feed, body) = fed();
    let mut response = limited(layer.max_hold(secs(60)), body).await;
    feed.data("hello");
    response.body_mut().frame().await.unwrap().unwrap();
    let start = tokio::time::Instant::now();
    let error = response.body_mut().frame().await.unwrap().unwrap_err();
    assert_eq!(kind(&error), ErrorKind::HeldTooLong);
    let waited = start.elapsed();
    assert!(waited > secs(55) && waited < secs(65), "{waited:?}");
    assert!(is_free(&semaphore).await);

    // No frame follows, even if the inner body has more.
    feed.data("world");
    assert!(response.body().is_end_stream());
    assert_eq!(response.body().size_hint().exact(), Some(0));
    assert!(response.body_mut().frame().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_body_of_another_middleware_can_hold_a_permit() {
    let semaphore = semaphore(1);
    let permit = semaphore.acquire().await.unwrap();
    let mut body = PermitBody::new(Full::new(Bytes::from("hello")), permit);
    assert!(!is_free(&semaphore).await);
    body.frame().await.unwrap().unwrap();
    assert!(is_free(&semaphore).await);
    let empty = PermitBody::<Full<Bytes>>::default();
    assert!(empty.is_end_stream());
}

#[tokio::test(start_paused = true)]
async fn a_response_that_is_not_read_releases_its_permit() {
    for frames in 0..2 {
        let (semaphore, layer) = limit();
        let (feed, body) = fed();
        let mut response = limited(layer, body).await;
        for _ in 0..frames {
            feed.data("hello");
            response.body_mut().frame().await.unwrap().unwrap();
        }
        tokio::time::sleep(secs(29)).await;
        assert!(!is_free(&semaphore).await);
        tokio::time::sleep(secs(2)).await;
        assert!(is_free(&semaphore).await);
        feed.data("world");
        let error = response.body_mut().frame().await.unwrap().unwrap_err();
        assert_eq!(kind(&error), ErrorKind::Stalled);
        assert!(response.body_mut().frame().await.is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_reader_or_a_slow_body_makes_progress() {
    let (semaphore, layer) = limit();
    let (feed, body) = fed();
    let mut response = limited(layer, body).await;
    for _ in 0..10 {
        feed.data("hello");
        response.body_mut().frame().await.unwrap().unwrap();
        tokio::time::sleep(secs(29)).await;
    }
    let mut next = Box::pin(response.body_mut().frame());
    assert!(futures_util::poll!(&mut next).is_pending());
    tokio::time::sleep(secs(100)).await;
    assert!(!is_free(&semaphore).await);
    feed.data("world");
    next.await.unwrap().unwrap();
    tokio::time::sleep(secs(31)).await;
    assert!(is_free(&semaphore).await);
}

#[tokio::test(start_paused = true)]
async fn without_a_stall_timeout_an_unread_response_holds_its_permit() {
    let (semaphore, layer) = limit();
    let (_feed, body) = fed();
    let response = limited(layer.stall_timeout(None), body).await;
    tokio::time::sleep(secs(300)).await;
    assert!(!is_free(&semaphore).await);
    drop(response);
    assert!(is_free(&semaphore).await);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_never_pending_also_ends_after_max_hold() {
    let (semaphore, layer) = limit();
    let frames = stream::repeat_with(|| Ok::<_, Infallible>(Frame::data(Bytes::from("x"))));
    let mut response = limited(layer.max_hold(secs(2)), StreamBody::new(frames)).await;
    for _ in 0..10 {
        response.body_mut().frame().await.unwrap().unwrap();
    }
    tokio::time::sleep(secs(3)).await;
    let error = response.body_mut().frame().await.unwrap().unwrap_err();
    assert_eq!(kind(&error), ErrorKind::HeldTooLong);
    assert!(is_free(&semaphore).await);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_hangs_ends_after_max_hold() {
    let (semaphore, layer) = limit();
    let witness = Witness::default();
    let counter = witness.clone();
    let service = layer
        .max_hold(secs(60))
        .release_at_response()
        .layer(service_fn(move |()| {
            let inside = counter.enter();
            async move {
                std::future::pending::<()>().await;
                drop(inside);
                Ok::<_, Infallible>(())
            }
        }));
    let error = service.oneshot(()).await.unwrap_err();
    assert_eq!(kind(&error), ErrorKind::HeldTooLong);
    assert_eq!(witness.inside(), 0);
    assert!(is_free(&semaphore).await);
}

#[tokio::test(start_paused = true)]
async fn with_release_at_response_the_body_holds_no_permit() {
    let (semaphore, layer) = limit();
    let (_feed, body) = fed();
    let service = layer.release_at_response().layer(one_body(body));
    // The response type is that of the inner service.
    let response: Response<Fed> = service.oneshot(Request::new(())).await.unwrap();
    assert!(is_free(&semaphore).await);
    drop(response);
}

#[tokio::test(start_paused = true)]
async fn a_handle_holds_the_permit_beyond_the_response() {
    let (semaphore, layer) = limit();
    let (sender, mut handles) = tokio::sync::mpsc::unbounded_channel();
    let mut service = layer
        .reject_with_response()
        .layer(service_fn(move |request: Request<()>| {
            let handle = request.extensions().get::<PermitHandle>().cloned();
            sender.send(handle).unwrap();
            async { Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new())) }
        }));

    // The handle alone does not hold the permit.
    drop(service.ready().await.unwrap().call(Request::new(())).await);
    let handle = handles.recv().await.unwrap().expect("a handle");
    assert!(is_free(&semaphore).await);
    assert!(handle.upgrade().is_none());

    let response = service.ready().await.unwrap().call(Request::new(()));
    // For example in a background task or an upgraded connection.
    let guard = handles.recv().await.unwrap().unwrap().upgrade().unwrap();
    drop(response.await);
    assert!(!is_free(&semaphore).await);
    drop(guard);
    assert!(is_free(&semaphore).await);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_acquires_in_its_future_exposes_the_permit() {
    let (_, layer) = limit();
    let mut service = layer
        .reject_with_response()
        .layer(Strict::new(|request: Request<()>| {
            let handle = request.extensions().get::<PermitHandle>().cloned();
            let held = handle.and_then(|handle| handle.upgrade()).is_some();
            async move { Ok(Response::new(Full::new(Bytes::from(held.to_string())))) }
        }));
    let response = service.call(Request::new(())).await.unwrap();
    let body = response.into_body().collect().await.unwrap();
    assert_eq!(body.to_bytes(), "true");
}

#[tokio::test(start_paused = true)]
async fn expose_permit_keeps_rejections_as_errors() {
    let (semaphore, layer) = limit();
    let (sender, mut guards) = tokio::sync::mpsc::unbounded_channel();
    let mut service = layer
        .expose_permit()
        .layer(service_fn(move |request: Request<()>| {
            let handle = request.extensions().get::<PermitHandle>().cloned();
            sender
                .send(handle.and_then(|handle| handle.upgrade()))
                .unwrap();
            async { Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new())) }
        }));
    let response = service.ready().await.unwrap().call(Request::new(()));
    drop(response.await.unwrap());
    let guard = guards.recv().await.unwrap().expect("a permit to keep");
    assert!(!is_free(&semaphore).await);
    // A rejection after a wait is an error.
    let refused = service.ready().await.unwrap().call(Request::new(())).await;
    let kind = crate::support::kind(&refused.map(drop).unwrap_err());
    assert_eq!(kind, tower_permit::ErrorKind::WaitTimeout);
    drop(guard);
    assert!(is_free(&semaphore).await);
}

/// A custom response type.
struct Completion<B> {
    tokens: B,
}

impl<B: Body> HoldPermit for Completion<B> {
    type Held = Completion<PermitBody<B>>;

    fn hold_permit(self, permit: ResponsePermit) -> Self::Held {
        Completion {
            tokens: permit.into_body(self.tokens),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_custom_response_type_can_hold_its_permit() {
    let (semaphore, layer) = limit();
    let service = layer.layer(service_fn(|()| async {
        Ok::<_, Infallible>(Completion {
            tokens: Full::new(Bytes::from("hello")),
        })
    }));
    let completion = service.oneshot(()).await.unwrap();
    assert!(!is_free(&semaphore).await);
    let read: Result<_, BoxError> = pin!(completion.tokens).collect().await;
    assert_eq!(read.unwrap().to_bytes(), "hello");
    assert!(is_free(&semaphore).await);
}
