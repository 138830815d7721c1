//! What users and fate do: somebody comes or goes, and now and then something befalls a node or the backend.

use super::callers::down;
use super::peer::Flight;
use super::trace::note;
use super::{Happening, MILLI, World};

impl World {
    /// What happens at one moment.
    pub(super) fn users(&mut self) {
        let faults = self.faults;
        for _ in 0..self.rng.below(4) {
            self.come();
        }
        if self.rng.chance(200) {
            self.give_up();
        }
        let n = self.rng.below(self.nodes.len() as u64) as usize;
        if self.rng.chance(faults.pause) {
            self.pause(n);
        }
        if self.rng.chance(faults.kill) {
            self.kill(n);
        }
        if self.rng.chance(faults.stall) {
            self.backend.stalled_until = self.now + self.rng.below(2 * self.longest_lease);
            note!(
                self.now,
                "   the backend stalls for {} ms",
                (self.backend.stalled_until - self.now) / MILLI
            );
        }
        if self.rng.chance(faults.flush) {
            self.flush();
        }
        if self.rng.chance(faults.evict) {
            self.evict();
        }
        let peer = &mut self.nodes[n];
        if !peer.alive || peer.paused {
            return;
        }
        if self.rng.chance(faults.limits) {
            let most = [4, 64][usize::from(self.brief && self.rng.chance(500))];
            let limit = 1 + self.rng.below(most) as u32;
            note!(self.now, "{n}: has the limit {limit} now");
            self.max_limit = self.max_limit.max(limit as usize);
            self.nodes[n].limit = limit;
            self.nodes[n].state.set_limit(limit);
            self.pump(n);
        }
        if self.rng.chance(faults.resync) {
            note!(self.now, "{n}: listens anew");
            self.nodes[n].state.resync();
            self.pump(n);
        }
        if self.rng.chance(faults.pump_gone) && self.nodes[n].call.is_some() {
            note!(
                self.now,
                "{n}: the pump goes with its runtime, and another comes"
            );
            if let Some(Flight { call, .. }) = self.nodes[n].call.take() {
                self.nodes[n]
                    .on_failure
                    .extend(call.acquire.iter().chain(&call.try_acquire));
            }
            self.pump(n);
        }
        if self.rng.chance(faults.close) {
            note!(self.now, "{n}: takes everything back");
            let effects = self.nodes[n].state.close(&down());
            self.deliver(n, effects);
            self.pump(n);
        }
    }

    fn pause(&mut self, n: usize) {
        let lease = self.nodes[n].lease.as_micros() as u64;
        let peer = &mut self.nodes[n];
        if !peer.alive || peer.paused {
            return;
        }
        peer.paused = true;
        let time = self.rng.below(2 * lease);
        note!(self.now, "{n}: is paused for {} ms", time / MILLI);
        self.at_node(self.now + time, n, Happening::Resume);
    }

    /// A process dies, and another takes its place.
    fn kill(&mut self, n: usize) {
        note!(self.now, "{n}: dies");
        let (limit, lease) = (self.nodes[n].limit, self.nodes[n].lease);
        self.nodes[n] = self.peer(limit, lease);
    }

    fn flush(&mut self) {
        note!(self.now, "   the backend forgets everything");
        self.backend.flush(self.now);
        self.excused_until = self.now + 4 * self.longest_lease;
    }

    fn evict(&mut self) {
        let held: Vec<_> = (self.backend.room.held())
            .map(|(node, ticket, _, _)| (node.clone(), ticket))
            .collect();
        if held.is_empty() {
            return;
        }
        let (node, ticket) = &held[self.rng.below(held.len() as u64) as usize];
        note!(self.now, "   {ticket} of {} is thrown out", self.who(node));
        let pushes = self.backend.evict(&node.ticket(*ticket), self.now);
        self.evicted.insert((node.as_str().to_owned(), *ticket));
        self.push(pushes);
    }
}
