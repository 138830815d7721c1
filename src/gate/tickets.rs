//! What we hold and until when, and what has left but is not answered yet.
//!
//! Pure: time comes as an argument.

use super::waiters::Standing;
use crate::backend::Grant;
use crate::clock::later;
use crate::error::ErrorKind;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use tokio::sync::oneshot;
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
    leaving: BTreeMap<u64, Leaving>,
    /// Some of them have to be said now, and the others by then.
    leaves_now: bool,
    leaves_by: Option<Instant>,
    /// No leave is old enough to be forgotten before then.
    forget_at: Option<Instant>,
    lost: usize,
}

/// One caller's hold of a ticket. A ticket may go from hand to hand; who had it before has no part in it any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Hold {
    pub(crate) ticket: u64,
    /// How often the ticket had changed hands, since the backend granted it.
    pub(crate) hop: u64,
}

/// What is known of a ticket that may stay here when it is released.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Staying {
    /// How often it has changed hands since the backend granted it.
    pub(crate) hops: u64,
    /// When the grant was heard of.
    pub(crate) granted: Instant,
}

/// A mutex's token is that of the backend times this, plus the hop: so it rises with every hop, too.
const HOPS: u64 = 1024;

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
    /// The backend's fencing token, in a queue whose limit is 1.
    token: u64,
    /// How often it has changed hands.
    hop: u64,
    /// When the backend's grant was heard of.
    since: Instant,
    /// Until then it is surely ours, for a while yet.
    sure_until: Instant,
    /// The backend keeps it at least until then: one lease from before the call was sent that confirmed it last.
    deadline: Instant,
    /// How many guards share it. The last one out lets it leave.
    guards: usize,
    reserved: Option<Reserved>,
    ends: Option<Instant>,
    /// When it stands in `endings`: not after its ending, perhaps before. So what changes with each request, and is over
    /// long before its time, costs nothing.
    armed: Option<Instant>,
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
            leaving: BTreeMap::new(),
            leaves_now: false,
            leaves_by: None,
            forget_at: None,
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
        self.held.len() == self.lost && self.leaving.is_empty()
    }

    /// When something here wants to be done: for a renewal that is due by now, when it is overdue.
    pub(crate) fn next_due(&self, now: Instant) -> Option<Instant> {
        let renewal = self.renewals.first().map(|(at, _)| *at);
        let renewal = renewal.map(|at| if now < at { at } else { self.overdue(at) });
        let times = [renewal, self.next_ending(), self.leaves_by];
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
        let mut held = Held {
            token,
            hop: 0,
            since: now,
            sure_until: sent + (self.lease - self.lease / 3),
            deadline: sent + self.lease,
            guards: 0,
            reserved: None,
            ends: None,
            armed: None,
            lost: None,
        };
        self.renewals.insert((held.renewal(self.lease), ticket));
        held.take(ticket, now, terms, &mut self.endings);
        self.held.insert(ticket, held);
        Hold { ticket, hop: 0 }
    }

    /// What is known of a ticket whose last guard goes, if it may stay here: it is surely ours, for a while yet.
    #[inline]
    pub(crate) fn may_stay(&self, hold: Hold, now: Instant) -> Option<Staying> {
        let held = self.get(hold)?;
        held.may_stay(self.strict, now).then_some(Staying {
            hops: held.hop,
            granted: held.since,
        })
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
        Some(held.token.saturating_mul(HOPS).saturating_add(held.hop))
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
            held.sure_until = sent + (self.lease - self.lease / 3);
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
        self.leave(ticket, None, None);
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
            self.leave(ticket, Some(deadline), answer);
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
        // What is left is a later ending, if any: it is armed early enough.
        held.reserved = None;
        true
    }

    /// The reservation starts anew. `false`: it has gone back already.
    pub(crate) fn rearm(&mut self, hold: Hold, now: Instant) -> bool {
        let Some(held) = self.get_ours(hold, now) else {
            return false;
        };
        // Later than it was: what is armed still comes early enough.
        if let Some(reserved) = &mut held.reserved {
            reserved.until = later(now, reserved.ttl);
        }
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
            } else if held.reserved.is_some_and(|reserved| reserved.until <= now) {
                // Nobody has claimed it: the guard that is still out finds nothing.
                self.let_go(ticket, None);
            } else {
                ended.extend(self.lose(ticket, ErrorKind::HeldTooLong));
            }
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
        self.leaves_now = true;
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

    /// Lets a ticket leave whose waiter has gone, now or with whatever is said until `by`.
    pub(crate) fn leave_line(
        &mut self,
        ticket: u64,
        standing: Option<Standing>,
        by: Option<Instant>,
    ) {
        let now = self.leaves_now || by.is_none();
        self.leave(ticket, None, None);
        self.leaves_now = now;
        self.leaves_by = self.leaves_by.or(by);
        if let Some(leaving) = self.leaving.get_mut(&ticket) {
            leaving.standing = standing;
        }
    }

    /// How many of those that no call has carried yet surely stand in the queue.
    pub(crate) fn queued(&self) -> usize {
        let unsaid = self.leaving.values().filter(|l| l.said_since.is_none());
        unsaid
            .filter(|l| l.standing.is_some_and(|s| s.queued))
            .count()
    }

    /// A ticket stands in the queue, whose waiter has gone meanwhile.
    pub(crate) fn answered(&mut self, ticket: u64) {
        if let Some(leaving) = self.leaving.get_mut(&ticket)
            && let Some(standing) = &mut leaving.standing
        {
            standing.queued = true;
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
        self.leaves_now = tickets.len() < self.leaving.len();
        self.leaves_by = None;
        tickets
    }

    /// The leaves that were said were not answered.
    pub(crate) fn say_leaves_again(&mut self) {
        self.leaves_now |= !self.leaving.is_empty();
    }

    pub(crate) fn has_to_leave(&self, now: Instant) -> bool {
        self.leaves_now || self.leaves_by.is_some_and(|by| by <= now)
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

    /// Somebody has it from now on, on these terms.
    #[inline(always)]
    fn take(
        &mut self,
        ticket: u64,
        now: Instant,
        terms: Terms,
        endings: &mut BTreeSet<(Instant, u64)>,
    ) {
        self.guards = 1;
        self.reserved = terms.reserve.map(|ttl| Reserved {
            ttl,
            until: later(now, ttl),
        });
        self.ends = terms.max_hold.map(|most| later(now, most));
        self.arm(ticket, endings);
    }

    /// The next one has it from now on, on these terms.
    #[inline(always)]
    fn hop_on(
        &mut self,
        ticket: u64,
        now: Instant,
        terms: Terms,
        endings: &mut BTreeSet<(Instant, u64)>,
    ) -> Hold {
        self.hop += 1;
        self.take(ticket, now, terms, endings);
        Hold {
            ticket,
            hop: self.hop,
        }
    }

    /// When its only guard goes, it may go to the next one.
    #[inline]
    fn may_stay(&self, strict: bool, now: Instant) -> bool {
        self.guards == 1 && self.is_sure(now) && (!strict || self.hop + 1 < HOPS)
    }

    /// Surely ours, for a while yet.
    #[inline]
    fn is_sure(&self, now: Instant) -> bool {
        self.lost.is_none() && now <= self.sure_until
    }

    #[inline]
    fn ending(&self) -> Option<Instant> {
        if self.guards == 0 {
            return None;
        }
        let reserved = self.reserved.map(|reserved| reserved.until);
        earlier(reserved, self.ends)
    }

    /// Sees to it that somebody looks at its ending.
    #[inline]
    fn arm(&mut self, ticket: u64, endings: &mut BTreeSet<(Instant, u64)>) {
        if let Some(at) = self.ending()
            && self.armed.is_none_or(|armed| at < armed)
        {
            self.arm_at(at, ticket, endings);
        }
    }

    fn arm_at(&mut self, at: Instant, ticket: u64, endings: &mut BTreeSet<(Instant, u64)>) {
        self.disarm(ticket, endings);
        endings.insert((at, ticket));
        self.armed = Some(at);
    }

    fn disarm(&mut self, ticket: u64, endings: &mut BTreeSet<(Instant, u64)>) {
        if let Some(armed) = self.armed.take() {
            endings.remove(&(armed, ticket));
        }
    }
}

/// The earlier of the two, as far as there are any.
#[inline]
fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        _ => one.or(other),
    }
}
