//! The network: calls, replies and pushes are lost, late, or duplicated.

use super::backend::Pushes;
use super::faults::Faults;
use super::node::Flight;
use super::{Event, MILLI, NodeEvent, World};
use crate::backend::{Call, Events};
use crate::name::Node;
use std::sync::Arc;

impl World {
    /// Sends a node's call.
    pub(super) fn send(&mut self, n: usize, call: Call) {
        let node = &self.nodes[n];
        let (lease, number) = (node.lease.as_micros() as u64, call.number);
        let timeout = (500 * MILLI).min(lease / 6);
        let (node, events) = (node.id.clone(), Arc::clone(&node.events));
        let flight = Flight {
            call: call.clone(),
            sent: self.instant(),
        };
        self.nodes[n].call = Some(flight);
        self.at_node(self.now + timeout, n, NodeEvent::GiveUp(number));

        let Faults {
            request_lost,
            late,
            slow,
            twice,
            ..
        } = self.faults;
        let delay = self.rng.below(4 * MILLI);
        let delay = if self.rng.chance(late) {
            self.coverage.late += 1;
            timeout + self.rng.below(2 * lease)
        } else if self.rng.chance(slow) {
            self.rng.below(timeout * 3 / 2)
        } else {
            delay
        };
        if self.rng.chance(twice) {
            let later = self.now + self.rng.below(lease);
            let (node, events, call) = (node.clone(), Arc::clone(&events), call.clone());
            self.at(later, Event::Execute { node, events, call });
        }
        if !self.rng.chance(request_lost) {
            self.at(self.now + delay, Event::Execute { node, events, call });
        }
    }

    /// A call arrives at the backend.
    pub(super) fn execute(&mut self, node: Node, events: Arc<Events>, call: Call) {
        let (reply, pushes) = self.backend.exchange(&node, &events, &call, self.now);
        self.push(pushes);
        let here = self.nodes.iter().position(|other| other.id == node);
        if let Some(n) = here
            && !self.rng.chance(self.faults.reply_lost)
        {
            let slow = self.rng.chance(self.faults.slow);
            let delay = self.rng.below(if slow { 300 * MILLI } else { 4 * MILLI });
            self.at_node(self.now + delay, n, NodeEvent::Reply(call.number, reply));
        }
    }

    /// Pushes grants to their nodes.
    pub(super) fn push(&mut self, pushes: Pushes) {
        for (to, grant) in pushes {
            let n = self
                .nodes
                .iter()
                .position(|node| Arc::ptr_eq(&node.events, &to));
            let Some(n) = n else { continue };
            let Faults {
                push_lost,
                push_late,
                push_twice,
                ..
            } = self.faults;
            for _ in 0..1 + u64::from(self.rng.chance(push_twice)) {
                if self.rng.chance(push_lost) {
                    continue;
                }
                let most = match self.rng.chance(push_late) {
                    true if self.rng.chance(300) => 2 * self.longest_lease,
                    true => 400 * MILLI,
                    false => 4 * MILLI,
                };
                let time = self.now + self.rng.below(most);
                self.at_node(time, n, NodeEvent::Push(grant));
            }
        }
    }
}
