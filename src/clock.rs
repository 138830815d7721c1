//! The one clock of this crate: monotonic, counts the time the machine was suspended, and stands still when
//! tokio's time is paused.

use std::pin::Pin;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::{Instant, Sleep};

/// Now. Compare only with other values of this function: after a suspend it runs ahead of tokio's clock.
pub(crate) fn now() -> Instant {
    Instant::now() + suspended()
}

/// [`now`] for those who ask all the time: it stands still until the system's clock ticks, every few milliseconds.
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
                self.tick = tick.filter(|_| runs()).unwrap_or_default();
                *self.now.insert(now())
            }
        }
    }

    /// What it was when somebody looked last.
    #[inline]
    pub(crate) fn last(&self) -> Instant {
        self.now.unwrap_or_else(now)
    }

    /// Somebody has looked at the exact time.
    pub(crate) fn set(&mut self, now: Instant) {
        self.now = self.now.max(Some(now));
    }
}

/// Tokio's time is that of the system: nobody has paused it, as tests do.
fn runs() -> bool {
    let (before, tokios) = (std::time::Instant::now(), Instant::now().into_std());
    before <= tokios && tokios <= std::time::Instant::now()
}

/// The last tick of the system's clock: read in a fraction of the time. It goes on while the process is stopped.
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

/// `from` and `by` later. However long `by` is: it comes from users.
pub(crate) fn later(from: Instant, by: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(30 * 365 * 24 * 3600);
    from + by.min(FAR)
}

/// Ends at `deadline`, or a little late when the machine was suspended meanwhile: look at the clock again then.
#[cfg(any(feature = "etcd", feature = "redlock"))]
pub(crate) fn sleep_until(deadline: Instant) -> Sleep {
    tokio::time::sleep(deadline.saturating_duration_since(now()))
}

/// A timer of one's own, to be polled. `None` on a thread without a runtime, where it could not be made.
pub(crate) fn timer(deadline: Instant) -> Option<Pin<Box<Sleep>>> {
    timer_of(deadline.saturating_duration_since(now()))
}

/// The same, that ends after this time.
pub(crate) fn timer_of(time: Duration) -> Option<Pin<Box<Sleep>>> {
    Handle::try_current().ok()?;
    Some(Box::pin(tokio::time::sleep(time)))
}

/// How long this machine has been suspended since it booted, by the last tick of its clock. Whole milliseconds, so that
/// the gap between the two readings does not show.
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

/// What the second clock is ahead of the first, if nothing came between the two looks: who was stopped there, or had to let
/// others run, looks again.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn difference(first: impl Fn() -> i64, second: impl Fn() -> i64) -> i64 {
    loop {
        let (before, there) = (first(), second());
        if first() - before <= 1 {
            return there - before;
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
    async fn it_stands_still_with_paused_time_and_is_advanced_with_it() {
        let start = now();
        tokio::time::advance(Duration::from_secs(60)).await;
        let passed = now() - start;
        // A millisecond of rounding, either way.
        assert!(passed.as_millis().abs_diff(60_000) <= 1, "{passed:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_coarse_one_goes_with_paused_time() {
        let mut coarse = Coarse::default();
        for _ in 0..5 {
            let before = coarse.now();
            tokio::time::advance(Duration::from_secs(1)).await;
            let passed = coarse.now() - before;
            assert!(passed.as_millis().abs_diff(1000) <= 1, "{passed:?}");
        }
    }

    #[test]
    fn the_coarse_one_never_goes_back() {
        let (before, mut coarse) = (now(), Coarse::default());
        let first = coarse.now();
        // By somebody who had to stop between his look and his word.
        coarse.set(before);
        assert!(coarse.now() >= first);
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    #[test]
    fn a_stop_between_the_looks_at_two_clocks_is_not_taken_for_a_suspend() {
        use std::cell::Cell;
        let (time, stops) = (Cell::new(1_000), Cell::new(true));
        let second = || {
            // A minute.
            time.set(time.get() + if stops.take() { 60_000 } else { 0 });
            time.get() + 7
        };
        assert_eq!(difference(|| time.get(), second), 7);
    }

    #[test]
    fn the_longest_duration_is_no_overflow() {
        assert!(later(now(), Duration::MAX) > now());
    }
}
