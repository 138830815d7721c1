//! The clock of this crate: monotonic, includes the time the machine was suspended, and stops while tokio's time is
//! paused.

use std::pin::Pin;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::{Instant, Sleep};

/// Returns the current time. Compare it only with other values of this function: after a suspend it is ahead of tokio's
/// clock.
pub(crate) fn now() -> Instant {
    Instant::now() + suspended()
}

/// A cheaper [`now`] for frequent calls. It changes only when the system's coarse clock ticks, every few milliseconds.
#[derive(Debug, Default)]
pub(crate) struct Coarse {
    tick: u64,
    now: Option<Instant>,
}

impl Coarse {
    #[inline]
    pub(crate) fn now(&mut self) -> Instant {
        let tick = tick();
        match self.now {
            Some(now) if tick == Some(self.tick) => now,
            _ => {
                self.tick = tick.filter(|_| is_running()).unwrap_or_default();
                *self.now.insert(now())
            }
        }
    }

    /// Returns the time of the last call of [`now`](Self::now) or [`set`](Self::set).
    #[inline]
    pub(crate) fn last(&self) -> Instant {
        self.now.unwrap_or_else(now)
    }

    /// Moves this clock forward to an exact time that was read elsewhere.
    pub(crate) fn set(&mut self, now: Instant) {
        self.now = self.now.max(Some(now));
    }
}

/// Returns whether tokio's time is the system's, and not paused by a test.
fn is_running() -> bool {
    let (before, tokio_now) = (std::time::Instant::now(), Instant::now().into_std());
    before <= tokio_now && tokio_now <= std::time::Instant::now()
}

/// Returns the system's coarse clock, which is much cheaper to read. It advances while the process is stopped.
#[cfg(any(target_os = "linux", target_os = "android"))]
#[inline]
fn tick() -> Option<u64> {
    use rustix::time::{ClockId, clock_gettime};
    let time = clock_gettime(ClockId::MonotonicCoarse);
    u64::try_from(time.tv_sec * 1_000_000_000 + time.tv_nsec).ok()
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn tick() -> Option<u64> {
    None
}

/// Adds a duration of any length to a time, without overflow: the duration may come from a user.
pub(crate) fn later(from: Instant, by: Duration) -> Instant {
    const MAX: Duration = Duration::from_secs(30 * 365 * 24 * 3600);
    from + by.min(MAX)
}

/// Returns a timer for `deadline`. After a suspend it fires late: compare the deadline with [`now`] as well.
#[cfg(any(feature = "etcd", feature = "redlock"))]
pub(crate) fn sleep_until(deadline: Instant) -> Sleep {
    tokio::time::sleep(deadline.saturating_duration_since(now()))
}

/// Returns a boxed timer for `deadline`, or `None` on a thread without a runtime, where tokio cannot create one.
pub(crate) fn timer(deadline: Instant) -> Option<Pin<Box<Sleep>>> {
    timer_of(deadline.saturating_duration_since(now()))
}

/// Returns a boxed timer that fires after this time, as [`timer`].
pub(crate) fn timer_of(time: Duration) -> Option<Pin<Box<Sleep>>> {
    Handle::try_current().ok()?;
    Some(Box::pin(tokio::time::sleep(time)))
}

/// Returns how long this machine has been suspended since it booted, as of the last tick. In whole milliseconds, so that
/// the gap between two clock readings does not count.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn suspended() -> Duration {
    use rustix::time::{ClockId, clock_gettime};
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    static TICK: AtomicU64 = AtomicU64::new(0);
    static MILLIS: AtomicU64 = AtomicU64::new(0);
    let tick = tick().unwrap_or_default();
    if TICK.load(Relaxed) != tick {
        let millis = |id| {
            let time = clock_gettime(id);
            time.tv_sec * 1000 + time.tv_nsec / 1_000_000
        };
        let difference = difference(|| millis(ClockId::Monotonic), || millis(ClockId::Boottime));
        MILLIS.store(u64::try_from(difference).unwrap_or(0), Relaxed);
        TICK.store(tick, Relaxed);
    }
    Duration::from_millis(MILLIS.load(Relaxed))
}

/// Returns how far the second clock is ahead of the first. Repeats the readings if the thread was stopped or preempted
/// between them.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn difference(first: impl Fn() -> i64, second: impl Fn() -> i64) -> i64 {
    loop {
        let (before, other) = (first(), second());
        if first() - before <= 1 {
            return other - before;
        }
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn suspended() -> Duration {
    Duration::ZERO
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn now_follows_paused_time() {
        let start = now();
        tokio::time::advance(Duration::from_secs(60)).await;
        let passed = now() - start;
        // A millisecond of rounding, either way.
        assert!(passed.as_millis().abs_diff(60_000) <= 1, "{passed:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_coarse_clock_follows_paused_time() {
        let mut coarse = Coarse::default();
        for _ in 0..5 {
            let before = coarse.now();
            tokio::time::advance(Duration::from_secs(1)).await;
            let passed = coarse.now() - before;
            assert!(passed.as_millis().abs_diff(1000) <= 1, "{passed:?}");
        }
    }

    #[test]
    fn the_coarse_clock_is_monotonic() {
        let (before, mut coarse) = (now(), Coarse::default());
        let first = coarse.now();
        // From a thread that was stopped between reading the time and setting it.
        coarse.set(before);
        assert!(coarse.now() >= first);
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    #[test]
    fn a_stop_between_two_readings_does_not_count_as_a_suspend() {
        use std::cell::Cell;
        let (time, stops) = (Cell::new(1_000), Cell::new(true));
        let second = || {
            // The thread is stopped for a minute.
            time.set(time.get() + if stops.take() { 60_000 } else { 0 });
            time.get() + 7
        };
        assert_eq!(difference(|| time.get(), second), 7);
    }

    #[test]
    fn the_longest_duration_does_not_overflow() {
        assert!(later(now(), Duration::MAX) > now());
    }
}
