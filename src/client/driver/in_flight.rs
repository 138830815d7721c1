//! The batches in flight, and when those without an answer are given up.
//!
//! Pure: time is an argument. `T` is a name, which is opaque here.

use crate::client::outage::OutageDetector;
use futures_util::future::{AbortHandle, AbortRegistration};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A time that passes unnoticed for this long shows that the process was stopped, and not that the backend is slow.
const LATE: Duration = Duration::from_millis(100);
/// The least time for a call before it is given up because an outage begins.
const LEAST_CHANCE: Duration = Duration::from_millis(100);

/// The names of a batch, each with the number of its call.
pub(super) type Names<T> = Arc<[(T, u64)]>;

/// The batches in flight, in the order in which they were sent.
#[derive(Debug)]
pub(super) struct InFlight<T> {
    call_timeout: Duration,
    batches: BTreeMap<u64, Batch<T>>,
    last: u64,
}

#[derive(Debug)]
struct Batch<T> {
    names: Names<T>,
    /// It carries renewals only.
    renewals: bool,
    sent: Instant,
    deadline: Instant,
    /// It got more time, since this process was stopped.
    is_extended: bool,
    abort: AbortHandle,
}

/// A batch that was not answered in time, and when it was sent.
pub(super) type GivenUp<T> = (Names<T>, Instant);

// === impl InFlight ===

impl<T> InFlight<T> {
    pub(super) fn new(call_timeout: Duration) -> Self {
        Self {
            call_timeout,
            batches: BTreeMap::new(),
            last: 0,
        }
    }

    pub(super) fn batches(&self) -> usize {
        self.batches.len()
    }

    /// Returns how many calls are in flight.
    pub(super) fn calls(&self) -> usize {
        self.batches.values().map(|batch| batch.names.len()).sum()
    }

    /// Returns how many calls are in flight in batches that carry renewals only.
    pub(super) fn renewals(&self) -> usize {
        let batches = self.batches.values().filter(|batch| batch.renewals);
        batches.map(|batch| batch.names.len()).sum()
    }

    /// Adds a batch. Returns its number, and what aborts it when it is given up.
    pub(super) fn add(
        &mut self,
        names: Names<T>,
        renewals: bool,
        now: Instant,
    ) -> (u64, AbortRegistration) {
        let (abort, registration) = AbortHandle::new_pair();
        let batch = Batch {
            names,
            renewals,
            sent: now,
            deadline: now + self.call_timeout,
            is_extended: false,
            abort,
        };
        self.last += 1;
        self.batches.insert(self.last, batch);
        (self.last, registration)
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<Names<T>> {
        self.batches.remove(&id).map(|batch| batch.names)
    }

    /// Removes everything that is in flight: another driver has replaced the one that sent it.
    pub(super) fn remove_all(&mut self) -> Vec<Names<T>> {
        let batches = std::mem::take(&mut self.batches).into_values();
        batches.map(|batch| batch.names).collect()
    }

    /// When [`give_up`](Self::give_up) has something to do, unless replies arrive before.
    pub(super) fn next_deadline(&self, outages: &OutageDetector) -> Option<Instant> {
        let (_, first) = self.batches.first_key_value()?;
        Some(first.deadline(outages))
    }

    /// Removes the batches that were not answered in time.
    pub(super) fn give_up(&mut self, now: Instant, outages: &OutageDetector) -> Vec<GivenUp<T>> {
        let mut given_up = Vec::new();
        while let Some(first) = self.batches.first_entry()
            && let deadline = first.get().deadline(outages)
            && deadline <= now
        {
            if deadline + LATE < now && !first.get().is_extended {
                // This process was stopped: the replies may have arrived already. They get more time, once.
                for batch in self.batches.values_mut() {
                    batch.deadline = batch.deadline.max(now + self.call_timeout / 2);
                    batch.is_extended = true;
                }
                break;
            }
            let batch = first.remove();
            batch.abort.abort();
            given_up.push((batch.names, batch.sent));
        }
        given_up
    }
}

impl<T> Batch<T> {
    /// When it is given up: at the beginning of an outage too, so that its waiters are refused then.
    fn deadline(&self, outages: &OutageDetector) -> Instant {
        let begins = outages.next_outage(self.sent).filter(|_| !self.is_extended);
        let begins = begins.map(|at| at.max(self.sent + LEAST_CHANCE));
        begins.map_or(self.deadline, |at| at.min(self.deadline))
    }
}
