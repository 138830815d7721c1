//! The cost of a pair with many waiters, permits or names, compared with few.

use super::{About, Results, Target};
use crate::coordinators::{self, Linger};
use crate::measure::{self, Count, Done, Plan, in_turn};
use crate::server::RedisServer;
use tokio::task::yield_now;
use tower_permit::{Permit, Semaphore};

const FEW: u32 = 10;
const MANY: u32 = 10_000;
const WIDE: u32 = 100_000;

const WAITERS: About = about(
    "growth_waiters_10000",
    "`strict_fifo`, so that every permit goes through the queue, limit 10, 10,000 waiters of two nodes; compared with 10 that wait",
);
const LIMIT: About = about(
    "growth_limit_100000",
    "a lone pair, no linger, limit 100,000; compared with limit 10",
);
const HELD: About = about(
    "growth_held_10000",
    "a lone pair, no linger, 10,000 permits of the name are held; compared with 10",
);
const KEYS: About = about(
    "growth_keys_10000",
    "a lone pair, no linger, 10,000 other names are held and renewed; compared with 10",
);

const fn about(name: &'static str, what: &'static str) -> About {
    About {
        name,
        target: Target::AtMost(2.0),
        unit: "µs a pair",
        what,
    }
}

pub(crate) async fn run(results: &mut Results) {
    let plan = results.plan;
    if results.wants(WAITERS) {
        let rounds = in_turn(
            plan.rounds,
            async || waiters(plan, MANY).await,
            async || waiters(plan, FEW).await,
        );
        results.add(WAITERS, rounds.await);
    }
    if results.wants(LIMIT) {
        let rounds = in_turn(
            plan.rounds,
            async || limit(plan, WIDE).await,
            async || limit(plan, FEW).await,
        );
        results.add(LIMIT, rounds.await);
    }
    if results.wants(HELD) {
        let rounds = in_turn(
            plan.rounds,
            async || held(plan, MANY).await,
            async || held(plan, FEW).await,
        );
        results.add(HELD, rounds.await);
    }
    if results.wants(KEYS) {
        let rounds = in_turn(
            plan.rounds,
            async || keys(plan, MANY).await,
            async || keys(plan, FEW).await,
        );
        results.add(KEYS, rounds.await);
    }
}

/// Uses two nodes, so that tickets are queued at the server too.
async fn waiters(plan: Plan, waiting: u32) -> f64 {
    let server = RedisServer::start();
    let nodes = [(); 2].map(|()| coordinators::strict(&server.url()));
    let semaphores = nodes.each_ref().map(|permits| {
        let semaphore = permits.semaphore("growth", FEW).expect("a limit");
        semaphore.max_waiting(2 * MANY as usize)
    });
    let work = |n: usize, count: Count| {
        let semaphore = semaphores[n % 2].clone();
        async move {
            loop {
                let permit = semaphore.acquire().await.expect("a permit");
                yield_now().await;
                drop(permit);
                count.add();
            }
        }
    };
    let tasks = (FEW + waiting) as usize;
    let done = measure::tasks(plan, tasks, &server, work).await;
    for permits in &nodes {
        coordinators::close(permits).await;
    }
    micros(done)
}

async fn limit(plan: Plan, limit: u32) -> f64 {
    let server = RedisServer::start();
    let permits = coordinators::coordinator(&server.url(), Linger::Off);
    let semaphore = permits.semaphore("growth", limit).expect("a limit");
    let pair = lone_pair(plan, &server, &semaphore).await;
    coordinators::close(&permits).await;
    pair
}

async fn held(plan: Plan, held: u32) -> f64 {
    let server = RedisServer::start();
    let permits = coordinators::coordinator(&server.url(), Linger::Off);
    let semaphore = permits.semaphore("growth", WIDE).expect("a limit");
    let mut all: Vec<Permit> = Vec::new();
    for _ in 0..held {
        all.push(semaphore.acquire().await.expect("a permit"));
    }
    let pair = lone_pair(plan, &server, &semaphore).await;
    drop(all);
    coordinators::close(&permits).await;
    pair
}

async fn keys(plan: Plan, held: u32) -> f64 {
    let server = RedisServer::start();
    let permits = coordinators::coordinator(&server.url(), Linger::Off);
    let mut all = Vec::new();
    for n in 0..held {
        let mutex = permits.mutex(format!("key:{n}")).expect("a name");
        all.push(mutex.lock().await.expect("a lock"));
    }
    let semaphore = permits.semaphore("growth", FEW).expect("a limit");
    let pair = lone_pair(plan, &server, &semaphore).await;
    drop(all);
    coordinators::close(&permits).await;
    pair
}

async fn lone_pair(plan: Plan, server: &RedisServer, semaphore: &Semaphore) -> f64 {
    let work = |_, count| coordinators::pairs(semaphore.clone(), count);
    micros(measure::tasks(plan, 1, server, work).await)
}

fn micros(done: Done) -> f64 {
    done.seconds * 1e6 / done.pairs
}
