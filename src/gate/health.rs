//! Does the backend answer? One judgement for the whole coordinator, and one line in the log for each change of it.

use crate::error::Error;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Watches whether calls are answered.
#[derive(Debug)]
pub(crate) struct Health {
    outage_after: Duration,
    trouble: Mutex<Option<Trouble>>,
}

/// Calls fail, and none has been answered since.
#[derive(Debug)]
struct Trouble {
    /// When the first of them was sent.
    since: Instant,
    last_failure: Instant,
    /// It has lasted for so long that newcomers are refused.
    outage: Option<Error>,
}

// === impl Health ===

impl Health {
    pub(crate) fn new(outage_after: Duration) -> Self {
        Self {
            outage_after,
            trouble: Mutex::new(None),
        }
    }

    /// A call was answered.
    pub(crate) fn answered(&self, now: Instant) {
        let trouble = self.trouble().take();
        if let Some(trouble) = trouble
            && trouble.outage.is_some()
        {
            let lasted = now.saturating_duration_since(trouble.since);
            tracing::info!(?lasted, "the backend of the permits answers again");
        }
    }

    /// A call that was sent at `sent` was not answered. Returns what newcomers are told if this is an outage.
    pub(crate) fn failed(&self, sent: Instant, now: Instant, error: &Error) -> Option<Error> {
        let mut guard = self.trouble();
        let trouble = guard.get_or_insert(Trouble {
            since: sent,
            last_failure: now,
            outage: None,
        });
        if trouble.outage.is_none() && now > trouble.last_failure + self.outage_after {
            // Nobody has asked for so long that the last failure says nothing about now.
            trouble.since = sent;
        }
        trouble.last_failure = now;
        let starts = trouble.outage.is_none() && now >= trouble.since + self.outage_after;
        if starts {
            trouble.outage = Some(error.clone());
        }
        let outage = trouble.outage.clone();
        drop(guard);
        if starts {
            tracing::warn!(
                %error,
                "the backend of the permits does not answer: newcomers are refused until it does"
            );
        }
        outage
    }

    /// When newcomers are refused if a call that is sent at `sent` is not answered before. `None` if nobody knows of any
    /// trouble then.
    pub(crate) fn outage_begins(&self, sent: Instant) -> Option<Instant> {
        let trouble = self.trouble();
        let trouble = trouble.as_ref()?;
        let fresh = sent <= trouble.last_failure + self.outage_after;
        fresh.then(|| trouble.since + self.outage_after)
    }

    /// What a newcomer is told at once: the backend is known not to answer, and somebody has tried lately.
    pub(crate) fn outage(&self, now: Instant) -> Option<Error> {
        let trouble = self.trouble();
        let trouble = trouble.as_ref()?;
        let fresh = now <= trouble.last_failure + self.outage_after;
        trouble.outage.clone().filter(|_| fresh)
    }

    fn trouble(&self) -> std::sync::MutexGuard<'_, Option<Trouble>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
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
        let (health, start) = (Health::new(AFTER), Instant::now());
        let mut at = start;
        for _ in 0..2 {
            assert!(health.failed(at, at + AFTER / 2, &error()).is_none());
            assert!(health.outage(at + AFTER / 2).is_none());
            assert!(
                health
                    .failed(at + AFTER / 2, at + AFTER, &error())
                    .is_some()
            );
            assert!(health.outage(at + AFTER).is_some());
            health.answered(at + AFTER * 2);
            assert!(health.outage(at + AFTER * 2).is_none());
            at += AFTER * 10;
        }
    }

    #[test]
    fn what_was_found_long_ago_says_nothing_about_now() {
        let (health, start) = (Health::new(AFTER), Instant::now());
        health.failed(start, start + AFTER, &error());
        assert!(health.outage(start + AFTER * 2).is_some());
        assert!(health.outage(start + AFTER * 3).is_none());
    }

    #[test]
    fn failures_far_apart_are_no_outage() {
        let (health, start) = (Health::new(AFTER), Instant::now());
        let later = start + AFTER * 100;
        assert!(health.failed(start, start + AFTER / 2, &error()).is_none());
        assert!(health.failed(later, later + AFTER / 2, &error()).is_none());
    }
}
