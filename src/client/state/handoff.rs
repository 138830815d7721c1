//! Whether a permit may pass from one caller of this process to the next without a call, and when the tickets of new
//! waiters have to be sent. The last reply decides, by what it showed of other nodes.
//!
//! Pure: time is an argument.

use super::permit::Held;
use crate::backend::Outcome;
use std::time::Duration;
use tokio::time::Instant;

/// How long a reply's view of other nodes counts.
const FRESH: Duration = Duration::from_millis(10);
/// How often a permit is handed off while tickets may be queued elsewhere, and for how long after its grant.
const MAX_HANDOFFS: u64 = 4;
const MAX_HANDOFF_TIME: Duration = Duration::from_millis(200);
/// Behind a queue, the tickets of new waiters are sent together after this time, unless a hand-off serves them before.
const TOGETHER: Duration = Duration::from_millis(2);

/// How permits pass within this process without a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shortcuts {
    /// A released permit passes to the oldest waiter here.
    pub(crate) hand_off: bool,
    /// Without a waiter it stays here for this long, if `hand_off`.
    pub(crate) linger: Duration,
    /// The backend reports the queued tickets of all nodes.
    pub(crate) sees_others: bool,
}

/// Which shortcuts are allowed now.
#[derive(Debug)]
pub(crate) struct Handoff {
    pub(super) shortcuts: Shortcuts,
    /// Until then it counts that the last reply showed no ticket queued elsewhere.
    alone_until: Option<Instant>,
    /// Until then it counts that the last reply showed no free permit and a ticket queued elsewhere.
    full_until: Option<Instant>,
    /// The last reply showed no queued ticket, and half the limit free.
    half_free: bool,
    /// Permits in use by the last reply, if the limit has not changed since.
    in_use: Option<u64>,
    /// The tickets of new waiters are not sent before then.
    send_at: Instant,
    /// The end of the last lingering, kept even if that permit was used again.
    pub(super) lingers_until: Option<Instant>,
}

// === impl Handoff ===

impl Handoff {
    pub(crate) fn new(shortcuts: Shortcuts, now: Instant) -> Self {
        Self {
            shortcuts,
            alone_until: None,
            full_until: None,
            half_free: false,
            in_use: None,
            send_at: now,
            lingers_until: None,
        }
    }

    /// Notes what a reply shows of other nodes. `ours`: queued tickets of this node.
    pub(crate) fn observe(&mut self, outcome: &Outcome, ours: usize, limit: u32, now: Instant) {
        let (sees, others) = (self.shortcuts.sees_others, outcome.queued > ours as u64);
        let full = outcome.in_use >= u64::from(limit);
        self.alone_until = (sees && !others).then(|| now + FRESH);
        self.full_until = (sees && others && full).then(|| now + FRESH);
        self.half_free = outcome.queued == 0 && outcome.in_use * 2 <= u64::from(limit);
        self.in_use = Some(outcome.in_use);
    }

    /// Forgets how many permits are free: the limit has changed.
    pub(crate) fn forget_use(&mut self) {
        self.in_use = None;
        self.half_free = false;
    }

    /// Whether no ticket is queued elsewhere, as far as is known.
    #[inline]
    fn is_alone(&self, now: Instant) -> bool {
        self.alone_until.is_some_and(|until| now < until)
    }

    /// Whether no more permits are in use than this node's limit allows: else a released permit has to stay free.
    #[inline]
    fn fits(&self, limit: u32, in_use_here: usize) -> bool {
        let limit = u64::from(limit);
        self.in_use.is_some_and(|in_use| in_use <= limit) && in_use_here as u64 <= limit
    }

    // --- hand-off ---

    /// Whether this permit may pass to a waiter here: it was handed off few times, or no ticket is queued elsewhere.
    #[inline]
    pub(super) fn may_hand_off(
        &self,
        permit: &Held,
        limit: u32,
        in_use_here: usize,
        now: Instant,
    ) -> bool {
        let may = permit.hold.handoffs < MAX_HANDOFFS && now < permit.granted_at + MAX_HANDOFF_TIME;
        self.shortcuts.hand_off && self.fits(limit, in_use_here) && (may || self.is_alone(now))
    }

    // --- lingering ---

    /// Returns until when a permit that is released now may linger, if it may.
    #[inline]
    pub(crate) fn may_linger(
        &self,
        limit: u32,
        in_use_here: usize,
        now: Instant,
    ) -> Option<Instant> {
        let may = self.half_free
            && self.shortcuts.hand_off
            && !self.shortcuts.linger.is_zero()
            && self.is_alone(now)
            && self.fits(limit, in_use_here);
        may.then(|| now + self.shortcuts.linger)
    }

    // --- when the tickets of new waiters are sent ---

    /// The first waiter with an unsent ticket arrives.
    #[inline]
    pub(crate) fn first_unsent(&mut self, now: Instant) {
        let full = self.shortcuts.hand_off && self.full_until.is_some_and(|until| now < until);
        self.send_at = if full { now + TOGETHER } else { now };
    }

    /// When the tickets of new waiters are to be sent.
    #[inline]
    pub(crate) fn send_at(&self, limit: u32, in_use_here: usize, now: Instant) -> Instant {
        let ours_until = self
            .alone_until
            .filter(|_| self.has_every_permit(limit, in_use_here, now));
        self.send_at.max(ours_until.unwrap_or(self.send_at))
    }

    /// Whether every permit is here and no ticket is queued elsewhere: a hand-off serves a waiter that arrives now. A call
    /// would only show its ticket to other nodes, which is not urgent as long as that is so.
    #[inline]
    fn has_every_permit(&self, limit: u32, in_use_here: usize, now: Instant) -> bool {
        let (limit, here) = (u64::from(limit), in_use_here as u64);
        self.shortcuts.hand_off && self.is_alone(now) && here == limit && self.in_use == Some(here)
    }
}
