//! What happens from outside: callers arrive and give up, nodes and the backend have faults, operators evict.

use super::callers::down;
use super::node::Flight;
use super::trace::note;
use super::{MILLI, NodeEvent, World};

impl World {
    /// Lets some of it happen now.
    pub(super) fn act(&mut self) {
        let faults = self.faults;
        for _ in 0..self.rng.below(4) {
            self.add_caller();
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
        let node = &mut self.nodes[n];
        if !node.alive || node.paused {
            return;
        }
        if self.rng.chance(faults.limits) {
            let most = [4, 64][usize::from(self.brief && self.rng.chance(500))];
            let limit = 1 + self.rng.below(most) as u32;
            note!(self.now, "{n}: its limit is {limit} now");
            self.max_limit = self.max_limit.max(limit as usize);
            self.nodes[n].limit = limit;
            self.nodes[n].state.set_limit(limit);
            self.drive(n);
        }
        if self.rng.chance(faults.resync) {
            note!(self.now, "{n}: its push channel is re-established");
            self.nodes[n].state.resync();
            self.drive(n);
        }
        if self.rng.chance(faults.driver_dropped) && self.nodes[n].call.is_some() {
            note!(
                self.now,
                "{n}: the driver is dropped with its runtime, and replaced"
            );
            if let Some(Flight { call, .. }) = self.nodes[n].call.take() {
                self.nodes[n]
                    .unanswered
                    .extend(call.acquire.iter().chain(&call.try_acquire));
            }
            self.drive(n);
        }
        if self.rng.chance(faults.close) {
            note!(self.now, "{n}: closes");
            let effects = self.nodes[n].state.close(&down());
            self.deliver(n, effects);
            self.drive(n);
        }
    }

    fn pause(&mut self, n: usize) {
        let lease = self.nodes[n].lease.as_micros() as u64;
        let node = &mut self.nodes[n];
        if !node.alive || node.paused {
            return;
        }
        node.paused = true;
        let time = self.rng.below(2 * lease);
        note!(self.now, "{n}: is paused for {} ms", time / MILLI);
        self.at_node(self.now + time, n, NodeEvent::Resume);
    }

    /// A process dies, and another one starts.
    fn kill(&mut self, n: usize) {
        note!(self.now, "{n}: dies");
        let (limit, lease) = (self.nodes[n].limit, self.nodes[n].lease);
        self.nodes[n] = self.node(limit, lease);
    }

    fn flush(&mut self) {
        note!(self.now, "   the backend is flushed");
        self.backend.flush(self.now);
        self.excused_until = self.now + 4 * self.longest_lease;
    }

    fn evict(&mut self) {
        let held: Vec<_> = (self.backend.tickets.held())
            .map(|(node, ticket, _, _)| (node.clone(), ticket))
            .collect();
        if held.is_empty() {
            return;
        }
        let (node, ticket) = &held[self.rng.below(held.len() as u64) as usize];
        note!(
            self.now,
            "   {ticket} of {} is evicted",
            self.node_name(node)
        );
        let pushes = self.backend.evict(&node.ticket(*ticket), self.now);
        self.evicted.insert((node.as_str().to_owned(), *ticket));
        self.push(pushes);
    }
}
