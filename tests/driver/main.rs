//! What the driver of a coordinator must do, over every backend, through the public API only: no release is lost, an outage
//! longer than a lease leaves nothing behind, load on some names is no outage for others, a dead connection is replaced, and a
//! panic in a caller's code stops nothing.
//!
//! Every server and proxy is the test's own and ends with it. Times are upper bounds, wide enough for two busy cores; whatever
//! can be awaited is awaited.

mod backends;
mod dead_connections;
mod floods;
mod flush;
mod outages;
mod panics;
mod releases;
mod runtimes;

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;
use test_support as support;
use tokio::runtime::{Builder, Runtime};
use tower_permit::{Coordinator, Error, ErrorKind, Mutex, MutexGuard, Permit, Semaphore};

/// The default lease: far longer than any bound here, so that a permit that comes free with its lease fails the test.
const DEFAULT_LEASE: Duration = Duration::from_secs(10);
/// An upper bound for a grant that waits for no lease.
const PROMPT: Duration = Duration::from_secs(2);
/// How long to wait before another try.
const PAUSE: Duration = millis(10);

/// Held shared by most tests, and exclusively by those that load both cores.
static LOAD: tokio::sync::RwLock<()> = tokio::sync::RwLock::const_new(());

#[derive(Clone, Copy, Debug)]
enum Flavor {
    CurrentThread,
    MultiThread,
}

const FLAVORS: [Flavor; 2] = [Flavor::CurrentThread, Flavor::MultiThread];

impl Flavor {
    fn runtime(self) -> Runtime {
        let mut builder = match self {
            Self::CurrentThread => Builder::new_current_thread(),
            Self::MultiThread => Builder::new_multi_thread(),
        };
        let builder = builder.worker_threads(2).enable_all();
        builder.build().expect("a runtime")
    }
}

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Panics if it takes longer.
async fn within<T>(bound: Duration, what: &str, future: impl Future<Output = T>) -> T {
    let result = tokio::time::timeout(bound, future).await;
    result.unwrap_or_else(|_| panic!("{what}: not done within {bound:?}"))
}

/// [`within`], for what is not refused.
async fn granted<T>(
    bound: Duration,
    what: &str,
    future: impl Future<Output = Result<T, Error>>,
) -> T {
    let result = within(bound, what, future).await;
    result.unwrap_or_else(|error| panic!("{what}: refused: {error}"))
}

/// Acquires, and tries again while the backend counts as unavailable.
async fn acquire_when_available(semaphore: &Semaphore) -> Result<Permit, Error> {
    loop {
        match semaphore.acquire().await {
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                tokio::time::sleep(PAUSE).await;
            }
            result => return result,
        }
    }
}

/// Locks, and tries again while the backend counts as unavailable.
async fn lock_when_available(mutex: &Mutex) -> Result<MutexGuard, Error> {
    loop {
        match mutex.lock().await {
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                tokio::time::sleep(PAUSE).await;
            }
            result => return result,
        }
    }
}

/// Tries to lock until it is granted.
async fn try_lock_until_granted(mutex: &Mutex) -> Result<MutexGuard, Error> {
    loop {
        match mutex.try_lock().await {
            Err(error) if error.kind() == ErrorKind::LimitReached => {
                tokio::time::sleep(PAUSE).await;
            }
            result => return result,
        }
    }
}

/// How many permits of a semaphore are in use, as the backend answers.
async fn in_use(coordinator: &Coordinator, name: &str) -> u64 {
    let seen = within(PROMPT, "an inspection", coordinator.inspect(name)).await;
    seen.expect("an answer").in_use
}

/// How many guards of a mutex are in use, as the backend answers.
async fn locked(coordinator: &Coordinator, name: &str) -> u64 {
    let mutex = coordinator.mutex(name).expect("a mutex");
    let seen = within(PROMPT, "an inspection", mutex.inspect()).await;
    seen.expect("an answer").in_use
}

/// Polls a future so many times, lets the driver run in between, and drops it.
async fn poll_and_drop(future: impl Future, polls: usize) {
    let mut future = pin!(future);
    for poll in 0..polls {
        if poll > 0 {
            tokio::task::yield_now().await;
        }
        let mut cx = Context::from_waker(Waker::noop());
        if future.as_mut().poll(&mut cx).is_ready() {
            return;
        }
    }
}

/// Locks a name on a runtime that ends, before or after the guard is dropped.
fn lock_and_end(coordinator: &Coordinator, name: &str, flavor: Flavor, ends_first: bool) {
    let ends = flavor.runtime();
    let guard = ends.block_on(async {
        let mutex = coordinator.mutex(name).expect("a mutex");
        granted(PROMPT, "a lock", mutex.lock()).await
    });
    match ends_first {
        true => {
            drop(ends);
            drop(guard);
        }
        false => {
            ends.block_on(async { drop(guard) });
            drop(ends);
        }
    }
}
