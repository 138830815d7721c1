//! Clocks that are wrong: a client's, the server's, and a server that stands still.

use crate::agent::Agent;
use crate::support::clock::WallClock;
use crate::support::process_witness::ProcessWitness;
use crate::support::redis::RedisServer;
use crate::{LEASE, coordinator, millis, until_seen};
use std::time::{Duration, SystemTime};

const HOUR: i64 = 3600;

fn now() -> i64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.unwrap().as_secs().try_into().unwrap()
}

#[tokio::test]
async fn a_process_whose_clock_is_an_hour_off_is_like_any_other() {
    let server = RedisServer::start();
    let mut agents = Vec::new();
    let mut clocks = Vec::new();
    for shift in [-HOUR, 0, HOUR] {
        let clock = WallClock::new();
        clock.shift(shift);
        let mut agent = Agent::start_with(&server.url(), LEASE, clock.env());
        let off = agent.wall_clock().await - now();
        assert!((off - shift).abs() < 30, "{off} s off, not {shift}");
        agents.push(agent);
        clocks.push(clock);
    }
    // Each in turn holds for longer than a lease while the others wait.
    for holder in 0..3 {
        agents[holder].acquire("held", "hour", 1);
        agents[holder].granted("held").await;
        for other in (0..3).filter(|other| *other != holder) {
            agents[other].acquire("next", "hour", 1);
        }
        // It may even change meanwhile.
        clocks[holder].shift(HOUR);
        tokio::time::sleep(LEASE * 3 / 2).await;
        assert!(agents[holder].is_valid_within("held", LEASE).await);
        assert!(agents[holder].release("held").await);
        for other in (0..3).filter(|other| *other != holder) {
            let agent = &mut agents[other];
            assert!(!agent.lost_within("next", millis(1)).await);
        }
        // The two others go in one after the other.
        let (mut first, mut second) = match holder {
            0 => (1, 2),
            1 => (0, 2),
            _ => (0, 1),
        };
        if !agents[first].granted_within("next", millis(500)).await {
            std::mem::swap(&mut first, &mut second);
            agents[first].granted("next").await;
        }
        assert!(agents[first].release("next").await);
        agents[second].granted("next").await;
        assert!(agents[second].release("next").await);
    }
}

/// Two hold all along and two processes work beside them, while `disturb` does its worst to the server.
async fn nobody_is_evicted(
    lease: Duration,
    disturb: impl AsyncFn(&RedisServer, &WallClock, usize),
) {
    let clock = WallClock::new();
    let server = RedisServer::start_with_env(&[], clock.env());
    let witness = ProcessWitness::start();
    let mut holders = [
        Agent::start(&server.url(), lease),
        Agent::start(&server.url(), lease),
    ];
    let mut workers = [
        Agent::start(&server.url(), lease),
        Agent::start(&server.url(), lease),
    ];
    for holder in &mut holders {
        holder.acquire("held", "held", 2);
        holder.granted("held").await;
    }
    // One waits behind them, so that there is somebody to profit from an eviction.
    workers[0].acquire("waits", "held", 2);
    let permits = coordinator(&server.url());
    until_seen(&permits, "held", (2, 1), 2 * LEASE).await;
    for worker in &mut workers {
        worker.work(&witness, "worked", 2, 4, millis(5)).await;
    }
    for round in 0..4 {
        disturb(&server, &clock, round).await;
        let before = witness.take();
        tokio::time::sleep(lease * 3 / 2).await;
        let after = witness.take();
        assert!(after.entries > 20, "round {round}: it goes on: {after:?}");
        assert!(before.peak.max(after.peak) <= 2, "round {round}: {after:?}");
        for holder in &mut holders {
            assert!(
                !holder.lost_within("held", millis(1)).await,
                "round {round}"
            );
            assert!(holder.is_valid_within("held", LEASE).await, "round {round}");
        }
        let profits = workers[0].granted_within("waits", millis(1)).await;
        assert!(!profits, "round {round}: a third is in");
    }
    for worker in &mut workers {
        assert_eq!(worker.stop().await.lost, 0);
    }
    assert!(holders[0].release("held").await);
    workers[0].granted("waits").await;
    // Who dies after all that is still missed.
    holders[1].0.kill();
    workers[1].acquire("next", "held", 2);
    assert!(workers[1].granted_within("next", 3 * lease).await);
}

#[tokio::test]
async fn steps_of_the_servers_clock_evict_nobody() {
    nobody_is_evicted(LEASE, async |server, clock, round| {
        let at = [60, 0, HOUR, 0][round];
        let before = server.command(&["TIME"]).list()[0].parse::<i64>().unwrap();
        clock.shift(at);
        let after = server.command(&["TIME"]).list()[0].parse::<i64>().unwrap();
        assert!((after - before).abs() >= 59, "the clock did not move");
    })
    .await;
}

#[tokio::test]
async fn a_server_that_stands_still_for_longer_than_a_lease_evicts_nobody() {
    nobody_is_evicted(LEASE, async |server, clock, round| {
        server.pause();
        tokio::time::sleep(LEASE * 3 / 2).await;
        // Its clock may also have been set meanwhile.
        clock.shift([0, 60, 60, -HOUR][round]);
        server.resume();
    })
    .await;
}
