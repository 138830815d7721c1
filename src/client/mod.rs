//! This process's side of each name: waiters, permits, releases, and what to send to the backend next.
//!
//! [`Client`] is shared by everything of one coordinator: it knows the [`QueueClient`] of each name. A caller holds the
//! receiving end of a channel ([`Acquire`]) or a guard ([`Permit`](crate::Permit)), and may drop it at any time. The
//! [`driver`] talks to the backend for all names; [`State`](state::State) decides what it sends about each.

mod acquire;
mod driver;
mod outage;
mod queue_client;
mod registry;
mod shutdown;
mod state;
mod stats;

#[cfg(test)]
mod tests;

pub(crate) use acquire::{Acquire, Wait};
pub(crate) use driver::Placement;
pub(crate) use queue_client::QueueClient;
pub(crate) use registry::{Client, Settings};
pub(crate) use state::{Hold, Terms};
pub use stats::Stats;
