//! Outages: Redis is paused, killed, flushed or cut off. No caller hangs, and service resumes soon afterwards.

use crate::modes;
use crate::support::logs::Logs;
use crate::support::proxy::{Mode, Proxy, Way};
use crate::support::redis::RedisServer;
use crate::{LEASE, SLACK, backend, coordinator, counts, millis, until_counts, within};
use http::{Request, Response, StatusCode};
use http_body_util::Empty;
use std::convert::Infallible;
use std::time::{Duration, Instant};
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
use tower_permit::layers::OnUnavailable;
use tower_permit::{Coordinator, DistributedConcurrencyLimitLayer, ErrorKind, Semaphore};

const OUTAGE_AFTER: Duration = millis(500);
/// By when a new caller gets a result.
const DECIDED: Duration = millis(750);
/// By when service has resumed.
const NORMAL: Duration = Duration::from_secs(2);

fn with_short_outage(url: &str) -> Coordinator {
    with_lease(url, 2 * LEASE)
}

fn with_lease(url: &str, lease: Duration) -> Coordinator {
    let builder = modes::builder(backend(url));
    builder
        .lease(lease)
        .outage_after(OUTAGE_AFTER)
        .build()
        .unwrap()
}

/// Retries until a permit is granted.
async fn until_normal(semaphore: &Semaphore) {
    let works = async {
        while semaphore.acquire().await.is_err() {
            tokio::time::sleep(millis(20)).await;
        }
    };
    within(NORMAL, "the return to normal", works).await;
}

/// Runs two outages of the same kind. `forgets`: the server returns without data.
async fn survive(
    server: &mut RedisServer,
    url: &str,
    forgets: bool,
    mut begin: impl FnMut(&mut RedisServer),
    mut end: impl FnMut(&mut RedisServer),
) {
    let logs = Logs::capture();
    let permits = with_short_outage(url);
    let full = permits.semaphore("full", 1).unwrap();
    let free = permits.semaphore("free", 2).unwrap();
    for outage in 1..=2 {
        let held = full.acquire().await.unwrap();
        let waits = tokio::spawn({
            let full = full.clone();
            async move { full.acquire().await }
        });
        drop(free.acquire().await.unwrap());
        until_counts(&permits, "full", (1, 1), millis(1000)).await;
        until_counts(&permits, "free", (0, 0), millis(1000)).await;

        begin(server);
        // Not detected yet: a shorter timeout of the caller ends the wait first, other callers get `Unavailable`.
        let start = Instant::now();
        let (timed_out, new_caller, at_limit) = tokio::join!(
            within(
                millis(200),
                "a wait of 200 ms",
                free.acquire_timeout(millis(200))
            ),
            within(DECIDED, "a new caller", free.acquire()),
            within(DECIDED, "a new caller at the limit", full.acquire()),
        );
        let took = start.elapsed();
        assert!(took >= OUTAGE_AFTER, "{took:?}");
        assert_eq!(timed_out.unwrap_err().kind(), ErrorKind::WaitTimeout);
        assert_eq!(new_caller.unwrap_err().kind(), ErrorKind::Unavailable);
        assert_eq!(at_limit.unwrap_err().kind(), ErrorKind::Unavailable);
        // The outage is detected now.
        for _ in 0..5 {
            let start = Instant::now();
            let error = within(DECIDED, "a new caller", free.acquire())
                .await
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(start.elapsed() < SLACK / 4, "{:?}", start.elapsed());
            tokio::time::sleep(millis(100)).await;
        }
        let error = within(DECIDED, "try_acquire", free.try_acquire())
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(!waits.is_finished(), "a waiter keeps waiting");
        let lines = logs.with("does not answer: new callers");
        assert_eq!(lines.len(), outage, "{lines:#?}");

        end(server);
        let start = Instant::now();
        until_normal(&free).await;
        println!("normal after {:?}", start.elapsed());
        if forgets {
            // The permit is lost with the data, and the waiter is queued again.
            within(NORMAL, "the loss", held.lost()).await;
        } else {
            assert!(
                held.release().await.unwrap(),
                "the permit was held all along"
            );
        }
        let left = NORMAL.saturating_sub(start.elapsed());
        let permit = within(left, "the waiter", waits).await.unwrap().unwrap();
        assert!(permit.is_valid());
        assert!(permit.release().await.unwrap());
        until_counts(&permits, "full", (0, 0), millis(1000)).await;
        until_counts(&permits, "free", (0, 0), millis(1000)).await;
        let lines = logs.with("answers again");
        assert_eq!(lines.len(), outage, "{lines:#?}");
    }
    let others: Vec<_> = logs.warnings();
    let lost = if forgets { 2 } else { 0 };
    assert_eq!(others.len(), 2 + lost, "{others:#?}");
}

#[tokio::test]
async fn callers_survive_a_paused_server() {
    let mut server = RedisServer::start();
    let url = server.url();
    survive(&mut server, &url, false, |s| s.pause(), |s| s.resume()).await;
}

#[tokio::test]
async fn callers_survive_a_server_restarted_without_its_data() {
    let mut server = RedisServer::start();
    let url = server.url();
    survive(
        &mut server,
        &url,
        true,
        RedisServer::kill,
        RedisServer::restart,
    )
    .await;
}

/// Every write is on disk before its reply.
#[tokio::test]
async fn callers_survive_a_server_restarted_with_its_data() {
    let mut server = RedisServer::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let url = server.url();
    survive(
        &mut server,
        &url,
        false,
        RedisServer::kill,
        RedisServer::restart,
    )
    .await;
}

/// Holds all data in one direction. It arrives afterwards, as TCP retransmits it.
async fn one_way_link(way: Way) {
    let mut server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    survive(
        &mut server,
        &proxy.url(),
        false,
        |_| proxy.set(way, Mode::Hold),
        |_| proxy.set(way, Mode::Pass),
    )
    .await;
}

#[tokio::test]
async fn callers_survive_a_link_cut_towards_the_server() {
    one_way_link(Way::Up).await;
}

#[tokio::test]
async fn callers_survive_a_link_cut_towards_the_client() {
    one_way_link(Way::Down).await;
}

/// Loses all data of present connections in one direction, as when a router has dropped their state. New connections work.
async fn half_open_link(way: Way) {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let permits = with_short_outage(&proxy.url());
    let semaphore = permits.semaphore("half", 1).unwrap();
    for _ in 0..2 {
        let held = semaphore.acquire().await.unwrap();
        proxy.set_present(way, Mode::Lose);
        assert!(within(NORMAL, "a release", held.release()).await.unwrap());
        let permit = within(DECIDED, "a new caller", semaphore.acquire()).await;
        assert!(permit.unwrap().release().await.unwrap());
        until_counts(&permits, "half", (0, 0), millis(500)).await;
    }
}

#[tokio::test]
async fn a_connection_that_is_dead_towards_the_server_is_replaced() {
    half_open_link(Way::Up).await;
}

#[tokio::test]
async fn a_connection_that_is_dead_towards_the_client_is_replaced() {
    half_open_link(Way::Down).await;
}

#[tokio::test]
async fn a_link_that_loses_everything_is_used_again_once_restored() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    // Long enough that a delayed release is still sent.
    let permits = with_lease(&proxy.url(), 10 * LEASE);
    let semaphore = permits.semaphore("lossy", 1).unwrap();
    for way in [Way::Up, Way::Down] {
        assert!(semaphore.acquire().await.unwrap().release().await.unwrap());
        proxy.set(way, Mode::Lose);
        let new_caller = within(DECIDED, "a new caller", semaphore.acquire()).await;
        assert_eq!(new_caller.unwrap_err().kind(), ErrorKind::Unavailable);
        tokio::time::sleep(millis(500)).await;
        // Connections opened meanwhile stay dead.
        proxy.set_new(way, Mode::Pass);
        let start = Instant::now();
        until_normal(&semaphore).await;
        println!("normal after {:?}", start.elapsed());
    }
}

#[tokio::test]
async fn waiters_are_queued_again_after_a_flush() {
    let server = RedisServer::start();
    let [first, second, third] = [(); 3].map(|()| coordinator(&server.url()));
    let held = first
        .semaphore("flushed", 1)
        .unwrap()
        .acquire()
        .await
        .unwrap();
    let semaphore = second.semaphore("flushed", 1).unwrap();
    let waits: Vec<_> = (0..3)
        .map(|_| {
            let semaphore = semaphore.clone();
            tokio::spawn(async move { semaphore.acquire().await.unwrap().release().await })
        })
        .collect();
    until_counts(&third, "flushed", (1, 3), millis(1000)).await;
    server.command(&["FLUSHALL"]);
    // Another process acquires first, and holds.
    let quick = third
        .semaphore("flushed", 1)
        .unwrap()
        .acquire()
        .await
        .unwrap();
    within(LEASE, "the loss", held.lost()).await;
    assert!(!held.is_valid());
    drop(held);
    until_counts(&third, "flushed", (1, 3), LEASE).await;
    assert!(quick.release().await.unwrap());
    for waiter in waits {
        assert!(within(LEASE, "a grant", waiter).await.unwrap().unwrap());
    }
    until_counts(&third, "flushed", (0, 0), millis(500)).await;
}

#[tokio::test]
async fn repeated_script_flushes_change_nothing() {
    let server = RedisServer::start();
    let permits = coordinator(&server.url());
    let semaphore = permits.semaphore("scripts", 2).unwrap();
    let end = Instant::now() + 2 * LEASE;
    let tasks: Vec<_> = (0..4)
        .map(|_| {
            let semaphore = semaphore.clone();
            tokio::spawn(async move {
                let mut turns = 0;
                while Instant::now() < end {
                    let permit = semaphore.acquire_timeout(LEASE).await.unwrap();
                    tokio::time::sleep(millis(2)).await;
                    assert!(permit.release().await.unwrap());
                    turns += 1;
                }
                turns
            })
        })
        .collect();
    while Instant::now() < end {
        server.command(&["SCRIPT", "FLUSH"]);
        tokio::time::sleep(millis(50)).await;
    }
    for task in tasks {
        assert!(task.await.unwrap() > 50);
    }
    assert_eq!(counts(&permits, "scripts").await, (0, 0));
}

#[tokio::test]
async fn layers_allow_or_reject_while_the_server_is_down() {
    let mut server = RedisServer::start();
    let permits = with_short_outage(&server.url());
    let semaphore = permits.semaphore("layers", 1).unwrap();
    let layer = DistributedConcurrencyLimitLayer::new(semaphore).reject_with_response();
    let inner = service_fn(async |_: Request<()>| {
        Ok::<_, Infallible>(Response::new(Empty::<bytes::Bytes>::new()))
    });
    let allow = layer.clone().on_unavailable(OnUnavailable::Allow);
    let mut allows = ServiceBuilder::new().layer(allow).service(inner);
    let mut rejects = ServiceBuilder::new().layer(layer).service(inner);
    server.kill();
    for n in 0..5 {
        let bound = if n == 0 { DECIDED } else { millis(100) };
        let start = Instant::now();
        let response = allows.ready().await.unwrap().call(Request::new(())).await;
        assert_eq!(response.unwrap().status(), StatusCode::OK);
        assert!(start.elapsed() < bound + SLACK / 2, "{:?}", start.elapsed());
        let start = Instant::now();
        let response = rejects.ready().await.unwrap().call(Request::new(())).await;
        let response = response.unwrap();
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(response.headers().contains_key("retry-after"));
        assert!(start.elapsed() < SLACK / 2, "{:?}", start.elapsed());
    }
    server.restart();
    let normal = async {
        loop {
            let response = rejects.ready().await.unwrap().call(Request::new(())).await;
            if response.unwrap().status() == StatusCode::OK {
                return;
            }
            tokio::time::sleep(millis(20)).await;
        }
    };
    within(NORMAL, "the return to normal", normal).await;
}
