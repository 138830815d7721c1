//! Outages longer than a lease. No acquisition or release during an outage leaves a permit behind.
//!
//! A call that was given up may still be executed when the server answers again, and then holds a permit for a whole lease,
//! unless its release follows. A release is never obsolete before it is acknowledged.

use crate::backends::{
    Kind, Store, etcd_url, in_parallel, redis_url, redlock_url, trust, zookeeper_url,
};
use crate::support::etcd::EtcdCluster;
use crate::support::proxy::{Mode, Proxy, Way};
use crate::support::redis::RedisServer;
use crate::support::zookeeper::ZooKeepers;
use crate::{
    Flavor, LOAD, PAUSE, PROMPT, acquire_when_available, granted, in_use, lock_when_available,
    millis, within,
};
use futures_util::future::join_all;
use std::time::{Duration, Instant};
use tokio::time::sleep;
use tower_permit::{Coordinator, Error, ErrorKind, Mutex, Semaphore};

/// By when a caller is refused.
const OUTAGE_AFTER: Duration = millis(500);
/// By when waiters are served after the return of a server, as documented.
const RETURN: Duration = millis(2000);
/// For how long permits must be granted promptly after an outage: late calls are executed in this time.
const WATCHED: Duration = millis(1200);

/// An outage of a backend.
#[derive(Clone, Copy, Debug)]
struct Outage {
    lease: Duration,
    length: Duration,
    /// By when all permits are free again.
    bound: Duration,
}

fn coordinator(store: &Store, lease: Duration) -> Coordinator {
    let builder = store.builder().lease(lease).outage_after(OUTAGE_AFTER);
    builder.build().expect("valid settings")
}

// === impl Outage ===

impl Outage {
    /// During the outage of `first`'s backend one mutex is refused and another one released, with and without keeping the
    /// handle, and the same with semaphores. Afterwards both coordinators are granted all of them promptly.
    async fn pass(
        self,
        [first, second]: [&Store; 2],
        begin: impl FnOnce(),
        end: impl FnOnce(),
    ) -> Vec<String> {
        let (first_side, second_side) = (
            coordinator(first, self.lease),
            coordinator(second, self.lease),
        );
        let mut names = vec![("m:refused", 0), ("m:kept", 0), ("m:released", 0)];
        if first.kind.has_limits() {
            names.extend([("s:refused", 1), ("s:kept", 1), ("s:released", 1)]);
        }
        // Both coordinators are connected and have used each name before.
        for side in [&first_side, &second_side] {
            for (name, limit) in &names {
                hold_once(side, name, *limit, 5 * PROMPT)
                    .await
                    .expect("before the outage");
            }
        }
        let released = first_side.mutex("m:released").expect("a mutex");
        let guard = granted(PROMPT, "the mutex", released.lock()).await;
        drop(released);
        let permit = match first.kind.has_limits() {
            true => {
                let semaphore = first_side.semaphore("s:released", 1).expect("a semaphore");
                Some(granted(PROMPT, "the semaphore", semaphore.acquire()).await)
            }
            false => None,
        };

        begin();
        let start = Instant::now();
        // Concurrently: once the outage is detected, callers are refused without a call.
        let mutexes = ["m:refused", "m:kept"].map(|name| first_side.mutex(name));
        let semaphores = match first.kind.has_limits() {
            true => ["s:refused", "s:kept"]
                .map(|name| first_side.semaphore(name, 1))
                .to_vec(),
            false => Vec::new(),
        };
        let mutexes = mutexes.map(|mutex| mutex.expect("a mutex"));
        let semaphores = semaphores.into_iter().collect::<Result<Vec<_>, _>>();
        let semaphores = semaphores.expect("semaphores");
        let (locks, acquires) = within(self.length, "the refusals", async {
            let locks = join_all(mutexes.iter().map(Mutex::lock));
            tokio::join!(locks, join_all(semaphores.iter().map(Semaphore::acquire)))
        })
        .await;
        let refused = |error: Option<Error>| error.map(|error| error.kind());
        for lock in locks {
            assert_eq!(refused(lock.err()), Some(ErrorKind::Unavailable));
        }
        for acquire in acquires {
            assert_eq!(refused(acquire.err()), Some(ErrorKind::Unavailable));
        }
        let kept = (mutexes[1].clone(), semaphores.get(1).cloned());
        drop((mutexes, semaphores));
        drop(guard);
        drop(permit);
        sleep(self.length.saturating_sub(start.elapsed())).await;
        end();

        let mut cases = Vec::new();
        for (which, side) in [("the same", &first_side), ("another", &second_side)] {
            for (name, limit) in &names {
                cases.push(async move {
                    let end = Instant::now() + WATCHED;
                    while Instant::now() < end {
                        let start = Instant::now();
                        if let Err(error) = hold_once(side, name, *limit, self.bound).await {
                            let at = (WATCHED - (end - start)).as_millis();
                            return Some(format!(
                                "{name} by {which} coordinator, {at} ms after the outage: {error}"
                            ));
                        }
                        sleep(millis(20)).await;
                    }
                    None
                });
            }
        }
        let failed = join_all(cases).await.into_iter().flatten().collect();
        drop(kept);
        failed
    }
}

/// Acquires a permit within the bound, and releases it. A limit of 0: a mutex.
async fn hold_once(
    coordinator: &Coordinator,
    name: &str,
    limit: u32,
    bound: Duration,
) -> Result<(), String> {
    let hold = async {
        match limit {
            0 => {
                let mutex = coordinator.mutex(name)?;
                drop(lock_when_available(&mutex).await?);
            }
            _ => {
                let semaphore = coordinator.semaphore(name, limit)?;
                drop(acquire_when_available(&semaphore).await?);
            }
        }
        Ok::<_, Error>(())
    };
    match tokio::time::timeout(bound, hold).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(format!("refused: {error}")),
        Err(_) => Err(format!("no grant within {bound:?}")),
    }
}

/// Returns the outage for a backend: longer than a lease, with a bound shorter than one.
fn outage(kind: Kind) -> Outage {
    let [lease, length, bound] = match kind {
        Kind::Memory | Kind::Redis => [2_000, 5_000, 700],
        Kind::Redlock => [3_000, 6_000, 1_000],
        Kind::Etcd => [3_000, 5_000, 2_000],
        // The session timeout is a quarter longer than the lease, and a new session starts after the outage.
        Kind::ZooKeeper => [4_000, 6_500, 3_000],
    };
    Outage {
        lease: millis(lease),
        length: millis(length),
        bound: millis(bound),
    }
}

/// Runs a test over each of these backends. The test starts its own servers.
fn over_each(kinds: &[Kind], test: impl AsyncFn(Kind) -> Vec<String> + Sync) {
    let _shared = LOAD.blocking_read();
    in_parallel(
        kinds,
        |kind| format!("{kind:?}"),
        |kind| {
            let failed = Flavor::MultiThread.runtime().block_on(test(*kind));
            assert!(failed.is_empty(), "{}", failed.join("; "));
        },
    );
}

const WITH_ONE_SERVER: [Kind; 3] = [Kind::Redis, Kind::Etcd, Kind::ZooKeeper];

/// Holds back the data of one direction and delivers it after more than a lease.
async fn hold_back(kind: Kind, way: Way) -> Vec<String> {
    let server = OneServer::start(kind);
    let proxy = Proxy::start(server.port()).await;
    let store = Store::at(kind, &url(kind, proxy.port()));
    let direct = Store::at(kind, &url(kind, server.port()));
    let begin = || proxy.set(way, Mode::Hold);
    let end = || proxy.set(way, Mode::Pass);
    outage(kind).pass([&store, &direct], begin, end).await
}

/// Calls are executed late.
#[test]
fn requests_delivered_late_leave_no_permit() {
    over_each(&WITH_ONE_SERVER, async |kind| {
        hold_back(kind, Way::Up).await
    });
}

/// Calls are executed at once, and their replies arrive late.
#[test]
fn replies_delivered_late_leave_no_permit() {
    over_each(&WITH_ONE_SERVER, async |kind| {
        hold_back(kind, Way::Down).await
    });
}

/// The server executes the calls in its sockets when it resumes.
#[test]
fn an_outage_of_a_paused_server_leaves_no_permit() {
    over_each(&WITH_ONE_SERVER, async |kind| {
        let server = OneServer::start(kind);
        let store = Store::at(kind, &url(kind, server.port()));
        let (begin, end) = (|| server.pause(), || server.resume());
        outage(kind).pass([&store, &store], begin, end).await
    });
}

/// A majority does not answer for two leases.
#[test]
fn an_outage_of_a_redlock_majority_leaves_no_permit() {
    let _shared = LOAD.blocking_read();
    let cases = ["paused", "late requests", "callers meanwhile"];
    in_parallel(
        &cases,
        |case| (*case).to_owned(),
        |case| {
            let failed = Flavor::MultiThread.runtime().block_on(async {
                match *case {
                    "paused" => pause_majority().await,
                    "late requests" => hold_back_majority().await,
                    _ => call_without_majority().await,
                }
            });
            assert!(failed.is_empty(), "{}", failed.join("; "));
        },
    );
}

async fn pause_majority() -> Vec<String> {
    let kind = Kind::Redlock;
    let servers = [(); 3].map(|()| RedisServer::start());
    trust(&servers, "outage");
    let ports = servers.each_ref().map(RedisServer::port);
    let store = Store::at(kind, &redlock_url(&ports, "outage"));
    let begin = || servers[..2].iter().for_each(RedisServer::pause);
    let end = || servers[..2].iter().for_each(RedisServer::resume);
    outage(kind).pass([&store, &store], begin, end).await
}

/// Holds back requests to a majority and delivers them after two leases.
async fn hold_back_majority() -> Vec<String> {
    let kind = Kind::Redlock;
    let servers = [(); 3].map(|()| RedisServer::start());
    trust(&servers, "outage");
    let mut proxies = Vec::new();
    for server in &servers {
        proxies.push(Proxy::start(server.port()).await);
    }
    let ports = [0, 1, 2].map(|at| proxies[at].port());
    let store = Store::at(kind, &redlock_url(&ports, "outage"));
    let ports = servers.each_ref().map(RedisServer::port);
    let direct = Store::at(kind, &redlock_url(&ports, "outage"));
    let set = |mode| {
        proxies[1..]
            .iter()
            .for_each(|proxy| proxy.set(Way::Up, mode))
    };
    let (begin, end) = (|| set(Mode::Hold), || set(Mode::Pass));
    outage(kind).pass([&store, &direct], begin, end).await
}

/// New callers arrive throughout the outage, and give up.
async fn call_without_majority() -> Vec<String> {
    let kind = Kind::Redlock;
    let servers = [(); 3].map(|()| RedisServer::start());
    trust(&servers, "outage");
    let ports = servers.each_ref().map(RedisServer::port);
    let store = Store::at(kind, &redlock_url(&ports, "outage"));
    let Outage {
        lease,
        length,
        bound,
    } = outage(kind);
    let (first, second) = (coordinator(&store, lease), coordinator(&store, lease));
    let mutexes = [&first, &second].map(|side| side.mutex("m").expect("a mutex"));
    for mutex in &mutexes {
        drop(granted(PROMPT, "a lock", mutex.lock()).await);
    }
    servers[1..].iter().for_each(RedisServer::pause);
    let end = Instant::now() + length;
    while Instant::now() < end {
        let calls = mutexes.iter().map(|mutex| mutex.lock_timeout(millis(300)));
        let calls = join_all(calls).await;
        assert!(calls.iter().all(Result::is_err), "without a majority");
        sleep(millis(50)).await;
    }
    servers[1..].iter().for_each(RedisServer::resume);
    let mut failed = Vec::new();
    for (which, side) in [("the same", &first), ("another", &second)] {
        if let Err(error) = hold_once(side, "m", 0, bound).await {
            failed.push(format!("{which} coordinator: {error}"));
        }
    }
    failed
}

enum OneServer {
    Redis(RedisServer),
    Etcd(EtcdCluster),
    ZooKeeper(ZooKeepers),
}

impl OneServer {
    fn start(kind: Kind) -> Self {
        match kind {
            Kind::Redis => Self::Redis(RedisServer::start()),
            Kind::Etcd => Self::Etcd(EtcdCluster::start(1)),
            Kind::ZooKeeper => Self::ZooKeeper(ZooKeepers::start(1)),
            Kind::Memory | Kind::Redlock => panic!("{kind:?} is not one server"),
        }
    }

    fn port(&self) -> u16 {
        match self {
            Self::Redis(server) => server.port(),
            Self::Etcd(cluster) => cluster.port(0),
            Self::ZooKeeper(servers) => servers.port(0),
        }
    }

    fn pause(&self) {
        match self {
            Self::Redis(server) => server.pause(),
            Self::Etcd(cluster) => cluster.pause(0),
            Self::ZooKeeper(servers) => servers.pause(0),
        }
    }

    fn resume(&self) {
        match self {
            Self::Redis(server) => server.resume(),
            Self::Etcd(cluster) => cluster.resume(0),
            Self::ZooKeeper(servers) => servers.resume(0),
        }
    }
}

fn url(kind: Kind, port: u16) -> String {
    match kind {
        Kind::Redis => redis_url(port, "outage"),
        Kind::Etcd => etcd_url(port, "outage"),
        Kind::ZooKeeper => zookeeper_url(port, "outage"),
        Kind::Memory | Kind::Redlock => panic!("{kind:?} is not one server"),
    }
}

/// Callers gave up during the outage, some by a timeout and some refused. All permits are free as soon as the server resumes.
#[test]
fn callers_that_gave_up_during_a_pause_leave_no_permit() {
    const LIMIT: u32 = 6;
    let _shared = LOAD.blocking_read();
    let lease = Duration::from_secs(2);
    Flavor::MultiThread.runtime().block_on(async {
        let server = RedisServer::start();
        let store = Store::at(Kind::Redis, &redis_url(server.port(), "waiters"));
        let first = coordinator(&store, lease);
        let semaphore = first.semaphore("s", LIMIT).expect("a semaphore");
        drop(granted(PROMPT, "the first permit", semaphore.acquire()).await);
        let idle = async {
            while in_use(&first, "s").await > 0 {
                sleep(PAUSE).await;
            }
        };
        within(PROMPT, "the release", idle).await;

        server.pause();
        let start = Instant::now();
        let impatient = join_all((0..LIMIT).map(|_| semaphore.acquire_timeout(millis(200))));
        let patient = join_all((0..LIMIT).map(|_| semaphore.acquire()));
        let (impatient, patient) = tokio::join!(impatient, patient);
        let refusals = impatient.iter().chain(&patient);
        assert!(
            refusals.into_iter().all(Result::is_err),
            "no call is answered"
        );
        sleep((lease + lease / 2).saturating_sub(start.elapsed())).await;
        server.resume();

        let all = join_all((0..LIMIT).map(|_| acquire_when_available(&semaphore)));
        let all = within(Duration::from_secs(1), "all six permits", all).await;
        assert!(all.iter().all(Result::is_ok), "{all:?}");
        let valid = all.iter().flatten().filter(|permit| permit.is_valid());
        assert_eq!(valid.count(), LIMIT as usize);
    });
}

/// The server is killed and restarts with its data after one and a half leases. Permits released meanwhile are free.
#[test]
fn permits_released_while_the_server_is_down_are_free_once_it_is_back() {
    const LIMIT: u32 = 6;
    let _shared = LOAD.blocking_read();
    // Half a lease must be clearly longer than the bound: after a gap, expired tickets are kept for that long.
    let lease = Duration::from_secs(4);
    in_parallel(
        &["the same", "another"],
        |which| (*which).to_owned(),
        |which| {
            Flavor::MultiThread.runtime().block_on(async {
                let args = ["--appendonly", "yes", "--appendfsync", "always"];
                let mut server = RedisServer::start_with(&args);
                let store = Store::at(Kind::Redis, &redis_url(server.port(), "down"));
                let (first, second) = (coordinator(&store, lease), coordinator(&store, lease));
                let semaphore = first.semaphore("s", LIMIT).expect("a semaphore");
                let all = join_all((0..LIMIT).map(|_| semaphore.acquire()));
                let all = within(PROMPT, "the first permits", all).await;
                assert!(all.iter().all(Result::is_ok), "{all:?}");
                let mutex = first.mutex("m").expect("a mutex");
                let guard = granted(PROMPT, "the mutex", mutex.lock()).await;

                server.kill();
                drop((all, guard));
                drop((semaphore, mutex));
                sleep(lease + lease / 2).await;
                server.restart();

                let side = if *which == "the same" {
                    &first
                } else {
                    &second
                };
                let semaphore = side.semaphore("s", LIMIT).expect("a semaphore");
                let mutex = side.mutex("m").expect("a mutex");
                let all = join_all((0..LIMIT).map(|_| acquire_when_available(&semaphore)));
                let all = tokio::time::timeout(RETURN, async {
                    tokio::join!(all, lock_when_available(&mutex))
                });
                let (all, guard) = all.await.unwrap_or_else(|_| {
                    let granted = semaphore.stats().in_use;
                    panic!(
                        "not free within 2 s of the server's return: {granted} of {LIMIT} permits"
                    )
                });
                assert!(all.iter().all(Result::is_ok), "{all:?}");
                assert!(guard.is_ok(), "{guard:?}");
            });
        },
    );
}
