//! One permit: its terms, and how long it is valid.
//!
//! Pure: time is an argument.

use crate::backend::Grant;
use crate::clock::later;
use crate::error::ErrorKind;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;

/// One caller's use of a ticket. After a hand-off the same ticket has a new holder, and the old `Hold` is void.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Hold {
    pub(crate) ticket: u64,
    /// Hand-offs of the ticket since the backend granted it.
    pub(crate) handoffs: u64,
}

/// A mutex's token is the backend's token times this plus the number of hand-offs, so that it increases with each of them.
const TOKENS_PER_GRANT: u64 = 1024;

/// The terms of a permit.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Terms {
    /// Released unless it is claimed within this time of its grant.
    pub(crate) reserve: Option<Duration>,
    /// Released after this time.
    pub(crate) max_hold: Option<Duration>,
    /// Released when the reader of the response has not asked for the next part within this time.
    pub(crate) stall_timeout: Option<Duration>,
}

/// The times at which permits may end, each with its ticket.
pub(super) type Endings = BTreeSet<(Instant, u64)>;

/// A held ticket.
#[derive(Debug)]
pub(super) struct Held {
    /// The current holder's.
    pub(super) hold: Hold,
    /// The backend's fencing token, for a name with a limit of 1.
    token: u64,
    /// When the backend's grant arrived here.
    pub(super) granted_at: Instant,
    /// Two thirds of a lease after the last confirmation: valid until then with time to spare.
    sure_until: Instant,
    /// The backend keeps it at least until then: one lease from the time at which the last call that confirmed it was sent.
    pub(super) deadline: Instant,
    /// How many guards share it. Dropping the last one releases it.
    pub(super) guards: usize,
    reserve: Option<Duration>,
    /// When its reservation lapses, unless it is claimed before.
    lapses: Option<Instant>,
    ends: Option<Instant>,
    stall_timeout: Option<Duration>,
    /// When the reader of the response counts as stalled.
    stalls: Option<Instant>,
    /// Its entry in `endings`, at its ending or before. An ending that moves does not change the entry, which is renewed when it
    /// is reached.
    pub(super) armed: Option<Instant>,
    /// Set once, and final.
    pub(super) lost: Option<ErrorKind>,
}

// === impl Held ===

impl Held {
    /// A permit without a guard, confirmed by a call that was sent at `sent`.
    #[inline]
    pub(super) fn new(grant: Grant, sent: Instant, now: Instant, lease: Duration) -> Self {
        Self {
            hold: Hold {
                ticket: grant.ticket,
                handoffs: 0,
            },
            token: grant.token,
            granted_at: now,
            sure_until: sent + (lease - lease / 3),
            deadline: sent + lease,
            guards: 0,
            reserve: None,
            lapses: None,
            ends: None,
            stall_timeout: None,
            stalls: None,
            armed: None,
            lost: None,
        }
    }

    /// Extends it: a call that was sent at `sent` has confirmed it.
    #[inline]
    pub(super) fn confirm(&mut self, sent: Instant, lease: Duration) {
        self.deadline = sent + lease;
        self.sure_until = sent + (lease - lease / 3);
    }

    /// Returns the fencing token of the current holder.
    pub(super) fn token(&self) -> u64 {
        (self.token.saturating_mul(TOKENS_PER_GRANT)).saturating_add(self.hold.handoffs)
    }

    #[inline]
    pub(super) fn renewal(&self, lease: Duration) -> Instant {
        self.deadline - lease + lease / 3
    }

    /// Makes a first guard, on these terms.
    #[inline(always)]
    pub(super) fn assign(&mut self, now: Instant, terms: Terms, endings: &mut Endings) {
        self.guards = 1;
        self.reserve = terms.reserve;
        self.lapses = terms.reserve.map(|reserve| later(now, reserve));
        self.ends = terms.max_hold.map(|most| later(now, most));
        self.stall_timeout = terms.stall_timeout;
        self.stalls = None;
        self.arm(endings);
    }

    /// Hands it off to the next holder, on these terms.
    #[inline(always)]
    pub(super) fn hand_off(&mut self, now: Instant, terms: Terms, endings: &mut Endings) -> Hold {
        self.hold.handoffs += 1;
        self.assign(now, terms, endings);
        self.hold
    }

    /// Ends its reservation.
    #[inline]
    pub(super) fn claim(&mut self) {
        // A later ending, if any, remains: it is armed early enough.
        self.lapses = None;
    }

    /// Restarts its reservation.
    #[inline]
    pub(super) fn rearm(&mut self, now: Instant) {
        // Later than before: the armed time is still early enough.
        if self.lapses.is_some() {
            self.lapses = self.reserve.map(|reserve| later(now, reserve));
        }
    }

    /// Whether the reservation was not claimed in time.
    pub(super) fn has_lapsed(&self, now: Instant) -> bool {
        self.lapses.is_some_and(|at| at <= now)
    }

    /// Whether `max_hold` is not over, so that another ending was due.
    pub(super) fn may_be_held(&self, now: Instant) -> bool {
        self.ends.is_none_or(|at| now < at)
    }

    /// Notes whether the reader of the response waits for its next part, or has one and has to ask for more.
    #[inline]
    pub(super) fn set_reading(&mut self, waits: bool, now: Instant, endings: &mut Endings) {
        let stall_timeout = self.stall_timeout.filter(|_| !waits);
        self.stalls = stall_timeout.map(|timeout| later(now, timeout));
        self.arm(endings);
    }

    /// Whether it may pass to another holder when its only guard is dropped.
    #[inline]
    pub(super) fn may_hand_off(&self, strict: bool, now: Instant) -> bool {
        let tokens_left = !strict || self.hold.handoffs + 1 < TOKENS_PER_GRANT;
        self.guards == 1 && self.is_sure(now) && tokens_left
    }

    /// Whether it is valid with time to spare.
    #[inline]
    pub(super) fn is_sure(&self, now: Instant) -> bool {
        self.lost.is_none() && now <= self.sure_until
    }

    /// When its reservation lapses, `max_hold` is over or the reader stalls, whichever is first.
    #[inline]
    pub(super) fn ending(&self) -> Option<Instant> {
        if self.guards == 0 {
            return None;
        }
        earlier(earlier(self.lapses, self.ends), self.stalls)
    }

    /// Makes sure that `endings` has an entry at its ending or before.
    #[inline]
    pub(super) fn arm(&mut self, endings: &mut Endings) {
        if let Some(at) = self.ending()
            && self.armed.is_none_or(|armed| at < armed)
        {
            self.disarm(endings);
            endings.insert((at, self.hold.ticket));
            self.armed = Some(at);
        }
    }

    pub(super) fn disarm(&mut self, endings: &mut Endings) {
        if let Some(armed) = self.armed.take() {
            endings.remove(&(armed, self.hold.ticket));
        }
    }
}

/// Returns the earlier of the two times, if there is any.
#[inline]
pub(super) fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        _ => one.or(other),
    }
}
