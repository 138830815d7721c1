//! The callers: they arrive, wait or give up, are granted permits and hold them for a while.

use super::trace::note;
use super::{MILLI, NodeEvent, World};
use crate::client::state::{Effects, Hold, Terms};
use crate::error::{Error, ErrorKind};
use std::time::Duration;
use tokio::sync::oneshot;

#[derive(Clone, Copy, Debug)]
pub(super) struct Caller {
    pub(super) answers: u32,
    pub(super) has_given_up: bool,
}

/// The caller's end of a wait.
#[derive(Debug)]
pub(super) struct CallerEnd {
    pub(super) caller: usize,
    pub(super) terms: Terms,
}

impl World {
    pub(super) fn add_caller(&mut self) {
        let n = self.rng.below(self.nodes.len() as u64) as usize;
        let now = self.instant();
        let node = &mut self.nodes[n];
        if !node.alive || node.paused {
            return;
        }
        if node.outages.outage(now).is_some() {
            node.state.probe = true;
            return self.drive(n);
        }
        if node.state.waiters.len() > 15 {
            return;
        }
        let tries = self.rng.chance(150);
        if tries && !node.state.waiters.is_empty() {
            return;
        }
        let terms = Terms {
            reserve: (self.rng.chance(150))
                .then(|| Duration::from_micros(self.rng.below(200 * MILLI))),
            max_hold: (self.rng.chance(100))
                .then(|| Duration::from_micros(self.rng.below(1500 * MILLI))),
            stall_timeout: None,
        };
        let caller = self.callers.len();
        self.callers.push(Caller {
            answers: 0,
            has_given_up: false,
        });
        note!(
            self.now,
            "{n}: caller {caller} arrives, tries: {tries}, {terms:?}"
        );
        let node = &mut self.nodes[n];
        if let Some(hold) = node.state.acquire_lingering(terms, now) {
            self.coverage.lingered += 1;
            self.check_limit_here(n);
            self.granted(n, CallerEnd { caller, terms }, hold);
            return self.drive(n);
        }
        node.last_number += 1;
        let ticket = node.last_number;
        if tries {
            node.tries.insert(ticket, caller);
            (node.state).join_try(ticket, now, terms, CallerEnd { caller, terms });
        } else {
            node.waiting.insert(ticket, caller);
            (node.state).join(ticket, now, terms, usize::MAX, CallerEnd { caller, terms });
        }
        self.drive(n);
    }

    pub(super) fn give_up(&mut self) {
        let n = self.rng.below(self.nodes.len() as u64) as usize;
        let node = &mut self.nodes[n];
        if !node.alive || node.paused {
            return;
        }
        let all: Vec<_> = node
            .waiting
            .iter()
            .chain(&node.tries)
            .map(|(w, c)| (*w, *c))
            .collect();
        if all.is_empty() {
            return;
        }
        // The oldest ones more often: they are about to be served.
        let which = self
            .rng
            .below(all.len() as u64)
            .min(self.rng.below(all.len() as u64));
        let (waiter, caller) = all[which as usize];
        note!(self.now, "{n}: caller {caller} gives up");
        let end = self.nodes[n].state.give_up(waiter).expect("it waits");
        assert_eq!(end.caller, caller);
        self.coverage.cancelled += 1;
        self.callers[caller].has_given_up = true;
        self.nodes[n].waiting.remove(&waiter);
        self.nodes[n].tries.remove(&waiter);
        self.drive(n);
    }

    /// A caller is granted a permit.
    pub(super) fn granted(&mut self, n: usize, end: CallerEnd, hold: Hold) {
        note!(self.now, "{n}: caller {} holds {hold:?}", end.caller);
        self.coverage.granted += 1;
        let node = &mut self.nodes[n];
        let ticket = hold.ticket;
        assert!(!node.released.contains(&ticket), "{ticket} was released");
        let shared = node.guards.keys().any(|other| other.ticket == ticket);
        assert!(!shared, "{ticket} has a guard already");
        node.guards.insert(hold, 1);
        if self.strict {
            let token = node.state.permits.token(hold).expect("it is held");
            let id = (node.id.as_str().to_owned(), ticket);
            let excused = self.now < self.excused_until || self.evicted.contains(&id);
            assert!(token > self.highest || excused, "tokens increase");
            self.highest = self.highest.max(token);
        }
        self.answer(end.caller);
        self.hold(n, hold, end.terms);
    }

    pub(super) fn answer(&mut self, caller: usize) {
        let caller = &mut self.callers[caller];
        caller.answers += 1;
        assert!(
            caller.answers == 1 && !caller.has_given_up,
            "one answer each"
        );
    }

    /// Decides what a caller does with its permit.
    fn hold(&mut self, n: usize, hold: Hold, terms: Terms) {
        if terms.reserve.is_some() {
            self.nodes[n].reserved.insert(hold);
        }
        if self.rng.chance(30) {
            // The caller gave up at this very moment.
            return self.at_node(self.now, n, NodeEvent::Release(hold));
        }
        let longest = self.longest_lease;
        let time = match self.rng.below(20) {
            _ if self.rng.chance(self.faults.long_holds) => self.rng.below(2 * longest),
            0 if !self.calm && !self.brief => self.rng.below(2 * longest),
            1..5 => 0,
            _ if self.brief => self.rng.below(4 * MILLI),
            _ => self.rng.below(60 * MILLI),
        };
        if terms.reserve.is_some() {
            let claims = self.now + self.rng.below(120 * MILLI);
            let what = match self.rng.below(3) {
                0 => NodeEvent::Rearm(hold),
                _ => NodeEvent::Claim(hold),
            };
            self.at_node(claims, n, what);
        }
        let now = self.instant();
        if self.rng.chance(100) && self.nodes[n].state.permits.share(hold, now) {
            *self.nodes[n].guards.entry(hold).or_default() += 1;
            let until = self.now + self.rng.below(100 * MILLI);
            self.at_node(until, n, NodeEvent::Release(hold));
        }
        self.at_node(self.now + time, n, NodeEvent::Release(hold));
    }

    pub(super) fn release(&mut self, n: usize, hold: Hold) {
        note!(self.now, "{n}: a guard of {hold:?} is dropped");
        let now = self.instant();
        let (answer, answered) = oneshot::channel();
        let answer = self.rng.chance(500).then_some(answer);
        let node = &mut self.nodes[n];
        if answer.is_some() {
            node.releases.push((self.now, answered));
        }
        let guards = node.guards.get_mut(&hold).expect("a guard");
        *guards -= 1;
        if *guards == 0 {
            node.guards.remove(&hold);
        }
        let lingers = answer.is_none() && node.state.linger(hold, now).is_some();
        let effects = match lingers {
            true => Effects::default(),
            false => node.state.drop_guard(hold, now, answer),
        };
        if !node.state.permits.is_held(hold.ticket) {
            node.released.insert(hold.ticket);
        }
        self.deliver(n, effects);
    }
}

pub(super) fn down() -> Error {
    Error::new(ErrorKind::Unavailable, "down")
}
