//! The batches in flight, and the judgement about those that are not answered.
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
/// The least time of a call before waiters without an answer are refused because of it.
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
    /// Its waiters without an answer were refused, since an outage began.
    is_overdue: bool,
    abort: AbortHandle,
}

/// Batches that were not answered in time.
#[derive(Debug)]
pub(super) enum Judgement<T> {
    /// Their calls are given up. With the time at which each batch was sent.
    GivenUp(Vec<(Names<T>, Instant)>),
    /// An outage has begun while they are in flight. With the time at which the first was sent.
    Overdue(Vec<Names<T>>, Instant),
}

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
            is_overdue: false,
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

    /// When [`judge`](Self::judge) has something to do, unless replies arrive before.
    pub(super) fn next_judgement(&self, outages: &OutageDetector, now: Instant) -> Option<Instant> {
        let (_, first) = self.batches.first_key_value()?;
        let overdue = first.overdue_at(outages).filter(|at| now <= *at + LATE);
        Some(overdue.map_or(first.deadline, |at| at.min(first.deadline)))
    }

    /// Judges the batches that are not answered in time.
    pub(super) fn judge(&mut self, now: Instant, outages: &OutageDetector) -> Option<Judgement<T>> {
        let (_, first) = self.batches.first_key_value()?;
        if first.deadline <= now {
            if first.deadline + LATE < now && !first.is_extended {
                // This process was stopped: the replies may have arrived already. They get more time, once.
                for batch in self.batches.values_mut() {
                    batch.deadline = batch.deadline.max(now + self.call_timeout / 2);
                    batch.is_extended = true;
                }
                return None;
            }
            let mut given_up = Vec::new();
            while let Some(first) = self.batches.first_entry()
                && first.get().deadline <= now
            {
                let batch = first.remove();
                batch.abort.abort();
                given_up.push((batch.names, batch.sent));
            }
            return Some(Judgement::GivenUp(given_up));
        }
        let (at, sent) = (first.overdue_at(outages)?, first.sent);
        if now < at || now > at + LATE {
            return None;
        }
        let least = now - LEAST_CHANCE;
        let overdue = self.batches.values_mut().filter(|b| b.sent <= least);
        let names = overdue.map(|batch| {
            batch.is_overdue = true;
            Arc::clone(&batch.names)
        });
        Some(Judgement::Overdue(names.collect(), sent))
    }
}

impl<T> Batch<T> {
    /// When its waiters without an answer are refused, unless it is answered before: when the outage begins. `None` if
    /// there is no sign of one, or they were refused already.
    fn overdue_at(&self, outages: &OutageDetector) -> Option<Instant> {
        let begins = outages
            .outage_begins(self.sent)
            .filter(|_| !self.is_overdue)?;
        Some(begins.max(self.sent + LEAST_CHANCE))
    }
}
