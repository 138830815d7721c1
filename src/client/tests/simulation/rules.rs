//! What must hold: looked at from outside, after each event and when all is over.

use super::backend::wall_clock;
use super::callers::{Caller, Ends};
use super::faults::Faults;
use super::peer::Peer;
use super::trace::note;
use super::{Event, Happening, MILLI, Time, World};
use crate::backend::{Call, MAX_TICKETS};
use crate::client::state::Terms;
use tokio::sync::oneshot;

impl World {
    /// Looks at everything from outside.
    pub(super) fn look(&mut self) {
        let now = self.instant();
        let mut valid = 0;
        for (n, peer) in self
            .nodes
            .iter_mut()
            .enumerate()
            .filter(|(_, peer)| peer.alive)
        {
            for hold in peer.guards.keys() {
                let (tickets, ticket) = (&peer.state.permits, &hold.ticket);
                assert!(
                    tickets.is_held(*ticket) || peer.reserved.contains(hold),
                    "{ticket} has left under its guard"
                );
                if !tickets.is_valid(*hold, now) {
                    let fine = self.now < self.calm_since + 4 * self.longest_lease;
                    assert!(
                        fine || tickets.lost(*hold).is_some(),
                        "{ticket} is not renewed in time"
                    );
                    continue;
                }
                if self.now < self.excused_until
                    || self
                        .evicted
                        .contains(&(peer.node.as_str().to_owned(), *ticket))
                {
                    continue;
                }
                valid += 1;
                let believed = tickets.deadline(*ticket).expect("it is held");
                let believed = believed.saturating_duration_since(self.base);
                let at_backend = self.backend.room.permit(&peer.node, *ticket);
                let until = wall_clock(believed);
                assert!(
                    at_backend.is_some_and(|(deadline, _)| deadline >= until),
                    "{n} believes that it holds {ticket} until {until:?}, at the backend: {at_backend:?}"
                );
                let token = tickets.token(*hold);
                assert!(
                    !self.strict
                        || token == at_backend.map(|(_, token)| token * 1024 + hold.handoffs),
                    "{n} holds {ticket} by the token {token:?}, at the backend: {at_backend:?}"
                );
            }
            let lingering = peer.state.permits.lingering();
            assert!(!self.strict || lingering == 0, "no lock lingers");
            assert!(
                lingering == 0 || peer.line.is_empty(),
                "one lingers, and one waits"
            );
            let late = self.now.saturating_sub(peer.lease.as_micros() as u64);
            peer.releases
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
            "{valid} hold at a limit of {}",
            self.max_limit
        );
    }

    /// What goes from one to the next here fits the limit of this node.
    pub(super) fn check_limit_here(&self, n: usize) {
        let state = &self.nodes[n].state;
        let in_use = state.permits.in_use();
        assert!(
            in_use <= state.limit as usize,
            "{n}: {in_use} in use at a limit of {}",
            state.limit
        );
    }

    /// No more faults, and nobody comes any more: everybody is served, and nothing is left.
    pub(super) fn calm_down(&mut self) {
        note!(self.now, "   no more faults");
        self.faults = Faults::default();
        self.calm = true;
        self.calm_since = self.now;
        self.backend.stalled_until = self.now;
        self.events
            .retain(|_, event| !matches!(event, Event::Users));
        for n in 0..self.nodes.len() {
            if self.nodes[n].paused {
                self.at_node(self.now, n, Happening::Resume);
            }
        }
        // By then the last late call has run, and what it did has run out. Whoever waits has been served.
        let lease = self.longest_lease;
        self.go_on_until(self.now + 10 * lease);
        for (n, peer) in self.nodes.iter().enumerate() {
            assert!(
                peer.line.is_empty(),
                "{n}: callers wait for ever: {:?}",
                peer.line
            );
            assert!(
                peer.tries.is_empty(),
                "{n}: they try for ever: {:?}",
                peer.tries
            );
        }
        // Somebody comes again and again for two leases: that clears away the dead.
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
                gave_up: false,
            });
            self.nodes[n].line.insert(ticket, caller);
            self.nodes[n]
                .state
                .join(ticket, now, Ends { caller, terms });
            self.pump(n);
            self.go_on_until(self.now + 200 * MILLI);
        }
        self.go_on_until(self.now + 2 * lease);
        let held: Vec<_> = (self.backend.room.held())
            .map(|(node, ticket, ..)| (self.who(node), ticket))
            .collect();
        assert!(held.is_empty(), "left at the backend: {held:?}");
        assert_eq!(self.backend.waiting(self.now), 0, "left at the backend");
        for (n, peer) in self.nodes.iter_mut().enumerate() {
            assert!(peer.state.is_idle(), "{n} is not idle");
            assert!(peer.guards.is_empty() && peer.releases.is_empty());
        }
        assert!(self.callers.iter().all(|caller| caller.answers <= 1));
    }
}

impl Peer {
    /// What a node says is all that it has to say, and nothing more.
    pub(super) fn check_call(&mut self, call: &Call, time: Time) {
        for ticket in call
            .renew
            .iter()
            .chain(&call.acquire)
            .chain(&call.try_acquire)
        {
            assert!(
                !self.released.contains(ticket),
                "{ticket} was released, and is said again"
            );
            assert!(
                !call.release.contains(ticket),
                "{ticket} is to leave, and more"
            );
        }
        for ticket in &call.renew {
            let guarded = self.guards.keys().any(|hold| hold.ticket == *ticket);
            let lingers = self.state.permits.all_lingering().contains(ticket);
            assert!(guarded || lingers, "nobody holds {ticket}");
        }
        let sent =
            call.release.len() + call.renew.len() + call.acquire.len() + call.try_acquire.len();
        assert!(sent <= MAX_TICKETS);
        // Whatever the backend may know of is held, wanted, or leaves.
        let lease = self.lease.as_micros() as u64;
        for ticket in call.acquire.iter().chain(&call.try_acquire) {
            self.known.entry(*ticket).or_default();
        }
        let state = &self.state;
        for ticket in self.on_failure.drain(..) {
            let again = call.acquire.contains(&ticket) || call.try_acquire.contains(&ticket);
            let wanted = state.waiters.has_ticket(ticket) || self.tries.contains_key(&ticket);
            assert!(
                again || !wanted || sent == MAX_TICKETS,
                "{ticket} is not said again"
            );
        }
        self.known.retain(|ticket, left| {
            if call.release.contains(ticket) {
                left.get_or_insert(time);
                return true;
            }
            let wanted = state.waiters.has_ticket(*ticket) || self.tries.contains_key(ticket);
            let fine = wanted || state.permits.counts(*ticket) || sent == MAX_TICKETS;
            let old = left.is_some_and(|left| left + lease <= time);
            assert!(fine || old, "nobody takes {ticket} out");
            !old
        });
    }
}
