//! The keyed layers, over the in-process backend and, where that makes a difference, over Redis.

mod bad_input;
mod compose;
mod contract;
mod exclude;
mod held;
mod lost;
mod random;
#[cfg(feature = "redis")]
mod redis;
mod server;
mod shop;
mod wait;

use common::{modes, services as support};
#[cfg(feature = "redis")]
use test_support::redis as redis_server;
