//! Figures of four processes that share a limit.

use super::{About, Results, Target, Waits};
use crate::measure::{Plan, median, quantile, scripts};
use crate::server::RedisServer;
use crate::worker::{Job, Load, READY, Seen, Side};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

const PROCESSES: usize = 4;
const BUSY_LIMIT: u32 = 4;
const BUSY: Load = Load::Closed {
    tasks: 64 / PROCESSES,
    hold: Duration::from_millis(5),
};
const LOADED_LIMIT: u32 = 8;
/// 0.9 of the rate that the limit allows: 8 / 20 ms.
const LOADED: Load = Load::Open {
    rate: 360.0 / PROCESSES as f64,
    hold: Duration::from_millis(20),
};

const IN_USE: About = About {
    name: "in_use_4_processes",
    target: Target::AtLeast(0.97),
    unit: "permits in use",
    what: "4 processes, 64 tasks in total, limit 4, holds of 5 ms; compared with the limit",
};
const FAIRNESS: About = About {
    name: "fairness_4_processes",
    target: Target::AtMost(1.1),
    unit: "completions",
    what: "the same work: of the process with the most grants, compared with the one with the fewest",
};
const P99: About = About {
    name: "p99_wait_vs_broadcast",
    target: Target::AtMost(0.3),
    unit: "ms, p99",
    what: "the same work; compared with a sorted set with waiters that all retry at each release",
};
const P99_POLLING: About = About {
    name: "p99_wait_vs_polling",
    target: Target::None,
    unit: "ms, p99",
    what: "the same work; compared with a sorted set with waiters that retry every 10 ms",
};
const SCRIPTS: About = About {
    name: "scripts_per_acquisition",
    target: Target::AtMost(1.5),
    unit: "scripts : acquisitions/s",
    what: "4 processes, limit 8, arrivals and holds at random, 20 ms on average, load 0.9",
};
const P99_LOADED: About = About {
    name: "p99_wait_at_load_vs_broadcast",
    target: Target::None,
    unit: "ms, p99",
    what: "the same work; compared with a sorted set with waiters that all retry at each release",
};

/// The results of all processes in one round.
struct Round {
    seen: Vec<Seen>,
    window: Duration,
    scripts: f64,
}

/// A running worker process.
struct Worker {
    /// Killed when dropped.
    _child: Child,
    stdin: ChildStdin,
    stdout: Lines<BufReader<ChildStdout>>,
}

pub(crate) async fn run(results: &mut Results) {
    let about = [IN_USE, FAIRNESS, P99, P99_POLLING];
    if about.iter().any(|about| results.wants(*about)) {
        busy(results).await;
    }
    if results.wants(SCRIPTS) || results.wants(P99_LOADED) {
        loaded(results).await;
    }
}

async fn busy(results: &mut Results) {
    let mut sides = vec![Side::Ours];
    sides.extend(results.wants(P99).then_some(Side::Broadcast));
    sides.extend(results.wants(P99_POLLING).then_some(Side::Polling));
    let rounds = rounds(results.plan, &sides, BUSY_LIMIT, BUSY).await;
    let ours = &rounds[0];
    results.add_values(
        IN_USE,
        median(ours.iter().map(Round::in_use)),
        f64::from(BUSY_LIMIT),
    );
    // Both values of the median round, not the median of each.
    let mut fairness: Vec<_> = ours.iter().map(Round::most_and_least).collect();
    fairness.sort_by(|a, b| (a.0 / a.1).total_cmp(&(b.0 / b.1)));
    let (most, least) = fairness[fairness.len() / 2];
    results.add_values(FAIRNESS, most, least);

    for (side, rounds) in sides.iter().zip(&rounds) {
        let (label, about) = match side {
            Side::Ours => ("tower-permit", None),
            Side::Broadcast => ("sorted set, all waiters notified", Some(P99)),
            Side::Polling => ("sorted set, polled every 10 ms", Some(P99_POLLING)),
        };
        if let Some(about) = about {
            results.add_values(about, p99(ours), p99(rounds));
        }
        let millis = rounds.iter().flat_map(Round::waits).collect();
        results.waits.push(Waits { label, millis });
    }
}

async fn loaded(results: &mut Results) {
    let mut sides = vec![Side::Ours];
    sides.extend(results.wants(P99_LOADED).then_some(Side::Broadcast));
    let rounds = rounds(results.plan, &sides, LOADED_LIMIT, LOADED).await;
    let by = |value: fn(&Round) -> f64| median(rounds[0].iter().map(value));
    results.add_values(
        SCRIPTS,
        by(Round::scripts_a_second),
        by(Round::acquisitions_a_second),
    );
    if let [ours, broadcast] = &rounds[..] {
        results.add_values(P99_LOADED, p99(ours), p99(broadcast));
    }
}

/// Runs the sides in turn, several times. Returns the rounds of each.
async fn rounds(plan: Plan, sides: &[Side], limit: u32, load: Load) -> Vec<Vec<Round>> {
    let mut rounds: Vec<Vec<Round>> = sides.iter().map(|_| Vec::new()).collect();
    for number in 0..plan.rounds {
        for (side, rounds) in sides.iter().zip(&mut rounds) {
            let job = Job {
                side: *side,
                limit,
                load,
                warm_up: plan.warm_up,
                window: plan.fleet_window,
                seed: (number * PROCESSES) as u64,
            };
            rounds.push(round(job).await);
        }
    }
    rounds
}

async fn round(job: Job) -> Round {
    let server = RedisServer::start();
    let mut workers = Vec::new();
    for n in 0..PROCESSES {
        let seed = job.seed + n as u64;
        workers.push(Worker::start(Job { seed, ..job }, &server.url()));
    }
    for worker in &mut workers {
        assert_eq!(worker.receive().await, READY);
    }
    for worker in &mut workers {
        worker.begin().await;
    }
    tokio::time::sleep(job.warm_up).await;
    let (before, _) = scripts(&server);
    tokio::time::sleep(job.window).await;
    let (after, _) = scripts(&server);
    let mut seen = Vec::new();
    for worker in &mut workers {
        let line = worker.receive().await;
        seen.push(Seen::parse(&line).unwrap_or_else(|| panic!("a worker reported {line:?}")));
    }
    Round {
        seen,
        window: job.window,
        scripts: after - before,
    }
}

/// Returns the median of the rounds.
fn p99(rounds: &[Round]) -> f64 {
    let rounds = rounds.iter();
    median(rounds.map(|round| quantile(round.waits().collect(), 0.99)))
}

// === impl Round ===

impl Round {
    fn in_use(&self) -> f64 {
        self.seen.iter().map(|seen| seen.in_use).sum()
    }

    fn most_and_least(&self) -> (f64, f64) {
        let completed = self.seen.iter().map(|seen| seen.completed as f64);
        let least = completed.clone().fold(f64::INFINITY, f64::min);
        (completed.fold(0.0, f64::max), least)
    }

    fn waits(&self) -> impl Iterator<Item = f64> {
        self.seen.iter().flat_map(|seen| seen.waits.iter().copied())
    }

    fn acquisitions_a_second(&self) -> f64 {
        let acquired: u64 = self.seen.iter().map(|seen| seen.acquired).sum();
        acquired as f64 / self.window.as_secs_f64()
    }

    fn scripts_a_second(&self) -> f64 {
        self.scripts / self.window.as_secs_f64()
    }
}

// === impl Worker ===

impl Worker {
    fn start(job: Job, url: &str) -> Self {
        let program = std::env::current_exe().expect("this program");
        let mut child = Command::new(program)
            .args(job.args(url))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("this program runs again");
        let stdin = child.stdin.take().expect("a pipe");
        let stdout = child.stdout.take().expect("a pipe");
        Self {
            _child: child,
            stdin,
            stdout: BufReader::new(stdout).lines(),
        }
    }

    async fn begin(&mut self) {
        self.stdin
            .write_all(b"go\n")
            .await
            .expect("the worker reads its input");
    }

    async fn receive(&mut self) -> String {
        let line = self.stdout.next_line().await.expect("text");
        line.expect("a line before the worker ends")
    }
}
