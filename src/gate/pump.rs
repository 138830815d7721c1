//! Says to the backend what a gate has to say. One task a name, and only while there is something to do.
//!
//! At most one call is under way for a name; what comes up meanwhile rides on the next. A pump may vanish at any await
//! (its runtime may be dropped, or never be driven again): then another takes its place, on the runtime of the next
//! caller.

use super::state::{Batch, Step};
use super::{Gate, Inner};
use crate::backend::{Call, Outcome, Reply};
use crate::clock::{now, sleep_until};
use crate::error::{Error, ErrorKind};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::Instant;

/// A pump that should have done something this long ago is on a runtime that nobody drives.
const PATIENCE: Duration = Duration::from_millis(250);

/// Which pump a gate has.
#[derive(Debug, Default)]
pub(super) struct PumpSlot {
    /// Counts the pumps of this gate. One whose number is not this any more has been replaced.
    current: u64,
    /// By when the current one does its next step, if there is one.
    due: Option<Instant>,
}

/// Marks the gate as without a pump when this one vanishes.
struct Pump {
    gate: Arc<Gate>,
    number: u64,
}

impl Gate {
    /// Wakes the pump, or starts one on the runtime of this thread. Without a runtime the next caller will.
    pub(super) fn keep_pumping(self: &Arc<Self>, inner: &mut Inner, now: Instant) {
        match inner.pump.due {
            Some(due) if now < due + PATIENCE => {
                inner.pump.due = Some(due.min(now));
                self.wake.notify_one();
            }
            _ if inner.state.is_idle() => {}
            _ => {
                let Ok(runtime) = Handle::try_current() else {
                    return;
                };
                inner.pump.current += 1;
                inner.pump.due = Some(now);
                let pump = Pump {
                    gate: Arc::clone(self),
                    number: inner.pump.current,
                };
                runtime.spawn(pump.run());
            }
        }
    }
}

// === impl Pump ===

impl Pump {
    async fn run(self) {
        while let Some(step) = self.next_step() {
            match step {
                Step::Say(batch) => self.say(batch).await,
                Step::Wait(until) => tokio::select! {
                    () = self.gate.wake.notified() => {}
                    () = sleep_until(until) => {}
                },
                Step::Idle => break,
            }
        }
    }

    /// What to do now. `None` if another pump has taken over.
    fn next_step(&self) -> Option<Step> {
        let now = now();
        let mut inner = self.gate.lock();
        if inner.pump.current != self.number {
            return None;
        }
        let long_wait = inner.state.long_wait(now);
        let (step, news) = inner.state.next_step(now);
        inner.pump.due = match &step {
            Step::Say(_) => Some(now + self.gate.gates.call_timeout),
            Step::Wait(until) => Some(*until),
            // From here on the next caller starts a new one.
            Step::Idle => None,
        };
        drop(inner);
        self.gate.deliver(news);
        if let Some(waited) = long_wait {
            self.say_who_holds(waited);
        }
        if matches!(step, Step::Idle) {
            self.gate.gates.quiet.notify_waiters();
        }
        Some(step)
    }

    async fn say(&self, batch: Batch) {
        let gates = &self.gate.gates;
        let sent = now();
        let call = Call {
            queue: self.gate.queue.clone(),
            number: gates.next_number(),
            limit: self.gate.limit(),
            lease: gates.lease,
            leave: batch.leave.clone(),
            keep: batch.keep.clone(),
            enter: batch.enter.clone(),
            try_enter: batch.try_enter.clone(),
        };
        let exchange = gates.session.exchange(call);
        let answer = match tokio::time::timeout(gates.call_timeout, exchange).await {
            Ok(Ok(Reply::Done(outcome))) => Ok(outcome),
            Ok(Ok(Reply::Stale)) => Err(Error::new(
                ErrorKind::Unavailable,
                "a later call of this process was carried out before this one",
            )),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(Error::new(
                ErrorKind::Unavailable,
                format!("the backend did not answer within {:?}", gates.call_timeout),
            )),
        };
        self.hear(&batch, answer, sent);
    }

    fn hear(&self, batch: &Batch, answer: Result<Outcome, Error>, sent: Instant) {
        let now = now();
        let health = &self.gate.gates.health;
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
            Err(error) => health.failed(sent, now, error),
        };
        let mut inner = self.gate.lock();
        if inner.pump.current != self.number {
            return;
        }
        let news = match &answer {
            Ok(outcome) => inner.state.hear(batch, outcome, sent, now),
            Err(_) => {
                inner.state.unheard(batch, rand::random(), now);
                match refusal {
                    Some(error) => inner.state.refuse_newcomers(&error, now),
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
        let mut inner = self.gate.lock();
        if inner.pump.current == self.number {
            inner.pump.due = None;
        }
    }
}
