//! The concurrency limit over the in-process backend.

mod axum_server;
mod composition;
mod deadlines;
mod lost_permit;
mod random_steps;
mod rejection;
mod reservation;
mod reservation_expiry;
mod response_body;
mod tonic_server;
mod tower_contract;

#[cfg(feature = "reqwest")]
mod reqwest_client;

use common::{modes, services as support};
