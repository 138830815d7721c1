//! Checks of what is stored in a Redis server.

use std::time::Duration;
use test_support::redis::RedisServer;
use tokio::time::{Instant, sleep};

/// Asserts that nothing is stored after this time. Uses `KEYS`, since `DBSIZE` also counts expired keys.
pub async fn expect_empty(server: &RedisServer, within: Duration) {
    let end = Instant::now() + within;
    loop {
        let keys = server.command(&["KEYS", "*"]).list();
        if keys.is_empty() {
            return;
        }
        assert!(
            Instant::now() < end,
            "{} keys are left after {within:?}: {keys:?}",
            keys.len()
        );
        sleep(Duration::from_millis(50)).await;
    }
}
