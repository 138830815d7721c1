//! Panics in a caller's waker, destructor or extractor: only that caller is affected, the driver continues.

use crate::backends::{ALL, Store, WITH_LIMITS, on_each};
use crate::{Flavor, LOAD, PAUSE, PROMPT, granted, millis, within};
use std::convert::Infallible;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::task::{Context, Wake, Waker};
use std::thread;
use tower::{Layer, ServiceExt, service_fn};
use tower_permit::layers::keyed::key_fn;
use tower_permit::{
    Coordinator, Error, ErrorKind, Key, KeyedConcurrencyLimitLayer, KeyedMutexLayer,
};

/// Panics when it is woken.
struct PanicsAtWake(Arc<AtomicBool>);

/// Panics when its last clone is dropped. The waiting future has that clone, so it is dropped at the wake-up.
struct PanicsAtDrop(Arc<AtomicBool>);

/// A request with a destructor that panics, unless that would abort the process.
struct Request(&'static str);

/// A key with a destructor that panics.
struct PanickingKey;

impl Wake for PanicsAtWake {
    fn wake(self: Arc<Self>) {
        self.0.store(true, SeqCst);
        panic!("a waker that panics, on purpose");
    }
}

impl Wake for PanicsAtDrop {
    fn wake(self: Arc<Self>) {}
}

impl Drop for PanicsAtDrop {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
        if !thread::panicking() {
            panic!("the destructor of a waker that panics, on purpose");
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if !thread::panicking() {
            panic!("the destructor of a request that panics, on purpose");
        }
    }
}

impl Drop for PanickingKey {
    fn drop(&mut self) {
        if !thread::panicking() {
            panic!("the destructor of a key that panics, on purpose");
        }
    }
}

impl From<PanickingKey> for Key {
    fn from(_: PanickingKey) -> Self {
        "a key".into()
    }
}

/// Asserts that the coordinator still grants the same name and others.
async fn still_serves(coordinator: &Coordinator, same: &str) {
    for name in ["another", "yet another", same] {
        let mutex = coordinator.mutex(name).expect("a mutex");
        let what = format!("a lock of {name:?} after the panic");
        for _ in 0..2 {
            let guard = granted(PROMPT, &what, mutex.lock()).await;
            let unlock = within(PROMPT, "its unlock", guard.unlock()).await;
            assert!(unlock.expect("an answer"), "the mutex was held until now");
        }
    }
}

/// A waiter with this waker is granted a permit that another coordinator, or the same one, releases.
fn wake_up(store: &Store, strict: bool, same: bool, waker: fn(Arc<AtomicBool>) -> Waker) {
    for flavor in [Flavor::CurrentThread, Flavor::MultiThread] {
        flavor.runtime().block_on(async {
            let build = || store.builder().strict_fifo(strict).build();
            let waits = build().expect("valid settings");
            let holds = match same {
                true => waits.clone(),
                false => build().expect("valid settings"),
            };
            let name = format!("woken-{flavor:?}-{strict}-{same}");
            let mutex = holds.mutex(&name).expect("a mutex");
            let guard = granted(PROMPT, "the first lock", mutex.lock()).await;
            let woken = Arc::new(AtomicBool::new(false));
            let mutex = waits.mutex(&name).expect("a mutex");
            let mut waiting = Box::pin(async move { mutex.lock().await });
            {
                let waker = waker(woken.clone());
                let mut cx = Context::from_waker(&waker);
                assert!(waiting.as_mut().poll(&mut cx).is_pending());
                // The waiting future now has the last clone.
                let _ = catch_unwind(AssertUnwindSafe(move || drop(waker)));
            }
            // The acquire call may be in flight. The releasing thread may hand the permit on.
            tokio::time::sleep(millis(50)).await;
            let release = tokio::spawn(async move { drop(guard) });
            let release = release.await;
            assert!(
                release.is_ok(),
                "the panic reached the drop of another permit"
            );
            let wakes = async {
                while !woken.load(SeqCst) {
                    tokio::time::sleep(PAUSE).await;
                }
            };
            // The destructor may also run when the future is polled or dropped.
            let _ = tokio::time::timeout(millis(500), wakes).await;
            let what = format!("{flavor:?}, strict {strict}, same coordinator {same}: the lock");
            let result = within(PROMPT, &what, tokio::spawn(waiting)).await;
            if let Ok(result) = result {
                assert!(result.expect("a grant").is_valid());
            }
            still_serves(&waits, &name).await;
            still_serves(&holds, &name).await;
        });
    }
}

fn wake_up_in_all_ways(prefix: &str, waker: fn(Arc<AtomicBool>) -> Waker) {
    let _shared = LOAD.blocking_read();
    on_each(&ALL, prefix, |store| {
        for strict in [false, true] {
            for same in [false, true] {
                wake_up(store, strict, same, waker);
            }
        }
    });
}

#[test]
fn a_waker_that_panics_does_not_stop_the_driver() {
    wake_up_in_all_ways("waker", |woken| Waker::from(Arc::new(PanicsAtWake(woken))));
}

#[test]
fn a_waker_destructor_that_panics_does_not_stop_the_driver() {
    wake_up_in_all_ways("waker-drop", |woken| {
        Waker::from(Arc::new(PanicsAtDrop(woken)))
    });
}

/// The request is dropped while it waits for its key, and by the service while it holds the key.
#[test]
fn a_request_destructor_that_panics_does_not_stop_the_driver() {
    let _shared = LOAD.blocking_read();
    on_each(&WITH_LIMITS, "request", |store| {
        for flavor in [Flavor::CurrentThread, Flavor::MultiThread] {
            flavor.runtime().block_on(async {
                let coordinator = store.coordinator();
                let find = || key_fn(|request: &Request| request.0);
                let name = format!("layer-{flavor:?}");
                let mutex = KeyedMutexLayer::new(&coordinator, &name, find()).expect("a layer");
                let limit = KeyedConcurrencyLimitLayer::new(&coordinator, &name, 1, find());
                let limit = limit.expect("a layer").release_at_response();
                let inner = service_fn(async |request: Request| {
                    tokio::time::sleep(millis(300)).await;
                    drop(request);
                    Ok::<_, Infallible>(())
                });
                // The service drops the request, which panics, while the next request waits and is aborted.
                let (first, second) = (mutex.layer(inner), limit.layer(inner));
                let holds = [
                    tokio::spawn(async { first.oneshot(Request("key")).await.map_err(drop) }),
                    tokio::spawn(async { second.oneshot(Request("key")).await.map_err(drop) }),
                ];
                tokio::time::sleep(millis(50)).await;
                let (first, second) = (mutex.layer(inner), limit.layer(inner));
                let waits = [
                    tokio::spawn(async { first.oneshot(Request("key")).await.map_err(drop) }),
                    tokio::spawn(async { second.oneshot(Request("key")).await.map_err(drop) }),
                ];
                tokio::time::sleep(millis(50)).await;
                for task in waits {
                    task.abort();
                    assert!(task.await.is_err(), "aborted");
                }
                for task in holds {
                    assert!(task.await.is_err_and(|error| error.is_panic()));
                }
                let quiet = service_fn(async |request: Request| {
                    std::mem::forget(request);
                    Ok::<_, Infallible>(())
                });
                for key in ["key", "another"] {
                    let what = format!("a request for {key:?} after the panic");
                    let done = within(PROMPT, &what, mutex.layer(quiet).oneshot(Request(key)));
                    done.await.expect("granted");
                    let done = within(PROMPT, &what, limit.layer(quiet).oneshot(Request(key)));
                    done.await.expect("granted");
                }
                still_serves(&coordinator, "mutex").await;
            });
        }
    });
}

#[test]
fn an_extractor_or_key_destructor_that_panics_does_not_stop_the_driver() {
    let _shared = LOAD.blocking_read();
    on_each(&ALL, "extractor", |store| {
        Flavor::CurrentThread.runtime().block_on(async {
            let coordinator = store.coordinator();
            let inner = service_fn(async |_: &'static str| Ok::<_, Infallible>(()));
            let panics = key_fn(|request: &&'static str| match *request {
                "panic" => panic!("an extractor that panics, on purpose"),
                fine => fine,
            });
            let layer = KeyedMutexLayer::new(&coordinator, "one", panics).expect("a layer");
            let error = layer.layer(inner).oneshot("panic").await.unwrap_err();
            let error = error
                .downcast_ref::<Error>()
                .expect("an error of this crate");
            assert_eq!(error.kind(), ErrorKind::ExtractorPanicked);
            let fine = within(PROMPT, "a request", layer.layer(inner).oneshot("fine")).await;
            fine.expect("granted");

            let panics = key_fn(|_: &&'static str| PanickingKey);
            let layer = KeyedMutexLayer::new(&coordinator, "two", panics).expect("a layer");
            let error = layer.layer(inner).oneshot("any").await.unwrap_err();
            let error = error
                .downcast_ref::<Error>()
                .expect("an error of this crate");
            assert_eq!(error.kind(), ErrorKind::ExtractorPanicked);
            still_serves(&coordinator, "mutex").await;
        });
    });
}

/// A task that holds a permit and a task that waits both panic.
#[test]
fn tasks_that_panic_while_they_hold_or_wait_do_not_stop_the_driver() {
    let _shared = LOAD.blocking_read();
    on_each(&ALL, "tasks", |store| {
        Flavor::MultiThread.runtime().block_on(async {
            let coordinator = store.coordinator();
            let holds = coordinator.mutex("mutex").expect("a mutex");
            let guard = granted(PROMPT, "the first lock", holds.lock()).await;
            let waits = coordinator.mutex("mutex").expect("a mutex");
            let waits = tokio::spawn(async move {
                let gone = tokio::time::timeout(millis(50), waits.lock()).await;
                panic!("on purpose: {}", gone.is_err());
            });
            assert!(waits.await.is_err_and(|error| error.is_panic()));
            let holds = tokio::spawn(async move {
                let _guard = guard;
                panic!("on purpose");
            });
            assert!(holds.await.is_err_and(|error| error.is_panic()));
            still_serves(&coordinator, "mutex").await;
        });
    });
}
