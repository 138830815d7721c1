//! Whether a permit may go from one caller of this process to the next without the backend, and when a newcomer has to be
//! named to it: by what the last answer has said of others.
//!
//! Pure: time comes as an argument.

use super::held::Staying;
use crate::backend::Outcome;
use std::time::Duration;
use tokio::time::Instant;

/// So long counts what an answer has said of others who wait.
const FRESH: Duration = Duration::from_millis(10);
/// So often a permit changes hands here while others may wait elsewhere, and for so long after its grant; then it goes
/// back to the queue.
const MOST_HOPS: u64 = 4;
const MOST_HOPPING: Duration = Duration::from_millis(200);
/// Behind a queue a newcomer is not named before others may have come, or a permit that he gets from hand to hand.
const TOGETHER: Duration = Duration::from_millis(2);

/// How permits go from one caller of this process to the next without the backend.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shortcuts {
    /// A permit that is released goes to the oldest who waits here.
    pub(crate) hand_off: bool,
    /// If nobody does, it stays here for so long.
    pub(crate) linger: Duration,
    /// The backend tells how many wait, of all nodes.
    pub(crate) sees_others: bool,
}

/// What is allowed now.
#[derive(Debug)]
pub(crate) struct Hands {
    shortcuts: Shortcuts,
    /// By the last answer nobody waits elsewhere. It counts until then.
    alone_until: Option<Instant>,
    /// By the last answer nothing is free, and somebody waits for it elsewhere. It counts until then.
    full_until: Option<Instant>,
    /// By the last answer nobody waits anywhere, and half the limit is free.
    roomy: bool,
    /// How many permits were in use by the last answer, if the limit has not changed since.
    in_use: Option<u64>,
    /// Newcomers are not named before then.
    ask_at: Instant,
    /// Until when what lingered last might linger.
    lingers_until: Option<Instant>,
}

/// What there is of a name in this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Here {
    /// The limit.
    pub(crate) limit: u32,
    /// Permits in use here.
    pub(crate) in_use: usize,
}

// === impl Hands ===

impl Hands {
    pub(crate) fn new(shortcuts: Shortcuts, now: Instant) -> Self {
        Self {
            shortcuts,
            alone_until: None,
            full_until: None,
            roomy: false,
            in_use: None,
            ask_at: now,
            lingers_until: None,
        }
    }

    /// What an answer says of others. So many tickets in the queue are `ours`.
    pub(crate) fn look_round(&mut self, outcome: &Outcome, ours: usize, limit: u32, now: Instant) {
        let (sees, others) = (self.shortcuts.sees_others, outcome.waiting > ours as u64);
        let (alone, full) = (
            sees && !others,
            sees && others && outcome.in_use >= u64::from(limit),
        );
        self.alone_until = alone.then(|| now + FRESH);
        self.full_until = full.then(|| now + FRESH);
        self.roomy = outcome.waiting == 0 && outcome.in_use * 2 <= u64::from(limit);
        self.in_use = Some(outcome.in_use);
    }

    /// The limit has changed: what was seen by the old one says nothing now.
    pub(crate) fn forget_room(&mut self) {
        self.in_use = None;
        self.roomy = false;
    }

    /// Nobody waits elsewhere, as far as we know.
    #[inline]
    fn is_alone(&self, now: Instant) -> bool {
        self.alone_until.is_some_and(|until| now < until)
    }

    /// No more are in use than this node's limit allows: else each that comes free has to stay free.
    #[inline]
    fn fits(&self, here: Here) -> bool {
        let limit = u64::from(here.limit);
        self.in_use.is_some_and(|in_use| in_use <= limit) && here.in_use as u64 <= limit
    }

    // --- from hand to hand ---

    /// A permit that comes free may go to somebody here.
    #[inline]
    pub(crate) fn may_give(&self, here: Here) -> bool {
        self.shortcuts.hand_off && self.fits(here)
    }

    /// This one may: it has had few hops yet, or nobody else wants it.
    #[inline]
    pub(crate) fn may_hop(&self, staying: &Staying, now: Instant) -> bool {
        let may = staying.hops < MOST_HOPS && now < staying.granted + MOST_HOPPING;
        may || self.is_alone(now)
    }

    // --- lingering ---

    /// Until when a permit that comes free now may stay for nobody in particular, if it may.
    #[inline]
    pub(crate) fn may_linger(&self, here: Here, now: Instant) -> Option<Instant> {
        let may =
            self.roomy && !self.shortcuts.linger.is_zero() && self.is_alone(now) && self.fits(here);
        may.then(|| now + self.shortcuts.linger)
    }

    /// One lingers until then.
    #[inline]
    pub(crate) fn note_linger(&mut self, until: Instant) {
        self.lingers_until = Some(until);
    }

    /// Until when what lingered last might linger.
    #[inline]
    pub(crate) fn lingers_until(&self) -> Option<Instant> {
        self.lingers_until
    }

    /// What lingered last has gone by now, if it is time.
    #[inline]
    pub(crate) fn end_lingering(&mut self, now: Instant) {
        self.lingers_until.take_if(|until| *until <= now);
    }

    /// Nothing lingers any more.
    pub(crate) fn stop_lingering(&mut self) {
        self.shortcuts.linger = Duration::ZERO;
    }

    // --- when newcomers are named ---

    /// The first comes of those who are yet to be named.
    #[inline]
    pub(crate) fn first_newcomer(&mut self, now: Instant) {
        let full = self.shortcuts.hand_off && self.full_until.is_some_and(|until| now < until);
        self.ask_at = if full { now + TOGETHER } else { now };
    }

    /// When those who wait here are to be named.
    #[inline]
    pub(crate) fn ask_at(&self, here: Here, now: Instant) -> Instant {
        let ours_until = self.alone_until.filter(|_| self.turns_are_ours(here, now));
        self.ask_at.max(ours_until.unwrap_or(self.ask_at))
    }

    /// Every permit is here and nobody waits elsewhere: who comes now gets the next one from hand to hand. To ask for it
    /// would only tell the others that he waits, which can wait as long as that is so.
    #[inline]
    fn turns_are_ours(&self, here: Here, now: Instant) -> bool {
        self.shortcuts.hand_off
            && self.is_alone(now)
            && self.fits(here)
            && here.in_use as u64 >= u64::from(here.limit)
            && self.in_use == Some(here.in_use as u64)
    }
}
