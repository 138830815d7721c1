//! A backend that is slow, silent or down, runtimes that end, and what callers see of it.

use crate::backend::{
    Backend, Batching, Call, Capabilities, Event, Events, Inspection, Open, Replies, Session, each,
    exchange_one,
};
use crate::error::{Error, ErrorKind};
use crate::name::{Node, Queue};
use crate::{Coordinator, Memory, MutexGuard, Semaphore};
use futures_util::future::{BoxFuture, join_all};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::runtime::Builder;
use tokio::time::{Instant, sleep, timeout};

pub(super) const MILLI: Duration = Duration::from_millis(1);
pub(super) const SECOND: Duration = Duration::from_secs(1);

/// How the backend handles a call.
#[derive(Clone, Copy, Debug)]
pub(super) enum Behavior {
    /// It replies after this time.
    After(Duration),
    /// It never replies, and executes nothing.
    Silent,
    /// It fails at once.
    Refusing,
    /// It panics.
    Panicking,
}

/// A proxy in front of [`Memory`].
#[derive(Clone)]
pub(super) struct Proxy {
    memory: Memory,
    behaviors: Arc<Mutex<Behaviors>>,
    counters: Arc<Counters>,
}

/// How many calls the proxy received.
#[derive(Debug, Default)]
struct Counters {
    calls: AtomicUsize,
    in_flight: AtomicUsize,
    max_in_flight: AtomicUsize,
}

#[derive(Debug)]
struct Behaviors {
    /// For one call each.
    next: VecDeque<Behavior>,
    then: Behavior,
}

struct ProxySession {
    session: Arc<dyn Session>,
    behaviors: Arc<Mutex<Behaviors>>,
    counters: Arc<Counters>,
}

/// [`Memory`], with access to its events.
#[derive(Clone, Default)]
struct WithEvents {
    memory: Memory,
    events: Arc<Mutex<Option<Events>>>,
}

impl Backend for WithEvents {}

impl Open for WithEvents {
    fn open(self, node: Node, events: Events) -> Arc<dyn Session> {
        *self.events.lock().unwrap() = Some(events.clone());
        self.memory.open(node, events)
    }
}

impl Proxy {
    pub(super) fn new(then: Behavior) -> Self {
        let next = VecDeque::new();
        Self {
            memory: Memory::new(),
            behaviors: Arc::new(Mutex::new(Behaviors { next, then })),
            counters: Arc::default(),
        }
    }

    pub(super) fn set(&self, then: Behavior) {
        self.behaviors.lock().unwrap().then = then;
    }

    fn once(&self, behavior: Behavior) {
        self.behaviors.lock().unwrap().next.push_back(behavior);
    }

    pub(super) fn semaphore(&self, lease: Duration) -> (Coordinator, Semaphore) {
        let permits = Coordinator::builder(self.clone()).lease(lease);
        let permits = permits.build().expect("a valid lease");
        let semaphore = permits.semaphore("test", 1).expect("a valid limit");
        (permits, semaphore)
    }
}

impl Counters {
    async fn watch(&self, call: impl Future<Output = ()>) {
        let in_flight = self.in_flight.fetch_add(1, Relaxed) + 1;
        self.max_in_flight.fetch_max(in_flight, Relaxed);
        call.await;
        self.in_flight.fetch_sub(1, Relaxed);
    }
}

impl Backend for Proxy {}

impl Open for Proxy {
    fn open(self, node: Node, events: Events) -> Arc<dyn Session> {
        Arc::new(ProxySession {
            session: self.memory.open(node, events),
            behaviors: self.behaviors,
            counters: self.counters,
        })
    }
}

impl Session for ProxySession {
    fn exchange(&self, batch: Vec<Call>) -> Replies<'_> {
        each(batch, |call| {
            let behavior = {
                let mut behaviors = self.behaviors.lock().unwrap();
                behaviors.next.pop_front().unwrap_or(behaviors.then)
            };
            async move {
                self.counters.calls.fetch_add(1, Relaxed);
                match behavior {
                    Behavior::After(time) => self.counters.watch(sleep(time)).await,
                    Behavior::Silent => std::future::pending().await,
                    Behavior::Panicking => panic!("the backend panics"),
                    Behavior::Refusing => {
                        return Err(Error::new(ErrorKind::Unavailable, "refused"));
                    }
                }
                exchange_one(&*self.session, call).await
            }
        })
    }

    fn batching(&self) -> Batching {
        Batching::SINGLE
    }

    fn inspect(&self, queue: Queue) -> BoxFuture<'_, Result<Inspection, Error>> {
        self.session.inspect(queue)
    }

    fn evict(&self, queue: Queue, ticket: String) -> BoxFuture<'_, Result<bool, Error>> {
        self.session.evict(queue, ticket)
    }

    fn check(&self, lease: Duration) -> BoxFuture<'_, Result<(), Error>> {
        self.session.check(lease)
    }

    fn capabilities(&self) -> Capabilities {
        self.session.capabilities()
    }
}

/// Returns how long a future took, and its output.
pub(super) async fn timed<T>(future: impl Future<Output = T>) -> (Duration, T) {
    let before = Instant::now();
    let result = future.await;
    (before.elapsed(), result)
}

#[tokio::test(start_paused = true)]
async fn a_slow_reply_is_received_however_many_waiters_arrive_meanwhile() {
    let proxy = Proxy::new(Behavior::After(350 * MILLI));
    let (_permits, semaphore) = proxy.semaphore(10 * SECOND);
    let first = tokio::spawn({
        let semaphore = semaphore.clone();
        async move { semaphore.acquire().await }
    });
    // Each of them has a new ticket to send while the first call is in flight.
    let mut others = Vec::new();
    for _ in 0..20 {
        sleep(30 * MILLI).await;
        let semaphore = semaphore.clone();
        others.push(tokio::spawn(async move { semaphore.acquire().await }));
    }
    let permit = first.await.unwrap().expect("a permit");
    assert_eq!(semaphore.stats().in_use, 1);
    drop(permit);
    for other in others {
        drop(other.await.unwrap().expect("a permit"));
    }
}

#[test]
fn a_try_is_answered_although_the_runtime_of_the_driver_ends() {
    let proxy = Proxy::new(Behavior::After(Duration::ZERO));
    proxy.once(Behavior::Silent);
    proxy.once(Behavior::Silent);
    let permits = Coordinator::builder(proxy.clone()).outage_after(30 * SECOND);
    let permits = permits.build().expect("valid settings");
    // A permit for both: the other one may be served before its runtime has dropped it.
    let semaphore = permits.semaphore("test", 2).expect("a valid limit");
    // The driver runs here, and is about to send the second call when this runtime ends.
    let there = Builder::new_multi_thread().enable_all().build().unwrap();
    let other = semaphore.clone();
    there.spawn(async move { other.try_acquire().await.map(drop) });
    while semaphore.stats().waiting == 0 {
        std::thread::yield_now();
    }
    let here = Builder::new_current_thread().enable_all().build().unwrap();
    let answer = here.block_on(async {
        let attempt = tokio::spawn(async move { semaphore.try_acquire().await.map(drop) });
        sleep(700 * MILLI).await;
        there.shutdown_background();
        timeout(5 * SECOND, attempt).await
    });
    let answer = answer.expect("an answer").unwrap();
    assert!(answer.is_ok(), "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn new_waiters_are_refused_in_time_however_the_backend_fails() {
    for lease in [SECOND, 10 * SECOND] {
        for quick in 0..12 {
            let proxy = Proxy::new(Behavior::Silent);
            for _ in 0..quick {
                proxy.once(Behavior::Refusing);
            }
            let (_permits, semaphore) = proxy.semaphore(lease);
            let (took, answer) = timed(semaphore.acquire()).await;
            assert_eq!(answer.unwrap_err().kind(), ErrorKind::Unavailable);
            let expected = SECOND..=1250 * MILLI;
            assert!(expected.contains(&took), "{took:?}, {lease:?}, {quick}");
            let (took, answer) = timed(semaphore.try_acquire()).await;
            assert_eq!(answer.unwrap_err().kind(), ErrorKind::Unavailable);
            assert_eq!(took, Duration::ZERO, "the outage is known");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_second_outage_is_like_the_first_and_queued_waiters_keep_waiting() {
    let proxy = Proxy::new(Behavior::After(MILLI));
    let (_permits, semaphore) = proxy.semaphore(10 * SECOND);
    let held = semaphore.acquire().await.unwrap();
    let waiting = tokio::spawn({
        let semaphore = semaphore.clone();
        async move { semaphore.acquire().await }
    });
    sleep(SECOND).await;
    for _ in 0..2 {
        proxy.set(Behavior::Silent);
        let (took, answer) = timed(semaphore.acquire()).await;
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::Unavailable);
        assert!((SECOND..=1250 * MILLI).contains(&took), "{took:?}");
        sleep(2 * SECOND).await;
        proxy.set(Behavior::After(MILLI));
        sleep(SECOND).await;
        assert!(held.is_valid() && !waiting.is_finished());
        let error = semaphore.try_acquire().await.unwrap_err();
        assert_eq!(
            error.kind(),
            ErrorKind::LimitReached,
            "the backend answers again"
        );
    }
    drop(held);
    drop(waiting.await.unwrap().expect("a permit"));
}

#[tokio::test(start_paused = true)]
async fn a_session_that_ends_loses_every_permit_at_once_and_waiters_are_served() {
    let backend = WithEvents::default();
    let permits = Coordinator::new(backend.clone());
    let one = permits.mutex("one").unwrap();
    let many = permits.semaphore("many", 2).unwrap();
    let (guard, permit) = (one.lock().await.unwrap(), many.acquire().await.unwrap());
    let waiter = tokio::spawn({
        let one = one.clone();
        async move { one.lock().await }
    });
    sleep(10 * MILLI).await;
    let start = Instant::now();
    let events = backend.events.lock().unwrap().clone().unwrap();
    events.send(Event::Lost);
    timeout(SECOND, guard.lost())
        .await
        .expect("the guard reports it");
    timeout(SECOND, permit.lost())
        .await
        .expect("the permit reports it");
    assert!(start.elapsed() < 10 * MILLI);
    assert_eq!((many.stats().lost, many.stats().in_use), (1, 0));
    let guard = timeout(SECOND, waiter).await.expect("it is served");
    assert!(guard.unwrap().unwrap().is_valid());
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_keys_are_renewed_and_no_waiter_is_delayed_by_them() {
    let proxy = Proxy::new(Behavior::After(10 * MILLI));
    let permits = Coordinator::new(proxy.clone());
    let guards = ten_thousand(&permits).await;
    proxy.counters.max_in_flight.store(0, Relaxed);
    // All of them are due at once, and then again. New waiters arrive all the time.
    let start = Instant::now();
    while start.elapsed() < 8 * SECOND {
        let (took, guard) = timed(permits.mutex("another").unwrap().lock()).await;
        assert!(took <= 20 * MILLI, "{took:?}");
        guard.unwrap().unlock().await.unwrap();
    }
    assert!(guards.iter().all(|guard| guard.is_valid()));
    let most = proxy.counters.max_in_flight.load(Relaxed);
    // Renewals use half of the calls that may be in flight.
    assert!((30..=34).contains(&most), "{most} calls at a time");
}

async fn ten_thousand(permits: &Coordinator) -> Vec<MutexGuard> {
    let locks = (0..10_000).map(|n| {
        let mutex = permits.mutex(n.to_string()).expect("a valid name");
        async move { mutex.lock().await.expect("free") }
    });
    join_all(locks).await
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_keys_do_not_flood_a_backend_that_is_down() {
    let proxy = Proxy::new(Behavior::After(10 * MILLI));
    let permits = Coordinator::new(proxy.clone());
    drop(ten_thousand(&permits).await);
    proxy.set(Behavior::Refusing);
    sleep(SECOND).await;
    proxy.counters.calls.store(0, Relaxed);
    sleep(5 * SECOND).await;
    let calls = proxy.counters.calls.load(Relaxed);
    assert!(calls < 100_000, "{calls} in five seconds");
    // When it is up again, everything is sent soon.
    proxy.set(Behavior::After(10 * MILLI));
    let (took, done) = timed(permits.shutdown(SECOND)).await;
    assert!(done.is_ok() && took < 2 * SECOND, "{done:?} after {took:?}");
}

#[test]
fn a_permit_that_lingered_is_renewed_although_the_runtime_of_its_acquire_has_ended() {
    for gone_before in [true, false] {
        let permits = Coordinator::builder(Memory::new()).lease(SECOND);
        let permits = permits.build().expect("a valid lease");
        let semaphore = permits.semaphore("test", 4).expect("a valid limit");
        let runtime = || Builder::new_current_thread().enable_all().build().unwrap();
        let (here, mut there) = (runtime(), Some(runtime()));
        if let Some(there) = &there {
            there.block_on(async { drop(semaphore.acquire().await.expect("free")) });
        }
        assert_eq!(semaphore.stats().lingering, 1);
        if gone_before {
            drop(there.take());
        }
        let permit = here.block_on(semaphore.acquire()).expect("it lingered");
        drop(there);
        here.block_on(async {
            let lost = timeout(2 * SECOND, permit.lost()).await;
            assert!(lost.is_err() && permit.is_valid(), "{lost:?}");
        });
    }
}

fn tasks() -> usize {
    tokio::runtime::Handle::current()
        .metrics()
        .num_alive_tasks()
}

async fn until_no_task_is_left() {
    let ended = async {
        while tasks() > 0 {
            tokio::task::yield_now().await;
        }
    };
    timeout(SECOND, ended).await.expect("no task is left");
}

#[tokio::test(start_paused = true)]
async fn many_names_share_one_task_which_ends_with_the_coordinator() {
    let permits = Coordinator::new(Memory::new());
    let locks: Vec<_> = (0..100)
        .map(|n| permits.mutex(n.to_string()).unwrap())
        .collect();
    let guards: Vec<_> = join_all(locks.iter().map(|lock| lock.lock())).await;
    assert_eq!(tasks(), 1);
    drop((guards, locks, permits));
    until_no_task_is_left().await;
}

#[test]
fn a_given_runtime_that_ends_leaves_errors_and_no_waits() {
    let given = Builder::new_current_thread().enable_all().build().unwrap();
    let here = Builder::new_current_thread().enable_all().build().unwrap();
    let memory = Memory::new();
    let other = Coordinator::new(memory.clone());
    let builder = Coordinator::builder(memory).runtime(given.handle().clone());
    let permits = builder.build().unwrap();
    here.block_on(async {
        let held = other.mutex("a").unwrap().lock().await.unwrap();
        let waits = tokio::spawn({
            let lock = permits.mutex("a").unwrap();
            async move { lock.lock().await.map(drop) }
        });
        // The runtime is driven on another thread until the waiter is queued, and ends then.
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let driven = std::thread::spawn(move || {
            let _ = given.block_on(stopped);
            drop(given);
        });
        while permits.mutex("a").unwrap().inspect().await.unwrap().queued == 0 {
            tokio::task::yield_now().await;
        }
        drop(stop);
        driven.join().unwrap();
        let error = waits.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::NoRuntime);
        let error = permits.mutex("b").unwrap().lock().await.unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::NoRuntime);
        let error = permits.check().await.unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::NoRuntime);
        drop(held);
    });
}

#[test]
fn a_dedicated_thread_ends_with_its_coordinator() {
    let here = Builder::new_current_thread().enable_all().build().unwrap();
    let permits = Coordinator::builder(Memory::new())
        .dedicated_thread()
        .build()
        .unwrap();
    here.block_on(async { drop(permits.mutex("a").unwrap().lock().await.unwrap()) });
    let threads = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let names =
            tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
        names.filter(|name| name.trim() == "tower-permit").count()
    };
    assert!(threads() > 0);
    drop(permits);
    let end = std::time::Instant::now() + 10 * SECOND;
    while threads() > 0 {
        assert!(
            std::time::Instant::now() < end,
            "the thread is still running"
        );
        std::thread::yield_now();
    }
}

fn current_thread() -> tokio::runtime::Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn a_driver_that_was_replaced_consumes_no_wakeup() {
    let permits = Coordinator::new(Memory::new());
    let semaphore = permits.semaphore("test", 4).unwrap();
    let (one, two) = (current_thread(), current_thread());
    // The driver sleeps here until the permit stops lingering; this runtime is not driven any more.
    one.block_on(async {
        drop(semaphore.acquire().await.unwrap());
        tokio::task::yield_now().await;
    });
    two.block_on(async {
        for n in 0..6 {
            let lock = permits.mutex(n.to_string()).unwrap();
            let guard = timeout(5 * SECOND, lock.lock()).await;
            // Held, so that the driver has nothing to do before the next wakeup.
            std::mem::forget(guard.expect("the driver is woken").unwrap());
            sleep(20 * MILLI).await;
        }
    });
    drop(one);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_of_many_names_during_an_outage_is_bounded() {
    let proxy = Proxy::new(Behavior::After(10 * MILLI));
    let permits = Coordinator::new(proxy.clone());
    let guards = ten_thousand(&permits).await;
    proxy.set(Behavior::Silent);
    let (took, result) = timed(permits.shutdown(Duration::ZERO)).await;
    assert!(result.is_err(), "permits were still held");
    assert!(took < 4 * SECOND, "{took:?}");
    drop(guards);
}

#[test]
fn a_flush_and_a_shutdown_end_although_the_given_runtime_has_ended() {
    let (given, here) = (current_thread(), current_thread());
    let builder = Coordinator::builder(Memory::new()).runtime(given.handle().clone());
    let permits = builder.build().unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let driven = std::thread::spawn(move || {
        let _ = given.block_on(stopped);
    });
    here.block_on(async {
        let held = permits.mutex("a").unwrap().lock().await.unwrap();
        drop(stop);
        driven.join().unwrap();
        drop(held);
        timeout(5 * SECOND, permits.flush()).await.expect("it ends");
        let shutdown = permits.shutdown(10 * SECOND);
        let _ = timeout(5 * SECOND, shutdown).await.expect("it ends");
    });
}

#[tokio::test(start_paused = true)]
async fn a_wait_of_any_length_ends_in_time() {
    let permits = Coordinator::new(Memory::new());
    let lock = permits.mutex("a").unwrap();
    let _held = lock.lock().await.unwrap();
    for wait in [1, 200, 350, 2_100, 3_000].map(Duration::from_millis) {
        let (took, result) = timed(lock.lock_timeout(wait)).await;
        assert_eq!(result.unwrap_err().kind(), crate::ErrorKind::WaitTimeout);
        assert!(took <= wait + 5 * MILLI, "{took:?} instead of {wait:?}");
    }
}

#[test]
fn a_runtime_without_timers_is_an_error() {
    let runtime = Builder::new_current_thread().build().unwrap();
    let permits = Coordinator::new(Memory::new());
    let lock = permits.mutex("a").unwrap();
    for _ in 0..2 {
        let error = runtime.block_on(async { lock.lock().await.unwrap_err() });
        assert_eq!(error.kind(), crate::ErrorKind::NoRuntime);
    }
    // On another runtime it works.
    let guard = current_thread().block_on(async { lock.lock().await });
    assert!(guard.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_panic_ends_a_driver_and_no_wait() {
    let proxy = Proxy::new(Behavior::After(10 * MILLI));
    let permits = Coordinator::new(proxy.clone());
    let lock = permits.mutex("a").unwrap();
    drop(lock.lock().await.unwrap());
    proxy.once(Behavior::Panicking);
    let other = permits.mutex("b").unwrap();
    let both = async { tokio::join!(lock.lock(), other.lock()) };
    let (one, other) = timeout(SECOND, both)
        .await
        .expect("the driver starts again");
    assert!(one.unwrap().is_valid() && other.unwrap().is_valid());
}

#[test]
fn a_runtime_that_ends_in_a_panic_with_unsent_releases_unwinds() {
    let permits = Coordinator::new(Memory::new());
    let lock = permits.mutex("a").unwrap();
    let result = catch_unwind(AssertUnwindSafe(|| {
        let runtime = current_thread();
        let _guard = runtime.block_on(lock.lock()).unwrap();
        panic!("a panic of the application");
    }));
    assert!(result.is_err());
    let again = current_thread().block_on(async { timeout(SECOND, lock.lock()).await });
    assert!(again.expect("the release is sent").is_ok());
}
