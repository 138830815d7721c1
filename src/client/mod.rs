//! This process's side of each name: waiters, permits, releases, and what to send to the backend next.
//!
//! [`Client`] is shared by everything of one coordinator: it has the [`QueueClient`] of each name. A caller has the
//! receiving end of a channel or a guard of a [`Hold`], and may drop it at any time. The [`driver`] talks to the backend for
//! all names, in the order of the [`schedule`]; [`State`](state::State) decides what is sent about each.

mod driver;
mod outage;
mod panics;
mod queue_client;
mod registry;
mod schedule;
mod shutdown;
mod state;
mod stats;

#[cfg(test)]
mod tests;

pub(crate) use driver::{CHECK_DRIVER, FIRST_CHECK, Placement};
pub(crate) use queue_client::{QueueClient, Receiver, Wait};
pub(crate) use registry::{Client, Settings};
pub(crate) use state::{Hold, Terms};
pub use stats::Stats;
