//! What the driver works on, and how it is started and replaced. The [`task`] itself talks to the backend.
//!
//! The driver may be dropped at any await: its runtime may end, be blocked, or not be driven any more. Then another one
//! replaces it, on the runtime of another caller. What was in flight is sent again under higher numbers.

mod in_flight;
mod runtimes;
mod task;

pub(crate) use runtimes::Placement;

use super::panics::lock;
use super::queue_client::QueueClient;
use super::registry::Client;
use super::schedule::{Position, Schedule};
use super::state::Plan;
use crate::backend::Batching;
use crate::clock::now;
use in_flight::InFlight;
use runtimes::{DriverSlot, Pinned};
use rustc_hash::FxBuildHasher;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use task::Driver;
use tokio::runtime::{Handle, Id};
use tokio::time::Instant;

/// How often a caller that depends on a driver on another runtime checks that it still runs.
pub(crate) const CHECK_DRIVER: Duration = Duration::from_secs(2);
/// When it does so for the first time: a runtime that is not driven any more is detected by then.
pub(crate) const FIRST_CHECK: Duration = Duration::from_millis(300);
/// A batch of this size is not divided.
const UNDIVIDED: usize = 16;

/// What the driver works on. It belongs to the coordinator, and outlives any single driver.
#[derive(Debug)]
pub(super) struct Work {
    shared: Mutex<Shared>,
    /// The runtime of the driver, hashed; 0 if there is none. The short paths depend on a driver.
    driven_by: AtomicU64,
    /// The runtime of the latest caller, hashed: mostly it is the same.
    latest: AtomicU64,
    batching: Batching,
    pub(super) pinned: Pinned,
}

#[derive(Debug)]
struct Shared {
    schedule: Schedule<Arc<QueueClient>>,
    in_flight: InFlight<Arc<QueueClient>>,
    slot: DriverSlot,
}

/// A driver that is to be started, if any, once no lock is held: a runtime that shuts down drops it at once.
#[must_use]
pub(super) struct Start(Option<(Driver, Handle)>);

// === impl Work ===

impl Work {
    pub(super) fn new(batching: Batching, placement: Placement, call_timeout: Duration) -> Self {
        Self {
            shared: Mutex::new(Shared {
                schedule: Schedule::default(),
                in_flight: InFlight::new(call_timeout),
                slot: DriverSlot::default(),
            }),
            driven_by: AtomicU64::new(0),
            latest: AtomicU64::new(0),
            batching,
            pinned: Pinned::new(placement),
        }
    }

    #[inline]
    pub(super) fn is_driven(&self) -> bool {
        self.driven_by.load(Ordering::Relaxed) != 0
    }

    /// Remembers the runtime of a caller: the driver moves to it when its own ends.
    #[inline]
    pub(super) fn remember(&self, runtime: &Handle) {
        let id = hash(&runtime.id());
        if self.latest.load(Ordering::Relaxed) != id && !self.pinned.is_pinned() {
            self.latest.store(id, Ordering::Relaxed);
            self.shared().slot.remember(runtime.clone());
        }
    }

    /// Whether the driver runs on the runtime of this thread, or is bound to one.
    pub(super) fn is_here(&self) -> bool {
        let driven_by = self.driven_by.load(Ordering::Relaxed);
        let here = || Handle::try_current().is_ok_and(|here| hash(&here.id()) == driven_by);
        self.pinned.is_pinned() || here()
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        lock(&self.shared)
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        // A driver that sleeps has to notice.
        self.shared().slot.wake.notify_one();
    }
}

// === impl Shared ===

impl Shared {
    fn is_idle(&self) -> bool {
        self.schedule.is_empty() && self.in_flight.batches() == 0
    }

    /// How many calls the next batch may have. Two batches of about the same size in flight keep both sides busy: the server
    /// executes one while the callers of the other proceed.
    fn batch_size(&self, batching: Batching) -> usize {
        let (ready, batches) = (self.schedule.ready(), self.in_flight.batches());
        match batches {
            _ if batching.calls == 1 && batches < batching.in_flight => 1,
            0 => ready.div_ceil(2).max(UNDIVIDED).min(batching.calls),
            _ if batches < batching.in_flight && 2 * ready >= self.in_flight.calls() => {
                batching.calls
            }
            _ => 0,
        }
    }
}

impl Client {
    /// Enters a name into the schedule, and makes sure that there is a driver.
    pub(super) fn schedule(
        self: &Arc<Self>,
        name: &Arc<QueueClient>,
        position: &mut Position,
        plan: Plan,
        now: Instant,
    ) -> Start {
        let mut shared = self.work.shared();
        shared.schedule.enter(name, name.group, position, plan);
        let at = match plan {
            Plan::Idle => return Start(None),
            Plan::At(at) => Some(at),
            Plan::Renewal(_) | Plan::Urgent => {
                (shared.batch_size(self.work.batching) > 0).then_some(now)
            }
        };
        let start = self.replace_driver(&mut shared, now);
        let at = at.filter(|_| start.0.is_none());
        let wake = at.and_then(|at| shared.slot.wakes(at));
        drop(shared);
        if let Some(wake) = wake {
            wake.notify_one();
        }
        start
    }

    /// Starts a driver if there is work and no driver that does it.
    pub(super) fn ensure_driver(self: &Arc<Self>) {
        let mut shared = self.work.shared();
        if !shared.is_idle() {
            let start = self.replace_driver(&mut shared, now());
            drop(shared);
            start.run();
        }
    }

    /// Replaces a driver that has ended or is stuck. On a thread without a runtime, it starts on that of the latest caller.
    fn replace_driver(self: &Arc<Self>, shared: &mut Shared, now: Instant) -> Start {
        let pinned = self.work.pinned.is_pinned();
        let here = Handle::try_current().ok().filter(|_| !pinned);
        let here_id = here.as_ref().map(Handle::id);
        if shared.slot.is_served(now, here_id, pinned) {
            return Start(None);
        }
        let ended = shared.slot.runtime().is_none();
        let runtime = match self.work.pinned.runtime() {
            Ok(Some(runtime)) => Some(runtime),
            Ok(None) => here.or_else(|| shared.slot.runtimes.last().cloned().filter(|_| ended)),
            Err(_) => None,
        };
        self.start_driver(shared, runtime, now)
    }

    fn start_driver(
        self: &Arc<Self>,
        shared: &mut Shared,
        runtime: Option<Handle>,
        now: Instant,
    ) -> Start {
        Start(runtime.map(|runtime| {
            let id = runtime.id();
            let (number, wake) = shared.slot.start(id, now);
            self.work.driven_by.store(hash(&id), Ordering::Relaxed);
            (Driver::new(self, wake, number, id), runtime)
        }))
    }
}

// === impl Start ===

impl Start {
    pub(super) fn run(self) {
        if let Some((driver, runtime)) = self.0 {
            runtime.spawn(driver.run());
        }
    }
}

/// Never 0.
fn hash(runtime: &Id) -> u64 {
    FxBuildHasher.hash_one(runtime) | 1
}
