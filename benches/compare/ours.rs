//! Ours, with its settings in one place.

use crate::measure::Count;
use std::time::Duration;
use tower_permit::{Coordinator, CoordinatorBuilder, Redis, Semaphore};

/// However slow the machine is, no request is refused.
const PATIENCE: Duration = Duration::from_secs(60);

/// Whether a permit that was freed may stay for the next caller here. Where trips to the server are what is measured it may not.
#[derive(Clone, Copy)]
pub(crate) enum Linger {
    On,
    Off,
}

/// Everything else is as a user finds it.
pub(crate) fn coordinator(url: &str, linger: Linger) -> Coordinator {
    let builder = builder(url);
    let builder = match linger {
        Linger::On => builder,
        Linger::Off => builder.linger(Duration::ZERO),
    };
    builder.build().expect("fine settings")
}

/// Every permit goes through the queue.
pub(crate) fn strict(url: &str) -> Coordinator {
    builder(url)
        .strict_fifo(true)
        .build()
        .expect("fine settings")
}

/// What is left behind expires within this time.
pub(crate) fn with_lease(url: &str, lease: Duration) -> Coordinator {
    builder(url).lease(lease).build().expect("fine settings")
}

/// No linger; a request is refused as soon as it is for a user.
pub(crate) fn impatient(url: &str) -> Coordinator {
    let builder = Coordinator::builder(redis(url)).linger(Duration::ZERO);
    builder.build().expect("fine settings")
}

fn builder(url: &str) -> CoordinatorBuilder<Redis> {
    Coordinator::builder(redis(url)).outage_after(PATIENCE)
}

fn redis(url: &str) -> Redis {
    let redis = Redis::new(url).and_then(|redis| redis.prefix("bench"));
    redis.expect("a URL")
}

/// Gives everything back while the server is still there, so that nothing runs on beside the next figure.
pub(crate) async fn close(permits: &Coordinator) {
    permits.shutdown(PATIENCE).await.expect("nothing is held");
}

/// One pair after the other, without end, both answered.
pub(crate) async fn pairs(semaphore: Semaphore, count: Count) {
    loop {
        let permit = semaphore.acquire().await.expect("a permit");
        permit.release().await.expect("an answer");
        count.add();
    }
}
