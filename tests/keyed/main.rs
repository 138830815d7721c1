//! The keyed layers, over the in-process backend and, where that makes a difference, over Redis.

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
#[allow(dead_code, unreachable_pub)] // what other tests need of it
#[cfg(feature = "redis")]
#[path = "../support/redis.rs"]
mod redis_server;
mod shop;
#[allow(dead_code)] // the part that is for limits
#[path = "../layers/support.rs"]
mod support;
mod tower_contract;
mod waiting;
#[path = "../support/witness.rs"]
mod witness;
