//! Redis behind sentinels and Redis Cluster, under load, while masters die and slots move.
//!
//! Every server is the test's own and ends with it. Times are bounds from above, wide enough for two busy cores.

#[path = "../support/mod.rs"]
mod support;
#[path = "../support/witness.rs"]
mod witness;

mod cluster;
mod load;
mod sentinel;

use std::time::Duration;
use tower_permit::{Coordinator, Redis};

/// The lease of these tests.
const LEASE: Duration = Duration::from_secs(1);
/// By when everything is as before.
const NORMAL: Duration = Duration::from_secs(2);
/// What a busy machine may add to any bound.
const SLACK: Duration = Duration::from_secs(1);

fn coordinator(redis: Redis) -> Coordinator {
    let redis = redis.prefix("places").expect("a good prefix");
    let builder = Coordinator::builder(redis);
    builder.lease(LEASE).build().expect("a good lease")
}
