//! Each configuration of the limit against each clause of the tower contract.

use crate::support::*;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use std::marker::PhantomData;
use std::task::Poll;
use std::time::Duration;
use tower::{Layer, Service, ServiceExt};
use tower_permit::layers::limit::ResponseFuture;
use tower_permit::layers::{PermitBody, RejectionBody, ResponsePermit};
use tower_permit::{DistributedConcurrencyLimit, DistributedConcurrencyLimitLayer as LimitLayer};

fn shareable<T: Send + Sync>() {}
fn is_service<T: Clone + Send + Sync + 'static>(_: T) {}
fn is_future<F: Future + Send + 'static>(_: F) {}

/// Without any trait: the layer must not require one.
struct NotSync(#[allow(dead_code)] PhantomData<std::cell::Cell<()>>);

#[test]
fn layers_services_and_futures_have_auto_traits() {
    shareable::<LimitLayer>();
    shareable::<DistributedConcurrencyLimit<()>>();
    shareable::<DistributedConcurrencyLimit<(), NotSync, NotSync>>();
    shareable::<PermitBody<()>>();
    shareable::<RejectionBody<()>>();
    shareable::<ResponsePermit>();
    fn unwind_safe<T: std::panic::UnwindSafe + std::panic::RefUnwindSafe>() {}
    unwind_safe::<tower_permit::Error>();
    fn unpin<T: Unpin>() {}
    unpin::<DistributedConcurrencyLimit<()>>();

    let layer = LimitLayer::new(semaphore(1));
    let inner = bodies(|| Full::new(Bytes::new()));
    let mut service = layer.clone().reject_with_response().layer(inner.clone());
    is_future(service.call(Request::new(())));
    drop::<ResponseFuture<_, _, _, _>>(service.call(Request::new(())));
    is_service(layer.layer(tower::service_fn(|_: ()| async { Ok::<_, Boom>(()) })));
}

#[test]
fn debug_needs_no_debug_of_the_parameters() {
    struct Opaque;
    let layer = LimitLayer::new(semaphore(1)).reject_with_response();
    assert!(format!("{layer:?}").starts_with("DistributedConcurrencyLimitLayer"));
    let service = layer.release_at_response().layer(());
    assert!(format!("{service:?}").starts_with("DistributedConcurrencyLimit"));
    let _ = layer_of(Opaque);
}

/// The types themselves have no bounds.
fn layer_of<S>(inner: S) -> DistributedConcurrencyLimit<S> {
    DistributedConcurrencyLimit::new(inner, semaphore(1))
}

/// Checks the clauses for a service with any configuration and a limit of one.
async fn keeps_the_contract<S, B>(name: &str, mut service: S)
where
    S: Service<Request<()>, Response = Response<B>> + Clone + Send + Sync + 'static,
    S::Error: std::fmt::Debug,
{
    let request = || Request::new(());

    // A ready service stays ready, however often it is polled.
    for _ in 0..3 {
        assert!(ready(&mut service).await.is_ok(), "{name}");
        assert!(
            matches!(poll_ready(&mut service), Poll::Ready(Ok(()))),
            "{name}"
        );
    }
    // A ready service responds to an immediate and to a late call.
    assert!(service.call(request()).await.is_ok(), "{name}");
    ready(&mut service).await.unwrap();
    tokio::time::sleep(secs(10)).await;
    assert!(service.call(request()).await.is_ok(), "{name}");
    // A ready service and its clone both respond.
    ready(&mut service).await.unwrap();
    let mut clone = service.clone();
    let mut original = std::mem::replace(&mut service, clone.clone());
    assert!(original.call(request()).await.is_ok(), "{name}");
    ready(&mut clone).await.unwrap();
    assert!(clone.call(request()).await.is_ok(), "{name}");
    // A call without `poll_ready` does not panic.
    assert!(service.clone().call(request()).await.is_ok(), "{name}");
    // Several calls. Their futures are polled later.
    let first = service.call(request());
    let second = service.call(request());
    drop(first);
    assert!(second.await.is_ok(), "{name}");
    // A future dropped after one poll leaves no ticket.
    for _ in 0..3 {
        let mut future = Box::pin(service.call(request()));
        let _ = futures_util::poll!(future.as_mut());
        drop(future);
        settle().await;
    }
    assert!(service.oneshot(request()).await.is_ok(), "{name}");
}

#[tokio::test(start_paused = true)]
async fn every_configuration_keeps_the_tower_contract() {
    let answers = || {
        Strict::new(|_: Request<()>| {
            std::future::ready(Ok(Response::new(Full::new(Bytes::from("hello")))))
        })
    };
    for (mode, queue) in [("wait", true), ("reject", false)] {
        let layer = LimitLayer::new(semaphore(1));
        let layer = if queue {
            layer
        } else {
            layer.reject_when_full()
        };
        keeps_the_contract(&format!("{mode}, body end, error"), layer.layer(answers())).await;
        let responses = layer.clone().reject_with_response();
        keeps_the_contract(
            &format!("{mode}, body end, response"),
            responses.layer(answers()),
        )
        .await;
        let early = layer.clone().release_at_response();
        keeps_the_contract(
            &format!("{mode}, at response, error"),
            early.layer(answers()),
        )
        .await;
        let both = early.reject_with_response();
        keeps_the_contract(
            &format!("{mode}, at response, response"),
            both.layer(answers()),
        )
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_longest_duration_means_never() {
    let mut service = LimitLayer::new(semaphore(1))
        .wait_timeout(Duration::MAX)
        .max_hold(Duration::MAX)
        .reservation_ttl(Duration::MAX)
        .release_at_response()
        .layer(echo());
    ready(&mut service).await.unwrap();
    tokio::time::sleep(secs(3600)).await;
    assert_eq!(service.call("hello").await.unwrap(), "hello");
    assert_eq!(service.call("not ready").await.unwrap(), "not ready");
}
