//! Masters that are found through sentinels. What happens under load is in `tests/deployments`.

use super::*;
use crate::backend::support::sentinels::{MASTER, SentinelSet};

fn redis(set: &SentinelSet) -> Redis {
    let redis = Redis::sentinel(set.addresses(), MASTER).unwrap();
    redis.prefix("shop").unwrap()
}

/// At a check and in a call the same, within the time of a check.
async fn refused(redis: Redis, kind: ErrorKind, words: &str) {
    let a = Peer::of(redis);
    for check in [true, false] {
        let start = Instant::now();
        let error = match check {
            true => a.session.check(LEASE).await.unwrap_err(),
            false => a.try_acquire_tickets(&[1]).await.unwrap_err(),
        };
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(words), "{error}");
        assert!(!error.to_string().contains("hush"), "{error}");
        assert!(start.elapsed() < CHECK_TIMEOUT + Duration::from_millis(500));
    }
}

#[tokio::test]
async fn failures_are_reported_soon() {
    let mut set = SentinelSet::start_with(1, &[], "secret", "hush");
    let with = |password: &str| -> Vec<String> {
        let url = |address: String| format!("redis://:{password}@{address}");
        set.addresses().into_iter().map(url).collect()
    };
    let redis = |sentinels: &[String], master: &str, password: &str| {
        let redis = Redis::sentinel(sentinels, master).unwrap();
        redis.credentials("", password).prefix("shop").unwrap()
    };
    let good = with("hush");
    let (a, mut b) = (
        Peer::of(redis(&good, MASTER, "secret")),
        // Of the others some are not there, or answer nothing.
        Peer::of(
            redis(
                &[&["127.0.0.1:1".to_owned()], &good[..1]].concat(),
                MASTER,
                "secret",
            )
            .database(0)
            .unwrap(),
        ),
    );
    a.session.check(LEASE).await.unwrap();
    a.acquire(&[1]).await;
    assert_eq!(b.acquire(&[1]).await.acquired, WAITING);
    a.release(&[1]).await;
    assert_eq!(b.granted().await.ticket, 1);

    let list = set.addresses().join(",");
    let url = format!("redis+sentinel://:secret@{list}/{MASTER}/0?sentinel_password=hush");
    let by_url = Redis::of_any_url(&url).unwrap();
    Peer::of(by_url).session.check(LEASE).await.unwrap();
    let unknown = redis(&good, "nobody", "secret");
    refused(
        unknown,
        ErrorKind::InvalidConfig,
        "no master with the name nobody",
    )
    .await;
    refused(
        redis(&with("wrong"), MASTER, "secret"),
        ErrorKind::Denied,
        "refused access",
    )
    .await;
    refused(
        redis(&set.addresses(), MASTER, "secret"),
        ErrorKind::Denied,
        "refused access",
    )
    .await;
    refused(
        redis(&good, MASTER, "wrong"),
        ErrorKind::Denied,
        "refused access",
    )
    .await;
    let nowhere = ["127.0.0.1:1".to_owned(), "127.0.0.1:2".to_owned()];
    let nowhere = redis(&nowhere, MASTER, "secret");
    refused(
        nowhere,
        ErrorKind::Unavailable,
        "none of the sentinels at 127.0.0.1:1",
    )
    .await;
    let silent = redis(&good, MASTER, "secret");
    set.sentinels[0].pause();
    Peer::of(silent.clone()).session.check(LEASE).await.unwrap();
    for sentinel in &set.sentinels {
        sentinel.pause();
    }
    refused(silent, ErrorKind::Unavailable, "none of the sentinels").await;
    // A connected session does not need them.
    a.session.check(LEASE).await.unwrap();
    for sentinel in &mut set.sentinels {
        sentinel.resume();
        sentinel.kill();
    }
    a.session.check(LEASE).await.unwrap();
}

/// The old master continues as a replica, or is queried before it knows: it is never used as the master.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_manual_failover_is_followed() {
    let set = SentinelSet::start(1);
    let a = Peer::of(redis(&set));
    let before = token(&a.acquire(&[1]).await.acquired);
    a.release(&[1]).await;
    let old = set.master_port();
    let start = Instant::now();
    while set.sentinels[0]
        .command(&["SENTINEL", "FAILOVER", MASTER])
        .text()
        != "OK"
    {
        sleep(Duration::from_millis(50)).await;
        assert!(start.elapsed() < Duration::from_secs(10));
    }
    tokio::task::block_in_place(|| set.wait_for_promotion(old));
    let start = Instant::now();
    let mut ticket = 2;
    let after = loop {
        match a.try_acquire_tickets(&[ticket]).await {
            // While the old one has not heard of it.
            Ok(_) if set.master_port() == old => {
                a.release(&[ticket]).await;
            }
            Ok(outcome) => break token(&outcome.acquired),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
        }
        ticket += 1;
        sleep(Duration::from_millis(20)).await;
        assert!(start.elapsed() < Duration::from_secs(4));
    };
    assert!(after > before);
}

#[test]
fn sentinels_are_checked_when_given() {
    let none: [&str; 0] = [];
    for wrong in [
        Redis::sentinel(none, MASTER),
        Redis::sentinel(["h:1"], ""),
        Redis::sentinel(["h:x"], MASTER),
        Redis::sentinel([""], MASTER),
        Redis::sentinel(["http://:hush@h"], MASTER),
        Redis::sentinel(["redis+unix:///run/redis.sock"], MASTER),
        #[cfg(feature = "redis-tls")]
        Redis::sentinel(["rediss://h:1", "h:2"], MASTER),
    ] {
        let error = wrong.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(!format!("{error} {error:?}").contains("hush"));
    }
    for wrong in [
        "redis+sentinel://u:hush@h:1",
        "redis+sentinel://u:hush@h:1/",
        "redis+sentinel://u:hush@/m",
        "redis+sentinel://u:hush@h:1,/m",
        "redis+sentinel://u:hush@h:1/m/x",
        "redis+sentinel://u:hush@h:1/m/1/2",
        "redis+sentinel://h:1/m?sentinel_password=hush&x=y",
        "http+sentinel://u:hush@h:1/m",
    ] {
        let error = Redis::of_any_url(wrong).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(!format!("{error} {error:?}").contains("hush"));
    }
    let redis = Redis::sentinel(["h:1", "redis://u:hush@[::1]:2"], MASTER);
    let redis = redis.unwrap().credentials("me", "hush").database(3);
    let shown = format!("{:?}", redis.unwrap());
    assert!(shown.contains("mymaster (of the sentinels h:1"), "{shown}");
    assert!(!shown.contains("hush"), "{shown}");
}
