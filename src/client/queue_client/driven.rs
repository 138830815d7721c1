//! What the driver does with a name: calls, replies, failures and timers.

use super::{Inner, QueueClient};
use crate::backend::{Call, Outcome};
use crate::client::outage::Failures;
use crate::client::schedule::{Position, TimerKey};
use crate::error::Error;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;
use tokio::time::Instant;

/// The most holders that a log line lists.
const MAX_LISTED: usize = 8;

impl QueueClient {
    /// Returns the next call about this name, if there is something to send. `renewal`: the name was among the renewals.
    /// Unless it `fits` in the batch, the name is entered into the schedule again.
    pub(in crate::client) fn next_call(
        self: &Arc<Self>,
        renewal: bool,
        fits: bool,
        now: Instant,
    ) -> Option<Call> {
        let mut guard = self.lock();
        let inner = &mut *guard;
        inner.position.on_turn(renewal);
        if inner.in_flight.is_some() || !fits {
            self.follow_up(guard, now);
            return None;
        }
        inner.clock.set(now);
        let (tickets, effects) = inner.state.next_call(now, renewal);
        let call = tickets.map(|tickets| Call {
            queue: self.queue.clone(),
            // Numbered under the lock: a call of a driver that was replaced has the lower number.
            number: self.client.next_number(),
            limit: inner.state.limit,
            lease: self.client.lease,
            release: tickets.release,
            renew: tickets.renew,
            acquire: tickets.acquire,
            try_acquire: tickets.try_acquire,
        });
        inner.in_flight = call.as_ref().map(|call| call.number);
        self.follow_up(guard, now);
        self.deliver(effects);
        call
    }

    /// A timer of this name has fired.
    pub(in crate::client) fn on_timer(self: &Arc<Self>, key: TimerKey, now: Instant) {
        let mut guard = self.lock();
        let inner = &mut *guard;
        inner.position.on_timer(key);
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
        self.set_failing(&mut inner, false);
        inner.failures = None;
        let effects = inner.state.on_reply(outcome, sent, now);
        let quiet = inner.state.is_quiet();
        self.follow_up(inner, now);
        self.deliver(effects);
        if quiet || !outcome.released.is_empty() {
            self.client.progress.notify_waiters();
        }
    }

    /// A later call was executed before this one, which changed nothing.
    pub(in crate::client) fn on_stale(self: &Arc<Self>, number: u64, now: Instant) {
        if let Some(mut inner) = self.end_call(number) {
            let pause = self.client.least_pause();
            inner.state.on_failure(rand::random(), pause, now);
            self.follow_up(inner, now);
        }
    }

    /// The call failed or was given up. `refusal`: the error for waiters without an answer, if they are to be refused.
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
        self.set_failing(&mut inner, true);
        let pause = self.client.least_pause();
        inner.state.on_failure(rand::random(), pause, now);
        let refusal = refusal.cloned().or_else(|| {
            let outage_after = self.client.outages.outage_after;
            Failures::add(&mut inner.failures, sent, now, error, outage_after).0
        });
        let effects = refusal.map(|error| inner.state.refuse_unanswered(&error));
        self.follow_up(inner, now);
        self.deliver(effects.unwrap_or_default());
    }

    /// The driver was dropped while the call was in flight. It is sent again.
    pub(in crate::client) fn on_dropped(self: &Arc<Self>, number: u64) {
        if let Some(mut inner) = self.end_call(number) {
            inner.state.resend();
            self.follow_up(inner, crate::clock::now());
        }
    }

    /// The driver has ended in the middle of its work. The name is entered into the schedule again.
    pub(in crate::client) fn restart(self: &Arc<Self>) {
        let mut inner = self.lock();
        inner.in_flight = None;
        inner.position = Position::default();
        inner.state.resend();
        self.follow_up(inner, crate::clock::now());
    }

    /// Logs the nodes that hold the permits a waiter waits for.
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
