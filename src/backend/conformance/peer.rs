//! A node as the tests drive it: it says exactly what it is told to.

use crate::backend::{
    Call, Event, Grant, Inspection, Outcome, Reply, Session, TicketState, exchange_one,
};
use crate::error::{Error, ErrorKind};
use crate::name::{Node, Queue};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// How much a deadline may be off: backends count in milliseconds, and we read clocks before and after a call.
const ROUNDING: Duration = Duration::from_millis(5);
/// How long we wait for what was pushed.
const PUSHED_WITHIN: Duration = Duration::from_millis(500);

pub(super) struct Peer {
    pub(super) session: Arc<dyn Session>,
    pub(super) node: Node,
    pub(super) events: mpsc::UnboundedReceiver<Event>,
    pub(super) queue: Queue,
    /// Of its last call.
    pub(super) number: u64,
    pub(super) limit: u32,
    pub(super) lease: Duration,
    /// What it says while time passes.
    pub(super) repeats: Say,
    /// When its last call was made: before and after.
    pub(super) last_word: Span,
}

/// What a call says of tickets.
#[derive(Clone, Debug, Default)]
pub(super) struct Say {
    pub(super) release: Vec<u64>,
    pub(super) renew: Vec<u64>,
    pub(super) acquire: Vec<u64>,
    pub(super) try_acquire: Vec<u64>,
}

/// Something happened between these two moments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span(pub(super) Instant, pub(super) Instant);

pub(super) fn nothing() -> Say {
    Say::default()
}

pub(super) fn acquire(tickets: impl IntoIterator<Item = u64>) -> Say {
    nothing().acquire(tickets)
}

pub(super) fn renew(tickets: impl IntoIterator<Item = u64>) -> Say {
    nothing().renew(tickets)
}

pub(super) fn release(tickets: impl IntoIterator<Item = u64>) -> Say {
    nothing().release(tickets)
}

pub(super) fn try_acquire(tickets: impl IntoIterator<Item = u64>) -> Say {
    nothing().try_acquire(tickets)
}

/// One letter for each: Held, Waiting, Refused, Gone.
pub(super) fn letters(states: &[TicketState]) -> String {
    (states.iter())
        .map(|state| match state {
            TicketState::Held { .. } => 'H',
            TicketState::Queued => 'W',
            TicketState::Refused => 'R',
            TicketState::Gone => 'G',
        })
        .collect()
}

pub(super) fn tickets(grants: &[Grant]) -> Vec<u64> {
    grants.iter().map(|grant| grant.ticket).collect()
}

// === impl Say ===

impl Say {
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
            repeats: nothing(),
            last_word: Span(now, now),
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

    /// Says it under this number, which may be an old one.
    pub(super) async fn send(&mut self, number: u64, say: Say) -> Reply {
        let call = Call {
            queue: self.queue.clone(),
            number,
            limit: self.limit,
            lease: self.lease,
            release: say.release,
            renew: say.renew,
            acquire: say.acquire,
            try_acquire: say.try_acquire,
        };
        let mut before = Instant::now();
        let mut reply = exchange_one(&*self.session, call.clone()).await;
        // On a busy machine a majority may be late: then a gate says it again, and so do we.
        for _ in 0..3 {
            let late = |error: &Error| error.kind() == ErrorKind::Unavailable;
            if self.session.capabilities().fifo || !reply.as_ref().is_err_and(late) {
                break;
            }
            before = Instant::now();
            reply = exchange_one(&*self.session, call.clone()).await;
        }
        let reply = reply.expect("an answer");
        self.last_word = Span(before, Instant::now());
        reply
    }

    /// Says it under the next number.
    pub(super) async fn say(&mut self, say: Say) -> Outcome {
        self.number += 1;
        match self.send(self.number, say).await {
            Reply::Done(outcome) => outcome,
            Reply::Stale => panic!("the newest call was taken for an old one"),
        }
    }

    pub(super) async fn repeat(&mut self) -> Outcome {
        self.say(self.repeats.clone()).await
    }

    pub(super) async fn acquire(&mut self, tickets: impl IntoIterator<Item = u64>) -> String {
        letters(&self.say(acquire(tickets)).await.acquired)
    }

    pub(super) async fn renew(&mut self, tickets: impl IntoIterator<Item = u64>) -> String {
        letters(&self.say(renew(tickets)).await.renewed)
    }

    pub(super) async fn release(&mut self, tickets: impl IntoIterator<Item = u64>) -> Vec<bool> {
        self.say(release(tickets)).await.released
    }

    pub(super) async fn tries(&mut self, tickets: impl IntoIterator<Item = u64>) -> String {
        letters(&self.say(try_acquire(tickets)).await.tried)
    }

    /// Enters and must be let in at once. Returns the token.
    pub(super) async fn must_enter(&mut self, ticket: u64) -> u64 {
        match self.say(acquire([ticket])).await.acquired[..] {
            [TicketState::Held { token }] => token,
            ref other => panic!("ticket {ticket} was not let in: {other:?}"),
        }
    }

    /// Repeats `enter` until the ticket holds. Returns when that was.
    pub(super) async fn enters_within(&mut self, ticket: u64, time: Duration) -> Instant {
        self.enters_within_beside(ticket, time, &mut []).await
    }

    /// The same, while others repeat what they have to say.
    pub(super) async fn enters_within_beside(
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
            let outcome = self.say(acquire([ticket])).await;
            let now = Instant::now();
            if let [TicketState::Held { .. }] = outcome.acquired[..] {
                return now;
            }
            assert!(
                now - start <= time,
                "ticket {ticket} still waits after {time:?}: {outcome:?}"
            );
            let pause = outcome.poll_after.expect("told when to look again");
            tokio::time::sleep(pause.min(self.lease / 5)).await;
        }
    }

    /// The next grant that is pushed, if one comes.
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

    /// How many hold and wait, as the backend shows it.
    pub(super) async fn counts(&self) -> (u64, u64) {
        let inspection = self.inspect().await;
        (inspection.in_use, inspection.queued)
    }

    /// Whether the ticket is shown, as a holder or as a waiter.
    pub(super) async fn shows(&self, ticket: String) -> bool {
        let inspection = self.inspect().await;
        let mut all = inspection.holders.iter().chain(&inspection.queue);
        all.any(|info| info.ticket == ticket)
    }

    /// Asserts that a ticket lives until one lease after a word, as the backend shows it.
    pub(super) async fn assert_lives(&self, ticket: u64, word: Span, lease: Duration) {
        let before = Instant::now();
        let inspection = self.inspect().await;
        let after = Instant::now();
        let name = self.node.ticket(ticket);
        let mut all = inspection.holders.iter().chain(&inspection.queue);
        let Some(info) = all.find(|info| info.ticket == name) else {
            panic!("ticket {ticket} is not shown: {inspection:?}");
        };
        // Servers that are counted by majority keep a lease a little longer, for their clocks may drift.
        let drift = match self.session.capabilities().fifo {
            true => Duration::ZERO,
            false => lease / 100,
        };
        let earliest = before + info.lease_left.saturating_sub(drift);
        let latest = after + info.lease_left;
        assert!(
            earliest <= word.1 + lease + ROUNDING && word.0 + lease <= latest + ROUNDING,
            "ticket {ticket} has {:?} left, but its lease of {lease:?} began {:?} ago",
            info.lease_left,
            before - word.0,
        );
    }
}
