//! This process's side of each name: the local waiters, the permits that are held, and what to tell the backend next.
//!
//! [`Gates`] knows the [`Gate`] of each name: a coordinator's registry, and what all its names share.
//!
//! Callers hold the receiving end of a channel ([`Acquire`]) or a guard ([`Permit`](crate::Permit)); both may be
//! dropped at any time. All talk with the backend is the [`pump`]'s, which decides nothing itself: [`State`](state::State)
//! does.

mod acquire;
mod hands;
mod health;
mod held;
mod leaves;
mod line;
mod one_name;
mod pulse;
mod pump;
mod state;
mod stats;
mod tickets;
mod tries;
mod waiters;

#[cfg(test)]
#[path = "../../tests/gate/hands.rs"]
mod hands_tests;
#[cfg(test)]
#[path = "../../tests/gate/pump.rs"]
mod pump_tests;
#[cfg(test)]
#[path = "../../tests/gate/simulation/mod.rs"]
mod simulation;

pub(crate) use acquire::{Acquire, Wait};
pub(crate) use held::{Hold, Terms};
pub(crate) use one_name::Gate;
pub use stats::Stats;

use crate::backend::{Event, Events, Inspection, Session, call_time};
use crate::clock::now;
use crate::error::Error;
use crate::name::{Node, Queue};
use hands::Shortcuts;
use health::Health;
use pulse::Pulse;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::{Notify, Semaphore};

const MOST_RENEWALS: usize = 256;
/// All names together try again at most so often, once every pause of a single one would make it more; and each once a
/// second.
const RETRY_EVERY: Duration = Duration::from_micros(100);
const LONGEST_RETRY: Duration = Duration::from_secs(1);
/// How often a shutdown looks what is left.
const LOOK_ROUND: Duration = Duration::from_millis(250);

/// All gates of one coordinator, and what they share.
pub(crate) struct Gates {
    session: Arc<dyn Session>,
    node: Node,
    lease: Duration,
    shortcuts: Shortcuts,
    call_timeout: Duration,
    pulse: Arc<Pulse>,
    /// Numbers for batches and tickets. Never the same twice, so a late call is known by its lower number.
    numbers: AtomicU64,
    health: Health,
    closing: AtomicBool,
    /// So many names are renewed at a time: nobody who wants in waits behind thousands of them.
    renewals: Semaphore,
    /// How many names have a call that was not answered.
    failing: AtomicU32,
    /// Some gate has become quiet: shutdown waits for that.
    quiet: Notify,
    by_queue: Mutex<HashMap<Queue, Weak<Gate>>>,
}

/// How a coordinator is set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) lease: Duration,
    pub(crate) outage_after: Duration,
    /// No permit goes from hand to hand here: each goes back to the queue.
    pub(crate) strict_fifo: bool,
    /// So long a permit that was released stays here for the next one.
    pub(crate) linger: Duration,
}

// === impl Gates ===

impl Gates {
    pub(crate) fn new(
        settings: Settings,
        open: impl FnOnce(Node, Events) -> Arc<dyn Session>,
    ) -> Arc<Self> {
        let Settings {
            lease,
            outage_after,
            strict_fifo,
            linger,
        } = settings;
        let node = Node::of_this_process();
        Arc::new_cyclic(|gates: &Weak<Self>| {
            let gates = gates.clone();
            let events = Events::new(move |event| {
                if let Some(gates) = gates.upgrade() {
                    gates.on_event(event);
                }
            });
            let session = open(node.clone(), events);
            let shortcuts = Shortcuts {
                hand_off: !strict_fifo,
                linger: if strict_fifo { Duration::ZERO } else { linger },
                sees_others: session.promises().fifo,
            };
            let call_timeout = call_time(lease).min(outage_after / 2);
            Self {
                session,
                node,
                lease,
                shortcuts,
                call_timeout,
                pulse: Pulse::new(call_timeout / 2),
                numbers: AtomicU64::new(1),
                health: Health::new(outage_after),
                closing: AtomicBool::new(false),
                renewals: Semaphore::new(MOST_RENEWALS),
                failing: AtomicU32::new(0),
                quiet: Notify::new(),
                by_queue: Mutex::new(HashMap::new()),
            }
        })
    }

    pub(crate) fn session(&self) -> &dyn Session {
        &*self.session
    }

    pub(crate) fn node(&self) -> &Node {
        &self.node
    }

    pub(crate) async fn check(&self) -> Result<(), Error> {
        self.session.check(self.lease).await
    }

    /// Who holds and who waits.
    pub(crate) async fn inspect(&self, queue: Queue) -> Result<Inspection, Error> {
        let mut seen = self.session.inspect(queue.clone()).await?;
        let gate = lock(&self.by_queue).get(&queue).and_then(Weak::upgrade);
        let lingering = gate.map_or_else(Vec::new, |gate| gate.lingering());
        for holder in &mut seen.holders {
            holder.lingering = lingering.contains(&holder.ticket);
        }
        Ok(seen)
    }

    /// Can the backend keep this limit?
    pub(crate) fn check_limit(&self, limit: u32) -> Result<(), Error> {
        let greatest = self.session.promises().greatest_limit;
        if limit == 0 {
            return Err(Error::config(
                "a limit of 0 would let nobody in: it must be at least 1",
            ));
        }
        if limit > greatest {
            let why = self.session.why_no_greater_limit();
            return Err(Error::config(format!(
                "this backend cannot keep a limit of {limit}: {greatest} is the greatest{why}"
            )));
        }
        Ok(())
    }

    /// The gate of a name; `limit` is this process's limit from now on.
    pub(crate) fn gate(self: &Arc<Self>, queue: Queue, limit: u32) -> Arc<Gate> {
        let gate = self.get_or_make(queue, limit);
        gate.set_limit(limit);
        gate
    }

    fn get_or_make(self: &Arc<Self>, queue: Queue, limit: u32) -> Arc<Gate> {
        let mut by_queue = lock(&self.by_queue);
        if let Some(gate) = by_queue.get(&queue).and_then(Weak::upgrade) {
            return gate;
        }
        let gate = Arc::new(Gate::new(Arc::clone(self), queue.clone(), limit));
        by_queue.insert(queue, Arc::downgrade(&gate));
        gate
    }

    /// The gate of a name has gone.
    fn forget(&self, queue: &Queue) {
        let mut by_queue = lock(&self.by_queue);
        // There may be a new one under the same name by now.
        if by_queue.get(queue).is_some_and(|g| g.strong_count() == 0) {
            by_queue.remove(queue);
        }
    }

    /// For tests: how many names this process knows.
    #[cfg(test)]
    pub(crate) fn names(&self) -> usize {
        lock(&self.by_queue).len()
    }

    fn all(&self) -> Vec<Arc<Gate>> {
        let by_queue = lock(&self.by_queue);
        by_queue.values().filter_map(Weak::upgrade).collect()
    }

    fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// A name counts as failing from now on, or does not.
    fn count_failing(&self, failing: bool) {
        match failing {
            true => self.failing.fetch_add(1, Ordering::Relaxed),
            false => self.failing.fetch_sub(1, Ordering::Relaxed),
        };
    }

    /// How long each of those that fail waits at least before it tries again.
    fn crowded(&self) -> Duration {
        let failing = self.failing.load(Ordering::Relaxed);
        RETRY_EVERY.saturating_mul(failing).min(LONGEST_RETRY)
    }

    fn on_event(self: &Arc<Self>, event: Event) {
        match event {
            // For a name that nobody here uses (any more) the limit does not matter: the ticket leaves.
            Event::Granted { queue, grant } => self.get_or_make(queue, 1).pushed(grant),
            Event::Lost => self.all().iter().for_each(|gate| gate.lose_all()),
            Event::Resync => self.all().iter().for_each(|gate| gate.resync()),
        }
    }

    /// Refuses newcomers, waits until everything is given back, at most for `within`; then takes back what is still
    /// out. Ends when every leave was answered, or is a lease old, or nobody answers. Returns how many permits were still out.
    pub(crate) async fn shut_down(&self, within: Duration) -> usize {
        self.closing.store(true, Ordering::Relaxed);
        self.all().iter().for_each(|gate| gate.stop_lingering());
        let _ = tokio::time::timeout(within, self.all_quiet()).await;
        let gates = self.all();
        let cut = gates.iter().map(|gate| gate.close()).sum();
        drop(gates);
        // Not for ever: a leave is said for one lease at most, and to nobody who does not listen.
        tokio::select! {
            () = self.all_quiet() => {}
            () = self.nobody_answers() => {}
        }
        cut
    }

    /// Those who still have something, or something to say.
    fn busy(&self) -> Vec<Arc<Gate>> {
        let mut gates = self.all();
        gates.retain(|gate| !gate.is_quiet());
        gates
    }

    async fn all_quiet(&self) {
        loop {
            let quiet = self.quiet.notified();
            tokio::pin!(quiet);
            quiet.as_mut().enable();
            let busy = self.busy();
            if busy.is_empty() {
                return;
            }
            busy.iter().for_each(|gate| gate.look_after_pump());
            drop(busy);
            let _ = tokio::time::timeout(LOOK_ROUND, quiet).await;
        }
    }

    /// Ends when all who still have something to say have been failing for as long as makes an outage, and nobody has come
    /// to an end meanwhile.
    async fn nobody_answers(&self) {
        let (mut since, mut before) = (now(), usize::MAX);
        loop {
            let busy = self.busy();
            if busy.len() < before || !busy.iter().all(|gate| gate.is_failing()) {
                since = now();
            } else if now().saturating_duration_since(since) >= self.health.outage_after() {
                return;
            }
            before = busy.len();
            drop(busy);
            tokio::time::sleep(LOOK_ROUND.min(self.health.outage_after())).await;
        }
    }
}

impl fmt::Debug for Gates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gates")
            .field("node", &self.node)
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
}

/// A panic elsewhere does not make the state wrong: nothing here panics half-way.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
