//! The layers, over the in-process backend.

mod body;
mod compose;
mod contract;
mod late;
mod refuse;
mod reserve;
mod server;
mod support;

#[cfg(feature = "reqwest")]
mod client;
