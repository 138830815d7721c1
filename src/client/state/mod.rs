//! The state of one name in this process: its waiters, permits and releases, and what the next call carries.
//!
//! Pure: time is an argument, and nothing is sent from here. What follows for callers is returned as [`Effects`].

mod handoff;
mod permit;
mod permits;
mod releases;
mod replies;
mod waiters;

pub(crate) use handoff::Shortcuts;
pub(crate) use permit::{Hold, Terms};
pub(crate) use permits::Permits;
pub(crate) use releases::{Answer, Answered};
pub(crate) use replies::too_many_waiting;
pub(crate) use waiters::Waiters;

use super::stats::Stats;
use crate::backend::MAX_TICKETS;
use crate::error::{Error, ErrorKind};
use handoff::Handoff;
use std::time::Duration;
use tokio::time::Instant;

/// A wait of this length is logged, and again after each further period.
const LONG_WAIT: Duration = Duration::from_secs(2);
const LONG_WAIT_AGAIN: Duration = Duration::from_secs(10);

/// The queued ticket of a waiter that was served by hand-off is released with any call within this time.
const LATEST_RELEASE: Duration = Duration::from_millis(50);

/// The state of one name. `C` is the caller's end of a wait.
#[derive(Debug)]
pub(crate) struct State<C> {
    pub(crate) limit: u32,
    pub(crate) permits: Permits,
    pub(crate) waiters: Waiters<C>,
    /// Callers that do not wait: one call decides, and their tickets are never queued.
    tries: Waiters<C>,
    /// What the call in flight carries.
    sent: Option<Tickets>,
    lease: Duration,
    handoff: Handoff,
    /// When the tickets of all waiters are sent again.
    repeat_at: Instant,
    /// When the backend is to be polled.
    poll_at: Option<Instant>,
    /// A call has to be sent even if it carries nothing, to see whether the backend answers.
    pub(crate) probe: bool,
    /// Failed calls in a row, and when the next may be sent.
    failures: u32,
    retry_at: Option<Instant>,
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
    /// Not at all: it has no permit, no waiter and no release.
    Idle,
    /// At this time, and not before.
    At(Instant),
    /// A renewal is due, which no caller waits for. It becomes urgent at this time.
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
    pub(crate) answered: Vec<Answered>,
}

// === impl State ===

impl<C> State<C> {
    /// `strict`: without a confirmation, a permit is lost at its deadline.
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
            tries: Waiters::default(),
            sent: None,
            lease,
            handoff: Handoff::new(shortcuts, now),
            repeat_at: now,
            poll_at: None,
            probe: false,
            failures: 0,
            retry_at: None,
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

    /// Whether it has no permit, no waiter and no release.
    pub(crate) fn is_quiet(&self) -> bool {
        self.permits.is_empty() && self.waiters.is_empty() && self.tries.is_empty()
    }

    /// Whether there is nothing to do, now or later.
    pub(crate) fn is_idle(&self) -> bool {
        self.is_quiet() && !self.probe
    }

    // --- callers ---

    /// Adds a waiter, which is refused if more than `max_waiting` waiters are queued.
    pub(crate) fn join(
        &mut self,
        ticket: u64,
        now: Instant,
        terms: Terms,
        max_waiting: usize,
        caller: C,
    ) {
        if self.waiters.is_empty() {
            self.repeat_at = now + self.lease / 3;
        }
        if !self.waiters.has_tickets_to_send() {
            self.handoff.first_unsent(now);
        }
        self.waiters.join(ticket, now, terms, max_waiting, caller);
    }

    /// Adds a try, which is never queued.
    pub(crate) fn join_try(&mut self, ticket: u64, now: Instant, terms: Terms, caller: C) {
        self.tries.join(ticket, now, terms, usize::MAX, caller);
    }

    /// Removes a waiter or a try. `None` if it was served already.
    pub(crate) fn give_up(&mut self, waiter: u64) -> Option<C> {
        let removed = self.tries.remove(waiter);
        let removed = removed.or_else(|| self.waiters.remove(waiter))?;
        self.permits.releases.add_removed(removed.ticket, None);
        Some(removed.caller)
    }

    pub(crate) fn set_limit(&mut self, limit: u32) {
        if self.limit != limit {
            self.limit = limit;
            self.handoff.forget_use();
            // A lingering permit may exceed the new limit.
            self.permits.end_all_lingering();
            // The new limit may allow a grant: the backend has to know it.
            self.waiters.resend_oldest(1);
        }
    }

    // --- hand-off ---

    /// Drops a guard. After the last one the permit passes to the oldest waiter here, or is released. `answer` receives
    /// whether it was held until then.
    pub(crate) fn drop_guard(
        &mut self,
        hold: Hold,
        now: Instant,
        answer: Option<Answer>,
    ) -> Effects<C> {
        // What is lost by now is lost, even if that was not noticed before and the backend still holds it.
        let mut effects = self.expire(now);
        effects.next = self.hand_off(hold, now);
        effects.answered.extend(match effects.next {
            Some(_) => answer.map(|answer| (answer, Some(true))),
            None => self.permits.drop_guard(hold, now, answer),
        });
        effects
    }

    /// Drops the last guard of a permit, and passes it to the oldest waiter here, if that is allowed.
    fn hand_off(&mut self, hold: Hold, now: Instant) -> Option<(C, Hold)> {
        if self.waiters.is_empty() {
            return None;
        }
        let (permit, in_use) = (self.permits.may_hand_off(hold, now)?, self.permits.in_use());
        if !(self.handoff).may_hand_off(permit, self.limit, in_use, now) {
            return None;
        }
        let next = self.waiters.remove_oldest()?;
        let held = (self.permits).hand_off(hold.ticket, now, next.terms)?;
        let latest = now + LATEST_RELEASE;
        (self.permits.releases).add_removed(next.ticket, Some(latest));
        self.stats.granted += 1;
        Some((next.caller, held))
    }

    /// Drops a guard if its permit may linger, and returns until when: the short path of a release.
    #[inline]
    pub(crate) fn linger(&mut self, hold: Hold, now: Instant) -> Option<Instant> {
        let in_use = self.permits.in_use();
        let until = self.handoff.may_linger(self.limit, in_use, now)?;
        if !self.waiters.is_empty() || !self.permits.linger(hold, now, until) {
            return None;
        }
        self.handoff.lingers_until = Some(until);
        Some(until)
    }

    /// Returns a lingering permit for a caller that arrives now.
    // Always inline, as what it calls: a result that is passed in memory makes a request through a layer some percent
    // slower.
    #[inline(always)]
    pub(crate) fn acquire_lingering(&mut self, terms: Terms, now: Instant) -> Option<Hold> {
        self.permits.end_lingering(now);
        let hold = self.permits.acquire_lingering(now, terms)?;
        self.stats.granted += 1;
        Some(hold)
    }

    /// Releases what lingers, and lets nothing linger from now on.
    pub(crate) fn stop_lingering(&mut self) {
        self.handoff.shortcuts.linger = Duration::ZERO;
        self.permits.end_all_lingering();
    }

    // --- the next call ---

    /// Returns the tickets to send now, if any. The result of the call is passed to [`on_reply`](Self::on_reply) or
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

    /// Ends whatever ends without a call by now, and notes what has to be sent again.
    pub(crate) fn tick(&mut self, now: Instant) -> Effects<C> {
        let mut effects = self.expire(now);
        for (hold, why) in self.permits.end(now) {
            self.count_loss(hold, why, &mut effects);
        }
        self.permits.end_lingering(now);
        self.handoff.lingers_until.take_if(|until| *until <= now);
        effects
            .answered
            .extend(self.permits.releases.give_up_answers(now));
        self.repeat(now);
        effects
    }

    /// Marks the permits as lost that were not confirmed before their deadline.
    pub(crate) fn expire(&mut self, now: Instant) -> Effects<C> {
        let mut effects = Effects::default();
        for ticket in self.permits.expired(now) {
            self.lose(ticket, ErrorKind::Lost, &mut effects);
        }
        effects
    }

    /// Sends queued tickets again if that is due.
    fn repeat(&mut self, now: Instant) {
        if self.waiters.is_empty() {
            self.poll_at = None;
            return;
        }
        if self.repeat_at <= now {
            self.waiters.resend_oldest(usize::MAX);
            self.repeat_at = now + self.lease / 3;
        }
        if self.poll_at.take_if(|at| *at <= now).is_some() {
            self.waiters.resend_oldest(MAX_TICKETS);
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
        let unsent = self.waiters.has_tickets_to_send();
        let send_at =
            unsent.then(|| (self.handoff).send_at(self.limit, self.permits.in_use(), now));
        if self.is_urgent(now) || send_at.is_some_and(|at| at <= now) {
            return Plan::Urgent;
        }
        let due = self.next_due(now, send_at);
        if self.permits.renewal_due(now) {
            Plan::Renewal(due)
        } else {
            Plan::At(due)
        }
    }

    /// Whether a caller waits for the next call, other than a new waiter.
    fn is_urgent(&self, now: Instant) -> bool {
        self.probe
            || self.permits.renewal_overdue(now)
            || self.permits.releases.are_due(now)
            || self.tries.has_tickets_to_send()
    }

    fn next_due(&self, now: Instant, send_at: Option<Instant>) -> Instant {
        let waiting = !self.waiters.is_empty();
        // Keeps a timer armed while permits linger repeatedly, so that each one need not arm its own.
        let linger_ends = (self.permits.lingering_ends()).or(self.handoff.lingers_until);
        let times = [
            self.permits.next_due(now),
            linger_ends,
            send_at,
            waiting.then_some(self.repeat_at),
            waiting.then_some(self.poll_at).flatten(),
            self.long_wait_at(),
        ];
        let next = times.into_iter().flatten().min();
        next.unwrap_or(now + self.lease / 3)
    }

    /// Returns everything that is due, as far as it fits in a call: renewals before releases before new tickets.
    fn tickets(&mut self, now: Instant) -> Tickets {
        self.probe = false;
        let mut room = MAX_TICKETS;
        let renew = self.permits.to_renew(now, room);
        room -= renew.len();
        let release = self.permits.releases.send(now, room);
        room -= release.len();
        let acquire = self.waiters.send(room, now);
        room -= acquire.len();
        let tickets = Tickets {
            release,
            renew,
            acquire,
            try_acquire: self.tries.send(room, now),
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
            self.waiters.resend(ticket);
        }
        for ticket in sent.try_acquire {
            self.tries.resend(ticket);
        }
    }

    // --- long waits ---

    /// When the next long wait is to be logged.
    fn long_wait_at(&self) -> Option<Instant> {
        let at = self.waiters.oldest_since()? + LONG_WAIT;
        Some(self.quiet_until.map_or(at, |quiet| at.max(quiet)))
    }

    /// Returns how long the oldest waiter has been waiting, if that is to be logged now.
    pub(crate) fn long_wait(&mut self, now: Instant) -> Option<Duration> {
        if self.long_wait_at()? > now {
            return None;
        }
        self.quiet_until = Some(now + LONG_WAIT_AGAIN);
        let since = self.waiters.oldest_since()?;
        Some(now.saturating_duration_since(since))
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
            answered: Vec::new(),
        }
    }
}
