//! Futures and permits dropped at any time leak nothing.

use crate::{alone, counts, settle};
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use test_support::witness::Witness;
use tokio::time::sleep;

/// Polls a future this many times, with other tasks running in between, and drops it.
async fn poll_and_drop<F: Future>(future: F, polls: usize) -> bool {
    let mut future = pin!(future);
    for _ in 0..polls {
        let mut cx = Context::from_waker(Waker::noop());
        if let Poll::Ready(_done) = future.as_mut().poll(&mut cx) {
            return true;
        }
        tokio::task::yield_now().await;
    }
    false
}

#[tokio::test(start_paused = true)]
async fn dropping_an_acquisition_at_any_await_point_leaks_nothing() {
    for full in [false, true] {
        let (permits, semaphore) = alone(1);
        let held = match full {
            true => Some(semaphore.acquire().await.unwrap()),
            false => None,
        };
        for polls in 0..6 {
            for _ in 0..1_000 {
                poll_and_drop(semaphore.acquire(), polls).await;
                poll_and_drop(semaphore.try_acquire(), polls).await;
                poll_and_drop(semaphore.acquire_timeout(Duration::from_secs(9)), polls).await;
            }
            settle().await;
            assert_eq!(
                counts(&permits).await,
                (u64::from(full), 0),
                "{polls} polls"
            );
        }
        drop(held);
        assert!(semaphore.acquire().await.is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn dropping_a_release_at_any_await_point_still_releases() {
    let (permits, semaphore) = alone(1);
    for polls in 0..4 {
        for _ in 0..1_000 {
            let permit = semaphore.acquire().await.unwrap();
            poll_and_drop(permit.release(), polls).await;
        }
        settle().await;
        assert_eq!(counts(&permits).await, (0, 0), "{polls} polls");
    }
}

#[tokio::test(start_paused = true)]
async fn waiters_cancelled_at_random_do_not_delay_others() {
    let (permits, semaphore) = alone(2);
    let witness = Witness::default();
    let tasks: Vec<_> = (0..400u64)
        .map(|n| {
            let (semaphore, witness) = (semaphore.clone(), witness.clone());
            tokio::spawn(async move {
                let patience = Duration::from_millis(n * 7919 % 300);
                tokio::select! {
                    permit = semaphore.acquire() => {
                        let _permit = permit.unwrap();
                        let _inside = witness.enter();
                        sleep(Duration::from_millis(n % 5)).await;
                    }
                    () = sleep(patience) => {}
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    // Until no permit lingers.
    sleep(Duration::from_millis(20)).await;
    assert_eq!(witness.peak(), 2);
    assert_eq!(counts(&permits).await, (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_permit_dropped_by_a_panic_is_released() {
    let (permits, semaphore) = alone(1);
    let task = tokio::spawn(async move {
        let _permit = semaphore.acquire().await.unwrap();
        panic!("on purpose");
    });
    assert!(task.await.is_err());
    settle().await;
    assert_eq!(counts(&permits).await, (0, 0));
}
