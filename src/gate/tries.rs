//! Those who do not want to wait: the backend is asked once, and a place in the queue is none.
//!
//! Pure: no clock, no tasks. `C` is the caller's end, which nothing here looks into.

use super::waiters::Departed;
use std::collections::{BTreeMap, BTreeSet};

/// The callers of one name who try, by their tickets.
#[derive(Debug)]
pub(crate) struct Tries<C> {
    all: BTreeMap<u64, Try<C>>,
    /// Those to name in the next call.
    to_ask: BTreeSet<u64>,
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
            to_ask: BTreeSet::new(),
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

    /// One more. `ticket` is new.
    pub(crate) fn join(&mut self, ticket: u64, caller: C) {
        let attempt = Try {
            caller,
            sent: false,
        };
        self.all.insert(ticket, attempt);
        self.to_ask.insert(ticket);
    }

    /// Takes one out.
    pub(crate) fn take(&mut self, ticket: u64) -> Option<Departed<C>> {
        let attempt = self.all.remove(&ticket)?;
        self.to_ask.remove(&ticket);
        Some(departed(ticket, attempt))
    }

    /// Takes everybody out.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = Departed<C>> + use<C> {
        self.to_ask.clear();
        let all = std::mem::take(&mut self.all).into_iter();
        all.map(|(ticket, attempt)| departed(ticket, attempt))
    }

    /// The tickets to name in this call.
    pub(crate) fn ask(&mut self, most: usize) -> Vec<u64> {
        let mut tickets = Vec::new();
        while tickets.len() < most
            && let Some(ticket) = self.to_ask.pop_first()
        {
            if let Some(attempt) = self.all.get_mut(&ticket) {
                attempt.sent = true;
                tickets.push(ticket);
            }
        }
        tickets
    }

    pub(crate) fn has_to_ask(&self) -> bool {
        !self.to_ask.is_empty()
    }

    /// Names a ticket again in the next call: it was not answered, or the answer cannot be relied on.
    pub(crate) fn ask_again(&mut self, ticket: u64) {
        if self.has(ticket) {
            self.to_ask.insert(ticket);
        }
    }
}

fn departed<C>(ticket: u64, attempt: Try<C>) -> Departed<C> {
    Departed {
        caller: attempt.caller,
        known_ticket: attempt.sent.then_some(ticket),
        standing: None,
    }
}
