//! Keyed layers together with other layers, in the order that the guide recommends.

use crate::shop::*;
use crate::support::*;
use http::{Request, Response};
use std::future::{Ready, ready as now};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tower::retry::{Policy, RetryLayer};
use tower::{BoxError, ServiceBuilder, ServiceExt};
use tower_permit::{DistributedConcurrencyLimitLayer as LimitLayer, ErrorKind, HeldKeys};

#[tokio::test(start_paused = true)]
async fn a_wait_for_a_key_holds_no_permit_of_an_inner_limit() {
    let (permits, shop) = (permits(), Shop::default());
    let semaphore = permits.semaphore("database", 3).unwrap();
    let service = ServiceBuilder::new()
        .layer(mutex(&permits))
        .layer(LimitLayer::new(semaphore.clone()).release_at_response())
        .service(shop.service(secs(1)));
    // Many requests for one product.
    let crowd: Vec<_> = (0..20)
        .map(|_| tokio::spawn(service.clone().oneshot(buy("hot"))))
        .collect();
    settle().await;
    assert_eq!(
        (semaphore.stats().in_use, semaphore.stats().waiting),
        (1, 0)
    );
    // Requests for other products get the rest of the limit.
    let others = ["1", "2"].map(|product| tokio::spawn(service.clone().oneshot(buy(product))));
    settle().await;
    assert_eq!(
        (semaphore.stats().in_use, semaphore.stats().waiting),
        (3, 0)
    );
    for other in others {
        other.await.unwrap().unwrap();
    }
    for one in crowd {
        one.await.unwrap().unwrap();
    }
    assert_eq!(shop.product("hot").peak(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_a_key_occupies_no_tower_limit_or_buffer() {
    let (permits, shop) = (permits(), Shop::default());
    let inner = tower::util::BoxCloneService::new(
        ServiceBuilder::new()
            .layer(tower::limit::GlobalConcurrencyLimitLayer::new(2))
            .map_err(|Boom(what)| BoxError::from(what))
            .service(shop.service(secs(1))),
    );
    let buffered = ServiceBuilder::new()
        .buffer(1)
        .service(shop.service(secs(1)));
    for inner in [inner, tower::util::BoxCloneService::new(buffered)] {
        let service = ServiceBuilder::new().layer(mutex(&permits)).service(inner);
        let crowd: Vec<_> = (0..10)
            .map(|_| tokio::spawn(service.clone().oneshot(buy("hot"))))
            .collect();
        settle().await;
        let other = tokio::time::timeout(millis(1100), service.oneshot(buy("1"))).await;
        other.expect("no waiting").unwrap();
        for one in crowd {
            one.await.unwrap().unwrap();
        }
    }
    assert_eq!(shop.product("hot").peak(), 1);
}

/// Retries up to three attempts.
#[derive(Clone)]
struct Attempts(usize);

impl Policy<Request<()>, Response<()>, Boom> for Attempts {
    type Future = Ready<()>;

    fn retry(
        &mut self,
        _: &mut Request<()>,
        result: &mut Result<Response<()>, Boom>,
    ) -> Option<Self::Future> {
        self.0 = self.0.checked_sub(1)?;
        result.is_err().then(|| now(()))
    }

    fn clone_request(&mut self, request: &Request<()>) -> Option<Request<()>> {
        let mut clone = Request::new(());
        *clone.uri_mut() = request.uri().clone();
        *clone.extensions_mut() = request.extensions().clone();
        Some(clone)
    }
}

#[tokio::test(start_paused = true)]
async fn the_recommended_order_works() {
    let permits = permits();
    let semaphore = permits.semaphore("database", 5).unwrap();
    let traced = Arc::new(AtomicUsize::new(0));
    let witness = Witness::default();
    let (attempts, counter) = (Arc::new(AtomicUsize::new(0)), witness.clone());
    let counted = attempts.clone();
    let service = ServiceBuilder::new()
        // trace: sees all requests, also rejected ones
        .map_result({
            let traced = traced.clone();
            move |result: Result<Response<()>, BoxError>| {
                traced.fetch_add(1, Ordering::SeqCst);
                result
            }
        })
        .layer(mutex(&permits).wait_timeout(secs(30)))
        .layer(LimitLayer::new(semaphore.clone()).release_at_response())
        .timeout(secs(5))
        .layer(RetryLayer::new(Attempts(2)))
        .service(Strict::new(move |request: Request<()>| {
            let (inside, attempt) = (counter.enter(), counted.fetch_add(1, Ordering::SeqCst));
            assert!(request.extensions().get::<HeldKeys>().is_some());
            async move {
                // The third of three attempts succeeds, unless the request hangs.
                let hangs =
                    request.uri().path().contains("hang") || request.uri().query().is_some();
                tokio::time::sleep(if hangs { secs(60) } else { secs(1) }).await;
                drop(inside);
                match attempt % 3 {
                    2 => Ok(Response::new(())),
                    _ => Err(Boom("again")),
                }
            }
        }));

    // The timeout bounds the work, not the wait for the key: 8 × 3 s.
    let tasks: Vec<_> = (0..8)
        .map(|_| tokio::spawn(service.clone().oneshot(buy("7"))))
        .collect();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    // The key and the permit were held over all attempts.
    assert_eq!((attempts.load(Ordering::SeqCst), witness.peak()), (24, 1));

    // A request that hangs releases both after its timeout.
    let hangs = tokio::spawn(service.clone().oneshot(request("/products/7/buy?hang")));
    settle().await;
    attempts.store(0, Ordering::SeqCst);
    let next = tokio::spawn(service.clone().oneshot(buy("7")));
    let error = hangs.await.unwrap().unwrap_err();
    assert!(error.is::<tower::timeout::error::Elapsed>(), "{error:?}");
    next.await.unwrap().unwrap();
    assert_eq!(witness.inside(), 0);
    settle().await;
    assert_eq!(semaphore.stats().in_use, 0);
    assert!(all_free(&permits, &["7"]).await);
    assert_eq!(traced.load(Ordering::SeqCst), 10);
}

#[tokio::test(start_paused = true)]
async fn a_buffer_survives_a_rejection() {
    let (permits, shop) = (permits(), Shop::default());
    let mut service = ServiceBuilder::new()
        .buffer(8)
        .layer(mutex(&permits).reject_when_full())
        .service(shop.service(secs(1)));
    use tower::Service;
    for _ in 0..2 {
        let first = tokio::spawn(service.ready().await.unwrap().call(buy("7")));
        settle().await;
        let error = service
            .ready()
            .await
            .unwrap()
            .call(buy("7"))
            .await
            .unwrap_err();
        assert_eq!(kind(&error), ErrorKind::LimitReached);
        first.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn an_outer_load_shed_sheds_nothing() {
    let (permits, shop) = (permits(), Shop::default());
    let service = ServiceBuilder::new()
        .load_shed()
        .layer(mutex(&permits))
        .service(shop.service(millis(10)));
    let tasks = [(); 10].map(|()| tokio::spawn(service.clone().oneshot(buy("7"))));
    for task in tasks {
        task.await.unwrap().unwrap();
    }
}
