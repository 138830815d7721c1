//! Reservations that `call` does not use in time, and calls without `poll_ready`.

use crate::support::*;
use std::task::Poll;
use tower::{Layer, Service, ServiceExt};
use tower_permit::DistributedConcurrencyLimitLayer as LimitLayer;

#[tokio::test(start_paused = true)]
async fn an_unused_reservation_is_released() {
    let semaphore = semaphore(1);
    let mut service = LimitLayer::new(semaphore.clone())
        .reservation_ttl(secs(2))
        .release_at_response()
        .layer(echo());
    ready(&mut service).await.unwrap();
    tokio::time::sleep(millis(1900)).await;
    assert!(!is_free(&semaphore).await);
    tokio::time::sleep(millis(200)).await;
    assert!(is_free(&semaphore).await);
}

#[tokio::test(start_paused = true)]
async fn a_ready_service_stays_ready() {
    let semaphore = semaphore(1);
    let mut service = LimitLayer::new(semaphore.clone())
        .release_at_response()
        .layer(echo());
    ready(&mut service).await.unwrap();
    tokio::time::sleep(secs(5)).await;
    let held = semaphore.acquire().await.unwrap();
    assert!(matches!(poll_ready(&mut service), Poll::Ready(Ok(()))));

    // The call acquires its permit in its future.
    let control = service.get_ref().control.clone();
    let mut response = spawned(service.call("late"));
    assert!(!response.is_over().await);
    assert_eq!(control.calls(), 0);
    drop(held);
    assert_eq!(response.end().await.unwrap(), "late");
    assert_eq!(control.calls(), 1);
    assert!(is_free(&semaphore).await);
}

#[tokio::test(start_paused = true)]
async fn a_reservation_that_is_used_in_time_is_kept() {
    let semaphore = semaphore(1);
    let inner = Strict::new(|()| async {
        tokio::time::sleep(secs(20)).await;
        Ok(())
    });
    let mut service = LimitLayer::new(semaphore.clone())
        .release_at_response()
        .layer(inner);
    ready(&mut service).await.unwrap();
    tokio::time::sleep(millis(900)).await;
    let mut response = spawned(service.call(()));
    for _ in 0..15 {
        tokio::time::sleep(secs(1)).await;
        assert!(!is_free(&semaphore).await);
    }
    assert!(!response.is_over().await);
    response.end().await.unwrap();
    assert!(is_free(&semaphore).await);
}

#[tokio::test(start_paused = true)]
async fn a_permit_granted_without_a_poll_is_released() {
    let semaphore = semaphore(1);
    let mut service = LimitLayer::new(semaphore.clone())
        .release_at_response()
        .layer(echo());
    let held = semaphore.acquire().await.unwrap();
    assert!(stays_pending(&mut service).await);
    drop(held);
    settle().await;
    assert!(!is_free(&semaphore).await, "it is the waiter's turn");

    tokio::time::sleep(secs(2)).await;
    let held = semaphore.acquire().await.unwrap();
    // The wait ended long ago, and its permit has been released: not ready.
    assert!(stays_pending(&mut service).await);
    drop(held);
    ready(&mut service).await.unwrap();
    assert!(!is_free(&semaphore).await);
    assert_eq!(service.call("hello").await.unwrap(), "hello");
}

#[tokio::test(start_paused = true)]
async fn an_unpolled_future_releases_its_permit() {
    let semaphore = semaphore(1);
    let mut service = LimitLayer::new(semaphore.clone())
        .release_at_response()
        .layer(echo());
    let held = semaphore.acquire().await.unwrap();
    let mut response = Box::pin(service.call("hello"));
    assert!(futures_util::poll!(response.as_mut()).is_pending());
    settle().await;
    drop(held);
    tokio::time::sleep(secs(2)).await;
    let held = semaphore.acquire().await.unwrap();
    // Its permit was released: it does not run without a new one.
    assert!(futures_util::poll!(response.as_mut()).is_pending());
    settle().await;
    assert!(futures_util::poll!(response.as_mut()).is_pending());
    assert_eq!(service.get_ref().control.calls(), 0);
    drop(held);
    assert_eq!(response.await.unwrap(), "hello");
}

#[tokio::test(start_paused = true)]
async fn the_service_that_was_made_ready_is_the_one_that_is_called() {
    // Its readiness is a permit of another semaphore: a clone would wait for it for ever.
    let inner = tower::limit::ConcurrencyLimit::new(echo(), 1);
    let mut service = LimitLayer::new(semaphore(1))
        .release_at_response()
        .layer(inner);
    ready(&mut service).await.unwrap();
    tokio::time::sleep(secs(5)).await;
    let late = tokio::time::timeout(secs(60), service.call("late")).await;
    assert_eq!(late.expect("no deadlock").unwrap(), "late");
}

#[tokio::test(start_paused = true)]
async fn a_future_is_not_queued_while_the_inner_service_is_not_ready() {
    let semaphore = semaphore(1);
    let mut service = LimitLayer::new(semaphore.clone())
        .release_at_response()
        .layer(echo());
    let control = service.get_ref().control.clone();
    let held = semaphore.acquire().await.unwrap();
    let mut response = Box::pin(service.call("hello"));
    assert!(futures_util::poll!(response.as_mut()).is_pending());
    settle().await;
    control.busy(true);
    assert!(futures_util::poll!(response.as_mut()).is_pending());
    drop(held);
    assert!(is_free(&semaphore).await);
    control.busy(false);
    assert_eq!(response.await.unwrap(), "hello");
}

#[tokio::test(start_paused = true)]
async fn a_reservation_starts_when_poll_ready_returns() {
    let semaphore = semaphore(1);
    let mut service = LimitLayer::new(semaphore.clone())
        .release_at_response()
        .layer(echo());
    assert!(poll_ready(&mut service).is_pending());
    tokio::time::sleep(millis(800)).await;
    ready(&mut service).await.unwrap();
    tokio::time::sleep(millis(800)).await;
    assert!(!is_free(&semaphore).await);
    tokio::time::sleep(millis(300)).await;
    assert!(is_free(&semaphore).await);
}

#[tokio::test(start_paused = true)]
async fn a_zero_reservation_ttl_still_admits() {
    let mut service = LimitLayer::new(semaphore(1))
        .reservation_ttl(secs(0))
        .release_at_response()
        .layer(echo());
    for _ in 0..3 {
        ready(&mut service).await.unwrap();
        assert_eq!(service.call("hello").await.unwrap(), "hello");
    }
}

#[tokio::test(start_paused = true)]
async fn call_without_poll_ready_acquires_in_the_future() {
    let semaphore = semaphore(1);
    let mut service = LimitLayer::new(semaphore.clone())
        .release_at_response()
        .layer(echo());
    let held = semaphore.acquire().await.unwrap();
    let mut response = spawned(service.call("hello"));
    assert!(!response.is_over().await);
    drop(held);
    assert_eq!(response.end().await.unwrap(), "hello");
}

#[tokio::test(start_paused = true)]
async fn call_during_a_wait_keeps_the_queue_position() {
    let semaphore = semaphore(1);
    let mut service = LimitLayer::new(semaphore.clone())
        .release_at_response()
        .layer(echo());
    let held = semaphore.acquire().await.unwrap();
    assert!(stays_pending(&mut service).await);
    let behind = spawned({
        let semaphore = semaphore.clone();
        async move { semaphore.acquire().await }
    });
    settle().await;
    let response = spawned(service.call("hello"));
    settle().await;
    drop(held);
    assert_eq!(response.end().await.unwrap(), "hello");
    drop(behind.end().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_future_holds_no_permit_while_the_inner_service_is_not_ready() {
    let semaphore = semaphore(1);
    let inner = echo();
    let control = inner.control.clone();
    let mut service = LimitLayer::new(semaphore.clone())
        .release_at_response()
        .layer(inner);
    control.busy(true);
    let mut response = spawned(service.call("hello"));
    assert!(!response.is_over().await);
    assert!(is_free(&semaphore).await);
    control.busy(false);
    assert_eq!(response.end().await.unwrap(), "hello");
}

#[tokio::test(start_paused = true)]
async fn an_inner_error_before_the_call_is_passed_on() {
    let inner = echo();
    inner.control.fail();
    let mut service = LimitLayer::new(semaphore(1))
        .release_at_response()
        .layer(inner);
    let error = service.call("hello").await.unwrap_err();
    assert_eq!(error.downcast_ref::<Boom>(), Some(&Boom("not ready, ever")));
}

#[tokio::test(start_paused = true)]
async fn a_call_long_after_ready_is_served() {
    let mut service = LimitLayer::new(semaphore(1))
        .release_at_response()
        .layer(echo());
    for pause in [0, 1, 2, 30] {
        let ready = service.ready().await.unwrap();
        tokio::time::sleep(secs(pause)).await;
        assert_eq!(ready.call("hello").await.unwrap(), "hello");
    }
}

/// A future that runs in its own task.
struct Spawned<T>(tokio::task::JoinHandle<T>);

fn spawned<F>(future: F) -> Spawned<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    Spawned(tokio::spawn(future))
}

impl<T> Spawned<T> {
    async fn is_over(&mut self) -> bool {
        settle().await;
        self.0.is_finished()
    }

    async fn end(self) -> T {
        self.0.await.expect("the task ends")
    }
}
