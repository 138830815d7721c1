//! Slots that move and masters that die.

use crate::load::{Load, until_normal};
use crate::support::cluster::RedisCluster;
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
    for (name, witness) in &load.witnesses {
        assert!(
            witness.peak() <= LIMIT as usize,
            "{name}: {}",
            witness.peak()
        );
    }
    assert_eq!(load.lost(), 0);
    load.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_a_killed_master_is_replaced_under_load() {
    let mut cluster = block_in_place(|| RedisCluster::start(3, true));
    let (permits, names) = (coordinators(&cluster), names());
    let load = Load::start(&permits, &names, LIMIT, 4);
    load.runs_for(Duration::from_secs(1)).await;
    for (name, witness) in &load.witnesses {
        assert!(
            witness.peak() <= LIMIT as usize,
            "{name}: {}",
            witness.peak()
        );
    }
    let port = cluster.master_of(&key(&names[0])).port();
    let master = cluster.nodes.iter_mut().find(|node| node.port() == port);
    master.expect("a master").kill();
    // Another has the slot, and all nodes say that the cluster is whole.
    block_in_place(|| {
        let slot = cluster.slot(&key(&names[0]));
        cluster.wait_for_owner(slot, port);
        cluster.wait_until_whole();
    });
    until_normal(&permits, &names).await;
    load.runs_for(LEASE * 2).await;
    for (name, witness) in &load.witnesses {
        // The last grants may be lost: at most `limit` more.
        assert!(
            witness.peak() <= 2 * LIMIT as usize,
            "{name}: {}",
            witness.peak()
        );
    }
    load.end().await;
}
