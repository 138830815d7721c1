//! The queues of all names.

use super::queue::{Push, TicketQueue};
use crate::backend::{Call, Events, Inspection, Reply};
use crate::clock;
use crate::name::{Node, Queue};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

/// How many idle names a call removes at most.
const REMOVALS_PER_CALL: usize = 32;

/// The store that the clones of one [`Memory`](super::Memory) share, and its clock.
pub(super) struct SharedStore {
    started: Instant,
    /// The wall clock at that time, since 1970: tokens increase from one run to the next.
    epoch: Duration,
    /// Never locked while an event is sent, since its receiver may call the session.
    store: Mutex<Store>,
}

#[derive(Default)]
pub(super) struct Store {
    queues: HashMap<Queue, TicketQueue>,
    /// When each queue is checked for removal. The number distinguishes checks of the same time.
    checks: BTreeMap<(Duration, u64), Queue>,
    last_check: u64,
    /// The highest token of the queues that were removed.
    last_token: u64,
}

// === impl SharedStore ===

impl SharedStore {
    /// Returns the time since 1970. It never decreases, since only its start comes from the wall clock.
    pub(super) fn now(&self) -> Duration {
        let elapsed = clock::now().saturating_duration_since(self.started);
        self.epoch.saturating_add(elapsed)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for SharedStore {
    fn default() -> Self {
        let wall_clock = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Self {
            started: clock::now(),
            epoch: wall_clock.unwrap_or_default(),
            store: Mutex::default(),
        }
    }
}

// === impl Store ===

impl Store {
    pub(super) fn exchange(
        &mut self,
        node: &Node,
        events: &Arc<Events>,
        call: &Call,
        now: Duration,
    ) -> (Reply, Vec<Push>) {
        if !self.queues.contains_key(&call.queue) {
            self.check_at(now.saturating_add(call.lease), call.queue.clone());
        }
        let queue = (self.queues.entry(call.queue.clone()))
            .or_insert_with(|| TicketQueue::new(now, self.last_token));
        let answer = queue.exchange(node, events, call, now);
        self.remove_idle(now);
        answer
    }

    pub(super) fn inspect(&self, queue: &Queue, now: Duration) -> Inspection {
        let queue = self.queues.get(queue);
        queue.map(|queue| queue.inspect(now)).unwrap_or_default()
    }

    pub(super) fn evict(
        &mut self,
        queue: &Queue,
        ticket: &str,
        now: Duration,
    ) -> (bool, Vec<Push>) {
        let queue = self.queues.get_mut(queue);
        (queue.map(|queue| queue.evict(ticket, now))).unwrap_or_default()
    }

    /// Checks a few of the queues that are due. Each call does, so that idle names need no task.
    fn remove_idle(&mut self, now: Duration) {
        for _ in 0..REMOVALS_PER_CALL {
            let Some(check) = self.checks.first_entry() else {
                break;
            };
            if check.key().0 > now {
                break;
            }
            let name = check.remove();
            match (self.queues.get_mut(&name)).and_then(|queue| queue.tidy(now)) {
                Some(next) => self.check_at(next, name),
                None => self.remove(&name),
            }
        }
    }

    fn check_at(&mut self, at: Duration, queue: Queue) {
        self.last_check += 1;
        self.checks.insert((at, self.last_check), queue);
    }

    fn remove(&mut self, queue: &Queue) {
        if let Some(queue) = self.queues.remove(queue) {
            self.last_token = self.last_token.max(queue.last_token());
        }
    }

    #[cfg(test)]
    pub(super) fn clear(&mut self) {
        for queue in std::mem::take(&mut self.checks).into_values() {
            self.remove(&queue);
        }
    }

    #[cfg(test)]
    pub(super) fn names(&self) -> usize {
        self.queues.len()
    }
}
