//! Failovers and moving slots, one at a time.

use crate::fault_injection::{Fault, FaultKind, Scenario, Servers};
use crate::servers::{Cluster, Sentinels, key};
use crate::{EXCLUSIVE, LEASE, NORMAL, SLACK};
use std::time::Duration;
use tokio::task::block_in_place;
use tokio::time::sleep;

/// Makes the master fail until another server is promoted. New callers are granted again, and at most `limit` additional
/// permits were held.
async fn replaced<S: Servers>(start: impl FnOnce() -> S, kind: FaultKind) {
    let _exclusive = EXCLUSIVE.lock().await;
    let mut scenario = Scenario::start(start).await;
    sleep(LEASE).await;
    let fault = Fault {
        kind,
        servers: vec![scenario.servers.leader()],
        time: None,
    };
    let before = scenario.servers.losses(&[]);
    scenario.inject(&fault).await;
    assert!(
        scenario.servers.losses(&[]) > before,
        "no other master was promoted"
    );
    sleep(LEASE * 2).await;
    scenario.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinel_a_killed_master_is_replaced_under_load() {
    replaced(Sentinels::start, FaultKind::Kill).await;
}

/// The old master resumes in the belief that it is still the master. Without replicas it does not write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinel_a_paused_master_is_replaced_under_load() {
    replaced(Sentinels::start, FaultKind::Pause).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_a_killed_master_is_replaced_under_load() {
    replaced(|| Cluster::start(3, true), FaultKind::Kill).await;
}

/// The old master resumes and is demoted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_a_paused_master_is_replaced_under_load() {
    replaced(|| Cluster::start(3, true), FaultKind::Pause).await;
}

/// The limit is kept without exception, and no permit is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_slots_move_under_load() {
    let _exclusive = EXCLUSIVE.lock().await;
    let mut scenario = Scenario::start(|| Cluster::start(3, false)).await;
    sleep(LEASE).await;
    for round in 0..3 {
        for name in Cluster::NAMES {
            block_in_place(|| {
                let cluster = &scenario.servers.cluster;
                let from = scenario.servers.master_of(name);
                let to = &cluster.nodes[(from + 1 + round % 2) % 3];
                let (slot, half_way) = (cluster.slot(&key(name)), Duration::from_millis(100));
                cluster.move_slot(slot, &cluster.nodes[from], to, half_way);
            });
        }
    }
    scenario.load.resumes_within(NORMAL + SLACK).await;
    sleep(LEASE * 2).await;
    assert_eq!(scenario.load.end().await, 0, "a permit was lost");
}
