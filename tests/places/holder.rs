//! A process of the fleet: many tasks that take permits and locks, and say from when to when they had them.

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

use crate::support::process::{end_with_parent, report};

/// Nobody waits for longer, whatever happens.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a task does, again and again.
#[derive(Clone, Copy)]
enum Habit {
    /// Holds for a moment.
    Quick,
    /// Holds for so long that it takes renewal, and rests as long.
    Slow,
    /// Nobody else wants what it wants: when it is not let in, something is wrong.
    Alone,
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
    habit: Habit,
    all: Arc<All>,
}

/// What the tasks have in common.
#[derive(Default)]
struct All {
    stop: AtomicBool,
    refused: AtomicU64,
    gave_up: AtomicU64,
    lost: AtomicU64,
}

#[test]
fn holder() {
    let Ok(url) = std::env::var("PLACES_URL") else {
        return;
    };
    end_with_parent();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(async {
        serve(&url).await;
        // A runtime that ends would wait for the next line.
        std::process::exit(0);
    });
}

/// The first line has this process's number, the limit and the names; the second ends it.
async fn serve(url: &str) {
    let backend = AnyBackend::from_url(url).expect("a good URL");
    let builder = Coordinator::builder(backend).lease(LEASE);
    let permits = builder.build().expect("a good lease");
    let mut orders = BufReader::new(tokio::io::stdin()).lines();
    let Ok(Some(order)) = orders.next_line().await else {
        return;
    };
    let words: Vec<&str> = order.split(' ').collect();
    let limit = words[1].parse().expect("a limit");
    let (all, mut tasks) = (Arc::new(All::default()), JoinSet::new());
    let limited = |name: &str, limit| permits.semaphore(name, limit).expect("a good limit");
    for name in &words[2..] {
        let limit = Queue::Limit(limited(name, limit));
        let lock = Queue::Lock(permits.mutex(name).expect("a good name"));
        let alone = Queue::Limit(limited(&format!("{name}-{}", words[0]), 1));
        for (queue, habit, count) in [
            (&limit, Habit::Quick, 5),
            (&limit, Habit::Slow, 1),
            (&lock, Habit::Quick, 2),
            (&lock, Habit::Slow, 1),
            (&alone, Habit::Alone, 1),
        ] {
            for _ in 0..count {
                let (queue, all) = (queue.clone(), all.clone());
                tasks.spawn(Task { queue, habit, all }.run());
            }
        }
    }
    let _ = orders.next_line().await;
    all.stop.store(true, Relaxed);
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no panic");
    }
    report(format_args!(
        "ended {} refused, {} gave up, {} lost",
        all.refused.load(Relaxed),
        all.gave_up.load(Relaxed),
        all.lost.load(Relaxed)
    ));
}

// === impl Task ===

impl Task {
    async fn run(self) {
        while !self.all.stop.load(Relaxed) {
            let gives_up = matches!(self.habit, Habit::Quick) && random_bool(0.3);
            let most = gives_up.then(|| millis(20..500));
            let bound = most.map_or(PATIENCE, |most| most + LONGEST + SLACK);
            match timeout(bound, self.queue.take(most)).await {
                Ok(Ok(held)) => self.hold(held).await,
                Ok(Err(error)) if error.kind() == ErrorKind::Unavailable => {
                    self.all.refused.fetch_add(1, Relaxed);
                    sleep(Duration::from_millis(20)).await;
                }
                Ok(Err(error)) if error.kind() == ErrorKind::WaitTimeout && gives_up => {
                    self.all.gave_up.fetch_add(1, Relaxed);
                }
                Ok(Err(error)) => report(format_args!("wrong {}: {error}", self.queue.name())),
                Err(_) => report(format_args!("wrong {}: nobody answers", self.queue.name())),
            }
        }
    }

    async fn hold(&self, held: Held) {
        let time = match self.habit {
            Habit::Slow => millis(0..1500),
            _ => millis(0..20),
        };
        let end = Instant::now() + time;
        // From when to when it was surely held. The clock is read first: what is valid afterwards was so at that time.
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
            // Whose permit is in doubt stays: it may be valid again. Whose permit is lost goes.
            if timeout(left.min(Duration::from_millis(5)), held.lost())
                .await
                .is_ok()
            {
                self.all.lost.fetch_add(1, Relaxed);
                break;
            }
        }
        if let Some((from, to)) = sure {
            report(format_args!(
                "visit {} {from} {to} {}",
                self.queue.name(),
                held.token()
            ));
        }
        let bound = LEASE + LONGEST + SLACK;
        if random_bool(0.5) {
            drop(held);
        } else if timeout(bound, held.release()).await.is_err() {
            report(format_args!("wrong {}: a release hangs", self.queue.name()));
        }
        match self.habit {
            Habit::Quick => {}
            Habit::Slow => sleep(millis(0..1500)).await,
            Habit::Alone => sleep(millis(30..70)).await,
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

    async fn take(&self, most: Option<Duration>) -> Result<Held, Error> {
        Ok(match (self, most) {
            (Self::Limit(it), None) => Held::Permit(it.acquire().await?),
            (Self::Limit(it), Some(most)) => Held::Permit(it.acquire_timeout(most).await?),
            (Self::Lock(it), None) => Held::Lock(it.lock().await?),
            (Self::Lock(it), Some(most)) => Held::Lock(it.lock_timeout(most).await?),
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

    /// With or without an answer.
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
