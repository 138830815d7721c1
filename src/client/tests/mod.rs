//! Tests of what the public interface does not show.

mod callers;
mod driver;
mod handoff;
mod outage;
mod schedule;
mod scheduling;
mod simulation;
mod waiters;

use super::panics::lock;
use super::registry::Client;
use super::state::{Effects, Plan, State, Tickets};
use tokio::time::Instant;

impl Client {
    /// Returns how many names have state in this process, also those that nothing uses.
    pub(crate) fn entries(&self) -> usize {
        lock(&self.by_queue).len()
    }
}

/// What the driver does with a name.
#[derive(Debug)]
enum Step {
    Send(Tickets),
    /// There is only a renewal to send, which is not urgent before then.
    Renewal(Instant),
    Wait(Instant),
    Idle,
}

/// The next step about a name. `renew`: a renewal that is not urgent may be sent.
fn next_step<C>(state: &mut State<C>, now: Instant, renew: bool) -> (Step, Effects<C>) {
    let (tickets, effects) = state.next_call(now, renew);
    let step = match tickets {
        Some(tickets) => Step::Send(tickets),
        None => match state.plan(now) {
            Plan::Urgent => Step::Wait(now),
            Plan::Renewal(urgent_at) => Step::Renewal(urgent_at),
            Plan::At(at) => Step::Wait(at),
            Plan::Idle => Step::Idle,
        },
    };
    (step, effects)
}
