//! Slots that move and masters that die.

use crate::load::{Load, until_normal};
use crate::support::cluster::RedisCluster;
use crate::support::redis::RedisServer;
use crate::{LEASE, coordinator};
use std::time::Duration;
use tokio::task::block_in_place;
use tower_permit::Redis;

const LIMIT: u32 = 3;

fn key(name: &str) -> String {
    format!("places:limit:{{{name}}}")
}

fn names() -> Vec<String> {
    (0..6).map(|number| format!("name-{number}")).collect()
}

fn coordinators(cluster: &RedisCluster) -> [tower_permit::Coordinator; 2] {
    [(), ()].map(|()| coordinator(Redis::cluster(cluster.addresses()).expect("good addresses")))
}

/// Nothing is excused: the limit holds, and nobody loses what he has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_slots_move_under_load() {
    let cluster = block_in_place(|| RedisCluster::start(3, false));
    let (permits, names) = (coordinators(&cluster), names());
    let load = Load::start(&permits, &names, LIMIT, 4);
    load.runs_for(Duration::from_secs(1)).await;
    for round in 0..3 {
        for name in &names {
            let key = key(name);
            block_in_place(|| {
                let from = cluster.master_of(&key);
                let at = cluster
                    .nodes
                    .iter()
                    .position(|node| node.port() == from.port());
                let to = &cluster.nodes[(at.expect("a node") + 1 + round % 2) % 3];
                cluster.move_slot(cluster.slot(&key), from, to, Duration::from_millis(100));
            });
        }
    }
    until_normal(&permits, &names).await;
    load.runs_for(LEASE * 2).await;
    load.at_most(LIMIT);
    assert_eq!(load.lost(), 0);
    load.end().await;
}

async fn survive(end: impl FnOnce(&mut RedisServer)) -> (Load, RedisCluster) {
    let mut cluster = block_in_place(|| RedisCluster::start(3, true));
    let (permits, names) = (coordinators(&cluster), names());
    let load = Load::start(&permits, &names, LIMIT, 4);
    load.runs_for(Duration::from_secs(1)).await;
    load.at_most(LIMIT);
    let port = cluster.master_of(&key(&names[0])).port();
    let slot = cluster.slot(&key(&names[0]));
    let master = cluster.nodes.iter_mut().find(|node| node.port() == port);
    end(master.expect("a master"));
    // Another has the slot, and all nodes say that the cluster is whole.
    block_in_place(|| {
        cluster.wait_for_owner(slot, port);
        cluster.wait_until_whole(port);
    });
    until_normal(&permits, &names).await;
    load.runs_for(LEASE * 2).await;
    // The last grants may be lost: at most `limit` more.
    load.at_most(2 * LIMIT);
    (load, cluster)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_a_killed_master_is_replaced_under_load() {
    let (load, _cluster) = survive(RedisServer::kill).await;
    load.end().await;
}

/// It comes back and learns that it is none any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_a_paused_master_is_replaced_under_load() {
    let (load, cluster) = survive(|master| master.pause()).await;
    cluster.nodes.iter().for_each(RedisServer::resume);
    load.runs_for(LEASE * 2).await;
    load.at_most(2 * LIMIT);
    load.end().await;
}
