//! One node: a [`State`] that is driven as the pump does it.

use super::callers::{Ends, down};
use super::trace::note;
use super::{Happening, Time, World};
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
/// The longest pause before a call that has to go out.
const LONGEST_PAUSE: Duration = Duration::from_millis(125);

/// A node, and those who are there.
pub(super) struct Peer {
    pub(super) node: Node,
    pub(super) events: Arc<Events>,
    pub(super) state: State<Ends>,
    pub(super) outages: OutageDetector,
    pub(super) limit: u32,
    pub(super) lease: Duration,
    pub(super) alive: bool,
    pub(super) paused: bool,
    /// What came while it was paused.
    pub(super) inbox: Vec<Happening>,
    pub(super) last_number: u64,
    pub(super) call: Option<Flight>,
    pub(super) wakes_at: Option<Time>,
    /// Which caller stands in the line, by its number there.
    pub(super) line: BTreeMap<u64, usize>,
    pub(super) tries: BTreeMap<u64, usize>,
    /// The guards that are out.
    pub(super) guards: BTreeMap<Hold, u32>,
    /// Those that go back by themselves unless they are claimed.
    pub(super) reserved: HashSet<Hold>,
    /// What the backend may know of: named in a call, and no leave of it was answered. With the time of its first leave.
    pub(super) known: BTreeMap<u64, Option<Time>>,
    /// Was said, and not answered.
    pub(super) on_failure: Vec<u64>,
    pub(super) released: HashSet<u64>,
    pub(super) releases: Vec<(Time, oneshot::Receiver<bool>)>,
}

/// A call that is under way.
pub(super) struct Flight {
    pub(super) call: Call,
    pub(super) sent: Instant,
}

impl World {
    /// A node that comes new.
    pub(super) fn peer(&mut self, limit: u32, lease: Duration) -> Peer {
        Peer {
            node: Node::of_this_process(),
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
            line: BTreeMap::new(),
            tries: BTreeMap::new(),
            guards: BTreeMap::new(),
            reserved: HashSet::new(),
            known: BTreeMap::new(),
            on_failure: Vec::new(),
            released: HashSet::new(),
            releases: Vec::new(),
        }
    }

    /// Something happens to a node, unless it is another by now.
    pub(super) fn reach(&mut self, n: usize, name: &Node, what: Happening) {
        let peer = &mut self.nodes[n];
        if peer.node != *name || !peer.alive {
            return;
        }
        if peer.paused {
            if !matches!(what, Happening::Resume) {
                peer.inbox.push(what);
                return;
            }
            note!(self.now, "{n}: goes on");
            let peer = &mut self.nodes[n];
            peer.paused = false;
            let mut inbox = std::mem::take(&mut peer.inbox);
            // In any order, and with the pump before, after or in between.
            inbox.push(Happening::Wake);
            while !inbox.is_empty() {
                let next = self.rng.below(inbox.len() as u64) as usize;
                let next = inbox.swap_remove(next);
                self.happen(n, next);
                self.look();
            }
            return;
        }
        self.happen(n, what);
    }

    fn happen(&mut self, n: usize, what: Happening) {
        let now = self.instant();
        let peer = &mut self.nodes[n];
        match what {
            Happening::Wake => {
                if peer.wakes_at.is_none_or(|at| at > self.now) {
                    return;
                }
                peer.wakes_at = None;
            }
            Happening::Resume => {}
            Happening::Reply(number, reply) => {
                let Some(flight) = peer.call.take_if(|flight| flight.call.number == number) else {
                    return;
                };
                match reply {
                    Reply::Done(outcome) => self.on_reply(n, &flight, &outcome),
                    Reply::Stale => self.on_failure(n, &flight, "stale"),
                }
            }
            Happening::GiveUp(number) => {
                let Some(flight) = peer.call.take_if(|flight| flight.call.number == number) else {
                    return;
                };
                self.on_failure(n, &flight, "given up");
            }
            Happening::Push(grant) => {
                note!(self.now, "{n}: is told that {} is granted", grant.ticket);
                self.seen.pushed += 1;
                self.nodes[n].known.entry(grant.ticket).or_default();
                let effects = self.nodes[n].state.pushed(grant, now);
                self.deliver(n, effects);
            }
            Happening::Release(hold) => self.release(n, hold),
            Happening::Claim(hold) => {
                let claimed = peer.state.permits.claim(hold, now);
                note!(self.now, "{n}: claims {hold:?}: {claimed}");
                if claimed {
                    self.nodes[n].reserved.remove(&hold);
                }
                self.seen.lapsed += u64::from(!claimed);
            }
            Happening::Rearm(hold) => {
                let rearmed = peer.state.permits.rearm(hold, now);
                note!(self.now, "{n}: rearms {hold:?}: {rearmed}");
            }
        }
        self.pump(n);
    }

    /// As the pump goes on after anything that happened.
    pub(super) fn pump(&mut self, n: usize) {
        loop {
            let now = self.instant();
            let peer = &mut self.nodes[n];
            if !peer.alive || peer.paused || peer.call.is_some() {
                return;
            }
            let _ = peer.state.long_wait(now);
            let turn = !self.rng.chance(self.faults.no_turn);
            let (step, effects) = next_step(&mut peer.state, now, turn);
            if let Step::Wait(until) | Step::Renewal(until) = step {
                assert!(until > now, "the pump would run in circles");
                let asks = peer.state.waiters.has_tickets_to_send();
                assert!(
                    !asks || until <= now + LONGEST_PAUSE,
                    "nobody knows that one waits"
                );
                let lingers = peer.state.permits.lingering_ends();
                assert!(
                    lingers.is_none_or(|ends| until <= ends.max(now + LONGEST_PAUSE)),
                    "it lingers for too long"
                );
            }
            let done = match step {
                Step::Send(batch) => {
                    self.say(n, batch);
                    true
                }
                Step::Wait(until) | Step::Renewal(until) => {
                    self.seen.no_turn += u64::from(matches!(step, Step::Renewal(_)));
                    // A whole microsecond, never before.
                    let micros = until
                        .saturating_duration_since(self.base)
                        .as_nanos()
                        .div_ceil(1000);
                    let mut until = (micros as u64).max(self.now + 1);
                    if matches!(step, Step::Renewal(_)) {
                        // Its turn may come before.
                        until = until.min(self.now + 1 + self.rng.below(2 * self.longest_lease));
                    }
                    self.nodes[n].wakes_at = Some(until);
                    self.at_node(until, n, Happening::Wake);
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

    fn say(&mut self, n: usize, batch: Tickets) {
        let peer = &mut self.nodes[n];
        peer.last_number += 1;
        let call = Call {
            queue: self.queue.clone(),
            number: peer.last_number,
            limit: peer.state.limit,
            lease: peer.lease,
            release: batch.release,
            renew: batch.renew,
            acquire: batch.acquire,
            try_acquire: batch.try_acquire,
        };
        note!(
            self.now,
            "{n}: says {} leave {:?} keep {:?} enter {:?} try {:?}",
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
            "{n}: hears {} kept {:?} entered {:?} tried {:?} granted {:?}",
            flight.call.number,
            outcome.renewed,
            outcome.acquired,
            outcome.tried,
            outcome.granted
        );
        let now = self.instant();
        let peer = &mut self.nodes[n];
        peer.outages.answered(now);
        let effects = peer.state.on_reply(outcome, flight.sent, now);
        for ticket in &flight.call.release {
            peer.known.remove(ticket);
        }
        for (ticket, answer) in flight.call.try_acquire.iter().zip(&outcome.tried) {
            if !matches!(answer, TicketState::Held { .. }) {
                peer.known.remove(ticket);
            }
        }
        for (ticket, answer) in flight.call.renew.iter().zip(&outcome.renewed) {
            let held = matches!(answer, TicketState::Held { .. });
            assert!(
                held || !peer.state.permits.counts(*ticket),
                "{ticket} is gone"
            );
        }
        self.deliver(n, effects);
    }

    fn on_failure(&mut self, n: usize, flight: &Flight, why: &str) {
        note!(self.now, "{n}: {why}: {}", flight.call.number);
        let now = self.instant();
        let sent = flight.call.acquire.iter().chain(&flight.call.try_acquire);
        self.nodes[n].on_failure.extend(sent);
        let jitter = self.rng.below(1000) as f64 / 1000.0;
        let peer = &mut self.nodes[n];
        let outage = peer.outages.failed(flight.sent, now, &down());
        peer.state.on_failure(jitter, Duration::ZERO, now);
        if let Some(error) = outage {
            let effects = peer.state.refuse_unanswered(&error);
            self.deliver(n, effects);
        }
    }

    pub(super) fn deliver(&mut self, n: usize, effects: Effects<Ends>) {
        for (ends, hold) in effects.next.into_iter().chain(effects.granted) {
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
            let peer = &mut self.nodes[n];
            if let Some((waiter, first)) = peer.line.first_key_value().map(|(w, c)| (*w, *c))
                && !peer.tries.values().any(|caller| *caller == ends.caller)
            {
                assert_eq!(first, ends.caller, "the oldest goes first");
                peer.line.remove(&waiter);
                let handed = hold.handoffs > 0;
                self.seen.handed_on += u64::from(handed);
                self.seen.passed_on += u64::from(!handed && waiter != ticket);
            } else {
                peer.tries.retain(|_, caller| *caller != ends.caller);
            }
            if hold.handoffs > 0 {
                self.check_limit_here(n);
            }
            self.acquire(n, ends, hold);
        }
        for (ends, _) in effects.refused {
            note!(self.now, "{n}: caller {} is refused", ends.caller);
            self.seen.refused += 1;
            let peer = &mut self.nodes[n];
            peer.line.retain(|_, caller| *caller != ends.caller);
            peer.tries.retain(|_, caller| *caller != ends.caller);
            self.answer(ends.caller);
        }
        for (answer, held) in effects.answered {
            if let Some(held) = held {
                answer.send(held).expect("it is received");
            }
        }
        for (hold, why) in effects.lost {
            note!(self.now, "{n}: {hold:?} is lost: {why:?}");
            self.seen.lost += 1;
            assert!(!self.nodes[n].state.permits.is_valid(hold, self.instant()));
        }
    }
}
