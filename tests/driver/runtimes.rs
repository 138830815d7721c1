//! Where the driver runs: `CoordinatorBuilder::runtime` and `CoordinatorBuilder::dedicated_thread`.
//!
//! By default the driver runs on the runtime of a caller, and a blocked runtime delays it. Either method prevents that.

use crate::backends::{ALL, Kind, Store, on_each};
use crate::{FLAVORS, Flavor, LOAD, PAUSE, PROMPT, granted, lock_and_end, locked, millis, within};
use futures_util::future::join_all;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tower_permit::{AnyBackend, Coordinator, CoordinatorBuilder, ErrorKind, Permit};

/// How long the runtime is blocked at a time.
const BLOCKED: Duration = millis(300);
/// An upper bound for the median of a lock on another runtime: far below `BLOCKED`, even on a busy machine.
const MEDIAN: Duration = millis(100);
const LOCKS: usize = 15;

/// Where the driver runs.
#[derive(Clone, Copy, Debug)]
enum DriverLocation {
    Runtime,
    DedicatedThread,
}

impl DriverLocation {
    fn set(
        self,
        builder: CoordinatorBuilder<AnyBackend>,
        driver: &Runtime,
    ) -> CoordinatorBuilder<AnyBackend> {
        match self {
            Self::Runtime => builder.runtime(driver.handle().clone()),
            Self::DedicatedThread => builder.dedicated_thread(),
        }
    }
}

/// The runtime that used the coordinator first repeatedly blocks its only thread.
fn lock_beside_a_blocked_runtime(prefix: &str, location: DriverLocation) {
    let _shared = LOAD.blocking_read();
    on_each(&ALL, prefix, |store| {
        let driver = Flavor::MultiThread.runtime();
        let coordinator = location
            .set(store.builder(), &driver)
            .build()
            .expect("valid settings");
        let done = AtomicBool::new(false);
        let blocked = Flavor::CurrentThread.runtime();
        blocked.block_on(async {
            let mutex = coordinator.mutex("first").expect("a mutex");
            drop(granted(PROMPT, "the first lock", mutex.lock()).await);
        });
        thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(SeqCst) {
                    blocked.block_on(async {
                        let mutex = coordinator.mutex("blocked").expect("a mutex");
                        let guard = tokio::time::timeout(PROMPT, mutex.lock()).await;
                        thread::sleep(BLOCKED);
                        drop(guard);
                    });
                }
            });
            let runtime = Flavor::CurrentThread.runtime();
            let result = thread::scope(|scope| {
                let locks = scope.spawn(|| {
                    runtime.block_on(async {
                        let mut waits = Vec::new();
                        for n in 0..LOCKS {
                            let mutex = coordinator.mutex(format!("free-{n}")).expect("a mutex");
                            let start = Instant::now();
                            drop(granted(PROMPT, "a lock beside it", mutex.lock()).await);
                            waits.push(start.elapsed());
                            tokio::time::sleep(PAUSE).await;
                        }
                        waits.sort();
                        waits
                    })
                });
                locks.join()
            });
            done.store(true, SeqCst);
            let waits = result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let median = waits[LOCKS / 2];
            println!(
                "{:?}, {location:?}: median {median:?} of {waits:?}",
                store.kind
            );
            assert!(
                median < MEDIAN,
                "a lock took {median:?}, the median of {LOCKS}"
            );
        });
    });
}

#[test]
fn a_dedicated_thread_is_not_delayed_by_a_blocked_runtime() {
    lock_beside_a_blocked_runtime("blocked-thread", DriverLocation::DedicatedThread);
}

#[test]
fn a_pinned_runtime_is_not_delayed_by_a_blocked_one() {
    lock_beside_a_blocked_runtime("blocked-runtime", DriverLocation::Runtime);
}

/// Every thread of the application computes for three leases. Permits are renewed all the same, over every backend.
fn compute_for_three_leases(prefix: &str, location: DriverLocation) {
    // This test uses all processors.
    let _exclusive = LOAD.blocking_write();
    let lease = Duration::from_secs(1);
    let stores = ALL.map(|kind| Store::shared(kind, prefix));
    let driver = Flavor::MultiThread.runtime();
    let build = |store: &Store| {
        let builder = location.set(store.builder().lease(lease), &driver);
        builder.build().expect("valid settings")
    };
    let application = Flavor::MultiThread.runtime();
    let mut held = Vec::new();
    for store in &stores {
        let coordinator = build(store);
        application.block_on(async {
            let mutex = coordinator.mutex("m").expect("a mutex");
            let guard = granted(PROMPT, "a lock", mutex.lock()).await;
            let permit = match store.kind.has_limits() {
                true => {
                    let semaphore = coordinator.semaphore("s", 1).expect("a semaphore");
                    Some(granted(PROMPT, "a permit", semaphore.acquire()).await)
                }
                false => None,
            };
            held.push((store.kind, guard, permit));
        });
    }
    let witnesses: Vec<Witness> = stores
        .iter()
        .map(|store| Witness::new(build(store)))
        .collect();
    let done = AtomicBool::new(false);
    let lost = thread::scope(|scope| {
        scope.spawn(|| {
            let watch = join_all(witnesses.iter().map(|witness| witness.watch(&done)));
            Flavor::CurrentThread.runtime().block_on(watch)
        });
        let end = Instant::now() + 3 * lease;
        let compute = move || async move {
            while Instant::now() < end {
                std::hint::spin_loop();
            }
        };
        let tasks = [(); 2].map(|()| application.spawn(compute()));
        application.block_on(async {
            compute().await;
            for task in tasks {
                task.await.expect("no panic");
            }
        });
        let valid = |permit: &Option<Permit>| permit.as_ref().is_none_or(Permit::is_valid);
        let lost = held
            .iter()
            .filter(|held| !held.1.is_valid() || !valid(&held.2));
        let lost: Vec<Kind> = lost.map(|held| held.0).collect();
        done.store(true, SeqCst);
        lost
    });
    for (kind, witness) in ALL.iter().zip(&witnesses) {
        let entered = witness.entered.load(SeqCst);
        assert_eq!(entered, 0, "{kind:?}: another coordinator was granted");
        let refused = witness.refused.load(SeqCst);
        assert!(
            refused > 0,
            "{kind:?}: another coordinator was never answered"
        );
    }
    assert!(
        lost.is_empty(),
        "lost while the application computed: {lost:?}"
    );
    for (kind, guard, _) in held {
        let unlock = application.block_on(within(PROMPT, "the unlock", guard.unlock()));
        let was_held = unlock.expect("an answer");
        assert!(was_held, "{kind:?}: the mutex was held until now");
    }
}

/// Another coordinator, which must not be granted the mutex.
struct Witness {
    coordinator: Coordinator,
    entered: AtomicUsize,
    refused: AtomicUsize,
}

impl Witness {
    fn new(coordinator: Coordinator) -> Self {
        Self {
            coordinator,
            entered: AtomicUsize::new(0),
            refused: AtomicUsize::new(0),
        }
    }

    async fn watch(&self, done: &AtomicBool) {
        let mutex = self.coordinator.mutex("m").expect("a mutex");
        while !done.load(SeqCst) {
            match mutex.try_lock().await {
                Ok(_) => {
                    self.entered.fetch_add(1, SeqCst);
                }
                Err(error) if error.kind() == ErrorKind::LimitReached => {
                    self.refused.fetch_add(1, SeqCst);
                }
                // The calls of the witness may be late too.
                Err(_) => {}
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

#[test]
fn a_dedicated_thread_renews_while_the_application_computes() {
    compute_for_three_leases("computing-thread", DriverLocation::DedicatedThread);
}

#[test]
fn a_pinned_runtime_renews_while_the_application_computes() {
    compute_for_three_leases("computing-runtime", DriverLocation::Runtime);
}

/// Releases depend neither on the caller's runtime nor on a later use of the coordinator.
fn release_without_a_caller_runtime(prefix: &str, location: DriverLocation) {
    let _shared = LOAD.blocking_read();
    on_each(&ALL, prefix, |store| {
        let driver = Flavor::MultiThread.runtime();
        let coordinator = location
            .set(store.builder(), &driver)
            .build()
            .expect("valid settings");
        let other = store.coordinator();
        let observer = Flavor::CurrentThread.runtime();
        for flavor in FLAVORS {
            for ends_first in [false, true] {
                let name = format!("{flavor:?}-{ends_first}");
                lock_and_end(&coordinator, &name, flavor, ends_first);
                let free = async {
                    while locked(&other, &name).await > 0 {
                        tokio::time::sleep(PAUSE).await;
                    }
                };
                observer.block_on(within(PROMPT, "a release without a runtime", free));
            }
        }
    });
}

#[test]
fn a_dedicated_thread_releases_by_itself() {
    release_without_a_caller_runtime("releases-thread", DriverLocation::DedicatedThread);
}

#[test]
fn a_pinned_runtime_releases_by_itself() {
    release_without_a_caller_runtime("releases-runtime", DriverLocation::Runtime);
}

/// The thread ends with its coordinator, also when hundreds are created and dropped.
#[test]
fn a_dedicated_thread_ends_with_its_coordinator() {
    let _exclusive = LOAD.blocking_write();
    let threads = || std::fs::read_dir("/proc/self/task").expect("Linux").count();
    let store = Store::shared(Kind::Memory, "ends");
    let runtime = Flavor::CurrentThread.runtime();
    runtime.block_on(async {
        let before = threads();
        for n in 0..100 {
            let builder = store.builder().dedicated_thread();
            let coordinator = builder.build().expect("valid settings");
            let mutex = coordinator.mutex(format!("m{n}")).expect("a mutex");
            drop(granted(PROMPT, "a lock", mutex.lock()).await);
        }
        let gone = async {
            while threads() > before + 5 {
                tokio::time::sleep(PAUSE).await;
            }
        };
        within(5 * PROMPT, "the end of a hundred threads", gone).await;
    });
}

/// A static coordinator used from one runtime after another.
#[test]
fn runtimes_one_after_another_share_a_dedicated_thread() {
    let _shared = LOAD.blocking_read();
    on_each(&ALL, "one-after-another", |store| {
        let coordinator = store
            .builder()
            .dedicated_thread()
            .build()
            .expect("valid settings");
        for turn in 0..6 {
            let flavor = FLAVORS[turn % 2];
            flavor.runtime().block_on(async {
                let mutex = coordinator.mutex("m").expect("a mutex");
                let what = format!("{flavor:?}, turn {turn}: a lock");
                drop(granted(PROMPT, &what, mutex.lock()).await);
            });
        }
    });
}
