//! A failover: who is answered, what is granted twice, and when all is as before.

use crate::load::{Load, until_normal};
use crate::support::redis::RedisServer;
use crate::support::sentinels::{MASTER, SentinelSet};
use crate::{LEASE, coordinator};
use std::time::Duration;
use tokio::task::block_in_place;
use tower_permit::Redis;

const LIMIT: u32 = 4;

async fn survive(end: impl FnOnce(&mut RedisServer), args: &[&str]) -> (Load, SentinelSet) {
    let mut set = block_in_place(|| SentinelSet::start_with(2, args, "", ""));
    let permits = [(), ()].map(|()| {
        let redis = Redis::sentinel(set.addresses(), MASTER).expect("good addresses");
        coordinator(redis)
    });
    let names = ["load".to_owned()];
    let load = Load::start(&permits, &names, LIMIT, 12);
    load.runs_for(Duration::from_secs(1)).await;
    load.at_most(LIMIT);

    let old = set.master_port();
    let master = set.servers.iter_mut().find(|server| server.port() == old);
    end(master.expect("a master"));
    block_in_place(|| set.wait_for_promotion(old));
    until_normal(&permits, &names).await;
    load.runs_for(LEASE * 2).await;
    // The last grants may be lost: at most `limit` more.
    load.at_most(2 * LIMIT);
    (load, set)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinel_a_killed_master_is_replaced_under_load() {
    let (load, _set) = survive(RedisServer::kill, &[]).await;
    load.end().await;
}

/// It comes back and thinks that it is the master still. Alone it does not write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinel_a_paused_master_is_replaced_under_load() {
    let args = [
        "--min-replicas-to-write",
        "1",
        "--min-replicas-max-lag",
        "1",
    ];
    let (load, set) = survive(|master| master.pause(), &args).await;
    set.servers.iter().for_each(RedisServer::resume);
    load.runs_for(LEASE * 2).await;
    load.at_most(2 * LIMIT);
    load.end().await;
}
