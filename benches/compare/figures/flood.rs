//! The effect of a flood of keys on another name of the same coordinator, and the memory it uses.

use super::{About, Results, Target};
use crate::coordinators;
use crate::heap;
use crate::measure::{Plan, Threads, median, micros_since};
use crate::server::RedisServer;
use std::collections::BTreeMap;
use std::future::pending;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tower_permit::{Coordinator, Semaphore};

const KEYS: usize = 16_000;
const LIMIT: u32 = 64;
/// How long each key is held.
const HOLD: Duration = Duration::from_millis(10);
/// The pause between two requests for the other name.
const PAUSE: Duration = Duration::from_millis(2);
/// The wait that a refused request counts as: the time after which an outage is detected.
const REFUSED_MICROS: f64 = 1e6;
/// Time for the first requests of all tasks.
const WARM_UP: Duration = Duration::from_secs(2);
/// Long enough for an outage to be detected.
const WINDOW: Duration = Duration::from_secs(4);
const CLOSE: Duration = Duration::from_secs(10);

const P50: About = About {
    name: "flood_neighbour_p50",
    target: Target::AtMost(3.0),
    unit: "µs, median",
    what: "on 2 workers, `acquire().await` of a name, no linger, while 16,000 tasks of the same coordinator lock fresh keys and hold each for 10 ms; compared with the same without these tasks",
};
const P50_APART: About = About {
    name: "flood_neighbour_vs_apart",
    target: Target::None,
    unit: "µs, median",
    what: "the same work; compared with the same name of another coordinator in this process at the same time",
};
const REFUSED: About = About {
    name: "flood_neighbour_refused",
    target: Target::AtMost(0.0),
    unit: "refusals : requests",
    what: "the same work: requests for the name that are refused",
};
const MEMORY: About = About {
    name: "flood_memory_per_key",
    target: Target::AtMost(4.0),
    unit: "KiB : keys",
    what: "the same work: growth of the live heap for each key in flight, less that of as many sleeping tasks",
};

/// Keys in the state of waiting for, holding or releasing their lock.
static IN_FLIGHT: AtomicUsize = AtomicUsize::new(0);

/// Counts a key in flight until it is dropped.
struct InFlight;

/// The results of one round.
struct Round {
    idle: Seen,
    flood: Seen,
    /// Requests through another coordinator during the flood.
    apart: Seen,
    /// Growth of the heap by the flood, without its tasks.
    bytes: f64,
    /// Keys in flight at a time.
    in_flight: f64,
}

/// The results of the requests for one name.
#[derive(Default)]
struct Seen {
    micros: Vec<f64>,
    /// Live heap at each request.
    bytes: Vec<f64>,
    /// Keys of the flood at each request.
    in_flight: Vec<f64>,
    /// Refusals by kind of error.
    refused: BTreeMap<&'static str, usize>,
}

pub(crate) async fn run(results: &mut Results) {
    let figures = [P50, P50_APART, REFUSED, MEMORY];
    if !figures.iter().any(|about| results.wants(*about)) {
        return;
    }
    let plan = results.plan;
    heap::count(true);
    let mut rounds = Vec::new();
    for _ in 0..plan.rounds {
        rounds.push(round(plan).await);
    }
    heap::count(false);

    let all = |value: fn(&Round) -> f64| median(rounds.iter().map(value));
    let flood = all(|round| round.flood.p50());
    results.add_values(P50, flood, all(|round| round.idle.p50()));
    results.add_values(P50_APART, flood, all(|round| round.apart.p50()));
    let sum = |value: fn(&Seen) -> usize| -> f64 {
        rounds.iter().map(|round| value(&round.flood) as f64).sum()
    };
    results.add_values(REFUSED, sum(Seen::refusals), sum(|seen| seen.micros.len()));
    let keys = all(|round| round.in_flight);
    results.add_values(MEMORY, all(|round| round.bytes) / 1024.0, keys);
    for round in rounds {
        if round.flood.refusals() > 0 {
            println!("refused: {:?}", round.flood.refused);
        }
    }
}

async fn round(plan: Plan) -> Round {
    let (threads, server) = (Threads::Two, RedisServer::start());
    let [permits, apart] = [(); 2].map(|()| coordinators::impatient(&server.url()));
    let [name, name_apart] =
        [&permits, &apart].map(|permits| permits.semaphore("neighbour", LIMIT).expect("a limit"));
    let requests = |name: &Semaphore, time| threads.run(requests(name.clone(), time));

    let parked = parked_bytes(threads).await;
    requests(&name, plan.warm_up).await;
    requests(&name_apart, plan.warm_up).await;
    let idle = requests(&name, plan.window).await;

    let before = heap::live_bytes();
    let mut flood = JoinSet::new();
    for n in 0..KEYS {
        flood.spawn_on(lock_fresh_keys(permits.clone(), n), &threads.handle());
    }
    sleep(WARM_UP).await;
    let at_once = tokio::join!(requests(&name, WINDOW), requests(&name_apart, WINDOW));
    flood.shutdown().await;
    // Nothing may run on during the next round. A coordinator that does not shut down in time has missed a target already.
    let close = async move { (permits.shutdown(CLOSE).await, apart.shutdown(CLOSE).await) };
    let _ = timeout(3 * CLOSE, threads.run(close)).await;
    Round {
        idle,
        bytes: median(at_once.0.bytes.iter().copied()) - before - parked,
        in_flight: median(at_once.0.in_flight.iter().copied()),
        flood: at_once.0,
        apart: at_once.1,
    }
}

/// Measures the heap of as many tasks that only sleep.
async fn parked_bytes(threads: Threads) -> f64 {
    let before = heap::live_bytes();
    let mut parked: JoinSet<()> = JoinSet::new();
    for _ in 0..KEYS {
        parked.spawn_on(pending(), &threads.handle());
    }
    sleep(Duration::from_millis(100)).await;
    let bytes = heap::live_bytes() - before;
    parked.shutdown().await;
    bytes
}

/// Locks one key after another in an endless loop. Ignores refusals: only the other name is measured.
async fn lock_fresh_keys(permits: Coordinator, n: usize) {
    for key in (n..).step_by(KEYS) {
        let in_flight = InFlight::new();
        let mutex = permits.mutex(format!("key:{key}")).expect("a name");
        match mutex.lock().await {
            Ok(guard) => {
                sleep(HOLD).await;
                let _ = guard.unlock().await;
            }
            Err(_) => {
                drop(in_flight);
                sleep(HOLD).await;
            }
        }
    }
}

/// Sends one request after another, with a pause in between.
async fn requests(name: Semaphore, time: Duration) -> Seen {
    let (begin, mut seen) = (Instant::now(), Seen::default());
    while begin.elapsed() < time {
        let start = Instant::now();
        let permit = name.acquire().await;
        let micros = micros_since(start);
        seen.bytes.push(heap::live_bytes());
        let in_flight = IN_FLIGHT.load(Ordering::Relaxed);
        seen.in_flight.push(in_flight as f64);
        match permit {
            Ok(permit) => {
                seen.micros.push(micros);
                let _ = permit.release().await;
            }
            Err(error) => {
                seen.micros.push(micros.max(REFUSED_MICROS));
                *seen.refused.entry(error.kind().as_str()).or_default() += 1;
            }
        }
        sleep(PAUSE).await;
    }
    seen
}

// === impl InFlight ===

impl InFlight {
    fn new() -> Self {
        IN_FLIGHT.fetch_add(1, Ordering::Relaxed);
        Self
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        IN_FLIGHT.fetch_sub(1, Ordering::Relaxed);
    }
}

// === impl Seen ===

impl Seen {
    fn p50(&self) -> f64 {
        median(self.micros.iter().copied())
    }

    fn refusals(&self) -> usize {
        self.refused.values().sum()
    }
}
