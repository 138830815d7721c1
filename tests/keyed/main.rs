//! The keyed layers over the in-process backend, and over Redis where that makes a difference.

mod axum_server;
mod composition;
mod held_keys;
mod invalid_key;
mod lost_key;
mod mutual_exclusion;
mod random_steps;
#[cfg(feature = "redis")]
mod redis;
mod shop;
mod tower_contract;
mod waiting;

use common::{modes, services as support};
#[cfg(feature = "redis")]
use test_support::redis as redis_server;
