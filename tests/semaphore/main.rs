//! Semaphores and permits over the in-process backend: what a caller may rely on, whatever the backend.

#[path = "../support/logs.rs"]
#[allow(dead_code, unreachable_pub)]
mod logs;
#[path = "../support/modes.rs"]
#[allow(dead_code, unreachable_pub)]
mod modes;
#[path = "../support/witness.rs"]
mod witness;

mod cancellation;
mod logging;
mod runtimes;
mod semaphore;

use tower_permit::{Coordinator, Memory, Semaphore};

/// A semaphore of its own, with the coordinator to look at it.
fn alone(limit: u32) -> (Coordinator, Semaphore) {
    let permits = modes::coordinator(Memory::new());
    let semaphore = permits.semaphore("test", limit).expect("a fine limit");
    (permits, semaphore)
}

/// The same, where every permit goes back to the backend when it is released.
fn strict(limit: u32) -> (Coordinator, Semaphore) {
    let permits = modes::builder(Memory::new()).strict_fifo(true);
    let permits = permits.build().expect("fine settings");
    let semaphore = permits.semaphore("test", limit).expect("a fine limit");
    (permits, semaphore)
}

/// What the backend says is in use and waiting.
async fn seen(permits: &Coordinator) -> (u64, u64) {
    let seen = permits.inspect("test").await.expect("memory answers");
    (seen.in_use, seen.queued)
}

/// Gives every task that can go on the time to do so.
async fn settle() {
    for _ in 0..64 {
        tokio::task::yield_now().await;
    }
}
