//! A process that generates load: many tasks acquire permits and locks, and report the interval of each hold.

use crate::{LEASE, LONGEST, SLACK, now};
use rand::{random_bool, random_range};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tower_permit::{
    AnyBackend, Coordinator, Error, ErrorKind, Mutex, MutexGuard, Permit, Semaphore,
};

use crate::support::process::{report, run_child};

/// No wait is longer, whatever fault occurs.
const PATIENCE: Duration = Duration::from_secs(30);

/// How a task holds what it acquires, repeatedly.
#[derive(Clone, Copy)]
enum Pattern {
    /// Holds for a moment.
    Quick,
    /// Holds for long enough to need renewal, and pauses as long.
    Slow,
    /// Uses a name that no other task uses: when it is not granted, service has not resumed.
    Exclusive,
}

#[derive(Clone)]
enum Queue {
    Limit(Semaphore),
    Lock(Mutex),
}

enum Held {
    Permit(Permit),
    Lock(MutexGuard),
}

#[derive(Clone)]
struct Task {
    queue: Queue,
    pattern: Pattern,
    shared: Arc<Shared>,
}

/// State shared by the tasks.
#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    refused: AtomicU64,
    gave_up: AtomicU64,
    lost: AtomicU64,
}

#[test]
fn load_process() {
    let Ok(url) = std::env::var("LOAD_URL") else {
        return;
    };
    run_child(serve(&url));
}

/// The first line of the standard input contains the number of this process, the limit and the names. The second ends it.
async fn serve(url: &str) {
    let backend = AnyBackend::from_url(url).expect("a valid URL");
    let builder = Coordinator::builder(backend).lease(LEASE);
    let permits = builder.build().expect("a valid lease");
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let Ok(Some(line)) = lines.next_line().await else {
        return;
    };
    let words: Vec<&str> = line.split(' ').collect();
    let limit = words[1].parse().expect("a limit");
    let (shared, mut tasks) = (Arc::new(Shared::default()), JoinSet::new());
    let limited = |name: &str, limit| permits.semaphore(name, limit).expect("a valid limit");
    for name in &words[2..] {
        let limit = Queue::Limit(limited(name, limit));
        let lock = Queue::Lock(permits.mutex(name).expect("a valid name"));
        let exclusive = Queue::Limit(limited(&format!("{name}-{}", words[0]), 1));
        for (queue, pattern, count) in [
            (&limit, Pattern::Quick, 5),
            (&limit, Pattern::Slow, 1),
            (&lock, Pattern::Quick, 2),
            (&lock, Pattern::Slow, 1),
            (&exclusive, Pattern::Exclusive, 1),
        ] {
            for _ in 0..count {
                let (queue, shared) = (queue.clone(), shared.clone());
                tasks.spawn(
                    Task {
                        queue,
                        pattern,
                        shared,
                    }
                    .run(),
                );
            }
        }
    }
    let _ = lines.next_line().await;
    shared.stop.store(true, Relaxed);
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no panic");
    }
    report(format_args!(
        "ended {} refused, {} gave up, {} lost",
        shared.refused.load(Relaxed),
        shared.gave_up.load(Relaxed),
        shared.lost.load(Relaxed)
    ));
}

// === impl Task ===

impl Task {
    async fn run(self) {
        while !self.shared.stop.load(Relaxed) {
            let gives_up = matches!(self.pattern, Pattern::Quick) && random_bool(0.3);
            let wait = gives_up.then(|| millis(20..500));
            let bound = wait.map_or(PATIENCE, |wait| wait + LONGEST + SLACK);
            match timeout(bound, self.queue.acquire(wait)).await {
                Ok(Ok(held)) => self.hold(held).await,
                Ok(Err(error)) if error.kind() == ErrorKind::Unavailable => {
                    self.shared.refused.fetch_add(1, Relaxed);
                    sleep(Duration::from_millis(20)).await;
                }
                Ok(Err(error)) if error.kind() == ErrorKind::WaitTimeout && gives_up => {
                    self.shared.gave_up.fetch_add(1, Relaxed);
                }
                Ok(Err(error)) => report(format_args!("wrong {}: {error}", self.queue.name())),
                Err(_) => report(format_args!(
                    "wrong {}: no result in time",
                    self.queue.name()
                )),
            }
        }
    }

    async fn hold(&self, held: Held) {
        let time = match self.pattern {
            Pattern::Slow => millis(0..1500),
            _ => millis(0..20),
        };
        let end = Instant::now() + time;
        // The interval in which it was certainly held. The clock is read before the check: a permit that is valid after the
        // reading was valid at that time.
        let mut sure = None;
        loop {
            let time = now();
            if held.is_valid() {
                sure.get_or_insert((time, time)).1 = time;
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            // A permit in doubt is kept, since it may become valid again. A lost one is dropped.
            if timeout(left.min(Duration::from_millis(5)), held.lost())
                .await
                .is_ok()
            {
                self.shared.lost.fetch_add(1, Relaxed);
                break;
            }
        }
        if let Some((from, to)) = sure {
            report(format_args!(
                "hold {} {from} {to} {}",
                self.queue.name(),
                held.token()
            ));
        }
        let bound = LEASE + LONGEST + SLACK;
        if random_bool(0.5) {
            drop(held);
        } else if timeout(bound, held.release()).await.is_err() {
            report(format_args!(
                "wrong {}: the release does not end",
                self.queue.name()
            ));
        }
        match self.pattern {
            Pattern::Quick => {}
            Pattern::Slow => sleep(millis(0..1500)).await,
            Pattern::Exclusive => sleep(millis(30..70)).await,
        }
    }
}

// === impl Queue ===

impl Queue {
    fn name(&self) -> String {
        match self {
            Self::Limit(semaphore) => format!("limit:{}", semaphore.name()),
            Self::Lock(mutex) => format!("lock:{}", mutex.name()),
        }
    }

    async fn acquire(&self, wait: Option<Duration>) -> Result<Held, Error> {
        Ok(match (self, wait) {
            (Self::Limit(it), None) => Held::Permit(it.acquire().await?),
            (Self::Limit(it), Some(wait)) => Held::Permit(it.acquire_timeout(wait).await?),
            (Self::Lock(it), None) => Held::Lock(it.lock().await?),
            (Self::Lock(it), Some(wait)) => Held::Lock(it.lock_timeout(wait).await?),
        })
    }
}

// === impl Held ===

impl Held {
    fn is_valid(&self) -> bool {
        match self {
            Self::Permit(permit) => permit.is_valid(),
            Self::Lock(guard) => guard.is_valid(),
        }
    }

    fn token(&self) -> u64 {
        match self {
            Self::Permit(_) => 0,
            Self::Lock(guard) => guard.token(),
        }
    }

    async fn lost(&self) {
        match self {
            Self::Permit(permit) => permit.lost().await,
            Self::Lock(guard) => guard.lost().await,
        };
    }

    /// Releases, and ignores a failed call.
    async fn release(self) {
        let _ = match self {
            Self::Permit(permit) => permit.release().await,
            Self::Lock(guard) => guard.unlock().await,
        };
    }
}

fn millis(range: std::ops::Range<u64>) -> Duration {
    Duration::from_millis(random_range(range))
}
