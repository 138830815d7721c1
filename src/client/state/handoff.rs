//! Whether a permit may pass from one caller of this process to the next without a call, and when new waiters have to be
//! sent to the backend: by what the last reply showed of other nodes.
//!
//! Pure: time is an argument.

use super::permit::Handover;
use crate::backend::Outcome;
use std::time::Duration;
use tokio::time::Instant;

/// How long a reply's view of other nodes counts.
const FRESH: Duration = Duration::from_millis(10);
/// How often a permit is handed off while tickets may be queued elsewhere, and for how long after its grant.
const MAX_HANDOFFS: u64 = 4;
const MAX_HANDOFF_TIME: Duration = Duration::from_millis(200);
/// Behind a queue, new waiters are sent together after this time, unless a hand-off serves them before.
const TOGETHER: Duration = Duration::from_millis(2);

/// How permits pass within this process without a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shortcuts {
    /// A released permit passes to the oldest waiter here.
    pub(crate) hand_off: bool,
    /// Without a waiter it stays here for this time.
    pub(crate) linger: Duration,
    /// The backend reports the queued tickets of all nodes.
    pub(crate) sees_others: bool,
}

/// What is allowed now.
#[derive(Debug)]
pub(crate) struct Handoff {
    shortcuts: Shortcuts,
    /// The last reply showed no ticket queued elsewhere. Counts until then.
    alone_until: Option<Instant>,
    /// The last reply showed no free permit and a ticket queued elsewhere. Counts until then.
    full_until: Option<Instant>,
    /// The last reply showed no queued ticket, and half the limit free.
    roomy: bool,
    /// Permits in use by the last reply, if the limit has not changed since.
    in_use: Option<u64>,
    /// New waiters are not sent before then.
    request_at: Instant,
    /// Until when the last lingering permit might linger.
    lingers_until: Option<Instant>,
}

/// This process's part of a name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Here {
    pub(crate) limit: u32,
    /// Permits in use here.
    pub(crate) in_use: usize,
}

// === impl Handoff ===

impl Handoff {
    pub(crate) fn new(shortcuts: Shortcuts, now: Instant) -> Self {
        Self {
            shortcuts,
            alone_until: None,
            full_until: None,
            roomy: false,
            in_use: None,
            request_at: now,
            lingers_until: None,
        }
    }

    /// Takes over what a reply shows of other nodes. `ours`: queued tickets of this node.
    pub(crate) fn observe(&mut self, outcome: &Outcome, ours: usize, limit: u32, now: Instant) {
        let (sees, others) = (self.shortcuts.sees_others, outcome.queued > ours as u64);
        let (alone, full) = (
            sees && !others,
            sees && others && outcome.in_use >= u64::from(limit),
        );
        self.alone_until = alone.then(|| now + FRESH);
        self.full_until = full.then(|| now + FRESH);
        self.roomy = outcome.queued == 0 && outcome.in_use * 2 <= u64::from(limit);
        self.in_use = Some(outcome.in_use);
    }

    /// The limit has changed: what the last reply showed was about the old one.
    pub(crate) fn forget_room(&mut self) {
        self.in_use = None;
        self.roomy = false;
    }

    /// No ticket is queued elsewhere, as far as is known.
    #[inline]
    fn is_alone(&self, now: Instant) -> bool {
        self.alone_until.is_some_and(|until| now < until)
    }

    /// No more permits are in use than this node's limit allows: else a released permit has to stay free.
    #[inline]
    fn fits(&self, here: Here) -> bool {
        let limit = u64::from(here.limit);
        self.in_use.is_some_and(|in_use| in_use <= limit) && here.in_use as u64 <= limit
    }

    // --- hand-off ---

    /// A released permit may pass to a waiter here.
    #[inline]
    pub(crate) fn is_allowed(&self, here: Here) -> bool {
        self.shortcuts.hand_off && self.fits(here)
    }

    /// This permit may: it was handed off few times, or no ticket is queued elsewhere.
    #[inline]
    pub(crate) fn may_hand_off(&self, permit: &Handover, now: Instant) -> bool {
        let may = permit.handoffs < MAX_HANDOFFS && now < permit.granted + MAX_HANDOFF_TIME;
        may || self.is_alone(now)
    }

    // --- lingering ---

    /// Until when a permit that is released now may linger, if it may.
    #[inline]
    pub(crate) fn may_linger(&self, here: Here, now: Instant) -> Option<Instant> {
        let may =
            self.roomy && !self.shortcuts.linger.is_zero() && self.is_alone(now) && self.fits(here);
        may.then(|| now + self.shortcuts.linger)
    }

    /// A permit lingers until then.
    #[inline]
    pub(crate) fn note_linger(&mut self, until: Instant) {
        self.lingers_until = Some(until);
    }

    /// Until when the last lingering permit might linger.
    #[inline]
    pub(crate) fn lingers_until(&self) -> Option<Instant> {
        self.lingers_until
    }

    /// Forgets a lingering permit whose time is over.
    #[inline]
    pub(crate) fn end_lingering(&mut self, now: Instant) {
        self.lingers_until.take_if(|until| *until <= now);
    }

    /// Nothing lingers any more.
    pub(crate) fn stop_lingering(&mut self) {
        self.shortcuts.linger = Duration::ZERO;
    }

    // --- when new waiters are sent ---

    /// The first of the waiters arrives that are not sent yet.
    #[inline]
    pub(crate) fn first_newcomer(&mut self, now: Instant) {
        let full = self.shortcuts.hand_off && self.full_until.is_some_and(|until| now < until);
        self.request_at = if full { now + TOGETHER } else { now };
    }

    /// When the waiters here are to be sent.
    #[inline]
    pub(crate) fn request_at(&self, here: Here, now: Instant) -> Instant {
        let ours_until = self.alone_until.filter(|_| self.turns_are_ours(here, now));
        self.request_at.max(ours_until.unwrap_or(self.request_at))
    }

    /// Every permit is here and no ticket is queued elsewhere: a waiter that arrives now is served by hand-off. A call
    /// would only show other nodes that it waits, which is not urgent as long as that is so.
    #[inline]
    fn turns_are_ours(&self, here: Here, now: Instant) -> bool {
        self.shortcuts.hand_off
            && self.is_alone(now)
            && self.fits(here)
            && here.in_use as u64 >= u64::from(here.limit)
            && self.in_use == Some(here.in_use as u64)
    }
}
