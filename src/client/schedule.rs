//! Which names need the driver, and in which order.
//!
//! Pure: time is an argument. `T` is a name, which is opaque here.

use super::state::Plan;
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, VecDeque};
use tokio::time::Instant;

/// The names that need the driver, now or later. One timer structure serves all of them.
#[derive(Debug)]
pub(crate) struct Schedule<T> {
    urgent: FairQueue<T>,
    /// Names with a renewal that no caller waits for, first due first. They get the rest of a batch, after urgent names.
    renewals: VecDeque<T>,
    timers: BTreeMap<TimerKey, T>,
    last_timer: u64,
}

/// The key of a timer. The number makes keys of the same time differ.
pub(crate) type TimerKey = (Instant, u64);

/// The entries of a name in the schedule. Kept with the name, under the name's own lock.
#[derive(Debug, Default)]
pub(crate) struct Position {
    urgent: bool,
    renewal: bool,
    timer: Option<TimerKey>,
}

/// Groups of names alternate, so that many names of one group do not delay a name of another.
#[derive(Debug)]
struct FairQueue<T> {
    groups: FxHashMap<u64, VecDeque<T>>,
    /// The groups that have names, each once.
    turns: VecDeque<u64>,
    /// The names of all groups.
    len: usize,
}

// === impl Schedule ===

impl<T> Default for Schedule<T> {
    fn default() -> Self {
        Self {
            urgent: FairQueue {
                groups: FxHashMap::default(),
                turns: VecDeque::new(),
                len: 0,
            },
            renewals: VecDeque::new(),
            timers: BTreeMap::new(),
            last_timer: 0,
        }
    }
}

impl<T: Clone> Schedule<T> {
    /// Whether no name needs the driver, now or later.
    pub(crate) fn is_empty(&self) -> bool {
        self.timers.is_empty() && self.ready() == 0
    }

    /// Returns how many names need the driver now.
    pub(crate) fn ready(&self) -> usize {
        self.urgent.len + self.renewals.len()
    }

    pub(crate) fn next_timer(&self) -> Option<Instant> {
        self.timers.keys().next().map(|(at, _)| *at)
    }

    /// Enters a name by its plan. An earlier entry stays: the driver checks the name then, and enters it again.
    pub(crate) fn enter(&mut self, name: &T, group: u64, position: &mut Position, plan: Plan) {
        match plan {
            Plan::Idle => self.disarm(position),
            Plan::At(at) => self.arm(name, position, at),
            Plan::Renewal(urgent_at) => {
                self.arm(name, position, urgent_at);
                if !std::mem::replace(&mut position.renewal, true) {
                    self.renewals.push_back(name.clone());
                }
            }
            Plan::Urgent => {
                if !std::mem::replace(&mut position.urgent, true) {
                    self.urgent.push(group, name.clone());
                }
            }
        }
    }

    fn arm(&mut self, name: &T, position: &mut Position, at: Instant) {
        if position.timer.is_none_or(|(armed, _)| at < armed) {
            self.disarm(position);
            self.last_timer += 1;
            let key = (at, self.last_timer);
            self.timers.insert(key, name.clone());
            position.timer = Some(key);
        }
    }

    fn disarm(&mut self, position: &mut Position) {
        if let Some(key) = position.timer.take() {
            self.timers.remove(&key);
        }
    }

    /// Removes the first name with a timer that has fired. [`Position::on_timer`] has to follow.
    pub(crate) fn pop_due(&mut self, now: Instant) -> Option<(TimerKey, T)> {
        let first = self.timers.first_entry()?;
        (first.key().0 <= now).then(|| first.remove_entry())
    }

    /// Removes a name that needs the driver now: an urgent one, or else one with a renewal if `renewals` permits it, which is
    /// called for a renewal only. Returns whether it is the latter. [`Position::on_turn`] has to follow.
    pub(crate) fn pop_ready(&mut self, renewals: impl FnOnce() -> bool) -> Option<(T, bool)> {
        if let Some(name) = self.urgent.pop() {
            return Some((name, false));
        }
        if self.renewals.is_empty() || !renewals() {
            return None;
        }
        self.renewals.pop_front().map(|name| (name, true))
    }
}

// === impl Position ===

impl Position {
    /// Whether the schedule has an entry for this plan already.
    #[inline]
    pub(crate) fn covers(&self, plan: Plan) -> bool {
        match plan {
            Plan::Idle => self.timer.is_none(),
            Plan::At(at) => self.covers_time(at),
            Plan::Renewal(at) => self.renewal && self.covers_time(at),
            Plan::Urgent => self.urgent,
        }
    }

    /// Whether the driver checks the name by then.
    #[inline]
    pub(crate) fn covers_time(&self, at: Instant) -> bool {
        self.urgent || self.timer.is_some_and(|(armed, _)| armed <= at)
    }

    /// The timer with this key has fired.
    pub(crate) fn on_timer(&mut self, key: TimerKey) {
        self.timer.take_if(|armed| *armed == key);
    }

    /// The name was removed from those that need the driver now. `renewal`: from the renewals.
    pub(crate) fn on_turn(&mut self, renewal: bool) {
        match renewal {
            true => self.renewal = false,
            false => self.urgent = false,
        }
    }
}

// === impl FairQueue ===

impl<T> FairQueue<T> {
    fn push(&mut self, group: u64, name: T) {
        let names = self.groups.entry(group).or_default();
        if names.is_empty() {
            self.turns.push_back(group);
        }
        names.push_back(name);
        self.len += 1;
    }

    fn pop(&mut self) -> Option<T> {
        let group = self.turns.pop_front()?;
        let names = self.groups.get_mut(&group)?;
        let name = names.pop_front();
        self.len -= 1;
        if names.is_empty() {
            self.groups.remove(&group);
        } else {
            self.turns.push_back(group);
        }
        name
    }
}
