//! Log events: the span of each wait, long waits, losses; never a raw name.

use crate::logs::Logs;
use crate::modes;
use crate::{alone, settle};
use std::time::Duration;
use tokio::time::sleep;
use tower_permit::Memory;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn each_wait_has_a_span_with_name_outcome_and_time() {
    let logs = Logs::capture();
    let (_permits, semaphore) = alone(1);
    let held = semaphore.acquire().await.unwrap();
    let _ = semaphore.try_acquire().await;
    let _ = semaphore.acquire_timeout(SECOND).await;
    {
        let mut given_up = std::pin::pin!(semaphore.acquire());
        let _ = futures_util::poll!(given_up.as_mut());
    }
    drop(held);
    for outcome in ["granted", "limit_reached", "wait_timeout", "cancelled"] {
        let spans = logs.with(&format!("outcome=\"{outcome}\""));
        assert_eq!(spans.len(), 1, "{outcome}: {}", logs.text());
        assert!(spans[0].contains("permit.wait{name=test"), "{spans:?}");
        let waited = if outcome == "wait_timeout" {
            "waited_ms=1000"
        } else {
            "waited_ms=0"
        };
        assert!(spans[0].contains(waited), "{spans:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_of_more_than_two_seconds_logs_the_holders() {
    let logs = Logs::capture();
    let (permits, semaphore) = alone(1);
    let _held = semaphore.acquire().await.unwrap();
    let waiting = tokio::spawn({
        let semaphore = semaphore.clone();
        async move { semaphore.acquire().await.map(drop) }
    });
    sleep(SECOND * 19 / 10).await;
    assert_eq!(logs.with("has been waiting").len(), 0);
    sleep(SECOND).await;
    let lines = logs.with("has been waiting");
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains(permits.node()), "{lines:?}");
    assert!(lines[0].contains("in_use=1"), "{lines:?}");
    sleep(20 * SECOND).await;
    assert!(
        logs.with("has been waiting").len() <= 3,
        "not over and over"
    );
    waiting.abort();
}

#[tokio::test(start_paused = true)]
async fn a_lost_permit_logs_an_error_and_a_long_hold_a_warning() {
    let logs = Logs::capture();
    let (permits, semaphore) = alone(2);
    let evicted = semaphore.acquire().await.unwrap();
    permits.evict("test", &evicted.ticket()).await.unwrap();
    let _ = evicted.lost().await;
    let bounded = semaphore.max_hold(SECOND);
    let long = bounded.acquire().await.unwrap();
    let _ = long.lost().await;
    let lines = logs.warnings();
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert!(
        lines[0].contains("ERROR") && lines[0].contains("lost"),
        "{lines:?}"
    );
    assert!(
        lines[1].contains("WARN") && lines[1].contains("max_hold"),
        "{lines:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_hostile_name_is_logged_encoded() {
    let logs = Logs::capture();
    let permits = modes::coordinator(Memory::new());
    let semaphore = permits.semaphore("evil\n\x1b[31mname", 1).unwrap();
    let held = semaphore.acquire().await.unwrap();
    let waiting = tokio::spawn({
        let semaphore = semaphore.clone();
        async move { semaphore.acquire().await.map(drop) }
    });
    sleep(3 * SECOND).await;
    permits
        .evict("evil\n\x1b[31mname", &held.ticket())
        .await
        .unwrap();
    let _ = held.lost().await;
    settle().await;
    waiting.abort();
    let text = logs.text();
    assert!(text.contains("evil%0A%1B%5B31mname"), "{text}");
    assert!(!text.contains("evil\n") && !text.contains('\x1b'), "{text}");
}

#[tokio::test(start_paused = true)]
async fn permits_revoked_by_a_shutdown_log_no_error() {
    let logs = Logs::capture();
    let (permits, semaphore) = alone(1);
    let held = semaphore.acquire().await.unwrap();
    let _ = permits.shutdown(SECOND).await;
    let lines = logs.warnings();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(
        lines[0].contains("WARN") && lines[0].contains("shutdown"),
        "{lines:?}"
    );
    drop(held);
}
