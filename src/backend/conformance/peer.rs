//! A node under the control of a test, call by call.

use crate::backend::{
    Call, Event, Grant, Inspection, Outcome, Reply, Session, TicketState, exchange_one,
};
use crate::error::{Error, ErrorKind};
use crate::name::{Node, Queue};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Tolerance of a deadline: backends count in milliseconds, and the test reads the clock before and after a call.
const ROUNDING: Duration = Duration::from_millis(5);
/// How long to wait for a push.
const PUSHED_WITHIN: Duration = Duration::from_millis(500);

pub(super) struct Peer {
    pub(super) session: Arc<dyn Session>,
    pub(super) node: Node,
    pub(super) events: mpsc::UnboundedReceiver<Event>,
    pub(super) queue: Queue,
    /// The number of its last call.
    pub(super) number: u64,
    pub(super) limit: u32,
    pub(super) lease: Duration,
    /// The operations of the calls that it repeats while time passes.
    pub(super) repeats: Operations,
    /// The moments before and after its last call.
    pub(super) last_heartbeat: Span,
}

/// The operations of one call, as ticket numbers.
#[derive(Clone, Debug, Default)]
pub(super) struct Operations {
    pub(super) release: Vec<u64>,
    pub(super) renew: Vec<u64>,
    pub(super) acquire: Vec<u64>,
    pub(super) try_acquire: Vec<u64>,
}

/// An event happened between these two moments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span(pub(super) Instant, pub(super) Instant);

pub(super) fn operations() -> Operations {
    Operations::default()
}

pub(super) fn acquire(tickets: impl IntoIterator<Item = u64>) -> Operations {
    operations().acquire(tickets)
}

pub(super) fn renew(tickets: impl IntoIterator<Item = u64>) -> Operations {
    operations().renew(tickets)
}

pub(super) fn release(tickets: impl IntoIterator<Item = u64>) -> Operations {
    operations().release(tickets)
}

pub(super) fn try_acquire(tickets: impl IntoIterator<Item = u64>) -> Operations {
    operations().try_acquire(tickets)
}

/// Returns one letter for each state: Held, Queued, Refused, Gone.
pub(super) fn letters(states: &[TicketState]) -> String {
    (states.iter())
        .map(|state| match state {
            TicketState::Held { .. } => 'H',
            TicketState::Queued => 'Q',
            TicketState::Refused => 'R',
            TicketState::Gone => 'G',
        })
        .collect()
}

pub(super) fn tickets(grants: &[Grant]) -> Vec<u64> {
    grants.iter().map(|grant| grant.ticket).collect()
}

// === impl Operations ===

impl Operations {
    pub(super) fn acquire(mut self, tickets: impl IntoIterator<Item = u64>) -> Self {
        self.acquire.extend(tickets);
        self
    }

    pub(super) fn renew(mut self, tickets: impl IntoIterator<Item = u64>) -> Self {
        self.renew.extend(tickets);
        self
    }

    pub(super) fn release(mut self, tickets: impl IntoIterator<Item = u64>) -> Self {
        self.release.extend(tickets);
        self
    }

    pub(super) fn try_acquire(mut self, tickets: impl IntoIterator<Item = u64>) -> Self {
        self.try_acquire.extend(tickets);
        self
    }
}

// === impl Peer ===

impl Peer {
    pub(super) fn new(
        session: Arc<dyn Session>,
        node: Node,
        events: mpsc::UnboundedReceiver<Event>,
        queue: Queue,
        limit: u32,
        lease: Duration,
    ) -> Self {
        let now = Instant::now();
        Self {
            session,
            node,
            events,
            queue,
            number: 0,
            limit,
            lease,
            repeats: operations(),
            last_heartbeat: Span(now, now),
        }
    }

    pub(super) fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    pub(super) fn about(mut self, queue: Queue) -> Self {
        self.queue = queue;
        self
    }

    /// Sends a call with this number, which may be lower than that of an earlier call.
    pub(super) async fn send(&mut self, number: u64, operations: Operations) -> Reply {
        let call = Call {
            queue: self.queue.clone(),
            number,
            limit: self.limit,
            lease: self.lease,
            release: operations.release,
            renew: operations.renew,
            acquire: operations.acquire,
            try_acquire: operations.try_acquire,
        };
        let mut before = Instant::now();
        let mut reply = exchange_one(&*self.session, call.clone()).await;
        // On a busy machine a majority may answer late. The client then repeats the call.
        for _ in 0..3 {
            let late = |error: &Error| error.kind() == ErrorKind::Unavailable;
            if self.session.capabilities().fifo || !reply.as_ref().is_err_and(late) {
                break;
            }
            before = Instant::now();
            reply = exchange_one(&*self.session, call.clone()).await;
        }
        let reply = reply.expect("an answer");
        self.last_heartbeat = Span(before, Instant::now());
        reply
    }

    /// Sends a call with the next number.
    pub(super) async fn call(&mut self, operations: Operations) -> Outcome {
        self.number += 1;
        match self.send(self.number, operations).await {
            Reply::Done(outcome) => outcome,
            Reply::Stale => panic!("the newest call is stale"),
        }
    }

    pub(super) async fn repeat(&mut self) -> Outcome {
        self.call(self.repeats.clone()).await
    }

    pub(super) async fn acquire(&mut self, tickets: impl IntoIterator<Item = u64>) -> String {
        letters(&self.call(acquire(tickets)).await.acquired)
    }

    pub(super) async fn renew(&mut self, tickets: impl IntoIterator<Item = u64>) -> String {
        letters(&self.call(renew(tickets)).await.renewed)
    }

    pub(super) async fn release(&mut self, tickets: impl IntoIterator<Item = u64>) -> Vec<bool> {
        self.call(release(tickets)).await.released
    }

    pub(super) async fn try_acquire(&mut self, tickets: impl IntoIterator<Item = u64>) -> String {
        letters(&self.call(try_acquire(tickets)).await.tried)
    }

    /// Acquires a permit that must be granted at once. Returns the token.
    pub(super) async fn must_acquire(&mut self, ticket: u64) -> u64 {
        match self.call(acquire([ticket])).await.acquired[..] {
            [TicketState::Held { token }] => token,
            ref other => panic!("ticket {ticket} was not granted: {other:?}"),
        }
    }

    /// Repeats `acquire` until the ticket is held. Returns the moment of that reply.
    pub(super) async fn acquires_within(&mut self, ticket: u64, time: Duration) -> Instant {
        self.acquires_within_beside(ticket, time, &mut []).await
    }

    /// The same, while other nodes repeat their calls.
    pub(super) async fn acquires_within_beside(
        &mut self,
        ticket: u64,
        time: Duration,
        others: &mut [&mut Peer],
    ) -> Instant {
        let start = Instant::now();
        loop {
            for other in &mut *others {
                other.repeat().await;
            }
            let outcome = self.call(acquire([ticket])).await;
            let now = Instant::now();
            if let [TicketState::Held { .. }] = outcome.acquired[..] {
                return now;
            }
            assert!(
                now - start <= time,
                "ticket {ticket} is still queued after {time:?}: {outcome:?}"
            );
            let pause = outcome.poll_after.expect("a time to poll again");
            tokio::time::sleep(pause.min(self.lease / 5)).await;
        }
    }

    /// Returns the next pushed grant, if one arrives in time.
    pub(super) async fn pushed(&mut self) -> Option<Grant> {
        let next = async {
            loop {
                match self.events.recv().await? {
                    Event::Granted { queue, grant } if queue == self.queue => return Some(grant),
                    Event::Granted { .. } | Event::Lost | Event::Resync => {}
                }
            }
        };
        tokio::time::timeout(PUSHED_WITHIN, next)
            .await
            .ok()
            .flatten()
    }

    pub(super) async fn inspect(&self) -> Inspection {
        let inspection = self.session.inspect(self.queue.clone()).await;
        inspection.expect("an inspection")
    }

    pub(super) async fn evict(&self, ticket: String) -> bool {
        let evicted = self.session.evict(self.queue.clone(), ticket).await;
        evicted.expect("an answer")
    }

    /// Returns how many tickets are held and queued according to the backend.
    pub(super) async fn counts(&self) -> (u64, u64) {
        let inspection = self.inspect().await;
        (inspection.in_use, inspection.queued)
    }

    /// Whether the backend lists the ticket, held or queued.
    pub(super) async fn shows(&self, ticket: String) -> bool {
        let inspection = self.inspect().await;
        let mut all = inspection.holders.iter().chain(&inspection.queue);
        all.any(|info| info.ticket == ticket)
    }

    /// Asserts that, according to the backend, a ticket expires one lease after a heartbeat.
    pub(super) async fn assert_lives(&self, ticket: u64, heartbeat: Span, lease: Duration) {
        let before = Instant::now();
        let inspection = self.inspect().await;
        let after = Instant::now();
        let name = self.node.ticket(ticket);
        let mut all = inspection.holders.iter().chain(&inspection.queue);
        let Some(info) = all.find(|info| info.ticket == name) else {
            panic!("ticket {ticket} is not listed: {inspection:?}");
        };
        // A majority of servers keeps a lease a little longer, because their clocks may drift.
        let drift = match self.session.capabilities().fifo {
            true => Duration::ZERO,
            false => lease / 100,
        };
        let earliest = before + info.lease_left.saturating_sub(drift);
        let latest = after + info.lease_left;
        assert!(
            earliest <= heartbeat.1 + lease + ROUNDING && heartbeat.0 + lease <= latest + ROUNDING,
            "ticket {ticket} has {:?} left, but its lease of {lease:?} began {:?} ago",
            info.lease_left,
            before - heartbeat.0,
        );
    }
}
