//! Counts who is inside, from outside.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// Everybody who holds a permit goes in and out by this.
#[derive(Clone, Debug, Default)]
pub struct Witness {
    inside: Arc<AtomicUsize>,
    peak: Arc<AtomicUsize>,
}

/// Somebody is inside until this is dropped.
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

    /// The most that were ever inside at once.
    pub fn peak(&self) -> usize {
        self.peak.load(SeqCst)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, SeqCst);
    }
}
