//! What we hold and until when, all permits of a name together; what has left is kept beside it.
//!
//! Pure: time comes as an argument.

use super::held::{Held, Hold, Staying, Terms, earlier};
use super::leaves::{Answer, Leaves};
use crate::backend::Grant;
use crate::error::ErrorKind;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use tokio::time::Instant;

/// The permits of one name, and the tickets that are on their way out.
#[derive(Debug)]
pub(crate) struct Tickets {
    lease: Duration,
    /// A permit whose deadline passes unconfirmed is lost at once, and not merely in doubt.
    strict: bool,
    /// Few as a rule, and each is looked up three times a request: a tree finds them sooner than a hash map.
    held: BTreeMap<u64, Held>,
    /// When each permit wants to be renewed: a third of a lease after it was last confirmed.
    renewals: BTreeSet<(Instant, u64)>,
    /// When to look whether a reservation has lapsed or a hold lasted for too long.
    endings: BTreeSet<(Instant, u64)>,
    /// Held, with nobody to use it: those that were released last at the end, each with the time of its end.
    lingering: VecDeque<(Instant, u64)>,
    pub(crate) leaves: Leaves,
    lost: usize,
}

// === impl Tickets ===

impl Tickets {
    pub(crate) fn new(lease: Duration, strict: bool) -> Self {
        Self {
            lease,
            strict,
            held: BTreeMap::new(),
            renewals: BTreeSet::new(),
            endings: BTreeSet::new(),
            lingering: VecDeque::new(),
            leaves: Leaves::new(lease),
            lost: 0,
        }
    }

    /// Permits that somebody has, and that are not known to be lost.
    #[inline]
    pub(crate) fn in_use(&self) -> usize {
        self.held.len() - self.lost - self.lingering.len()
    }

    /// Nothing is held and nothing is on its way out.
    pub(crate) fn is_empty(&self) -> bool {
        self.held.len() == self.lost && self.leaves.is_empty()
    }

    /// When something here wants to be done: for a renewal that is due by now, when it is overdue.
    pub(crate) fn next_due(&self, now: Instant) -> Option<Instant> {
        let renewal = self.renewals.first().map(|(at, _)| *at);
        let renewal = renewal.map(|at| if now < at { at } else { self.overdue(at) });
        let times = [renewal, self.next_ending(), self.leaves.by()];
        times.into_iter().flatten().min()
    }

    /// When to look for what ends here by itself, without a call.
    #[inline]
    pub(crate) fn next_ending(&self) -> Option<Instant> {
        let ending = self.endings.first().map(|(at, _)| *at);
        earlier(ending, self.next_expiry())
    }

    /// When the next permit is lost, unless it is confirmed before.
    #[inline]
    fn next_expiry(&self) -> Option<Instant> {
        if !self.strict {
            return None;
        }
        let (renewal, _) = self.renewals.first()?;
        Some(*renewal + (self.lease - self.lease / 3))
    }

    // --- holding ---

    /// A permit was granted, confirmed by a call that was sent at `sent`.
    pub(crate) fn hold(&mut self, grant: Grant, sent: Instant, now: Instant, terms: Terms) -> Hold {
        let Grant { ticket, token } = grant;
        let mut held = Held::new(token, sent, now, self.lease);
        self.renewals.insert((held.renewal(self.lease), ticket));
        held.take(ticket, now, terms, &mut self.endings);
        self.held.insert(ticket, held);
        Hold { ticket, hop: 0 }
    }

    /// What is known of a ticket whose last guard goes, if it may stay here: it is surely ours, for a while yet.
    #[inline]
    pub(crate) fn may_stay(&self, hold: Hold, now: Instant) -> Option<Staying> {
        let held = self.get(hold)?;
        let may = held.may_stay(self.strict, now);
        may.then(|| held.staying())
    }

    /// The next one has a ticket that may stay here.
    pub(crate) fn hand_on(&mut self, ticket: u64, now: Instant, terms: Terms) -> Option<Hold> {
        let held = self.held.get_mut(&ticket)?;
        Some(held.hop_on(ticket, now, terms, &mut self.endings))
    }

    // --- lingering ---

    /// The last guard of a ticket goes, but the next one may come at once. `false` if it may not stay here.
    #[inline]
    pub(crate) fn linger(&mut self, hold: Hold, now: Instant, until: Instant) -> bool {
        let strict = self.strict;
        let held = self.get_mut(hold);
        let Some(held) = held.filter(|held| held.may_stay(strict, now)) else {
            return false;
        };
        held.guards = 0;
        self.lingering.push_back((until, hold.ticket));
        true
    }

    /// How many linger.
    #[inline]
    pub(crate) fn lingering(&self) -> usize {
        self.lingering.len()
    }

    pub(crate) fn all_lingering(&self) -> Vec<u64> {
        self.lingering.iter().map(|(_, ticket)| *ticket).collect()
    }

    /// When the next one has lingered for long enough.
    #[inline]
    pub(crate) fn lingering_ends(&self) -> Option<Instant> {
        self.lingering.front().map(|(until, _)| *until)
    }

    /// Takes the ticket that was released last, if it is surely ours: else it leaves.
    #[inline(always)]
    pub(crate) fn take_lingering(&mut self, now: Instant, terms: Terms) -> Option<Hold> {
        let (_, ticket) = self.lingering.pop_back()?;
        let held = self.held.get_mut(&ticket)?;
        if !held.is_sure(now) {
            self.let_go(ticket, None);
            return None;
        }
        Some(held.hop_on(ticket, now, terms, &mut self.endings))
    }

    /// Lets those leave that have lingered for long enough.
    #[inline]
    pub(crate) fn end_lingering(&mut self, now: Instant) {
        while self.lingering_ends().is_some_and(|until| until <= now) {
            self.end_oldest_lingering();
        }
    }

    /// Lets all those leave that linger.
    pub(crate) fn end_all_lingering(&mut self) {
        while !self.lingering.is_empty() {
            self.end_oldest_lingering();
        }
    }

    fn end_oldest_lingering(&mut self) {
        if let Some((_, ticket)) = self.lingering.pop_front() {
            self.let_go(ticket, None);
        }
    }

    /// A ticket that lingers is gone. `false` if it does not linger.
    fn forget_lingering(&mut self, ticket: u64) -> bool {
        let before = self.lingering.len();
        self.lingering.retain(|(_, lingers)| *lingers != ticket);
        self.lingering.len() < before
    }

    // --- what is held ---

    pub(crate) fn is_held(&self, ticket: u64) -> bool {
        self.held.contains_key(&ticket)
    }

    #[inline]
    fn get(&self, hold: Hold) -> Option<&Held> {
        let held = self.held.get(&hold.ticket)?;
        (held.hop == hold.hop && held.guards > 0).then_some(held)
    }

    #[inline]
    fn get_mut(&mut self, hold: Hold) -> Option<&mut Held> {
        let held = self.held.get_mut(&hold.ticket)?;
        (held.hop == hold.hop && held.guards > 0).then_some(held)
    }

    /// Held, and surely so: the deadline has not passed.
    pub(crate) fn is_valid(&self, hold: Hold, now: Instant) -> bool {
        let held = self.get(hold);
        held.is_some_and(|held| held.lost.is_none() && now < held.deadline)
    }

    /// Held, and not lost by now; but perhaps in doubt, where a deadline that passes makes no more than that.
    #[inline]
    fn get_ours(&mut self, hold: Hold, now: Instant) -> Option<&mut Held> {
        let strict = self.strict;
        let held = self.get_mut(hold)?;
        let expired = strict && held.deadline <= now;
        (!expired && held.lost.is_none()).then_some(held)
    }

    /// How it was lost, if it was. What is not ours any more counts as lost.
    #[inline]
    pub(crate) fn lost(&self, hold: Hold) -> Option<ErrorKind> {
        match self.get(hold) {
            Some(held) => held.lost,
            None => Some(ErrorKind::Lost),
        }
    }

    /// The fencing token of a permit that is held.
    pub(crate) fn token(&self, hold: Hold) -> Option<u64> {
        let held = self.get(hold)?;
        Some(held.token())
    }

    /// When the permit is lost, unless it is confirmed before. `None` where a deadline that passes only makes doubtful.
    #[inline]
    pub(crate) fn expiry(&self, hold: Hold) -> Option<Instant> {
        let held = self.get(hold).filter(|_| self.strict)?;
        Some(held.deadline)
    }

    /// The permits that are lost by now for want of a confirmation.
    pub(crate) fn expired(&self, now: Instant) -> Vec<u64> {
        if self.next_expiry().is_none_or(|at| now < at) {
            return Vec::new();
        }
        let held = self.renewals.iter().map(|(_, ticket)| *ticket);
        held.take_while(|ticket| self.held.get(ticket).is_some_and(|h| h.deadline <= now))
            .collect()
    }

    #[cfg(test)]
    pub(crate) fn deadline(&self, ticket: u64) -> Option<Instant> {
        self.held.get(&ticket).map(|held| held.deadline)
    }

    /// Whether a ticket is held and not lost, be it that it lingers.
    #[cfg(test)]
    pub(crate) fn counts(&self, ticket: u64) -> bool {
        self.held
            .get(&ticket)
            .is_some_and(|held| held.lost.is_none())
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

    /// A renewal has waited for its turn until half of the lease was gone: it waits no longer.
    pub(crate) fn renewal_overdue(&self, now: Instant) -> bool {
        let renewal = self.renewals.first();
        renewal.is_some_and(|(at, _)| self.overdue(*at) <= now)
    }

    fn overdue(&self, renewal: Instant) -> Instant {
        renewal + self.lease / 6
    }

    /// The backend has granted a ticket that a guard of ours has. If it was lost, the grant is nobody's.
    pub(crate) fn still_granted(&mut self, ticket: u64) {
        if self.held.get(&ticket).is_none_or(|h| h.lost.is_some()) {
            self.leaves.leave_anew(ticket);
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
            held.confirm(sent, self.lease);
            self.renewals.insert((held.renewal(self.lease), ticket));
        }
    }

    /// The permit is lost. `None` if nobody had it, or it was lost before.
    pub(crate) fn lose(&mut self, ticket: u64, why: ErrorKind) -> Option<Hold> {
        if self.forget_lingering(ticket) {
            self.let_go(ticket, None);
            return None;
        }
        let held = self.held.get_mut(&ticket)?;
        if held.lost.is_some() {
            return None;
        }
        held.lost = Some(why);
        self.lost += 1;
        let hold = Hold {
            ticket,
            hop: held.hop,
        };
        held.disarm(ticket, &mut self.endings);
        self.renewals.remove(&(held.renewal(self.lease), ticket));
        // It may stand in the queue again, by an `enter` that ran late.
        self.leaves.leave(ticket, None, None);
        Some(hold)
    }

    /// All permits that are not lost yet.
    pub(crate) fn valid_tickets(&self) -> Vec<u64> {
        let valid = self.held.iter().filter(|(_, held)| held.lost.is_none());
        valid.map(|(ticket, _)| *ticket).collect()
    }

    /// One more guard of a permit that is held. `false`: there is none to share.
    pub(crate) fn share(&mut self, hold: Hold, now: Instant) -> bool {
        let held = self.get_ours(hold, now);
        held.map(|held| held.guards += 1).is_some()
    }

    /// A guard is gone. The last one lets the ticket leave, and `answer` hears whether it held until then. Returns the
    /// answer if it is known already.
    pub(crate) fn drop_guard(
        &mut self,
        hold: Hold,
        now: Instant,
        answer: Option<Answer>,
    ) -> Option<(Answer, bool)> {
        let valid = self.is_valid(hold, now);
        let held = self.get_mut(hold);
        if held
            .as_ref()
            .is_some_and(|held| held.guards == 1 && held.lost.is_none())
        {
            self.let_go(hold.ticket, answer);
            return None;
        }
        match held {
            Some(held) if held.guards > 1 => held.guards -= 1,
            Some(_) => drop(self.remove(hold.ticket)),
            None => {}
        }
        answer.map(|answer| (answer, valid))
    }

    /// A permit that nobody has any more leaves. `answer` hears whether it held until then.
    pub(crate) fn let_go(&mut self, ticket: u64, answer: Option<Answer>) {
        if let Some(deadline) = self.remove(ticket) {
            self.leaves.leave(ticket, Some(deadline), answer);
        }
    }

    /// Forgets a permit. Its deadline, if it was not lost.
    fn remove(&mut self, ticket: u64) -> Option<Instant> {
        let mut held = self.held.remove(&ticket)?;
        if held.lost.is_some() {
            self.lost -= 1;
            return None;
        }
        held.disarm(ticket, &mut self.endings);
        self.renewals.remove(&(held.renewal(self.lease), ticket));
        Some(held.deadline)
    }

    // --- reservations and long holds ---

    /// Takes a reserved permit for good. `false`: it has gone back already, or is lost by now.
    #[inline]
    pub(crate) fn claim(&mut self, hold: Hold, now: Instant) -> bool {
        let Some(held) = self.get_ours(hold, now) else {
            return false;
        };
        held.claim();
        true
    }

    /// The reservation starts anew. `false`: it has gone back already.
    pub(crate) fn rearm(&mut self, hold: Hold, now: Instant) -> bool {
        let Some(held) = self.get_ours(hold, now) else {
            return false;
        };
        held.rearm(now);
        true
    }

    /// Ends what has to end by now. Returns what was held for too long.
    pub(crate) fn end(&mut self, now: Instant) -> Vec<Hold> {
        let mut ended = Vec::new();
        while let Some((at, ticket)) = self.endings.first().copied()
            && at <= now
        {
            self.endings.pop_first();
            let Some(held) = self.held.get_mut(&ticket) else {
                continue;
            };
            held.armed = None;
            if held.ending().is_none_or(|ending| now < ending) {
                held.arm(ticket, &mut self.endings);
            } else if held.has_lapsed(now) {
                // The guard that is still out finds nothing.
                self.let_go(ticket, None);
            } else {
                ended.extend(self.lose(ticket, ErrorKind::HeldTooLong));
            }
        }
        ended
    }
}
