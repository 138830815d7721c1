//! Which names need the driver, and in which order.
//!
//! Pure: time is an argument. `T` is a name, which is opaque here.

use crate::client::state::Plan;
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, VecDeque};
use tokio::time::Instant;

/// The names that need the driver, now or later. One timer structure serves all of them.
#[derive(Debug)]
pub(crate) struct Schedule<T> {
    urgent: FairQueue<T>,
    /// Names with a renewal that no caller waits for, first due first. They use what urgent names leave of a batch.
    renewals: VecDeque<T>,
    timers: BTreeMap<TimerKey, T>,
    last_timer: u64,
}

/// The key of a timer. The number makes keys of the same time differ.
pub(super) type TimerKey = (Instant, u64);

/// Where a name is in the schedule. Kept with the name, under the name's own lock.
#[derive(Debug, Default)]
pub(crate) struct Position {
    urgent: bool,
    renewal: bool,
    timer: Option<TimerKey>,
}

/// Groups of names take turns, so that many names of one group do not delay a name of another.
#[derive(Debug)]
struct FairQueue<T> {
    groups: FxHashMap<u64, VecDeque<T>>,
    /// The groups with a name in them, each once.
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
    /// Nothing needs the driver, now or later.
    pub(crate) fn is_empty(&self) -> bool {
        self.timers.is_empty() && self.ready() == 0
    }

    /// How many names need the driver now.
    pub(crate) fn ready(&self) -> usize {
        self.urgent.len + self.renewals.len()
    }

    pub(crate) fn next_timer(&self) -> Option<Instant> {
        self.timers.keys().next().map(|(at, _)| *at)
    }

    /// Enters a name by its plan. An earlier entry stays: the driver looks at the name then, and enters it anew.
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

    /// Takes the first name whose timer is over. [`Position::timer_is_over`] has to follow.
    pub(crate) fn take_due(&mut self, now: Instant) -> Option<(TimerKey, T)> {
        let first = self.timers.first_entry()?;
        (first.key().0 <= now).then(|| first.remove_entry())
    }

    /// Takes a name that needs the driver now: an urgent one, or else one with a renewal if `renewals` is set. It says
    /// which. [`Position::is_taken`] has to follow.
    pub(crate) fn take_ready(&mut self, renewals: bool) -> Option<(T, bool)> {
        if let Some(name) = self.urgent.pop() {
            return Some((name, false));
        }
        let renewal = renewals.then(|| self.renewals.pop_front())?;
        renewal.map(|name| (name, true))
    }
}

// === impl Position ===

impl Position {
    /// An entry for this plan is there already.
    #[inline]
    pub(crate) fn covers(&self, plan: Plan) -> bool {
        match plan {
            Plan::Idle => self.timer.is_none(),
            Plan::At(at) => self.covers_time(at),
            Plan::Renewal(at) => self.renewal && self.covers_time(at),
            Plan::Urgent => self.urgent,
        }
    }

    /// The driver looks at the name by then.
    #[inline]
    pub(crate) fn covers_time(&self, at: Instant) -> bool {
        self.urgent || self.timer.is_some_and(|(armed, _)| armed <= at)
    }

    /// The timer with this key was taken out.
    pub(crate) fn timer_is_over(&mut self, key: TimerKey) {
        self.timer.take_if(|armed| *armed == key);
    }

    /// The name was taken out of those that need the driver now.
    pub(crate) fn is_taken(&mut self, renewal: bool) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_flood_of_one_group_delays_another_group_by_one_turn() {
        let mut schedule = Schedule::default();
        let mut positions: Vec<Position> = (0..1001).map(|_| Position::default()).collect();
        for (name, position) in positions.iter_mut().enumerate().take(1000) {
            schedule.enter(&name, 1, position, Plan::Urgent);
        }
        schedule.enter(&1000, 2, &mut positions[1000], Plan::Urgent);
        let taken: Vec<_> = (0..3).map(|_| schedule.take_ready(true)).collect();
        assert_eq!(
            taken,
            [Some((0, false)), Some((1000, false)), Some((1, false))]
        );
    }

    #[test]
    fn renewals_use_what_urgent_names_leave() {
        let (mut schedule, now) = (Schedule::default(), Instant::now());
        let mut positions = [Position::default(), Position::default()];
        schedule.enter(&0, 0, &mut positions[0], Plan::Renewal(now));
        schedule.enter(&1, 0, &mut positions[1], Plan::Urgent);
        assert_eq!(schedule.take_ready(false), Some((1, false)));
        assert_eq!(schedule.take_ready(false), None);
        assert_eq!(schedule.take_ready(true), Some((0, true)));
        assert_eq!(
            schedule.next_timer(),
            Some(now),
            "it becomes urgent in any case"
        );
    }

    #[test]
    fn a_timer_moves_to_an_earlier_time_only_and_goes_with_its_name() {
        let (mut schedule, now) = (Schedule::default(), Instant::now());
        let (mut position, second) = (Position::default(), Duration::from_secs(1));
        schedule.enter(&0, 0, &mut position, Plan::At(now + second));
        schedule.enter(&0, 0, &mut position, Plan::At(now + 2 * second));
        assert_eq!(schedule.next_timer(), Some(now + second));
        schedule.enter(&0, 0, &mut position, Plan::At(now));
        assert_eq!(schedule.next_timer(), Some(now));
        schedule.enter(&0, 0, &mut position, Plan::Idle);
        assert!(schedule.is_empty());
    }

    #[test]
    fn a_timer_that_was_replaced_meanwhile_stays() {
        let (mut schedule, now) = (Schedule::default(), Instant::now());
        let mut position = Position::default();
        schedule.enter(&0, 0, &mut position, Plan::At(now));
        let (key, _) = schedule.take_due(now).expect("due");
        let sooner = now - Duration::from_secs(1);
        schedule.enter(&0, 0, &mut position, Plan::At(sooner));
        position.timer_is_over(key);
        assert!(position.covers(Plan::At(sooner)));
    }
}
