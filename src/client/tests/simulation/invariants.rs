//! What must hold after each event, and at the end of a run.

use super::backend::wall_clock;
use super::callers::{Caller, CallerEnd};
use super::faults::Faults;
use super::node::SimNode;
use super::trace::note;
use super::{Event, MILLI, NodeEvent, Time, World};
use crate::backend::{Call, MAX_TICKETS};
use crate::client::state::Terms;
use tokio::sync::oneshot;

impl World {
    /// Checks everything that is visible from outside.
    pub(super) fn check_invariants(&mut self) {
        let now = self.instant();
        let mut valid = 0;
        for (n, node) in self
            .nodes
            .iter_mut()
            .enumerate()
            .filter(|(_, node)| node.alive)
        {
            for hold in node.guards.keys() {
                let (tickets, ticket) = (&node.state.permits, &hold.ticket);
                assert!(
                    tickets.is_held(*ticket) || node.reserved.contains(hold),
                    "{ticket} was released before its guard was dropped"
                );
                if !tickets.is_valid(*hold, now) {
                    let allowed = self.now < self.calm_since + 4 * self.longest_lease;
                    assert!(
                        allowed || tickets.expiry(*hold).is_err(),
                        "{ticket} is not renewed in time"
                    );
                    continue;
                }
                if self.now < self.excused_until
                    || self
                        .evicted
                        .contains(&(node.id.as_str().to_owned(), *ticket))
                {
                    continue;
                }
                valid += 1;
                let deadline = tickets.deadline(*ticket).expect("it is held");
                let deadline = deadline.saturating_duration_since(self.base);
                let at_backend = self.backend.tickets.permit(&node.id, *ticket);
                let until = wall_clock(deadline);
                assert!(
                    at_backend.is_some_and(|(deadline, _)| deadline >= until),
                    "{n} counts {ticket} as held until {until:?}, at the backend: {at_backend:?}"
                );
                let token = tickets.token(*hold);
                assert!(
                    !self.strict
                        || token == at_backend.map(|(_, token)| token * 1024 + hold.handoffs),
                    "{n} holds {ticket} by the token {token:?}, at the backend: {at_backend:?}"
                );
            }
            let lingering = node.state.permits.lingering();
            assert!(
                !self.strict || lingering == 0,
                "no permit of a mutex lingers"
            );
            assert!(
                lingering == 0 || node.waiting.is_empty(),
                "a permit lingers while a caller waits"
            );
            let late = self.now.saturating_sub(node.lease.as_micros() as u64);
            node.releases
                .retain_mut(|(since, answer)| match answer.try_recv() {
                    Ok(_) => false,
                    Err(oneshot::error::TryRecvError::Empty) => true,
                    Err(oneshot::error::TryRecvError::Closed) => {
                        assert!(*since <= late, "a release was never answered");
                        false
                    }
                });
        }
        assert!(
            valid <= self.max_limit,
            "{valid} permits are held at a limit of {}",
            self.max_limit
        );
    }

    /// Checks that no more permits are in use here than this node's limit allows.
    pub(super) fn check_limit_here(&self, n: usize) {
        let state = &self.nodes[n].state;
        let in_use = state.permits.in_use();
        assert!(
            in_use <= state.limit as usize,
            "{n}: {in_use} in use at a limit of {}",
            state.limit
        );
    }

    /// Ends the faults and the new callers: every waiter is served, and nothing is left.
    pub(super) fn settle(&mut self) {
        note!(self.now, "   no more faults");
        self.faults = Faults::default();
        self.calm = true;
        self.calm_since = self.now;
        self.backend.stalled_until = self.now;
        self.events
            .retain(|_, event| !matches!(event, Event::Actions));
        for n in 0..self.nodes.len() {
            if self.nodes[n].paused {
                self.at_node(self.now, n, NodeEvent::Resume);
            }
        }
        // By then the last late call was executed, and what it held has expired. Every waiter was served.
        let lease = self.longest_lease;
        self.run_until(self.now + 10 * lease);
        for (n, node) in self.nodes.iter().enumerate() {
            assert!(
                node.waiting.is_empty(),
                "{n}: callers wait forever: {:?}",
                node.waiting
            );
            assert!(
                node.tries.is_empty(),
                "{n}: tries wait forever: {:?}",
                node.tries
            );
        }
        // New callers arrive for three leases: their calls remove the tickets of dead nodes.
        let end = self.now + 3 * lease;
        while self.now < end {
            let n = self.rng.below(self.nodes.len() as u64) as usize;
            self.nodes[n].last_number += 1;
            let (ticket, caller, now) = (
                self.nodes[n].last_number,
                self.callers.len(),
                self.instant(),
            );
            let terms = Terms::default();
            self.callers.push(Caller {
                answers: 0,
                has_given_up: false,
            });
            self.nodes[n].waiting.insert(ticket, caller);
            self.nodes[n]
                .state
                .join(ticket, now, terms, usize::MAX, CallerEnd { caller, terms });
            self.drive(n);
            self.run_until(self.now + 200 * MILLI);
        }
        self.run_until(self.now + 2 * lease);
        let held: Vec<_> = (self.backend.tickets.held())
            .map(|(node, ticket, ..)| (self.node_name(node), ticket))
            .collect();
        assert!(held.is_empty(), "left at the backend: {held:?}");
        assert_eq!(self.backend.waiting(self.now), 0, "left at the backend");
        for (n, node) in self.nodes.iter_mut().enumerate() {
            assert!(node.state.is_idle(), "{n} is not idle");
            assert!(node.guards.is_empty() && node.releases.is_empty());
        }
        assert!(self.callers.iter().all(|caller| caller.answers <= 1));
    }
}

impl SimNode {
    /// Checks that a call carries everything that is due, and nothing else.
    pub(super) fn check_call(&mut self, call: &Call, time: Time) {
        for ticket in call
            .renew
            .iter()
            .chain(&call.acquire)
            .chain(&call.try_acquire)
        {
            assert!(
                !self.released.contains(ticket),
                "{ticket} was released, and is sent again"
            );
            assert!(
                !call.release.contains(ticket),
                "{ticket} is released, and more"
            );
        }
        for ticket in &call.renew {
            let guarded = self.guards.keys().any(|hold| hold.ticket == *ticket);
            let lingers = self.state.permits.all_lingering().contains(ticket);
            assert!(guarded || lingers, "{ticket} has no holder");
        }
        let sent =
            call.release.len() + call.renew.len() + call.acquire.len() + call.try_acquire.len();
        assert!(sent <= MAX_TICKETS);
        // Every ticket that the backend may know is held, wanted, or released.
        let lease = self.lease.as_micros() as u64;
        for ticket in call.acquire.iter().chain(&call.try_acquire) {
            self.known.entry(*ticket).or_default();
        }
        let state = &self.state;
        for ticket in self.unanswered.drain(..) {
            let again = call.acquire.contains(&ticket) || call.try_acquire.contains(&ticket);
            let wanted = state.waiters.has_ticket(ticket) || self.tries.contains_key(&ticket);
            assert!(
                again || !wanted || sent == MAX_TICKETS,
                "{ticket} is not sent again"
            );
        }
        self.known.retain(|ticket, left| {
            if call.release.contains(ticket) {
                left.get_or_insert(time);
                return true;
            }
            let wanted = state.waiters.has_ticket(*ticket) || self.tries.contains_key(ticket);
            let allowed =
                wanted || state.permits.valid_tickets().contains(ticket) || sent == MAX_TICKETS;
            let old = left.is_some_and(|left| left + lease <= time);
            assert!(allowed || old, "{ticket} is never released");
            !old
        });
    }
}
