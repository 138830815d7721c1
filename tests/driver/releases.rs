//! No release waits for a lease to expire, whatever is dropped, in whichever order and on whichever thread.
//!
//! Each case uses one coordinator from a new runtime in each turn, as tests of a program do with one in a `static`.

use crate::backends::{ALL, Kind, in_parallel, on_each};
use crate::{
    DEFAULT_LEASE, FLAVORS, Flavor, LOAD, PAUSE, PROMPT, granted, locked, millis, poll_and_drop,
    try_lock_until_granted, within,
};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use std::any::Any;
use std::convert::Infallible;
use std::thread;
use tokio::runtime::Runtime;
use tower::{Layer, ServiceExt, service_fn};
use tower_permit::{
    BoxError, Coordinator, DistributedConcurrencyLimitLayer, KeyedConcurrencyLimitLayer,
    KeyedMutexLayer,
};

/// The number of turns of each case.
const TURNS: usize = 3;

/// How a permit is acquired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Lock,
    TryLock,
    LockAll,
    Acquire,
    TryAcquire,
    KeyedMutex,
    KeyedMutexUntilBodyEnd,
    KeyedLimit,
    KeyedLimitUntilBodyEnd,
    Limit,
}

const WAYS: [Way; 10] = [
    Way::Lock,
    Way::TryLock,
    Way::LockAll,
    Way::Acquire,
    Way::TryAcquire,
    Way::KeyedMutex,
    Way::KeyedMutexUntilBodyEnd,
    Way::KeyedLimit,
    Way::KeyedLimitUntilBodyEnd,
    Way::Limit,
];

type Value = Box<dyn Any + Send>;

/// A permit, and the handle that it was acquired with: a mutex, a semaphore, or a layer with its service. A response may hold a
/// permit in its body, or none any more.
struct Held {
    handle: Value,
    permit: Value,
}

// === impl Way ===

impl Way {
    fn needs_limits(self) -> bool {
        matches!(
            self,
            Self::Acquire
                | Self::TryAcquire
                | Self::KeyedLimit
                | Self::KeyedLimitUntilBodyEnd
                | Self::Limit
        )
    }

    /// Every way but [`TryLock`](Self::TryLock) and [`TryAcquire`](Self::TryAcquire) waits for the permit.
    async fn acquire(self, coordinator: &Coordinator, name: &str) -> Result<Held, BoxError> {
        let key = |request: &Request<()>| request.uri().path().to_owned();
        let request = Request::new(());
        let inner = service_fn(async |_: Request<()>| {
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"body"))))
        });
        Ok(match self {
            Self::Lock => {
                let mutex = coordinator.mutex(name)?;
                let guard = mutex.lock().await?;
                Held::new(mutex, guard)
            }
            Self::TryLock => {
                let mutex = coordinator.mutex(name)?;
                let guard = try_lock_until_granted(&mutex).await?;
                Held::new(mutex, guard)
            }
            Self::LockAll => {
                let names = [name, &format!("{name}-too"), &format!("{name}-as-well")];
                let guards = coordinator.lock_all(names).await?;
                Held::new((), guards)
            }
            Self::Acquire => {
                let semaphore = coordinator.semaphore(name, 1)?;
                let permit = semaphore.acquire().await?;
                Held::new(semaphore, permit)
            }
            Self::TryAcquire => {
                let semaphore = coordinator.semaphore(name, 1)?;
                loop {
                    if let Ok(permit) = semaphore.try_acquire().await {
                        break Held::new(semaphore, permit);
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            }
            Self::KeyedMutex => {
                let layer = KeyedMutexLayer::new(coordinator, name, key)?;
                let service = layer.layer(inner);
                let response = service.clone().oneshot(request).await?;
                Held::new((layer, service), response)
            }
            Self::KeyedMutexUntilBodyEnd => {
                let layer = KeyedMutexLayer::new(coordinator, name, key)?.hold_until_body_end();
                let service = layer.layer(inner);
                let response = service.clone().oneshot(request).await?;
                Held::new((layer, service), response)
            }
            Self::KeyedLimit => {
                let layer = KeyedConcurrencyLimitLayer::new(coordinator, name, 1, key)?;
                let layer = layer.release_at_response();
                let service = layer.layer(inner);
                let response = service.clone().oneshot(request).await?;
                Held::new((layer, service), response)
            }
            Self::KeyedLimitUntilBodyEnd => {
                let layer = KeyedConcurrencyLimitLayer::new(coordinator, name, 1, key)?;
                let service = layer.layer(inner);
                let response = service.clone().oneshot(request).await?;
                Held::new((layer, service), response)
            }
            Self::Limit => {
                let semaphore = coordinator.semaphore(name, 1)?;
                let layer = DistributedConcurrencyLimitLayer::new(semaphore);
                let service = layer.layer(inner);
                let response = service.clone().oneshot(request).await?;
                Held::new((layer, service), response)
            }
        })
    }
}

// === impl Held ===

impl Held {
    fn new(handle: impl Any + Send, permit: impl Any + Send) -> Self {
        Self {
            handle: Box::new(handle),
            permit: Box::new(permit),
        }
    }

    fn drop_permit_first(self) {
        drop(self.permit);
        drop(self.handle);
    }

    fn drop_handle_first(self) {
        drop(self.handle);
        drop(self.permit);
    }
}

/// Acquires and lets `end` drop what was acquired, once per runtime, over every backend and in every way. Panics with all
/// cases in which a turn was not granted in time.
fn take_turns(prefix: &str, end: impl Fn(Runtime, Held) + Sync) {
    let _shared = LOAD.blocking_read();
    on_each(&ALL, prefix, |store| {
        let fits = |way: &Way| store.kind.has_limits() || !way.needs_limits();
        let ways: Vec<Way> = WAYS.into_iter().filter(fits).collect();
        in_parallel(
            &ways,
            |way| format!("{way:?}"),
            |way| {
                let coordinator = store.coordinator();
                let mut failed = Vec::new();
                for flavor in FLAVORS {
                    let name = format!("{way:?}-{flavor:?}");
                    for turn in 1..=TURNS {
                        let runtime = flavor.runtime();
                        let held = runtime.block_on(async {
                            tokio::time::timeout(PROMPT, way.acquire(&coordinator, &name)).await
                        });
                        match held {
                            Ok(Ok(held)) => end(runtime, held),
                            Ok(Err(error)) => {
                                failed.push(format!("{flavor:?}, turn {turn}: refused: {error}"));
                                break;
                            }
                            Err(_) => {
                                failed.push(format!(
                                    "{flavor:?}, turn {turn}: no grant within {PROMPT:?}"
                                ));
                                break;
                            }
                        }
                    }
                }
                assert!(failed.is_empty(), "{}", failed.join("; "));
            },
        );
    });
}

#[test]
fn a_permit_dropped_before_its_handle_is_released() {
    take_turns("permit-first", |runtime, held| {
        runtime.block_on(async { held.drop_permit_first() });
    });
}

#[test]
fn a_permit_dropped_after_its_handle_is_released() {
    take_turns("handle-first", |runtime, held| {
        runtime.block_on(async { held.drop_handle_first() });
    });
}

#[test]
fn a_permit_dropped_after_its_runtime_is_released() {
    take_turns("runtime-first", |runtime, held| {
        drop(runtime);
        held.drop_handle_first();
    });
}

#[test]
fn a_permit_dropped_outside_its_runtime_is_released() {
    take_turns("outside", |runtime, held| {
        held.drop_permit_first();
        drop(runtime);
    });
}

#[test]
fn a_permit_dropped_while_its_runtime_ends_is_released() {
    take_turns("other-thread", |runtime, held| {
        thread::scope(|scope| {
            scope.spawn(|| held.drop_handle_first());
            scope.spawn(|| drop(runtime));
        });
    });
}

/// The call may be in flight, or already answered.
#[test]
fn an_acquisition_cancelled_while_its_runtime_ends_leaves_no_permit() {
    let _shared = LOAD.blocking_read();
    on_each(&ALL, "cancelled", |store| {
        let fits = |way: &Way| store.kind.has_limits() || !way.needs_limits();
        let ways = [Way::Lock, Way::LockAll, Way::Acquire, Way::KeyedMutex];
        let ways: Vec<Way> = ways.into_iter().filter(fits).collect();
        in_parallel(
            &ways,
            |way| format!("{way:?}"),
            |way| {
                let coordinator = store.coordinator();
                let mut failed = Vec::new();
                for flavor in FLAVORS {
                    for polls in [1, 2, 3, 5, 20] {
                        let name = format!("{way:?}-{flavor:?}-{polls}");
                        let acquire = || way.acquire(&coordinator, &name);
                        flavor.runtime().block_on(poll_and_drop(acquire(), polls));
                        let next = flavor
                            .runtime()
                            .block_on(async { tokio::time::timeout(PROMPT, acquire()).await });
                        match next {
                            Ok(Ok(_)) => {}
                            Ok(Err(error)) => {
                                failed.push(format!("{flavor:?}, {polls} polls: refused: {error}"));
                            }
                            Err(_) => {
                                failed.push(format!(
                                    "{flavor:?}, {polls} polls: no grant within {PROMPT:?}"
                                ));
                                break;
                            }
                        }
                    }
                }
                assert!(failed.is_empty(), "{}", failed.join("; "));
            },
        );
    });
}

/// The name is never used again: the release belongs to the coordinator, which is used for another name.
#[test]
fn a_release_that_a_runtime_left_is_sent_at_the_next_use_of_any_name() {
    let _shared = LOAD.blocking_read();
    on_each(&ALL, "next-use", |store| {
        let coordinator = store.coordinator();
        let other = store.coordinator();
        for flavor in FLAVORS {
            let name = format!("left-{flavor:?}");
            flavor.runtime().block_on(async {
                let mutex = coordinator.mutex(&name).expect("a mutex");
                drop(granted(PROMPT, "the first lock", mutex.lock()).await);
            });
            flavor.runtime().block_on(async {
                let mutex = coordinator.mutex("another").expect("a mutex");
                let guard = granted(PROMPT, "a lock of another name", mutex.lock()).await;
                let mutex = other.mutex(&name).expect("a mutex");
                let what =
                    format!("{flavor:?}: another coordinator's lock of the name left behind");
                drop(granted(PROMPT, &what, mutex.lock()).await);
                drop(guard);
            });
        }
    });
}

/// The runtime continues.
#[test]
fn a_coordinator_may_be_dropped_right_after_its_last_permit() {
    let _shared = LOAD.blocking_read();
    on_each(&ALL, "last-handle", |store| {
        let other = store.coordinator();
        for flavor in FLAVORS {
            let name = format!("m-{flavor:?}");
            flavor.runtime().block_on(async {
                let mutex = other.mutex(&name).expect("a mutex");
                for turn in 1..=TURNS {
                    let coordinator = store.coordinator();
                    let lock = coordinator.mutex(&name).expect("a mutex");
                    let what = format!("{flavor:?}, turn {turn}: a lock of a new coordinator");
                    let guard = granted(PROMPT, &what, lock.lock()).await;
                    drop((coordinator, lock));
                    drop(guard);
                    let what = format!("{flavor:?}, turn {turn}: a lock of the other coordinator");
                    drop(granted(PROMPT, &what, mutex.lock()).await);
                }
            });
        }
    });
}

/// A waiter's handles and runtime end while it is queued; the holder releases later.
#[test]
fn a_waiter_whose_runtime_ends_leaves_the_queue() {
    let _shared = LOAD.blocking_read();
    on_each(&ALL, "waiter", |store| {
        let holder = store.coordinator();
        let leaves = store.coordinator();
        let main = Flavor::MultiThread.runtime();
        for flavor in FLAVORS {
            let guard = main.block_on(async {
                let mutex = holder.mutex("m").expect("a mutex");
                granted(PROMPT, "the first lock", mutex.lock()).await
            });
            let ends = flavor.runtime();
            ends.block_on(async {
                let mutex = leaves.mutex("m").expect("a mutex");
                let queued = tokio::spawn(async move { mutex.lock().await.map(drop) });
                let mutex = holder.mutex("m").expect("a mutex");
                let enqueued = async {
                    // Redlock has no queue.
                    while store.kind != Kind::Redlock
                        && mutex.inspect().await.expect("an answer").queued == 0
                    {
                        tokio::time::sleep(PAUSE).await;
                    }
                };
                within(PROMPT, "a ticket in the queue", enqueued).await;
                if store.kind == Kind::Redlock {
                    tokio::time::sleep(millis(50)).await;
                }
                assert!(!queued.is_finished(), "the name is held");
            });
            drop(ends);
            drop(guard);
            // The waiter's coordinator is used again, for another name.
            main.block_on(async {
                let mutex = leaves.mutex("another").expect("a mutex");
                drop(granted(PROMPT, "a lock of another name", mutex.lock()).await);
                let mutex = holder.mutex("m").expect("a mutex");
                let what = format!("{flavor:?}: a lock after the waiter has gone");
                drop(granted(PROMPT, &what, mutex.lock()).await);
                let free = async {
                    while locked(&holder, "m").await > 0 {
                        tokio::time::sleep(PAUSE).await;
                    }
                };
                within(DEFAULT_LEASE / 4, "the last release", free).await;
            });
        }
    });
}
