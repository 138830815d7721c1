//! Holders that are killed or paused.

use crate::agent::Agent;
use crate::support::redis::RedisServer;
use crate::{LEASE, coordinator, counts, millis, until_counts};
use std::time::{Duration, Instant};

#[tokio::test]
async fn the_permits_of_a_killed_process_are_free_one_lease_later() {
    let server = RedisServer::start();
    let mut holder = Agent::start(&server.url(), LEASE);
    let mut next = Agent::start(&server.url(), LEASE);
    let keys = ["a", "b", "c"];
    for key in keys {
        holder.acquire(key, "killed", 3);
        holder.granted(key).await;
    }
    // Its process also has a ticket at the head of the queue.
    holder.acquire("waiting", "killed", 3);
    let permits = coordinator(&server.url());
    until_counts(&permits, "killed", (3, 1), millis(2000)).await;
    for key in keys {
        next.acquire(key, "killed", 3);
    }
    until_counts(&permits, "killed", (3, 4), millis(2000)).await;
    holder.0.kill();
    let killed = Instant::now();
    for key in keys {
        next.granted(key).await;
    }
    let took = killed.elapsed();
    assert!(took < LEASE + Duration::from_secs(1), "{took:?}");
    until_counts(&permits, "killed", (3, 0), 2 * LEASE).await;
}

#[tokio::test]
async fn a_paused_holder_sees_its_loss_at_once_and_releases_no_other_permit() {
    let server = RedisServer::start();
    let permits = coordinator(&server.url());
    let mut paused = Agent::start(&server.url(), LEASE);
    let mut other = Agent::start(&server.url(), LEASE);
    other.acquire("early", "granted-asleep", 1);
    other.granted("early").await;
    paused.acquire("held", "held-asleep", 1);
    paused.granted("held").await;
    paused.acquire("pushed", "granted-asleep", 1);
    until_counts(&permits, "granted-asleep", (1, 1), millis(2000)).await;

    paused.0.pause();
    // The release grants the ticket of the paused process: the push stays in its socket.
    assert!(other.release("early").await);
    until_counts(&permits, "granted-asleep", (1, 0), millis(500)).await;
    other.acquire("late", "granted-asleep", 1);
    other.acquire("taken", "held-asleep", 1);
    other.granted("late").await;
    other.granted("taken").await;
    // So does this command: it is answered before the process receives anything else.
    paused.0.send("valid held");
    paused.0.resume();
    assert_eq!(
        paused.0.receive("valid held.").await,
        "false",
        "the deadline has passed"
    );
    assert!(
        paused.lost_within("held", LEASE).await,
        "the loss is reported"
    );
    assert!(!paused.is_valid("held").await);
    assert!(
        !paused.release("held").await,
        "the permit was no longer held"
    );
    assert!(
        !paused.granted_within("pushed", LEASE).await,
        "the pushed grant has expired"
    );
    for (key, name) in [("taken", "held-asleep"), ("late", "granted-asleep")] {
        assert!(other.is_valid(key).await);
        assert!(!other.lost_within(key, millis(1)).await);
        assert_eq!(counts(&permits, name).await.0, 1, "{name}");
    }
    // Its queue entry is re-created.
    assert!(other.release("late").await);
    paused.granted("pushed").await;
}

#[tokio::test]
async fn a_short_pause_loses_nothing() {
    let server = RedisServer::start();
    let mut holder = Agent::start(&server.url(), 2 * LEASE);
    let mut other = Agent::start(&server.url(), LEASE);
    holder.acquire("held", "short", 1);
    holder.granted("held").await;
    other.acquire("waits", "short", 1);
    for _ in 0..3 {
        holder.0.pause();
        tokio::time::sleep(LEASE / 2).await;
        holder.0.resume();
        assert!(holder.is_valid("held").await);
        tokio::time::sleep(LEASE / 2).await;
    }
    assert!(!other.granted_within("waits", millis(1)).await);
    assert!(holder.release("held").await);
    other.granted("waits").await;
}

#[tokio::test]
async fn a_pause_during_a_call_is_no_outage() {
    let server = RedisServer::start();
    // Pauses of up to two thirds of the lease are harmless.
    let mut process = Agent::start(&server.url(), 10 * LEASE);
    process.acquire("held", "asleep", 4);
    process.granted("held").await;
    server.pause();
    process.acquire("new", "asleep", 4);
    // After these replies the call has been sent.
    for _ in 0..3 {
        assert!(process.is_valid("held").await);
    }
    process.0.pause();
    // The reply stays in the socket of the paused process.
    server.resume();
    let permits = coordinator(&server.url());
    until_counts(&permits, "asleep", (2, 0), millis(2000)).await;
    tokio::time::sleep(millis(1500)).await;
    process.0.resume();
    assert!(
        process.granted_within("new", 2 * LEASE).await,
        "{:?}",
        process.0.take_lines()
    );
}
