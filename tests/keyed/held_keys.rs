//! `HeldKeys`, and re-entry by an inner layer.

use crate::shop::*;
use crate::support::{Boom, Strict, kind, millis, secs, settle};
use http::{Request, Response};
use std::collections::HashSet;
use std::future::{Ready, ready};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tower::{Layer, ServiceBuilder, ServiceExt};
use tower_permit::layers::keyed::{OnMissingKey, key_fn, path, path_segment};
use tower_permit::{ErrorKind, HeldKeys, Key, KeyedConcurrencyLimitLayer, KeyedMutexLayer};

/// Records the last request of a service.
#[derive(Clone, Debug, Default)]
struct Recorder {
    held: Arc<Mutex<HeldKeys>>,
    /// The number of different permits.
    permits: Arc<Mutex<usize>>,
}

type Answer = Result<Response<()>, Boom>;

impl Recorder {
    fn held(&self) -> HeldKeys {
        self.held.lock().unwrap().clone()
    }

    fn permits(&self) -> usize {
        *self.permits.lock().unwrap()
    }

    fn service(&self) -> Strict<impl Fn(Request<()>) -> Ready<Answer> + Clone> {
        let recorder = self.clone();
        Strict::new(move |request: Request<()>| {
            let held = request.extensions().get::<HeldKeys>().cloned();
            let held = held.unwrap_or_default();
            let tickets = held.iter().map(|held| held.upgrade().unwrap().ticket());
            *recorder.permits.lock().unwrap() = tickets.collect::<HashSet<_>>().len();
            *recorder.held.lock().unwrap() = held;
            ready(Ok(Response::new(())))
        })
    }
}

#[tokio::test(start_paused = true)]
async fn each_layer_adds_its_keys() {
    let permits = permits();
    let recorder = Recorder::default();
    let products = |_: &Request<()>| Key::all(["7", "8"]);
    let service = ServiceBuilder::new()
        .layer(
            KeyedConcurrencyLimitLayer::new(&permits, "tenant", 3, |_: &Request<()>| "acme")
                .unwrap()
                .release_at_response(),
        )
        .layer(KeyedMutexLayer::new(&permits, "buy", products).unwrap())
        .service(recorder.service());
    service.clone().oneshot(buy("7")).await.unwrap();
    let held = recorder.held();
    let names: Vec<_> = held
        .iter()
        .map(|held| (held.layer(), held.name()))
        .collect();
    assert_eq!(
        names,
        [
            ("tenant", "tenant+acme"),
            ("buy", "buy+7"),
            ("buy", "buy+8")
        ]
    );
    assert_eq!(held.token("tenant"), None, "a limit has no token");
    let token = held.token("buy").unwrap();
    assert_eq!(held.get("buy", 7).unwrap().token(), Some(token));
    assert!(held.get("buy", 8).unwrap().token().is_some());
    assert!(held.get("buy", 9).is_none() && held.get("sell", 7).is_none());
    // `HeldKeys` does not hold the permits.
    assert!(held.iter().all(|held| held.upgrade().is_none()));

    service.oneshot(buy("7")).await.unwrap();
    assert!(recorder.held().token("buy").unwrap() > token);
}

#[tokio::test(start_paused = true)]
async fn background_work_holds_the_key() {
    let permits = permits();
    let kept = Arc::new(Mutex::new(None));
    let keep = kept.clone();
    let service = mutex(&permits).layer(Strict::new(move |request: Request<()>| {
        let held = request.extensions().get::<HeldKeys>().unwrap();
        *keep.lock().unwrap() = held.get("buy", "7").unwrap().upgrade();
        ready(Ok(Response::new(())))
    }));
    service.oneshot(buy("7")).await.unwrap();
    assert!(!all_free(&permits, &["7"]).await);
    let permit = kept.lock().unwrap().take().unwrap();
    assert!(permit.release().await.unwrap());
    assert!(all_free(&permits, &["7"]).await);
}

#[tokio::test(start_paused = true)]
async fn an_inner_layer_with_the_same_name_reenters() {
    let (permits, shop) = (permits(), Shop::default());
    let service = ServiceBuilder::new()
        .layer(mutex(&permits))
        .layer(mutex(&permits))
        .layer(mutex(&permits).reject_when_full())
        .service(shop.service(millis(10)));
    let tasks = [(); 20].map(|()| tokio::spawn(service.clone().oneshot(buy("7"))));
    for task in tasks {
        // Two requests of one process are two holders.
        task.await.unwrap().unwrap();
    }
    assert_eq!(shop.product("7").peak(), 1);
    let tokens = shop.tokens();
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    assert!(all_free(&permits, &["7"]).await);
}

#[tokio::test(start_paused = true)]
async fn a_reentering_request_does_not_wait_and_is_not_counted() {
    let (permits, shop) = (permits(), Shop::default());
    let layer = mutex(&permits).max_waiting(1).max_waiting_total(1);
    let inner = layer.layer(shop.service(millis(10)));
    let between = Strict::new(move |request: Request<()>| {
        let answer = inner.clone().oneshot(request);
        async move { answer.await.map_err(|_| Boom("not admitted again")) }
    });
    let control = between.control.clone();
    control.busy(true);
    let service = layer.layer(between);
    let first = tokio::spawn(service.clone().oneshot(buy("7")));
    settle().await;
    let second = tokio::spawn(service.oneshot(buy("7")));
    settle().await;
    // The second request is the only one that may wait.
    control.busy(false);
    first.await.unwrap().unwrap();
    second.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_inner_limit_counts_its_request_once() {
    let (permits, shop) = (permits(), Shop::default());
    let layer = KeyedConcurrencyLimitLayer::new(&permits, "tenant", 2, path_segment(1)).unwrap();
    let layer = layer.release_at_response();
    let service = layer.layer(layer.layer(shop.service(millis(10))));
    let tasks = [(); 20].map(|()| tokio::spawn(service.clone().oneshot(buy("7"))));
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    assert_eq!(shop.product("7").peak(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_inner_layer_acquires_only_missing_names() {
    let permits = permits();
    let recorder = Recorder::default();
    let service = ServiceBuilder::new()
        .layer(KeyedMutexLayer::new(&permits, "buy", |_: &Request<()>| "b").unwrap())
        .layer(
            KeyedMutexLayer::new(&permits, "buy", |_: &Request<()>| Key::all(["a", "b", "c"]))
                .unwrap(),
        )
        .service(recorder.service());
    service.oneshot(buy("7")).await.unwrap();
    let held = recorder.held();
    let names: Vec<_> = held.iter().map(|held| held.name()).collect();
    assert_eq!(names, ["buy+b", "buy+a", "buy+b", "buy+c"]);
    assert_eq!(recorder.permits(), 3);
}

#[tokio::test(start_paused = true)]
async fn another_key_another_name_or_another_backend_is_not_reentered() {
    let (here, there) = (permits(), permits());
    let recorder = Recorder::default();
    let service = ServiceBuilder::new()
        .layer(mutex(&here))
        .layer(mutex(&there))
        .layer(KeyedMutexLayer::new(&here, "buy", path()).unwrap())
        .layer(KeyedMutexLayer::new(&here, "sell", path_segment(1)).unwrap())
        .service(recorder.service());
    service.clone().oneshot(buy("7")).await.unwrap();
    let held = recorder.held();
    assert_eq!((held.iter().count(), recorder.permits()), (4, 4));

    // Another process holds it at the other backend: the hold at this backend does not count.
    let shop = Shop::default();
    let holder = tokio::spawn(
        mutex(&there)
            .layer(shop.service(secs(60)))
            .oneshot(buy("7")),
    );
    settle().await;
    let waits = tokio::time::timeout(secs(5), service.oneshot(buy("7")));
    assert!(waits.await.is_err());
    holder.abort();
}

#[tokio::test(start_paused = true)]
async fn a_released_key_is_not_reentered() {
    let (permits, shop) = (permits(), Shop::default());
    let recorder = Recorder::default();
    mutex(&permits)
        .layer(recorder.service())
        .oneshot(buy("7"))
        .await
        .unwrap();
    let mut request = buy("7");
    request.extensions_mut().insert(recorder.held());

    let service = mutex(&permits).layer(shop.service(secs(1)));
    let holder = tokio::spawn(service.clone().oneshot(buy("7")));
    settle().await;
    let again = tokio::spawn(service.oneshot(request));
    settle().await;
    assert_eq!(shop.product("7").inside(), 1);
    holder.await.unwrap().unwrap();
    again.await.unwrap().unwrap();
    assert_eq!(shop.product("7").peak(), 1);
    let tokens = shop.tokens();
    assert!(
        tokens[1] > tokens[0],
        "a new token, not the old one: {tokens:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_handler_finds_held_keys_even_if_empty() {
    let permits = permits();
    let found = Strict::new(|request: Request<()>| {
        let held = request.extensions().get::<HeldKeys>();
        assert_eq!(held.expect("there").iter().count(), 0);
        ready(Ok(Response::new(())))
    });
    let layer = mutex(&permits);
    let disabled = layer.clone().enabled(false).layer(found.clone());
    disabled.oneshot(buy("7")).await.unwrap();
    let service = layer.on_missing_key(OnMissingKey::Pass).layer(found);
    service.oneshot(crate::shop::request("/")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_request_without_extensions_waits_for_itself_and_times_out() {
    let permits = permits();
    let layer = KeyedMutexLayer::new(&permits, "buy", key_fn(|id: &u32| *id)).unwrap();
    let layer = layer.wait_timeout(secs(2));
    let service = layer.layer(layer.layer(Strict::new(|_: u32| async { Ok(()) })));
    let error = service.oneshot(7).await.unwrap_err();
    assert_eq!(kind(&error), ErrorKind::WaitTimeout);
    tokio::time::sleep(Duration::from_millis(1)).await;
    let alone = layer
        .reject_when_full()
        .layer(Strict::new(|_: u32| async { Ok(()) }));
    alone.oneshot(7).await.expect("released");
}
