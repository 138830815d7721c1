//! Acquisitions that are dropped, over a real connection.

use crate::support::redis::RedisServer;
use crate::{coordinator, millis, until_seen};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;
use tower_permit::{Coordinator, Semaphore};

/// Nothing is held and nothing waits, a trip or two after the last drop.
const SOON: Duration = millis(1000);

async fn alone(limit: u32) -> (RedisServer, Coordinator, Semaphore) {
    let server = RedisServer::start();
    let permits = coordinator(&server.url());
    let semaphore = permits.semaphore("dropped", limit).unwrap();
    drop(semaphore.acquire().await.unwrap());
    until_seen(&permits, "dropped", (0, 0), SOON).await;
    (server, permits, semaphore)
}

/// Polls a future so many times, whenever it wants to be, and drops it.
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
async fn dropped_at_every_await_point_nothing_is_left() {
    let (_server, permits, semaphore) = alone(1).await;
    for polls in 0..4 {
        for _ in 0..250 {
            poll_and_drop(semaphore.acquire(), polls).await;
            poll_and_drop(semaphore.try_acquire(), polls).await;
            poll_and_drop(semaphore.acquire_timeout(SOON), polls).await;
        }
        until_seen(&permits, "dropped", (0, 0), SOON).await;
    }
    // Nobody is served: the drops come first.
    let held = semaphore.acquire().await.unwrap();
    for _ in 0..1000 {
        poll_and_drop(semaphore.acquire(), 1).await;
    }
    until_seen(&permits, "dropped", (1, 0), SOON).await;
    // Most of these stand in the shared queue when they are dropped.
    for n in 0..250u64 {
        let patience = Duration::from_micros(n * 7919 % 3000);
        let waited = tokio::time::timeout(patience, semaphore.acquire()).await;
        assert!(waited.is_err(), "it is full");
    }
    until_seen(&permits, "dropped", (1, 0), SOON).await;
    assert!(held.release().await.unwrap());
}

#[tokio::test]
async fn dropped_at_random_moments_nothing_is_left() {
    let (_server, permits, semaphore) = alone(2).await;
    // 1,000 with room, then 1,000 at a time that fight for it.
    for n in 0..1000u64 {
        let patience = Duration::from_micros(n * 7919 % 1500);
        let _ = tokio::time::timeout(patience, semaphore.acquire()).await;
    }
    until_seen(&permits, "dropped", (0, 0), SOON).await;
    let tasks: Vec<_> = (0..1000u64)
        .map(|n| {
            let semaphore = semaphore.clone();
            tokio::spawn(async move {
                let patience = Duration::from_micros(n * 7919 % 100_000);
                tokio::time::timeout(patience, semaphore.acquire())
                    .await
                    .is_ok()
            })
        })
        .collect();
    let mut served = 0;
    for task in tasks {
        served += u32::from(task.await.unwrap());
    }
    println!("{served} of 1000 were served");
    until_seen(&permits, "dropped", (0, 0), SOON).await;
}

#[tokio::test]
async fn releases_that_are_dropped_give_back() {
    let (_server, permits, semaphore) = alone(1).await;
    for n in 0..500u64 {
        let permit = semaphore.acquire().await.unwrap();
        let patience = Duration::from_micros(n * 7919 % 400);
        let _ = tokio::time::timeout(patience, permit.release()).await;
    }
    until_seen(&permits, "dropped", (0, 0), SOON).await;
}
