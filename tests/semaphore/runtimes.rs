//! Several runtimes, in sequence and in parallel, and none.

use crate::modes;
use crate::{alone, strict};
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Wake, Waker};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tower_permit::{Coordinator, ErrorKind, Memory, Semaphore};

fn runtime() -> Runtime {
    Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

#[test]
fn a_coordinator_in_a_static_outlives_ten_runtimes() {
    static PERMITS: LazyLock<Coordinator> = LazyLock::new(|| modes::coordinator(Memory::new()));
    let semaphore = PERMITS.semaphore("static", 1).unwrap();
    for _ in 0..10 {
        runtime().block_on(async {
            // The runtime ends before the release is sent: the next one sends it.
            drop(semaphore.acquire().await.unwrap());
        });
    }
}

#[test]
fn a_permit_may_be_dropped_outside_a_runtime() {
    let (_permits, semaphore) = alone(1);
    let permit = runtime().block_on(semaphore.acquire()).unwrap();
    drop(permit);
    assert!(runtime().block_on(semaphore.acquire()).is_ok());
}

#[test]
fn an_acquire_without_a_runtime_is_an_error_and_no_panic() {
    let (_permits, semaphore) = alone(1);
    let waker = std::task::Waker::noop();
    let mut acquire = std::pin::pin!(semaphore.acquire());
    let mut cx = std::task::Context::from_waker(waker);
    let std::task::Poll::Ready(Err(error)) = acquire.as_mut().poll(&mut cx) else {
        panic!("an error, at once");
    };
    assert_eq!(error.kind(), ErrorKind::NoRuntime);
}

/// Fails if the work takes too long, instead of hanging.
fn within_seconds(work: impl FnOnce() + Send + 'static) {
    let (done, ended) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        work();
        let _ = done.send(());
    });
    let ended = ended.recv_timeout(Duration::from_secs(20));
    assert_ne!(
        ended,
        Err(std::sync::mpsc::RecvTimeoutError::Timeout),
        "it hangs"
    );
    thread.join().expect("no panic");
}

#[test]
fn permits_and_waits_may_be_dropped_by_a_runtime_that_shuts_down() {
    within_seconds(|| {
        for round in 0..40 {
            let (_permits, semaphore) = alone(3);
            let runtime = match round % 2 {
                0 => runtime(),
                _ => Builder::new_multi_thread()
                    .worker_threads(2)
                    .enable_all()
                    .build()
                    .expect("a runtime"),
            };
            for _ in 0..16 {
                let semaphore = semaphore.clone();
                runtime.spawn(async move {
                    let _permit = semaphore.acquire().await;
                    std::future::pending::<()>().await;
                });
            }
            runtime.block_on(async {
                while semaphore.stats().in_use < 3 {
                    tokio::task::yield_now().await;
                }
            });
            drop(runtime);
            let permit = self::runtime().block_on(semaphore.acquire());
            assert!(permit.is_ok(), "all were released");
        }
    });
}

/// A waker that uses the semaphore within `wake`.
struct UsesSemaphore {
    semaphore: Semaphore,
    woken: AtomicUsize,
}

impl Wake for UsesSemaphore {
    fn wake(self: Arc<Self>) {
        let _ = self.semaphore.stats();
        self.woken.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_woken_task_may_acquire_again_at_once() {
    within_seconds(|| {
        let (_permits, semaphore) = strict(1);
        let uses = Arc::new(UsesSemaphore {
            semaphore: semaphore.clone(),
            woken: AtomicUsize::new(0),
        });
        let waker = Waker::from(uses.clone());
        let mut cx = Context::from_waker(&waker);
        runtime().block_on(async {
            let permit = semaphore.acquire().await.unwrap();
            let mut waiting = Box::pin(semaphore.acquire());
            assert!(waiting.as_mut().poll(&mut cx).is_pending());
            drop(waiting);
            let mut waiting = Box::pin(semaphore.acquire());
            assert!(waiting.as_mut().poll(&mut cx).is_pending());
            let mut release = Box::pin(permit.release());
            assert!(release.as_mut().poll(&mut cx).is_pending());
            tokio::time::sleep(Duration::from_millis(20)).await;
            assert!(release.as_mut().poll(&mut cx).is_ready());
            assert!(waiting.as_mut().poll(&mut cx).is_ready());
        });
        assert!(uses.woken.load(Ordering::Relaxed) >= 2);
    });
}

#[test]
fn a_runtime_that_is_not_driven_delays_no_other() {
    let (_permits, semaphore) = alone(1);
    let idle = runtime();
    // The driver is on a runtime that is not driven from here on.
    let permit = idle.block_on(semaphore.acquire()).unwrap();
    let waiting = std::thread::spawn({
        let semaphore = semaphore.clone();
        move || {
            runtime()
                .block_on(semaphore.acquire_timeout(Duration::from_secs(20)))
                .map(drop)
        }
    });
    while semaphore.stats().waiting == 0 {
        std::thread::yield_now();
    }
    drop(permit);
    waiting.join().expect("no panic").expect("a permit");
}

#[test]
fn a_runtime_may_end_while_its_tasks_wait_and_hold() {
    let (_permits, semaphore) = alone(1);
    let held = runtime().block_on(semaphore.acquire()).unwrap();
    for threads in [false, true] {
        let mut builder = match threads {
            true => Builder::new_multi_thread(),
            false => Builder::new_current_thread(),
        };
        let ends = builder.worker_threads(1).enable_all().build().unwrap();
        let waits = || {
            let semaphore = semaphore.clone();
            async move { semaphore.acquire().await.map(drop) }
        };
        // Some start to wait before the driver exists, some after it.
        let waiting: Vec<_> = (0..8).map(|_| ends.spawn(waits())).collect();
        while semaphore.stats().waiting < 8 {
            ends.block_on(tokio::task::yield_now());
        }
        drop(ends);
        drop(waiting);
        assert_eq!(semaphore.stats().waiting, 0);
    }
    drop(held);
    assert!(runtime().block_on(semaphore.acquire()).is_ok());
}

#[test]
fn a_permit_outlives_the_runtime_of_another_caller() {
    let memory = Memory::new();
    let lease = Duration::from_secs(1);
    let here = modes::builder(memory.clone()).lease(lease);
    let semaphore = here.build().unwrap().semaphore("name", 3).unwrap();
    let threads = || {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(1).enable_all().build().unwrap()
    };
    // The driver runs on the first runtime. The second one has ended before the driver could move to it.
    let (first, second, third) = (threads(), threads(), threads());
    let _one = first.block_on(semaphore.acquire()).unwrap();
    let permit = third.block_on(semaphore.acquire()).unwrap();
    let _two = second.block_on(semaphore.acquire()).unwrap();
    drop(second);
    drop(first);

    let there = modes::builder(memory).lease(lease).build().unwrap();
    third.block_on(async {
        for _ in 0..10 {
            tokio::time::sleep(lease / 4).await;
            // A call, so that the store removes expired tickets.
            let _ = there.semaphore("name", 1).unwrap().try_acquire().await;
            assert!(permit.is_valid());
            assert_eq!(there.inspect("name").await.unwrap().in_use, 3);
        }
    });
}
