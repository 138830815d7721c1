//! Permits within one process.

mod lease_clock;
pub(crate) mod room;

use self::room::{Push, Room};
use super::{
    Backend, Batching, Call, Capabilities, Event, Events, Inspection, Open, Replies, Reply,
    Session, together,
};
use crate::clock;
use crate::error::Error;
use crate::name::{Node, Queue};
use futures_util::future::BoxFuture;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

/// How many idle names a call looks after, beside its own.
const TIDIED_PER_CALL: usize = 32;

/// Permits in this process: for tests, for one process alone, and to start with.
///
/// It keeps every rule that the other backends keep, leases included, with nothing to connect to. It follows tokio's
/// clock, so a test that pauses time moves it. Clones share their permits: coordinators that are made from clones
/// stand in one queue.
///
/// ```
/// use tower_permit::{Coordinator, Memory};
///
/// let memory = Memory::new();
/// let here = Coordinator::new(memory.clone());
/// let there = Coordinator::new(memory); // as if in another process
/// ```
#[derive(Clone, Default)]
pub struct Memory {
    shared: Arc<Shared>,
}

struct Shared {
    started: Instant,
    /// When that was by the wall clock, since 1970: tokens go on from one run to the next.
    epoch: Duration,
    /// Never locked while an event is sent: its receiver may call right back.
    store: Mutex<Store>,
}

#[derive(Default)]
struct Store {
    rooms: HashMap<Queue, Room>,
    /// When to see whether a room can go: one entry for each. The number makes them differ.
    checks: BTreeMap<(Duration, u64), Queue>,
    last_check: u64,
    /// The highest token of the rooms that went.
    last_token: u64,
}

struct MemorySession {
    shared: Arc<Shared>,
    node: Node,
    events: Arc<Events>,
}

// === impl Memory ===

impl Memory {
    /// A new store, without any permit.
    pub fn new() -> Self {
        Self::default()
    }

    /// For tests: as if the store had been flushed.
    #[cfg(test)]
    pub(super) fn lose_everything(&self) {
        let mut store = self.shared.store();
        for queue in std::mem::take(&mut store.checks).into_values() {
            store.forget(&queue);
        }
    }

    /// For tests: how many names are stored.
    #[cfg(test)]
    pub(crate) fn names(&self) -> usize {
        self.shared.store().rooms.len()
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").finish_non_exhaustive()
    }
}

impl Backend for Memory {}

impl Open for Memory {
    fn open(self, node: Node, events: Events) -> Arc<dyn Session> {
        Arc::new(MemorySession {
            shared: self.shared,
            node,
            events: Arc::new(events),
        })
    }
}

// === impl Shared ===

impl Shared {
    /// Now, since 1970. Only the start is taken from the wall clock, so it never goes back.
    fn now(&self) -> Duration {
        let elapsed = clock::now().saturating_duration_since(self.started);
        self.epoch.saturating_add(elapsed)
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for Shared {
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
    fn exchange(
        &mut self,
        node: &Node,
        events: &Arc<Events>,
        call: &Call,
        now: Duration,
    ) -> (Reply, Vec<Push>) {
        if !self.rooms.contains_key(&call.queue) {
            self.check_at(now.saturating_add(call.lease), call.queue.clone());
        }
        let room = (self.rooms.entry(call.queue.clone()))
            .or_insert_with(|| Room::new(now, self.last_token));
        let answer = room.exchange(node, events, call, now);
        self.tidy(now);
        answer
    }

    /// Looks after a few of the rooms whose time has come, so that idle names go without a task of their own.
    fn tidy(&mut self, now: Duration) {
        for _ in 0..TIDIED_PER_CALL {
            let Some(check) = self.checks.first_entry() else {
                break;
            };
            if check.key().0 > now {
                break;
            }
            let queue = check.remove();
            match self.rooms.get_mut(&queue).and_then(|room| room.tidy(now)) {
                Some(next) => self.check_at(next, queue),
                None => self.forget(&queue),
            }
        }
    }

    fn check_at(&mut self, at: Duration, queue: Queue) {
        self.last_check += 1;
        self.checks.insert((at, self.last_check), queue);
    }

    fn forget(&mut self, queue: &Queue) {
        if let Some(room) = self.rooms.remove(queue) {
            self.last_token = self.last_token.max(room.last_token());
        }
    }
}

// === impl MemorySession ===

impl MemorySession {
    /// Tells the granted. The store is not locked here.
    fn send(&self, queue: &Queue, pushes: Vec<Push>) {
        for Push { to, grant } in pushes {
            let queue = queue.clone();
            to.send(Event::Granted { queue, grant });
        }
    }
}

impl Session for MemorySession {
    fn exchange(&self, batch: Vec<Call>) -> Replies<'_> {
        together(async move {
            let now = self.shared.now();
            let execute = |call: Call| {
                let (reply, pushes) =
                    (self.shared.store()).exchange(&self.node, &self.events, &call, now);
                self.send(&call.queue, pushes);
                Ok(reply)
            };
            batch.into_iter().map(execute).collect()
        })
    }

    fn batching(&self) -> Batching {
        Batching {
            calls: 128,
            tickets: 1024,
            in_flight: 1,
        }
    }

    fn inspect(&self, queue: Queue) -> BoxFuture<'_, Result<Inspection, Error>> {
        Box::pin(async move {
            let now = self.shared.now();
            let store = self.shared.store();
            let room = store.rooms.get(&queue);
            Ok(room.map(|room| room.inspect(now)).unwrap_or_default())
        })
    }

    fn evict(&self, queue: Queue, ticket: String) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(async move {
            let now = self.shared.now();
            let evicted =
                (self.shared.store().rooms.get_mut(&queue)).map(|room| room.evict(&ticket, now));
            let Some((found, pushes)) = evicted else {
                return Ok(false);
            };
            self.send(&queue, pushes);
            Ok(found)
        })
    }

    fn check(&self, _lease: Duration) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async { Ok(()) })
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            fifo: true,
            token: true,
            max_limit: u32::MAX,
            min_lease: Duration::from_secs(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{Outcome, TicketState, exchange_one};
    use futures_util::FutureExt;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn call(number: u64, release: &[u64], acquire: &[u64]) -> Call {
        Call {
            queue: Queue::limit(b"name").unwrap(),
            number,
            limit: 1,
            lease: Duration::from_secs(10),
            release: release.to_vec(),
            renew: Vec::new(),
            acquire: acquire.to_vec(),
            try_acquire: Vec::new(),
        }
    }

    #[test]
    fn a_sink_may_call_right_back() {
        let memory = Memory::new();
        let session = Arc::new(OnceLock::<Arc<dyn Session>>::new());
        let heard = Arc::new(AtomicU64::new(0));
        let back = (session.clone(), heard.clone());
        let sink = Events::new(move |_| {
            let session = back.0.get().unwrap();
            let reply = exchange_one(&**session, call(2, &[], &[7])).now_or_never();
            assert!(matches!(reply, Some(Ok(Reply::Done(_)))));
            back.1.fetch_add(1, Ordering::Relaxed);
        });
        let waiter = memory.clone().open(Node::of_this_process(), sink);
        assert!(session.set(waiter.clone()).is_ok());

        let holder = memory.open(Node::of_this_process(), Events::new(|_| ()));
        let say = |session: &Arc<dyn Session>, call| exchange_one(&**session, call).now_or_never();
        say(&holder, call(1, &[], &[1]));
        say(&waiter, call(1, &[], &[7]));
        say(&holder, call(2, &[1], &[]));
        assert_eq!(heard.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn tokens_go_on_from_one_run_to_the_next() {
        let token = || {
            let session = Memory::new().open(Node::of_this_process(), Events::new(|_| ()));
            let reply = exchange_one(&*session, call(1, &[], &[1])).now_or_never();
            let Some(Ok(Reply::Done(outcome))) = reply else {
                panic!("no answer: {reply:?}");
            };
            match outcome.acquired[..] {
                [TicketState::Held { token }] => token,
                ref other => panic!("it was not let in: {other:?}"),
            }
        };
        let before = token();
        std::thread::sleep(Duration::from_millis(2));
        assert!(token() > before);
    }

    #[test]
    fn a_call_that_is_never_polled_is_never_made() {
        let memory = Memory::new();
        let session = memory
            .clone()
            .open(Node::of_this_process(), Events::new(|_| ()));
        drop(exchange_one(&*session, call(1, &[], &[1])));
        assert_eq!(memory.names(), 0);
    }

    #[test]
    fn a_session_that_went_is_told_nothing_and_keeps_nothing_alive() {
        let memory = Memory::new();
        let held = Arc::new(());
        let sink = held.clone();
        let gone = (memory.clone()).open(
            Node::of_this_process(),
            Events::new(move |_| {
                let _ = &sink;
            }),
        );
        let other = memory.open(Node::of_this_process(), Events::new(|_| ()));
        let say = |session: &Arc<dyn Session>, call| exchange_one(&**session, call).now_or_never();
        say(&other, call(1, &[], &[1]));
        say(&gone, call(1, &[], &[1]));
        drop(gone);
        assert_eq!(Arc::strong_count(&held), 1);
        let granted = say(&other, call(2, &[1], &[]));
        let Some(Ok(Reply::Done(Outcome { in_use: 1, .. }))) = granted else {
            panic!("its ticket was not granted: {granted:?}");
        };
    }
}
