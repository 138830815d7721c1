//! Releases that the backend has not acknowledged.
//!
//! Pure: time is an argument.

use super::permit::earlier;
use super::waiters::{QueueEntry, Ticket};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// The released tickets of one name. Each is resent until it is acknowledged, however long that is: a call that was
/// given up may be executed at any later moment, and its tickets are then held for a fresh lease.
#[derive(Debug, Default)]
pub(crate) struct Releases {
    lease: Duration,
    all: BTreeMap<u64, Release>,
    /// Some have to be sent now.
    at_once: bool,
    /// The others have to be sent by then.
    by: Option<Instant>,
    /// The earliest time at which a caller may have waited for an acknowledgement for a lease.
    unanswered_at: Option<Instant>,
}

/// Receives the result of a release: whether the permit was held until then.
pub(crate) type Answer = oneshot::Sender<bool>;

/// The result of a release. `None`: it was not acknowledged in time.
pub(crate) type Answered = (Answer, Option<bool>);

#[derive(Debug)]
pub(super) struct Release {
    /// When a call carried it for the first time. From then on it cannot be withdrawn.
    sent_since: Option<Instant>,
    /// Another call has carried it since.
    repeated: bool,
    /// Until when the permit was valid by this process's clock.
    held_until: Option<Instant>,
    /// Of a ticket that was never granted to a caller here: only such a release can be withdrawn, since no guard of the
    /// ticket ever existed.
    entry: Option<QueueEntry>,
    answer: Option<Answer>,
}

// === impl Releases ===

impl Releases {
    pub(crate) fn new(lease: Duration) -> Self {
        Self {
            lease,
            ..Self::default()
        }
    }

    /// Whether every release is acknowledged.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(crate) fn contains(&self, ticket: u64) -> bool {
        self.all.contains_key(&ticket)
    }

    pub(crate) fn tickets(&self) -> impl Iterator<Item = u64> {
        self.all.keys().copied()
    }

    /// When releases that can wait are due, or an answer is given up.
    #[inline]
    pub(crate) fn due(&self) -> Option<Instant> {
        earlier(self.by, self.unanswered_at)
    }

    /// Releases a ticket.
    pub(super) fn add(
        &mut self,
        ticket: u64,
        held_until: Option<Instant>,
        answer: Option<Answer>,
    ) -> &mut Release {
        self.at_once = true;
        self.all.entry(ticket).or_insert(Release {
            sent_since: None,
            repeated: false,
            held_until,
            entry: None,
            answer,
        })
    }

    /// Releases a ticket that the backend has granted without need. An earlier release of it had no effect.
    pub(crate) fn add_again(&mut self, ticket: u64) {
        let release = self.add(ticket, None, None);
        release.repeated |= release.sent_since.take().is_some();
        release.entry = None;
    }

    /// Releases the ticket of a removed waiter if the backend may know it: at once, or with any call until `by`.
    pub(crate) fn add_removed(&mut self, ticket: Ticket, by: Option<Instant>) {
        if ticket.entry.is_some() {
            let at_once = self.at_once || by.is_none();
            self.add(ticket.number, None, None).entry = ticket.entry;
            self.at_once = at_once;
            self.by = self.by.or(by);
        }
    }

    /// How many tickets are still queued, as far as replies have confirmed it: those that no call has released yet.
    pub(crate) fn queued(&self) -> usize {
        let unsent = self.all.values().filter(|r| r.sent_since.is_none());
        let queued = unsent.filter(|r| r.entry.is_some_and(|entry| entry.queued));
        queued.count()
    }

    /// Notes that the backend has queued a ticket after its waiter was removed.
    pub(crate) fn confirm_queued(&mut self, ticket: u64) {
        let release = self.all.get_mut(&ticket);
        if let Some(entry) = release.and_then(|release| release.entry.as_mut()) {
            entry.queued = true;
        }
    }

    /// Returns the entry of a ticket if its release can be withdrawn.
    pub(crate) fn entry(&self, ticket: u64) -> Option<QueueEntry> {
        let release = self.all.get(&ticket);
        release.filter(|r| r.sent_since.is_none())?.entry
    }

    /// Withdraws a release that no call has carried yet.
    pub(crate) fn withdraw(&mut self, ticket: u64) -> bool {
        self.entry(ticket).is_some() && self.all.remove(&ticket).is_some()
    }

    /// Returns the releases to send in this call.
    pub(crate) fn send(&mut self, now: Instant, most: usize) -> Vec<u64> {
        let releases = self.all.iter_mut().take(most);
        let mut awaited = false;
        let tickets: Vec<u64> = releases
            .map(|(ticket, release)| {
                release.repeated |= release.sent_since.is_some();
                release.sent_since.get_or_insert(now);
                awaited |= release.answer.is_some();
                *ticket
            })
            .collect();
        if awaited {
            self.unanswered_at.get_or_insert(now + self.lease);
        }
        self.at_once = tickets.len() < self.all.len();
        self.by = None;
        tickets
    }

    /// Sends all releases again: a call with some of them was not answered.
    pub(crate) fn resend(&mut self) {
        self.at_once |= !self.all.is_empty();
    }

    pub(crate) fn are_due(&self, now: Instant) -> bool {
        self.at_once || self.by.is_some_and(|by| by <= now)
    }

    /// Removes a release that was acknowledged. `held`: the ticket was held until then. Returns the result for its caller.
    pub(crate) fn acknowledge(
        &mut self,
        ticket: u64,
        held: bool,
        now: Instant,
    ) -> Option<Answered> {
        let release = self.all.remove(&ticket)?;
        // An earlier call may have released it, if its reply was lost: then only this process's clock can decide.
        let valid = release.held_until.is_some_and(|until| now < until);
        let held = held || (release.repeated && valid);
        release.answer.map(|answer| (answer, Some(held)))
    }

    /// Gives up the answers to releases that were not acknowledged within a lease. The releases themselves stay.
    pub(crate) fn give_up_answers(&mut self, now: Instant) -> Vec<Answered> {
        if self.unanswered_at.is_none_or(|at| now < at) {
            return Vec::new();
        }
        let (lease, mut unanswered, mut next) = (self.lease, Vec::new(), None);
        for release in self.all.values_mut().filter(|r| r.answer.is_some()) {
            match release.sent_since.map(|since| since + lease) {
                Some(at) if at <= now => {
                    unanswered.extend(release.answer.take().map(|answer| (answer, None)));
                }
                at => next = earlier(next, at),
            }
        }
        self.unanswered_at = next;
        unanswered
    }
}
