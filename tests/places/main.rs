//! Every place a permit can live, under load: two processes, while servers are paused, killed, cut off and mended.
//!
//! Every server, process and proxy is the test's own and ends with it. Times are bounds from above, wide enough for two
//! busy cores. `SOAK_SECONDS` says for how long faults are made at random, `SOAK_SEED` which.

mod failover;
mod holder;
mod load;
mod rig;
mod servers;
mod soak;

use rustix::time::{ClockId, clock_gettime};
use servers::{Cluster, OneRedis, Sentinels, ThreeEtcds, ThreeRedis};
use soak::soak;
use std::time::Duration;
use support::zookeeper::ZooKeepers;
use test_support as support;
use tokio::sync::Mutex;

/// The lease of these tests.
const LEASE: Duration = Duration::from_secs(1);
/// By when everything is as before.
const NORMAL: Duration = Duration::from_secs(2);
/// What a busy machine may add to any bound.
const SLACK: Duration = Duration::from_secs(2);
/// How long faults last at most, and so for how long a process may be stopped.
const LONGEST: Duration = Duration::from_millis(2500);

/// One after the other: each wants the machine for itself.
static ALONE: Mutex<()> = Mutex::const_new(());

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_faults_under_load() {
    soak(OneRedis::start).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinel_faults_under_load() {
    soak(Sentinels::start).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_faults_under_load() {
    soak(|| Cluster::start(3, true)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redlock_faults_under_load() {
    soak(ThreeRedis::start).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_faults_under_load() {
    soak(ThreeEtcds::start).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zookeeper_faults_under_load() {
    soak(|| ZooKeepers::start(3)).await;
}

/// Microseconds of a clock that all processes of the machine share.
fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1_000
}
