//! Whether the backend answers: one judgement for the whole coordinator, with one log line for each change of it. Each
//! name has its own judgement too, since a part of the backend may be down while the others answer.
//!
//! Only calls that were sent count, not how long a caller waited before its call was sent.

use super::panics::{caught, lock};
use crate::error::Error;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// How long a failure counts at least: failing calls pause for less in between.
const LEAST_MEMORY: Duration = Duration::from_millis(250);

/// Watches whether calls are answered.
#[derive(Debug, Default)]
pub(crate) struct OutageDetector {
    pub(crate) outage_after: Duration,
    /// Whether there may be failures: mostly this is all that is read.
    any: AtomicBool,
    failures: Mutex<Option<Failures>>,
}

/// The failed calls since the last answered one.
#[derive(Debug)]
pub(crate) struct Failures {
    /// When the first of them was sent.
    since: Instant,
    last: Instant,
    /// The error of the last one.
    error: Error,
    /// They have lasted for `outage_after`: new callers are refused.
    outage: bool,
}

// === impl OutageDetector ===

impl OutageDetector {
    pub(crate) fn new(outage_after: Duration) -> Self {
        Self {
            outage_after,
            ..Self::default()
        }
    }

    /// A call was answered.
    pub(crate) fn answered(&self, now: Instant) {
        if !self.any.load(Ordering::Relaxed) {
            return;
        }
        let mut guard = lock(&self.failures);
        let failures = guard.take();
        self.any.store(false, Ordering::Relaxed);
        drop(guard);
        if let Some(failures) = failures.filter(|failures| failures.outage) {
            let lasted = now.saturating_duration_since(failures.since);
            caught(|| tracing::info!(?lasted, "the backend answers again: the outage is over"));
        }
    }

    /// A call that was sent at `sent` was not answered. Returns the error for new callers if this is an outage.
    pub(crate) fn failed(&self, sent: Instant, now: Instant, error: &Error) -> Option<Error> {
        let mut guard = lock(&self.failures);
        self.any.store(true, Ordering::Relaxed);
        let (outage, begins) = Failures::add(&mut guard, sent, now, error, self.outage_after);
        drop(guard);
        if begins {
            caught(|| {
                tracing::warn!(
                    %error,
                    "the backend does not answer: new callers are refused until it does, queued callers keep waiting"
                );
            });
        }
        outage
    }

    /// When an outage begins, unless a call that was sent at `sent` is answered before. `None` if there is no sign of one, or
    /// it has begun.
    pub(crate) fn next_outage(&self, sent: Instant) -> Option<Instant> {
        self.read(|failures| {
            let fresh = !failures.outage && sent <= failures.last + self.outage_after;
            fresh.then(|| failures.since + self.outage_after)
        })
    }

    /// Returns the error for a new caller if the backend does not answer and was called recently.
    pub(crate) fn outage(&self, now: Instant) -> Option<Error> {
        self.read(|failures| failures.outage(now, self.outage_after))
    }

    fn read<T>(&self, read: impl FnOnce(&Failures) -> Option<T>) -> Option<T> {
        if !self.any.load(Ordering::Relaxed) {
            return None;
        }
        read(lock(&self.failures).as_ref()?)
    }
}

// === impl Failures ===

impl Failures {
    /// A call that was sent at `sent` was not answered. Returns the error for new callers if this is an outage, and whether
    /// it begins with this call.
    pub(crate) fn add(
        failures: &mut Option<Self>,
        sent: Instant,
        now: Instant,
        error: &Error,
        outage_after: Duration,
    ) -> (Option<Error>, bool) {
        let failures = failures.get_or_insert(Self {
            since: sent,
            last: now,
            error: error.clone(),
            outage: false,
        });
        if !failures.outage && sent > failures.last + outage_after.max(LEAST_MEMORY) {
            // No call was sent for so long that the last failure does not show the state of now.
            failures.since = sent;
        }
        failures.last = now;
        failures.error = error.clone();
        let begins = !failures.outage && now >= failures.since + outage_after;
        failures.outage |= begins;
        (failures.outage.then(|| error.clone()), begins)
    }

    /// Returns the error for a new caller if this is an outage and the last call failed recently.
    pub(crate) fn outage(&self, now: Instant, outage_after: Duration) -> Option<Error> {
        let fresh = now <= self.last + outage_after;
        (self.outage && fresh).then(|| self.error.clone())
    }
}
