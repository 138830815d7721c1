//! One permit that is held: by whom, on which terms, and until when.
//!
//! Pure: time comes as an argument.

use crate::clock::later;
use crate::error::ErrorKind;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;

/// One caller's hold of a ticket. A ticket may go from hand to hand; who had it before has no part in it any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Hold {
    pub(crate) ticket: u64,
    /// How often the ticket had changed hands, since the backend granted it.
    pub(crate) hop: u64,
}

/// What is known of a ticket that may stay here when it is released.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Staying {
    /// How often it has changed hands since the backend granted it.
    pub(crate) hops: u64,
    /// When the grant was heard of.
    pub(crate) granted: Instant,
}

/// A mutex's token is that of the backend times this, plus the hop: so it rises with every hop, too.
const HOPS: u64 = 1024;

/// On which terms a permit is taken.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Terms {
    /// It goes back by itself unless it is claimed within this time.
    pub(crate) reserve: Option<Duration>,
    /// It is given back by itself after this time.
    pub(crate) max_hold: Option<Duration>,
}

/// One permit.
#[derive(Debug)]
pub(super) struct Held {
    /// The backend's fencing token, in a queue whose limit is 1.
    token: u64,
    /// How often it has changed hands.
    pub(super) hop: u64,
    /// When the backend's grant was heard of.
    since: Instant,
    /// Until then it is surely ours, for a while yet.
    sure_until: Instant,
    /// The backend keeps it at least until then: one lease from before the call was sent that confirmed it last.
    pub(super) deadline: Instant,
    /// How many guards share it. The last one out lets it leave.
    pub(super) guards: usize,
    reserved: Option<Reserved>,
    ends: Option<Instant>,
    /// When it stands in `endings`: not after its ending, perhaps before. So what changes with each request, and is over
    /// long before its time, costs nothing.
    pub(super) armed: Option<Instant>,
    /// Set once, and final.
    pub(super) lost: Option<ErrorKind>,
}

#[derive(Clone, Copy, Debug)]
struct Reserved {
    ttl: Duration,
    until: Instant,
}

// === impl Held ===

impl Held {
    /// A permit that nobody has yet, confirmed by a call that was sent at `sent`.
    #[inline]
    pub(super) fn new(token: u64, sent: Instant, now: Instant, lease: Duration) -> Self {
        Self {
            token,
            hop: 0,
            since: now,
            sure_until: sent + (lease - lease / 3),
            deadline: sent + lease,
            guards: 0,
            reserved: None,
            ends: None,
            armed: None,
            lost: None,
        }
    }

    /// A call that was sent at `sent` has confirmed it.
    #[inline]
    pub(super) fn confirm(&mut self, sent: Instant, lease: Duration) {
        self.deadline = sent + lease;
        self.sure_until = sent + (lease - lease / 3);
    }

    /// The fencing token of who has it now.
    pub(super) fn token(&self) -> u64 {
        self.token.saturating_mul(HOPS).saturating_add(self.hop)
    }

    #[inline]
    pub(super) fn renewal(&self, lease: Duration) -> Instant {
        self.deadline - lease + lease / 3
    }

    /// Somebody has it from now on, on these terms.
    #[inline(always)]
    pub(super) fn take(
        &mut self,
        ticket: u64,
        now: Instant,
        terms: Terms,
        endings: &mut BTreeSet<(Instant, u64)>,
    ) {
        self.guards = 1;
        self.reserved = terms.reserve.map(|ttl| Reserved {
            ttl,
            until: later(now, ttl),
        });
        self.ends = terms.max_hold.map(|most| later(now, most));
        self.arm(ticket, endings);
    }

    /// The next one has it from now on, on these terms.
    #[inline(always)]
    pub(super) fn hop_on(
        &mut self,
        ticket: u64,
        now: Instant,
        terms: Terms,
        endings: &mut BTreeSet<(Instant, u64)>,
    ) -> Hold {
        self.hop += 1;
        self.take(ticket, now, terms, endings);
        Hold {
            ticket,
            hop: self.hop,
        }
    }

    /// It is taken for good.
    #[inline]
    pub(super) fn claim(&mut self) {
        // What is left is a later ending, if any: it is armed early enough.
        self.reserved = None;
    }

    /// Its reservation starts anew.
    #[inline]
    pub(super) fn rearm(&mut self, now: Instant) {
        // Later than it was: what is armed still comes early enough.
        if let Some(reserved) = &mut self.reserved {
            reserved.until = later(now, reserved.ttl);
        }
    }

    /// Nobody has claimed it in time.
    pub(super) fn has_lapsed(&self, now: Instant) -> bool {
        self.reserved.is_some_and(|reserved| reserved.until <= now)
    }

    /// When its only guard goes, it may go to the next one.
    #[inline]
    pub(super) fn may_stay(&self, strict: bool, now: Instant) -> bool {
        self.guards == 1 && self.is_sure(now) && (!strict || self.hop + 1 < HOPS)
    }

    #[inline]
    pub(super) fn staying(&self) -> Staying {
        Staying {
            hops: self.hop,
            granted: self.since,
        }
    }

    /// Surely ours, for a while yet.
    #[inline]
    pub(super) fn is_sure(&self, now: Instant) -> bool {
        self.lost.is_none() && now <= self.sure_until
    }

    #[inline]
    pub(super) fn ending(&self) -> Option<Instant> {
        if self.guards == 0 {
            return None;
        }
        let reserved = self.reserved.map(|reserved| reserved.until);
        earlier(reserved, self.ends)
    }

    /// Sees to it that somebody looks at its ending.
    #[inline]
    pub(super) fn arm(&mut self, ticket: u64, endings: &mut BTreeSet<(Instant, u64)>) {
        if let Some(at) = self.ending()
            && self.armed.is_none_or(|armed| at < armed)
        {
            self.arm_at(at, ticket, endings);
        }
    }

    fn arm_at(&mut self, at: Instant, ticket: u64, endings: &mut BTreeSet<(Instant, u64)>) {
        self.disarm(ticket, endings);
        endings.insert((at, ticket));
        self.armed = Some(at);
    }

    pub(super) fn disarm(&mut self, ticket: u64, endings: &mut BTreeSet<(Instant, u64)>) {
        if let Some(armed) = self.armed.take() {
            endings.remove(&(armed, ticket));
        }
    }
}

/// The earlier of the two, as far as there are any.
#[inline]
pub(super) fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        _ => one.or(other),
    }
}
