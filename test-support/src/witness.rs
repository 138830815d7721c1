//! Counts permit holders within one process, independently of the permits.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// A counter of holders. Each holder calls [`enter`](Self::enter) while it has a permit.
#[derive(Clone, Debug, Default)]
pub struct Witness {
    inside: Arc<AtomicUsize>,
    peak: Arc<AtomicUsize>,
}

/// A counted holder, until dropped.
#[derive(Debug)]
pub struct Inside(Witness);

impl Witness {
    pub fn enter(&self) -> Inside {
        let inside = self.inside.fetch_add(1, SeqCst) + 1;
        self.peak.fetch_max(inside, SeqCst);
        Inside(self.clone())
    }

    pub fn inside(&self) -> usize {
        self.inside.load(SeqCst)
    }

    /// Returns the most holders at one time.
    pub fn peak(&self) -> usize {
        self.peak.load(SeqCst)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, SeqCst);
    }
}
