//! A Redis that is paused, killed, emptied or cut off: nobody hangs, and everything is as before soon after.

use crate::modes;
use crate::support::logs::Logs;
use crate::support::proxy::{Mode, Proxy, Way};
use crate::support::redis::RedisServer;
use crate::{LEASE, SLACK, backend, coordinator, millis, seen, until_seen, within};
use http::{Request, Response, StatusCode};
use http_body_util::Empty;
use std::convert::Infallible;
use std::time::{Duration, Instant};
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
use tower_permit::layers::OnUnavailable;
use tower_permit::{Coordinator, DistributedConcurrencyLimitLayer, ErrorKind, Semaphore};

const OUTAGE_AFTER: Duration = millis(500);
/// By when a newcomer is decided.
const DECIDED: Duration = millis(750);
/// By when everything is as before.
const NORMAL: Duration = Duration::from_secs(2);

fn cautious(url: &str) -> Coordinator {
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

/// Takes one permit and gives it back, again and again until it works.
async fn until_normal(semaphore: &Semaphore) {
    let works = async {
        while semaphore.acquire().await.is_err() {
            tokio::time::sleep(millis(20)).await;
        }
    };
    within(NORMAL, "the return to normal", works).await;
}

/// Two outages, one like the other. `forgets`: the server comes back empty.
async fn survive(
    server: &mut RedisServer,
    url: &str,
    forgets: bool,
    mut begin: impl FnMut(&mut RedisServer),
    mut end: impl FnMut(&mut RedisServer),
) {
    let logs = Logs::capture();
    let permits = cautious(url);
    let full = permits.semaphore("full", 1).unwrap();
    let free = permits.semaphore("free", 2).unwrap();
    for outage in 1..=2 {
        let held = full.acquire().await.unwrap();
        let waits = tokio::spawn({
            let full = full.clone();
            async move { full.acquire().await }
        });
        drop(free.acquire().await.unwrap());
        until_seen(&permits, "full", (1, 1), millis(1000)).await;
        until_seen(&permits, "free", (0, 0), millis(1000)).await;

        begin(server);
        // Nobody knows yet: who has less patience than the crate decides by that, the others hear it.
        let start = Instant::now();
        let (impatient, newcomer, other) = tokio::join!(
            within(
                millis(200),
                "a wait of 200 ms",
                free.acquire_timeout(millis(200))
            ),
            within(DECIDED, "a newcomer", free.acquire()),
            within(DECIDED, "a newcomer to a full name", full.acquire()),
        );
        let took = start.elapsed();
        assert!(took >= OUTAGE_AFTER, "{took:?}");
        assert_eq!(impatient.unwrap_err().kind(), ErrorKind::WaitTimeout);
        assert_eq!(newcomer.unwrap_err().kind(), ErrorKind::Unavailable);
        assert_eq!(other.unwrap_err().kind(), ErrorKind::Unavailable);
        // Now it is known.
        for _ in 0..5 {
            let start = Instant::now();
            let error = within(DECIDED, "a newcomer", free.acquire())
                .await
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(start.elapsed() < SLACK / 4, "{:?}", start.elapsed());
            tokio::time::sleep(millis(100)).await;
        }
        let error = within(DECIDED, "a try", free.try_acquire())
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(!waits.is_finished(), "who waits already waits on");
        let lines = logs.with("does not answer: new callers");
        assert_eq!(lines.len(), outage, "{lines:#?}");

        end(server);
        let start = Instant::now();
        until_normal(&free).await;
        println!("normal after {:?}", start.elapsed());
        if forgets {
            // The permit is gone with the server's memory, and the waiter is back in the queue without it.
            within(NORMAL, "the loss", held.lost()).await;
        } else {
            assert!(held.release().await.unwrap(), "it was held all along");
        }
        let left = NORMAL.saturating_sub(start.elapsed());
        let permit = within(left, "who waited", waits).await.unwrap().unwrap();
        assert!(permit.is_valid());
        assert!(permit.release().await.unwrap());
        until_seen(&permits, "full", (0, 0), millis(1000)).await;
        until_seen(&permits, "free", (0, 0), millis(1000)).await;
        let lines = logs.with("answers again");
        assert_eq!(lines.len(), outage, "{lines:#?}");
    }
    let others: Vec<_> = logs.warnings();
    let lost = if forgets { 2 } else { 0 };
    assert_eq!(others.len(), 2 + lost, "{others:#?}");
}

#[tokio::test]
async fn a_paused_server() {
    let mut server = RedisServer::start();
    let url = server.url();
    survive(&mut server, &url, false, |s| s.pause(), |s| s.resume()).await;
}

#[tokio::test]
async fn a_server_that_is_killed_and_comes_back_empty() {
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

/// Every write is on its disk before it is answered.
#[tokio::test]
async fn a_server_that_is_killed_and_comes_back_with_its_data() {
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

/// Nothing passes in one direction. What was sent meanwhile arrives in the end, as TCP sees to it.
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
async fn a_link_that_is_cut_towards_the_server() {
    one_way_link(Way::Up).await;
}

#[tokio::test]
async fn a_link_that_is_cut_towards_the_client() {
    one_way_link(Way::Down).await;
}

/// As if a router had forgotten the connection: it stays open for ever, and dead. New ones are fine.
async fn half_open_link(way: Way) {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let permits = cautious(&proxy.url());
    let semaphore = permits.semaphore("half", 1).unwrap();
    for _ in 0..2 {
        let held = semaphore.acquire().await.unwrap();
        proxy.set_present(way, Mode::Lose);
        assert!(within(NORMAL, "a release", held.release()).await.unwrap());
        let permit = within(DECIDED, "a newcomer", semaphore.acquire()).await;
        assert!(permit.unwrap().release().await.unwrap());
        until_seen(&permits, "half", (0, 0), millis(500)).await;
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
async fn a_link_on_which_everything_is_lost_is_used_again_when_it_is_back() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    // Long enough that a release that could not be said for a while is said in the end.
    let permits = with_lease(&proxy.url(), 10 * LEASE);
    let semaphore = permits.semaphore("lossy", 1).unwrap();
    for way in [Way::Up, Way::Down] {
        assert!(semaphore.acquire().await.unwrap().release().await.unwrap());
        proxy.set(way, Mode::Lose);
        let newcomer = within(DECIDED, "a newcomer", semaphore.acquire()).await;
        assert_eq!(newcomer.unwrap_err().kind(), ErrorKind::Unavailable);
        tokio::time::sleep(millis(500)).await;
        // Connections that were being made meanwhile stay dead.
        proxy.set_new(way, Mode::Pass);
        let start = Instant::now();
        until_normal(&semaphore).await;
        println!("normal after {:?}", start.elapsed());
    }
}

#[tokio::test]
async fn who_waits_is_back_in_the_queue_after_everything_was_flushed() {
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
    until_seen(&third, "flushed", (1, 3), millis(1000)).await;
    server.command(&["FLUSHALL"]);
    // Somebody else is quicker, and holds on.
    let quick = third
        .semaphore("flushed", 1)
        .unwrap()
        .acquire()
        .await
        .unwrap();
    within(LEASE, "the loss", held.lost()).await;
    assert!(!held.is_valid());
    drop(held);
    until_seen(&third, "flushed", (1, 3), LEASE).await;
    assert!(quick.release().await.unwrap());
    for waiter in waits {
        assert!(within(LEASE, "a turn", waiter).await.unwrap().unwrap());
    }
    until_seen(&third, "flushed", (0, 0), millis(500)).await;
}

#[tokio::test]
async fn scripts_that_are_flushed_all_the_time_change_nothing() {
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
    assert_eq!(seen(&permits, "scripts").await, (0, 0));
}

#[tokio::test]
async fn layers_let_pass_or_refuse_while_the_server_is_down() {
    let mut server = RedisServer::start();
    let permits = cautious(&server.url());
    let semaphore = permits.semaphore("layers", 1).unwrap();
    let layer = DistributedConcurrencyLimitLayer::new(semaphore).reject_with_response();
    let inner = service_fn(async |_: Request<()>| {
        Ok::<_, Infallible>(Response::new(Empty::<bytes::Bytes>::new()))
    });
    let allow = layer.clone().on_unavailable(OnUnavailable::Allow);
    let mut passes = ServiceBuilder::new().layer(allow).service(inner);
    let mut rejects = ServiceBuilder::new().layer(layer).service(inner);
    server.kill();
    for n in 0..5 {
        let bound = if n == 0 { DECIDED } else { millis(100) };
        let start = Instant::now();
        let response = passes.ready().await.unwrap().call(Request::new(())).await;
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
