//! What a caller's end of a wait leaves behind: its number, its result in the channel, its span.

use super::driver::{MILLI, SECOND};
use crate::backend::Open;
use crate::client::{Client, Placement, Settings, Terms, Wait};
use crate::error::ErrorKind;
use crate::name::Queue;
use crate::{Coordinator, Memory};
use futures_util::poll;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Wake, Waker};
use std::time::Duration;
use test_support::logs::Logs;
use tokio::runtime::Builder;
use tokio::time::{sleep, timeout};

fn wait(may_wait: bool) -> Wait {
    Wait {
        may_wait,
        timeout: None,
        max_waiting: 1024,
        terms: Terms::default(),
    }
}

/// Waiters are sent and served in the order of their numbers: one that joined late with a lower number would never be sent.
#[test]
fn callers_are_numbered_in_the_order_in_which_they_join() {
    let runtime = Builder::new_multi_thread().enable_all().build().unwrap();
    let settings = Settings {
        lease: 10 * SECOND,
        outage_after: SECOND,
        strict_fifo: false,
        linger: Duration::ZERO,
        placement: Placement::Callers,
    };
    let client = Client::new(settings, |node, events| Memory::new().open(node, events));
    let name = client.queue_client(Queue::limit(b"test").unwrap(), 1);
    std::thread::scope(|scope| {
        let (other, earlier) = name.read(|_| {
            let other = scope.spawn(|| {
                let _runtime = runtime.enter();
                name.join(&wait(false)).0
            });
            // It waits for the lock meanwhile.
            std::thread::sleep(50 * MILLI);
            (other, name.client.next_number())
        });
        assert!(earlier < other.join().unwrap());
    });
}

#[test]
fn callers_of_many_threads_are_all_served() {
    let runtime = Builder::new_multi_thread().enable_all().build().unwrap();
    let permits = Coordinator::builder(Memory::new()).strict_fifo(true);
    let semaphore = permits.build().unwrap().semaphore("test", 4).unwrap();
    let served = Arc::new(AtomicUsize::new(0));
    let tasks = (0..16).map(|n| {
        let (semaphore, served) = (semaphore.clone(), Arc::clone(&served));
        runtime.spawn(async move {
            for _ in 0..200 {
                let result = match n % 2 {
                    0 => semaphore.acquire().await,
                    _ => semaphore.try_acquire().await,
                };
                if let Err(error) = &result {
                    assert_eq!(error.kind(), ErrorKind::LimitReached);
                }
                served.fetch_add(1, Relaxed);
            }
        })
    });
    let tasks: Vec<_> = tasks.collect();
    runtime.block_on(async {
        for task in tasks {
            let ended = timeout(60 * SECOND, task).await;
            ended.expect("it is served").unwrap();
        }
    });
    assert_eq!(served.load(Relaxed), 16 * 200);
}

#[tokio::test(start_paused = true)]
async fn a_permit_that_no_caller_received_is_released_once() {
    let permits = Coordinator::builder(Memory::new()).linger(Duration::ZERO);
    let permits = permits.build().unwrap();
    let semaphore = permits.semaphore("test", 1).unwrap();
    for polled in [false, true] {
        let mut acquire = semaphore.acquire_with(&wait(true));
        if polled {
            assert!(poll!(&mut acquire).is_pending());
        }
        sleep(MILLI).await;
        assert_eq!(semaphore.stats().in_use, 1, "granted");
        drop(acquire);
        assert_eq!(semaphore.stats().in_use, 0, "released");
        permits.flush().await;
        let permit = timeout(SECOND, semaphore.acquire()).await.unwrap();
        drop(permit.expect("it is free again"));
        permits.flush().await;
        assert_eq!(permits.inspect("test").await.unwrap().in_use, 0);
    }
}

#[test]
fn waits_that_are_cancelled_while_they_are_served_leave_no_permit() {
    let runtime = Builder::new_multi_thread().enable_all().build().unwrap();
    let permits = Coordinator::new(Memory::new());
    let semaphore = permits.semaphore("test", 2).unwrap();
    let mut tasks = Vec::new();
    for n in 0..16_u32 {
        let semaphore = semaphore.clone();
        tasks.push(runtime.spawn(async move {
            for round in 0..300 {
                let mut acquire = semaphore.acquire_with(&wait(n % 4 > 0));
                for _ in 0..(round % 7) {
                    if poll!(&mut acquire).is_ready() {
                        break;
                    }
                    tokio::task::yield_now().await;
                }
            }
        }));
    }
    runtime.block_on(async {
        for task in tasks {
            timeout(60 * SECOND, task).await.unwrap().unwrap();
        }
        timeout(10 * SECOND, permits.flush()).await.unwrap();
        assert_eq!(permits.inspect("test").await.unwrap().in_use, 0);
    });
    let stats = semaphore.stats();
    assert_eq!((stats.in_use, stats.waiting, stats.lost), (0, 0, 0));
}

/// Calls back when it is woken or dropped.
struct CallsBack(crate::Semaphore);

impl Wake for CallsBack {
    fn wake(self: Arc<Self>) {
        let _ = self.0.stats();
    }
}

impl Drop for CallsBack {
    fn drop(&mut self) {
        let _ = self.0.stats();
    }
}

#[tokio::test(start_paused = true)]
async fn a_waker_may_call_back() {
    let permits = Coordinator::new(Memory::new());
    let semaphore = permits.semaphore("test", 1).unwrap();
    for queue in [true, false] {
        for cancelled in [true, false] {
            let held = semaphore.acquire().await.unwrap();
            let mut acquire = Box::pin(semaphore.acquire_with(&wait(queue)));
            let waker = Waker::from(Arc::new(CallsBack(semaphore.clone())));
            assert!(
                acquire
                    .as_mut()
                    .poll(&mut Context::from_waker(&waker))
                    .is_pending()
            );
            drop(waker);
            if cancelled {
                drop(acquire);
                drop(held);
            } else {
                sleep(MILLI).await;
                drop(held);
                sleep(MILLI).await;
                let result = acquire.await;
                assert_eq!(result.is_ok(), queue, "{result:?}");
            }
            permits.flush().await;
        }
    }
    let (now, next) = (
        semaphore.stats().in_use,
        semaphore.try_lingering(Terms::default()),
    );
    assert!(now == 0 && next.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_refused_wait_that_is_dropped_unpolled_has_the_outcome_of_the_refusal() {
    let logs = Logs::capture();
    let permits = Coordinator::new(Memory::new());
    let semaphore = permits.semaphore("test", 1).unwrap();
    let none = Wait {
        max_waiting: 0,
        ..wait(true)
    };
    let held = semaphore.acquire().await.unwrap();
    drop(semaphore.acquire_with(&none));
    drop(held);
    assert_eq!(
        logs.with("outcome=\"too_many_waiting\"").len(),
        1,
        "{}",
        logs.text()
    );
    drop(semaphore.acquire_with(&wait(true)));
    assert_eq!(
        logs.with("outcome=\"cancelled\"").len(),
        1,
        "{}",
        logs.text()
    );
}
