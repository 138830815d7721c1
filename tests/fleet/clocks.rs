//! Wrong clocks: of a client, of the server, and of a paused server.

use crate::agent::Agent;
use crate::support::clock::WallClock;
use crate::support::process_witness::ProcessWitness;
use crate::support::redis::RedisServer;
use crate::{LEASE, coordinator, millis, until_counts};
use std::time::{Duration, SystemTime};

const HOUR: i64 = 3600;

fn now() -> i64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.unwrap().as_secs().try_into().unwrap()
}

#[tokio::test]
async fn a_process_clock_one_hour_off_changes_nothing() {
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
    // Each process in turn holds for longer than a lease while the others wait.
    for holder in 0..3 {
        agents[holder].acquire("held", "hour", 1);
        agents[holder].granted("held").await;
        for other in (0..3).filter(|other| *other != holder) {
            agents[other].acquire("next", "hour", 1);
        }
        // The clock may even change meanwhile.
        clocks[holder].shift(HOUR);
        tokio::time::sleep(LEASE * 3 / 2).await;
        assert!(agents[holder].is_valid_within("held", LEASE).await);
        assert!(agents[holder].release("held").await);
        for other in (0..3).filter(|other| *other != holder) {
            let agent = &mut agents[other];
            assert!(!agent.lost_within("next", millis(1)).await);
        }
        // The other two are granted one after the other.
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

/// Two processes hold permits all along and two others acquire and release, while `disturb` disturbs the server.
async fn no_holder_is_evicted(
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
    // One ticket is queued behind them and would be granted after an eviction.
    workers[0].acquire("waits", "held", 2);
    let permits = coordinator(&server.url());
    until_counts(&permits, "held", (2, 1), 2 * LEASE).await;
    for worker in &mut workers {
        worker.work(&witness, "worked", 2, 4, millis(5)).await;
    }
    for round in 0..4 {
        disturb(&server, &clock, round).await;
        let before = witness.take();
        tokio::time::sleep(lease * 3 / 2).await;
        let after = witness.take();
        assert!(
            after.entries > 20,
            "round {round}: too few grants: {after:?}"
        );
        assert!(before.peak.max(after.peak) <= 2, "round {round}: {after:?}");
        for holder in &mut holders {
            assert!(
                !holder.lost_within("held", millis(1)).await,
                "round {round}"
            );
            assert!(holder.is_valid_within("held", LEASE).await, "round {round}");
        }
        let granted = workers[0].granted_within("waits", millis(1)).await;
        assert!(!granted, "round {round}: a third permit was granted");
    }
    for worker in &mut workers {
        assert_eq!(worker.stop().await.lost, 0);
    }
    assert!(holders[0].release("held").await);
    workers[0].granted("waits").await;
    // A process that dies afterwards still loses its permits.
    holders[1].0.kill();
    workers[1].acquire("next", "held", 2);
    assert!(workers[1].granted_within("next", 3 * lease).await);
}

#[tokio::test]
async fn steps_of_the_server_clock_evict_no_holder() {
    no_holder_is_evicted(LEASE, async |server, clock, round| {
        let at = [60, 0, HOUR, 0][round];
        let before = server.command(&["TIME"]).list()[0].parse::<i64>().unwrap();
        clock.shift(at);
        let after = server.command(&["TIME"]).list()[0].parse::<i64>().unwrap();
        assert!((after - before).abs() >= 59, "the clock did not move");
    })
    .await;
}

#[tokio::test]
async fn a_server_paused_for_longer_than_a_lease_evicts_no_holder() {
    no_holder_is_evicted(LEASE, async |server, clock, round| {
        server.pause();
        tokio::time::sleep(LEASE * 3 / 2).await;
        // The server's clock may also be set meanwhile.
        clock.shift([0, 60, 60, -HOUR][round]);
        server.resume();
    })
    .await;
}
