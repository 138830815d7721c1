//! A worker process: this program with other arguments. It reports `ready`, waits for a line, works during the warm-up and
//! the window, and reports the results of the window.

use crate::coordinators::{self, Linger};
use crate::peers::plain_redis::{Broadcast, Polling};
use std::io::Write;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tower_permit::Semaphore;

/// The first argument of a worker process.
pub(crate) const ARGUMENT: &str = "--worker";
pub(crate) const READY: &str = "ready";
/// The first word of the line with the results.
const DONE: &str = "done";
/// The delay of tokio's timers, half of it by rounding.
const LATE: Duration = Duration::from_millis(1);

/// The implementation that is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Side {
    Ours,
    Broadcast,
    Polling,
}

/// The pattern of acquisitions.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Load {
    /// A fixed number of tasks that acquire one permit after another and hold each for a fixed time.
    Closed { tasks: usize, hold: Duration },
    /// Random arrivals at a fixed rate, each in a new task, with random holds of a fixed average.
    Open { rate: f64, hold: Duration },
}

/// The work of a worker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub(crate) side: Side,
    pub(crate) limit: u32,
    pub(crate) load: Load,
    pub(crate) warm_up: Duration,
    pub(crate) window: Duration,
    /// The seed of the random numbers.
    pub(crate) seed: u64,
}

/// The results of a worker for the window.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Permits that were acquired and released.
    pub(crate) completed: u64,
    /// Permits held at a time, on average.
    pub(crate) in_use: f64,
    /// Permits that were acquired.
    pub(crate) acquired: u64,
    /// The wait of each acquisition in milliseconds, followed by the waits that have not ended yet.
    pub(crate) waits: Vec<f64>,
}

/// The counts since the start.
#[derive(Clone)]
struct Tally {
    completed: u64,
    waits: Vec<f64>,
    /// The starts of the waits that have not ended yet.
    waiting: Vec<Instant>,
    in_use: u32,
    /// The total time that permits were held until `now`.
    held: Duration,
    now: Instant,
}

#[derive(Clone)]
enum Limiter {
    Ours(Semaphore),
    Broadcast(Broadcast),
    Polling(Polling),
}

/// SplitMix64: the same numbers for each implementation.
struct Random(u64);

pub(crate) async fn main(args: &[String]) {
    let (url, job) = Job::parse(args).expect("arguments of `Job::args`");
    let limiter = Limiter::connect(job.side, &url, job.limit).await;
    let tally = Arc::new(Mutex::new(Tally::new()));
    report(READY);
    let started = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()));
    started.await.expect("no panic").expect("a line to begin");

    let work = tokio::spawn(work(job, limiter, Arc::clone(&tally)));
    tokio::time::sleep(job.warm_up).await;
    let before = Tally::with(&tally, |tally| tally.at_now().clone());
    tokio::time::sleep(job.window).await;
    let after = Tally::with(&tally, |tally| tally.at_now().clone());
    work.abort();
    report(&after.since(&before).line());
}

fn report(line: &str) {
    println!("{line}");
    std::io::stdout()
        .flush()
        .expect("the parent reads the output");
}

async fn work(job: Job, limiter: Limiter, tally: Arc<Mutex<Tally>>) {
    let mut random = Random(job.seed);
    let mut tasks = JoinSet::new();
    match job.load {
        Load::Closed { tasks: count, hold } => {
            for _ in 0..count {
                let (mut limiter, tally) = (limiter.clone(), Arc::clone(&tally));
                tasks.spawn(async move {
                    loop {
                        limiter.acquisition(hold, &tally).await;
                    }
                });
            }
            tasks.join_all().await;
        }
        Load::Open { rate, hold } => {
            let mut next = tokio::time::Instant::now();
            loop {
                next += Duration::from_secs_f64(random.exponential() / rate);
                tokio::time::sleep_until(next).await;
                let hold = hold.mul_f64(random.exponential());
                let (mut limiter, tally) = (limiter.clone(), Arc::clone(&tally));
                tasks.spawn(async move { limiter.acquisition(hold, &tally).await });
                while tasks.try_join_next().is_some() {}
            }
        }
    }
}

// === impl Job ===

impl Job {
    /// Returns the arguments of the worker for this job.
    pub(crate) fn args(self, url: &str) -> Vec<String> {
        let (kind, amount, hold) = match self.load {
            Load::Closed { tasks, hold } => ("closed", tasks as f64, hold),
            Load::Open { rate, hold } => ("open", rate, hold),
        };
        let millis = |time: Duration| time.as_millis().to_string();
        vec![
            ARGUMENT.to_owned(),
            url.to_owned(),
            format!("{:?}", self.side).to_lowercase(),
            self.limit.to_string(),
            kind.to_owned(),
            amount.to_string(),
            millis(hold),
            millis(self.warm_up),
            millis(self.window),
            self.seed.to_string(),
        ]
    }

    /// Parses the URL and the job.
    fn parse(args: &[String]) -> Option<(String, Self)> {
        let [url, side, limit, kind, amount, hold, warm_up, window, seed] = args else {
            return None;
        };
        let side = match side.as_str() {
            "ours" => Side::Ours,
            "broadcast" => Side::Broadcast,
            "polling" => Side::Polling,
            _ => return None,
        };
        let amount: f64 = amount.parse().ok()?;
        let hold = millis(hold)?;
        let load = match kind.as_str() {
            "closed" => Load::Closed {
                tasks: amount as usize,
                hold,
            },
            "open" => Load::Open { rate: amount, hold },
            _ => return None,
        };
        let job = Self {
            side,
            limit: limit.parse().ok()?,
            load,
            warm_up: millis(warm_up)?,
            window: millis(window)?,
            seed: seed.parse().ok()?,
        };
        Some((url.clone(), job))
    }
}

fn millis_since(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}

fn millis(text: &str) -> Option<Duration> {
    u64::from_str(text).ok().map(Duration::from_millis)
}

// === impl Seen ===

impl Seen {
    /// Formats the line that a worker reports at its end.
    fn line(&self) -> String {
        let waits = self.waits.iter().map(|wait| format!(" {wait:.3}"));
        let waits: String = waits.collect();
        let Self {
            completed,
            in_use,
            acquired,
            ..
        } = self;
        format!("{DONE} {completed} {in_use} {acquired}{waits}")
    }

    pub(crate) fn parse(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix(DONE)?.split_whitespace();
        Some(Self {
            completed: words.next()?.parse().ok()?,
            in_use: words.next()?.parse().ok()?,
            acquired: words.next()?.parse().ok()?,
            waits: words.map(|word| word.parse().ok()).collect::<Option<_>>()?,
        })
    }
}

// === impl Tally ===

impl Tally {
    fn new() -> Self {
        Self {
            completed: 0,
            waits: Vec::new(),
            waiting: Vec::new(),
            in_use: 0,
            held: Duration::ZERO,
            now: Instant::now(),
        }
    }

    fn with<T>(tally: &Mutex<Self>, access: impl FnOnce(&mut Self) -> T) -> T {
        access(&mut tally.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn at_now(&mut self) -> &mut Self {
        let now = Instant::now();
        self.held += self.in_use * (now - self.now);
        self.now = now;
        self
    }

    fn waits(&mut self, start: Instant) {
        self.waiting.push(start);
    }

    fn acquired(&mut self, start: Instant) {
        self.at_now().in_use += 1;
        self.waits.push(millis_since(start));
        if let Some(at) = self.waiting.iter().position(|at| *at == start) {
            self.waiting.swap_remove(at);
        }
    }

    fn released(&mut self) {
        self.at_now().in_use -= 1;
        self.completed += 1;
    }

    /// Returns the results between two tallies.
    fn since(&self, before: &Self) -> Seen {
        let held = self.held - before.held;
        let ended = &self.waits[before.waits.len()..];
        // Waits that have not ended count with their length so far, so that starved waiters count too.
        let waiting = self.waiting.iter().map(|start| millis_since(*start));
        Seen {
            acquired: ended.len() as u64,
            completed: self.completed - before.completed,
            in_use: held.as_secs_f64() / (self.now - before.now).as_secs_f64(),
            waits: ended.iter().copied().chain(waiting).collect(),
        }
    }
}

// === impl Limiter ===

impl Limiter {
    async fn connect(side: Side, url: &str, limit: u32) -> Self {
        const NAME: &str = "fleet";
        match side {
            Side::Ours => {
                let permits = coordinators::coordinator(url, Linger::On);
                permits.check().await.expect("a server");
                let semaphore = permits.semaphore(NAME, limit).expect("a limit");
                Self::Ours(semaphore.max_waiting(usize::MAX))
            }
            Side::Broadcast => Self::Broadcast(Broadcast::connect(url, NAME, limit).await),
            Side::Polling => Self::Polling(Polling::connect(url, NAME, limit).await),
        }
    }

    /// Acquires, holds and releases.
    async fn acquisition(&mut self, hold: Duration, tally: &Mutex<Tally>) {
        let start = Instant::now();
        Tally::with(tally, |tally| tally.waits(start));
        let hold = async || {
            Tally::with(tally, |tally| tally.acquired(start));
            tokio::time::sleep(hold.saturating_sub(LATE)).await;
            Tally::with(tally, Tally::released);
        };
        match self {
            Self::Ours(semaphore) => {
                let permit = semaphore.acquire().await.expect("a permit");
                hold().await;
                drop(permit);
            }
            Self::Broadcast(set) => {
                let member = set.acquire().await;
                hold().await;
                set.release(&member).await;
            }
            Self::Polling(set) => {
                let member = set.acquire().await;
                hold().await;
                set.release(&member).await;
            }
        }
    }
}

// === impl Random ===

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns an exponentially distributed number with the mean 1.
    fn exponential(&mut self) -> f64 {
        let uniform = ((self.next() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
        -uniform.ln()
    }
}
