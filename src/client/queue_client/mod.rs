//! The client of one name: what callers do with it. What the driver does with it is in [`driven`].

mod driven;

use super::acquire::Wait;
use super::driver::Position;
use super::registry::{Client, lock};
use super::state::{Effects, HasTerms, Hold, Plan, State, Terms};
use super::stats::Stats;
use crate::backend::{Grant, Inspection};
use crate::clock::{self, now};
use crate::error::{Error, ErrorKind};
use crate::name::{Kind, Queue};
use crate::permit::Permit;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use tokio::runtime::Handle;
use tokio::sync::futures::OwnedNotified;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

/// The client of one name. Lives as long as a handle, a permit or a waiter, and until everything is released.
pub(crate) struct QueueClient {
    pub(super) client: Arc<Client>,
    pub(super) queue: Queue,
    /// Names of one group share their turns at the driver.
    group: u64,
    inner: Mutex<Inner>,
    /// A permit of this name was lost. Made when a task first waits for that.
    lost: OnceLock<Arc<Notify>>,
}

pub(super) struct Inner {
    pub(super) state: State<Caller>,
    /// Where the name is in the driver's schedule.
    position: Position,
    /// The number of the call in flight: whatever comes up goes into the next one.
    in_flight: Option<u64>,
    clock: clock::Coarse,
    /// The last call failed.
    failing: bool,
}

/// The result of [`QueueClient::join`].
pub(super) enum Joined {
    /// The caller holds a permit.
    Served(Hold),
    /// The caller waits under this number.
    Waits(u64),
}

/// The caller's end of a wait.
pub(super) struct Caller {
    pub(super) answer: oneshot::Sender<Result<Permit, Error>>,
    pub(super) terms: Terms,
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
            }),
            lost: OnceLock::new(),
        }
    }

    pub(crate) fn queue(&self) -> &Queue {
        &self.queue
    }

    pub(super) fn group(&self) -> u64 {
        self.group
    }

    pub(crate) fn is_of(&self, client: &Arc<Client>) -> bool {
        Arc::ptr_eq(&self.client, client)
    }

    pub(crate) fn limit(&self) -> u32 {
        self.lock().state.limit
    }

    pub(crate) fn check_limit(&self, limit: u32) -> Result<(), Error> {
        self.client.check_limit(limit)
    }

    pub(crate) fn set_limit(self: &Arc<Self>, limit: u32) {
        self.update(|state, _| state.set_limit(limit));
    }

    pub(crate) fn stats(&self) -> Stats {
        self.lock().state.stats()
    }

    pub(crate) async fn inspect(&self) -> Result<Inspection, Error> {
        self.client.inspect(self.queue.clone()).await
    }

    pub(crate) async fn evict(&self, ticket: &str) -> Result<bool, Error> {
        self.client
            .evict(self.queue.clone(), ticket.to_owned())
            .await
    }

    pub(super) fn lingering(&self) -> Vec<String> {
        let lingering = self.lock().state.permits.all_lingering();
        lingering
            .into_iter()
            .map(|ticket| self.ticket(ticket))
            .collect()
    }

    /// A ticket as [`Coordinator::inspect`](crate::Coordinator::inspect) shows it.
    pub(crate) fn ticket(&self, ticket: u64) -> String {
        self.client.node().ticket(ticket)
    }

    // --- waiting ---

    /// A lingering permit, for a caller that arrives now.
    #[inline]
    pub(crate) fn take_lingering(self: &Arc<Self>, terms: Terms) -> Option<Permit> {
        let mut guard = self.lock();
        let inner = &mut *guard;
        // Without a driver `join` has to start one.
        if !inner.state.has_lingering() || !self.client.work.is_driven() {
            return None;
        }
        let now = inner.clock.now();
        let Some(hold) = inner.state.take_lingering(terms, now) else {
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
        Some(Permit::new(Arc::clone(self), hold))
    }

    /// Adds a caller. `Err` if it is refused at once.
    pub(super) fn join(self: &Arc<Self>, wait: &Wait, caller: Caller) -> Result<Joined, Error> {
        let Ok(runtime) = Handle::try_current() else {
            return Err(Error::new(
                ErrorKind::NoRuntime,
                "a permit can only be acquired on a thread with a tokio runtime",
            ));
        };
        let outage = self.client.outages.outage();
        let mut guard = self.lock();
        let inner = &mut *guard;
        let now = self.time(inner);
        let joined = self.admit(&mut inner.state, wait, caller, outage, now);
        self.client.work.remember(&runtime);
        self.follow_up(guard, now);
        joined
    }

    /// Gives the caller a lingering permit, or lets it wait or try.
    fn admit(
        &self,
        state: &mut State<Caller>,
        wait: &Wait,
        caller: Caller,
        outage: Option<Error>,
        now: Instant,
    ) -> Result<Joined, Error> {
        // Under the lock, as `close` is: no caller joins after it.
        self.client.work.check_pinned()?;
        if self.client.closing.load(Ordering::Relaxed) {
            state.stats.failed += 1;
            return Err(shutting_down());
        }
        let outage = outage.or_else(|| {
            let trouble = state.trouble.as_ref()?;
            trouble.outage_at(now, self.client.outages.outage_after())
        });
        if let Some(outage) = outage {
            state.stats.unavailable += 1;
            state.probe();
            return Err(outage);
        }
        // It may have begun to linger this very moment.
        if let Some(hold) = state.take_lingering(caller.terms, now) {
            return Ok(Joined::Served(hold));
        }
        let ticket = self.client.next_number();
        if !wait.queue {
            if !state.waiters.is_empty() {
                state.stats.limit_reached += 1;
                return Err(Error::new(
                    ErrorKind::LimitReached,
                    "every permit is taken: others wait already",
                ));
            }
            state.try_join(ticket, caller);
        } else if state.waiters.len() >= wait.max_waiting {
            state.stats.too_many_waiting += 1;
            return Err(Error::new(
                ErrorKind::TooManyWaiting,
                format!(
                    "{} callers of this process wait for a permit already",
                    wait.max_waiting
                ),
            ));
        } else {
            state.join(ticket, now, caller);
        }
        Ok(Joined::Waits(ticket))
    }

    /// Removes a waiter. `false` if it was served already.
    pub(super) fn give_up(self: &Arc<Self>, waiter: u64, timed_out: bool) -> bool {
        let gone = self.update(|state, _| {
            let gone = state.give_up(waiter);
            state.stats.timed_out += u64::from(gone.is_some() && timed_out);
            gone
        });
        gone.is_some()
    }

    /// The driver runs on the runtime of this thread, or is bound to one.
    pub(super) fn is_driven_here(&self) -> bool {
        self.client.work.is_here()
    }

    /// Replaces a driver that is gone or stuck.
    pub(super) fn ensure_driver(&self) {
        self.client.ensure_driver();
    }

    // --- holding ---

    pub(crate) fn is_valid(&self, hold: Hold) -> bool {
        self.lock().state.permits.is_valid(hold, now())
    }

    /// How the permit was lost, if it was.
    pub(crate) fn lost(self: &Arc<Self>, hold: Hold) -> Option<ErrorKind> {
        let expired = !self.lock().state.permits.expired(now()).is_empty();
        if expired {
            // By a deadline that the driver has not noticed yet.
            let effects = self.update(|state, now| state.expire(now));
            self.deliver(effects);
        }
        self.lock().state.permits.lost(hold)
    }

    /// When the permit is lost unless it is confirmed before, where that is so: for a mutex.
    pub(crate) fn expiry(&self, hold: Hold) -> Option<Instant> {
        self.lock().state.permits.expiry(hold)
    }

    /// The fencing token of a permit that is held.
    pub(crate) fn token(&self, hold: Hold) -> Option<u64> {
        self.lock().state.permits.token(hold)
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
            // A reservation lapses when the driver looks at its end, not before: the time does not matter here.
            Kind::Limit => inner.clock.last(),
        };
        inner.state.permits.claim(hold, now)
    }

    pub(crate) fn rearm(&self, hold: Hold) -> bool {
        self.lock().state.permits.rearm(hold, now())
    }

    pub(crate) fn share(&self, hold: Hold) -> bool {
        self.lock().state.permits.share(hold, now())
    }

    /// Drops a guard. `answer` is told whether the permit was held until then.
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
        self.release(guard, hold, now, answer);
    }

    /// Drops a guard whose permit does not linger.
    fn release(
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

    // --- events of the backend, shutdown and flush ---

    pub(super) fn pushed(self: &Arc<Self>, grant: Grant) {
        let effects = self.update(|state, now| state.pushed(grant, now));
        self.deliver(effects);
    }

    pub(super) fn lose_all(self: &Arc<Self>) {
        let effects = self.update(|state, _| state.lose_all());
        self.deliver(effects);
    }

    pub(super) fn resync(self: &Arc<Self>) {
        self.update(|state, _| state.resync());
    }

    pub(super) fn stop_lingering(self: &Arc<Self>) {
        self.update(|state, _| state.stop_lingering());
    }

    /// Releases what lingers. Returns all tickets whose release is not acknowledged.
    pub(super) fn flush(self: &Arc<Self>) -> Vec<u64> {
        self.update(|state, _| {
            state.permits.end_all_lingering();
            state.permits.releases.tickets().collect()
        })
    }

    pub(super) fn is_releasing(&self, ticket: u64) -> bool {
        self.lock().state.permits.releases.contains(ticket)
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.lock().state.is_quiet()
    }

    /// The last call failed.
    pub(super) fn is_failing(&self) -> bool {
        self.lock().failing
    }

    /// Refuses all waiters and releases everything. Returns how many permits were still held.
    pub(super) fn close(self: &Arc<Self>, error: &Error) -> usize {
        // Earlier failures do not count against the releases that follow.
        self.note_failing(&mut self.lock(), false);
        let effects = self.update(|state, _| state.close(error));
        let cut = effects.lost.len();
        self.deliver(effects);
        cut
    }

    // --- plumbing ---

    #[inline]
    fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    /// The time of an acquire or a release: exact only where it decides validity.
    #[inline]
    fn time(&self, inner: &mut Inner) -> Instant {
        match self.queue.kind() {
            Kind::Mutex => now(),
            Kind::Limit => inner.clock.now(),
        }
    }

    /// Changes the state, and enters the name into the driver's schedule. Its caller delivers effects and drops what
    /// wakes a task: not under the lock, since a task that is woken may call back at once.
    fn update<T>(self: &Arc<Self>, change: impl FnOnce(&mut State<Caller>, Instant) -> T) -> T {
        let now = now();
        let mut inner = self.lock();
        inner.clock.set(now);
        let result = change(&mut inner.state, now);
        self.follow_up(inner, now);
        result
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
        if let Some(start) = start {
            start.start();
        }
    }

    /// Whether the last call failed counts for all names together.
    fn note_failing(&self, inner: &mut Inner, failing: bool) {
        if inner.failing != failing {
            inner.failing = failing;
            self.client.count_failing(failing);
        }
    }

    /// Tells callers what has happened. Not under the lock: a permit whose caller is gone is dropped here.
    fn deliver(self: &Arc<Self>, effects: Effects<Caller>) {
        for (hold, why) in &effects.lost {
            let (name, ticket) = (&self.queue, self.ticket(hold.ticket));
            caught(|| match why {
                ErrorKind::HeldTooLong => tracing::warn!(
                    %name, ticket, "a permit was held for longer than max_hold: it is released"
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
            let permit = Permit::new(Arc::clone(self), hold);
            caught(|| drop(caller.answer.send(Ok(permit))));
        }
        for (caller, error) in effects.refused {
            caught(|| drop(caller.answer.send(Err(error))));
        }
        for (answer, held) in effects.answers {
            caught(|| {
                let _ = answer.send(held);
            });
        }
        for answer in effects.unanswered {
            caught(|| drop(answer));
        }
    }
}

/// Wakes tasks of the application. A waker that panics must stop neither the driver nor the drop of a permit.
pub(super) fn caught(wake: impl FnOnce()) {
    // The panic hook has reported it.
    let _ = catch_unwind(AssertUnwindSafe(wake));
}

impl Drop for QueueClient {
    fn drop(&mut self) {
        self.note_failing(&mut self.lock(), false);
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

// === impl Caller ===

impl HasTerms for Caller {
    fn terms(&self) -> Terms {
        self.terms
    }
}

pub(super) fn shutting_down() -> Error {
    Error::new(ErrorKind::ShuttingDown, "the coordinator is shutting down")
}
