//! The queued tickets of this process, and when to call again: no server keeps a queue.

use crate::name::Queue;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;
use tokio::time::Instant;

/// The pause after the first try is random and at most this long; it doubles up to the last one.
const FIRST_PAUSE: Duration = Duration::from_millis(12);
const LAST_PAUSE: Duration = Duration::from_millis(200);
/// With fewer names expired ones are not removed.
const FEW: usize = 64;

/// The queued tickets of this node, by name.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    by_queue: HashMap<Queue, Entry>,
    /// With so many names, those whose tickets have all expired are removed.
    purge_at: usize,
}

#[derive(Debug, Default)]
struct Entry {
    /// When each ticket was last named by a call, and its lease.
    tickets: BTreeMap<u64, (Instant, Duration)>,
    tries: u32,
}

// === impl Waiters ===

impl Waiters {
    /// Adds tickets that are still queued after one more try.
    pub(super) fn wait(
        &mut self,
        queue: &Queue,
        tickets: impl Iterator<Item = u64>,
        lease: Duration,
        now: Instant,
    ) {
        if self.by_queue.len() >= self.purge_at.max(FEW) {
            self.by_queue.retain(|_, wait| !wait.is_over(now));
            self.purge_at = self.by_queue.len() * 2;
        }
        let mut wait = self.by_queue.remove(queue).unwrap_or_default();
        let before = wait.tickets.len();
        for ticket in tickets {
            wait.tickets.insert(ticket, (now, lease));
        }
        // A new waiter has not tried before.
        wait.tries = match before {
            0 => 0,
            _ => wait.tries.saturating_add(1),
        };
        if !wait.tickets.is_empty() {
            self.by_queue.insert(queue.clone(), wait);
        }
    }

    /// Removes tickets.
    pub(super) fn done(&mut self, queue: &Queue, tickets: impl Iterator<Item = u64>, now: Instant) {
        if let Some(wait) = self.by_queue.get_mut(queue) {
            for ticket in tickets {
                wait.tickets.remove(&ticket);
            }
            if wait.is_over(now) {
                self.by_queue.remove(queue);
            }
        }
    }

    /// Restarts with short pauses, after a release.
    pub(super) fn retry_soon(&mut self, queue: &Queue) {
        if let Some(wait) = self.by_queue.get_mut(queue) {
            wait.tries = 0;
        }
    }

    /// Returns the queued tickets, and what is left of their leases.
    pub(super) fn queued(&self, queue: &Queue, now: Instant) -> Vec<(u64, Duration)> {
        let tickets = self.by_queue.get(queue).map(|wait| &wait.tickets);
        (tickets.into_iter().flatten())
            .map(|(ticket, (since, lease))| (*ticket, (*since + *lease) - now))
            .filter(|(_, left)| !left.is_zero())
            .collect()
    }

    /// Returns when to call again: at random, so that nodes that blocked each other do not collide again. `took` is the
    /// duration of the last try.
    pub(super) fn pause(
        &self,
        queue: &Queue,
        lease: Duration,
        took: Duration,
        random: f64,
    ) -> Option<Duration> {
        let wait = self.by_queue.get(queue)?;
        let longest = LAST_PAUSE.min(lease / 4);
        let pause = (FIRST_PAUSE * (1 << wait.tries.min(5)))
            .max(took * 4)
            .min(longest);
        Some(pause.mul_f64(0.1 + 0.9 * random))
    }
}

// === impl Entry ===

impl Entry {
    fn is_over(&self, now: Instant) -> bool {
        (self.tickets.values()).all(|(since, lease)| *since + *lease <= now)
    }
}
