//! The layers, over the in-process backend.

mod body;
mod compose;
mod contract;
mod late;
mod lost;
#[path = "../support/modes.rs"]
#[allow(dead_code, unreachable_pub)]
mod modes;
mod random;
mod refuse;
mod reserve;
mod server;
mod support;
#[path = "../support/witness.rs"]
mod witness;

#[cfg(feature = "reqwest")]
mod client;
