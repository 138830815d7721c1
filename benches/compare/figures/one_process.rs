//! Figures of one process.

use super::{About, Results, Target};
use crate::coordinators::{self, Linger};
use crate::measure::{self, Count, Done, Plan, in_turn, median};
use crate::peers::other_languages::{Library, Script};
use crate::peers::plain_redis::{self, PlainSet};
use crate::server::RedisServer;
use bytes::Bytes;
use http_body_util::Empty;
use std::convert::Infallible;
use std::fmt::Debug;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::yield_now;
use tower::limit::ConcurrencyLimitLayer;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_permit::{Coordinator, DistributedConcurrencyLimitLayer, Memory};

/// The tasks that compete for one name.
const TASKS: usize = 256;
const HOT_LIMIT: u32 = 4;
/// A limit at which no task waits.
const WIDE_LIMIT: u32 = 64;

const SEQUENTIAL: About = About {
    name: "sequential_vs_tokio",
    target: Target::AtLeast(0.5),
    unit: "pairs/s",
    what: "one task acquires and drops in turn; compared with tokio's `acquire_owned` in process",
};
const HOT_TOKIO: About = About {
    name: "hot_name_vs_tokio",
    target: Target::AtLeast(0.3),
    unit: "pairs/s",
    what: "256 tasks, limit 4, held over one yield; compared with tokio's `acquire_owned` in process",
};
const COMMANDS: About = About {
    name: "commands_per_pair_256",
    target: Target::AtMost(0.05),
    unit: "commands : pairs/s",
    what: "the same work: Redis commands for each acquire and release",
};
const HOT_RSLOCK: About = hot_mutex(
    "hot_name_vs_rslock",
    Target::AtLeast(20.0),
    "256 tasks, one mutex, held over one yield; compared with `rslock`",
);
const LAYER: About = About {
    name: "layer_overhead_vs_tower_limit",
    target: Target::AtMost(2.0),
    unit: "ns a request",
    what: "`ready().await.call(request).await` with an empty HTTP request and response, `Memory`, limit 64, `.release_at_response()`; compared with `tower::limit`; both with the service inside",
};
const LONE: About = About {
    name: "lone_pair_vs_plain_zset",
    target: Target::AtMost(2.5),
    unit: "µs of the server",
    what: "one task: a lone acquire and a lone release, no linger; compared with a plain sorted set",
};

/// Each figure with the library that it is compared with.
const OTHER_LANGUAGES: [(Library, About); 3] = [
    (
        Library::RedisSemaphore,
        hot_mutex(
            "hot_name_vs_redis_semaphore",
            Target::None,
            "the same, compared with npm's `redis-semaphore` on Node.js",
        ),
    ),
    (
        Library::Redlock,
        hot_mutex(
            "hot_name_vs_redlock_npm",
            Target::None,
            "the same, compared with npm's `redlock` on Node.js",
        ),
    ),
    (
        Library::RedisPy,
        hot_mutex(
            "hot_name_vs_redis_py",
            Target::None,
            "the same, compared with redis-py's asyncio lock",
        ),
    ),
];

const fn hot_mutex(name: &'static str, target: Target, what: &'static str) -> About {
    About {
        name,
        target,
        unit: "pairs/s",
        what,
    }
}

pub(crate) async fn run(results: &mut Results) {
    if results.wants(SEQUENTIAL) {
        sequential(results).await;
    }
    if results.wants(HOT_TOKIO) || results.wants(COMMANDS) {
        hot_tokio(results).await;
    }
    if results.wants(HOT_RSLOCK) {
        hot_rslock(results).await;
    }
    for (library, about) in OTHER_LANGUAGES {
        if results.wants(about) {
            hot_other_language(results, library, about).await;
        }
    }
    if results.wants(LAYER) {
        layer(results).await;
    }
    if results.wants(LONE) {
        lone(results).await;
    }
}

async fn sequential(results: &mut Results) {
    let (plan, server) = (results.plan, RedisServer::start());
    let permits = coordinators::coordinator(&server.url(), Linger::On);
    let semaphore = permits
        .semaphore("sequential", WIDE_LIMIT)
        .expect("a limit");
    let tokio = Arc::new(tokio::sync::Semaphore::new(WIDE_LIMIT as usize));
    let rounds = in_turn(
        plan.rounds,
        async || {
            let pair = async || drop(black_box(semaphore.acquire().await.expect("a permit")));
            measure::in_sequence(plan, pair).await
        },
        async || {
            let pair = async || {
                let permit = Arc::clone(&tokio).acquire_owned().await;
                drop(black_box(permit.expect("a permit")));
            };
            measure::in_sequence(plan, pair).await
        },
    );
    results.add(SEQUENTIAL, rounds.await);
    coordinators::close(&permits).await;
}

async fn hot_tokio(results: &mut Results) {
    let (plan, server) = (results.plan, RedisServer::start());
    let permits = coordinators::coordinator(&server.url(), Linger::On);
    let semaphore = permits.semaphore("hot", HOT_LIMIT).expect("a limit");
    let tokio = Arc::new(tokio::sync::Semaphore::new(HOT_LIMIT as usize));
    let (ours, other) = in_turn(
        plan.rounds,
        async || {
            let work = |_, count: Count| {
                let semaphore = semaphore.clone();
                async move {
                    loop {
                        let permit = semaphore.acquire().await.expect("a permit");
                        yield_now().await;
                        drop(permit);
                        count.add();
                    }
                }
            };
            measure::tasks(plan, TASKS, &server, work).await
        },
        async || {
            let work = |_, count: Count| {
                let tokio = Arc::clone(&tokio);
                async move {
                    loop {
                        let permit = Arc::clone(&tokio).acquire_owned().await;
                        yield_now().await;
                        drop(permit.expect("a permit"));
                        count.add();
                    }
                }
            };
            measure::tasks(plan, TASKS, &server, work).await
        },
    )
    .await;
    let rates = |rounds: &[Done]| median(rounds.iter().map(Done::per_second));
    results.add_values(HOT_TOKIO, rates(&ours), rates(&other));
    let scripts = ours.iter().map(|done| done.scripts / done.seconds);
    results.add_values(COMMANDS, median(scripts), rates(&ours));
    coordinators::close(&permits).await;
}

async fn hot_rslock(results: &mut Results) {
    let (plan, server) = (results.plan, RedisServer::start());
    let permits = coordinators::coordinator(&server.url(), Linger::On);
    let rslock = rslock::LockManager::from_clients(vec![plain_redis::client(&server.url())]);
    let mut round = 0;
    let rounds = in_turn(
        plan.rounds,
        async || our_hot_mutex(plan, &server, &permits).await,
        async || {
            // Stopped tasks may have left the previous key locked.
            round += 1;
            let work = |_, count: Count| {
                let (rslock, name) = (rslock.clone(), format!("rslock:{round}"));
                async move {
                    loop {
                        let guard = rslock.acquire(&*name, Duration::from_secs(10)).await;
                        yield_now().await;
                        guard.expect("a lock").release().await;
                        count.add();
                    }
                }
            };
            let done = measure::tasks(plan, TASKS, &server, work).await;
            done.per_second()
        },
    );
    results.add(HOT_RSLOCK, rounds.await);
    coordinators::close(&permits).await;
}

async fn hot_other_language(results: &mut Results, library: Library, about: About) {
    let (plan, server) = (results.plan, RedisServer::start());
    let permits = coordinators::coordinator(&server.url(), Linger::On);
    let rounds = async {
        let foreign = Script::install(library).await?;
        let (mut ours, mut other) = (Vec::new(), Vec::new());
        for _ in 0..plan.rounds {
            ours.push(our_hot_mutex(plan, &server, &permits).await);
            other.push(foreign.rate(&server.url(), TASKS, plan).await?);
            server.command(&["FLUSHALL"]);
        }
        Ok::<_, String>((ours, other))
    };
    let rounds = rounds.await;
    coordinators::close(&permits).await;
    match rounds {
        Ok(rounds) => results.add(about, rounds),
        Err(reason) => results
            .not_measured
            .push(format!("{}: {reason}", about.name)),
    }
}

async fn our_hot_mutex(plan: Plan, server: &RedisServer, permits: &Coordinator) -> f64 {
    let mutex = permits.mutex("hot").expect("a name");
    let work = |_, count: Count| {
        let mutex = mutex.clone();
        async move {
            loop {
                let guard = mutex.lock().await.expect("a lock");
                yield_now().await;
                drop(guard);
                count.add();
            }
        }
    };
    let done = measure::tasks(plan, TASKS, server, work).await;
    done.per_second()
}

async fn layer(results: &mut Results) {
    let plan = results.plan;
    let inner = service_fn(async |request: http::Request<Empty<Bytes>>| {
        black_box(request);
        Ok::<_, Infallible>(http::Response::new(Empty::<Bytes>::new()))
    });
    let permits = Coordinator::new(Memory::new());
    let semaphore = permits.semaphore("layer", WIDE_LIMIT).expect("a limit");
    let ours = DistributedConcurrencyLimitLayer::new(semaphore).release_at_response();
    let tower = ConcurrencyLimitLayer::new(WIDE_LIMIT as usize);
    let (mut ours, mut tower) = (ours.layer(inner), tower.layer(inner));
    let rounds = in_turn(
        plan.rounds,
        async || nanos_a_request(plan, &mut ours).await,
        async || nanos_a_request(plan, &mut tower).await,
    );
    results.add(LAYER, rounds.await);
}

async fn nanos_a_request<S>(plan: Plan, service: &mut S) -> f64
where
    S: Service<http::Request<Empty<Bytes>>>,
    S::Error: Debug,
{
    let request = async || {
        let request = http::Request::new(Empty::new());
        let response = service.ready().await.expect("ready").call(request).await;
        drop(black_box(response.expect("a response")));
    };
    1e9 / measure::in_sequence(plan, request).await
}

async fn lone(results: &mut Results) {
    let (plan, server) = (results.plan, RedisServer::start());
    let permits = coordinators::coordinator(&server.url(), Linger::Off);
    let semaphore = permits.semaphore("lone", WIDE_LIMIT).expect("a limit");
    let plain = PlainSet::connect(&server.url(), "plain", WIDE_LIMIT).await;
    let micros = |done: Done| done.script_micros / done.pairs;
    let rounds = in_turn(
        plan.rounds,
        async || {
            let work = |_, count| coordinators::pairs(semaphore.clone(), count);
            micros(measure::tasks(plan, 1, &server, work).await)
        },
        async || {
            let work = |_, count: Count| {
                let mut plain = plain.clone();
                async move {
                    loop {
                        let member = plain.member();
                        assert!(plain.try_acquire(&member).await, "the set is not contended");
                        plain.release(&member).await;
                        count.add();
                    }
                }
            };
            micros(measure::tasks(plan, 1, &server, work).await)
        },
    );
    results.add(LONE, rounds.await);
    coordinators::close(&permits).await;
}
