//! One of several processes: this program again, with arguments of its own. It says `ready`, begins when it is told, works through the
//! warm-up and the window, and says what it saw in the window.

use crate::ours::{self, Linger};
use crate::peers::plain::{Broadcast, Polling};
use std::io::Write;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tower_permit::Semaphore;

/// What makes this program a worker, as its first argument.
pub(crate) const ARGUMENT: &str = "--worker";
pub(crate) const READY: &str = "ready";
/// The first word of the line that says what was seen.
const DONE: &str = "done";
/// tokio's timers end so much late, half of it by rounding.
const LATE: Duration = Duration::from_millis(1);

/// Whose permits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Side {
    Ours,
    Broadcast,
    Polling,
}

/// Who wants them.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Load {
    /// So many tasks, one acquisition after the other. Each holds for this long.
    Closed { tasks: usize, hold: Duration },
    /// So many a second, at random, each in a task of its own. They hold at random, for this long on average.
    Open { rate: f64, hold: Duration },
}

/// What a worker is to do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub(crate) side: Side,
    pub(crate) limit: u32,
    pub(crate) load: Load,
    pub(crate) warm_up: Duration,
    pub(crate) window: Duration,
    /// Of what happens at random.
    pub(crate) seed: u64,
}

/// What it saw in the window.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Permits that were acquired and released.
    pub(crate) completed: u64,
    /// Permits that were held at a time, on average.
    pub(crate) in_use: f64,
    /// Permits that were acquired.
    pub(crate) acquired: u64,
    /// Of each acquisition, in milliseconds; then, of each that is still under way, as long as it has lasted.
    pub(crate) waits: Vec<f64>,
}

/// What has happened since the beginning.
#[derive(Clone)]
struct Tally {
    completed: u64,
    waits: Vec<f64>,
    /// When the waits that have no end yet began.
    waiting: Vec<Instant>,
    in_use: u32,
    /// Time that permits were held, added up, until `now`.
    held: Duration,
    now: Instant,
}

#[derive(Clone)]
enum Limiter {
    Ours(Semaphore),
    Broadcast(Broadcast),
    Polling(Polling),
}

/// SplitMix64: the same numbers on every side.
struct Random(u64);

pub(crate) async fn main(args: &[String]) {
    let (url, job) = Job::parse(args).expect("arguments of `Job::args`");
    let limiter = Limiter::connect(job.side, &url, job.limit).await;
    let tally = Arc::new(Mutex::new(Tally::new()));
    say(READY);
    let told = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()));
    told.await.expect("no panic").expect("a word to begin");

    let work = tokio::spawn(work(job, limiter, Arc::clone(&tally)));
    tokio::time::sleep(job.warm_up).await;
    let before = Tally::with(&tally, |tally| tally.at_now().clone());
    tokio::time::sleep(job.window).await;
    let after = Tally::with(&tally, |tally| tally.at_now().clone());
    work.abort();
    say(&after.since(&before).line());
}

fn say(line: &str) {
    println!("{line}");
    std::io::stdout().flush().expect("somebody listens");
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
    /// The arguments of a worker that does it.
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

    /// The URL, and the job.
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
    /// What a worker says at its end.
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

    fn with<T>(tally: &Mutex<Self>, look: impl FnOnce(&mut Self) -> T) -> T {
        look(&mut tally.lock().unwrap_or_else(PoisonError::into_inner))
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

    /// What has happened between the two.
    fn since(&self, before: &Self) -> Seen {
        let held = self.held - before.held;
        let ended = &self.waits[before.waits.len()..];
        // Who waits still has waited for as long already: those who starve count too.
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
                let permits = ours::coordinator(url, Linger::On);
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

    /// 1 on average.
    fn exponential(&mut self) -> f64 {
        let uniform = ((self.next() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
        -uniform.ln()
    }
}
