//! Figures of one name in this process.

/// Figures of one name in this process. The counters start when its first semaphore is made, and start again when the
/// last one and all its permits have been dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// This process's limit.
    pub limit: u32,
    /// Permits in use here.
    pub in_use: usize,
    /// Released permits that stay here for a moment for the next caller: see
    /// [`CoordinatorBuilder::linger`](crate::CoordinatorBuilder::linger).
    pub lingering: usize,
    /// Callers waiting here.
    pub waiting: usize,
    /// Permits granted.
    pub granted: u64,
    /// Requests refused because no permit was free and the caller does not wait.
    pub limit_reached: u64,
    /// Requests that timed out while they waited.
    pub timed_out: u64,
    /// Requests refused because too many callers were waiting.
    pub too_many_waiting: u64,
    /// Requests refused because the backend did not answer.
    pub unavailable: u64,
    /// Requests refused for another reason: the backend denied access or is incompatible, or the coordinator was shutting
    /// down.
    pub failed: u64,
    /// Permits lost: the lease expired, or they were evicted, held for longer than `max_hold`, or released by a shutdown.
    pub lost: u64,
}
