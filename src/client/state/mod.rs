//! The state of one name in this process: its waiters, permits and releases, and what the next call carries.
//!
//! Pure: time is an argument, and nothing is sent from here. What callers are to be told is returned as [`Effects`].

mod handoff;
mod number_map;
mod permit;
mod permits;
mod releases;
mod replies;
mod tries;
mod waiters;

pub(crate) use handoff::Shortcuts;
pub(crate) use permit::{Hold, Terms};
pub(crate) use permits::Permits;
pub(crate) use releases::Answer;
pub(crate) use waiters::Waiters;

use super::outage::Trouble;
use super::stats::Stats;
use crate::backend::MAX_TICKETS;
use crate::error::{Error, ErrorKind};
use handoff::{Handoff, Here};
use std::time::Duration;
use tokio::time::Instant;
use tries::Tries;
use waiters::Removed;

/// A wait of this length is logged, and then again after each period.
const LONG_WAIT: Duration = Duration::from_secs(2);
const LONG_WAIT_AGAIN: Duration = Duration::from_secs(10);

/// The queued ticket of a waiter that was served by hand-off is released with any call until then.
const UNHURRIED: Duration = Duration::from_millis(50);

/// The state of one name. `C` is the caller's end of a wait.
#[derive(Debug)]
pub(crate) struct State<C> {
    pub(crate) limit: u32,
    pub(crate) permits: Permits,
    pub(crate) waiters: Waiters<C>,
    tries: Tries<C>,
    /// What the call in flight carries.
    sent: Option<Tickets>,
    lease: Duration,
    handoff: Handoff,
    /// When the tickets of all waiters are sent again.
    repeat_at: Instant,
    /// When the backend is to be polled.
    poll_at: Option<Instant>,
    /// A call has to be sent even if it carries nothing.
    probe: bool,
    /// Failed calls in a row, and when the next may be sent.
    failures: u32,
    retry_at: Option<Instant>,
    /// Calls about this name fail, whatever becomes of other names.
    pub(crate) trouble: Option<Trouble>,
    /// No long wait is logged before then.
    quiet_until: Option<Instant>,
    pub(crate) stats: Stats,
}

/// The tickets that one call carries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tickets {
    pub(crate) release: Vec<u64>,
    pub(crate) renew: Vec<u64>,
    pub(crate) acquire: Vec<u64>,
    pub(crate) try_acquire: Vec<u64>,
}

/// When a name needs the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    /// Not at all: nothing is held, waits or is released.
    Idle,
    /// Not before then.
    At(Instant),
    /// A renewal is due, which no caller waits for. It is urgent then.
    Renewal(Instant),
    /// A caller waits for the next call.
    Urgent,
}

/// What follows from an event for the callers.
#[derive(Debug)]
pub(crate) struct Effects<C> {
    /// This caller holds a permit now, by hand-off.
    pub(crate) next: Option<(C, Hold)>,
    /// These callers hold a permit now.
    pub(crate) granted: Vec<(C, Hold)>,
    pub(crate) refused: Vec<(C, Error)>,
    /// These permits are lost.
    pub(crate) lost: Vec<(Hold, ErrorKind)>,
    /// The results of releases.
    pub(crate) answers: Vec<(Answer, bool)>,
    /// Callers of releases that were not acknowledged in time.
    pub(crate) unanswered: Vec<Answer>,
}

/// The caller's end of a wait knows on which terms the permit is wanted.
pub(crate) trait HasTerms {
    fn terms(&self) -> Terms;
}

// === impl State ===

impl<C: HasTerms> State<C> {
    /// `strict`: a permit whose deadline passes unconfirmed is lost at once.
    pub(crate) fn new(
        limit: u32,
        lease: Duration,
        strict: bool,
        shortcuts: Shortcuts,
        now: Instant,
    ) -> Self {
        Self {
            limit,
            permits: Permits::new(lease, strict),
            waiters: Waiters::default(),
            tries: Tries::default(),
            sent: None,
            lease,
            handoff: Handoff::new(shortcuts, now),
            repeat_at: now,
            poll_at: None,
            probe: false,
            failures: 0,
            retry_at: None,
            trouble: None,
            quiet_until: None,
            stats: Stats::default(),
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        Stats {
            limit: self.limit,
            in_use: self.permits.in_use(),
            lingering: self.permits.lingering(),
            waiting: self.waiters.len() + self.tries.len(),
            ..self.stats
        }
    }

    /// Nothing is held, waits or is being released.
    pub(crate) fn is_quiet(&self) -> bool {
        self.permits.is_empty() && self.waiters.is_empty() && self.tries.is_empty()
    }

    /// There is nothing to do, now or later.
    pub(crate) fn is_idle(&self) -> bool {
        self.is_quiet() && !self.probe
    }

    // --- callers ---

    /// Adds a waiter.
    pub(crate) fn join(&mut self, ticket: u64, now: Instant, caller: C) {
        if self.waiters.is_empty() {
            self.repeat_at = now + self.lease / 3;
        }
        if !self.waiters.has_requests() {
            self.handoff.first_newcomer(now);
        }
        self.waiters.join(ticket, now, caller);
    }

    /// Adds a try, which is never queued.
    pub(crate) fn try_join(&mut self, ticket: u64, caller: C) {
        self.tries.join(ticket, caller);
    }

    /// Removes a waiter or a try. `None` if it was served already.
    pub(crate) fn give_up(&mut self, waiter: u64) -> Option<C> {
        if let Some(removed) = self.tries.take(waiter) {
            return Some(self.release_ticket(removed, None));
        }
        let removed = self.waiters.give_up(waiter)?;
        Some(self.release_ticket(removed, None))
    }

    /// Releases the ticket of a removed waiter if the backend may know it.
    fn release_ticket(&mut self, removed: Removed<C>, by: Option<Instant>) -> C {
        if let Some(ticket) = removed.known_ticket {
            let releases = &mut self.permits.releases;
            releases.add_queued(ticket, removed.entry, by);
        }
        removed.caller
    }

    pub(crate) fn set_limit(&mut self, limit: u32) {
        if self.limit != limit {
            self.limit = limit;
            self.handoff.forget_room();
            // A lingering permit may be in the way now.
            self.permits.end_all_lingering();
            // A waiter may be granted a permit by it: the backend has to know the new limit.
            self.waiters.request_oldest(1);
        }
    }

    /// Sends a call even if it carries nothing, to see whether the backend answers.
    pub(crate) fn probe(&mut self) {
        self.probe = true;
    }

    // --- hand-off ---

    /// Drops a guard. After the last one the oldest waiter here gets the ticket, or it lingers, or it is released.
    /// `answer` is told whether the permit was held until then.
    pub(crate) fn drop_guard(
        &mut self,
        hold: Hold,
        now: Instant,
        answer: Option<Answer>,
    ) -> Effects<C> {
        // What is lost by now is lost, even if that was not noticed yet and the backend still holds it.
        let mut effects = self.expire(now);
        let known = match self.hand_off(hold, now) {
            Some(next) => {
                effects.next = Some(next);
                answer.map(|answer| (answer, true))
            }
            None => self.permits.drop_guard(hold, now, answer),
        };
        effects.answers.extend(known);
        effects
    }

    /// Passes a ticket whose last guard is dropped to the oldest waiter here, if that is allowed.
    fn hand_off(&mut self, hold: Hold, now: Instant) -> Option<(C, Hold)> {
        if self.waiters.is_empty() || !self.handoff.is_allowed(self.here()) {
            return None;
        }
        let permit = self.permits.may_hand_over(hold, now)?;
        if !self.handoff.may_hand_off(&permit, now) {
            return None;
        }
        let removed = self.waiters.pop_oldest()?;
        let next = self.release_ticket(removed, Some(now + UNHURRIED));
        let held = self.permits.hand_off(hold.ticket, now, next.terms())?;
        self.stats.granted += 1;
        Some((next, held))
    }

    /// The short path of a dropped guard: until when its permit lingers, if it does.
    #[inline]
    pub(crate) fn linger(&mut self, hold: Hold, now: Instant) -> Option<Instant> {
        let until = self.handoff.may_linger(self.here(), now)?;
        if !self.waiters.is_empty() || !self.permits.linger(hold, now, until) {
            return None;
        }
        self.handoff.note_linger(until);
        Some(until)
    }

    #[inline]
    fn here(&self) -> Here {
        Here {
            limit: self.limit,
            in_use: self.permits.in_use(),
        }
    }

    #[inline]
    pub(crate) fn has_lingering(&self) -> bool {
        self.permits.lingering() > 0
    }

    /// A lingering permit for a caller that arrives now.
    // Always inline, as what it calls: a result that goes by memory makes a request through a layer some percent slower.
    #[inline(always)]
    pub(crate) fn take_lingering(&mut self, terms: Terms, now: Instant) -> Option<Hold> {
        self.permits.end_lingering(now);
        let hold = self.permits.take_lingering(now, terms)?;
        self.stats.granted += 1;
        Some(hold)
    }

    /// Releases what lingers, and lets nothing linger from now on.
    pub(crate) fn stop_lingering(&mut self) {
        self.handoff.stop_lingering();
        self.permits.end_all_lingering();
    }

    /// When lingering permits have to be looked at. As long as permits linger now and then it is always soon, so that a
    /// single permit does not have to set a timer.
    fn linger_ends(&self) -> Option<Instant> {
        (self.permits.lingering_ends()).or(self.handoff.lingers_until())
    }

    // --- the next call ---

    /// The tickets to send now, if any. The result of the call is given to [`on_reply`](Self::on_reply) or
    /// [`on_failure`](Self::on_failure). Without either, the next call carries everything again.
    ///
    /// `renew`: a renewal that is not urgent may be sent.
    pub(crate) fn next_call(&mut self, now: Instant, renew: bool) -> (Option<Tickets>, Effects<C>) {
        self.resend();
        let effects = self.tick(now);
        let sends = match self.plan(now) {
            Plan::Urgent => true,
            Plan::Renewal(_) => renew,
            Plan::At(_) | Plan::Idle => false,
        };
        (sends.then(|| self.tickets(now)), effects)
    }

    /// Ends what ends by itself by now, and notes what has to be sent again.
    pub(crate) fn tick(&mut self, now: Instant) -> Effects<C> {
        let mut effects = self.expire(now);
        for hold in self.permits.end(now) {
            self.count_loss(hold, ErrorKind::HeldTooLong, &mut effects);
        }
        self.permits.end_lingering(now);
        self.handoff.end_lingering(now);
        effects.unanswered = self.permits.releases.take_unanswered(now);
        self.repeat(now);
        effects
    }

    /// Marks the permits as lost whose deadline passed without a confirmation.
    pub(crate) fn expire(&mut self, now: Instant) -> Effects<C> {
        let mut effects = Effects::default();
        for ticket in self.permits.expired(now) {
            self.lose(ticket, ErrorKind::Lost, &mut effects);
        }
        effects
    }

    /// Sends queued tickets again where that is due.
    fn repeat(&mut self, now: Instant) {
        if self.waiters.is_empty() {
            self.poll_at = None;
            return;
        }
        if self.repeat_at <= now {
            self.waiters.request_oldest(usize::MAX);
            self.repeat_at = now + self.lease / 3;
        }
        if self.poll_at.is_some_and(|at| at <= now) {
            self.waiters.request_oldest(MAX_TICKETS);
            self.poll_at = None;
        }
    }

    /// When this name needs the driver.
    pub(crate) fn plan(&self, now: Instant) -> Plan {
        if self.is_idle() {
            return Plan::Idle;
        }
        if let Some(retry_at) = self.retry_at
            && now < retry_at
        {
            let ending = self.permits.next_ending();
            return Plan::At(ending.map_or(retry_at, |at| at.min(retry_at)));
        }
        let request_at = self.next_request(now);
        if self.is_urgent(now) || request_at.is_some_and(|at| at <= now) {
            return Plan::Urgent;
        }
        let due = self.next_due(now, request_at);
        if self.permits.renewal_due(now) {
            Plan::Renewal(due)
        } else {
            Plan::At(due)
        }
    }

    /// A caller waits for the next call, though not as a new waiter.
    fn is_urgent(&self, now: Instant) -> bool {
        self.probe
            || self.permits.renewal_overdue(now)
            || self.permits.releases.are_due(now)
            || self.tries.has_requests()
    }

    /// When new waiters are to be sent, if there are any.
    fn next_request(&self, now: Instant) -> Option<Instant> {
        let requests = self.waiters.has_requests();
        requests.then(|| self.handoff.request_at(self.here(), now))
    }

    /// Everything that is due, as far as it fits in a call: renewals before releases before requests.
    fn tickets(&mut self, now: Instant) -> Tickets {
        self.probe = false;
        let mut room = MAX_TICKETS;
        let mut take = |tickets: Vec<u64>| {
            room -= tickets.len().min(room);
            (tickets, room)
        };
        let (renew, room) = take(self.permits.to_renew(now, MAX_TICKETS));
        let (release, room) = take(self.permits.releases.send(now, room));
        let (acquire, room) = take(self.waiters.take_requests(room, now));
        let try_acquire = self.tries.take_requests(room);
        let tickets = Tickets {
            release,
            renew,
            acquire,
            try_acquire,
        };
        self.sent = Some(tickets.clone());
        tickets
    }

    /// Sends again what was sent and not answered: permits are still due, and the rest is added to the next call.
    pub(crate) fn resend(&mut self) {
        let Some(sent) = self.sent.take() else {
            return;
        };
        self.permits.releases.resend();
        for ticket in sent.acquire {
            self.waiters.request_again(ticket);
        }
        for ticket in sent.try_acquire {
            self.tries.request_again(ticket);
        }
    }

    fn next_due(&self, now: Instant, request_at: Option<Instant>) -> Instant {
        let waiting = !self.waiters.is_empty();
        let times = [
            self.permits.next_due(now),
            self.linger_ends(),
            request_at,
            waiting.then_some(self.repeat_at),
            waiting.then_some(self.poll_at).flatten(),
            self.long_wait_at(),
        ];
        let next = times.into_iter().flatten().min();
        next.unwrap_or(now + self.lease / 3)
    }

    // --- long waits ---

    /// When the next long wait is to be logged.
    fn long_wait_at(&self) -> Option<Instant> {
        let at = self.waiters.oldest_since()? + LONG_WAIT;
        Some(self.quiet_until.map_or(at, |quiet| at.max(quiet)))
    }

    /// How long the oldest waiter has been waiting, if that is to be logged now.
    pub(crate) fn long_wait(&mut self, now: Instant) -> Option<Duration> {
        if self.long_wait_at()? > now {
            return None;
        }
        self.quiet_until = Some(now + LONG_WAIT_AGAIN);
        let since = self.waiters.oldest_since()?;
        Some(now.saturating_duration_since(since))
    }
}

// === impl Tickets ===

impl Tickets {
    pub(crate) fn len(&self) -> usize {
        self.release.len() + self.renew.len() + self.acquire.len() + self.try_acquire.len()
    }
}

// === impl Effects ===

impl<C> Default for Effects<C> {
    fn default() -> Self {
        Self {
            next: None,
            granted: Vec::new(),
            refused: Vec::new(),
            lost: Vec::new(),
            answers: Vec::new(),
            unanswered: Vec::new(),
        }
    }
}
