//! Coordinators that outlive runtimes, and shutdown of processes.

use crate::agent::Agent;
use crate::modes;
use crate::support::redis::RedisServer;
use crate::{LEASE, backend, coordinator, counts, millis, until_counts, within};
use rustix::process::Signal;
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tower_permit::{Coordinator, ErrorKind};

fn runtime(threads: bool) -> Runtime {
    let mut builder = match threads {
        true => Builder::new_multi_thread(),
        false => Builder::new_current_thread(),
    };
    builder.worker_threads(1).enable_all().build().unwrap()
}

#[test]
fn a_coordinator_in_a_static_serves_ten_runtimes() {
    static PERMITS: OnceLock<Coordinator> = OnceLock::new();
    let server = RedisServer::start();
    let builder = modes::builder(backend(&server.url())).lease(5 * LEASE);
    let permits = PERMITS.get_or_init(|| builder.build().unwrap());
    let semaphore = permits.semaphore("static", 1).unwrap();
    for n in 0..10 {
        let runtime = runtime(n % 2 == 1);
        let start = Instant::now();
        // The previous runtime ended with an unsent release and closed the connection.
        let permit = runtime.block_on(semaphore.acquire()).unwrap();
        assert!(start.elapsed() < 2 * LEASE, "{n}: {:?}", start.elapsed());
        match n % 3 {
            0 => runtime.block_on(async { drop(permit) }),
            1 => {
                drop(runtime); // before the permit
                drop(permit);
            }
            _ => drop(permit), // outside of the runtime
        }
    }
    let runtime = runtime(false);
    let last = runtime.block_on(semaphore.acquire()).unwrap();
    assert!(runtime.block_on(last.release()).unwrap());
    assert_eq!(runtime.block_on(counts(permits, "static")), (0, 0));
}

#[test]
fn concurrent_runtimes_share_one_coordinator() {
    let server = RedisServer::start();
    let permits = coordinator(&server.url());
    let semaphore = permits.semaphore("beside", 2).unwrap();
    std::thread::scope(|scope| {
        for n in 0..10 {
            let semaphore = semaphore.clone();
            scope.spawn(move || {
                let runtime = runtime(false);
                for _ in 0..5 {
                    let permit = runtime
                        .block_on(semaphore.acquire_timeout(Duration::from_secs(20)))
                        .unwrap();
                    runtime.block_on(async { tokio::time::sleep(millis(n % 3)).await });
                    drop(permit);
                }
            });
        }
    });
    runtime(false).block_on(until_counts(&permits, "beside", (0, 0), 2 * LEASE));
}

#[tokio::test]
async fn a_process_that_is_interrupted_and_shuts_down_leaves_nothing() {
    let server = RedisServer::start();
    let permits = coordinator(&server.url());
    let mut agent = Agent::start(&server.url(), 10 * LEASE);
    for key in ["a", "b"] {
        agent.acquire(key, "ended", 2);
        agent.granted(key).await;
    }
    agent.acquire("waits", "ended", 2);
    agent.acquire("elsewhere", "ended-too", 1);
    agent.granted("elsewhere").await;
    until_counts(&permits, "ended", (2, 1), millis(1000)).await;
    agent.0.signal(Signal::INT);
    let refused = agent.0.receive("refused waits.").await;
    assert_eq!(refused, ErrorKind::ShuttingDown.as_str());
    assert_eq!(agent.0.receive("shut down").await, "Err(HeldTooLong)");
    assert!(agent.0.ended().await.success());
    assert_eq!(counts(&permits, "ended").await, (0, 0));
    assert_eq!(counts(&permits, "ended-too").await, (0, 0));
}

#[tokio::test]
async fn a_process_that_ends_while_its_server_is_down_does_not_hang() {
    for (lease, bound) in [(LEASE, 3 * LEASE), (100 * LEASE, 5 * LEASE)] {
        let mut server = RedisServer::start();
        let mut agent = Agent::start(&server.url(), lease);
        agent.acquire("a", "ended", 1);
        agent.granted("a").await;
        server.kill();
        agent.0.signal(Signal::INT);
        let start = Instant::now();
        assert!(agent.0.ended().await.success());
        assert!(start.elapsed() < bound, "{:?}", start.elapsed());
    }
}

#[tokio::test]
async fn shutdown_after_refused_logins_is_prompt() {
    let server = RedisServer::start_with(&["--requirepass", "secret"]);
    let builder = modes::builder(backend(&server.url()));
    let permits = builder.lease(100 * LEASE).build().unwrap();
    let refused = permits.semaphore("ended", 1).unwrap().acquire().await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Denied);
    let shutdown = permits.shutdown(millis(100));
    within(5 * LEASE, "a shutdown", shutdown).await.unwrap();
}
