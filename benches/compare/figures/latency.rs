//! The latency of acquiring a free permit, compared with a PING.

use super::{About, Results, Target};
use crate::coordinators::{self, Linger};
use crate::measure::{Plan, Threads, latencies_in_turn, median};
use crate::peers::plain_redis;
use crate::server::RedisServer;
use redis::aio::MultiplexedConnection;
use std::future::Future;
use tower_permit::{Coordinator, MutexGuard, Permit};

const LIMIT: u32 = 64;

/// What is acquired.
#[derive(Clone, Copy)]
enum Acquired {
    /// A permit of one semaphore.
    Permit,
    /// The lock of a new key.
    FreshLock,
}

const FIGURES: [(About, Acquired, Threads); 4] = [
    (
        about(
            "uncontended_p50_vs_ping",
            Target::AtMost(1.5),
            "one task on 2 workers: `acquire().await`, no linger; compared with a `PING` of the `redis` crate in turn",
        ),
        Acquired::Permit,
        Threads::Two,
    ),
    (
        about(
            "uncontended_p50_vs_ping_one_thread",
            Target::AtMost(1.5),
            "the same on a current-thread runtime",
        ),
        Acquired::Permit,
        Threads::One,
    ),
    (
        about(
            "fresh_lock_p50_vs_ping",
            Target::AtMost(1.5),
            "one task on 2 workers: `mutex(key)?.lock().await`, each key used once; compared with a `PING` of the `redis` crate in turn",
        ),
        Acquired::FreshLock,
        Threads::Two,
    ),
    (
        about(
            "fresh_lock_p50_vs_ping_one_thread",
            Target::None,
            "the same on a current-thread runtime",
        ),
        Acquired::FreshLock,
        Threads::One,
    ),
];

const fn about(name: &'static str, target: Target, what: &'static str) -> About {
    About {
        name,
        target,
        unit: "µs, median",
        what,
    }
}

pub(crate) async fn run(results: &mut Results) {
    for (about, acquired, threads) in FIGURES {
        if results.wants(about) {
            figure(results, about, acquired, threads).await;
        }
    }
}

async fn figure(results: &mut Results, about: About, acquired: Acquired, threads: Threads) {
    let (plan, server) = (results.plan, RedisServer::start());
    let permits = coordinators::coordinator(&server.url(), Linger::Off);
    let url = server.url();
    let connection = threads.run(async move { plain_redis::connect(&url).await });
    let connection = connection.await;
    let (mut ours, mut pings) = (Vec::new(), Vec::new());
    for round in 0..plan.rounds {
        let (permits, connection) = (permits.clone(), connection.clone());
        let (acquire, ping) = match acquired {
            Acquired::Permit => threads.run(permit(plan, permits, connection)).await,
            Acquired::FreshLock => {
                let work = fresh_lock(plan, permits, connection, round);
                threads.run(work).await
            }
        };
        ours.push(median(acquire));
        pings.push(median(ping));
    }
    results.add(about, (ours, pings));
    threads
        .run(async move { coordinators::close(&permits).await })
        .await;
}

async fn permit(
    plan: Plan,
    permits: Coordinator,
    connection: MultiplexedConnection,
) -> (Vec<f64>, Vec<f64>) {
    let semaphore = permits.semaphore("uncontended", LIMIT).expect("a limit");
    let acquire = || async { semaphore.acquire().await.expect("a permit") };
    let release = async |permit: Permit| permit.release().await.expect("a reply");
    latencies_in_turn(plan, acquire, release, || ping(&connection)).await
}

async fn fresh_lock(
    plan: Plan,
    permits: Coordinator,
    connection: MultiplexedConnection,
    round: usize,
) -> (Vec<f64>, Vec<f64>) {
    let mut key = 0_u64;
    let lock = || {
        key += 1;
        let name = format!("fresh:{round}:{key}");
        let permits = permits.clone();
        async move {
            let mutex = permits.mutex(name).expect("a name");
            mutex.lock().await.expect("a lock")
        }
    };
    let unlock = async |guard: MutexGuard| guard.unlock().await.expect("a reply");
    latencies_in_turn(plan, lock, unlock, || ping(&connection)).await
}

fn ping(connection: &MultiplexedConnection) -> impl Future<Output = String> + Send + use<> {
    let mut connection = connection.clone();
    async move {
        let answer = redis::cmd("PING").query_async(&mut connection).await;
        answer.expect("a reply")
    }
}
