//! This process's side of each name: the local waiters, the permits that are held, and what to tell the backend next.
//!
//! Callers hold the receiving end of a channel ([`Acquire`]) or a guard ([`Permit`](crate::Permit)); both may be
//! dropped at any time. All talk with the backend is the [`pump`]'s, which decides nothing itself: [`State`] does.

mod acquire;
mod hands;
mod health;
mod line;
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
pub use stats::Stats;

use crate::backend::{Event, Grant, Inspection, Session, call_time};
use crate::clock::{self, now};
use crate::error::{Error, ErrorKind};
use crate::name::{Kind, Node, Queue};
use crate::permit::Permit;
use hands::Shortcuts;
use health::Health;
use pulse::Pulse;
use pump::PumpSlot;
use state::{HasTerms, News, State};
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
pub(crate) use tickets::{Hold, Terms};
use tokio::runtime::{Handle, Id};
use tokio::sync::futures::OwnedNotified;
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::time::Instant;

const MOST_RENEWALS: usize = 256;
/// All names together try again at most so often, once every pause of a single one would make it more; and each once a
/// second.
const RETRY_EVERY: Duration = Duration::from_micros(100);
const LONGEST_RETRY: Duration = Duration::from_secs(1);

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

/// This process's side of one name. Lives as long as somebody holds a semaphore, a permit or a place in the line.
pub(crate) struct Gate {
    gates: Arc<Gates>,
    queue: Queue,
    inner: Mutex<Inner>,
    /// Some permit of this name was lost.
    lost: Arc<Notify>,
}

struct Inner {
    state: State<Caller>,
    pump: PumpSlot,
    clock: clock::Coarse,
    /// The last call was not answered.
    failing: bool,
}

/// What becomes of a caller who comes.
enum Joined {
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
struct Caller {
    answer: oneshot::Sender<Result<Permit, Error>>,
    terms: Terms,
}

// === impl Gates ===

impl Gates {
    pub(crate) fn new(
        settings: Settings,
        open: impl FnOnce(Node, crate::backend::Events) -> Arc<dyn Session>,
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
            let events = crate::backend::Events::new(move |event| {
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
        let (strict, now) = (queue.kind() == Kind::Mutex, now());
        let gate = Arc::new(Gate {
            gates: Arc::clone(self),
            queue: queue.clone(),
            inner: Mutex::new(Inner {
                state: State::new(limit, self.lease, strict, self.shortcuts, now),
                pump: PumpSlot::default(),
                clock: clock::Coarse::default(),
                failing: false,
            }),
            lost: Arc::new(Notify::new()),
        });
        by_queue.insert(queue, Arc::downgrade(&gate));
        gate
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
    /// out. Ends when every leave was answered, or is a lease old. Returns how many permits were still out.
    pub(crate) async fn shut_down(&self, within: Duration) -> usize {
        self.closing.store(true, Ordering::Relaxed);
        self.all().iter().for_each(|gate| gate.stop_lingering());
        let _ = tokio::time::timeout(within, self.all_quiet()).await;
        let gates = self.all();
        let cut = gates.iter().map(|gate| gate.close()).sum();
        drop(gates);
        // Not for ever: a leave is said for one lease at most.
        self.all_quiet().await;
        cut
    }

    async fn all_quiet(&self) {
        loop {
            let quiet = self.quiet.notified();
            tokio::pin!(quiet);
            quiet.as_mut().enable();
            let busy: Vec<_> = self.all().into_iter().filter(|g| !g.is_quiet()).collect();
            if busy.is_empty() {
                return;
            }
            busy.iter().for_each(|gate| gate.look_after_pump());
            drop(busy);
            let _ = tokio::time::timeout(Duration::from_millis(250), quiet).await;
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

// === impl Gate ===

impl Gate {
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

    fn lingering(&self) -> Vec<String> {
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
    fn join(self: &Arc<Self>, wait: &Wait, caller: Caller, now: Instant) -> Result<Joined, Error> {
        let Ok(runtime) = Handle::try_current() else {
            return Err(Error::new(
                ErrorKind::NoRuntime,
                "a permit can only be taken on a thread with a tokio runtime",
            ));
        };
        let outage = self.gates.health.outage();
        let here = runtime.id();
        let (mut joined, pump) = self.tell_on(Some(runtime), now, |state, now| {
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
        });
        if let Ok(Joined::Waits { watched, .. }) = &mut joined {
            *watched = pump == Some(here);
        }
        joined
    }

    /// A caller gives up. `false` if it was served already.
    fn give_up(self: &Arc<Self>, waiter: u64, timed_out: bool) -> bool {
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

    fn pushed(self: &Arc<Self>, grant: Grant) {
        let news = self.tell(|state, now| state.pushed(grant, now));
        self.deliver(news);
    }

    fn lose_all(self: &Arc<Self>) {
        let news = self.tell(|state, _| state.lose_all());
        self.deliver(news);
    }

    fn resync(self: &Arc<Self>) {
        self.tell(|state, _| state.resync());
    }

    fn stop_lingering(self: &Arc<Self>) {
        self.tell(|state, _| state.stop_lingering());
    }

    fn is_quiet(&self) -> bool {
        self.lock().state.is_quiet()
    }

    /// Refuses everybody and takes everything back. Returns how many permits were still out.
    fn close(self: &Arc<Self>) -> usize {
        let news = self.tell(|state, _| state.close(&shutting_down()));
        let cut = news.lost.len();
        self.deliver(news);
        cut
    }

    // --- plumbing ---

    #[inline]
    fn lock(&self) -> MutexGuard<'_, Inner> {
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
        self.tell_on(None, now(), change).0
    }

    /// [`tell`](Self::tell), by a caller whose runtime may have to go on with what he begins.
    fn tell_on<T>(
        self: &Arc<Self>,
        runtime: Option<Handle>,
        now: Instant,
        change: impl FnOnce(&mut State<Caller>, Instant) -> T,
    ) -> (T, Option<Id>) {
        let mut inner = self.lock();
        inner.clock.set(now);
        let result = change(&mut inner.state, now);
        if let Some(runtime) = runtime
            && !inner.state.is_idle()
        {
            inner.pump.remember(runtime);
        }
        (result, self.follow_up(inner, now))
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
    fn look_after_pump(self: &Arc<Self>) {
        let pump = self.new_pump(&mut self.lock(), now());
        if let Some(pump) = pump {
            pump.start();
        }
    }

    /// Tells everybody concerned. Not under the lock: a permit whose caller is gone is dropped here, and leaves.
    fn deliver(self: &Arc<Self>, news: News<Caller>) {
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
        if self.lock().failing {
            self.gates.count_failing(false);
        }
        let mut by_queue = lock(&self.gates.by_queue);
        // There may be a new one under the same name by now.
        if by_queue
            .get(&self.queue)
            .is_some_and(|g| g.strong_count() == 0)
        {
            by_queue.remove(&self.queue);
        }
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

/// A panic elsewhere does not make the state wrong: nothing here panics half-way.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
