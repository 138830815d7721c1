//! Reservations in `poll_ready` and each way to release them, after tower's tests of its concurrency limit.

use crate::support::*;
use std::task::{Context, Poll};
use tower::{Layer, Service};
use tower_permit::DistributedConcurrencyLimitLayer as LimitLayer;
use tower_test::{assert_request_eq, mock};

type Mock = mock::Mock<&'static str, &'static str>;
type Handle = mock::Handle<&'static str, &'static str>;
type Limited = tower_permit::DistributedConcurrencyLimit<Mock, tower_permit::layers::AtResponse>;

fn limited(limit: u32) -> (Limited, Handle) {
    let (service, handle) = mock::pair();
    let layer = LimitLayer::new(semaphore(limit)).release_at_response();
    (layer.layer(service), handle)
}

#[tokio::test(start_paused = true)]
async fn the_limit_bounds_requests_in_flight() {
    let (mut service, mut handle) = limited(2);
    ready(&mut service).await.unwrap();
    let r1 = service.call("hello 1");
    ready(&mut service).await.unwrap();
    let r2 = service.call("hello 2");

    assert!(stays_pending(&mut service).await);
    assert_request_eq!(handle, "hello 1").send_response("world 1");
    assert_request_eq!(handle, "hello 2").send_response("world 2");
    // The response is ready, but its future has not been polled yet.
    assert!(stays_pending(&mut service).await);

    assert_eq!(r1.await.unwrap(), "world 1");
    ready(&mut service).await.unwrap();
    let r3 = service.call("hello 3");
    assert!(stays_pending(&mut service).await);

    assert_eq!(r2.await.unwrap(), "world 2");
    assert_request_eq!(handle, "hello 3").send_response("world 3");
    assert_eq!(r3.await.unwrap(), "world 3");
}

#[tokio::test(start_paused = true)]
async fn a_reservation_counts_as_in_use() {
    let (mut s1, mut handle) = limited(1);
    let mut s2 = s1.clone();
    ready(&mut s1).await.unwrap();
    assert!(stays_pending(&mut s2).await);

    let response = s1.call("hello");
    assert!(stays_pending(&mut s2).await);
    assert_request_eq!(handle, "hello").send_response("world");
    response.await.unwrap();
    ready(&mut s2).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_dropped_service_releases_its_reservation() {
    let (mut s1, _handle) = limited(1);
    let mut s2 = s1.clone();
    ready(&mut s1).await.unwrap();
    assert!(stays_pending(&mut s2).await);

    drop(s1);
    ready(&mut s2).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn into_inner_releases_the_reservation() {
    let (mut s1, _handle) = limited(1);
    let mut s2 = s1.clone();
    ready(&mut s1).await.unwrap();
    let _inner = s1.into_inner();
    ready(&mut s2).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_inner_error_releases_the_permit() {
    let (mut s1, mut handle) = limited(1);
    let mut s2 = s1.clone();
    ready(&mut s1).await.unwrap();
    let response = s1.call("hello");
    assert_request_eq!(handle, "hello").send_error("boom");
    response.await.unwrap_err();
    ready(&mut s2).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_dropped_future_releases_the_permit() {
    let (mut s1, _handle) = limited(1);
    let mut s2 = s1.clone();
    ready(&mut s1).await.unwrap();
    let response = s1.call("hello");
    assert!(stays_pending(&mut s2).await);
    drop(response);
    ready(&mut s2).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn waiters_are_woken_in_order_and_once() {
    let (mut s1, _handle) = limited(1);
    let (mut s2, mut s3) = (s1.clone(), s1.clone());
    let ((wakes2, waker2), (wakes3, waker3)) = (Wakes::new(), Wakes::new());
    let (mut cx2, mut cx3) = (Context::from_waker(&waker2), Context::from_waker(&waker3));
    ready(&mut s1).await.unwrap();
    assert!(s2.poll_ready(&mut cx2).is_pending());
    assert!(s3.poll_ready(&mut cx3).is_pending());
    settle().await;
    assert_eq!((wakes2.count(), wakes3.count()), (0, 0));

    drop(s1);
    settle().await;
    assert_eq!((wakes2.count(), wakes3.count()), (1, 0));
    assert!(matches!(s2.poll_ready(&mut cx2), Poll::Ready(Ok(()))));

    drop(s2);
    settle().await;
    assert_eq!((wakes2.count(), wakes3.count()), (1, 1));
    assert!(matches!(s3.poll_ready(&mut cx3), Poll::Ready(Ok(()))));
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_waiter_is_skipped() {
    let (mut s1, _handle) = limited(1);
    let (mut s2, mut s3) = (s1.clone(), s1.clone());
    ready(&mut s1).await.unwrap();
    assert!(stays_pending(&mut s2).await);
    assert!(stays_pending(&mut s3).await);
    drop(s2);
    drop(s1);
    ready(&mut s3).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_clone_starts_without_a_reservation() {
    let (mut s1, mut handle) = limited(1);
    ready(&mut s1).await.unwrap();
    let mut s2 = s1.clone();
    assert!(stays_pending(&mut s2).await);
    // The original still has its reservation.
    let response = s1.call("hello");
    assert_request_eq!(handle, "hello").send_response("world");
    assert_eq!(response.await.unwrap(), "world");
}

#[tokio::test(start_paused = true)]
async fn every_service_of_a_semaphore_shares_its_limit() {
    let (inner, _handle): (Mock, Handle) = mock::pair();
    let semaphore = semaphore(1);
    let layer = LimitLayer::new(semaphore.clone()).release_at_response();
    let mut s1 = layer.layer(inner.clone());
    let mut s2 = layer.clone().layer(inner.clone());
    let mut s3 = LimitLayer::new(semaphore)
        .release_at_response()
        .layer(inner);

    ready(&mut s1).await.unwrap();
    assert!(stays_pending(&mut s2).await);
    assert!(stays_pending(&mut s3).await);
}

#[tokio::test(start_paused = true)]
async fn no_permit_is_held_while_the_inner_service_is_not_ready() {
    let inner = echo();
    let control = inner.control.clone();
    let semaphore = semaphore(1);
    let mut service = LimitLayer::new(semaphore.clone())
        .release_at_response()
        .layer(inner);

    control.busy(true);
    assert!(stays_pending(&mut service).await);
    assert!(is_free(&semaphore).await);

    control.busy(false);
    ready(&mut service).await.unwrap();
    assert!(!is_free(&semaphore).await);

    // The inner service is no longer ready: the next poll releases the reservation.
    control.busy(true);
    assert!(poll_ready(&mut service).is_pending());
    assert!(is_free(&semaphore).await);

    control.busy(false);
    ready(&mut service).await.unwrap();
    assert_eq!(service.call("hello").await.unwrap(), "hello");
}

#[tokio::test(start_paused = true)]
async fn no_ticket_is_queued_while_the_inner_service_is_not_ready() {
    let inner = echo();
    let control = inner.control.clone();
    let semaphore = semaphore(1);
    let held = semaphore.acquire().await.unwrap();
    let mut service = LimitLayer::new(semaphore.clone())
        .release_at_response()
        .layer(inner);
    assert!(stays_pending(&mut service).await);
    control.busy(true);
    assert!(stays_pending(&mut service).await);
    drop(held);
    assert!(is_free(&semaphore).await);
}

#[tokio::test(start_paused = true)]
async fn an_inner_error_in_poll_ready_is_passed_on_and_releases() {
    let inner = echo();
    let control = inner.control.clone();
    let semaphore = semaphore(1);
    let mut service = LimitLayer::new(semaphore.clone())
        .release_at_response()
        .layer(inner);
    ready(&mut service).await.unwrap();
    control.fail();
    let error = ready(&mut service).await.unwrap_err();
    assert_eq!(error.downcast_ref::<Boom>(), Some(&Boom("not ready, ever")));
    assert!(is_free(&semaphore).await);
}

#[tokio::test(start_paused = true)]
async fn the_limit_holds_over_many_tasks() {
    let witness = Witness::default();
    let counter = witness.clone();
    let inner = Strict::new(move |()| {
        let witness = counter.clone();
        async move {
            let _inside = witness.enter();
            tokio::time::sleep(millis(10)).await;
            Ok(())
        }
    });
    let service = LimitLayer::new(semaphore(5))
        .release_at_response()
        .layer(inner);
    let tasks: Vec<_> = (0..100)
        .map(|_| {
            let mut service = service.clone();
            tokio::spawn(async move {
                ready(&mut service).await.unwrap();
                service.call(()).await.unwrap();
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!((witness.inside(), witness.peak()), (0, 5));
}

#[tokio::test(start_paused = true)]
async fn a_wait_wakes_the_last_waker() {
    let (mut s1, _handle) = limited(1);
    let mut s2 = s1.clone();
    ready(&mut s1).await.unwrap();
    let ((before, old), (after, new)) = (Wakes::new(), Wakes::new());
    assert!(s2.poll_ready(&mut Context::from_waker(&old)).is_pending());
    settle().await;
    assert!(s2.poll_ready(&mut Context::from_waker(&new)).is_pending());
    drop(s1);
    settle().await;
    assert_eq!((before.count(), after.count()), (0, 1));
}
