//! Counts the live heap of this program, only while a figure needs it, so that shared counters do not slow other figures.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

#[global_allocator]
static HEAP: Heap = Heap {
    counting: AtomicBool::new(false),
    live: AtomicI64::new(0),
};

struct Heap {
    counting: AtomicBool,
    /// Bytes allocated less bytes freed while counting.
    live: AtomicI64,
}

/// Starts or stops counting.
pub(crate) fn count(on: bool) {
    HEAP.counting.store(on, Ordering::Relaxed);
}

/// Returns the growth of the live heap while counting, in bytes. Only differences are meaningful.
pub(crate) fn live_bytes() -> f64 {
    HEAP.live.load(Ordering::Relaxed) as f64
}

// === impl Heap ===

impl Heap {
    fn add(&self, bytes: i64) {
        if self.counting.load(Ordering::Relaxed) {
            self.live.fetch_add(bytes, Ordering::Relaxed);
        }
    }
}

// SAFETY: every call is forwarded to the system's allocator unchanged.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.add(layout.size() as i64);
        // SAFETY: the caller upholds the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.add(layout.size() as i64);
        // SAFETY: the caller upholds the same contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        self.add(size as i64 - layout.size() as i64);
        // SAFETY: the caller upholds the same contract.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        self.add(-(layout.size() as i64));
        // SAFETY: the caller upholds the same contract.
        unsafe { System.dealloc(block, layout) }
    }
}
