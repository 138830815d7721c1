//! Running the other tasks of a runtime.

/// Lets every task run until it waits. No time passes.
pub async fn run_ready_tasks() {
    for _ in 0..64 {
        tokio::task::yield_now().await;
    }
}
