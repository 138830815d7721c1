//! The clock by which leases expire. It tolerates pauses.

use std::time::Duration;

/// Determines which deadlines have passed.
///
/// After a pause of this process, or while no node called, every lease may look expired although its holder is alive and is about
/// to call. So after a **gap** (more than half the shortest lease since the last touch) nothing expires for a **grace**. When it
/// ends, what was due at the end of the gap and was not renewed since expires. The grace is half the longest lease, or as long as
/// the gap if that was shorter: a gap endangers only leases of up to twice its length, and a live node calls well within half of its
/// lease. A gap within a grace does not extend it, but is followed by a separate grace.
#[derive(Debug, Default)]
pub(super) struct LeaseClock {
    /// The last touch. Never decreases.
    now: Duration,
    /// When the last gap ended.
    last_gap: Duration,
    /// The length of the next grace, for gaps within the current one.
    owed: Duration,
    grace: Option<Grace>,
}

/// The leases of all nodes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leases {
    pub(super) shortest: Duration,
    pub(super) longest: Duration,
}

#[derive(Debug)]
struct Grace {
    /// What was due by then expires at the end of the grace.
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

    /// Advances the clock. Returns the deadline up to which everything expires, if anything may expire.
    ///
    /// `leases` is `None` while no node is known. No grace is needed then.
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

    /// Returns the time of the last touch. It never decreases.
    pub(super) fn now(&self) -> Duration {
        self.now
    }

    /// Returns when the grace ends, if there is one.
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
    fn without_a_gap_what_is_due_expires() {
        let mut clock = LeaseClock::new(at(100));
        for now in [105, 110, 115, 120] {
            assert_eq!(clock.touch(at(now), LEASES), Some(at(now)));
        }
    }

    #[test]
    fn after_a_gap_what_was_due_expires_half_the_longest_lease_later() {
        let mut clock = LeaseClock::new(at(100));
        assert_eq!(clock.touch(at(130), LEASES), None);
        assert_eq!(clock.grace_end(), Some(at(140)));
        assert_eq!(clock.touch(at(135), LEASES), None);
        assert_eq!(clock.touch(at(139), LEASES), None);
        assert_eq!(clock.touch(at(140), LEASES), Some(at(140)));
        assert_eq!(clock.grace_end(), None);
    }

    #[test]
    fn after_a_shorter_gap_it_expires_sooner() {
        let mut clock = LeaseClock::new(at(100));
        assert_eq!(clock.touch(at(106), LEASES), None);
        assert_eq!(clock.touch(at(111), LEASES), None);
        assert_eq!(clock.touch(at(112), LEASES), Some(at(112)));
    }

    #[test]
    fn a_gap_within_a_grace_is_followed_by_a_separate_grace() {
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
    fn a_grace_that_ended_between_two_touches_is_over() {
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
    fn time_never_decreases() {
        let mut clock = LeaseClock::new(at(100));
        assert_eq!(clock.touch(at(90), LEASES), Some(at(100)));
        assert_eq!(clock.now(), at(100));
        assert_eq!(clock.touch(at(104), LEASES), Some(at(104)));
    }

    #[test]
    fn without_a_known_node_there_is_no_grace() {
        let mut clock = LeaseClock::new(at(100));
        assert_eq!(clock.touch(at(900), None), Some(at(900)));
        assert_eq!(clock.grace_end(), None);
    }
}
