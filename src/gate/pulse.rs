//! Timers that come before those of calls.
//!
//! Every call has a timer, that hardly ever matters. Tokio wakes its driver, by a system call, for each new timer that
//! comes before all others: as long as calls are made something is always due before.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::runtime::{Handle, Id};
use tokio::time::sleep;

/// One on each runtime that calls are made on.
#[derive(Debug)]
pub(super) struct Pulse {
    every: Duration,
    beats: Mutex<Vec<Beat>>,
}

#[derive(Debug)]
struct Beat {
    runtime: Id,
    /// A call was made since the last one.
    wanted: bool,
}

/// Ends with its runtime.
struct Heart {
    pulse: Arc<Pulse>,
    runtime: Id,
}

// === impl Pulse ===

impl Pulse {
    /// For calls that may take for longer than `every`.
    pub(super) fn new(every: Duration) -> Arc<Self> {
        Arc::new(Self {
            every,
            beats: Mutex::default(),
        })
    }

    /// A call is made on this runtime.
    pub(super) fn keep_up(self: &Arc<Self>) {
        let Ok(handle) = Handle::try_current() else {
            return;
        };
        let runtime = handle.id();
        let mut beats = self.beats();
        if let Some(beat) = beats.iter_mut().find(|beat| beat.runtime == runtime) {
            beat.wanted = true;
            return;
        }
        let wanted = true;
        beats.push(Beat { runtime, wanted });
        drop(beats);
        let pulse = Arc::clone(self);
        handle.spawn(Heart { pulse, runtime }.run());
    }

    fn beats(&self) -> MutexGuard<'_, Vec<Beat>> {
        self.beats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Heart ===

impl Heart {
    async fn run(self) {
        while self.is_wanted() {
            sleep(self.pulse.every).await;
        }
    }

    fn is_wanted(&self) -> bool {
        let mut beats = self.pulse.beats();
        let beat = beats.iter_mut().find(|beat| beat.runtime == self.runtime);
        beat.is_some_and(|beat| std::mem::take(&mut beat.wanted))
    }
}

impl Drop for Heart {
    fn drop(&mut self) {
        let runtime = self.runtime;
        self.pulse.beats().retain(|beat| beat.runtime != runtime);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_millis(250);

    fn hearts() -> usize {
        Handle::current().metrics().num_alive_tasks()
    }

    #[tokio::test(start_paused = true)]
    async fn it_beats_while_calls_are_made_and_not_for_long_after() {
        let pulse = Pulse::new(EVERY);
        for _ in 0..10 {
            pulse.keep_up();
            pulse.keep_up();
            assert_eq!(hearts(), 1);
            sleep(EVERY / 2).await;
        }
        sleep(EVERY * 2).await;
        assert_eq!(hearts(), 0);
        pulse.keep_up();
        assert_eq!(hearts(), 1);
    }

    #[test]
    fn a_runtime_that_ends_takes_its_own_along() {
        let pulse = Pulse::new(EVERY);
        for _ in 0..3 {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .build()
                .expect("a runtime");
            runtime.block_on(async { pulse.keep_up() });
            assert_eq!(pulse.beats().len(), 1);
            drop(runtime);
            assert!(pulse.beats().is_empty());
        }
        pulse.keep_up();
        assert!(pulse.beats().is_empty(), "without a runtime there is none");
    }
}
