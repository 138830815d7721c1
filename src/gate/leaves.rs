//! What has left but is not answered yet.
//!
//! Pure: time comes as an argument.

use super::waiters::Standing;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// The tickets of one name that are on their way out.
#[derive(Debug)]
pub(crate) struct Leaves {
    lease: Duration,
    all: BTreeMap<u64, Leaving>,
    /// Some of them have to be said now, and the others by then.
    at_once: bool,
    by: Option<Instant>,
    /// No leave is old enough to be forgotten before then.
    forget_at: Option<Instant>,
}

/// Who waits for the answer to a release.
pub(crate) type Answer = oneshot::Sender<bool>;

/// A ticket that leaves. Said again until it is answered or a lease has gone by: then it is out by itself.
#[derive(Debug)]
struct Leaving {
    /// When a call carried it for the first time. From then on it cannot be called back.
    said_since: Option<Instant>,
    /// Another call has carried it since.
    repeated: bool,
    /// For as long as it surely held, by our own reckoning.
    held_until: Option<Instant>,
    /// Of a ticket that waited and was never granted to anybody here: only such a one can be called back, for no guard
    /// of it was ever out.
    standing: Option<Standing>,
    answer: Option<Answer>,
}

// === impl Leaves ===

impl Leaves {
    pub(crate) fn new(lease: Duration) -> Self {
        Self {
            lease,
            all: BTreeMap::new(),
            at_once: false,
            by: None,
            forget_at: None,
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// By when those have to be said that are in no hurry.
    #[inline]
    pub(crate) fn by(&self) -> Option<Instant> {
        self.by
    }

    /// Lets a ticket leave, whatever it is.
    pub(crate) fn leave(
        &mut self,
        ticket: u64,
        held_until: Option<Instant>,
        answer: Option<Answer>,
    ) {
        let leaving = Leaving {
            said_since: None,
            repeated: false,
            held_until,
            standing: None,
            answer,
        };
        self.all.entry(ticket).or_insert(leaving);
        self.at_once = true;
    }

    /// Lets a ticket leave that is seen to be in, though nobody here wants it. Whatever was said of it before has not
    /// helped, so it is a lease until this is forgotten.
    pub(crate) fn leave_anew(&mut self, ticket: u64) {
        self.leave(ticket, None, None);
        if let Some(leaving) = self.all.get_mut(&ticket) {
            leaving.repeated |= leaving.said_since.take().is_some();
            leaving.standing = None;
        }
    }

    /// Lets a ticket leave whose waiter has gone, now or with whatever is said until `by`.
    pub(crate) fn leave_line(
        &mut self,
        ticket: u64,
        standing: Option<Standing>,
        by: Option<Instant>,
    ) {
        let now = self.at_once || by.is_none();
        self.leave(ticket, None, None);
        self.at_once = now;
        self.by = self.by.or(by);
        if let Some(leaving) = self.all.get_mut(&ticket) {
            leaving.standing = standing;
        }
    }

    /// How many of those that no call has carried yet surely stand in the queue.
    pub(crate) fn queued(&self) -> usize {
        let unsaid = self.all.values().filter(|l| l.said_since.is_none());
        unsaid
            .filter(|l| l.standing.is_some_and(|s| s.queued))
            .count()
    }

    /// A ticket stands in the queue, whose waiter has gone meanwhile.
    pub(crate) fn answered(&mut self, ticket: u64) {
        if let Some(leaving) = self.all.get_mut(&ticket)
            && let Some(standing) = &mut leaving.standing
        {
            standing.queued = true;
        }
    }

    /// `None` unless the ticket can be called back.
    pub(crate) fn standing(&self, ticket: u64) -> Option<Standing> {
        let leaving = self.all.get(&ticket);
        leaving.filter(|l| l.said_since.is_none())?.standing
    }

    /// Calls a leave back that no call has carried yet.
    pub(crate) fn call_back(&mut self, ticket: u64) -> bool {
        self.standing(ticket).is_some() && self.all.remove(&ticket).is_some()
    }

    /// The leaves to say in this call.
    pub(crate) fn say(&mut self, now: Instant, most: usize) -> Vec<u64> {
        let leaving = self.all.iter_mut().take(most);
        let tickets: Vec<u64> = leaving
            .map(|(ticket, leaving)| {
                leaving.repeated |= leaving.said_since.is_some();
                leaving.said_since.get_or_insert(now);
                *ticket
            })
            .collect();
        if !tickets.is_empty() {
            self.forget_at.get_or_insert(now + self.lease);
        }
        self.at_once = tickets.len() < self.all.len();
        self.by = None;
        tickets
    }

    /// The leaves that were said were not answered.
    pub(crate) fn say_again(&mut self) {
        self.at_once |= !self.all.is_empty();
    }

    pub(crate) fn are_due(&self, now: Instant) -> bool {
        self.at_once || self.by.is_some_and(|by| by <= now)
    }

    /// A leave was answered: did the ticket hold until then? Returns what its holder hears, if he waits for it.
    pub(crate) fn left(&mut self, ticket: u64, held: bool, now: Instant) -> Option<(Answer, bool)> {
        let leaving = self.all.remove(&ticket)?;
        // An earlier call, whose answer was lost, may have done it: then only our own reckoning is left.
        let reckoned = leaving.held_until.is_some_and(|until| now < until);
        let held = held || (leaving.repeated && reckoned);
        leaving.answer.map(|answer| (answer, held))
    }

    /// Forgets leaves that were said and that nobody answered for a lease: the tickets are out by themselves. Returns
    /// who waits for an answer in vain.
    pub(crate) fn forget_old(&mut self, now: Instant) -> Vec<Answer> {
        if self.forget_at.is_none_or(|at| now < at) {
            return Vec::new();
        }
        let (lease, mut unanswered) = (self.lease, Vec::new());
        self.all.retain(|_, leaving| {
            let old = leaving.said_since.is_some_and(|at| at + lease <= now);
            if old {
                unanswered.extend(leaving.answer.take());
            }
            !old
        });
        let oldest = self.all.values().filter_map(|l| l.said_since).min();
        self.forget_at = oldest.map(|since| since + lease);
        unanswered
    }
}
