//! The concurrency limit over the in-process backend.

mod axum_server;
mod composition;
mod lost_permit;
#[path = "../support/modes.rs"]
#[allow(dead_code, unreachable_pub)]
mod modes;
mod random_steps;
mod rejection;
mod reservation;
mod reservation_expiry;
mod response_body;
mod support;
mod tower_contract;
#[path = "../support/witness.rs"]
mod witness;

#[cfg(feature = "reqwest")]
mod reqwest_client;
