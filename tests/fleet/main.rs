//! Many processes, one Redis, and whatever can go wrong between them: real servers, real processes, real time.
//!
//! Every server, process and proxy is the test's own and ends with it. Times are bounds from above, wide enough for two
//! busy cores; what can be awaited is awaited.

mod agent;
mod cancellation;
mod clocks;
mod contention;
mod hogs;
mod holders;
mod late_calls;
mod lifetimes;
mod misuse;
mod mutexes;
mod outages;
mod pushes;

use common::modes;
use std::future::Future;
use std::time::{Duration, Instant};
use test_support as support;
use tower_permit::{Coordinator, Redis};

/// The lease of most tests.
const LEASE: Duration = Duration::from_secs(1);
/// What a busy machine may add to any bound.
const SLACK: Duration = Duration::from_secs(1);

/// For tests that want the machine for themselves.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

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

/// What the backend says is in use and waiting.
async fn seen(permits: &Coordinator, name: &str) -> (u64, u64) {
    let seen = permits.inspect(name).await.expect("an answer");
    (seen.in_use, seen.queued)
}

/// Waits until the backend says that so many are in use and waiting.
async fn until_seen(permits: &Coordinator, name: &str, wanted: (u64, u64), within: Duration) {
    let end = Instant::now() + within;
    loop {
        let now = seen(permits, name).await;
        if now == wanted {
            return;
        }
        assert!(Instant::now() < end, "{now:?}, not {wanted:?}, in {name}");
        tokio::time::sleep(millis(5)).await;
    }
}

/// Panics if it takes longer than the bound and what a busy machine adds to it.
async fn within<T>(bound: Duration, what: &str, future: impl Future<Output = T>) -> T {
    let result = tokio::time::timeout(bound + SLACK, future).await;
    result.unwrap_or_else(|_| panic!("{what} took longer than {bound:?}"))
}
