//! One node: a [`State`] that is driven as the driver does it.

use super::callers::{CallerEnd, down};
use super::trace::note;
use super::{NodeEvent, Time, World};
use crate::backend::{Call, Events, Outcome, Reply, TicketState};
use crate::client::outage::OutageDetector;
use crate::client::state::{Effects, Hold, State, Tickets};
use crate::client::tests::{Step, next_step};
use crate::name::Node;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

const OUTAGE_AFTER: Duration = Duration::from_secs(1);
/// The longest pause before a call that has to be sent.
const LONGEST_PAUSE: Duration = Duration::from_millis(125);

/// A node, and its callers.
pub(super) struct SimNode {
    pub(super) id: Node,
    pub(super) events: Arc<Events>,
    pub(super) state: State<CallerEnd>,
    pub(super) outages: OutageDetector,
    pub(super) limit: u32,
    pub(super) lease: Duration,
    pub(super) alive: bool,
    pub(super) paused: bool,
    /// The events that arrived while it was paused.
    pub(super) inbox: Vec<NodeEvent>,
    pub(super) last_number: u64,
    pub(super) call: Option<Flight>,
    pub(super) wakes_at: Option<Time>,
    /// Which caller waits, by its number as a waiter.
    pub(super) waiting: BTreeMap<u64, usize>,
    pub(super) tries: BTreeMap<u64, usize>,
    /// The guards of each hold.
    pub(super) guards: BTreeMap<Hold, u32>,
    /// Holds that are released unless they are claimed.
    pub(super) reserved: HashSet<Hold>,
    /// Tickets that the backend may know: named in a call, and no release was answered. With the time of the first release.
    pub(super) known: BTreeMap<u64, Option<Time>>,
    /// Tickets that were sent in a call without an answer.
    pub(super) unanswered: Vec<u64>,
    pub(super) released: HashSet<u64>,
    pub(super) releases: Vec<(Time, oneshot::Receiver<bool>)>,
}

/// A call in flight.
pub(super) struct Flight {
    pub(super) call: Call,
    pub(super) sent: Instant,
}

impl World {
    /// Makes a new node.
    pub(super) fn node(&mut self, limit: u32, lease: Duration) -> SimNode {
        SimNode {
            id: Node::of_this_process(),
            events: Arc::new(Events::new(|_| ())),
            state: State::new(limit, lease, self.strict, self.shortcuts, self.instant()),
            outages: OutageDetector::new(OUTAGE_AFTER),
            limit,
            lease,
            alive: true,
            paused: false,
            inbox: Vec::new(),
            last_number: 0,
            call: None,
            wakes_at: None,
            waiting: BTreeMap::new(),
            tries: BTreeMap::new(),
            guards: BTreeMap::new(),
            reserved: HashSet::new(),
            known: BTreeMap::new(),
            unanswered: Vec::new(),
            released: HashSet::new(),
            releases: Vec::new(),
        }
    }

    /// Handles an event of a node, unless the node was replaced meanwhile.
    pub(super) fn on_node_event(&mut self, n: usize, name: &Node, what: NodeEvent) {
        let node = &mut self.nodes[n];
        if node.id != *name || !node.alive {
            return;
        }
        if node.paused {
            if !matches!(what, NodeEvent::Resume) {
                node.inbox.push(what);
                return;
            }
            note!(self.now, "{n}: resumes");
            let node = &mut self.nodes[n];
            node.paused = false;
            let mut inbox = std::mem::take(&mut node.inbox);
            // In any order, and with the driver before, after or in between.
            inbox.push(NodeEvent::Wake);
            while !inbox.is_empty() {
                let next = self.rng.below(inbox.len() as u64) as usize;
                let next = inbox.swap_remove(next);
                self.handle(n, next);
                self.check_invariants();
            }
            return;
        }
        self.handle(n, what);
    }

    fn handle(&mut self, n: usize, what: NodeEvent) {
        let now = self.instant();
        let node = &mut self.nodes[n];
        match what {
            NodeEvent::Wake => {
                if node.wakes_at.is_none_or(|at| at > self.now) {
                    return;
                }
                node.wakes_at = None;
            }
            NodeEvent::Resume => {}
            NodeEvent::Reply(number, reply) => {
                let Some(flight) = node.call.take_if(|flight| flight.call.number == number) else {
                    return;
                };
                match reply {
                    Reply::Done(outcome) => self.on_reply(n, &flight, &outcome),
                    Reply::Stale => self.on_failure(n, &flight, "stale"),
                }
            }
            NodeEvent::GiveUp(number) => {
                let Some(flight) = node.call.take_if(|flight| flight.call.number == number) else {
                    return;
                };
                self.on_failure(n, &flight, "given up");
            }
            NodeEvent::Push(grant) => {
                note!(
                    self.now,
                    "{n}: receives the push that {} is granted",
                    grant.ticket
                );
                self.coverage.pushed += 1;
                self.nodes[n].known.entry(grant.ticket).or_default();
                let effects = self.nodes[n].state.pushed(grant, now);
                self.deliver(n, effects);
            }
            NodeEvent::Release(hold) => self.release(n, hold),
            NodeEvent::Claim(hold) => {
                let claimed = node.state.permits.claim(hold, now);
                note!(self.now, "{n}: claims {hold:?}: {claimed}");
                if claimed {
                    self.nodes[n].reserved.remove(&hold);
                }
                self.coverage.lapsed += u64::from(!claimed);
            }
            NodeEvent::Rearm(hold) => {
                let rearmed = node.state.permits.rearm(hold, now);
                note!(self.now, "{n}: rearms {hold:?}: {rearmed}");
            }
        }
        self.drive(n);
    }

    /// Does what the driver does after any event.
    pub(super) fn drive(&mut self, n: usize) {
        loop {
            let now = self.instant();
            let node = &mut self.nodes[n];
            if !node.alive || node.paused || node.call.is_some() {
                return;
            }
            let _ = node.state.long_wait(now);
            let turn = !self.rng.chance(self.faults.no_turn);
            let (step, effects) = next_step(&mut node.state, now, turn);
            if let Step::Wait(until) | Step::Renewal(until) = step {
                assert!(until > now, "the driver would spin");
                let unsent = node.state.waiters.has_tickets_to_send();
                assert!(
                    !unsent || until <= now + LONGEST_PAUSE,
                    "a new ticket is not sent in time"
                );
                let lingers = node.state.permits.lingering_ends();
                assert!(
                    lingers.is_none_or(|end| until <= end.max(now + LONGEST_PAUSE)),
                    "it lingers for too long"
                );
            }
            let done = match step {
                Step::Send(batch) => {
                    self.send_tickets(n, batch);
                    true
                }
                Step::Wait(until) | Step::Renewal(until) => {
                    self.coverage.no_turn += u64::from(matches!(step, Step::Renewal(_)));
                    // A whole microsecond, never before.
                    let micros = until
                        .saturating_duration_since(self.base)
                        .as_nanos()
                        .div_ceil(1000);
                    let mut until = (micros as u64).max(self.now + 1);
                    if matches!(step, Step::Renewal(_)) {
                        // Its turn may be earlier.
                        until = until.min(self.now + 1 + self.rng.below(2 * self.longest_lease));
                    }
                    self.nodes[n].wakes_at = Some(until);
                    self.at_node(until, n, NodeEvent::Wake);
                    effects.lost.is_empty()
                }
                Step::Idle => true,
            };
            self.deliver(n, effects);
            if done {
                return;
            }
        }
    }

    fn send_tickets(&mut self, n: usize, batch: Tickets) {
        let node = &mut self.nodes[n];
        node.last_number += 1;
        let call = Call {
            queue: self.queue.clone(),
            number: node.last_number,
            limit: node.state.limit,
            lease: node.lease,
            release: batch.release,
            renew: batch.renew,
            acquire: batch.acquire,
            try_acquire: batch.try_acquire,
        };
        note!(
            self.now,
            "{n}: sends {} release {:?} renew {:?} acquire {:?} try {:?}",
            call.number,
            call.release,
            call.renew,
            call.acquire,
            call.try_acquire
        );
        self.nodes[n].check_call(&call, self.now);
        self.send(n, call);
    }

    fn on_reply(&mut self, n: usize, flight: &Flight, outcome: &Outcome) {
        note!(
            self.now,
            "{n}: receives {} renewed {:?} acquired {:?} tried {:?} granted {:?}",
            flight.call.number,
            outcome.renewed,
            outcome.acquired,
            outcome.tried,
            outcome.granted
        );
        let now = self.instant();
        let node = &mut self.nodes[n];
        node.outages.answered(now);
        let effects = node.state.on_reply(outcome, flight.sent, now);
        for ticket in &flight.call.release {
            node.known.remove(ticket);
        }
        for (ticket, answer) in flight.call.try_acquire.iter().zip(&outcome.tried) {
            if !matches!(answer, TicketState::Held { .. }) {
                node.known.remove(ticket);
            }
        }
        for (ticket, answer) in flight.call.renew.iter().zip(&outcome.renewed) {
            let held = matches!(answer, TicketState::Held { .. });
            assert!(
                held || !node.state.permits.valid_tickets().contains(ticket),
                "{ticket} is not held any more"
            );
        }
        self.deliver(n, effects);
    }

    fn on_failure(&mut self, n: usize, flight: &Flight, why: &str) {
        note!(self.now, "{n}: {why}: {}", flight.call.number);
        let now = self.instant();
        let sent = flight.call.acquire.iter().chain(&flight.call.try_acquire);
        self.nodes[n].unanswered.extend(sent);
        let jitter = self.rng.below(1000) as f64 / 1000.0;
        let node = &mut self.nodes[n];
        let outage = node.outages.failed(flight.sent, now, &down());
        node.state.on_failure(jitter, Duration::ZERO, now);
        if let Some(error) = outage {
            let effects = node.state.refuse_unanswered(&error);
            self.deliver(n, effects);
        }
    }

    pub(super) fn deliver(&mut self, n: usize, effects: Effects<CallerEnd>) {
        for (end, hold) in effects.next.into_iter().chain(effects.granted) {
            let now = self.instant();
            let ticket = hold.ticket;
            let tickets = &self.nodes[n].state.permits;
            let left = tickets
                .deadline(ticket)
                .map(|until| until.saturating_duration_since(now));
            assert!(
                left >= Some(self.nodes[n].lease / 3),
                "{left:?} is left of {ticket}"
            );
            let node = &mut self.nodes[n];
            if let Some((waiter, first)) = node.waiting.first_key_value().map(|(w, c)| (*w, *c))
                && !node.tries.values().any(|caller| *caller == end.caller)
            {
                assert_eq!(first, end.caller, "the oldest is served first");
                node.waiting.remove(&waiter);
                let handed = hold.handoffs > 0;
                self.coverage.handed_off += u64::from(handed);
                self.coverage.swapped += u64::from(!handed && waiter != ticket);
            } else {
                node.tries.retain(|_, caller| *caller != end.caller);
            }
            if hold.handoffs > 0 {
                self.check_limit_here(n);
            }
            self.granted(n, end, hold);
        }
        for (end, _) in effects.refused {
            note!(self.now, "{n}: caller {} is refused", end.caller);
            self.coverage.refused += 1;
            let node = &mut self.nodes[n];
            node.waiting.retain(|_, caller| *caller != end.caller);
            node.tries.retain(|_, caller| *caller != end.caller);
            self.answer(end.caller);
        }
        for (answer, held) in effects.answered {
            if let Some(held) = held {
                answer.send(held).expect("it is received");
            }
        }
        for (hold, why) in effects.lost {
            note!(self.now, "{n}: {hold:?} is lost: {why:?}");
            self.coverage.lost += 1;
            assert!(!self.nodes[n].state.permits.is_valid(hold, self.instant()));
        }
    }
}
