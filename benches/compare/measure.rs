//! Measurement: windows, rounds, CPU time, medians.

use crate::server::{Answer, RedisServer};
use rustix::time::{ClockId, clock_gettime};
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinSet;

/// The lengths and numbers of measurements.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) rounds: usize,
    /// Time before the window, not measured.
    pub(crate) warm_up: Duration,
    /// The measured time.
    pub(crate) window: Duration,
    /// The same for several processes, because their waits are longer.
    pub(crate) fleet_window: Duration,
}

/// The runtime that runs the tasks of a figure, and with them the client of either side.
#[derive(Clone, Copy)]
pub(crate) enum Threads {
    /// The current-thread runtime of this program.
    One,
    /// A multi-thread runtime with two workers, as in a service.
    Two,
}

/// Counts pairs of acquire and release.
#[derive(Clone, Default)]
pub(crate) struct Count(Arc<AtomicU64>);

/// The work done in a window.
#[derive(Clone, Copy)]
pub(crate) struct Done {
    pub(crate) pairs: f64,
    pub(crate) seconds: f64,
    pub(crate) scripts: f64,
    /// The server's time for these scripts.
    pub(crate) script_micros: f64,
    /// CPU time of this process.
    pub(crate) cpu_micros: f64,
    /// All pairs, including those of the warm-up.
    pub(crate) all_pairs: f64,
}

// === impl Plan ===

impl Plan {
    pub(crate) fn new(quick: bool) -> Self {
        let millis = Duration::from_millis;
        match quick {
            true => Self {
                rounds: 3,
                warm_up: millis(300),
                window: millis(500),
                fleet_window: millis(4_000),
            },
            false => Self {
                rounds: 7,
                warm_up: millis(500),
                window: millis(2_000),
                fleet_window: millis(15_000),
            },
        }
    }
}

// === impl Threads ===

impl Threads {
    pub(crate) fn handle(self) -> Handle {
        static TWO: LazyLock<Runtime> = LazyLock::new(|| {
            let mut builder = Builder::new_multi_thread();
            let runtime = builder.worker_threads(2).enable_all().build();
            runtime.expect("a runtime")
        });
        match self {
            Self::One => Handle::current(),
            Self::Two => TWO.handle().clone(),
        }
    }

    /// Runs a future as a task of the runtime. A client connects this way, since its connection belongs to the runtime that made it.
    pub(crate) async fn run<T: Send + 'static>(
        self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> T {
        self.handle().spawn(work).await.expect("no panic")
    }
}

// === impl Count ===

impl Count {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn get(&self) -> f64 {
        self.0.load(Ordering::Relaxed) as f64
    }
}

// === impl Done ===

impl Done {
    pub(crate) fn per_second(&self) -> f64 {
        self.pairs / self.seconds
    }
}

/// Runs both sides in turn. Returns the values of each in all rounds.
pub(crate) async fn in_turn<T>(
    rounds: usize,
    mut ours: impl AsyncFnMut() -> T,
    mut other: impl AsyncFnMut() -> T,
) -> (Vec<T>, Vec<T>) {
    let (mut by_ours, mut by_other) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        by_ours.push(ours().await);
        by_other.push(other().await);
    }
    (by_ours, by_other)
}

/// Returns the median, or 0 without values.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    quantile(values.into_iter().collect(), 0.5)
}

/// Returns the value that this share of all values does not exceed, or 0 without values.
pub(crate) fn quantile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let index = (values.len() as f64 * share) as usize;
    let last = values.len().saturating_sub(1);
    values.get(index.min(last)).copied().unwrap_or_default()
}

/// [`tasks_on`] the runtime with one thread.
pub(crate) async fn tasks<F>(
    plan: Plan,
    tasks: usize,
    server: &RedisServer,
    work: impl FnMut(usize, Count) -> F,
) -> Done
where
    F: Future<Output = ()> + Send + 'static,
{
    tasks_on(Threads::One, plan, tasks, server, work).await
}

/// Runs tasks that work in an endless loop and count. They are aborted after the window, at any point of their work.
pub(crate) async fn tasks_on<F>(
    threads: Threads,
    plan: Plan,
    tasks: usize,
    server: &RedisServer,
    mut work: impl FnMut(usize, Count) -> F,
) -> Done
where
    F: Future<Output = ()> + Send + 'static,
{
    let (count, runtime) = (Count::default(), threads.handle());
    let mut running = JoinSet::new();
    for n in 0..tasks {
        running.spawn_on(work(n, count.clone()), &runtime);
    }
    tokio::time::sleep(plan.warm_up).await;
    let (calls, micros) = scripts(server);
    let (pairs, cpu, start) = (count.get(), cpu_micros(), Instant::now());
    tokio::time::sleep(plan.window).await;
    let (seconds, cpu, pairs) = (
        start.elapsed().as_secs_f64(),
        cpu_micros() - cpu,
        count.get() - pairs,
    );
    let (calls_after, micros_after) = scripts(server);
    running.shutdown().await;
    Done {
        pairs,
        seconds,
        scripts: calls_after - calls,
        script_micros: micros_after - micros,
        cpu_micros: cpu,
        all_pairs: count.get(),
    }
}

/// Measures latencies in microseconds, in turn with the other side, so that both see the machine in the same state. `rest`
/// follows each operation and is not measured.
pub(crate) async fn latencies_in_turn<T, A, B, C>(
    plan: Plan,
    mut one: impl FnMut() -> A,
    mut rest: impl FnMut(T) -> B,
    mut other: impl FnMut() -> C,
) -> (Vec<f64>, Vec<f64>)
where
    A: Future<Output = T>,
    B: Future,
    C: Future,
{
    let (mut by_one, mut by_other) = (Vec::new(), Vec::new());
    let begin = Instant::now();
    while begin.elapsed() < plan.warm_up + plan.window {
        let measured = begin.elapsed() > plan.warm_up;
        let start = Instant::now();
        let value = one().await;
        let micros = micros_since(start);
        rest(value).await;
        let start = Instant::now();
        other().await;
        let other_micros = micros_since(start);
        if measured {
            by_one.push(micros);
            by_other.push(other_micros);
        }
    }
    (by_one, by_other)
}

pub(crate) fn micros_since(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e6
}

/// Measures how many operations a second one task executes one after another. It yields regularly, so that background tasks
/// run.
pub(crate) async fn in_sequence(plan: Plan, mut one: impl AsyncFnMut()) -> f64 {
    const STRIDE: u64 = 128;
    let mut rate = 0.0;
    for time in [plan.warm_up, plan.window] {
        let (start, mut done) = (Instant::now(), 0_u64);
        while start.elapsed() < time {
            for _ in 0..STRIDE {
                one().await;
            }
            done += STRIDE;
            tokio::task::yield_now().await;
        }
        rate = done as f64 / start.elapsed().as_secs_f64();
    }
    rate
}

/// Returns the CPU time of this process in microseconds.
fn cpu_micros() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

/// Returns the CPU time of the server's process in microseconds.
pub(crate) fn server_cpu_micros(server: &RedisServer) -> f64 {
    let info = server.command(&["INFO", "cpu"]).text();
    let seconds = ["used_cpu_sys:", "used_cpu_user:"].map(|field| {
        let mut lines = info.lines();
        let value = lines.find_map(|line| line.strip_prefix(field));
        value.and_then(|value| value.parse::<f64>().ok())
    });
    seconds.into_iter().flatten().sum::<f64>() * 1e6
}

/// Returns the number of executed scripts and the server's time for them in microseconds, without the commands of this query.
pub(crate) fn scripts(server: &RedisServer) -> (f64, f64) {
    let Answer::Text(stats) = server.command(&["INFO", "commandstats"]) else {
        return (0.0, 0.0);
    };
    let field = |line: &str, name: &str| -> f64 {
        let value = line
            .split([':', ','])
            .find_map(|part| part.strip_prefix(name));
        value.and_then(|value| value.parse().ok()).unwrap_or(0.0)
    };
    stats
        .lines()
        .filter(|line| line.starts_with("cmdstat_eval"))
        .fold((0.0, 0.0), |(calls, usec), line| {
            (calls + field(line, "calls="), usec + field(line, "usec="))
        })
}
