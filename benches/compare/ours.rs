//! Ours, with its settings in one place.

use crate::measure::Count;
use std::time::Duration;
use tower_permit::{Coordinator, CoordinatorBuilder, Redis, Semaphore};

/// However slow the machine is, nobody is refused.
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

fn builder(url: &str) -> CoordinatorBuilder<Redis> {
    let redis = Redis::new(url).and_then(|redis| redis.prefix("bench"));
    Coordinator::builder(redis.expect("a URL")).outage_after(PATIENCE)
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
