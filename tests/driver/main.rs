//! Requirements of a coordinator's driver, over every backend: no release is lost, an outage longer than a lease leaves no
//! permit behind, load on some names is no outage for others, a dead connection is replaced, and a panic in a caller's code
//! does not stop the driver.
//!
//! Tests start their own servers and proxies, which end with them. Times are upper bounds, wide enough for two busy cores.
//! Tests wait for conditions instead of fixed times where possible.

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

/// The default lease: far longer than any bound here, so that a permit that is freed only by expiry fails the test.
const DEFAULT_LEASE: Duration = Duration::from_secs(10);
/// An upper bound for a grant that does not wait for a lease to expire.
const PROMPT: Duration = Duration::from_secs(2);
/// How long to wait before a retry.
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

/// Panics if the future takes longer than the bound.
async fn within<T>(bound: Duration, what: &str, future: impl Future<Output = T>) -> T {
    let result = tokio::time::timeout(bound, future).await;
    result.unwrap_or_else(|_| panic!("{what}: not done within {bound:?}"))
}

/// The same as [`within`]. Also panics if the future returns an error.
async fn granted<T>(
    bound: Duration,
    what: &str,
    future: impl Future<Output = Result<T, Error>>,
) -> T {
    let result = within(bound, what, future).await;
    result.unwrap_or_else(|error| panic!("{what}: refused: {error}"))
}

/// Acquires a permit, and retries while the backend is unavailable.
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

/// Locks a mutex, and retries while the backend is unavailable.
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

/// Repeats `try_lock` until it is granted.
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

/// Returns how many permits of a semaphore are in use at the backend.
async fn in_use(coordinator: &Coordinator, name: &str) -> u64 {
    let inspection = within(PROMPT, "an inspection", coordinator.inspect(name)).await;
    inspection.expect("an answer").in_use
}

/// Returns how many guards of a mutex are in use at the backend.
async fn locked(coordinator: &Coordinator, name: &str) -> u64 {
    let mutex = coordinator.mutex(name).expect("a mutex");
    let inspection = within(PROMPT, "an inspection", mutex.inspect()).await;
    inspection.expect("an answer").in_use
}

/// Polls a future this many times, lets the driver run in between, and drops it.
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
