//! Floods: many requests on some names are no outage for others. As long as the server answers, no request is refused as
//! unavailable.

use crate::backends::{Kind, Store, redis_url};
use crate::support::redis::{Answer, RedisServer};
use crate::{Flavor, LOAD, PAUSE, PROMPT, granted, millis, within};
use http::Request;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tower::{Layer, ServiceExt, service_fn};
use tower_permit::layers::keyed::path;
use tower_permit::{Coordinator, Error, ErrorKind, KeyedMutexLayer};

const LEASE: Duration = Duration::from_secs(2);
/// How long requests with new keys are sent.
const FLOOD: Duration = millis(1500);
/// By when the last of them must have ended, even on a slow machine.
const DRAINED: Duration = Duration::from_secs(30);
/// The least number of grants of the other name meanwhile.
const GRANTS: usize = 5;

/// How requests ended: `granted`, or the kind of error.
#[derive(Debug, Default)]
struct Outcomes(Mutex<BTreeMap<&'static str, usize>>);

// === impl Outcomes ===

impl Outcomes {
    fn total(&self) -> usize {
        self.0.lock().expect("no panic").values().sum()
    }

    fn add(&self, outcome: &'static str) {
        let mut outcomes = self.0.lock().expect("no panic");
        *outcomes.entry(outcome).or_default() += 1;
    }

    /// Returns the outcomes other than grants and these errors.
    fn but_granted_and(&self, fine: &[ErrorKind]) -> BTreeMap<&'static str, usize> {
        let outcomes = self.0.lock().expect("no panic").clone();
        let fine = |outcome: &str| {
            outcome == "granted" || fine.iter().any(|kind| kind.as_str() == outcome)
        };
        let others = outcomes.into_iter().filter(|(outcome, _)| !fine(outcome));
        others.collect()
    }
}

/// How the keys are locked.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Through {
    Layer,
    Mutexes,
}

/// Keeps this many requests in flight, each with a new key.
async fn flood(coordinator: &Coordinator, through: Through, in_flight: usize) -> Outcomes {
    let outcomes = Arc::new(Outcomes::default());
    let next = Arc::new(AtomicUsize::new(0));
    let inner = service_fn(async |_: Request<()>| Ok::<_, Infallible>(()));
    let layer = KeyedMutexLayer::new(coordinator, "flood", path()).expect("a layer");
    let service = layer.max_waiting_total(2 * in_flight).layer(inner);
    let end = Instant::now() + FLOOD;
    let mut tasks = JoinSet::new();
    for _ in 0..in_flight {
        let (outcomes, next) = (outcomes.clone(), next.clone());
        let (coordinator, service) = (coordinator.clone(), service.clone());
        tasks.spawn(async move {
            loop {
                let key = format!("/{}", next.fetch_add(1, Relaxed));
                let result = match through {
                    Through::Layer => {
                        let request = Request::get(&key).body(()).expect("a request");
                        let response = service.clone().oneshot(request).await;
                        response.map_err(|error| {
                            let error = error.downcast_ref::<Error>();
                            error.expect("an error of this crate").kind()
                        })
                    }
                    Through::Mutexes => {
                        let mutex = coordinator.mutex(&key).expect("a mutex");
                        mutex.lock().await.map(drop).map_err(|error| error.kind())
                    }
                };
                outcomes.add(result.map_or_else(ErrorKind::as_str, |()| "granted"));
                if Instant::now() > end {
                    return;
                }
                if result.is_err() {
                    tokio::time::sleep(millis(20)).await;
                }
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no panic");
    }
    let keys = next.load(Relaxed);
    println!("{keys} keys, {in_flight} in flight: {outcomes:?}");
    drop(service);
    Arc::into_inner(outcomes).expect("the tasks have ended")
}

/// Runs the flood while another name of the same coordinator is locked and unlocked in a loop. Then runs `check` while the
/// coordinator still exists.
fn flood_beside_another_name(
    store: &Store,
    through: Through,
    in_flight: usize,
    check: impl AsyncFnOnce() -> Result<(), String>,
) {
    Flavor::MultiThread.runtime().block_on(async {
        let coordinator = store.with_lease(LEASE);
        let flooded = Arc::new(AtomicBool::new(true));
        let other = tokio::spawn({
            let (coordinator, flooded) = (coordinator.clone(), flooded.clone());
            async move { use_another_name(&coordinator, &flooded).await }
        });
        let what = format!("{in_flight} keys through {through:?}");
        let flood = flood(&coordinator, through, in_flight);
        let outcomes = within(FLOOD + DRAINED, &what, flood).await;
        flooded.store(false, Relaxed);
        let (other, grants) = within(DRAINED, "the other name", other).await.expect("no panic");
        let wrong = outcomes.but_granted_and(&[ErrorKind::TooManyWaiting]);
        let wrong_of_other = other.but_granted_and(&[]);
        let left = check().await;
        // One assertion, so that a failure shows all counts.
        assert!(
            wrong.is_empty() && wrong_of_other.is_empty() && left.is_ok(),
            "refused while the server answers: {wrong:?} of {} requests, {wrong_of_other:?} of {} for the other name; left: {left:?}",
            outcomes.total(),
            other.total(),
        );
        assert!(grants >= GRANTS, "the other name was granted {grants} times");
        drop(coordinator);
    });
}

/// Locks another name in a loop. Returns the outcomes and the number of grants.
async fn use_another_name(coordinator: &Coordinator, flooded: &AtomicBool) -> (Outcomes, usize) {
    let outcomes = Outcomes::default();
    let mut waits = Vec::new();
    while flooded.load(Relaxed) {
        let mutex = coordinator.mutex("another").expect("a mutex");
        let start = Instant::now();
        match mutex.lock().await {
            Ok(guard) => {
                outcomes.add("granted");
                waits.push(start.elapsed());
                drop(guard);
            }
            Err(error) => outcomes.add(error.kind().as_str()),
        }
        tokio::time::sleep(PAUSE).await;
    }
    waits.sort();
    let median = waits.get(waits.len() / 2);
    println!(
        "the other name: {outcomes:?}, median wait {median:?}, longest {:?}",
        waits.last()
    );
    (outcomes, waits.len())
}

/// Waits until a server stores no key, for at most two leases.
async fn until_empty(server: &RedisServer) -> Result<(), String> {
    let end = Instant::now() + 2 * LEASE;
    loop {
        let left = server.command(&["DBSIZE"]).int();
        if left == 0 {
            return Ok(());
        }
        if Instant::now() > end {
            let Answer::List(answer) = server.command(&["SCAN", "0", "COUNT", "3"]) else {
                panic!("SCAN answers with a list");
            };
            let keys = answer[1].list();
            return Err(format!("{left} keys after two leases, such as {keys:?}"));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn flood_redis(through: Through, in_flight: usize) {
    let _exclusive = LOAD.blocking_write();
    let server = RedisServer::start();
    let store = Store::at(Kind::Redis, &redis_url(server.port(), "flood"));
    flood_beside_another_name(&store, through, in_flight, async || {
        until_empty(&server).await
    });
}

#[test]
fn redis_8_000_keys_through_a_layer_cause_no_outage() {
    flood_redis(Through::Layer, 8_000);
}

#[test]
fn redis_16_000_keys_through_a_layer_cause_no_outage() {
    flood_redis(Through::Layer, 16_000);
}

#[test]
fn redis_8_000_mutexes_cause_no_outage() {
    flood_redis(Through::Mutexes, 8_000);
}

fn flood_shared(kind: Kind, in_flight: usize) {
    let _exclusive = LOAD.blocking_write();
    let store = Store::shared(kind, "flood");
    flood_beside_another_name(&store, Through::Layer, in_flight, async || Ok(()));
}

#[test]
fn memory_8_000_keys_through_a_layer_cause_no_outage() {
    flood_shared(Kind::Memory, 8_000);
}

#[test]
fn redlock_2_000_keys_through_a_layer_cause_no_outage() {
    flood_shared(Kind::Redlock, 2_000);
}

#[test]
fn etcd_2_000_keys_through_a_layer_cause_no_outage() {
    flood_shared(Kind::Etcd, 2_000);
}

#[test]
fn zookeeper_2_000_keys_through_a_layer_cause_no_outage() {
    flood_shared(Kind::ZooKeeper, 2_000);
}

/// A long queue of one name does not delay another name.
#[test]
fn redis_8_000_tickets_of_one_name_do_not_delay_another() {
    let _exclusive = LOAD.blocking_write();
    let server = RedisServer::start();
    let store = Store::at(Kind::Redis, &redis_url(server.port(), "queue"));
    Flavor::MultiThread.runtime().block_on(async {
        let coordinator = store.with_lease(LEASE);
        let semaphore = coordinator.semaphore("queue", 1).expect("a semaphore");
        let semaphore = semaphore.max_waiting(10_000);
        let held = granted(PROMPT, "the first permit", semaphore.acquire()).await;
        let mut queued = JoinSet::new();
        for _ in 0..8_000 {
            let semaphore = semaphore.clone();
            queued.spawn(async move { semaphore.acquire().await.map(drop) });
        }
        let flooded = AtomicBool::new(true);
        let (other, ()) = tokio::join!(use_another_name(&coordinator, &flooded), async {
            // Long enough that the driver repeats the calls of all queued tickets at least once.
            tokio::time::sleep(2 * LEASE).await;
            flooded.store(false, Relaxed);
        });
        let (outcomes, grants) = other;
        let wrong = outcomes.but_granted_and(&[]);
        assert!(
            wrong.is_empty(),
            "refused while the server answers: {wrong:?}"
        );
        assert!(
            grants >= 10 * GRANTS,
            "the other name was granted {grants} times"
        );
        assert!(queued.try_join_next().is_none(), "no waiter was refused");
        assert!(held.is_valid(), "renewed meanwhile");
        queued.abort_all();
        drop(held);
        while queued.join_next().await.is_some() {}
        drop(semaphore);
        until_empty(&server).await.expect("nothing left");
        drop(coordinator);
    });
}
