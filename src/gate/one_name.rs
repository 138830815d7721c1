//! The gate of one name: what callers do with it, and what becomes of that.

use super::acquire::Wait;
use super::held::{Hold, Terms};
use super::pump::PumpSlot;
use super::state::{HasTerms, News, State};
use super::stats::Stats;
use super::{Gates, lock};
use crate::backend::{Grant, Inspection};
use crate::clock::{self, now};
use crate::error::{Error, ErrorKind};
use crate::name::{Kind, Queue};
use crate::permit::Permit;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::runtime::{Handle, Id};
use tokio::sync::futures::OwnedNotified;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

/// This process's side of one name. Lives as long as somebody holds a semaphore, a permit or a place in the line.
pub(crate) struct Gate {
    pub(super) gates: Arc<Gates>,
    pub(super) queue: Queue,
    inner: Mutex<Inner>,
    /// Some permit of this name was lost.
    lost: Arc<Notify>,
}

pub(super) struct Inner {
    pub(super) state: State<Caller>,
    pub(super) pump: PumpSlot,
    pub(super) clock: clock::Coarse,
    /// The last call was not answered.
    pub(super) failing: bool,
}

/// What becomes of a caller who comes.
pub(super) enum Joined {
    /// He holds a permit.
    Served(Hold),
    /// He waits.
    Waits {
        /// His number in the line.
        waiter: u64,
        /// Somebody on his own runtime sees to it that the gate goes on.
        watched: bool,
    },
}

/// The caller's end of a wait.
pub(super) struct Caller {
    pub(super) answer: oneshot::Sender<Result<Permit, Error>>,
    pub(super) terms: Terms,
}

// === impl Gate ===

impl Gate {
    pub(super) fn new(gates: Arc<Gates>, queue: Queue, limit: u32) -> Self {
        let strict = queue.kind() == Kind::Mutex;
        let state = State::new(limit, gates.lease, strict, gates.shortcuts, now());
        Self {
            gates,
            queue,
            inner: Mutex::new(Inner {
                state,
                pump: PumpSlot::default(),
                clock: clock::Coarse::default(),
                failing: false,
            }),
            lost: Arc::new(Notify::new()),
        }
    }

    pub(crate) fn queue(&self) -> &Queue {
        &self.queue
    }

    pub(crate) fn is_of(&self, gates: &Arc<Gates>) -> bool {
        Arc::ptr_eq(&self.gates, gates)
    }

    pub(crate) fn limit(&self) -> u32 {
        self.lock().state.limit
    }

    pub(crate) fn check_limit(&self, limit: u32) -> Result<(), Error> {
        self.gates.check_limit(limit)
    }

    pub(crate) fn set_limit(self: &Arc<Self>, limit: u32) {
        self.tell(|state, _| state.set_limit(limit));
    }

    pub(crate) fn stats(&self) -> Stats {
        self.lock().state.stats()
    }

    pub(crate) async fn inspect(&self) -> Result<Inspection, Error> {
        self.gates.inspect(self.queue.clone()).await
    }

    pub(crate) async fn evict(&self, ticket: &str) -> Result<bool, Error> {
        let (queue, ticket) = (self.queue.clone(), ticket.to_owned());
        self.gates.session.evict(queue, ticket).await
    }

    pub(super) fn lingering(&self) -> Vec<String> {
        let lingering = self.lock().state.tickets.all_lingering();
        lingering
            .into_iter()
            .map(|ticket| self.ticket(ticket))
            .collect()
    }

    /// A ticket as others see it.
    pub(crate) fn ticket(&self, ticket: u64) -> String {
        self.gates.node.ticket(ticket)
    }

    // --- waiting ---

    /// A permit that lingers here, for a caller who comes at this moment.
    #[inline]
    pub(crate) fn take_lingering(self: &Arc<Self>, terms: Terms) -> Option<Permit> {
        let mut guard = self.lock();
        let inner = &mut *guard;
        // Without a pump it is for `join` to see to one.
        if !inner.state.has_lingering() || !inner.pump.is_there() {
            return None;
        }
        let now = inner.clock.now();
        let Some(hold) = inner.state.take_lingering(terms, now) else {
            self.follow_up(guard, now);
            return None;
        };
        if let Some(ending) = inner.state.tickets.next_ending() {
            inner.pump.wake(ending);
        }
        if let Ok(runtime) = Handle::try_current() {
            inner.pump.remember(runtime);
        }
        drop(guard);
        Some(Permit::new(Arc::clone(self), hold))
    }

    /// A caller comes. `Err` if it is refused at once.
    pub(super) fn join(self: &Arc<Self>, wait: &Wait, caller: Caller) -> Result<Joined, Error> {
        let Ok(runtime) = Handle::try_current() else {
            return Err(Error::new(
                ErrorKind::NoRuntime,
                "a permit can only be taken on a thread with a tokio runtime",
            ));
        };
        let outage = self.gates.health.outage();
        let here = runtime.id();
        let mut guard = self.lock();
        let inner = &mut *guard;
        let now = self.time(inner);
        let mut joined = self.let_in(&mut inner.state, wait, caller, outage, now);
        if !inner.state.is_idle() {
            inner.pump.remember(runtime);
        }
        let pump = self.follow_up(guard, now);
        if let Ok(Joined::Waits { watched, .. }) = &mut joined {
            *watched = pump == Some(here);
        }
        joined
    }

    /// Whether he may have a permit that lingers, wait or try.
    fn let_in(
        &self,
        state: &mut State<Caller>,
        wait: &Wait,
        caller: Caller,
        outage: Option<Error>,
        now: Instant,
    ) -> Result<Joined, Error> {
        // Under the lock, as `close` is: nobody joins behind its back.
        if self.gates.closing.load(Ordering::Relaxed) {
            state.stats.failed += 1;
            return Err(shutting_down());
        }
        let outage = outage.or_else(|| {
            let trouble = state.trouble.as_ref()?;
            trouble.outage_at(now, self.gates.health.outage_after())
        });
        if let Some(outage) = outage {
            state.stats.unavailable += 1;
            state.probe();
            return Err(outage);
        }
        // It may have come this very moment.
        if let Some(hold) = state.take_lingering(caller.terms, now) {
            return Ok(Joined::Served(hold));
        }
        let ticket = self.gates.next_number();
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
        Ok(Joined::Waits {
            waiter: ticket,
            watched: false,
        })
    }

    /// A caller gives up. `false` if it was served already.
    pub(super) fn give_up(self: &Arc<Self>, waiter: u64, timed_out: bool) -> bool {
        let gone = self.tell(|state, _| {
            let gone = state.give_up(waiter);
            state.stats.timed_out += u64::from(gone.is_some() && timed_out);
            gone
        });
        gone.is_some()
    }

    // --- holding ---

    pub(crate) fn is_valid(&self, hold: Hold) -> bool {
        self.lock().state.tickets.is_valid(hold, now())
    }

    /// How the permit was lost, if it was.
    pub(crate) fn lost(self: &Arc<Self>, hold: Hold) -> Option<ErrorKind> {
        let expired = !self.lock().state.tickets.expired(now()).is_empty();
        if expired {
            // By a deadline that passed while the pump was busy.
            let news = self.tell(|state, now| state.expire(now));
            self.deliver(news);
        }
        self.lock().state.tickets.lost(hold)
    }

    /// When the permit is lost unless it is confirmed before, where that is so: for a mutex.
    pub(crate) fn expiry(&self, hold: Hold) -> Option<Instant> {
        self.lock().state.tickets.expiry(hold)
    }

    /// The fencing token of a permit that is held.
    pub(crate) fn token(&self, hold: Hold) -> Option<u64> {
        self.lock().state.tickets.token(hold)
    }

    /// Ends the next time that a permit of this name is lost.
    pub(crate) fn next_loss(&self) -> OwnedNotified {
        Arc::clone(&self.lost).notified_owned()
    }

    #[inline]
    pub(crate) fn claim(&self, hold: Hold) -> bool {
        let mut inner = self.lock();
        let now = match self.queue.kind() {
            Kind::Mutex => now(),
            // A reservation lapses when its end is looked for, not before: here no time matters.
            Kind::Limit => inner.clock.last(),
        };
        inner.state.tickets.claim(hold, now)
    }

    pub(crate) fn rearm(&self, hold: Hold) -> bool {
        self.lock().state.tickets.rearm(hold, now())
    }

    pub(crate) fn share(&self, hold: Hold) -> bool {
        self.lock().state.tickets.share(hold, now())
    }

    /// A guard is gone. `answer` hears whether the permit was held until then.
    #[inline]
    pub(crate) fn drop_guard(self: &Arc<Self>, hold: Hold, answer: Option<oneshot::Sender<bool>>) {
        let mut guard = self.lock();
        let inner = &mut *guard;
        let now = self.time(inner);
        if answer.is_none()
            && inner.pump.is_there()
            && let Some(until) = inner.state.linger(hold, now)
        {
            return inner.pump.wake(until);
        }
        self.drop_for_good(guard, hold, now, answer);
    }

    /// A guard is gone whose permit does not linger.
    fn drop_for_good(
        self: &Arc<Self>,
        mut inner: MutexGuard<'_, Inner>,
        hold: Hold,
        now: Instant,
        answer: Option<oneshot::Sender<bool>>,
    ) {
        let news = inner.state.drop_guard(hold, now, answer);
        self.follow_up(inner, now);
        self.deliver(news);
    }

    // --- what others do ---

    pub(super) fn pushed(self: &Arc<Self>, grant: Grant) {
        let news = self.tell(|state, now| state.pushed(grant, now));
        self.deliver(news);
    }

    pub(super) fn lose_all(self: &Arc<Self>) {
        let news = self.tell(|state, _| state.lose_all());
        self.deliver(news);
    }

    pub(super) fn resync(self: &Arc<Self>) {
        self.tell(|state, _| state.resync());
    }

    pub(super) fn stop_lingering(self: &Arc<Self>) {
        self.tell(|state, _| state.stop_lingering());
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.lock().state.is_quiet()
    }

    /// The last call was not answered, or refused.
    pub(super) fn is_failing(&self) -> bool {
        self.lock().failing
    }

    /// Whether the last call was not answered, or refused, counts for all names together.
    pub(super) fn note_failing(&self, inner: &mut Inner, failing: bool) {
        if inner.failing != failing {
            inner.failing = failing;
            self.gates.count_failing(failing);
        }
    }

    /// Refuses everybody and takes everything back. Returns how many permits were still out.
    pub(super) fn close(self: &Arc<Self>) -> usize {
        // What failed before says nothing of what is to be said now.
        self.note_failing(&mut self.lock(), false);
        let news = self.tell(|state, _| state.close(&shutting_down()));
        let cut = news.lost.len();
        self.deliver(news);
        cut
    }

    // --- plumbing ---

    #[inline]
    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    /// The time for what is done with each permit: to the point only where it decides who holds.
    #[inline]
    fn time(&self, inner: &mut Inner) -> Instant {
        match self.queue.kind() {
            Kind::Mutex => now(),
            Kind::Limit => inner.clock.now(),
        }
    }

    /// Changes the state, and sees to it that a pump says what there is to say. What wakes somebody, by a word or by
    /// being dropped, is for the caller to do: not under the lock, for who is woken may come right back.
    fn tell<T>(self: &Arc<Self>, change: impl FnOnce(&mut State<Caller>, Instant) -> T) -> T {
        let now = now();
        let mut inner = self.lock();
        inner.clock.set(now);
        let result = change(&mut inner.state, now);
        self.follow_up(inner, now);
        result
    }

    /// Sees to it that a pump does in time what there is to do now. Returns where it runs.
    fn follow_up(self: &Arc<Self>, mut guard: MutexGuard<'_, Inner>, now: Instant) -> Option<Id> {
        let inner = &mut *guard;
        if !inner.pump.is_calling() {
            inner.pump.wake(inner.state.due(now));
        }
        let pump = self.new_pump(inner, now);
        let runs = inner.pump.runtime();
        drop(guard);
        if let Some(pump) = pump {
            pump.start();
        }
        runs
    }

    /// Replaces a pump that has gone, if there is something to do.
    pub(super) fn look_after_pump(self: &Arc<Self>) {
        let pump = self.new_pump(&mut self.lock(), now());
        if let Some(pump) = pump {
            pump.start();
        }
    }

    /// Tells everybody concerned. Not under the lock: a permit whose caller is gone is dropped here, and leaves.
    pub(super) fn deliver(self: &Arc<Self>, news: News<Caller>) {
        for (hold, why) in &news.lost {
            let (name, ticket) = (&self.queue, self.ticket(hold.ticket));
            match why {
                ErrorKind::HeldTooLong => tracing::warn!(
                    %name, ticket, "a permit was held for longer than max_hold: it is given back"
                ),
                ErrorKind::ShuttingDown => tracing::warn!(
                    %name, ticket, "a permit was still held when the shutdown took it back"
                ),
                _ => tracing::error!(%name, ticket, "a permit was lost while it was in use"),
            }
        }
        if !news.lost.is_empty() {
            self.lost.notify_waiters();
        }
        for (caller, hold) in news.next.into_iter().chain(news.granted) {
            let permit = Permit::new(Arc::clone(self), hold);
            let _ = caller.answer.send(Ok(permit));
        }
        for (caller, error) in news.refused {
            let _ = caller.answer.send(Err(error));
        }
        for (answer, held) in news.answers {
            let _ = answer.send(held);
        }
        drop(news.unanswered);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.note_failing(&mut self.lock(), false);
        self.gates.forget(&self.queue);
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate")
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

fn shutting_down() -> Error {
    Error::new(ErrorKind::ShuttingDown, "the coordinator is shutting down")
}
