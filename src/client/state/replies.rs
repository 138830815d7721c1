//! What follows from a reply, a push or a failed call: grants, refusals and losses.

use super::permit::Hold;
use super::waiters::{QueueEntry, Waiter};
use super::{Effects, State};
use crate::backend::{Grant, Outcome, TicketState};
use crate::error::{Error, ErrorKind};
use std::time::Duration;
use tokio::time::Instant;

/// The pause after a failed call, and the longest after several in a row.
const FIRST_RETRY: Duration = Duration::from_millis(20);
const LAST_RETRY: Duration = Duration::from_millis(125);

impl<C> State<C> {
    /// The call that was sent at `sent` was answered.
    pub(crate) fn on_reply(
        &mut self,
        outcome: &Outcome,
        sent: Instant,
        now: Instant,
    ) -> Effects<C> {
        let mut effects = self.expire(now);
        let Some(tickets) = self.sent.take() else {
            return effects;
        };
        self.failures = 0;
        self.retry_at = None;
        for (ticket, held) in tickets.release.iter().zip(&outcome.released) {
            let answered = self.permits.releases.acknowledge(*ticket, *held, now);
            effects.answered.extend(answered);
        }
        for (ticket, state) in tickets.renew.iter().zip(&outcome.renewed) {
            match state {
                TicketState::Held { .. } => self.permits.confirm(*ticket, sent),
                _ => self.lose(*ticket, ErrorKind::Lost, &mut effects),
            }
        }
        for (ticket, state) in tickets.acquire.iter().zip(&outcome.acquired) {
            match state {
                TicketState::Held { token } => {
                    self.granted(Grant::new(*ticket, *token), sent, now, &mut effects);
                }
                TicketState::Queued => {
                    if !(self.waiters).confirm_queued(*ticket, sent, now, self.lease) {
                        self.permits.releases.confirm_queued(*ticket);
                    }
                }
                TicketState::Refused | TicketState::Gone => {
                    self.waiters.resend(*ticket);
                    self.retry_at = Some(now + FIRST_RETRY);
                }
            }
        }
        for (ticket, state) in tickets.try_acquire.iter().zip(&outcome.tried) {
            match state {
                TicketState::Held { token } => {
                    self.granted(Grant::new(*ticket, *token), sent, now, &mut effects);
                }
                _ => self.refuse_try(*ticket, &mut effects),
            }
        }
        for grant in &outcome.granted {
            self.granted(*grant, sent, now, &mut effects);
        }
        self.refuse_excess(&mut effects);
        self.poll_at = (outcome.poll_after).map(|after| now + after.min(self.lease));
        // Tickets of waiters that were removed while the call was in flight were still queued.
        let ours = self.waiters.queued + self.permits.releases.queued();
        self.handoff.observe(outcome, ours, self.limit, now);
        if outcome.queued > 0 {
            self.permits.end_all_lingering();
        }
        effects
    }

    /// A call failed or was given up. What it carried is added to the next one. `least_pause`: before the next one.
    pub(crate) fn on_failure(&mut self, jitter: f64, least_pause: Duration, now: Instant) {
        self.resend();
        let pause = FIRST_RETRY * (1 << self.failures.min(4));
        self.failures = self.failures.saturating_add(1);
        // A permit must not be lost by a single failed call.
        let pause = pause.min(LAST_RETRY).max(least_pause.min(self.lease / 6));
        self.retry_at = Some(now + pause.mul_f64(0.5 + jitter / 2.0));
    }

    /// Refuses the tries, and the waiters with a ticket that no answered call has named.
    pub(crate) fn refuse_unanswered(&mut self, error: &Error) -> Effects<C> {
        let mut removed = self.waiters.remove_unanswered();
        removed.extend(self.tries.remove_all());
        self.refuse(removed, error)
    }

    /// Refuses all waiters and tries, and releases all permits.
    pub(crate) fn close(&mut self, error: &Error) -> Effects<C> {
        let waiters = self.waiters.remove_all();
        let removed = waiters.chain(self.tries.remove_all()).collect();
        let mut effects = self.refuse(removed, error);
        self.lose_permits(error.kind(), &mut effects);
        effects
    }

    /// A grant was pushed, perhaps late or again. It changes nothing about a permit that is held here. Else it counts from
    /// the last answered call that named the ticket: the backend counts from no earlier one.
    pub(crate) fn pushed(&mut self, grant: Grant, now: Instant) -> Effects<C> {
        let (mut effects, ticket) = (Effects::default(), grant.ticket);
        if self.permits.is_held(ticket) {
            self.permits.still_granted(ticket);
            return effects;
        }
        let entry = self.waiters.entry(ticket);
        match entry.or_else(|| self.permits.releases.entry(ticket)) {
            Some(QueueEntry {
                since,
                doubtful: false,
                ..
            }) => self.granted(grant, since, now, &mut effects),
            _ => self.confirm_or_release(ticket),
        }
        effects
    }

    /// The backend has lost every ticket of this node: permits are lost, and the tickets of all waiters are sent again.
    pub(crate) fn lose_all(&mut self) -> Effects<C> {
        let mut effects = Effects::default();
        self.lose_permits(ErrorKind::Lost, &mut effects);
        self.resync();
        effects
    }

    /// Pushes may have been missed: the tickets of all waiters are sent again.
    pub(crate) fn resync(&mut self) {
        self.waiters.resend_oldest(usize::MAX);
    }

    /// A ticket was granted, confirmed by a call that was sent at `sent`.
    fn granted(&mut self, grant: Grant, sent: Instant, now: Instant, effects: &mut Effects<C>) {
        let ticket = grant.ticket;
        if self.permits.is_held(ticket) {
            return self.permits.confirm(ticket, sent);
        }
        if self.permits.is_stale(sent, now) {
            return self.confirm_or_release(ticket);
        }
        let next = (self.tries.remove(ticket))
            .or_else(|| self.waiters.grant(ticket))
            .or_else(|| self.reassign(ticket));
        if let Some(next) = next {
            self.stats.granted += 1;
            let hold = self.permits.hold(grant, sent, now, next.terms);
            effects.granted.push((next.caller, hold));
        }
    }

    /// A granted ticket must be confirmed before it is used: it is sent again, or released if it has no waiter.
    fn confirm_or_release(&mut self, ticket: u64) {
        if !self.tries.resend(ticket) && !self.waiters.resend(ticket) {
            self.permits.releases.add_again(ticket);
        }
    }

    /// A ticket without a waiter was granted: it is handed off to the oldest waiter unless its release was sent already;
    /// else it is released.
    fn reassign(&mut self, ticket: u64) -> Option<Waiter<C>> {
        let may = self.handoff.shortcuts.hand_off && !self.waiters.is_empty();
        if may && self.permits.releases.withdraw(ticket) {
            let oldest = self.waiters.remove_oldest()?;
            self.permits.releases.add_removed(oldest.ticket, None);
            return Some(oldest);
        }
        self.permits.releases.add_again(ticket);
        None
    }

    fn lose_permits(&mut self, why: ErrorKind, effects: &mut Effects<C>) {
        for ticket in self.permits.valid_tickets() {
            self.lose(ticket, why, effects);
        }
    }

    pub(super) fn lose(&mut self, ticket: u64, why: ErrorKind, effects: &mut Effects<C>) {
        if let Some(hold) = self.permits.lose(ticket, why) {
            self.count_loss(hold, why, effects);
        }
    }

    pub(super) fn count_loss(&mut self, hold: Hold, why: ErrorKind, effects: &mut Effects<C>) {
        self.stats.lost += 1;
        effects.lost.push((hold, why));
    }

    fn refuse_try(&mut self, ticket: u64, effects: &mut Effects<C>) {
        if let Some(removed) = self.tries.remove(ticket) {
            self.stats.limit_reached += 1;
            let error = Error::new(ErrorKind::LimitReached, "no permit is free");
            effects.refused.push((removed.caller, error));
        }
    }

    /// Refuses the newest waiters if more are queued than they accept.
    fn refuse_excess(&mut self, effects: &mut Effects<C>) {
        while let Some(removed) = self.waiters.remove_excess() {
            self.stats.too_many_waiting += 1;
            self.permits.releases.add_removed(removed.ticket, None);
            let error = too_many_waiting(removed.max_waiting);
            effects.refused.push((removed.caller, error));
        }
    }

    fn refuse(&mut self, removed: Vec<Waiter<C>>, error: &Error) -> Effects<C> {
        let mut effects = Effects::default();
        match error.kind() {
            ErrorKind::Unavailable => self.stats.unavailable += removed.len() as u64,
            _ => self.stats.failed += removed.len() as u64,
        }
        for removed in removed {
            self.permits.releases.add_removed(removed.ticket, None);
            effects.refused.push((removed.caller, error.clone()));
        }
        effects
    }
}

/// The error for a caller that would wait behind too many others.
pub(crate) fn too_many_waiting(max: usize) -> Error {
    let message = format!("max_waiting is {max}, and as many callers of this process wait already");
    Error::new(ErrorKind::TooManyWaiting, message)
}
