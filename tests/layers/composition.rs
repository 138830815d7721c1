//! The limit together with other middleware of tower.

use crate::support::*;
use std::convert::Infallible;
use std::future::{Ready, ready as now};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tower::retry::{Policy, RetryLayer};
use tower::{Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_permit::{BoxError, DistributedConcurrencyLimitLayer as LimitLayer, ErrorKind};

#[tokio::test(start_paused = true)]
async fn an_error_names_the_limit_that_rejected() {
    let permits = common::modes::coordinator(tower_permit::Memory::new());
    let (outer, inner) = (
        permits.semaphore("all", 2).unwrap(),
        permits.semaphore("model a", 1).unwrap(),
    );
    let service = ServiceBuilder::new()
        .layer(
            LimitLayer::new(outer)
                .reject_when_full()
                .release_at_response(),
        )
        .layer(
            LimitLayer::new(inner.clone())
                .reject_when_full()
                .release_at_response(),
        )
        .service(echo());
    let held = inner.acquire().await.unwrap();
    let error = service.clone().oneshot("hello").await.unwrap_err();
    let error = error.downcast_ref::<tower_permit::Error>().unwrap();
    assert_eq!(error.name(), Some("model%20a"));
    assert_eq!(error.to_string(), "model%20a: no permit is free");
    drop(held);
    service.oneshot("hello").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_buffer_survives_a_rejection() {
    let semaphore = semaphore(1);
    let mut service = ServiceBuilder::new()
        .buffer(8)
        .layer(
            LimitLayer::new(semaphore.clone())
                .wait_timeout(secs(1))
                .release_at_response(),
        )
        .service(echo());
    for _ in 0..2 {
        let held = semaphore.acquire().await.unwrap();
        let error = service.ready().await.unwrap().call("hello").await;
        assert_eq!(kind(&error.unwrap_err()), ErrorKind::WaitTimeout);
        drop(held);
        let answer = service.ready().await.unwrap().call("hello").await;
        assert_eq!(answer.unwrap(), "hello");
    }
}

#[tokio::test(start_paused = true)]
async fn load_shed_works_with_reject_when_full() {
    let semaphore = semaphore(1);
    let layer = LimitLayer::new(semaphore.clone()).release_at_response();
    let mut service = ServiceBuilder::new()
        .load_shed()
        .layer(layer.reject_when_full())
        .service(echo());
    // No request is shed while a permit is free.
    for _ in 0..3 {
        let answer = service.ready().await.unwrap().call("hello").await;
        assert_eq!(answer.unwrap(), "hello");
    }
    // Without a free permit, the limit rejects the request.
    let _held = semaphore.acquire().await.unwrap();
    let error = service.ready().await.unwrap().call("hello").await;
    assert_eq!(kind(&error.unwrap_err()), ErrorKind::LimitReached);
}

#[tokio::test(start_paused = true)]
async fn load_shed_over_a_waiting_limit_sheds_everything() {
    let layer = LimitLayer::new(semaphore(5)).release_at_response();
    let mut service = ServiceBuilder::new()
        .load_shed()
        .layer(layer)
        .service(echo());
    let error = service.ready().await.unwrap().call("hello").await;
    assert!(
        error
            .unwrap_err()
            .is::<tower::load_shed::error::Overloaded>()
    );
}

#[tokio::test(start_paused = true)]
async fn steer_does_not_starve_other_services() {
    let semaphore = semaphore(2);
    let layer = LimitLayer::new(semaphore.clone()).release_at_response();
    let services = [layer.layer(echo()), layer.layer(echo())];
    // `Steer` makes all its services ready before it picks one: the reservation of the others must expire.
    let mut steer = tower::steer::Steer::new(services, |request: &&str, _: &[_]| {
        usize::from(*request == "second")
    });
    for request in ["first", "first", "second"] {
        let answer = steer.ready().await.unwrap().call(request).await;
        assert_eq!(answer.unwrap(), request);
    }
    tokio::time::sleep(secs(2)).await;
    let _both = (
        semaphore.acquire().await.unwrap(),
        semaphore.acquire().await.unwrap(),
    );
}

#[tokio::test(start_paused = true)]
async fn oneshot_acquires_and_releases_a_permit() {
    let semaphore = semaphore(1);
    let service = LimitLayer::new(semaphore.clone())
        .release_at_response()
        .layer(echo());
    assert_eq!(service.clone().oneshot("hello").await.unwrap(), "hello");
    assert_eq!(service.oneshot("hello").await.unwrap(), "hello");
    assert!(is_free(&semaphore).await);
}

#[tokio::test(start_paused = true)]
async fn call_all_keeps_the_limit() {
    let witness = Witness::default();
    let counter = witness.clone();
    let service = LimitLayer::new(semaphore(3))
        .release_at_response()
        .layer(Strict::new(move |request: usize| {
            let witness = counter.clone();
            async move {
                let _inside = witness.enter();
                tokio::time::sleep(millis(10)).await;
                Ok(request)
            }
        }));
    use futures_util::TryStreamExt;
    let answers: Vec<_> = service
        .call_all(futures_util::stream::iter(0..20))
        .try_collect()
        .await
        .unwrap();
    assert_eq!(answers, Vec::from_iter(0..20));
    assert_eq!(witness.peak(), 3);
}

#[derive(Clone)]
struct ThreeTimes(usize);

impl Policy<(), (), BoxError> for ThreeTimes {
    type Future = Ready<()>;

    fn retry(&mut self, _: &mut (), result: &mut Result<(), BoxError>) -> Option<Self::Future> {
        self.0 = self.0.checked_sub(1)?;
        result.is_err().then(|| now(()))
    }

    fn clone_request(&mut self, _: &()) -> Option<()> {
        Some(())
    }
}

#[tokio::test(start_paused = true)]
async fn each_retry_attempt_acquires_its_own_permit() {
    let semaphore = semaphore(1);
    let attempts = Arc::new(AtomicUsize::new(0));
    let counted = attempts.clone();
    let service = ServiceBuilder::new()
        .layer(RetryLayer::new(ThreeTimes(3)))
        .layer(LimitLayer::new(semaphore.clone()).release_at_response())
        .service(Strict::new(move |()| {
            let attempt = counted.fetch_add(1, Ordering::SeqCst);
            now(if attempt < 2 {
                Err(Boom("again"))
            } else {
                Ok(())
            })
        }));
    service.oneshot(()).await.unwrap();
    assert_eq!(attempts.load(Ordering::SeqCst), 3);
    assert!(is_free(&semaphore).await);
}

#[tokio::test(start_paused = true)]
async fn an_outer_timeout_cancels_the_wait() {
    let semaphore = semaphore(1);
    let held = semaphore.acquire().await.unwrap();
    let mut service = ServiceBuilder::new()
        .timeout(secs(1))
        .layer(LimitLayer::new(semaphore.clone()).release_at_response())
        .service(service_fn(|()| async {
            std::future::pending::<()>().await;
            Ok::<_, Infallible>(())
        }));
    // `Timeout` does not bound a wait in `poll_ready`. Without `poll_ready` the whole wait is in the future.
    let error = service.call(()).await.unwrap_err();
    assert!(error.is::<tower::timeout::error::Elapsed>());
    drop(held);
    assert!(is_free(&semaphore).await);
}

#[tokio::test(start_paused = true)]
async fn two_limits_compose() {
    let (outer, inner) = (semaphore(2), semaphore(1));
    let witness = Witness::default();
    let counter = witness.clone();
    let service = ServiceBuilder::new()
        .layer(LimitLayer::new(outer.clone()).release_at_response())
        .layer(LimitLayer::new(inner.clone()).release_at_response())
        .service(Strict::new(move |()| {
            let witness = counter.clone();
            async move {
                let _inside = witness.enter();
                tokio::time::sleep(millis(10)).await;
                Ok(())
            }
        }));
    let tasks: Vec<_> = (0..20)
        .map(|_| tokio::spawn(service.clone().oneshot(())))
        .collect();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    assert_eq!(witness.peak(), 1);
    assert!(is_free(&outer).await && is_free(&inner).await);
}
