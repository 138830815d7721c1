//! Processes that are at a name all the time, and those that come to it now and then: what hand-off may cost them.

use crate::support::redis::RedisServer;
use crate::{LEASE, backend, coordinator, millis, within};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use tokio::task::{JoinHandle, JoinSet};
use tower_permit::{Coordinator, Mutex, MutexGuard};

/// Tasks that lock one after the other, for a millisecond each, again and again.
struct Hog {
    entries: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    tasks: JoinSet<()>,
}

impl Hog {
    fn start(mutex: &Mutex, tasks: usize) -> Self {
        let mut hog = Self {
            entries: Arc::default(),
            stop: Arc::default(),
            tasks: JoinSet::new(),
        };
        for _ in 0..tasks {
            let (mutex, entries, stop) = (mutex.clone(), hog.entries.clone(), hog.stop.clone());
            hog.tasks.spawn(async move {
                while !stop.load(SeqCst) {
                    let guard = mutex.lock().await.unwrap();
                    entries.fetch_add(1, SeqCst);
                    tokio::time::sleep(millis(1)).await;
                    drop(guard);
                }
            });
        }
        hog
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

/// How many places of others are before that of this node, if it stands in the queue.
async fn places_before(mutex: &Mutex, mine: &str) -> Option<usize> {
    let seen = mutex.inspect().await.expect("an answer");
    seen.queue.iter().position(|waits| waits.node == mine)
}

#[tokio::test]
async fn who_waits_elsewhere_is_passed_by_a_few_for_each_place_before_it() {
    let server = RedisServer::start();
    let [busy, other] = [coordinator(&server.url()), coordinator(&server.url())];
    let hog = Hog::start(&busy.mutex("hot").unwrap(), 12);
    let mutex = other.mutex("hot").unwrap();
    let first = mutex.lock().await.unwrap();
    let mine = first.ticket();
    let mine = mine.rsplit_once('-').expect("a node and a number").0;
    drop(first);
    for round in 0..10 {
        let waits = tokio::spawn({
            let (mutex, hog) = (mutex.clone(), hog.entries.clone());
            async move {
                let guard = mutex.lock().await.unwrap();
                (hog.load(SeqCst), guard)
            }
        });
        let before = loop {
            if let Some(before) = places_before(&mutex, mine).await {
                break before;
            }
            if waits.is_finished() {
                break 0;
            }
        };
        let entries = hog.entries();
        let (then, guard) = within(LEASE, "a turn", waits).await.unwrap();
        drop(guard);
        // One and four more for each place, for the permit that is out, and those of 10 ms.
        let most = 5 * (before + 1) + 10;
        let passed = then.saturating_sub(entries);
        assert!(
            passed <= most,
            "round {round}: {passed} before it, {before} places"
        );
    }
    hog.end().await;
}

// What the short cuts do not promise, and `strict_fifo` does.

#[tokio::test]
async fn in_strict_order_a_crowd_from_elsewhere_does_not_pass_who_came_first() {
    let server = RedisServer::start();
    let (other, held, first) = held_and_waited_for(&server).await;
    let crowd = Hog::start(&other, 30);
    until_waiting(&other, 31).await;
    drop(held);
    drop(within(LEASE, "a turn", first).await.unwrap());
    let passed = crowd.entries();
    crowd.end().await;
    // One comes in as soon as it is free.
    assert!(passed <= 1, "{passed} who came later went before it");
}

#[tokio::test]
async fn in_strict_order_nothing_comes_by_a_hand_whose_permit_was_forgotten() {
    let server = RedisServer::start();
    let (other, old, next) = held_and_waited_for(&server).await;
    server.command(&["FLUSHALL"]);
    let new = within(LEASE, "a lock", other.lock()).await.unwrap();
    assert!(!old.unlock().await.unwrap(), "two held it");
    let token = new.token();
    drop(new);
    let next = within(10 * LEASE, "a turn", next).await.unwrap();
    assert!(next.token() > token, "{} after {token}", next.token());
}

/// One process holds a mutex, and somebody waits for it there. The mutex as another process has it, who holds, and who waits.
async fn held_and_waited_for(server: &RedisServer) -> (Mutex, MutexGuard, JoinHandle<MutexGuard>) {
    let [here, other] = [(); 2].map(|()| {
        let builder = Coordinator::builder(backend(&server.url()));
        let permits = builder.lease(3 * LEASE).strict_fifo(true).build().unwrap();
        permits.mutex("strict").unwrap()
    });
    let held = here.lock().await.unwrap();
    let waits = tokio::spawn(async move { here.lock().await.unwrap() });
    until_waiting(&other, 1).await;
    (other, held, waits)
}

/// Waits until so many stand in the queue.
async fn until_waiting(mutex: &Mutex, wanted: u64) {
    while mutex.inspect().await.expect("an answer").queued != wanted {
        tokio::time::sleep(millis(2)).await;
    }
}
