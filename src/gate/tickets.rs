//! What we hold and until when, and what has left but is not answered yet.
//!
//! Pure: time comes as an argument.

use super::waiters::Standing;
use crate::backend::Grant;
use crate::clock::later;
use crate::error::ErrorKind;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// The permits of one name, and the tickets that are on their way out.
#[derive(Debug)]
pub(crate) struct Tickets {
    lease: Duration,
    /// A permit whose deadline passes unconfirmed is lost at once, and not merely in doubt.
    strict: bool,
    held: HashMap<u64, Held>,
    /// When each permit wants to be renewed: a third of a lease after it was last confirmed.
    renewals: BTreeSet<(Instant, u64)>,
    /// When a reservation lapses or a hold has lasted for too long.
    endings: BTreeSet<(Instant, u64)>,
    leaving: BTreeMap<u64, Leaving>,
    /// No leave is old enough to be forgotten before then.
    forget_at: Option<Instant>,
    lost: usize,
}

/// Who waits for the answer to a release.
pub(crate) type Answer = oneshot::Sender<bool>;

/// On which terms a permit is taken.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Terms {
    /// It goes back by itself unless it is claimed within this time.
    pub(crate) reserve: Option<Duration>,
    /// It is given back by itself after this time.
    pub(crate) max_hold: Option<Duration>,
}

#[derive(Debug)]
struct Held {
    /// The fencing token, in a queue whose limit is 1.
    token: u64,
    /// The backend keeps it at least until then: one lease from before the call was sent that confirmed it last.
    deadline: Instant,
    /// How many guards share it. The last one out lets it leave.
    guards: usize,
    reserved: Option<Reserved>,
    ends: Option<Instant>,
    /// Set once, and final.
    lost: Option<ErrorKind>,
}

#[derive(Clone, Copy, Debug)]
struct Reserved {
    ttl: Duration,
    until: Instant,
}

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

/// What came to its end by itself.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    pub(crate) reservations: usize,
    pub(crate) holds: Vec<u64>,
}

// === impl Tickets ===

impl Tickets {
    pub(crate) fn new(lease: Duration, strict: bool) -> Self {
        Self {
            lease,
            strict,
            held: HashMap::new(),
            renewals: BTreeSet::new(),
            endings: BTreeSet::new(),
            leaving: BTreeMap::new(),
            forget_at: None,
            lost: 0,
        }
    }

    /// Permits that count: held, and not known to be lost.
    pub(crate) fn in_use(&self) -> usize {
        self.held.len() - self.lost
    }

    /// Nothing is held and nothing is on its way out.
    pub(crate) fn is_empty(&self) -> bool {
        self.in_use() == 0 && self.leaving.is_empty()
    }

    /// When something here wants to be done.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let renewal = self.renewals.first().map(|(at, _)| *at);
        renewal.into_iter().chain(self.next_ending()).min()
    }

    /// When something here ends by itself, without a call.
    pub(crate) fn next_ending(&self) -> Option<Instant> {
        let ending = self.endings.first().map(|(at, _)| *at);
        ending.into_iter().chain(self.next_expiry()).min()
    }

    /// When the next permit is lost, unless it is confirmed before.
    fn next_expiry(&self) -> Option<Instant> {
        let (renewal, _) = self.renewals.first().filter(|_| self.strict)?;
        Some(*renewal + (self.lease - self.lease / 3))
    }

    // --- holding ---

    /// A permit was granted, confirmed by a call that was sent at `sent`.
    pub(crate) fn hold(&mut self, grant: Grant, sent: Instant, now: Instant, terms: Terms) {
        let Grant { ticket, token } = grant;
        let held = Held {
            token,
            deadline: sent + self.lease,
            guards: 1,
            reserved: terms.reserve.map(|ttl| Reserved {
                ttl,
                until: later(now, ttl),
            }),
            ends: terms.max_hold.map(|most| later(now, most)),
            lost: None,
        };
        self.renewals.insert((held.renewal(self.lease), ticket));
        self.endings.extend(held.ending().map(|at| (at, ticket)));
        self.held.insert(ticket, held);
    }

    pub(crate) fn is_held(&self, ticket: u64) -> bool {
        self.held.contains_key(&ticket)
    }

    /// Held, and surely so: the deadline has not passed.
    pub(crate) fn is_valid(&self, ticket: u64, now: Instant) -> bool {
        let held = self.held.get(&ticket);
        held.is_some_and(|held| held.lost.is_none() && now < held.deadline)
    }

    /// Held, and not lost by now; but perhaps in doubt, where a deadline that passes makes no more than that.
    fn is_ours(&self, ticket: u64, now: Instant) -> bool {
        let expired = self.expiry(ticket).is_some_and(|at| at <= now);
        !expired && self.lost(ticket).is_none()
    }

    /// How it was lost, if it was. What is not ours any more counts as lost.
    pub(crate) fn lost(&self, ticket: u64) -> Option<ErrorKind> {
        match self.held.get(&ticket) {
            Some(held) => held.lost,
            None => Some(ErrorKind::Lost),
        }
    }

    /// The fencing token of a permit that is held.
    pub(crate) fn token(&self, ticket: u64) -> Option<u64> {
        self.held.get(&ticket).map(|held| held.token)
    }

    /// When the permit is lost, unless it is confirmed before. `None` where a deadline that passes only makes doubtful.
    pub(crate) fn expiry(&self, ticket: u64) -> Option<Instant> {
        let held = self.held.get(&ticket).filter(|_| self.strict)?;
        Some(held.deadline)
    }

    /// The permits that are lost by now for want of a confirmation.
    pub(crate) fn expired(&self, now: Instant) -> Vec<u64> {
        if self.next_expiry().is_none_or(|at| now < at) {
            return Vec::new();
        }
        let held = self.renewals.iter().map(|(_, ticket)| *ticket);
        held.take_while(|ticket| self.expiry(*ticket).is_some_and(|at| at <= now))
            .collect()
    }

    #[cfg(test)]
    pub(crate) fn deadline(&self, ticket: u64) -> Option<Instant> {
        self.held.get(&ticket).map(|held| held.deadline)
    }

    /// A grant confirmed at `sent` has so little of its lease left that it must be confirmed before it is used.
    pub(crate) fn is_stale(&self, sent: Instant, now: Instant) -> bool {
        (sent + self.lease).saturating_duration_since(now) < self.lease / 3
    }

    /// The permits to renew in this call. Those that would be due soon ride along, so that all of a name stay together.
    pub(crate) fn to_keep(&self, now: Instant, most: usize) -> Vec<u64> {
        if !self.renewal_due(now) {
            return Vec::new();
        }
        let soon = now + self.lease / 6;
        let due = self.renewals.iter().take_while(|(at, _)| *at <= soon);
        due.take(most).map(|(_, ticket)| *ticket).collect()
    }

    pub(crate) fn renewal_due(&self, now: Instant) -> bool {
        self.renewals.first().is_some_and(|(at, _)| *at <= now)
    }

    /// The backend has granted a ticket that a guard of ours has. If it was lost, the grant is nobody's.
    pub(crate) fn still_granted(&mut self, ticket: u64) {
        if self.lost(ticket).is_some() {
            self.leave_anew(ticket);
        }
    }

    /// The call that was sent at `sent` has confirmed the permit.
    pub(crate) fn confirm(&mut self, ticket: u64, sent: Instant) {
        self.still_granted(ticket);
        if let Some(held) = self.held.get_mut(&ticket)
            && held.lost.is_none()
            && held.deadline < sent + self.lease
        {
            self.renewals.remove(&(held.renewal(self.lease), ticket));
            held.deadline = sent + self.lease;
            self.renewals.insert((held.renewal(self.lease), ticket));
        }
    }

    /// The permit is lost. `false` if there is nothing to lose.
    pub(crate) fn lose(&mut self, ticket: u64, why: ErrorKind, now: Instant) -> bool {
        let Some(held) = self.held.get_mut(&ticket) else {
            return false;
        };
        if held.lost.is_some() {
            return false;
        }
        held.lost = Some(why);
        self.lost += 1;
        self.renewals.remove(&(held.renewal(self.lease), ticket));
        self.endings.remove(&(held.ending().unwrap_or(now), ticket));
        // It may stand in the queue again, by an `enter` that ran late.
        self.leave(ticket, None, None);
        true
    }

    /// All permits that are not lost yet.
    pub(crate) fn valid_tickets(&self) -> Vec<u64> {
        let valid = self.held.iter().filter(|(_, held)| held.lost.is_none());
        valid.map(|(ticket, _)| *ticket).collect()
    }

    /// One more guard of a permit that is held. `false`: there is none to share.
    pub(crate) fn share(&mut self, ticket: u64, now: Instant) -> bool {
        if !self.is_ours(ticket, now) {
            return false;
        }
        match self.held.get_mut(&ticket) {
            Some(held) => {
                held.guards += 1;
                true
            }
            None => false,
        }
    }

    /// A guard is gone. The last one lets the ticket leave, and `answer` hears whether it held until then. Returns the
    /// answer if it is known already.
    pub(crate) fn drop_guard(
        &mut self,
        ticket: u64,
        now: Instant,
        answer: Option<Answer>,
    ) -> Option<(Answer, bool)> {
        let valid = self.is_valid(ticket, now);
        let last = match self.held.get_mut(&ticket) {
            Some(held) if held.guards > 1 => {
                held.guards -= 1;
                false
            }
            Some(_) => true,
            None => false,
        };
        if last && let Some(deadline) = self.remove(ticket) {
            self.leave(ticket, Some(deadline), answer);
            return None;
        }
        answer.map(|answer| (answer, valid))
    }

    /// Forgets a permit. Its deadline, if it was not lost.
    fn remove(&mut self, ticket: u64) -> Option<Instant> {
        let held = self.held.remove(&ticket)?;
        if held.lost.is_some() {
            self.lost -= 1;
            return None;
        }
        self.renewals.remove(&(held.renewal(self.lease), ticket));
        if let Some(at) = held.ending() {
            self.endings.remove(&(at, ticket));
        }
        Some(held.deadline)
    }

    // --- reservations and long holds ---

    /// Takes a reserved permit for good. `false`: it has gone back already, or is lost by now.
    pub(crate) fn claim(&mut self, ticket: u64, now: Instant) -> bool {
        self.is_ours(ticket, now) && self.reserve_again(ticket, |_| None)
    }

    /// The reservation starts anew. `false`: it has gone back already.
    pub(crate) fn rearm(&mut self, ticket: u64, now: Instant) -> bool {
        self.reserve_again(ticket, |Reserved { ttl, .. }| {
            Some(Reserved {
                ttl,
                until: later(now, ttl),
            })
        })
    }

    fn reserve_again(
        &mut self,
        ticket: u64,
        change: impl FnOnce(Reserved) -> Option<Reserved>,
    ) -> bool {
        let Some(held) = self.held.get_mut(&ticket) else {
            return false;
        };
        if let Some(at) = held.ending() {
            self.endings.remove(&(at, ticket));
        }
        held.reserved = held.reserved.and_then(change);
        if held.lost.is_none() {
            self.endings.extend(held.ending().map(|at| (at, ticket)));
        }
        held.lost.is_none()
    }

    /// Ends what has to end by now.
    pub(crate) fn end(&mut self, now: Instant) -> Ended {
        let mut ended = Ended::default();
        while let Some((at, ticket)) = self.endings.first().copied()
            && at <= now
        {
            let held = self.held.get(&ticket);
            let lapsed = held.and_then(|held| held.reserved);
            if lapsed.is_some_and(|reserved| reserved.until <= now) {
                // Nobody has claimed it: the guard that is still out finds nothing.
                if let Some(deadline) = self.remove(ticket) {
                    self.leave(ticket, Some(deadline), None);
                }
                ended.reservations += 1;
            } else if self.lose(ticket, ErrorKind::HeldTooLong, now) {
                ended.holds.push(ticket);
            }
            self.endings.remove(&(at, ticket));
        }
        ended
    }

    // --- leaving ---

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
        self.leaving.entry(ticket).or_insert(leaving);
    }

    /// Lets a ticket leave that is seen to be in, though nobody here wants it. Whatever was said of it before has not
    /// helped, so it is a lease until this is forgotten.
    pub(crate) fn leave_anew(&mut self, ticket: u64) {
        self.leave(ticket, None, None);
        if let Some(leaving) = self.leaving.get_mut(&ticket) {
            leaving.repeated |= leaving.said_since.take().is_some();
            leaving.standing = None;
        }
    }

    /// Lets a ticket leave whose waiter has gone.
    pub(crate) fn leave_line(&mut self, ticket: u64, standing: Option<Standing>) {
        self.leave(ticket, None, None);
        if let Some(leaving) = self.leaving.get_mut(&ticket) {
            leaving.standing = standing;
        }
    }

    /// `None` unless the ticket can be called back.
    pub(crate) fn standing(&self, ticket: u64) -> Option<Standing> {
        let leaving = self.leaving.get(&ticket);
        leaving.filter(|l| l.said_since.is_none())?.standing
    }

    /// Calls a leave back that no call has carried yet.
    pub(crate) fn call_back(&mut self, ticket: u64) -> bool {
        self.standing(ticket).is_some() && self.leaving.remove(&ticket).is_some()
    }

    /// The leaves to say in this call.
    pub(crate) fn say_leaves(&mut self, now: Instant, most: usize) -> Vec<u64> {
        let leaving = self.leaving.iter_mut().take(most);
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
        tickets
    }

    pub(crate) fn has_to_leave(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// A leave was answered: did the ticket hold until then? Returns what its holder hears, if he waits for it.
    pub(crate) fn left(&mut self, ticket: u64, held: bool, now: Instant) -> Option<(Answer, bool)> {
        let leaving = self.leaving.remove(&ticket)?;
        // An earlier call, whose answer was lost, may have done it: then only our own reckoning is left.
        let reckoned = leaving.held_until.is_some_and(|until| now < until);
        let held = held || (leaving.repeated && reckoned);
        leaving.answer.map(|answer| (answer, held))
    }

    /// Forgets leaves that were said and that nobody answered for a lease: the tickets are out by themselves. Returns
    /// who waits for an answer in vain.
    pub(crate) fn forget_old_leaves(&mut self, now: Instant) -> Vec<Answer> {
        if self.forget_at.is_none_or(|at| now < at) {
            return Vec::new();
        }
        let (lease, mut unanswered) = (self.lease, Vec::new());
        self.leaving.retain(|_, leaving| {
            let old = leaving.said_since.is_some_and(|at| at + lease <= now);
            if old {
                unanswered.extend(leaving.answer.take());
            }
            !old
        });
        let oldest = self.leaving.values().filter_map(|l| l.said_since).min();
        self.forget_at = oldest.map(|since| since + lease);
        unanswered
    }
}

// === impl Held ===

impl Held {
    fn renewal(&self, lease: Duration) -> Instant {
        self.deadline - lease + lease / 3
    }

    fn ending(&self) -> Option<Instant> {
        let reserved = self.reserved.map(|reserved| reserved.until);
        reserved.into_iter().chain(self.ends).min()
    }
}
