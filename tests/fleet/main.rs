//! Several processes over one Redis, with faults of clocks, links, servers and processes: real servers, real processes,
//! real time.
//!
//! Each test starts its own servers, processes and proxies, which end with it. Times are upper bounds, wide enough for two
//! busy cores. Tests wait for conditions instead of fixed times where possible.

mod agent;
mod cancellation;
mod channel_rights;
mod clocks;
mod contention;
mod handoff_fairness;
mod holder_failures;
mod late_calls;
mod mutexes;
mod outages;
mod runtimes_and_shutdown;
mod server_errors;

use common::modes;
use std::future::Future;
use std::time::{Duration, Instant};
use test_support as support;
use tower_permit::{Coordinator, Redis};

/// The lease of most tests.
const LEASE: Duration = Duration::from_secs(1);
/// What a busy machine may add to any bound.
const SLACK: Duration = Duration::from_secs(1);

/// Held by tests that must not run at the same time as each other.
static EXCLUSIVE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn backend(url: &str) -> Redis {
    Redis::new(url).unwrap().prefix("fleet").unwrap()
}

fn coordinator(url: &str) -> Coordinator {
    let builder = modes::builder(backend(url));
    builder.lease(LEASE).build().unwrap()
}

/// Returns the numbers of permits in use and of queued tickets at the backend.
async fn counts(permits: &Coordinator, name: &str) -> (u64, u64) {
    let inspection = permits.inspect(name).await.expect("an answer");
    (inspection.in_use, inspection.queued)
}

/// Waits until the backend has this many permits in use and tickets queued.
async fn until_counts(permits: &Coordinator, name: &str, wanted: (u64, u64), within: Duration) {
    let end = Instant::now() + within;
    loop {
        let now = counts(permits, name).await;
        if now == wanted {
            return;
        }
        assert!(Instant::now() < end, "{now:?}, not {wanted:?}, in {name}");
        tokio::time::sleep(millis(5)).await;
    }
}

/// Panics if the future takes longer than the bound plus the slack of a busy machine.
async fn within<T>(bound: Duration, what: &str, future: impl Future<Output = T>) -> T {
    let result = tokio::time::timeout(bound + SLACK, future).await;
    result.unwrap_or_else(|_| panic!("{what} took longer than {bound:?}"))
}
