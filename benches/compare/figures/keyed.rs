//! Keyed mutexes compared with a plain `SET NX PX` and compare-and-delete: pairs a second, and the CPU time of a pair in the
//! client and in the server.

use super::{About, Results, Target};
use crate::coordinators::{self, Linger};
use crate::measure::{Count, Done, Plan, Threads, in_turn, median, server_cpu_micros, tasks_on};
use crate::peers::plain_redis::SetNx;
use crate::server::RedisServer;
use std::cell::Cell;
use std::future::Future;
use std::time::{Duration, Instant};
use tokio::time::sleep;
use tower_permit::Coordinator;

const KEYS: usize = 10_000;
/// The lease for the figures of CPU time, so that records of released locks expire soon.
const LEASE: Duration = Duration::from_secs(1);
/// How long after the work all keys should have expired.
const EXPIRY: Duration = Duration::from_millis(1500);
/// How long to wait for it at most.
const LATEST_EXPIRY: Duration = Duration::from_secs(5);

/// The keys that the tasks lock. No two tasks share keys, so that no lock is contended.
#[derive(Clone, Copy)]
enum Keys {
    /// Every key is used once.
    Fresh,
    /// The same 10,000 keys repeatedly.
    Same,
}

/// The work of both sides.
#[derive(Clone, Copy)]
struct Work {
    tasks: usize,
    keys: Keys,
    threads: Threads,
}

/// Both sides of a figure, over one server.
struct Sides {
    plan: Plan,
    work: Work,
    server: RedisServer,
    permits: Coordinator,
    set_nx: SetNx,
    /// Numbers the runs. Each run has new keys, because the tasks of the previous one may have left some locked.
    runs: Cell<usize>,
}

/// CPU time of a pair, in microseconds.
struct Cpu {
    client: f64,
    server: f64,
}

const RATES: [(About, Work); 6] = [
    (
        rate(
            "keyed_fresh_64_vs_setnx",
            Target::AtLeast(0.7),
            "64 tasks on 2 workers lock and unlock, each key used once, both answered; compared with a plain `SET NX` and compare-and-delete",
        ),
        Work::new(64, Keys::Fresh, Threads::Two),
    ),
    (
        rate(
            "keyed_fresh_64_vs_setnx_one_thread",
            Target::None,
            "the same on a current-thread runtime",
        ),
        Work::new(64, Keys::Fresh, Threads::One),
    ),
    (
        rate(
            "keyed_fresh_256_vs_setnx",
            Target::AtLeast(1.0),
            "the same with 256 tasks on 2 workers",
        ),
        Work::new(256, Keys::Fresh, Threads::Two),
    ),
    (
        rate(
            "keyed_fresh_256_vs_setnx_one_thread",
            Target::None,
            "the same on a current-thread runtime",
        ),
        Work::new(256, Keys::Fresh, Threads::One),
    ),
    (
        rate(
            "keyed_10000_vs_setnx",
            Target::AtLeast(1.0),
            "256 tasks on 2 workers lock and unlock 10,000 keys, none contended, both answered; compared with a plain `SET NX` and compare-and-delete",
        ),
        Work::new(256, Keys::Same, Threads::Two),
    ),
    (
        rate(
            "keyed_10000_vs_setnx_one_thread",
            Target::None,
            "the same on a current-thread runtime",
        ),
        Work::new(256, Keys::Same, Threads::One),
    ),
];
const CLIENT_CPU: About = About {
    name: "keyed_client_cpu_vs_setnx",
    target: Target::AtMost(1.0),
    unit: "µs a pair",
    what: "CPU time of this process, 64 tasks on 2 workers, each key used once; compared with a plain `SET NX` and compare-and-delete",
};
const SERVER_CPU: About = About {
    name: "keyed_server_cpu_vs_setnx",
    target: Target::AtMost(1.5),
    unit: "µs a pair",
    what: "the same work with a lease of 1 s: CPU time of the server's process until all keys have expired, less that of an idle server",
};

const fn rate(name: &'static str, target: Target, what: &'static str) -> About {
    About {
        name,
        target,
        unit: "pairs/s",
        what,
    }
}

pub(crate) async fn run(results: &mut Results) {
    for (about, work) in RATES {
        if results.wants(about) {
            rates(results, about, work).await;
        }
    }
    if results.wants(CLIENT_CPU) || results.wants(SERVER_CPU) {
        cpu(results).await;
    }
}

async fn rates(results: &mut Results, about: About, work: Work) {
    let (plan, server) = (results.plan, RedisServer::start());
    let permits = coordinators::coordinator(&server.url(), Linger::On);
    let sides = Sides::new(plan, work, server, permits).await;
    let rounds = in_turn(
        plan.rounds,
        async || sides.ours().await.per_second(),
        async || sides.other().await.per_second(),
    );
    results.add(about, rounds.await);
    sides.close().await;
}

async fn cpu(results: &mut Results) {
    let (plan, server) = (results.plan, RedisServer::start());
    let (before, start) = (server_cpu_micros(&server), Instant::now());
    sleep(plan.warm_up + plan.window + EXPIRY).await;
    let idle = (server_cpu_micros(&server) - before) / start.elapsed().as_secs_f64();

    let permits = coordinators::with_lease(&server.url(), LEASE);
    let work = Work::new(64, Keys::Fresh, Threads::Two);
    let sides = Sides::new(plan, work, server, permits).await;
    let (ours, other) = in_turn(
        plan.rounds,
        async || sides.cpu(idle, async || sides.ours().await).await,
        async || sides.cpu(idle, async || sides.other().await).await,
    )
    .await;
    let client = |rounds: &[Cpu]| median(rounds.iter().map(|cpu| cpu.client));
    let server = |rounds: &[Cpu]| median(rounds.iter().map(|cpu| cpu.server));
    results.add_values(CLIENT_CPU, client(&ours), client(&other));
    results.add_values(SERVER_CPU, server(&ours), server(&other));
    sides.close().await;
}

// === impl Keys ===

impl Keys {
    /// Returns the keys of one task.
    fn of_task(self, run: usize, task: usize, tasks: usize) -> impl Iterator<Item = String> + Send {
        let end = match self {
            Self::Fresh => usize::MAX,
            Self::Same => KEYS,
        };
        let keys = (task..end).step_by(tasks).cycle();
        keys.map(move |key| format!("key:{run}:{key}"))
    }
}

// === impl Work ===

impl Work {
    const fn new(tasks: usize, keys: Keys, threads: Threads) -> Self {
        Self {
            tasks,
            keys,
            threads,
        }
    }
}

// === impl Sides ===

impl Sides {
    async fn new(plan: Plan, work: Work, server: RedisServer, permits: Coordinator) -> Self {
        let url = server.url();
        let connect = work.threads.run(async move { SetNx::connect(&url).await });
        Self {
            plan,
            work,
            server,
            permits,
            set_nx: connect.await,
            runs: Cell::new(0),
        }
    }

    async fn ours(&self) -> Done {
        self.tasks(|keys, count| {
            let permits = self.permits.clone();
            async move {
                for key in keys {
                    let mutex = permits.mutex(key).expect("a name");
                    let guard = mutex.lock().await.expect("a lock");
                    guard.unlock().await.expect("a reply");
                    count.add();
                }
            }
        })
        .await
    }

    async fn other(&self) -> Done {
        self.tasks(|keys, count| {
            let mut set_nx = self.set_nx.clone();
            async move {
                for key in keys {
                    let id = set_nx.lock(&key).await;
                    set_nx.unlock(&key, &id).await;
                    count.add();
                }
            }
        })
        .await
    }

    /// Starts the tasks, each with its keys.
    async fn tasks<F>(
        &self,
        mut task: impl FnMut(Box<dyn Iterator<Item = String> + Send>, Count) -> F,
    ) -> Done
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let Work {
            tasks,
            keys,
            threads,
        } = self.work;
        let run = self.runs.replace(self.runs.get() + 1);
        let start = |n, count| task(Box::new(keys.of_task(run, n, tasks)), count);
        tasks_on(threads, self.plan, tasks, &self.server, start).await
    }

    /// Measures the CPU time of the client during the window, and of the server until all keys have expired, less that of an idle
    /// server.
    async fn cpu(&self, idle: f64, side: impl AsyncFnOnce() -> Done) -> Cpu {
        let (keys, start) = (self.stored_keys(), Instant::now());
        let before = server_cpu_micros(&self.server);
        let done = side().await;
        let end = Instant::now();
        sleep(EXPIRY).await;
        // A stopped task may have left a key with a longer expiry.
        let few = keys + 2 * self.work.tasks as i64;
        while self.stored_keys() > few && end.elapsed() < LATEST_EXPIRY {
            sleep(EXPIRY / 10).await;
        }
        let used = server_cpu_micros(&self.server) - before;
        Cpu {
            client: done.cpu_micros / done.pairs,
            server: (used - idle * start.elapsed().as_secs_f64()) / done.all_pairs,
        }
    }

    fn stored_keys(&self) -> i64 {
        self.server.command(&["DBSIZE"]).int()
    }

    /// Releases all permits while the server still runs.
    async fn close(self) {
        let Self { work, permits, .. } = &self;
        let permits = permits.clone();
        let close = async move { coordinators::close(&permits).await };
        work.threads.run(close).await;
    }
}
