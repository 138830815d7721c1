//! Masters that die and slots that move, one at a time.

use crate::rig::{Rig, Servers, Strike, What};
use crate::servers::{Cluster, Sentinels, key};
use crate::{ALONE, LEASE, NORMAL, SLACK};
use std::time::Duration;
use tokio::task::block_in_place;
use tokio::time::sleep;

/// Its master is struck until another one has taken its place. Everybody is served again, and at most `limit` more were
/// inside.
async fn replaced<S: Servers>(start: impl FnOnce() -> S, what: What) {
    let _alone = ALONE.lock().await;
    let mut rig = Rig::start(start).await;
    sleep(LEASE).await;
    let strike = Strike {
        what,
        servers: vec![rig.servers.leader()],
        time: None,
    };
    let before = rig.servers.losses(&[]);
    rig.strike(&strike).await;
    assert!(rig.servers.losses(&[]) > before, "it has not been replaced");
    sleep(LEASE * 2).await;
    rig.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinel_a_killed_master_is_replaced_under_load() {
    replaced(Sentinels::start, What::Kill).await;
}

/// It comes back and thinks that it is the master still. Alone it does not write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinel_a_paused_master_is_replaced_under_load() {
    replaced(Sentinels::start, What::Pause).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_a_killed_master_is_replaced_under_load() {
    replaced(|| Cluster::start(3, true), What::Kill).await;
}

/// It comes back and learns that it is none any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_a_paused_master_is_replaced_under_load() {
    replaced(|| Cluster::start(3, true), What::Pause).await;
}

/// Nothing is excused: the limit holds, and nobody loses what he has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_slots_move_under_load() {
    let _alone = ALONE.lock().await;
    let mut rig = Rig::start(|| Cluster::start(3, false)).await;
    sleep(LEASE).await;
    for round in 0..3 {
        for name in Cluster::NAMES {
            block_in_place(|| {
                let cluster = &rig.servers.cluster;
                let from = rig.servers.master_of(name);
                let to = &cluster.nodes[(from + 1 + round % 2) % 3];
                let (slot, half_way) = (cluster.slot(&key(name)), Duration::from_millis(100));
                cluster.move_slot(slot, &cluster.nodes[from], to, half_way);
            });
        }
    }
    rig.load.is_normal_within(NORMAL + SLACK).await;
    sleep(LEASE * 2).await;
    assert_eq!(rig.load.end().await, 0, "somebody has lost a permit");
}
