//! Every kind of deployment under the load of two processes, while servers and processes are paused, killed and cut off.
//!
//! Each test starts its own servers, processes and proxies, which end with it. Times are upper bounds, wide enough for two
//! busy cores. `SOAK_SECONDS` sets how long random faults are injected, `SOAK_SEED` the seed that selects them.

mod failover;
mod fault_injection;
mod load;
mod load_process;
mod servers;
mod soak;

use rustix::time::{ClockId, clock_gettime};
use servers::{Cluster, Sentinels, SingleRedis, ThreeEtcds, ThreeRedis};
use soak::soak;
use std::time::Duration;
use support::zookeeper::ZooKeepers;
use test_support as support;
use tokio::sync::Mutex;

/// The lease of these tests.
const LEASE: Duration = Duration::from_secs(1);
/// By when service has resumed.
const NORMAL: Duration = Duration::from_secs(2);
/// What a busy machine may add to any bound.
const SLACK: Duration = Duration::from_secs(2);
/// How long a fault lasts at most, and so how long a process may be paused.
const LONGEST: Duration = Duration::from_millis(2500);

/// Tests run one after another, because each loads the machine.
static EXCLUSIVE: Mutex<()> = Mutex::const_new(());

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_keeps_the_limit_under_random_faults() {
    soak(SingleRedis::start).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinel_keeps_the_limit_under_random_faults() {
    soak(Sentinels::start).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_keeps_the_limit_under_random_faults() {
    soak(|| Cluster::start(3, true)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redlock_keeps_the_limit_under_random_faults() {
    soak(ThreeRedis::start).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_keeps_the_limit_under_random_faults() {
    soak(ThreeEtcds::start).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zookeeper_keeps_the_limit_under_random_faults() {
    soak(|| ZooKeepers::start(3)).await;
}

/// Returns the time in microseconds of a clock that all processes of the machine share.
fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1_000
}
