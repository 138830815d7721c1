//! `Coordinator::flush` resolves when every release so far is acknowledged and no released permit lingers.

use crate::backends::{ALL, Kind, Store, WITH_LIMITS, in_parallel, on_each, redis_url};
use crate::support::redis::RedisServer;
use crate::{
    FLAVORS, Flavor, LOAD, PROMPT, granted, in_use, lock_and_end, locked, millis, poll_and_drop,
    within,
};
use bytes::Bytes;
use futures_util::future::join_all;
use http::{Request, Response};
use http_body_util::Full;
use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;
use tower::{Layer, ServiceExt, service_fn};
use tower_permit::layers::keyed::path;
use tower_permit::{DistributedConcurrencyLimitLayer, KeyedMutexLayer};

const LIMIT: u32 = 4;

/// All permits were released before, and one of them would linger.
#[test]
fn no_semaphore_permit_is_in_use_after_a_flush() {
    let _shared = LOAD.blocking_read();
    on_each(&WITH_LIMITS, "flush-flushed", |store| {
        for flavor in FLAVORS {
            flavor.runtime().block_on(async {
                let (coordinator, other) = (store.coordinator(), store.coordinator());
                for turn in 1..=5 {
                    let mut names = Vec::new();
                    for name in 0..20 {
                        let name = format!("{flavor:?}-{name}");
                        let semaphore = coordinator.semaphore(&name, LIMIT).expect("a semaphore");
                        let permit = granted(PROMPT, "a permit", semaphore.acquire()).await;
                        if turn % 2 == 0 {
                            drop(semaphore);
                        }
                        drop(permit);
                        names.push(name);
                    }
                    within(PROMPT, "a flush", coordinator.flush()).await;
                    for name in &names {
                        let left = in_use(&other, name).await;
                        assert_eq!(left, 0, "{flavor:?}, turn {turn}, {name} after a flush");
                    }
                }
            });
        }
    });
}

#[test]
fn no_mutex_is_locked_after_a_flush() {
    let _shared = LOAD.blocking_read();
    on_each(&ALL, "flush-flushed-mutexes", |store| {
        Flavor::MultiThread.runtime().block_on(async {
            let (coordinator, other) = (store.coordinator(), store.coordinator());
            for turn in 1..=5 {
                for name in 0..10 {
                    let mutex = coordinator.mutex(format!("m{name}")).expect("a mutex");
                    drop(granted(PROMPT, "a lock", mutex.lock()).await);
                }
                drop(granted(PROMPT, "locks", coordinator.lock_all(["a", "b", "c"])).await);
                within(PROMPT, "a flush", coordinator.flush()).await;
                for name in 0..10 {
                    let left = locked(&other, &format!("m{name}")).await;
                    assert_eq!(left, 0, "turn {turn}, m{name} after a flush");
                }
                for name in ["a", "b", "c"] {
                    assert_eq!(locked(&other, name).await, 0, "{name} after a flush");
                }
            }
        });
    });
}

/// The response body of the request was read to its end, or dropped.
#[test]
fn no_layer_holds_a_permit_after_a_flush() {
    let _shared = LOAD.blocking_read();
    on_each(&WITH_LIMITS, "flush-flushed-layers", |store| {
        Flavor::MultiThread.runtime().block_on(async {
            let (coordinator, other) = (store.coordinator(), store.coordinator());
            let inner = service_fn(async |_: Request<()>| {
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"body"))))
            });
            let semaphore = coordinator.semaphore("limit", LIMIT).expect("a semaphore");
            let limit = DistributedConcurrencyLimitLayer::new(semaphore);
            let keyed = KeyedMutexLayer::new(&coordinator, "keyed", path()).expect("a layer");
            let elsewhere = KeyedMutexLayer::new(&other, "keyed", path()).expect("a layer");
            for turn in 1..=5 {
                let request = || Request::get("/key").body(()).expect("a request");
                let response = within(PROMPT, "a request", limit.layer(inner).oneshot(request()));
                let first = response.await.expect("a response");
                let response = within(PROMPT, "a request", keyed.layer(inner).oneshot(request()));
                let second = response.await.expect("a response");
                drop((first, second));
                within(PROMPT, "a flush", coordinator.flush()).await;
                assert_eq!(
                    in_use(&other, "limit").await,
                    0,
                    "turn {turn}, after a flush"
                );
                let inspection = elsewhere.inspect("key").await.expect("an answer");
                assert_eq!(inspection.in_use, 0, "turn {turn}, after a flush");
            }
        });
    });
}

#[test]
fn a_flush_without_releases_resolves() {
    let _shared = LOAD.blocking_read();
    on_each(&ALL, "flush-idle", |store| {
        for flavor in FLAVORS {
            let coordinator = store.coordinator();
            flavor.runtime().block_on(async {
                within(PROMPT, "a flush before the first use", coordinator.flush()).await;
                let mutex = coordinator.mutex("m").expect("a mutex");
                let guard = granted(PROMPT, "a lock", mutex.lock()).await;
                guard.unlock().await.expect("an answer");
                for _ in 0..3 {
                    within(PROMPT, "a flush of nothing", coordinator.flush()).await;
                }
                let several = join_all((0..10).map(|_| coordinator.flush()));
                within(PROMPT, "ten flushes at the same time", several).await;
            });
            // On a runtime other than the one that connected.
            let flush = coordinator.flush();
            let next = flavor.runtime();
            next.block_on(within(PROMPT, "a flush on the next runtime", flush));
        }
    });
}

/// Held permits and queued tickets are not releases.
#[test]
fn a_flush_waits_for_no_held_permit_and_no_waiter() {
    let _shared = LOAD.blocking_read();
    on_each(&WITH_LIMITS, "flush-held", |store| {
        Flavor::MultiThread.runtime().block_on(async {
            let (coordinator, other) = (store.coordinator(), store.coordinator());
            let semaphore = coordinator.semaphore("s", 2).expect("a semaphore");
            let held = granted(PROMPT, "a permit", semaphore.acquire()).await;
            let second = granted(PROMPT, "a permit", semaphore.acquire()).await;
            drop(second);
            within(PROMPT, "a flush beside a held permit", coordinator.flush()).await;
            assert_eq!(in_use(&other, "s").await, 1);

            let second = granted(PROMPT, "a permit", semaphore.acquire()).await;
            let waiter = tokio::spawn(async move { semaphore.acquire().await });
            let queued = async {
                while other.inspect("s").await.expect("an answer").queued == 0 {
                    tokio::time::sleep(millis(5)).await;
                }
            };
            within(PROMPT, "a ticket in the queue", queued).await;
            within(PROMPT, "a flush beside a waiter", coordinator.flush()).await;
            assert!(held.is_valid() && second.is_valid() && !waiter.is_finished());
            drop(held);
            let permit = within(PROMPT, "the waiter", waiter)
                .await
                .expect("no panic");
            drop((permit.expect("a permit"), second));
            within(PROMPT, "the last flush", coordinator.flush()).await;
            assert_eq!(in_use(&other, "s").await, 0);
        });
    });
}

#[test]
fn a_flush_may_be_dropped_at_any_time() {
    let _shared = LOAD.blocking_read();
    on_each(&ALL, "flush-dropped", |store| {
        for flavor in FLAVORS {
            flavor.runtime().block_on(async {
                let (coordinator, other) = (store.coordinator(), store.coordinator());
                let mutex = coordinator.mutex("m").expect("a mutex");
                for polls in 0..8 {
                    drop(granted(PROMPT, "a lock", mutex.lock()).await);
                    poll_and_drop(coordinator.flush(), polls).await;
                    drop(granted(PROMPT, "a lock after a dropped flush", mutex.lock()).await);
                    poll_and_drop(coordinator.flush(), polls).await;
                    within(PROMPT, "a flush after a dropped one", coordinator.flush()).await;
                    assert_eq!(locked(&other, "m").await, 0, "{polls} polls");
                }
            });
        }
    });
}

/// The ticket of a cancelled acquisition is released like a permit.
#[test]
fn a_flush_covers_cancelled_acquisitions() {
    let _shared = LOAD.blocking_read();
    on_each(&ALL, "flush-cancelled", |store| {
        for flavor in FLAVORS {
            flavor.runtime().block_on(async {
                let (coordinator, other) = (store.coordinator(), store.coordinator());
                let mutex = coordinator.mutex("m").expect("a mutex");
                for polls in 1..8 {
                    poll_and_drop(mutex.lock(), polls).await;
                    within(PROMPT, "a flush", coordinator.flush()).await;
                    assert_eq!(locked(&other, "m").await, 0, "{polls} polls");
                }
            });
        }
    });
}

/// A permit is dropped after its runtime has ended. A flush on another runtime sends the release.
#[test]
fn a_flush_sends_releases_of_an_ended_runtime() {
    let _shared = LOAD.blocking_read();
    on_each(&ALL, "flush-left", |store| {
        for flavor in FLAVORS {
            let (coordinator, other) = (store.coordinator(), store.coordinator());
            for ends_first in [false, true] {
                let name = format!("m-{ends_first}");
                lock_and_end(&coordinator, &name, flavor, ends_first);
                flavor.runtime().block_on(async {
                    let what = format!("{flavor:?}: a flush on the next runtime");
                    within(PROMPT, &what, coordinator.flush()).await;
                    assert_eq!(locked(&other, &name).await, 0, "{flavor:?}, {ends_first}");
                });
            }
        }
    });
}

/// The outage is longer than a lease: the flush does not give up, and the release is not obsolete.
#[test]
fn a_flush_waits_for_the_end_of_an_outage() {
    let _shared = LOAD.blocking_read();
    let lengths = [millis(1500), Duration::from_secs(4)];
    in_parallel(
        &lengths,
        |length| format!("{length:?}"),
        |length| {
            Flavor::MultiThread.runtime().block_on(async {
                let server = RedisServer::start();
                let store = Store::at(Kind::Redis, &redis_url(server.port(), "outage"));
                let builder = store.builder().lease(Duration::from_secs(3));
                let coordinator = builder
                    .outage_after(millis(200))
                    .build()
                    .expect("valid settings");
                let other = store.coordinator();
                let semaphore = coordinator.semaphore("s", LIMIT).expect("a semaphore");
                let permit = granted(PROMPT, "a permit", semaphore.acquire()).await;
                server.pause();
                drop(permit);
                let mut flush = pin!(coordinator.flush());
                let early = tokio::time::timeout(*length, flush.as_mut()).await;
                assert!(early.is_err(), "the release is not acknowledged");
                server.resume();
                within(PROMPT, "a flush after the outage", flush).await;
                assert_eq!(in_use(&other, "s").await, 0);
            });
        },
    );
}
