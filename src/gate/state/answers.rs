//! What follows from an answer, from a push, or from neither: who gets in, who is refused, and what is lost.

use super::{HasTerms, News, State};
use crate::backend::{Grant, Outcome, State as TicketState};
use crate::error::{Error, ErrorKind};
use crate::gate::held::Hold;
use crate::gate::waiters::{Departed, Standing};
use std::time::Duration;
use tokio::time::Instant;

/// Waiting for a moment before the next try, after so many calls in a row that were not answered.
const FIRST_RETRY: Duration = Duration::from_millis(20);
const LAST_RETRY: Duration = Duration::from_millis(125);

impl<C: HasTerms> State<C> {
    /// The call that was sent at `sent` was answered.
    pub(crate) fn hear(&mut self, outcome: &Outcome, sent: Instant, now: Instant) -> News<C> {
        let mut news = self.expire(now);
        let Some(batch) = self.said.take() else {
            return news;
        };
        self.failures = 0;
        self.retry_at = None;
        self.trouble = None;
        for (ticket, held) in batch.leave.iter().zip(&outcome.left) {
            news.answers
                .extend(self.tickets.leaves.left(*ticket, *held, now));
        }
        for (ticket, state) in batch.keep.iter().zip(&outcome.kept) {
            match state {
                TicketState::Held { .. } => self.tickets.confirm(*ticket, sent),
                _ => self.lose(*ticket, ErrorKind::Lost, &mut news),
            }
        }
        for (ticket, state) in batch.enter.iter().zip(&outcome.entered) {
            match state {
                TicketState::Held { token } => {
                    self.granted(Grant::new(*ticket, *token), sent, now, &mut news);
                }
                TicketState::Waiting => {
                    if !self.waiters.answered(*ticket, sent, now, self.lease) {
                        self.tickets.leaves.answered(*ticket);
                    }
                }
                TicketState::Refused | TicketState::Gone => {
                    self.waiters.ask_again(*ticket);
                    self.retry_at = Some(now + FIRST_RETRY);
                }
            }
        }
        for (ticket, state) in batch.try_enter.iter().zip(&outcome.tried) {
            match state {
                TicketState::Held { token } => {
                    self.granted(Grant::new(*ticket, *token), sent, now, &mut news);
                }
                _ => self.refuse_try(*ticket, &mut news),
            }
        }
        for grant in &outcome.granted {
            self.granted(*grant, sent, now, &mut news);
        }
        self.look_at = (outcome.look_again).map(|after| now + after.min(self.lease));
        // Those that left the line while the call was under way stood in the queue still.
        let ours = self.waiters.queued() + self.tickets.leaves.queued();
        self.hands.look_round(outcome, ours, self.limit, now);
        if outcome.waiting > 0 {
            self.tickets.end_all_lingering();
        }
        news
    }

    /// A call was given up or failed. What it carried rides on the next. `crowded`: no pause is shorter, for so many names
    /// try again.
    pub(crate) fn unheard(&mut self, jitter: f64, crowded: Duration, now: Instant) {
        self.say_again();
        let pause = FIRST_RETRY * (1 << self.failures.min(4));
        self.failures = self.failures.saturating_add(1);
        // A permit that is held must not be lost by a single call that went wrong.
        let pause = pause.min(LAST_RETRY).max(crowded.min(self.lease / 6));
        self.retry_at = Some(now + pause.mul_f64(0.5 + jitter / 2.0));
    }

    /// Refuses everybody whom the backend has never answered.
    pub(crate) fn refuse_newcomers(&mut self, error: &Error) -> News<C> {
        let mut departed = self.waiters.take_newcomers();
        departed.extend(self.tries.take_all());
        self.refuse(departed, error)
    }

    /// Refuses everybody who waits, and gives back everything that is held.
    pub(crate) fn close(&mut self, error: &Error) -> News<C> {
        let mut departed = self.waiters.take_all();
        departed.extend(self.tries.take_all());
        let mut news = self.refuse(departed, error);
        for ticket in self.tickets.valid_tickets() {
            self.lose(ticket, error.kind(), &mut news);
        }
        news
    }

    /// A grant was pushed: perhaps late, perhaps not for the first time. Of a permit that is held here it says nothing
    /// new; else it counts from the last word about this very ticket, for the backend counts from no earlier one.
    pub(crate) fn pushed(&mut self, grant: Grant, now: Instant) -> News<C> {
        let (mut news, ticket) = (News::default(), grant.ticket);
        if self.tickets.is_held(ticket) {
            self.tickets.still_granted(ticket);
            return news;
        }
        let standing = self.waiters.standing(ticket);
        match standing.or_else(|| self.tickets.leaves.standing(ticket)) {
            Some(Standing {
                since,
                doubtful: false,
                ..
            }) => self.granted(grant, since, now, &mut news),
            _ if self.waiters.has_ticket(ticket) => self.waiters.ask_again(ticket),
            _ => self.tickets.leaves.leave_anew(ticket),
        }
        news
    }

    /// Every ticket of this node is gone: what is held is lost, and everything that waits is said again.
    pub(crate) fn lose_all(&mut self) -> News<C> {
        let mut news = News::default();
        for ticket in self.tickets.valid_tickets() {
            self.lose(ticket, ErrorKind::Lost, &mut news);
        }
        self.resync();
        news
    }

    /// Pushes may have been missed: everything that waits is said again.
    pub(crate) fn resync(&mut self) {
        self.waiters.ask_oldest(usize::MAX);
    }

    /// A permit was granted, confirmed by a call that was sent at `sent`.
    fn granted(&mut self, grant: Grant, sent: Instant, now: Instant, news: &mut News<C>) {
        let ticket = grant.ticket;
        if self.tickets.is_held(ticket) {
            return self.tickets.confirm(ticket, sent);
        }
        if self.tickets.is_stale(sent, now) {
            // It must be confirmed before it is used: ask for it (or let it leave) again.
            if self.tries.has(ticket) {
                self.tries.ask_again(ticket);
            } else if self.waiters.has_ticket(ticket) {
                self.waiters.ask_again(ticket);
            } else {
                self.tickets.leaves.leave_anew(ticket);
            }
            return;
        }
        let caller = if let Some(departed) = self.tries.take(ticket) {
            Some(departed.caller)
        } else if self.waiters.has_ticket(ticket) {
            self.waiters.grant(ticket)
        } else {
            self.pass_on(ticket)
        };
        if let Some(caller) = caller {
            self.stats.granted += 1;
            let hold = self.tickets.hold(grant, sent, now, caller.terms());
            news.granted.push((caller, hold));
        }
    }

    /// A grant for somebody who is gone: the oldest waiter goes in on it, unless its leave has been said already; or
    /// the ticket leaves.
    fn pass_on(&mut self, ticket: u64) -> Option<C> {
        if !self.waiters.is_empty() && self.tickets.leaves.call_back(ticket) {
            let departed = self.waiters.take_oldest()?;
            return Some(self.depart(departed, None));
        }
        self.tickets.leaves.leave_anew(ticket);
        None
    }

    pub(super) fn lose(&mut self, ticket: u64, why: ErrorKind, news: &mut News<C>) {
        if let Some(hold) = self.tickets.lose(ticket, why) {
            self.count_loss(hold, why, news);
        }
    }

    pub(super) fn count_loss(&mut self, hold: Hold, why: ErrorKind, news: &mut News<C>) {
        self.stats.lost += 1;
        news.lost.push((hold, why));
    }

    fn refuse_try(&mut self, ticket: u64, news: &mut News<C>) {
        if let Some(departed) = self.tries.take(ticket) {
            self.stats.limit_reached += 1;
            let error = Error::new(ErrorKind::LimitReached, "every permit is taken");
            news.refused.push((departed.caller, error));
        }
    }

    fn refuse(&mut self, departed: Vec<Departed<C>>, error: &Error) -> News<C> {
        let mut news = News::default();
        for departed in departed {
            match error.kind() {
                ErrorKind::Unavailable => self.stats.unavailable += 1,
                _ => self.stats.failed += 1,
            }
            let caller = self.depart(departed, None);
            news.refused.push((caller, error.clone()));
        }
        news
    }
}
