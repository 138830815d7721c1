//! Who waits here, and when to ask again: no server keeps a queue.

use crate::name::Queue;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;
use tokio::time::Instant;

/// The pause after the first try is random and no longer than this; it doubles until it has the length of the other.
const FIRST_PAUSE: Duration = Duration::from_millis(12);
const LAST_PAUSE: Duration = Duration::from_millis(200);
/// As few names as these are never looked through for old ones.
const FEW: usize = 64;

/// The tickets of this node that wait, by name.
#[derive(Debug, Default)]
pub(super) struct Waits {
    by_queue: HashMap<Queue, Wait>,
    /// So many names, and those whose tickets are all too old are thrown out.
    tidy_at: usize,
}

#[derive(Debug, Default)]
struct Wait {
    /// When the gate was last heard about each, and for how long that counts.
    tickets: BTreeMap<u64, (Instant, Duration)>,
    tries: u32,
}

// === impl Waits ===

impl Waits {
    /// These tickets still wait after one more try.
    pub(super) fn wait(
        &mut self,
        queue: &Queue,
        tickets: impl Iterator<Item = u64>,
        lease: Duration,
        now: Instant,
    ) {
        if self.by_queue.len() >= self.tidy_at.max(FEW) {
            self.by_queue.retain(|_, wait| !wait.is_over(now));
            self.tidy_at = self.by_queue.len() * 2;
        }
        let mut wait = self.by_queue.remove(queue).unwrap_or_default();
        let before = wait.tickets.len();
        for ticket in tickets {
            wait.tickets.insert(ticket, (now, lease));
        }
        // Who has just come has not tried yet.
        wait.tries = match before {
            0 => 0,
            _ => wait.tries.saturating_add(1),
        };
        if !wait.tickets.is_empty() {
            self.by_queue.insert(queue.clone(), wait);
        }
    }

    /// These tickets wait no more.
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

    /// Something has changed: the next try may be the one.
    pub(super) fn hurry(&mut self, queue: &Queue) {
        if let Some(wait) = self.by_queue.get_mut(queue) {
            wait.tries = 0;
        }
    }

    /// Who waits here, and what is left of their leases.
    pub(super) fn waiting(&self, queue: &Queue, now: Instant) -> Vec<(u64, Duration)> {
        let tickets = self.by_queue.get(queue).map(|wait| &wait.tickets);
        (tickets.into_iter().flatten())
            .map(|(ticket, (since, lease))| (*ticket, (*since + *lease) - now))
            .filter(|(_, left)| !left.is_zero())
            .collect()
    }

    /// When to ask again: at random, so that those who got in each other's way do not meet again. `took` is what the
    /// last try took.
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

// === impl Wait ===

impl Wait {
    fn is_over(&self, now: Instant) -> bool {
        (self.tickets.values()).all(|(since, lease)| *since + *lease <= now)
    }
}
