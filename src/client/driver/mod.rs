//! The one task of a coordinator that talks to the backend.
//!
//! It takes the names that need it from the [`Schedule`], builds batches of calls, keeps a few of them in flight and
//! passes the replies to the names. Decisions about a name are made by its [`State`](super::state::State).
//!
//! The driver may vanish at any await: its runtime may end, be blocked, or not be driven any more. Then another one takes
//! its place on the runtime of another caller. What was in flight is sent again under higher numbers.

mod in_flight;
mod runtimes;
mod schedule;

pub(crate) use runtimes::Placement;
pub(crate) use schedule::{Position, Schedule};

use super::queue_client::QueueClient;
use super::registry::{Client, lock};
use super::state::Plan;
use crate::backend::{Batching, Call};
use crate::clock::now;
use crate::error::{Error, ErrorKind};
use futures_util::StreamExt;
use futures_util::future::FutureExt;
use futures_util::stream::FuturesUnordered;
use in_flight::{InFlight, Judgement, exchange};
use runtimes::{DriverSlot, Pinned};
use rustc_hash::FxBuildHasher;
use std::hash::BuildHasher;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;
use tokio::runtime::{Handle, Id};
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep};

/// How often a caller that depends on a driver on another runtime checks that it still runs.
pub(super) const CHECK_DRIVER: Duration = Duration::from_secs(2);
/// When it does so for the first time: a runtime that is not driven any more shows by then.
pub(super) const FIRST_CHECK: Duration = Duration::from_millis(300);
/// The longest sleep of the driver.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);
/// A batch of this size is not divided.
const UNDIVIDED: usize = 16;
/// How many timers are taken under one lock.
const TIMERS_AT_A_TIME: usize = 256;

/// What the driver works on. It belongs to the coordinator, and outlives any single driver.
#[derive(Debug)]
pub(super) struct Work {
    shared: Mutex<Shared>,
    /// The runtime of the driver, hashed; 0 if there is none. The short paths rely on one.
    driven_by: AtomicU64,
    /// The runtime of the latest caller, hashed: mostly it is the same.
    latest: AtomicU64,
    batching: Batching,
    pinned: Pinned,
}

#[derive(Debug)]
struct Shared {
    schedule: Schedule<Arc<QueueClient>>,
    in_flight: InFlight,
    slot: DriverSlot,
}

/// One driver. Dropped with its runtime, it hands over to another.
struct Driver {
    client: Weak<Client>,
    wake: Arc<Notify>,
    number: u64,
    runtime: Id,
    /// It has waited for work once: its runtime has what it needs.
    works: AtomicBool,
}

/// A driver that is to be started once no lock is held: a runtime that shuts down drops it at once.
#[must_use]
pub(super) struct Start {
    driver: Driver,
    runtime: Handle,
}

/// What the driver does next.
enum Turn {
    /// These names had a timer.
    Due(Vec<(schedule::TimerKey, Arc<QueueClient>)>),
    /// These names need a call; those with a renewal only are marked.
    Batch(Vec<(Arc<QueueClient>, bool)>),
    /// These calls need a judgement.
    Judge(Judgement),
    Sleep(Instant),
    /// Another driver has taken over.
    Replaced,
}

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

    /// The runtime that the driver is bound to, if it is.
    pub(super) fn pinned(&self) -> Result<Option<Handle>, Error> {
        self.pinned.runtime()
    }

    /// An error if the driver is bound to a runtime that has ended or cannot be started.
    #[inline]
    pub(super) fn check_pinned(&self) -> Result<(), Error> {
        match self.pinned.is_pinned() {
            true => self.pinned.runtime().map(drop),
            false => Ok(()),
        }
    }

    /// The error of callers after the runtime has ended that the driver is bound to.
    pub(super) fn pinned_has_ended(&self) -> Error {
        self.pinned.end()
    }

    fn is_pinned(&self) -> bool {
        self.pinned.is_pinned()
    }

    /// Remembers the runtime of a caller, for the time when the driver's own ends.
    #[inline]
    pub(super) fn remember(&self, runtime: &Handle) {
        let id = hash(&runtime.id());
        if self.latest.load(Ordering::Relaxed) != id && !self.pinned.is_pinned() {
            self.latest.store(id, Ordering::Relaxed);
            self.shared().slot.remember(runtime.clone());
        }
    }

    /// The driver runs on the runtime of this thread, or is bound to one.
    pub(super) fn is_here(&self) -> bool {
        let driven_by = self.driven_by.load(Ordering::Relaxed);
        let here = || Handle::try_current().is_ok_and(|here| hash(&here.id()) == driven_by);
        self.pinned.is_pinned() || here()
    }

    /// How many calls with nothing but renewals may be in flight: the other half is for calls that callers wait for.
    fn max_renewals(&self) -> usize {
        (self.batching.calls * self.batching.in_flight).div_ceil(2)
    }

    fn shared(&self) -> MutexGuard<'_, Shared> {
        lock(&self.shared)
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.shared().slot.close();
    }
}

impl Client {
    /// Enters a name into the schedule, and makes sure that a driver is there.
    pub(super) fn schedule(
        self: &Arc<Self>,
        name: &Arc<QueueClient>,
        position: &mut Position,
        plan: Plan,
        now: Instant,
    ) -> Option<Start> {
        let mut shared = self.work.shared();
        shared.schedule.enter(name, name.group(), position, plan);
        let at = match plan {
            Plan::Idle => return None,
            Plan::At(at) => Some(at),
            Plan::Renewal(_) | Plan::Urgent => (self.batch_size(&shared) > 0).then_some(now),
        };
        let start = self.replace_driver(&mut shared, now);
        let at = at.filter(|_| start.is_none());
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
        let idle = shared.schedule.is_empty() && shared.in_flight.is_empty();
        let start = match idle {
            true => None,
            false => self.replace_driver(&mut shared, now()),
        };
        drop(shared);
        if let Some(start) = start {
            start.start();
        }
    }

    /// Replaces a driver that is gone or stuck. Without a runtime here, it starts on that of the latest caller.
    fn replace_driver(self: &Arc<Self>, shared: &mut Shared, now: Instant) -> Option<Start> {
        let pinned = self.work.pinned.is_pinned();
        let here = match pinned {
            true => None,
            false => Handle::try_current().ok(),
        };
        let here_id = here.as_ref().map(Handle::id);
        if shared.slot.is_served(now, here_id, pinned) {
            return None;
        }
        let gone = shared.slot.runtime().is_none();
        let runtime = match self.work.pinned.runtime() {
            Ok(Some(runtime)) => Some(runtime),
            Ok(None) => here.or_else(|| shared.slot.last_runtime().filter(|_| gone)),
            Err(_) => None,
        };
        Some(self.start_driver(shared, runtime?, now))
    }

    fn start_driver(self: &Arc<Self>, shared: &mut Shared, runtime: Handle, now: Instant) -> Start {
        let (number, wake) = shared.slot.start(runtime.id(), now);
        let id = hash(&runtime.id());
        self.work.driven_by.store(id, Ordering::Relaxed);
        Start {
            driver: Driver {
                client: Arc::downgrade(self),
                wake,
                number,
                runtime: runtime.id(),
                works: AtomicBool::new(false),
            },
            runtime,
        }
    }

    /// Refuses all callers, which would wait in vain.
    fn close(&self, error: &Error) {
        for name in self.all() {
            name.close(error);
        }
    }

    /// What the driver with this number does next.
    fn next_turn(&self, number: u64, now: Instant) -> Turn {
        let mut guard = self.work.shared();
        let shared = &mut *guard;
        if shared.slot.current != number {
            return Turn::Replaced;
        }
        shared.slot.acts(now, false);
        if let Some(judgement) = shared.in_flight.judge(now, &self.outages) {
            return Turn::Judge(judgement);
        }
        let due = || shared.schedule.take_due(now);
        let due: Vec<_> = std::iter::from_fn(due).take(TIMERS_AT_A_TIME).collect();
        if !due.is_empty() {
            return Turn::Due(due);
        }
        let most = self.batch_size(shared);
        if most > 0 {
            let renewals = shared.in_flight.renewals() < self.work.max_renewals();
            let ready = || shared.schedule.take_ready(renewals);
            let ready: Vec<_> = std::iter::from_fn(ready).take(most).collect();
            if !ready.is_empty() {
                return Turn::Batch(ready);
            }
        }
        let times = [
            shared.schedule.next_timer(),
            shared.in_flight.next_judgement(&self.outages, now),
        ];
        let next = times.into_iter().flatten().min();
        let next = next.unwrap_or(now + LONGEST_SLEEP);
        shared.slot.acts(next, true);
        Turn::Sleep(next)
    }

    /// How many calls the next batch may have. Two batches of about the same size in flight keep both sides busy: the server
    /// executes one while the callers of the other go on.
    fn batch_size(&self, shared: &Shared) -> usize {
        let Batching {
            calls, in_flight, ..
        } = self.work.batching;
        let ready = shared.schedule.ready();
        match shared.in_flight.batches() {
            _ if calls == 1 && shared.in_flight.batches() < in_flight => 1,
            0 => ready.div_ceil(2).max(UNDIVIDED).min(calls),
            batches if batches < in_flight && 2 * ready >= shared.in_flight.calls() => calls,
            _ => 0,
        }
    }

    /// The calls for these names, and the names that the replies go to. What does not fit goes back to the schedule.
    fn build(
        self: &Arc<Self>,
        ready: Vec<(Arc<QueueClient>, bool)>,
        now: Instant,
    ) -> (Vec<Call>, Vec<(Arc<QueueClient>, u64)>) {
        let (mut calls, mut names) = (
            Vec::with_capacity(ready.len()),
            Vec::with_capacity(ready.len()),
        );
        let mut room = self.work.batching.tickets;
        for (name, renewal) in ready {
            let fits = room > 0;
            if let Some((call, tickets)) = name.next_call(renewal, fits, now) {
                room = room.saturating_sub(tickets);
                names.push((Arc::clone(&name), call.number));
                calls.push(call);
            }
        }
        (calls, names)
    }
}

// === impl Start ===

impl Start {
    pub(super) fn start(self) {
        let Self { driver, runtime } = self;
        runtime.spawn(driver.run());
    }
}

// === impl Driver ===

impl Driver {
    async fn run(self) {
        self.take_over();
        let mut batches = FuturesUnordered::new();
        let mut timer = pin!(tokio::time::sleep(LONGEST_SLEEP));
        let mut armed = None;
        loop {
            let Some(client) = self.client.upgrade() else {
                return;
            };
            let now = now();
            match client.next_turn(self.number, now) {
                Turn::Due(due) => {
                    for (key, name) in due {
                        name.timer_is_over(key, now);
                    }
                }
                Turn::Batch(ready) => {
                    let renewals = ready.iter().all(|(_, renewal)| *renewal);
                    let (calls, names) = client.build(ready, now);
                    if !calls.is_empty() {
                        let mut shared = client.work.shared();
                        let batch = shared.in_flight.add(names, renewals, now);
                        drop(shared);
                        batches.push(exchange(Arc::clone(&client), calls, batch));
                    }
                }
                Turn::Judge(judgement) => judgement.apply(&client, now),
                Turn::Sleep(until) => {
                    // Nothing of the coordinator is kept alive by a driver that sleeps.
                    drop(client);
                    arm(timer.as_mut(), &mut armed, until, now);
                    self.works.store(true, Ordering::Relaxed);
                    tokio::select! {
                        biased;
                        Some(()) = batches.next() => {
                            while let Some(Some(())) = batches.next().now_or_never() {}
                        }
                        () = self.wake.notified() => {}
                        () = &mut timer => armed = None,
                    }
                }
                Turn::Replaced => break,
            }
        }
        drop(batches);
        self.watch().await;
    }

    /// What another driver had in flight is sent again: its runtime is not driven.
    fn take_over(&self) {
        let Some(client) = self.client.upgrade() else {
            return;
        };
        let mut shared = client.work.shared();
        let in_flight = match shared.slot.current == self.number {
            true => shared.in_flight.take_all(),
            false => Vec::new(),
        };
        drop(shared);
        for (name, number) in in_flight.iter().flat_map(|names| names.iter()) {
            name.on_dropped(*number);
        }
    }

    /// Another driver has taken over, perhaps on another runtime. Callers that joined while this one was there rely on a
    /// task of their own runtime to check that it still runs.
    async fn watch(&self) {
        loop {
            tokio::time::sleep(CHECK_DRIVER).await;
            let Some(client) = self.client.upgrade() else {
                return;
            };
            client.ensure_driver();
            let shared = client.work.shared();
            let idle = shared.schedule.is_empty() && shared.in_flight.is_empty();
            if idle || shared.slot.runtime() == Some(self.runtime) {
                return;
            }
        }
    }
}

/// Sets the timer, unless it ends before `until` already: each new earliest timer of a runtime may cost a system call.
fn arm(mut timer: Pin<&mut Sleep>, armed: &mut Option<Instant>, until: Instant, now: Instant) {
    if armed.is_none_or(|armed| until < armed) {
        timer
            .as_mut()
            .reset(Instant::now() + until.saturating_duration_since(now));
        *armed = Some(until);
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let Some(client) = self.client.upgrade() else {
            return;
        };
        let mut shared = client.work.shared();
        if shared.slot.current != self.number {
            return;
        }
        let panicked = std::thread::panicking();
        if panicked && self.works.load(Ordering::Relaxed) {
            // A panic ends the task and not its runtime.
            let start = Handle::try_current()
                .ok()
                .map(|runtime| client.start_driver(&mut shared, runtime, now()));
            drop(shared);
            if let Some(start) = start {
                start.start();
            }
            // It may have taken names out of the schedule that it did not come to.
            return client.all().iter().for_each(|name| name.restart());
        }
        shared.slot.ended(self.runtime);
        client.work.latest.store(0, Ordering::Relaxed);
        client.work.driven_by.store(0, Ordering::Relaxed);
        if client.work.is_pinned() {
            drop(shared);
            let error = client.work.pinned.end();
            client.close(&error);
            // No driver will come: what is scheduled must not keep the coordinator alive.
            let scheduled = std::mem::take(&mut client.work.shared().schedule);
            return drop(scheduled);
        }
        if panicked {
            drop(shared);
            return client.close(&Error::new(
                ErrorKind::NoRuntime,
                "the runtime has no timers: build it with enable_all or enable_time",
            ));
        }
        // Its runtime has ended before its work was done. If the next one has ended too, its driver comes by here.
        let idle = shared.schedule.is_empty() && shared.in_flight.is_empty();
        let another = match idle {
            true => None,
            false => shared.slot.last_runtime(),
        };
        let start = another.map(|runtime| client.start_driver(&mut shared, runtime, now()));
        drop(shared);
        if let Some(start) = start {
            start.start();
        }
    }
}

/// Never 0.
fn hash(runtime: &Id) -> u64 {
    FxBuildHasher.hash_one(runtime) | 1
}

/// The error of a call without a reply.
pub(super) fn no_answer(within: Duration) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!("the backend did not answer within {within:?}"),
    )
}
