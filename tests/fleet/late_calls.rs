//! Calls that are executed late, and replies that are lost.

use crate::support::proxy::{Mode, Proxy, Way};
use crate::support::redis::RedisServer;
use crate::{LEASE, coordinator, counts, millis, until_counts, within};
use std::time::Instant;

#[tokio::test]
async fn a_call_executed_after_its_retry_creates_no_permit_and_no_second_holder() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let (delayed, direct) = (coordinator(&proxy.url()), coordinator(&server.url()));
    let semaphore = delayed.semaphore("late", 1).unwrap();
    drop(semaphore.acquire().await.unwrap());
    until_counts(&direct, "late", (0, 0), millis(500)).await;

    // The next calls are held in the old connection until the client replaces it.
    proxy.set_present(Way::Up, Mode::Hold);
    let permit = within(LEASE, "the retry", semaphore.acquire()).await;
    permit.unwrap().release().await.unwrap();
    assert_eq!(counts(&direct, "late").await, (0, 0));
    let calls = calls(&server);
    proxy.set_present(Way::Up, Mode::Pass);
    until(|| self::calls(&server) > calls).await;
    assert_eq!(
        counts(&direct, "late").await,
        (0, 0),
        "the late call left a permit"
    );

    // The same while another process holds: no second permit, and no queue entry of a released ticket.
    proxy.set_present(Way::Up, Mode::Hold);
    let permit = within(LEASE, "the retry", semaphore.acquire()).await;
    permit.unwrap().release().await.unwrap();
    let held = direct.semaphore("late", 1).unwrap().acquire().await;
    let calls = self::calls(&server);
    proxy.set_present(Way::Up, Mode::Pass);
    until(|| self::calls(&server) > calls).await;
    assert_eq!(
        counts(&direct, "late").await,
        (1, 0),
        "the late call left a queue entry"
    );
    assert!(held.unwrap().release().await.unwrap());
    assert_eq!(counts(&direct, "late").await, (0, 0));
}

#[tokio::test]
async fn a_lost_reply_does_not_block_its_own_ticket() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let (cut, direct) = (coordinator(&proxy.url()), coordinator(&server.url()));
    let semaphore = cut.semaphore("lost", 1).unwrap();
    for round in 0..5 {
        drop(semaphore.acquire().await.unwrap());
        until_counts(&direct, "lost", (0, 0), millis(500)).await;
        // The script is executed, and its reply and all later ones are lost.
        proxy.set_present(Way::Down, Mode::LoseOneAndCut);
        let start = Instant::now();
        let permit = semaphore.acquire().await.unwrap();
        let took = start.elapsed();
        assert!(took < LEASE * 2 / 3, "round {round} took {took:?}");
        assert_eq!(counts(&direct, "lost").await, (1, 0));
        // The same for the reply to a release: the retry reports that the permit was held.
        proxy.set_present(Way::Down, Mode::LoseOneAndCut);
        assert!(permit.release().await.unwrap(), "round {round}");
        assert_eq!(counts(&direct, "lost").await, (0, 0));
    }
}

#[tokio::test]
async fn a_slow_link_only_adds_latency() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    proxy.set(Way::Up, Mode::Delay(millis(30)));
    proxy.set(Way::Down, Mode::Delay(millis(30)));
    let (slow, direct) = (coordinator(&proxy.url()), coordinator(&server.url()));
    let semaphore = slow.semaphore("slow", 2).unwrap();
    let start = Instant::now();
    let tasks: Vec<_> = (0..20)
        .map(|_| {
            let semaphore = semaphore.clone();
            tokio::spawn(async move {
                let permit = semaphore.acquire().await.unwrap();
                assert!(permit.is_valid());
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert!(start.elapsed() < 4 * LEASE, "{:?}", start.elapsed());
    until_counts(&direct, "slow", (0, 0), millis(1000)).await;
}

/// Returns how many script calls the server has executed.
fn calls(server: &RedisServer) -> usize {
    let stats = server.command(&["INFO", "commandstats"]).text();
    let lines = stats.lines().filter(|line| line.contains("eval"));
    let numbers = lines.filter_map(|line| line.split("calls=").nth(1)?.split(',').next());
    numbers.map(|number| number.parse::<usize>().unwrap()).sum()
}

async fn until(done: impl Fn() -> bool) {
    let wait = async {
        while !done() {
            tokio::time::sleep(millis(5)).await;
        }
    };
    within(2 * LEASE, "the late call", wait).await;
}
