//! The layers, over the in-process backend.

mod body;
mod compose;
mod contract;
mod late;
mod lost;
mod random;
mod refuse;
mod reserve;
mod server;

#[cfg(feature = "reqwest")]
mod client;

use common::{modes, services as support};
