//! The keyed layers over the in-process backend, and over Redis where that makes a difference.

mod axum_server;
mod composition;
mod held_keys;
mod invalid_key;
mod lost_key;
#[path = "../support/modes.rs"]
#[allow(dead_code, unreachable_pub)]
mod modes;
mod mutual_exclusion;
#[cfg(feature = "redis")]
#[path = "../support/pause.rs"]
mod pause;
mod random_steps;
#[cfg(feature = "redis")]
mod redis;
#[allow(dead_code, unreachable_pub)] // used by other tests
#[cfg(feature = "redis")]
#[path = "../support/redis.rs"]
mod redis_server;
mod shop;
#[allow(dead_code)] // used by the tests of the limit
#[path = "../layers/support.rs"]
mod support;
mod tower_contract;
mod waiting;
#[path = "../support/witness.rs"]
mod witness;
