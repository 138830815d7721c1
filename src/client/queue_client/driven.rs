//! What the driver does with a name: calls, replies, failures and timers.

use super::{Inner, QueueClient};
use crate::backend::{Call, Outcome};
use crate::client::driver::Position;
use crate::client::outage::Trouble;
use crate::client::state::Tickets;
use crate::error::Error;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;
use tokio::time::Instant;

/// The most holders that a log line lists.
const MAX_LISTED: usize = 8;

impl QueueClient {
    /// The next call about this name and the number of tickets in it, if there is something to send. `renewal`: the name
    /// was taken out of the renewals. Unless it `fits` in the batch, it goes back to the schedule.
    pub(in crate::client) fn next_call(
        self: &Arc<Self>,
        renewal: bool,
        fits: bool,
        now: Instant,
    ) -> Option<(Call, usize)> {
        let mut guard = self.lock();
        let inner = &mut *guard;
        inner.position.is_taken(renewal);
        if inner.in_flight.is_some() || !fits {
            self.follow_up(guard, now);
            return None;
        }
        inner.clock.set(now);
        let (tickets, effects) = inner.state.next_call(now, renewal);
        // Numbered under the lock: a call of a driver that was replaced has the lower number.
        let next = tickets.map(|tickets| (tickets, self.client.next_number()));
        let limit = inner.state.limit;
        inner.in_flight = next.as_ref().map(|(_, number)| *number);
        self.follow_up(guard, now);
        self.deliver(effects);
        let (tickets, number) = next?;
        let size = tickets.len();
        Some((self.call(tickets, number, limit), size))
    }

    fn call(&self, tickets: Tickets, number: u64, limit: u32) -> Call {
        Call {
            queue: self.queue.clone(),
            number,
            limit,
            lease: self.client.lease,
            release: tickets.release,
            renew: tickets.renew,
            acquire: tickets.acquire,
            try_acquire: tickets.try_acquire,
        }
    }

    /// A timer of this name is over.
    pub(in crate::client) fn timer_is_over(self: &Arc<Self>, key: (Instant, u64), now: Instant) {
        let mut guard = self.lock();
        let inner = &mut *guard;
        inner.position.timer_is_over(key);
        inner.clock.set(now);
        let effects = inner.state.tick(now);
        let long_wait = inner.state.long_wait(now);
        self.follow_up(guard, now);
        self.deliver(effects);
        if let Some(waited) = long_wait {
            self.log_holders(waited);
        }
    }

    /// The end of the call with this number. `None` if it was given up before.
    fn end_call(&self, number: u64) -> Option<MutexGuard<'_, Inner>> {
        let mut inner = self.lock();
        inner.in_flight.take_if(|current| *current == number)?;
        Some(inner)
    }

    /// The call was answered.
    pub(in crate::client) fn on_reply(
        self: &Arc<Self>,
        number: u64,
        outcome: &Outcome,
        sent: Instant,
        now: Instant,
    ) {
        let Some(mut inner) = self.end_call(number) else {
            return;
        };
        self.note_failing(&mut inner, false);
        let effects = inner.state.on_reply(outcome, sent, now);
        let quiet = inner.state.is_quiet();
        self.follow_up(inner, now);
        self.deliver(effects);
        if quiet || !outcome.released.is_empty() {
            self.client.note_progress();
        }
    }

    /// A later call had been executed before this one, which changed nothing.
    pub(in crate::client) fn on_stale(self: &Arc<Self>, number: u64, now: Instant) {
        if let Some(mut inner) = self.end_call(number) {
            let crowded = self.client.crowded();
            inner.state.on_failure(rand::random(), crowded, now);
            self.follow_up(inner, now);
        }
    }

    /// The call failed or was given up. `refusal`: what waiters without an answer are told, if they are to be refused.
    pub(in crate::client) fn on_failure(
        self: &Arc<Self>,
        number: u64,
        error: &Error,
        refusal: Option<&Error>,
        sent: Instant,
        now: Instant,
    ) {
        let Some(mut inner) = self.end_call(number) else {
            return;
        };
        self.note_failing(&mut inner, true);
        let crowded = self.client.crowded();
        inner.state.on_failure(rand::random(), crowded, now);
        let refusal = refusal.cloned().or_else(|| {
            let (trouble, after) = (&mut inner.state.trouble, self.client.outages.outage_after());
            Trouble::note(trouble, sent, now, error, after).0
        });
        let effects = match refusal {
            Some(error) => inner.state.refuse_newcomers(&error),
            None => Default::default(),
        };
        self.follow_up(inner, now);
        self.deliver(effects);
    }

    /// The driver was dropped while the call was in flight. It is sent again.
    pub(in crate::client) fn on_dropped(self: &Arc<Self>, number: u64) {
        if let Some(mut inner) = self.end_call(number) {
            inner.state.resend();
            self.follow_up(inner, crate::clock::now());
        }
    }

    /// The driver has ended in the middle of its work. The name is entered into the schedule anew.
    pub(in crate::client) fn restart(self: &Arc<Self>) {
        let mut inner = self.lock();
        inner.in_flight = None;
        inner.position = Position::default();
        inner.state.resend();
        self.follow_up(inner, crate::clock::now());
    }

    /// An outage has begun while the call is in flight: waiters without an answer do not wait for it any more.
    pub(in crate::client) fn refuse_newcomers(self: &Arc<Self>, number: u64, error: &Error) {
        let mut inner = self.lock();
        if inner.in_flight == Some(number) {
            let effects = inner.state.refuse_newcomers(error);
            drop(inner);
            self.deliver(effects);
        }
    }

    /// Logs the holders that keep a waiter waiting.
    fn log_holders(self: &Arc<Self>, waited: Duration) {
        if !tracing::enabled!(tracing::Level::INFO) {
            return;
        }
        let name = Arc::clone(self);
        tokio::spawn(async move {
            let Ok(seen) = name.inspect().await else {
                return;
            };
            let mut holders: Vec<&str> = seen.holders.iter().map(|t| t.node.as_str()).collect();
            holders.sort_unstable();
            holders.dedup();
            holders.truncate(MAX_LISTED);
            tracing::info!(
                name = %name.queue, ?waited, in_use = seen.in_use, waiting = seen.queued, ?holders,
                "a caller has been waiting for a permit"
            );
        });
    }
}
