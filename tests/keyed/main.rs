//! The keyed layers, over the in-process backend.

mod bad_input;
mod compose;
mod contract;
mod exclude;
mod held;
mod lost;
mod random;
mod server;
mod shop;
#[allow(dead_code)] // the part that is for limits
#[path = "../layers/support.rs"]
mod support;
mod wait;
#[path = "../support/witness.rs"]
mod witness;
