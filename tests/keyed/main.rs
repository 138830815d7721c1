//! The keyed layers, over the in-process backend and, where that makes a difference, over Redis.

mod bad_input;
mod compose;
mod contract;
mod exclude;
mod held;
mod lost;
#[path = "../support/modes.rs"]
#[allow(dead_code, unreachable_pub)]
mod modes;
#[cfg(feature = "redis")]
#[path = "../support/pause.rs"]
mod pause;
mod random;
#[cfg(feature = "redis")]
mod redis;
#[allow(dead_code, unreachable_pub)] // what other tests need of it
#[cfg(feature = "redis")]
#[path = "../support/redis.rs"]
mod redis_server;
mod server;
mod shop;
#[allow(dead_code)] // the part that is for limits
#[path = "../layers/support.rs"]
mod support;
mod wait;
#[path = "../support/witness.rs"]
mod witness;
