//! How a figure is taken.

use crate::server::{Answer, RedisServer};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// How long and how often.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) rounds: usize,
    /// Not measured.
    pub(crate) warm_up: Duration,
    /// Measured.
    pub(crate) window: Duration,
    /// The same for several processes, whose waits are longer.
    pub(crate) fleet_window: Duration,
}

/// Pairs of acquire and release that were done.
#[derive(Clone, Default)]
pub(crate) struct Count(Arc<AtomicU64>);

/// What was done in a window.
#[derive(Clone, Copy)]
pub(crate) struct Done {
    pub(crate) pairs: f64,
    pub(crate) seconds: f64,
    pub(crate) scripts: f64,
    /// The server's time for them.
    pub(crate) script_micros: f64,
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

/// Ours, the other, ours, the other, …: what each gave in every round.
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

/// The one in the middle; 0 of none.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    quantile(values.into_iter().collect(), 0.5)
}

/// The value that this share of all values does not exceed; 0 of none.
pub(crate) fn quantile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let index = (values.len() as f64 * share) as usize;
    let last = values.len().saturating_sub(1);
    values.get(index.min(last)).copied().unwrap_or_default()
}

/// So many tasks work in a loop without end and count. They are stopped after the window, wherever they are.
pub(crate) async fn tasks<F>(
    plan: Plan,
    tasks: usize,
    server: &RedisServer,
    mut work: impl FnMut(usize, Count) -> F,
) -> Done
where
    F: Future<Output = ()> + Send + 'static,
{
    let count = Count::default();
    let mut running: JoinSet<()> = (0..tasks).map(|n| work(n, count.clone())).collect();
    tokio::time::sleep(plan.warm_up).await;
    let (calls, micros) = scripts(server);
    let (pairs, start) = (count.get(), Instant::now());
    tokio::time::sleep(plan.window).await;
    let (seconds, pairs) = (start.elapsed().as_secs_f64(), count.get() - pairs);
    let (calls_after, micros_after) = scripts(server);
    running.shutdown().await;
    Done {
        pairs,
        seconds,
        scripts: calls_after - calls,
        script_micros: micros_after - micros,
    }
}

/// How long each of many takes, one after the other, in microseconds. `rest` is what has to follow, and is not measured.
pub(crate) async fn latencies<T>(
    plan: Plan,
    mut one: impl AsyncFnMut() -> T,
    mut rest: impl AsyncFnMut(T),
) -> Vec<f64> {
    let start = Instant::now();
    let mut taken = Vec::new();
    while start.elapsed() < plan.warm_up + plan.window {
        let begin = Instant::now();
        let value = one().await;
        let end = begin.elapsed();
        if start.elapsed() > plan.warm_up {
            taken.push(end.as_secs_f64() * 1e6);
        }
        rest(value).await;
    }
    taken
}

/// How often one task does this, a second, one after the other. It looks up now and then, so that what runs in the background runs.
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

/// Scripts that the server has run, and its time for them in microseconds. What a script does counts with it, asking does not.
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
