//! Many who want in, over several coordinators, and a witness of who is inside.

use crate::witness::Witness;
use crate::{NORMAL, SLACK};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tower_permit::{Coordinator, ErrorKind};

/// How long anybody waits for a permit at most: then he is told so.
const PATIENCE: Duration = Duration::from_secs(20);

pub struct Load {
    witnesses: BTreeMap<String, Witness>,
    done: Arc<AtomicUsize>,
    failed: Arc<AtomicUsize>,
    lost: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<()>>,
    /// Of a mutex, in the order in which each task got them.
    tokens: Arc<Mutex<Vec<Vec<u64>>>>,
}

// === impl Load ===

impl Load {
    /// For each name and coordinator so many tasks that take permits, and two for a mutex.
    pub fn start(permits: &[Coordinator], names: &[String], limit: u32, tasks: usize) -> Self {
        let mut load = Self {
            witnesses: BTreeMap::new(),
            done: Arc::default(),
            failed: Arc::default(),
            lost: Arc::default(),
            stop: Arc::default(),
            tasks: Vec::new(),
            tokens: Arc::default(),
        };
        for name in names {
            let witness = Witness::default();
            load.witnesses.insert(name.clone(), witness.clone());
            for permits in permits {
                for _ in 0..tasks {
                    load.take_permits(permits, name, limit, &witness);
                }
                load.take_locks(permits, name);
            }
        }
        load
    }

    fn take_permits(&mut self, permits: &Coordinator, name: &str, limit: u32, witness: &Witness) {
        let semaphore = permits.semaphore(name, limit).expect("a good limit");
        let (witness, done, failed, lost, stop) = (
            witness.clone(),
            self.done.clone(),
            self.failed.clone(),
            self.lost.clone(),
            self.stop.clone(),
        );
        self.tasks.push(tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let answer = timeout(PATIENCE + SLACK, semaphore.acquire_timeout(PATIENCE)).await;
                match answer.expect("everybody is answered") {
                    Ok(permit) => {
                        let inside = witness.enter();
                        sleep(Duration::from_millis(5)).await;
                        drop(inside);
                        if !permit.is_valid() {
                            lost.fetch_add(1, Ordering::Relaxed);
                        }
                        drop(permit);
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                        failed.fetch_add(1, Ordering::Relaxed);
                        sleep(Duration::from_millis(20)).await;
                    }
                }
            }
        }));
    }

    fn take_locks(&mut self, permits: &Coordinator, name: &str) {
        let mutex = permits.mutex(name).expect("a good name");
        let (stop, tokens) = (self.stop.clone(), self.tokens.clone());
        self.tasks.push(tokio::spawn(async move {
            let mut mine = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let answer = timeout(PATIENCE + SLACK, mutex.lock_timeout(PATIENCE)).await;
                match answer.expect("everybody is answered") {
                    Ok(guard) => {
                        mine.push(guard.token());
                        sleep(Duration::from_millis(5)).await;
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                        sleep(Duration::from_millis(20)).await;
                    }
                }
            }
            tokens.lock().expect("nobody panicked").push(mine);
        }));
    }

    /// Let it run for a while, and see that it does.
    pub async fn runs_for(&self, time: Duration) {
        let before = self.done.load(Ordering::Relaxed);
        sleep(time).await;
        let done = self.done.load(Ordering::Relaxed) - before;
        assert!(done > 20, "only {done} in {time:?}");
    }

    /// Never more than so many were inside, of each name.
    pub fn at_most(&self, limit: u32) {
        for (name, witness) in &self.witnesses {
            let peak = witness.peak();
            assert!(peak <= limit as usize, "{name}: {peak} inside, not {limit}");
        }
    }

    pub fn lost(&self) -> usize {
        self.lost.load(Ordering::Relaxed)
    }

    /// Stops, and looks at what must hold whatever happened: tokens rise for each, and none was given twice.
    pub async fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.expect("all was as expected");
        }
        let tokens = self.tokens.lock().expect("nobody panicked");
        for mine in &*tokens {
            assert!(mine.is_sorted_by(|a, b| a < b), "tokens rise: {mine:?}");
        }
        println!(
            "{} done, {} refused, {} lost",
            self.done.load(Ordering::Relaxed),
            self.failed.load(Ordering::Relaxed),
            self.lost.load(Ordering::Relaxed)
        );
    }
}

/// Newcomers to each name get in, at every coordinator.
pub async fn until_normal(permits: &[Coordinator], names: &[String]) {
    let start = Instant::now();
    for permits in permits {
        for name in names {
            let semaphore = permits.semaphore(format!("{name}:new"), 1).expect("good");
            let works = async {
                while semaphore.acquire().await.is_err() {
                    sleep(Duration::from_millis(20)).await;
                }
            };
            let left = (NORMAL + SLACK).saturating_sub(start.elapsed());
            let works = timeout(left, works).await;
            works.unwrap_or_else(|_| panic!("{name} is not as before within {NORMAL:?}"));
        }
    }
    println!("normal after {:?}", start.elapsed());
}
