//! What one call has to write, and what it has found out.

use super::queue::TicketQueue;
use std::collections::HashMap;

/// What a call has to write.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Tickets to delete, and whether each was known to hold.
    pub(super) release: Vec<(u64, bool)>,
    /// Tickets of this call with expired keys, which are deleted first: they must not be mistaken for the new keys.
    pub(super) remove_expired: Vec<u64>,
    /// Queued tickets with another limit than the call's, and the revisions that created them.
    pub(super) update_limit: Vec<(u64, i64)>,
    /// New tickets.
    pub(super) create: Vec<u64>,
    /// The queue has to be read before the call changes it.
    pub(super) read_first: bool,
}

/// What a call has found out.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// The queue before the call changed it.
    pub(super) before: Option<TicketQueue>,
    /// The released tickets, and whether each held until then.
    pub(super) released: HashMap<u64, bool>,
    /// The queue after the call.
    pub(super) after: TicketQueue,
    /// The tickets of `try_acquire` that were refused.
    pub(super) refused: Vec<u64>,
}
