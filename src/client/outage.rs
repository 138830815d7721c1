//! Whether the backend answers: one judgement for the whole coordinator, and one log line for each change of it. Each name
//! has a judgement of its own too: a part of the backend may be gone while the others answer.
//!
//! Only calls that were sent count. How long a caller waited before its call was sent does not.

use super::queue_client::caught;
use crate::clock::now;
use crate::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How long a failure counts at least: failing calls pause for less in between.
const LEAST_TROUBLE: Duration = Duration::from_millis(250);

/// Watches whether calls are answered.
#[derive(Debug)]
pub(crate) struct OutageDetector {
    outage_after: Duration,
    /// Whether there may be trouble: mostly this is all that is read.
    any: AtomicBool,
    trouble: Mutex<Option<Trouble>>,
}

/// Calls fail, and none has been answered since.
#[derive(Debug)]
pub(crate) struct Trouble {
    /// When the first of them was sent.
    since: Instant,
    last_failure: Instant,
    /// The error of the last one.
    error: Error,
    /// It has lasted for `outage_after`: new callers are refused.
    outage: bool,
}

// === impl OutageDetector ===

impl OutageDetector {
    pub(crate) fn new(outage_after: Duration) -> Self {
        Self {
            outage_after,
            any: AtomicBool::new(false),
            trouble: Mutex::new(None),
        }
    }

    /// A call was answered.
    pub(crate) fn answered(&self, now: Instant) {
        if !self.any.load(Ordering::Relaxed) {
            return;
        }
        let mut guard = self.trouble();
        let trouble = guard.take();
        self.any.store(false, Ordering::Relaxed);
        drop(guard);
        if let Some(trouble) = trouble
            && trouble.outage
        {
            let lasted = now.saturating_duration_since(trouble.since);
            caught(|| tracing::info!(?lasted, "the backend of the permits answers again"));
        }
    }

    /// A call that was sent at `sent` was not answered. Returns the error for new callers if this is an outage.
    pub(crate) fn failed(&self, sent: Instant, now: Instant, error: &Error) -> Option<Error> {
        let mut guard = self.trouble();
        self.any.store(true, Ordering::Relaxed);
        let (outage, starts) = Trouble::note(&mut guard, sent, now, error, self.outage_after);
        drop(guard);
        if starts {
            caught(|| {
                tracing::warn!(
                    %error,
                    "the backend of the permits does not answer: new callers are refused until it does, queued ones keep waiting"
                );
            });
        }
        outage
    }

    /// The call that was sent at `sent` is still in flight when an outage [begins](Self::outage_begins). New callers get the
    /// error of the calls before it: this one has none yet.
    pub(crate) fn overdue(&self, sent: Instant, now: Instant) -> Option<Error> {
        let error = self.trouble().as_ref()?.error.clone();
        self.failed(sent, now, &error)
    }

    /// When new callers are refused if a call that is sent at `sent` is not answered before. `None` if there is no sign of
    /// trouble.
    pub(crate) fn outage_begins(&self, sent: Instant) -> Option<Instant> {
        if !self.any.load(Ordering::Relaxed) {
            return None;
        }
        let trouble = self.trouble();
        let trouble = trouble.as_ref()?;
        let fresh = sent <= trouble.last_failure + self.outage_after;
        fresh.then(|| trouble.since + self.outage_after)
    }

    /// The error for a new caller: the backend is known not to answer, and was tried lately.
    pub(crate) fn outage(&self) -> Option<Error> {
        if !self.any.load(Ordering::Relaxed) {
            return None;
        }
        self.outage_at(now())
    }

    pub(crate) fn outage_at(&self, now: Instant) -> Option<Error> {
        self.trouble().as_ref()?.outage_at(now, self.outage_after)
    }

    pub(crate) fn outage_after(&self) -> Duration {
        self.outage_after
    }

    fn trouble(&self) -> std::sync::MutexGuard<'_, Option<Trouble>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Trouble ===

impl Trouble {
    /// A call that was sent at `sent` was not answered. Returns the error for new callers if this is an outage, and whether
    /// it begins with this call.
    pub(crate) fn note(
        trouble: &mut Option<Self>,
        sent: Instant,
        now: Instant,
        error: &Error,
        outage_after: Duration,
    ) -> (Option<Error>, bool) {
        let trouble = trouble.get_or_insert(Self {
            since: sent,
            last_failure: now,
            error: error.clone(),
            outage: false,
        });
        if !trouble.outage && sent > trouble.last_failure + outage_after.max(LEAST_TROUBLE) {
            // No call was made for so long that the last failure says nothing about now.
            trouble.since = sent;
        }
        trouble.last_failure = now;
        trouble.error = error.clone();
        let starts = !trouble.outage && now >= trouble.since + outage_after;
        trouble.outage |= starts;
        (trouble.outage.then(|| error.clone()), starts)
    }

    /// The error for a new caller.
    pub(crate) fn outage_at(&self, now: Instant, outage_after: Duration) -> Option<Error> {
        let fresh = now <= self.last_failure + outage_after;
        (self.outage && fresh).then(|| self.error.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    const AFTER: Duration = Duration::from_secs(1);

    fn error() -> Error {
        Error::new(ErrorKind::Unavailable, "down")
    }

    #[test]
    fn one_lost_call_is_no_outage_and_a_second_outage_is_like_the_first() {
        let (outages, start) = (OutageDetector::new(AFTER), Instant::now());
        let mut at = start;
        for _ in 0..2 {
            assert!(outages.failed(at, at + AFTER / 2, &error()).is_none());
            assert!(outages.outage_at(at + AFTER / 2).is_none());
            assert!(
                outages
                    .failed(at + AFTER / 2, at + AFTER, &error())
                    .is_some()
            );
            assert!(outages.outage_at(at + AFTER).is_some());
            outages.answered(at + AFTER * 2);
            assert!(outages.outage_at(at + AFTER * 2).is_none());
            at += AFTER * 10;
        }
    }

    #[test]
    fn an_outage_that_begins_during_a_call_is_told_by_what_the_calls_before_it_met() {
        let (outages, start) = (OutageDetector::new(AFTER), Instant::now());
        let second = start + AFTER / 2;
        assert!(outages.overdue(start, second).is_none());
        outages.failed(start, second, &error());
        assert_eq!(outages.outage_begins(second), Some(start + AFTER));
        let span = outages.overdue(second, start + AFTER).unwrap();
        assert_eq!(span.to_string(), "down");
        assert!(outages.outage_at(start + AFTER).is_some());
    }

    #[test]
    fn what_was_found_long_ago_says_nothing_about_now() {
        let (outages, start) = (OutageDetector::new(AFTER), Instant::now());
        outages.failed(start, start + AFTER, &error());
        assert!(outages.outage_at(start + AFTER * 2).is_some());
        assert!(outages.outage_at(start + AFTER * 3).is_none());
    }

    #[test]
    fn pauses_between_tries_and_timers_that_are_late_do_not_put_an_outage_off() {
        for (after, pause, lasts) in [(50, 120, 0), (50, 120, 25), (1000, 550, 500)] {
            let [after, pause, lasts] = [after, pause, lasts].map(Duration::from_millis);
            let (outages, mut sent) = (OutageDetector::new(after), Instant::now());
            let span = (0..3).any(|_| {
                let span = outages.failed(sent, sent + lasts, &error());
                sent += lasts + pause;
                span.is_some()
            });
            assert!(span, "{after:?} {pause:?} {lasts:?}");
        }
    }

    #[test]
    fn failures_far_apart_are_no_outage() {
        let (outages, start) = (OutageDetector::new(AFTER), Instant::now());
        let later = start + AFTER * 100;
        assert!(outages.failed(start, start + AFTER / 2, &error()).is_none());
        assert!(outages.failed(later, later + AFTER / 2, &error()).is_none());
    }
}
