//! The clock that leases run out by: it forgives a pause.

use std::time::Duration;

/// Tells when what is overdue may go.
///
/// When a process was paused, or nobody called for a while, every lease may look overdue although its holder lives and
/// is about to say so. So after a **gap** (more than half the shortest lease since the last touch) nothing goes for a
/// **grace**; then goes what was due when the gap ended and was not renewed since. The grace is half the longest lease,
/// or as long as the gap if that was shorter: a gap endangers only leases up to twice its length, and whoever lives
/// speaks well within half of his. A gap within a grace does not prolong it: it gets a grace of its own afterwards.
#[derive(Debug, Default)]
pub(super) struct LeaseClock {
    /// The last touch. Never goes back.
    now: Duration,
    /// When the last gap ended.
    last_gap: Duration,
    /// How long a grace the gaps within this one have to get.
    owed: Duration,
    grace: Option<Grace>,
}

/// The leases that the clock has to do with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leases {
    pub(super) shortest: Duration,
    pub(super) longest: Duration,
}

#[derive(Debug)]
struct Grace {
    /// What was due by then goes when the grace ends.
    due: Duration,
    end: Duration,
}

// === impl LeaseClock ===

impl LeaseClock {
    pub(super) fn new(now: Duration) -> Self {
        Self {
            now,
            ..Self::default()
        }
    }

    /// Somebody calls. Returns the deadline up to which everything goes, if anything may go.
    /// `leases` is `None` while nobody is known: then there is nobody to forgive.
    pub(super) fn touch(&mut self, now: Duration, leases: Option<Leases>) -> Option<Duration> {
        let passed = now.saturating_sub(self.now);
        self.now += passed;
        let Some(leases) = leases else {
            self.grace = None;
            return Some(self.now);
        };

        let mut due = None;
        while let Some(ended) = self.grace.take_if(|grace| grace.end <= self.now) {
            due = Some(ended.due);
            if ended.due < self.last_gap {
                self.begin(self.last_gap, self.owed);
            }
        }
        if passed > leases.shortest / 2 {
            let pause = passed.min(leases.longest / 2);
            self.last_gap = self.now;
            if self.grace.is_none() {
                self.begin(self.now, pause);
            } else {
                self.owed = self.owed.max(pause);
            }
        }
        match self.grace {
            None => Some(self.now),
            Some(_) => due,
        }
    }

    fn begin(&mut self, due: Duration, pause: Duration) {
        let end = due.saturating_add(pause);
        self.grace = Some(Grace { due, end });
        self.owed = Duration::ZERO;
    }

    /// The last touch: now, but never earlier than before.
    pub(super) fn now(&self) -> Duration {
        self.now
    }

    /// When the grace ends, if there is one.
    pub(super) fn grace_end(&self) -> Option<Duration> {
        self.grace.as_ref().map(|grace| grace.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASES: Option<Leases> = Some(Leases {
        shortest: Duration::from_secs(10),
        longest: Duration::from_secs(20),
    });

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn while_somebody_calls_often_enough_what_is_due_goes() {
        let mut clock = LeaseClock::new(at(100));
        for now in [105, 110, 115, 120] {
            assert_eq!(clock.touch(at(now), LEASES), Some(at(now)));
        }
    }

    #[test]
    fn after_a_gap_what_was_due_goes_half_the_longest_lease_later() {
        let mut clock = LeaseClock::new(at(100));
        assert_eq!(clock.touch(at(130), LEASES), None);
        assert_eq!(clock.grace_end(), Some(at(140)));
        assert_eq!(clock.touch(at(135), LEASES), None);
        assert_eq!(clock.touch(at(139), LEASES), None);
        assert_eq!(clock.touch(at(140), LEASES), Some(at(140)));
        assert_eq!(clock.grace_end(), None);
    }

    #[test]
    fn after_a_shorter_gap_it_goes_sooner() {
        let mut clock = LeaseClock::new(at(100));
        assert_eq!(clock.touch(at(106), LEASES), None);
        assert_eq!(clock.touch(at(111), LEASES), None);
        assert_eq!(clock.touch(at(112), LEASES), Some(at(112)));
    }

    #[test]
    fn a_gap_within_a_grace_does_not_prolong_it_but_gets_its_own() {
        let mut clock = LeaseClock::new(at(100));
        assert_eq!(clock.touch(at(110), LEASES), None);
        assert_eq!(clock.touch(at(118), LEASES), None);
        assert_eq!(clock.grace_end(), Some(at(120)), "not restarted");
        assert_eq!(clock.touch(at(121), LEASES), Some(at(110)));
        assert_eq!(clock.grace_end(), Some(at(126)), "8 s from 118");
        assert_eq!(clock.touch(at(125), LEASES), None);
        assert_eq!(clock.touch(at(129), LEASES), Some(at(129)));
    }

    #[test]
    fn graces_that_ended_unseen_are_over() {
        let mut clock = LeaseClock::new(at(100));
        assert_eq!(clock.touch(at(110), LEASES), None);
        assert_eq!(clock.touch(at(118), LEASES), None);
        assert_eq!(clock.touch(at(200), LEASES), Some(at(118)));
        assert_eq!(clock.grace_end(), Some(at(210)), "of the new gap");
        assert_eq!(clock.touch(at(204), LEASES), None);
        assert_eq!(clock.touch(at(209), LEASES), None);
        assert_eq!(clock.touch(at(211), LEASES), Some(at(211)));
    }

    #[test]
    fn it_never_goes_back() {
        let mut clock = LeaseClock::new(at(100));
        assert_eq!(clock.touch(at(90), LEASES), Some(at(100)));
        assert_eq!(clock.now(), at(100));
        assert_eq!(clock.touch(at(104), LEASES), Some(at(104)));
    }

    #[test]
    fn where_nobody_is_known_there_is_no_grace() {
        let mut clock = LeaseClock::new(at(100));
        assert_eq!(clock.touch(at(900), None), Some(at(900)));
        assert_eq!(clock.grace_end(), None);
    }
}
