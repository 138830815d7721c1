//! Acquisitions and releases that are dropped, over a real connection.

use crate::support::redis::RedisServer;
use crate::{coordinator, millis, until_counts};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;
use tower_permit::{Coordinator, Semaphore};

/// By when nothing is held and nothing queued after the last drop.
const SOON: Duration = millis(1000);

async fn new_semaphore(limit: u32) -> (RedisServer, Coordinator, Semaphore) {
    let server = RedisServer::start();
    let permits = coordinator(&server.url());
    let semaphore = permits.semaphore("dropped", limit).unwrap();
    drop(semaphore.acquire().await.unwrap());
    until_counts(&permits, "dropped", (0, 0), SOON).await;
    (server, permits, semaphore)
}

/// Polls a future this many times, each time after a wake-up, and drops it.
async fn poll_and_drop<F: Future>(future: F, polls: usize) {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|cx| {
        if left > 0 {
            left -= 1;
            if future.as_mut().poll(cx).is_pending() && left > 0 {
                return Poll::Pending;
            }
        }
        Poll::Ready(())
    })
    .await;
}

#[tokio::test]
async fn acquisitions_dropped_at_every_await_point_leave_nothing() {
    let (_server, permits, semaphore) = new_semaphore(1).await;
    for polls in 0..4 {
        for _ in 0..250 {
            poll_and_drop(semaphore.acquire(), polls).await;
            poll_and_drop(semaphore.try_acquire(), polls).await;
            poll_and_drop(semaphore.acquire_timeout(SOON), polls).await;
        }
        until_counts(&permits, "dropped", (0, 0), SOON).await;
    }
    // No permit is granted, since the drops come first.
    let held = semaphore.acquire().await.unwrap();
    for _ in 0..1000 {
        poll_and_drop(semaphore.acquire(), 1).await;
    }
    until_counts(&permits, "dropped", (1, 0), SOON).await;
    // Most of these are queued at the backend when they are dropped.
    for n in 0..250u64 {
        let timeout = Duration::from_micros(n * 7919 % 3000);
        let waited = tokio::time::timeout(timeout, semaphore.acquire()).await;
        assert!(waited.is_err(), "the limit is reached");
    }
    until_counts(&permits, "dropped", (1, 0), SOON).await;
    assert!(held.release().await.unwrap());
}

#[tokio::test]
async fn acquisitions_dropped_at_random_moments_leave_nothing() {
    let (_server, permits, semaphore) = new_semaphore(2).await;
    // 1,000 one after another with room, then 1,000 at once that compete.
    for n in 0..1000u64 {
        let timeout = Duration::from_micros(n * 7919 % 1500);
        let _ = tokio::time::timeout(timeout, semaphore.acquire()).await;
    }
    until_counts(&permits, "dropped", (0, 0), SOON).await;
    let tasks: Vec<_> = (0..1000u64)
        .map(|n| {
            let semaphore = semaphore.clone();
            tokio::spawn(async move {
                let timeout = Duration::from_micros(n * 7919 % 100_000);
                tokio::time::timeout(timeout, semaphore.acquire())
                    .await
                    .is_ok()
            })
        })
        .collect();
    let mut granted = 0;
    for task in tasks {
        granted += u32::from(task.await.unwrap());
    }
    println!("{granted} of 1000 were granted");
    until_counts(&permits, "dropped", (0, 0), SOON).await;
}

#[tokio::test]
async fn dropped_releases_still_release() {
    let (_server, permits, semaphore) = new_semaphore(1).await;
    for n in 0..500u64 {
        let permit = semaphore.acquire().await.unwrap();
        let timeout = Duration::from_micros(n * 7919 % 400);
        let _ = tokio::time::timeout(timeout, permit.release()).await;
    }
    until_counts(&permits, "dropped", (0, 0), SOON).await;
}
