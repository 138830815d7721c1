//! Redis users without the right to publish or to subscribe.

use crate::support::logs::Logs;
use crate::support::redis::RedisServer;
use crate::{LEASE, coordinator, counts, millis, until_counts};
use std::time::{Duration, Instant};

#[tokio::test]
async fn without_channel_rights_waiting_is_slower_and_logs_one_warning() {
    let logs = Logs::capture();
    let server = RedisServer::start();
    let rights = ["ACL", "SETUSER", "mute", "on", ">secret", "~*", "+@all"];
    server.command(&[&rights[..], &["resetchannels"]].concat());
    let url = server.url_of("mute", "secret");
    let here = coordinator(&url);
    let semaphore = here.semaphore("mute", 1).unwrap();
    let there = coordinator(&server.url());
    let mut turns = Vec::new();
    for _ in 0..3 {
        let held = there.semaphore("mute", 1).unwrap().acquire().await.unwrap();
        let waits = tokio::spawn({
            let semaphore = semaphore.clone();
            async move { semaphore.acquire().await.unwrap() }
        });
        until_counts(&here, "mute", (1, 1), millis(1000)).await;
        let released = Instant::now();
        assert!(held.release().await.unwrap());
        let permit = waits.await.unwrap();
        turns.push(released.elapsed());
        // The other direction: a release by the process without the right to publish.
        let waits = tokio::spawn({
            let semaphore = there.semaphore("mute", 1).unwrap();
            async move { semaphore.acquire().await.unwrap() }
        });
        until_counts(&here, "mute", (1, 1), millis(1000)).await;
        let released = Instant::now();
        drop(permit);
        let permit = waits.await.unwrap();
        turns.push(released.elapsed());
        assert!(permit.release().await.unwrap());
    }
    println!("{turns:?}");
    assert!(turns.iter().all(|turn| *turn < LEASE), "{turns:?}");
    // One warning each: grants are not pushed to the other process either.
    assert_eq!(logs.warnings().len(), 2, "{:#?}", logs.warnings());
    assert_eq!(logs.with("SUBSCRIBE").len(), 1, "{:#?}", logs.warnings());
    assert!(!logs.text().contains("secret"), "{}", logs.text());
}

#[tokio::test]
async fn two_processes_without_channel_rights_still_alternate() {
    let server = RedisServer::start();
    let rights = ["ACL", "SETUSER", "mute", "on", ">secret", "~*", "+@all"];
    server.command(&[&rights[..], &["resetchannels"]].concat());
    let url = server.url_of("mute", "secret");
    let both = [coordinator(&url), coordinator(&url)];
    let start = Instant::now();
    let tasks: Vec<_> = (0..10)
        .map(|n| {
            let semaphore = both[n % 2].semaphore("turns", 2).unwrap();
            tokio::spawn(async move {
                let permit = semaphore.acquire().await.unwrap();
                tokio::time::sleep(millis(10)).await;
                assert!(permit.release().await.unwrap());
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    println!("10 turns in {:?}", start.elapsed());
    assert!(start.elapsed() < Duration::from_secs(5));
    assert_eq!(counts(&both[0], "turns").await, (0, 0));
}
