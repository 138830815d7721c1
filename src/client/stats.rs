//! What this process has seen of one name.

/// What this process has seen of one name. Counters start when its first semaphore is made, and anew when the last one
/// and all its permits have been gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// This process's limit.
    pub limit: u32,
    /// Permits in use here.
    pub in_use: usize,
    /// Permits that nobody uses, and that stay here for a moment in case that somebody comes: see
    /// [`CoordinatorBuilder::linger`](crate::CoordinatorBuilder::linger).
    pub lingering: usize,
    /// Callers waiting here.
    pub waiting: usize,
    /// Permits granted.
    pub granted: u64,
    /// Refused because every permit was taken and the caller would not wait.
    pub limit_reached: u64,
    /// Refused because the wait ended first.
    pub timed_out: u64,
    /// Refused because too many were waiting.
    pub too_many_waiting: u64,
    /// Refused because the backend did not answer.
    pub unavailable: u64,
    /// Refused for another reason: the backend refused us or cannot serve us, or the coordinator was shutting down.
    pub failed: u64,
    /// Permits lost: their lease ran out, they were evicted, held for too long, or taken back by a shutdown.
    pub lost: u64,
}
