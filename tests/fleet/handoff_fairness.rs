//! Fairness of hand-off: how often a process that always uses a name may overtake one that rarely does.

use crate::support::redis::RedisServer;
use crate::{LEASE, backend, coordinator, millis, within};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use tokio::task::{JoinHandle, JoinSet};
use tower_permit::{Coordinator, Mutex, MutexGuard};

/// Tasks that repeatedly lock a mutex for a millisecond each.
struct BusyTasks {
    entries: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    tasks: JoinSet<()>,
}

impl BusyTasks {
    fn start(mutex: &Mutex, tasks: usize) -> Self {
        let mut busy = Self {
            entries: Arc::default(),
            stop: Arc::default(),
            tasks: JoinSet::new(),
        };
        for _ in 0..tasks {
            let (mutex, entries, stop) = (mutex.clone(), busy.entries.clone(), busy.stop.clone());
            busy.tasks.spawn(async move {
                while !stop.load(SeqCst) {
                    let guard = mutex.lock().await.unwrap();
                    entries.fetch_add(1, SeqCst);
                    tokio::time::sleep(millis(1)).await;
                    drop(guard);
                }
            });
        }
        busy
    }

    fn entries(&self) -> usize {
        self.entries.load(SeqCst)
    }

    async fn end(mut self) {
        self.stop.store(true, SeqCst);
        while let Some(ended) = self.tasks.join_next().await {
            ended.expect("no panic");
        }
    }
}

/// Returns how many tickets are queued before the first ticket of this node, if it has any.
async fn tickets_ahead(mutex: &Mutex, node: &str) -> Option<usize> {
    let inspection = mutex.inspect().await.expect("an answer");
    inspection
        .queue
        .iter()
        .position(|ticket| ticket.node == node)
}

#[tokio::test]
async fn a_waiter_elsewhere_is_overtaken_by_few_handoffs_per_entry_ahead() {
    let server = RedisServer::start();
    let [here, other] = [coordinator(&server.url()), coordinator(&server.url())];
    let busy = BusyTasks::start(&here.mutex("hot").unwrap(), 12);
    let mutex = other.mutex("hot").unwrap();
    let first = mutex.lock().await.unwrap();
    let ticket = first.ticket();
    let node = ticket.rsplit_once('-').expect("a node and a number").0;
    drop(first);
    for round in 0..10 {
        let waits = tokio::spawn({
            let (mutex, busy) = (mutex.clone(), busy.entries.clone());
            async move {
                let guard = mutex.lock().await.unwrap();
                (busy.load(SeqCst), guard)
            }
        });
        let before = loop {
            if let Some(before) = tickets_ahead(&mutex, node).await {
                break before;
            }
            if waits.is_finished() {
                break 0;
            }
        };
        let entries = busy.entries();
        let (then, guard) = within(LEASE, "a grant", waits).await.unwrap();
        drop(guard);
        // Each queued ticket and the present holder may be handed on four times, and everything within 10 ms.
        let allowed = 5 * (before + 1) + 10;
        let passed = then.saturating_sub(entries);
        assert!(
            passed <= allowed,
            "round {round}: {passed} overtook it, {before} tickets were ahead"
        );
    }
    busy.end().await;
}

// === with `strict_fifo` ===

#[tokio::test]
async fn strict_fifo_lets_no_later_waiter_elsewhere_overtake() {
    let server = RedisServer::start();
    let (other, held, first) = held_and_queued(&server).await;
    let later = BusyTasks::start(&other, 30);
    until_queued(&other, 31).await;
    drop(held);
    drop(within(LEASE, "a grant", first).await.unwrap());
    let passed = later.entries();
    later.end().await;
    // One task may get the mutex as soon as it is free.
    assert!(passed <= 1, "{passed} later waiters overtook it");
}

#[tokio::test]
async fn strict_fifo_hands_on_no_permit_that_was_flushed() {
    let server = RedisServer::start();
    let (other, old, next) = held_and_queued(&server).await;
    server.command(&["FLUSHALL"]);
    let new = within(LEASE, "a lock", other.lock()).await.unwrap();
    assert!(!old.unlock().await.unwrap(), "two holders at once");
    let token = new.token();
    drop(new);
    let next = within(10 * LEASE, "a grant", next).await.unwrap();
    assert!(next.token() > token, "{} after {token}", next.token());
}

/// Lets one process hold a mutex and wait for it once more. Returns the mutex of another process, the guard and the waiter.
async fn held_and_queued(server: &RedisServer) -> (Mutex, MutexGuard, JoinHandle<MutexGuard>) {
    let [here, other] = [(); 2].map(|()| {
        let builder = Coordinator::builder(backend(&server.url()));
        let permits = builder.lease(3 * LEASE).strict_fifo(true).build().unwrap();
        permits.mutex("strict").unwrap()
    });
    let held = here.lock().await.unwrap();
    let waits = tokio::spawn(async move { here.lock().await.unwrap() });
    until_queued(&other, 1).await;
    (other, held, waits)
}

/// Waits until this many tickets are queued.
async fn until_queued(mutex: &Mutex, wanted: u64) {
    while mutex.inspect().await.expect("an answer").queued != wanted {
        tokio::time::sleep(millis(2)).await;
    }
}
