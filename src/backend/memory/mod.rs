//! The in-process backend.

mod lease_clock;
pub(crate) mod queue;
mod session;
mod store;
#[cfg(test)]
mod tests;

use super::{Backend, Events, Open, Session};
use crate::name::Node;
use session::MemorySession;
use std::fmt;
use std::sync::Arc;
use store::SharedStore;

/// Permits within this process: for tests, for a single process, and to start with.
///
/// It keeps every rule of the other backends, leases included, without a server. It follows tokio's clock, so that a test with
/// paused time controls it. Clones share their permits: coordinators made from clones use the same queues.
///
/// ```
/// use tower_permit::{Coordinator, Memory};
///
/// let memory = Memory::new();
/// let here = Coordinator::new(memory.clone());
/// let there = Coordinator::new(memory); // as if in another process
/// ```
#[derive(Clone, Default)]
pub struct Memory {
    store: Arc<SharedStore>,
}

// === impl Memory ===

impl Memory {
    /// Creates a store without any permit.
    pub fn new() -> Self {
        Self::default()
    }

    /// Removes everything, as a flush of a server does.
    #[cfg(test)]
    pub(super) fn lose_everything(&self) {
        self.store.lock().clear();
    }

    /// Returns how many names are stored.
    #[cfg(test)]
    pub(crate) fn names(&self) -> usize {
        self.store.lock().names()
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").finish_non_exhaustive()
    }
}

impl Backend for Memory {}

impl Open for Memory {
    fn open(self, node: Node, events: Events) -> Arc<dyn Session> {
        Arc::new(MemorySession::new(self.store, node, events))
    }
}
