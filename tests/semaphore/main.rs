//! Semaphores and permits over the in-process backend: what holds for each backend.

mod cancellation;
mod logging;
mod runtimes;
mod semaphore;

use common::modes;
use common::tasks::run_ready_tasks as settle;
use test_support::logs;
use tower_permit::{Coordinator, Memory, Semaphore};

/// A semaphore of a new coordinator.
fn alone(limit: u32) -> (Coordinator, Semaphore) {
    let permits = modes::coordinator(Memory::new());
    let semaphore = permits.semaphore("test", limit).expect("a valid limit");
    (permits, semaphore)
}

/// As `alone`, without hand-off and lingering.
fn strict(limit: u32) -> (Coordinator, Semaphore) {
    let permits = modes::builder(Memory::new()).strict_fifo(true);
    let permits = permits.build().expect("valid settings");
    let semaphore = permits.semaphore("test", limit).expect("a valid limit");
    (permits, semaphore)
}

/// The numbers of held and queued tickets at the backend.
async fn counts(permits: &Coordinator) -> (u64, u64) {
    let inspection = permits.inspect("test").await.expect("an inspection");
    (inspection.in_use, inspection.queued)
}
