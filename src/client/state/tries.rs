//! Callers that do not wait: one call decides, and their tickets are never queued.
//!
//! Pure: no clock, no tasks. `C` is the caller's end of the try, which is opaque here.

use super::waiters::Removed;
use std::collections::{BTreeMap, BTreeSet};

/// The tries of one name, by ticket.
#[derive(Debug)]
pub(crate) struct Tries<C> {
    all: BTreeMap<u64, Try<C>>,
    /// The tickets to name in the next call.
    to_send: BTreeSet<u64>,
}

#[derive(Debug)]
struct Try<C> {
    caller: C,
    sent: bool,
}

// === impl Tries ===

impl<C> Default for Tries<C> {
    fn default() -> Self {
        Self {
            all: BTreeMap::new(),
            to_send: BTreeSet::new(),
        }
    }
}

impl<C> Tries<C> {
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(crate) fn has(&self, ticket: u64) -> bool {
        self.all.contains_key(&ticket)
    }

    /// Adds a try. `ticket` is new.
    pub(crate) fn join(&mut self, ticket: u64, caller: C) {
        let attempt = Try {
            caller,
            sent: false,
        };
        self.all.insert(ticket, attempt);
        self.to_send.insert(ticket);
    }

    /// Removes a try.
    pub(crate) fn take(&mut self, ticket: u64) -> Option<Removed<C>> {
        let attempt = self.all.remove(&ticket)?;
        self.to_send.remove(&ticket);
        Some(removed(ticket, attempt))
    }

    /// Removes all tries.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = Removed<C>> + use<C> {
        self.to_send.clear();
        let all = std::mem::take(&mut self.all).into_iter();
        all.map(|(ticket, attempt)| removed(ticket, attempt))
    }

    /// The tickets to name in this call.
    pub(crate) fn take_requests(&mut self, most: usize) -> Vec<u64> {
        let mut tickets = Vec::new();
        while tickets.len() < most
            && let Some(ticket) = self.to_send.pop_first()
        {
            if let Some(attempt) = self.all.get_mut(&ticket) {
                attempt.sent = true;
                tickets.push(ticket);
            }
        }
        tickets
    }

    pub(crate) fn has_requests(&self) -> bool {
        !self.to_send.is_empty()
    }

    /// Names a ticket again in the next call: its call was not answered, or the answer is in doubt.
    pub(crate) fn request_again(&mut self, ticket: u64) {
        if self.has(ticket) {
            self.to_send.insert(ticket);
        }
    }
}

fn removed<C>(ticket: u64, attempt: Try<C>) -> Removed<C> {
    Removed {
        caller: attempt.caller,
        known_ticket: attempt.sent.then_some(ticket),
        entry: None,
    }
}
