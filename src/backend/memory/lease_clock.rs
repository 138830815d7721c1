//! The clock that leases run out by: it forgives a pause.

use std::time::Duration;

/// Tells when what is overdue may go.
///
/// When a process was paused, or nobody called for a while, every lease may look overdue although its holder lives and
/// is about to say so. So after a **gap** (more than half the shortest lease since the last touch) nothing goes for a
/// **grace** of half the longest lease; then goes what was due when the gap ended and was not renewed since. A gap
/// within a grace does not prolong it: it gets a grace of its own afterwards.
#[derive(Debug, Default)]
pub(super) struct LeaseClock {
    /// The last touch. Never goes back.
    now: Duration,
    /// When the last gap ended.
    last_gap: Duration,
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

        let ended = self.grace.take_if(|grace| grace.end <= self.now);
        if ended
            .as_ref()
            .is_some_and(|grace| grace.due < self.last_gap)
        {
            self.grace = Some(Grace::after(self.last_gap, leases));
        }
        if passed > leases.shortest / 2 {
            self.last_gap = self.now;
            self.grace.get_or_insert(Grace::after(self.now, leases));
        }
        match self.grace {
            None => Some(self.now),
            Some(_) => ended.map(|grace| grace.due),
        }
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

// === impl Grace ===

impl Grace {
    fn after(gap: Duration, leases: Leases) -> Self {
        Self {
            due: gap,
            end: gap.saturating_add(leases.longest / 2),
        }
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
        assert_eq!(clock.touch(at(106), LEASES), None);
        assert_eq!(clock.grace_end(), Some(at(116)));
        assert_eq!(clock.touch(at(111), LEASES), None);
        assert_eq!(clock.touch(at(115), LEASES), None);
        assert_eq!(clock.touch(at(116), LEASES), Some(at(116)));
        assert_eq!(clock.grace_end(), None);
    }

    #[test]
    fn a_gap_within_a_grace_does_not_prolong_it_but_gets_its_own() {
        let mut clock = LeaseClock::new(at(100));
        assert_eq!(clock.touch(at(110), LEASES), None);
        assert_eq!(clock.touch(at(118), LEASES), None);
        assert_eq!(clock.grace_end(), Some(at(120)), "not restarted");
        assert_eq!(clock.touch(at(121), LEASES), Some(at(110)));
        assert_eq!(clock.grace_end(), Some(at(128)));
        assert_eq!(clock.touch(at(125), LEASES), None);
        assert_eq!(clock.touch(at(129), LEASES), Some(at(129)));
    }

    #[test]
    fn a_gap_that_outlasts_the_grace_begins_another() {
        let mut clock = LeaseClock::new(at(100));
        assert_eq!(clock.touch(at(110), LEASES), None);
        assert_eq!(clock.touch(at(200), LEASES), Some(at(110)));
        assert_eq!(clock.grace_end(), Some(at(210)));
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
