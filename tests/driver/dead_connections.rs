//! Idle connections to a vanished peer: the connection stays open, and all data sent on it is lost. New connections work.
//! The first request afterwards must still be granted.

use crate::backends::{Kind, Store, etcd_url, redis_url, redlock_url, trust, zookeeper_url};
use crate::support::etcd::EtcdCluster;
use crate::support::proxy::{Mode, Proxy, Way};
use crate::support::redis::RedisServer;
use crate::support::zookeeper::ZooKeepers;
use crate::{Flavor, LOAD, PAUSE, PROMPT, granted, locked, millis, within};
use std::time::{Duration, Instant};
use tower_permit::Mutex;

/// A call is given up after 0.4 s, and the next one uses a new connection, before the outage is detected after 1 s. So no
/// request is refused. The bound allows for a busy machine.
const BOUND: Duration = millis(4000);

/// The directions in which data of present connections is lost.
const LOST: [&[Way]; 3] = [&[Way::Up], &[Way::Down], &[Way::Up, Way::Down]];

/// Repeatedly breaks the idle connections and then makes one request.
async fn replace_idle_connections(store: &Store, proxies: &[Proxy]) {
    let coordinator = store.coordinator();
    let mutex = coordinator.mutex("m").expect("a mutex");
    drop(granted(PROMPT, "the first lock", mutex.lock()).await);
    let mut failed = Vec::new();
    for lost in LOST {
        for tries in [false, true] {
            let idle = async {
                while locked(&coordinator, "m").await > 0 {
                    tokio::time::sleep(PAUSE).await;
                }
            };
            within(5 * PROMPT, "the release", idle).await;
            for way in lost {
                let lose = |proxy: &Proxy| proxy.set_present(*way, Mode::Lose);
                proxies.iter().for_each(lose);
            }
            let start = Instant::now();
            let request = async {
                match tries {
                    true => mutex.try_lock().await,
                    false => mutex.lock().await,
                }
            };
            let what = if tries { "try_lock" } else { "lock" };
            match tokio::time::timeout(BOUND, request).await {
                Ok(Ok(guard)) => drop(guard),
                Ok(Err(error)) => failed.push(format!("{lost:?} lost: {what} failed: {error}")),
                Err(_) => failed.push(format!("{lost:?} lost: {what} took more than {BOUND:?}")),
            }
            // Whatever the result, the backend must reconnect.
            let again = try_lock_when_available(&mutex);
            if tokio::time::timeout(5 * PROMPT, again).await.is_err() {
                failed.push(format!(
                    "{lost:?} lost: not connected again in {:?}",
                    5 * PROMPT
                ));
                break;
            }
            println!("{lost:?} lost: {what} granted after {:?}", start.elapsed());
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("; "));
}

async fn try_lock_when_available(mutex: &Mutex) {
    while mutex.try_lock().await.is_err() {
        tokio::time::sleep(PAUSE).await;
    }
}

#[test]
fn redis_replaces_a_dead_connection() {
    let _shared = LOAD.blocking_read();
    Flavor::MultiThread.runtime().block_on(async {
        let server = RedisServer::start();
        let proxy = Proxy::start(server.port()).await;
        let store = Store::at(Kind::Redis, &redis_url(proxy.port(), "idle"));
        replace_idle_connections(&store, &[proxy]).await;
    });
}

#[test]
fn redlock_replaces_all_dead_connections() {
    let _shared = LOAD.blocking_read();
    Flavor::MultiThread.runtime().block_on(async {
        let servers = [(); 3].map(|()| RedisServer::start());
        let mut proxies = Vec::new();
        for server in &servers {
            proxies.push(Proxy::start(server.port()).await);
        }
        let ports = [0, 1, 2].map(|at| proxies[at].port());
        trust(&servers, "idle");
        let store = Store::at(Kind::Redlock, &redlock_url(&ports, "idle"));
        replace_idle_connections(&store, &proxies).await;
    });
}

#[test]
fn etcd_replaces_a_dead_connection() {
    let _shared = LOAD.blocking_read();
    Flavor::MultiThread.runtime().block_on(async {
        let cluster = EtcdCluster::start(1);
        let proxy = Proxy::start(cluster.port(0)).await;
        let store = Store::at(Kind::Etcd, &etcd_url(proxy.port(), "idle"));
        replace_idle_connections(&store, &[proxy]).await;
    });
}

#[test]
fn zookeeper_replaces_a_dead_connection() {
    let _shared = LOAD.blocking_read();
    Flavor::MultiThread.runtime().block_on(async {
        let servers = ZooKeepers::start(1);
        let proxy = Proxy::start(servers.port(0)).await;
        let store = Store::at(Kind::ZooKeeper, &zookeeper_url(proxy.port(), "idle"));
        replace_idle_connections(&store, &[proxy]).await;
    });
}
