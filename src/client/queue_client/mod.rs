//! The client of one name: what callers do with it. What the driver does with it is in [`driven`].

mod driven;

use super::outage::Failures;
use super::panics::{caught, lock};
use super::registry::Client;
use super::schedule::Position;
use super::state::{Effects, Hold, Plan, State, Terms, too_many_waiting};
use super::stats::Stats;
use crate::backend::Inspection;
use crate::clock::{self, now};
use crate::error::{Error, ErrorKind};
use crate::name::{Kind, Queue};
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::futures::OwnedNotified;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

/// The client of one name. Lives as long as a handle, a permit or a waiter, and until everything is released.
pub(crate) struct QueueClient {
    pub(super) client: Arc<Client>,
    queue: Queue,
    /// Names of one group share their turns at the driver.
    pub(super) group: u64,
    inner: Mutex<Inner>,
    /// Notifies of lost permits of this name. Made when a task first waits for that.
    lost: OnceLock<Arc<Notify>>,
}

struct Inner {
    state: State<Caller>,
    position: Position,
    /// The number of the call in flight: everything that is due meanwhile is sent in the next one.
    in_flight: Option<u64>,
    clock: clock::Coarse,
    /// The last call failed.
    failing: bool,
    /// The failed calls about this name.
    failures: Option<Failures>,
}

/// How a caller waits for a permit.
#[derive(Clone, Debug)]
pub(crate) struct Wait {
    /// Wait in the queue. `false`: be refused at once when no permit is free.
    pub(crate) may_wait: bool,
    /// Give up after this time.
    pub(crate) timeout: Option<Duration>,
    /// Be refused if more than this many callers of this process wait without a free permit for them.
    pub(crate) max_waiting: usize,
    pub(crate) terms: Terms,
}

/// The sender of a wait's result, and the caller's end.
type Caller = oneshot::Sender<Result<Granted, Error>>;
pub(crate) type Receiver = oneshot::Receiver<Result<Granted, Error>>;

/// A granted permit on its way to the caller. Dropping it releases the permit, also if a waker of the application panics
/// while the channel is read.
#[derive(Debug)]
pub(crate) struct Granted {
    queue_client: Arc<QueueClient>,
    hold: Option<Hold>,
}

// === impl QueueClient ===

impl QueueClient {
    pub(super) fn new(client: Arc<Client>, queue: Queue, limit: u32) -> Self {
        let strict = queue.kind() == Kind::Mutex;
        let state = State::new(limit, client.lease, strict, client.shortcuts, now());
        Self {
            client,
            group: queue.group(),
            queue,
            inner: Mutex::new(Inner {
                state,
                position: Position::default(),
                in_flight: None,
                clock: clock::Coarse::default(),
                failing: false,
                failures: None,
            }),
            lost: OnceLock::new(),
        }
    }

    pub(crate) fn queue(&self) -> &Queue {
        &self.queue
    }

    pub(crate) fn is_of(&self, client: &Arc<Client>) -> bool {
        Arc::ptr_eq(&self.client, client)
    }

    pub(crate) fn set_limit(self: &Arc<Self>, limit: u32) -> Result<(), Error> {
        self.client.check_limit(limit)?;
        self.update(|state, _| state.set_limit(limit));
        Ok(())
    }

    pub(crate) fn stats(&self) -> Stats {
        self.read(State::stats)
    }

    pub(crate) async fn inspect(&self) -> Result<Inspection, Error> {
        self.client.inspect(self.queue.clone()).await
    }

    pub(crate) async fn evict(&self, ticket: &str) -> Result<bool, Error> {
        let ticket = ticket.to_owned();
        self.client.evict(self.queue.clone(), ticket).await
    }

    /// Returns a ticket as [`Coordinator::inspect`](crate::Coordinator::inspect) shows it.
    pub(crate) fn ticket(&self, ticket: u64) -> String {
        self.client.node.ticket(ticket)
    }

    // --- waiting ---

    /// Returns a lingering permit, for a caller that arrives now.
    #[inline]
    pub(crate) fn acquire_lingering(self: &Arc<Self>, terms: Terms) -> Option<Hold> {
        let mut guard = self.lock();
        let inner = &mut *guard;
        // Without a driver, `join` has to start one.
        if inner.state.permits.lingering() == 0 || !self.client.work.is_driven() {
            return None;
        }
        let now = inner.clock.now();
        let Some(hold) = inner.state.acquire_lingering(terms, now) else {
            self.follow_up(guard, now);
            return None;
        };
        if let Ok(runtime) = Handle::try_current() {
            self.client.work.remember(&runtime);
        }
        match inner.state.permits.next_ending() {
            Some(ending) if !inner.position.covers_time(ending) => self.follow_up(guard, now),
            _ => drop(guard),
        }
        Some(hold)
    }

    /// Adds a caller. Returns its number as a waiter and the receiver of the result, which may be there already.
    pub(crate) fn join(self: &Arc<Self>, wait: &Wait) -> (u64, Receiver) {
        let (caller, receiver) = oneshot::channel();
        let mut guard = self.lock();
        let inner = &mut *guard;
        let now = self.time(inner);
        // Numbered under the lock: waiters are sent and served in the order of their numbers.
        let ticket = self.client.next_number();
        match self.admit(inner, wait, now).transpose() {
            None if wait.may_wait => {
                (inner.state).join(ticket, now, wait.terms, wait.max_waiting, caller)
            }
            None => inner.state.join_try(ticket, now, wait.terms, caller),
            // It wakes no task, since the receiver is not polled yet.
            Some(result) => drop(caller.send(result.map(|hold| self.granted(hold)))),
        }
        self.follow_up(guard, now);
        (ticket, receiver)
    }

    /// Decides whether a caller may wait or try: `None`. It may get a lingering permit instead.
    fn admit(&self, inner: &mut Inner, wait: &Wait, now: Instant) -> Result<Option<Hold>, Error> {
        let Inner {
            state, failures, ..
        } = inner;
        let runtime = Handle::try_current().map_err(|_| {
            let message = "a permit can only be acquired on a thread with a tokio runtime";
            Error::new(ErrorKind::NoRuntime, message)
        })?;
        self.client.work.remember(&runtime);
        self.client.work.pinned.runtime()?;
        // Under the lock, as `close` is: no caller joins after it.
        if self.client.closing.load(Ordering::Relaxed) {
            state.stats.failed += 1;
            return Err(shutting_down());
        }
        let outages = &self.client.outages;
        let outage = outages.outage(now).or_else(|| {
            let failures = failures.as_ref()?;
            failures.outage(now, outages.outage_after)
        });
        if let Some(outage) = outage {
            state.stats.unavailable += 1;
            state.probe = true;
            return Err(outage);
        }
        // A permit may have begun to linger since the caller last checked.
        if let Some(hold) = state.acquire_lingering(wait.terms, now) {
            return Ok(Some(hold));
        }
        if !wait.may_wait && !state.waiters.is_empty() {
            state.stats.limit_reached += 1;
            let message = "no permit is free: other callers wait for one already";
            return Err(Error::new(ErrorKind::LimitReached, message));
        }
        // Waiters that a free permit may serve do not count. If none was free, the reply refuses the excess.
        let room = (state.limit as usize).saturating_sub(state.permits.in_use());
        if wait.may_wait && state.waiters.len() >= wait.max_waiting.saturating_add(room) {
            state.stats.too_many_waiting += 1;
            return Err(too_many_waiting(wait.max_waiting));
        }
        Ok(None)
    }

    /// Removes a waiter. `false` if it was served already.
    pub(crate) fn give_up(self: &Arc<Self>, waiter: u64, timed_out: bool) -> bool {
        let removed = self.update(|state, _| {
            let removed = state.give_up(waiter);
            state.stats.timed_out += u64::from(removed.is_some() && timed_out);
            removed
        });
        removed.is_some()
    }

    /// Whether the driver runs on the runtime of this thread, or is bound to one.
    pub(crate) fn is_driven_here(&self) -> bool {
        self.client.work.is_here()
    }

    /// Replaces a driver that has ended or is stuck.
    pub(crate) fn ensure_driver(&self) {
        self.client.ensure_driver();
    }

    // --- holding ---

    pub(crate) fn is_valid(&self, hold: Hold) -> bool {
        self.read(|state| state.permits.is_valid(hold, now()))
    }

    /// Returns when the permit of a mutex is lost unless it is confirmed before, `None` for other permits. The error is how
    /// it was lost.
    pub(crate) fn expiry(self: &Arc<Self>, hold: Hold) -> Result<Option<Instant>, ErrorKind> {
        let now = now();
        let mut inner = self.lock();
        // The driver may not have noticed a passed deadline yet.
        let effects = inner.state.expire(now);
        let expiry = inner.state.permits.expiry(hold);
        if !effects.lost.is_empty() {
            self.follow_up(inner, now);
            self.deliver(effects);
        }
        expiry
    }

    /// Returns the fencing token of a permit that is held.
    pub(crate) fn token(&self, hold: Hold) -> Option<u64> {
        self.read(|state| state.permits.token(hold))
    }

    /// Resolves when a permit of this name is lost.
    pub(crate) fn next_loss(&self) -> OwnedNotified {
        Arc::clone(self.lost.get_or_init(Arc::default)).notified_owned()
    }

    #[inline]
    pub(crate) fn claim(&self, hold: Hold) -> bool {
        let mut inner = self.lock();
        let now = match self.queue.kind() {
            Kind::Mutex => now(),
            // A reservation lapses when the driver checks it, not before: the exact time does not matter here.
            Kind::Limit => inner.clock.last(),
        };
        inner.state.permits.claim(hold, now)
    }

    pub(crate) fn rearm(&self, hold: Hold) -> bool {
        self.lock().state.permits.rearm(hold, now())
    }

    /// Notes whether the reader of the response waits for its next part, or has one and has to ask for more.
    pub(crate) fn set_reading(self: &Arc<Self>, hold: Hold, waits: bool) {
        let mut guard = self.lock();
        let inner = &mut *guard;
        let now = inner.clock.now();
        inner.state.permits.set_reading(hold, waits, now);
        match inner.state.permits.next_ending() {
            Some(ending) if !inner.position.covers_time(ending) => self.follow_up(guard, now),
            _ => drop(guard),
        }
    }

    pub(crate) fn share(&self, hold: Hold) -> bool {
        self.lock().state.permits.share(hold, now())
    }

    /// Drops a guard. `answer` receives whether the permit was held until then.
    #[inline]
    pub(crate) fn drop_guard(self: &Arc<Self>, hold: Hold, answer: Option<oneshot::Sender<bool>>) {
        let mut guard = self.lock();
        let inner = &mut *guard;
        let now = self.time(inner);
        if answer.is_none()
            && self.client.work.is_driven()
            && let Some(until) = inner.state.linger(hold, now)
        {
            if !inner.position.covers_time(until) {
                self.follow_up(guard, now);
            }
            return;
        }
        self.hand_off_or_release(guard, hold, now, answer);
    }

    /// Drops a guard of a permit that does not linger.
    fn hand_off_or_release(
        self: &Arc<Self>,
        mut inner: MutexGuard<'_, Inner>,
        hold: Hold,
        now: Instant,
        answer: Option<oneshot::Sender<bool>>,
    ) {
        let effects = inner.state.drop_guard(hold, now, answer);
        self.follow_up(inner, now);
        self.deliver(effects);
    }

    // --- shutdown ---

    /// Whether the last call failed.
    pub(super) fn is_failing(&self) -> bool {
        self.lock().failing
    }

    /// Refuses all waiters and releases everything. Returns how many permits were still held.
    pub(super) fn close(self: &Arc<Self>, error: &Error) -> usize {
        // Earlier failures do not count against the releases that follow.
        self.set_failing(&mut self.lock(), false);
        self.apply(|state, _| state.close(error))
    }

    // --- plumbing ---

    #[inline]
    fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    /// The time of an acquire or a release: exact only for a mutex, where it decides validity.
    #[inline]
    fn time(&self, inner: &mut Inner) -> Instant {
        match self.queue.kind() {
            Kind::Mutex => now(),
            Kind::Limit => inner.clock.now(),
        }
    }

    pub(super) fn read<T>(&self, read: impl FnOnce(&State<Caller>) -> T) -> T {
        read(&self.lock().state)
    }

    /// Changes the state, and enters the name into the driver's schedule. A result that wakes a task is dropped by the
    /// caller, after the lock: a task that is woken may call back at once.
    pub(super) fn update<T>(
        self: &Arc<Self>,
        change: impl FnOnce(&mut State<Caller>, Instant) -> T,
    ) -> T {
        let now = now();
        let mut inner = self.lock();
        inner.clock.set(now);
        let result = change(&mut inner.state, now);
        self.follow_up(inner, now);
        result
    }

    /// Changes the state, and delivers the effects. Returns how many permits were lost.
    pub(super) fn apply(
        self: &Arc<Self>,
        change: impl FnOnce(&mut State<Caller>, Instant) -> Effects<Caller>,
    ) -> usize {
        let effects = self.update(change);
        let lost = effects.lost.len();
        self.deliver(effects);
        lost
    }

    /// Enters the name into the driver's schedule by what there is to do now, and starts a driver if there is none.
    fn follow_up(self: &Arc<Self>, mut guard: MutexGuard<'_, Inner>, now: Instant) {
        let inner = &mut *guard;
        let driven = self.client.work.is_driven();
        if driven && inner.position.covers(Plan::Urgent) {
            return;
        }
        let plan = match inner.in_flight {
            None => inner.state.plan(now),
            // The rest follows when the call ends.
            Some(_) => match inner.state.permits.next_ending() {
                Some(ending) => Plan::At(ending),
                None => return,
            },
        };
        if inner.position.covers(plan) && (driven || plan == Plan::Idle) {
            return;
        }
        let start = (self.client).schedule(self, &mut inner.position, plan, now);
        drop(guard);
        start.run();
    }

    /// Notes whether the last call failed, which counts for all names together.
    fn set_failing(&self, inner: &mut Inner, failing: bool) {
        if inner.failing != failing {
            inner.failing = failing;
            match failing {
                true => self.client.failing.fetch_add(1, Ordering::Relaxed),
                false => self.client.failing.fetch_sub(1, Ordering::Relaxed),
            };
        }
    }

    fn granted(self: &Arc<Self>, hold: Hold) -> Granted {
        Granted {
            queue_client: Arc::clone(self),
            hold: Some(hold),
        }
    }

    /// Passes the effects of an event to callers. Not under the lock: a permit is released here if its caller was dropped.
    fn deliver(self: &Arc<Self>, effects: Effects<Caller>) {
        for (hold, why) in &effects.lost {
            let (name, ticket) = (&self.queue, self.ticket(hold.ticket));
            caught(|| match why {
                ErrorKind::HeldTooLong => tracing::warn!(
                    %name, ticket, "a permit was held for longer than max_hold: it is released"
                ),
                ErrorKind::Stalled => tracing::warn!(
                    %name, ticket, "a response was not read for stall_timeout: its permit is released"
                ),
                ErrorKind::ShuttingDown => tracing::warn!(
                    %name, ticket, "a permit was still held at the end of the shutdown: it is released"
                ),
                _ => tracing::error!(%name, ticket, "a permit was lost while it was in use"),
            });
        }
        if let Some(lost) = self.lost.get()
            && !effects.lost.is_empty()
        {
            caught(|| lost.notify_waiters());
        }
        for (caller, hold) in effects.next.into_iter().chain(effects.granted) {
            let granted = self.granted(hold);
            caught(|| drop(caller.send(Ok(granted))));
        }
        for (caller, error) in effects.refused {
            caught(|| drop(caller.send(Err(error))));
        }
        for (answer, held) in effects.answered {
            caught(|| match held {
                Some(held) => _ = answer.send(held),
                None => drop(answer),
            });
        }
    }
}

impl Drop for QueueClient {
    fn drop(&mut self) {
        self.set_failing(&mut self.lock(), false);
        self.client.forget(&self.queue);
    }
}

impl fmt::Debug for QueueClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueClient")
            .field("queue", &self.queue)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

// === impl Granted ===

impl Granted {
    /// Returns the hold to its caller, which drops the guard from now on.
    pub(crate) fn receive(mut self) -> Option<Hold> {
        self.hold.take()
    }
}

impl Drop for Granted {
    fn drop(&mut self) {
        if let Some(hold) = self.hold.take() {
            self.queue_client.drop_guard(hold, None);
        }
    }
}

pub(super) fn shutting_down() -> Error {
    Error::new(ErrorKind::ShuttingDown, "the coordinator is shutting down")
}
