//! The held permits of one name, and its releases.
//!
//! Pure: time is an argument.

use super::permit::{Endings, Held, Hold, Terms, earlier};
use super::releases::{Answer, Answered, Releases};
use crate::backend::Grant;
use crate::error::ErrorKind;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use tokio::time::Instant;

/// The held permits of one name, and the releases that are not acknowledged.
#[derive(Debug, Default)]
pub(crate) struct Permits {
    lease: Duration,
    /// Without a confirmation, a permit is lost at its deadline, and not only in doubt: for a mutex.
    strict: bool,
    /// Mostly few, and each is looked up three times a request: a tree finds them sooner than a hash map. Boxed, since a
    /// node of the tree has room for eleven of them.
    held: BTreeMap<u64, Box<Held>>,
    /// When each permit is due for renewal: a third of a lease after its last confirmation.
    renewals: BTreeSet<(Instant, u64)>,
    /// When a reservation may lapse or `max_hold` may be over.
    endings: Endings,
    /// Held without a guard: the last released one at the back, each with the time at which it stops lingering.
    lingering: VecDeque<(Instant, u64)>,
    pub(crate) releases: Releases,
    /// How many of `held` are lost.
    lost: usize,
}

// === impl Permits ===

impl Permits {
    pub(crate) fn new(lease: Duration, strict: bool) -> Self {
        Self {
            lease,
            strict,
            releases: Releases::new(lease),
            ..Self::default()
        }
    }

    /// Returns the number of permits with a guard that are not known to be lost.
    #[inline]
    pub(crate) fn in_use(&self) -> usize {
        self.held.len() - self.lost - self.lingering.len()
    }

    /// Whether nothing is held, and every release is acknowledged.
    pub(crate) fn is_empty(&self) -> bool {
        self.held.len() == self.lost && self.releases.is_empty()
    }

    /// When something is due next. A renewal that is due already counts from when it is overdue.
    pub(crate) fn next_due(&self, now: Instant) -> Option<Instant> {
        let renewal = self.renewals.first().map(|(at, _)| *at);
        let renewal = renewal.map(|at| if now < at { at } else { self.overdue(at) });
        let times = [renewal, self.next_ending(), self.releases.due()];
        times.into_iter().flatten().min()
    }

    /// When something ends next without a call.
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

    /// Adds a permit that was granted, confirmed by a call that was sent at `sent`.
    pub(crate) fn hold(&mut self, grant: Grant, sent: Instant, now: Instant, terms: Terms) -> Hold {
        let mut held = Box::new(Held::new(grant, sent, now, self.lease));
        let (hold, renewal) = (held.hold, held.renewal(self.lease));
        self.renewals.insert((renewal, hold.ticket));
        held.assign(now, terms, &mut self.endings);
        self.held.insert(hold.ticket, held);
        hold
    }

    /// Returns a permit if its last guard is dropped and it may pass to another holder.
    #[inline]
    pub(super) fn may_hand_off(&self, hold: Hold, now: Instant) -> Option<&Held> {
        let held = self.get(hold)?;
        held.may_hand_off(self.strict, now).then_some(held)
    }

    /// Hands a permit off to the next holder.
    pub(crate) fn hand_off(&mut self, ticket: u64, now: Instant, terms: Terms) -> Option<Hold> {
        let held = self.held.get_mut(&ticket)?;
        Some(held.hand_off(now, terms, &mut self.endings))
    }

    // --- lingering ---

    /// Drops the last guard of a permit, and keeps it for the next caller. `false` if it may not be kept.
    #[inline]
    pub(crate) fn linger(&mut self, hold: Hold, now: Instant, until: Instant) -> bool {
        let strict = self.strict;
        let held = self.get_mut(hold);
        let Some(held) = held.filter(|held| held.may_hand_off(strict, now)) else {
            return false;
        };
        held.guards = 0;
        self.lingering.push_back((until, hold.ticket));
        true
    }

    #[inline]
    pub(crate) fn lingering(&self) -> usize {
        self.lingering.len()
    }

    pub(crate) fn all_lingering(&self) -> Vec<u64> {
        self.lingering.iter().map(|(_, ticket)| *ticket).collect()
    }

    /// When the next one stops lingering.
    #[inline]
    pub(crate) fn lingering_ends(&self) -> Option<Instant> {
        self.lingering.front().map(|(until, _)| *until)
    }

    /// Returns the permit that was released last, if it is valid with time to spare: else it is released.
    #[inline(always)]
    pub(crate) fn acquire_lingering(&mut self, now: Instant, terms: Terms) -> Option<Hold> {
        let (_, ticket) = self.lingering.pop_back()?;
        let held = self.held.get_mut(&ticket)?;
        if !held.is_sure(now) {
            self.release(ticket, None);
            return None;
        }
        Some(held.hand_off(now, terms, &mut self.endings))
    }

    /// Releases those that have lingered long enough.
    #[inline]
    pub(crate) fn end_lingering(&mut self, now: Instant) {
        while let Some((until, ticket)) = self.lingering.front().copied()
            && until <= now
        {
            self.lingering.pop_front();
            self.release(ticket, None);
        }
    }

    /// Releases all that linger.
    pub(crate) fn end_all_lingering(&mut self) {
        while let Some((_, ticket)) = self.lingering.pop_front() {
            self.release(ticket, None);
        }
    }

    // --- validity ---

    pub(crate) fn is_held(&self, ticket: u64) -> bool {
        self.held.contains_key(&ticket)
    }

    #[inline]
    fn get(&self, hold: Hold) -> Option<&Held> {
        let held = &**self.held.get(&hold.ticket)?;
        (held.hold == hold && held.guards > 0).then_some(held)
    }

    #[inline]
    fn get_mut(&mut self, hold: Hold) -> Option<&mut Held> {
        let held = &mut **self.held.get_mut(&hold.ticket)?;
        (held.hold == hold && held.guards > 0).then_some(held)
    }

    /// Whether it is held and the deadline has not passed.
    pub(crate) fn is_valid(&self, hold: Hold, now: Instant) -> bool {
        let held = self.get(hold);
        held.is_some_and(|held| held.lost.is_none() && now < held.deadline)
    }

    /// Returns a permit that is not lost by now. Without `strict`, it is in doubt and not lost after its deadline.
    #[inline]
    fn get_not_lost(&mut self, hold: Hold, now: Instant) -> Option<&mut Held> {
        let strict = self.strict;
        let held = self.get_mut(hold)?;
        let expired = strict && held.deadline <= now;
        (!expired && held.lost.is_none()).then_some(held)
    }

    /// Returns the fencing token until the last guard is dropped, also after the permit was lost.
    pub(crate) fn token(&self, hold: Hold) -> Option<u64> {
        self.get(hold).map(Held::token)
    }

    /// Returns when the permit is lost unless it is confirmed before, or how it was lost. `None` if a passed deadline only means
    /// doubt. A void hold counts as lost.
    #[inline]
    pub(crate) fn expiry(&self, hold: Hold) -> Result<Option<Instant>, ErrorKind> {
        let held = self.get(hold).ok_or(ErrorKind::Lost)?;
        let expiry = self.strict.then_some(held.deadline);
        held.lost.map_or(Ok(expiry), Err)
    }

    /// Returns the permits that are lost by now because they were not confirmed.
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

    /// Whether a grant confirmed at `sent` has so little of its lease left that it must be confirmed before it is used.
    pub(crate) fn is_stale(&self, sent: Instant, now: Instant) -> bool {
        (sent + self.lease).saturating_duration_since(now) < self.lease / 3
    }

    /// Returns the permits to renew in this call. Those due soon are renewed along with them, so that all of a name stay
    /// together.
    pub(crate) fn to_renew(&self, now: Instant, most: usize) -> Vec<u64> {
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

    /// Whether half of the lease is over since the last confirmation: the renewal is urgent now.
    pub(crate) fn renewal_overdue(&self, now: Instant) -> bool {
        let renewal = self.renewals.first();
        renewal.is_some_and(|(at, _)| self.overdue(*at) <= now)
    }

    fn overdue(&self, renewal: Instant) -> Instant {
        renewal + self.lease / 6
    }

    /// Releases a ticket that the backend has granted although its permit was lost here.
    pub(crate) fn still_granted(&mut self, ticket: u64) {
        if self.held.get(&ticket).is_none_or(|h| h.lost.is_some()) {
            self.releases.add_again(ticket);
        }
    }

    /// Extends a permit: the call that was sent at `sent` has confirmed it.
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

    /// Marks a permit as lost. `None` if it has no guard, or was lost before.
    pub(crate) fn lose(&mut self, ticket: u64, why: ErrorKind) -> Option<Hold> {
        let lingering = self.lingering.len();
        self.lingering.retain(|(_, lingers)| *lingers != ticket);
        if self.lingering.len() < lingering {
            self.release(ticket, None);
            return None;
        }
        let held = self.held.get_mut(&ticket)?;
        if held.lost.is_some() {
            return None;
        }
        held.lost = Some(why);
        self.lost += 1;
        let hold = held.hold;
        held.disarm(&mut self.endings);
        self.renewals.remove(&(held.renewal(self.lease), ticket));
        // An `acquire` that was executed late may have enqueued it again.
        self.releases.add(ticket, None, None);
        Some(hold)
    }

    /// Returns all permits that are not lost, lingering ones included.
    pub(crate) fn valid_tickets(&self) -> Vec<u64> {
        let valid = self.held.iter().filter(|(_, held)| held.lost.is_none());
        valid.map(|(ticket, _)| *ticket).collect()
    }

    /// Adds a guard to a held permit. `false` if it is not held any more.
    pub(crate) fn share(&mut self, hold: Hold, now: Instant) -> bool {
        let held = self.get_not_lost(hold, now);
        held.map(|held| held.guards += 1).is_some()
    }

    /// Drops a guard. The last one releases the permit, and `answer` receives whether it was held until then. Returns the
    /// answer if it is known already.
    pub(crate) fn drop_guard(
        &mut self,
        hold: Hold,
        now: Instant,
        answer: Option<Answer>,
    ) -> Option<Answered> {
        let valid = self.is_valid(hold, now);
        match self.get_mut(hold) {
            Some(held) if held.guards > 1 => held.guards -= 1,
            Some(held) if held.lost.is_none() => {
                self.release(hold.ticket, answer);
                return None;
            }
            Some(_) => drop(self.remove(hold.ticket)),
            None => {}
        }
        answer.map(|answer| (answer, Some(valid)))
    }

    /// Releases a permit. `answer` receives whether it was held until then.
    pub(crate) fn release(&mut self, ticket: u64, answer: Option<Answer>) {
        if let Some(deadline) = self.remove(ticket) {
            self.releases.add(ticket, Some(deadline), answer);
        }
    }

    /// Removes a permit. Returns its deadline if it was not lost.
    fn remove(&mut self, ticket: u64) -> Option<Instant> {
        let mut held = self.held.remove(&ticket)?;
        if held.lost.is_some() {
            self.lost -= 1;
            return None;
        }
        held.disarm(&mut self.endings);
        self.renewals.remove(&(held.renewal(self.lease), ticket));
        Some(held.deadline)
    }

    // --- reservations and long holds ---

    /// Claims a reserved permit. `false` if it was released already, or is lost by now.
    #[inline]
    pub(crate) fn claim(&mut self, hold: Hold, now: Instant) -> bool {
        self.get_not_lost(hold, now).map(Held::claim).is_some()
    }

    /// Restarts the reservation. `false` if it was released already.
    pub(crate) fn rearm(&mut self, hold: Hold, now: Instant) -> bool {
        let held = self.get_not_lost(hold, now);
        held.map(|held| held.rearm(now)).is_some()
    }

    /// Notes whether the reader of the response waits for its next part.
    #[inline]
    pub(crate) fn set_reading(&mut self, hold: Hold, waits: bool, now: Instant) {
        let held = self.held.get_mut(&hold.ticket);
        if let Some(held) = held.filter(|held| held.hold == hold && held.lost.is_none()) {
            held.set_reading(waits, now, &mut self.endings);
        }
    }

    /// Releases lapsed reservations. Marks permits past `max_hold`, or with a stalled reader, as lost, and returns these.
    pub(crate) fn end(&mut self, now: Instant) -> Vec<(Hold, ErrorKind)> {
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
                held.arm(&mut self.endings);
            } else if held.has_lapsed(now) {
                // The guard's hold is void from now on.
                self.release(ticket, None);
            } else {
                let why = match held.may_be_held(now) {
                    true => ErrorKind::Stalled,
                    false => ErrorKind::HeldTooLong,
                };
                ended.extend(self.lose(ticket, why).map(|hold| (hold, why)));
            }
        }
        ended
    }
}
