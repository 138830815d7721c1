//! The one task of a coordinator that talks to the backend.
//!
//! It removes the names that need it from the schedule, builds batches of calls, keeps a few of them in flight and passes
//! the replies to the names. Decisions about a name are made by its [`State`](crate::client::state::State).

use super::CHECK_DRIVER;
use super::in_flight::{GivenUp, Names};
use crate::backend::Reply;
use crate::client::queue_client::QueueClient;
use crate::client::registry::Client;
use crate::client::schedule::TimerKey;
use crate::clock::now;
use crate::error::{Error, ErrorKind};
use futures_util::StreamExt;
use futures_util::future::{Abortable, FutureExt};
use futures_util::stream::FuturesUnordered;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::runtime::{Handle, Id};
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep};

/// The longest sleep of the driver.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);
/// How many timers are removed under one lock.
const TIMERS_AT_A_TIME: usize = 256;

/// One driver. If it is dropped with its runtime, another one replaces it.
pub(super) struct Driver {
    client: Weak<Client>,
    wake: Arc<Notify>,
    number: u64,
    runtime: Id,
    /// It was polled: its runtime had not ended when it was spawned.
    is_polled: bool,
    /// It has waited for work once: its runtime has what it needs.
    has_waited: bool,
}

/// What the driver does next.
enum Turn {
    /// The timers of these names have fired.
    Due(Vec<(TimerKey, Arc<QueueClient>)>),
    /// These names need a call; those with a renewal only are marked.
    Batch(Vec<(Arc<QueueClient>, bool)>),
    /// These batches were not answered in time.
    GiveUp(Vec<GivenUp<Arc<QueueClient>>>),
    Sleep(Instant),
    /// Another driver has replaced this one.
    Replaced,
}

/// Removes a batch when its future ends or is dropped. Calls without a reply are sent again.
struct BatchInFlight {
    client: Arc<Client>,
    id: u64,
}

// === impl Driver ===

impl Driver {
    pub(super) fn new(client: &Arc<Client>, wake: Arc<Notify>, number: u64, runtime: Id) -> Self {
        Self {
            client: Arc::downgrade(client),
            wake,
            number,
            runtime,
            is_polled: false,
            has_waited: false,
        }
    }

    pub(super) async fn run(mut self) {
        self.is_polled = true;
        self.resend_in_flight();
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
                        name.on_timer(key, now);
                    }
                }
                Turn::Batch(ready) => batches.extend(client.send(ready, now)),
                Turn::GiveUp(batches) => client.give_up(batches, now),
                Turn::Sleep(until) => {
                    // A driver that sleeps keeps nothing of the coordinator alive.
                    drop(client);
                    arm(timer.as_mut(), &mut armed, until, now);
                    self.has_waited = true;
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

    /// Sends again what the replaced driver had in flight: its runtime is not driven.
    fn resend_in_flight(&self) {
        let Some(client) = self.client.upgrade() else {
            return;
        };
        let mut shared = client.work.shared();
        if shared.slot.current == self.number {
            let in_flight = shared.in_flight.remove_all();
            drop(shared);
            in_flight.iter().for_each(resend);
        }
    }

    /// Another driver has replaced this one, perhaps on another runtime. Callers that joined while this one was running rely
    /// on a task of their own runtime to check that there still is a driver.
    async fn watch(&self) {
        loop {
            tokio::time::sleep(CHECK_DRIVER).await;
            let Some(client) = self.client.upgrade() else {
                return;
            };
            client.ensure_driver();
            let shared = client.work.shared();
            if shared.is_idle() || shared.slot.runtime() == Some(self.runtime) {
                return;
            }
        }
    }
}

/// Sets the timer, unless it ends before `until` already: each new earliest timer of a runtime may cost a system call.
fn arm(mut timer: Pin<&mut Sleep>, armed: &mut Option<Instant>, until: Instant, now: Instant) {
    if armed.is_none_or(|armed| until < armed) {
        let at = Instant::now() + until.saturating_duration_since(now);
        timer.as_mut().reset(at);
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
        // Before its first poll it is dropped with its runtime, perhaps by a panic of the application that unwinds.
        let panicked = std::thread::panicking() && self.is_polled;
        if panicked && self.has_waited {
            // A panic ends the task and not its runtime.
            let start = client.start_driver(&mut shared, Handle::try_current().ok(), now());
            drop(shared);
            start.run();
            // Names that it had removed from the schedule are entered again.
            return client.all().iter().for_each(|name| name.restart());
        }
        shared.slot.ended(self.runtime);
        client.work.latest.store(0, Ordering::Relaxed);
        client.work.driven_by.store(0, Ordering::Relaxed);
        let pinned = client.work.pinned.is_pinned();
        if !pinned && !panicked {
            // Its runtime has ended before its work was done. If the next runtime has ended too, its driver gets here again.
            let latest = shared.slot.runtimes.last().cloned();
            let another = latest.filter(|_| !shared.is_idle());
            let start = client.start_driver(&mut shared, another, now());
            drop(shared);
            return start.run();
        }
        drop(shared);
        let error = match pinned {
            true => client.work.pinned.end(),
            false => Error::new(
                ErrorKind::NoRuntime,
                "the runtime has no timers: build it with enable_all or enable_time",
            ),
        };
        // Callers would wait in vain.
        for name in client.all() {
            name.close(&error);
        }
        if pinned {
            // No other driver follows: what is scheduled must not keep the coordinator alive.
            let scheduled = std::mem::take(&mut client.work.shared().schedule);
            drop(scheduled);
        }
    }
}

// === impl Client ===

impl Client {
    /// Decides what the driver with this number does next.
    fn next_turn(&self, number: u64, now: Instant) -> Turn {
        let mut guard = self.work.shared();
        let shared = &mut *guard;
        if shared.slot.current != number {
            return Turn::Replaced;
        }
        shared.slot.acts(now, false);
        let given_up = shared.in_flight.give_up(now, &self.outages);
        if !given_up.is_empty() {
            return Turn::GiveUp(given_up);
        }
        let due = || shared.schedule.pop_due(now);
        let due: Vec<_> = std::iter::from_fn(due).take(TIMERS_AT_A_TIME).collect();
        if !due.is_empty() {
            return Turn::Due(due);
        }
        let batching = self.work.batching;
        let most = shared.batch_size(batching);
        if most > 0 {
            // Renewals get half of the calls in flight: the other half is for calls that callers wait for.
            let max_renewals = (batching.calls * batching.in_flight).div_ceil(2);
            let renewals = || shared.in_flight.renewals() < max_renewals;
            let ready = || shared.schedule.pop_ready(renewals);
            let ready: Vec<_> = std::iter::from_fn(ready).take(most).collect();
            if !ready.is_empty() {
                return Turn::Batch(ready);
            }
        }
        let times = [
            shared.schedule.next_timer(),
            shared.in_flight.next_deadline(&self.outages),
        ];
        let next = times.into_iter().flatten().min();
        let next = next.unwrap_or(now + LONGEST_SLEEP);
        shared.slot.acts(next, true);
        Turn::Sleep(next)
    }

    /// Sends a batch of calls about these names, as far as they have something to send, and passes each reply to its name.
    /// Names that do not fit are entered into the schedule again.
    fn send(
        self: &Arc<Self>,
        ready: Vec<(Arc<QueueClient>, bool)>,
        now: Instant,
    ) -> Option<impl Future<Output = ()> + Send + use<>> {
        let renewals = ready.iter().all(|(_, renewal)| *renewal);
        let mut calls = Vec::with_capacity(ready.len());
        let mut names = Vec::with_capacity(ready.len());
        let mut room = self.work.batching.tickets;
        for (name, renewal) in ready {
            if let Some(call) = name.next_call(renewal, room > 0, now) {
                let to_acquire = call.acquire.len() + call.try_acquire.len();
                let tickets = call.release.len() + call.renew.len() + to_acquire;
                room = room.saturating_sub(tickets);
                names.push((name, call.number));
                calls.push(call);
            }
        }
        if calls.is_empty() {
            return None;
        }
        let (names, sent) = (Names::from(names), now);
        let mut shared = self.work.shared();
        let (id, registration) = shared.in_flight.add(Arc::clone(&names), renewals, sent);
        drop(shared);
        // Made before the first poll, which may never happen.
        let client = Arc::clone(self);
        let batch = BatchInFlight { client, id };
        let replies = async move {
            let client = &batch.client;
            let mut replies = client.session.exchange(calls).ready_chunks(names.len());
            while let Some(arrived) = replies.next().await {
                let now = crate::clock::now();
                for (at, reply) in arrived {
                    if let Some((name, number)) = names.get(at) {
                        client.on_reply(name, *number, reply, sent, now);
                    }
                }
            }
        };
        Some(Abortable::new(replies, registration).map(drop))
    }

    fn on_reply(
        &self,
        name: &Arc<QueueClient>,
        number: u64,
        reply: Result<Reply, Error>,
        sent: Instant,
        now: Instant,
    ) {
        match &reply {
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                let refusal = self.outages.failed(sent, now, error);
                return name.on_failure(number, error, refusal.as_ref(), sent, now);
            }
            _ => self.outages.answered(now),
        }
        match reply {
            Ok(Reply::Done(outcome)) => name.on_reply(number, &outcome, sent, now),
            // An answer as well, though not to this call: it is sent again.
            Ok(Reply::Stale) => name.on_stale(number, now),
            // Waiting would not help.
            Err(error) => name.on_failure(number, &error, Some(&error), sent, now),
        }
    }

    fn give_up(&self, batches: Vec<GivenUp<Arc<QueueClient>>>, now: Instant) {
        for (names, sent) in batches {
            let waited = now.saturating_duration_since(sent).as_millis();
            let error = format!("the backend did not answer within {waited} ms");
            let error = Error::new(ErrorKind::Unavailable, error);
            let refusal = self.outages.failed(sent, now, &error);
            for (name, number) in names.iter() {
                name.on_failure(*number, &error, refusal.as_ref(), sent, now);
            }
        }
    }
}

// === impl BatchInFlight ===

impl Drop for BatchInFlight {
    fn drop(&mut self) {
        let unanswered = self.client.work.shared().in_flight.remove(self.id);
        unanswered.iter().for_each(resend);
    }
}

/// Sends the calls of a batch again that have no reply.
fn resend(names: &Names<Arc<QueueClient>>) {
    for (name, number) in names.iter() {
        name.on_dropped(*number);
    }
}
