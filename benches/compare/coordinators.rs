//! The coordinators that are measured, with their settings.

use crate::measure::Count;
use std::time::Duration;
use tower_permit::{Coordinator, CoordinatorBuilder, Redis, Semaphore};

/// Long enough that no request is refused on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Whether a released permit may linger for the next local caller. Not where round trips to the server are measured.
#[derive(Clone, Copy)]
pub(crate) enum Linger {
    On,
    Off,
}

/// All other settings are the defaults.
pub(crate) fn coordinator(url: &str, linger: Linger) -> Coordinator {
    let builder = builder(url);
    let builder = match linger {
        Linger::On => builder,
        Linger::Off => builder.linger(Duration::ZERO),
    };
    builder.build().expect("valid settings")
}

/// Every permit goes through the queue.
pub(crate) fn strict(url: &str) -> Coordinator {
    builder(url)
        .strict_fifo(true)
        .build()
        .expect("valid settings")
}

/// Records of released permits expire within this lease.
pub(crate) fn with_lease(url: &str, lease: Duration) -> Coordinator {
    builder(url).lease(lease).build().expect("valid settings")
}

/// Without linger, and with the default time until an outage is detected.
pub(crate) fn impatient(url: &str) -> Coordinator {
    let builder = Coordinator::builder(redis(url)).linger(Duration::ZERO);
    builder.build().expect("valid settings")
}

fn builder(url: &str) -> CoordinatorBuilder<Redis> {
    Coordinator::builder(redis(url)).outage_after(PATIENCE)
}

fn redis(url: &str) -> Redis {
    let redis = Redis::new(url).and_then(|redis| redis.prefix("bench"));
    redis.expect("a URL")
}

/// Releases all permits while the server still runs, so that no work continues during the next figure.
pub(crate) async fn close(permits: &Coordinator) {
    permits.shutdown(PATIENCE).await.expect("nothing is held");
}

/// Acquires and releases in an endless loop, and waits for both replies.
pub(crate) async fn pairs(semaphore: Semaphore, count: Count) {
    loop {
        let permit = semaphore.acquire().await.expect("a permit");
        permit.release().await.expect("a reply");
        count.add();
    }
}
