//! Says to the backend what a gate has to say. One task a name, and only while there is something to do.
//!
//! At most one call is under way for a name; what comes up meanwhile rides on the next. A pump may vanish at any await
//! (its runtime may be dropped, or never be driven again): then another takes its place, on the runtime of an earlier
//! caller or of the next.

use super::health::Trouble;
use super::one_name::{Gate, Inner};
use super::state::{Batch, Step};
use crate::backend::{Call, Outcome, Reply};
use crate::clock::{now, sleep_until};
use crate::error::{Error, ErrorKind};
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Handle, Id};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

/// A pump that should have done something this long ago is on a runtime that nobody drives.
const PATIENCE: Duration = Duration::from_millis(250);
/// How often somebody who counts on a pump elsewhere looks whether it still runs.
pub(super) const LOOK_AFTER_PUMP: Duration = Duration::from_secs(2);
/// So many runtimes of callers are remembered.
const MOST_RUNTIMES: usize = 8;
/// A timer that ends so late tells of a process that stood still, and of no backend.
const LATE: Duration = Duration::from_millis(100);
/// So long a call may take at least before newcomers are refused for want of an answer.
const LEAST_CHANCE: Duration = Duration::from_millis(100);

/// Which pump a gate has.
#[derive(Debug, Default)]
pub(super) struct PumpSlot {
    /// Counts the pumps of this gate. One whose number is not this any more has been replaced.
    current: u64,
    /// By when the current one does its next step, if there is one.
    due: Option<Instant>,
    /// It has a call under way: whatever comes up is said after that.
    calling: bool,
    /// Where it runs.
    runtime: Option<Id>,
    /// There is something new to say. One that was replaced still listens on its own.
    wake: Arc<Notify>,
    /// The runtimes of the latest callers, the last one last: when the pump's own runtime ends, those on the others still
    /// count on being renewed. Empty while there is nothing to do.
    runtimes: Vec<Handle>,
}

/// Hands over to a pump on another runtime when this one vanishes, or marks the gate as without one.
pub(super) struct Pump {
    gate: Arc<Gate>,
    number: u64,
    wake: Arc<Notify>,
    runtime: Id,
}

/// A pump that is to be started, when nothing is locked any more: a runtime that shuts down drops it at once.
#[must_use]
pub(super) struct Start {
    pump: Pump,
    runtime: Handle,
}

enum Next {
    Say(Call),
    /// There are only renewals to say: they wait for their turn.
    Turn(Instant),
    Wait(Instant),
    Idle,
}

// === impl PumpSlot ===

impl PumpSlot {
    /// Where the pump runs, if there is one.
    pub(super) fn runtime(&self) -> Option<Id> {
        self.runtime.filter(|_| self.is_there())
    }

    /// It has a call under way, and looks for itself after it.
    pub(super) fn is_calling(&self) -> bool {
        self.calling
    }

    /// Somebody does what there is to do in time.
    #[inline]
    pub(super) fn is_there(&self) -> bool {
        self.due.is_some()
    }

    /// There is something to do then.
    #[inline]
    pub(super) fn wake(&mut self, at: Instant) {
        if let Some(due) = &mut self.due
            && !self.calling
            && at < *due
        {
            *due = at;
            self.wake.notify_one();
        }
    }

    /// A caller comes on this runtime.
    #[inline]
    pub(super) fn remember(&mut self, runtime: Handle) {
        let id = runtime.id();
        if self.runtimes.last().is_none_or(|last| last.id() != id) {
            self.remember_last(runtime);
        }
    }

    fn remember_last(&mut self, runtime: Handle) {
        self.forget(runtime.id());
        if self.runtimes.len() >= MOST_RUNTIMES {
            self.runtimes.remove(0);
        }
        self.runtimes.push(runtime);
    }

    fn forget(&mut self, runtime: Id) {
        self.runtimes.retain(|known| known.id() != runtime);
    }
}

impl Gate {
    /// A pump on the runtime of this thread, if there is something to do and none that does it. Without a runtime the
    /// next caller will start one.
    pub(super) fn new_pump(self: &Arc<Self>, inner: &mut Inner, now: Instant) -> Option<Start> {
        let slot = &mut inner.pump;
        if inner.state.is_idle() || slot.due.is_some_and(|due| now < due + PATIENCE) {
            return None;
        }
        let runtime = Handle::try_current().ok()?;
        Some(self.pump_on(runtime, slot, now))
    }

    fn pump_on(self: &Arc<Self>, runtime: Handle, slot: &mut PumpSlot, now: Instant) -> Start {
        if slot.due.is_some() {
            slot.wake = Arc::default();
        }
        slot.current += 1;
        slot.due = Some(now);
        slot.calling = false;
        slot.runtime = Some(runtime.id());
        let pump = Pump {
            gate: Arc::clone(self),
            number: slot.current,
            wake: Arc::clone(&slot.wake),
            runtime: runtime.id(),
        };
        Start { pump, runtime }
    }
}

impl Start {
    pub(super) fn start(self) {
        self.runtime.spawn(self.pump.run());
    }
}

// === impl Pump ===

impl Pump {
    async fn run(self) {
        let mut turn = None;
        while let Some(next) = self.next_step(turn.is_some()) {
            let had_turn = turn.take();
            match next {
                Next::Say(call) => {
                    self.say(call).await;
                    drop(had_turn);
                }
                Next::Turn(until) => tokio::select! {
                    () = self.wake.notified() => {}
                    () = sleep_until(until) => {}
                    permit = self.gate.gates.renewals.acquire() => turn = permit.ok(),
                },
                Next::Wait(until) => tokio::select! {
                    () = self.wake.notified() => {}
                    () = sleep_until(until) => {}
                },
                Next::Idle => return,
            }
        }
        self.watch().await;
    }

    /// Another pump has taken over, on another runtime. Those who came while this one was there count on somebody here to
    /// see whether it still runs.
    async fn watch(&self) {
        let counted_on = || {
            let inner = self.gate.lock();
            !inner.state.waiters.is_empty() && inner.pump.runtime != Some(self.runtime)
        };
        while counted_on() {
            tokio::time::sleep(LOOK_AFTER_PUMP).await;
            self.gate.look_after_pump();
        }
    }

    /// What to do now; it may be the turn of this name to be renewed. `None` if another pump has taken over.
    fn next_step(&self, turn: bool) -> Option<Next> {
        let now = now();
        let mut guard = self.gate.lock();
        let inner = &mut *guard;
        if inner.pump.current != self.number {
            return None;
        }
        inner.clock.set(now);
        let long_wait = inner.state.long_wait(now);
        let (step, news) = inner.state.next_step(now, turn);
        let next = match step {
            // Numbered under the lock: what a pump that was replaced says late has the lower number.
            Step::Say(batch) => Next::Say(self.call(batch, inner.state.limit)),
            Step::Turn(until) => Next::Turn(until),
            Step::Wait(until) => Next::Wait(until),
            Step::Idle => Next::Idle,
        };
        inner.pump.calling = matches!(next, Next::Say(_));
        inner.pump.due = match &next {
            Next::Say(_) => Some(now + self.gate.gates.call_timeout),
            Next::Turn(until) | Next::Wait(until) => Some(*until),
            // From here on the next caller starts a new one.
            Next::Idle => {
                inner.pump.runtimes.clear();
                self.gate.note_failing(inner, false);
                None
            }
        };
        drop(guard);
        self.gate.deliver(news);
        if let Some(waited) = long_wait {
            self.say_who_holds(waited);
        }
        if matches!(next, Next::Idle) {
            self.gate.gates.quiet.notify_waiters();
        }
        Some(next)
    }

    fn call(&self, batch: Batch, limit: u32) -> Call {
        let gates = &self.gate.gates;
        Call {
            queue: self.gate.queue.clone(),
            number: gates.next_number(),
            limit,
            lease: gates.lease,
            leave: batch.leave,
            keep: batch.keep,
            enter: batch.enter,
            try_enter: batch.try_enter,
        }
    }

    async fn say(&self, call: Call) {
        let gates = &self.gate.gates;
        let sent = now();
        gates.pulse.keep_up();
        let exchange = timeout(gates.call_timeout, gates.session.exchange(call));
        tokio::pin!(exchange);
        let answer = tokio::select! {
            biased;
            answer = &mut exchange => answer,
            () = self.outage(sent) => exchange.await,
        };
        let answer = match answer {
            Ok(Ok(Reply::Done(outcome))) => Ok(outcome),
            Ok(Ok(Reply::Stale)) => Err(Error::new(
                ErrorKind::Unavailable,
                "a later call of this process was carried out before this one",
            )),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(no_answer(gates.call_timeout)),
        };
        self.hear(answer, sent);
    }

    /// Ends when an outage has begun while the call that was sent at `sent` is under way. Newcomers do not wait for that
    /// call any more.
    async fn outage(&self, sent: Instant) {
        let health = &self.gate.gates.health;
        let Some(begins) = health.outage_begins(sent) else {
            return pending().await;
        };
        let begins = begins.max(sent + LEAST_CHANCE);
        while now() < begins {
            sleep_until(begins).await;
        }
        if now() > begins + LATE {
            // The answer may lie here already: the call's own end judges.
            return pending().await;
        }
        if let Some(error) = health.overdue(sent, now()) {
            let mut inner = self.gate.lock();
            let current = inner.pump.current == self.number;
            let news = current.then(|| inner.state.refuse_newcomers(&error));
            drop(inner);
            self.gate.deliver(news.unwrap_or_default());
        }
    }

    fn hear(&self, answer: Result<Outcome, Error>, sent: Instant) {
        let now = now();
        let gates = &self.gate.gates;
        let health = &gates.health;
        // A call lasts so long at most. If it was more, this process stood still meanwhile, which is no fault of the backend.
        let stood_still = now
            .saturating_duration_since(sent)
            .saturating_sub(gates.call_timeout);
        let under_way_since = sent + stood_still;
        // What newcomers are told, if they are to be refused.
        let refusal = match &answer {
            Ok(_) => {
                health.answered(now);
                None
            }
            // Nothing that waiting would mend.
            Err(error) if error.kind() != ErrorKind::Unavailable => {
                health.answered(now);
                Some(error.clone())
            }
            Err(error) => health.failed(under_way_since, now, error),
        };
        let mut inner = self.gate.lock();
        if inner.pump.current != self.number {
            return;
        }
        self.gate.note_failing(&mut inner, answer.is_err());
        let news = match &answer {
            Ok(outcome) => inner.state.hear(outcome, sent, now),
            Err(error) => {
                inner.state.unheard(rand::random(), gates.crowded(), now);
                let refusal = refusal.or_else(|| {
                    let trouble = &mut inner.state.trouble;
                    Trouble::note(trouble, under_way_since, now, error, health.outage_after()).0
                });
                match refusal {
                    Some(error) => inner.state.refuse_newcomers(&error),
                    None => Default::default(),
                }
            }
        };
        drop(inner);
        self.gate.deliver(news);
    }

    /// Somebody has been waiting for long: a line in the log says for whom.
    fn say_who_holds(&self, waited: Duration) {
        let gate = Arc::clone(&self.gate);
        tokio::spawn(async move {
            let name = gate.queue.clone();
            let Ok(seen) = gate.gates.session.inspect(name.clone()).await else {
                return;
            };
            let mut holders: Vec<&str> = seen.holders.iter().map(|t| t.node.as_str()).collect();
            holders.sort_unstable();
            holders.dedup();
            holders.truncate(8);
            tracing::info!(
                %name, ?waited, in_use = seen.in_use, waiting = seen.waiting, ?holders,
                "a caller has been waiting for a permit"
            );
        });
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        let mut guard = self.gate.lock();
        let inner = &mut *guard;
        if inner.pump.current != self.number {
            return;
        }
        inner.pump.due = None;
        inner.pump.calling = false;
        inner.pump.forget(self.runtime);
        // Its runtime has ended before its work was done: on to another. If that has ended too, the new pump comes by here.
        let another = match inner.state.is_idle() {
            true => None,
            false => inner.pump.runtimes.last().cloned(),
        };
        let pump = another.map(|runtime| self.gate.pump_on(runtime, &mut inner.pump, now()));
        drop(guard);
        if let Some(pump) = pump {
            pump.start();
        }
    }
}

fn no_answer(within: Duration) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!("the backend did not answer within {within:?}"),
    )
}
