//! Those who come, wait or give up, get in and hold for a while.

use super::trace::note;
use super::{Happening, MILLI, World};
use crate::client::state::{Effects, HasTerms};
use crate::client::state::{Hold, Terms};
use crate::error::{Error, ErrorKind};
use std::time::Duration;
use tokio::sync::oneshot;

#[derive(Clone, Copy, Debug)]
pub(super) struct Caller {
    pub(super) answers: u32,
    pub(super) gave_up: bool,
}

/// A caller's end.
#[derive(Debug)]
pub(super) struct Ends {
    pub(super) caller: usize,
    pub(super) terms: Terms,
}

impl World {
    pub(super) fn come(&mut self) {
        let n = self.rng.below(self.nodes.len() as u64) as usize;
        let now = self.instant();
        let peer = &mut self.nodes[n];
        if !peer.alive || peer.paused {
            return;
        }
        if peer.outages.outage(now).is_some() {
            peer.state.probe = true;
            return self.pump(n);
        }
        if peer.state.waiters.len() > 15 {
            return;
        }
        let tries = self.rng.chance(150);
        if tries && !peer.state.waiters.is_empty() {
            return;
        }
        let terms = Terms {
            reserve: (self.rng.chance(150))
                .then(|| Duration::from_micros(self.rng.below(200 * MILLI))),
            max_hold: (self.rng.chance(100))
                .then(|| Duration::from_micros(self.rng.below(1500 * MILLI))),
        };
        let caller = self.callers.len();
        self.callers.push(Caller {
            answers: 0,
            gave_up: false,
        });
        note!(
            self.now,
            "{n}: caller {caller} comes, tries: {tries}, {terms:?}"
        );
        let peer = &mut self.nodes[n];
        if let Some(hold) = peer.state.acquire_lingering(terms, now) {
            self.seen.lingered += 1;
            self.check_limit_here(n);
            self.acquire(n, Ends { caller, terms }, hold);
            return self.pump(n);
        }
        peer.last_number += 1;
        let ticket = peer.last_number;
        if tries {
            peer.tries.insert(ticket, caller);
            peer.state.join_try(ticket, now, Ends { caller, terms });
        } else {
            peer.line.insert(ticket, caller);
            peer.state.join(ticket, now, Ends { caller, terms });
        }
        self.pump(n);
    }

    pub(super) fn give_up(&mut self) {
        let n = self.rng.below(self.nodes.len() as u64) as usize;
        let peer = &mut self.nodes[n];
        if !peer.alive || peer.paused {
            return;
        }
        let all: Vec<_> = peer
            .line
            .iter()
            .chain(&peer.tries)
            .map(|(w, c)| (*w, *c))
            .collect();
        if all.is_empty() {
            return;
        }
        // The first ones in the line more often: there it is most delicate.
        let which = self
            .rng
            .below(all.len() as u64)
            .min(self.rng.below(all.len() as u64));
        let (waiter, caller) = all[which as usize];
        note!(self.now, "{n}: caller {caller} gives up");
        let ends = self.nodes[n].state.give_up(waiter).expect("it waits");
        assert_eq!(ends.caller, caller);
        self.seen.cancelled += 1;
        self.callers[caller].gave_up = true;
        self.nodes[n].line.remove(&waiter);
        self.nodes[n].tries.remove(&waiter);
        self.pump(n);
    }

    /// A caller is in.
    pub(super) fn acquire(&mut self, n: usize, ends: Ends, hold: Hold) {
        note!(self.now, "{n}: caller {} holds {hold:?}", ends.caller);
        self.seen.granted += 1;
        let peer = &mut self.nodes[n];
        let ticket = hold.ticket;
        assert!(!peer.released.contains(&ticket), "{ticket} was released");
        let shared = peer.guards.keys().any(|other| other.ticket == ticket);
        assert!(!shared, "{ticket} has a guard already");
        peer.guards.insert(hold, 1);
        if self.strict {
            let token = peer.state.permits.token(hold).expect("it is held");
            let id = (peer.node.as_str().to_owned(), ticket);
            let excused = self.now < self.excused_until || self.evicted.contains(&id);
            assert!(token > self.highest || excused, "tokens rise");
            self.highest = self.highest.max(token);
        }
        self.answer(ends.caller);
        self.hold(n, hold, ends.terms);
    }

    pub(super) fn answer(&mut self, caller: usize) {
        let caller = &mut self.callers[caller];
        caller.answers += 1;
        assert!(caller.answers == 1 && !caller.gave_up, "one answer each");
    }

    /// Somebody got in, and will do one thing or another.
    fn hold(&mut self, n: usize, hold: Hold, terms: Terms) {
        if terms.reserve.is_some() {
            self.nodes[n].reserved.insert(hold);
        }
        if self.rng.chance(30) {
            // The caller had gone at this very moment.
            return self.at_node(self.now, n, Happening::Release(hold));
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
                0 => Happening::Rearm(hold),
                _ => Happening::Claim(hold),
            };
            self.at_node(claims, n, what);
        }
        let now = self.instant();
        if self.rng.chance(100) && self.nodes[n].state.permits.share(hold, now) {
            *self.nodes[n].guards.entry(hold).or_default() += 1;
            let until = self.now + self.rng.below(100 * MILLI);
            self.at_node(until, n, Happening::Release(hold));
        }
        self.at_node(self.now + time, n, Happening::Release(hold));
    }

    pub(super) fn release(&mut self, n: usize, hold: Hold) {
        note!(self.now, "{n}: a guard of {hold:?} is dropped");
        let now = self.instant();
        let (answer, answered) = oneshot::channel();
        let answer = self.rng.chance(500).then_some(answer);
        let peer = &mut self.nodes[n];
        if answer.is_some() {
            peer.releases.push((self.now, answered));
        }
        let guards = peer.guards.get_mut(&hold).expect("a guard");
        *guards -= 1;
        if *guards == 0 {
            peer.guards.remove(&hold);
        }
        let lingers = answer.is_none() && peer.state.linger(hold, now).is_some();
        let effects = match lingers {
            true => Effects::default(),
            false => peer.state.drop_guard(hold, now, answer),
        };
        if !peer.state.permits.is_held(hold.ticket) {
            peer.released.insert(hold.ticket);
        }
        self.deliver(n, effects);
    }
}

impl HasTerms for Ends {
    fn terms(&self) -> Terms {
        self.terms
    }
}

pub(super) fn down() -> Error {
    Error::new(ErrorKind::Unavailable, "down")
}
