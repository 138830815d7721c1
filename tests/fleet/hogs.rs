//! Processes that are at a name all the time, and those that come to it now and then: what hand-off may cost them.

use crate::support::redis::RedisServer;
use crate::{LEASE, coordinator, millis, within};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use tokio::task::JoinSet;
use tower_permit::Mutex;

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
    seen.waiters.iter().position(|waits| waits.node == mine)
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
