//! Waits: timeout, bounds, cancellation.

use crate::shop::*;
use crate::support::*;
use http::{Request, Response};
use tokio::time::Instant;
use tower::{Layer, ServiceExt};
use tower_permit::layers::OnLost;
use tower_permit::{ErrorKind, HeldKeys, Key, KeyedMutexLayer};

#[tokio::test(start_paused = true)]
async fn a_wait_times_out() {
    let (permits, shop) = (permits(), Shop::default());
    let inner = shop.service(secs(100));
    let control = inner.control.clone();
    let service = mutex(&permits).wait_timeout(secs(3)).layer(inner);
    let first = tokio::spawn(service.clone().oneshot(buy("7")));
    settle().await;
    let start = Instant::now();
    let error = service.oneshot(buy("7")).await.unwrap_err();
    assert_eq!(kind(&error), ErrorKind::WaitTimeout);
    assert_eq!(
        error.to_string(),
        "buy+7: no permit became free within 3s: retry later, or raise wait_timeout"
    );
    let waited = start.elapsed();
    assert!(waited >= secs(3) && waited < millis(3100), "{waited:?}");
    assert_eq!(control.calls(), 1);
    first.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_wait_timeout_covers_all_names() {
    let (permits, shop) = (permits(), Shop::default());
    let holders = [("1", 2), ("2", 60)].map(|(product, seconds)| {
        let service = mutex(&permits).layer(shop.service(secs(seconds)));
        tokio::spawn(service.oneshot(buy(product)))
    });
    settle().await;
    let both = |_: &Request<()>| Key::all([1, 2]);
    let layer = KeyedMutexLayer::new(&permits, "buy", both).unwrap();
    let service = layer.wait_timeout(secs(3)).layer(shop.service(secs(1)));
    let start = Instant::now();
    let error = service.oneshot(buy("7")).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "buy+2: no permit became free within 3s: retry later, or raise wait_timeout"
    );
    let waited = start.elapsed();
    assert!(waited >= secs(3) && waited < millis(3100), "{waited:?}");
    for holder in holders {
        holder.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_until_its_deadline() {
    let (permits, shop) = (permits(), Shop::default());
    let service = mutex(&permits).layer(shop.service(secs(60)));
    let first = tokio::spawn(service.clone().oneshot(buy("7")));
    settle().await;
    let mut request = buy("7");
    let deadline = tower_permit::layers::Deadline::after(millis(200));
    request.extensions_mut().insert(deadline);
    let start = Instant::now();
    let error = service.clone().oneshot(request).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "buy+7: no permit became free before the request's deadline"
    );
    assert!((millis(200)..millis(210)).contains(&start.elapsed()));
    let service = mutex(&permits)
        .reject_with_response()
        .layer(shop.service(secs(1)));
    let mut request = buy("7");
    let timeout = "300m".parse().unwrap();
    request.headers_mut().insert("grpc-timeout", timeout);
    let start = Instant::now();
    let response = service.oneshot(request).await.unwrap();
    assert_eq!(response.status(), 429);
    assert!((millis(300)..millis(310)).contains(&start.elapsed()));
    first.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn waiting_requests_are_bounded_per_key_and_in_total() {
    let (permits, shop) = (permits(), Shop::default());
    let service =
        (mutex(&permits).max_waiting(2).max_waiting_total(3)).layer(shop.service(secs(1)));
    let mut inside = Vec::new();
    for product in ["1", "2"] {
        inside.push(tokio::spawn(service.clone().oneshot(buy(product))));
        settle().await;
    }
    let refused = |product| {
        let answer = service.clone().oneshot(buy(product));
        async move { kind(&answer.await.unwrap_err()) }
    };
    // Two for the first product, and no third.
    for _ in 0..2 {
        inside.push(tokio::spawn(service.clone().oneshot(buy("1"))));
    }
    settle().await;
    assert_eq!(refused("1").await, ErrorKind::TooManyWaiting);
    // One more in total, and no other, except for a free key.
    let third = tokio::spawn(service.clone().oneshot(buy("2")));
    settle().await;
    assert_eq!(refused("2").await, ErrorKind::TooManyWaiting);
    inside.push(tokio::spawn(service.clone().oneshot(buy("3"))));
    settle().await;
    assert_eq!(refused("3").await, ErrorKind::TooManyWaiting);
    // A cancelled wait no longer counts.
    third.abort();
    settle().await;
    service.clone().oneshot(buy("4")).await.unwrap();
    // Nor does a granted one.
    for one in inside {
        one.await.unwrap().unwrap();
    }
    service.oneshot(buy("1")).await.unwrap();
    assert_eq!(shop.served().len(), 7);
}

#[tokio::test(start_paused = true)]
async fn reject_when_full_rejects_at_once() {
    let (permits, shop) = (permits(), Shop::default());
    let service = mutex(&permits)
        .reject_when_full()
        .layer(shop.service(secs(1)));
    let first = tokio::spawn(service.clone().oneshot(buy("7")));
    settle().await;
    let start = Instant::now();
    let error = service.clone().oneshot(buy("7")).await.unwrap_err();
    assert_eq!(kind(&error), ErrorKind::LimitReached);
    service.clone().oneshot(buy("8")).await.unwrap();
    assert!(start.elapsed() < millis(1100));
    first.await.unwrap().unwrap();
    service.oneshot(buy("7")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_dropped_request_leaves_the_queue() {
    let (permits, shop) = (permits(), Shop::default());
    let service = mutex(&permits).layer(shop.service(secs(1)));
    let first = tokio::spawn(service.clone().oneshot(buy("7")));
    settle().await;
    let dropped = tokio::spawn(service.clone().oneshot(buy("7")));
    settle().await;
    let last = tokio::spawn(service.oneshot(buy("7")));
    settle().await;
    dropped.abort();
    let start = Instant::now();
    first.await.unwrap().unwrap();
    last.await.unwrap().unwrap();
    assert!(start.elapsed() < millis(2100));
    assert_eq!(shop.served().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_unpolled_future_holds_no_key() {
    let (permits, shop) = (permits(), Shop::default());
    let mut service = mutex(&permits).layer(shop.service(secs(1)));
    let idle = tower::Service::call(&mut service, buy("7"));
    tokio::time::timeout(secs(2), service.oneshot(buy("7")))
        .await
        .unwrap()
        .unwrap();
    idle.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_unclaimed_grant_passes_to_the_next_request() {
    let (permits, shop) = (permits(), Shop::default());
    let mut service = mutex(&permits).layer(shop.service(secs(1)));
    let first = tokio::spawn(service.clone().oneshot(buy("7")));
    settle().await;
    // Enqueued, and then not polled for a while.
    let mut idle = Box::pin(tower::Service::call(&mut service, buy("7")));
    assert!(futures_util::poll!(idle.as_mut()).is_pending());
    settle().await;
    let next = tokio::spawn(service.oneshot(buy("7")));
    first.await.unwrap().unwrap();
    tokio::time::timeout(secs(3), next)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    idle.await.expect("queued again");
    assert_eq!((shop.served().len(), shop.product("7").peak()), (3, 1));
}

#[tokio::test(start_paused = true)]
async fn a_grant_lost_before_the_poll_admits_no_request() {
    let permits = permits();
    let holds = Strict::new(|request: Request<()>| {
        let held = request.extensions().get::<HeldKeys>().unwrap();
        let kept = held.get("buy", 7).unwrap().upgrade();
        std::future::ready(kept.map(|_| Response::new(())).ok_or(Boom("lost")))
    });
    for choice in [OnLost::Continue, OnLost::End] {
        let layer = mutex(&permits).on_lost(choice);
        let mut request = Box::pin(layer.layer(holds.clone()).oneshot(buy("7")));
        assert!(futures_util::poll!(request.as_mut()).is_pending());
        settle().await;
        assert_eq!(layer.inspect(7).await.unwrap().in_use, 1);
        // No task runs for two leases, as if the process had been stopped.
        tokio::time::advance(secs(20)).await;
        request.await.expect("queued again");
    }
}

#[tokio::test(start_paused = true)]
async fn a_disabled_layer_acquires_nothing() {
    let (permits, shop) = (permits(), Shop::default());
    let service = mutex(&permits).enabled(false).layer(shop.service(secs(1)));
    let both = [(); 2].map(|()| tokio::spawn(service.clone().oneshot(buy("7"))));
    settle().await;
    assert_eq!(shop.product("7").inside(), 2);
    for one in both {
        one.await.unwrap().unwrap();
    }
    assert!(shop.served().iter().all(|served| served.token.is_none()));
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_rejects_new_requests() {
    let (permits, shop) = (permits(), Shop::default());
    let layer = mutex(&permits);
    permits.shutdown(secs(1)).await.unwrap();
    let error = layer
        .layer(shop.service(secs(1)))
        .oneshot(buy("7"))
        .await
        .unwrap_err();
    assert_eq!(kind(&error), ErrorKind::ShuttingDown);
}
