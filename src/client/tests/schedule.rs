//! The order in which names get their turns.

use crate::client::schedule::{Position, Schedule};
use crate::client::state::Plan;
use std::time::Duration;
use tokio::time::Instant;

#[test]
fn a_flood_of_one_group_delays_another_group_by_one_turn() {
    let mut schedule = Schedule::default();
    let mut positions: Vec<Position> = (0..1001).map(|_| Position::default()).collect();
    for (name, position) in positions.iter_mut().enumerate().take(1000) {
        schedule.enter(&name, 1, position, Plan::Urgent);
    }
    schedule.enter(&1000, 2, &mut positions[1000], Plan::Urgent);
    let popped: Vec<_> = (0..3).map(|_| schedule.pop_ready(|| true)).collect();
    assert_eq!(
        popped,
        [Some((0, false)), Some((1000, false)), Some((1, false))]
    );
}

#[test]
fn renewals_get_the_rest_of_a_batch() {
    let (mut schedule, now) = (Schedule::default(), Instant::now());
    let mut positions = [Position::default(), Position::default()];
    schedule.enter(&0, 0, &mut positions[0], Plan::Renewal(now));
    schedule.enter(&1, 0, &mut positions[1], Plan::Urgent);
    assert_eq!(schedule.pop_ready(|| false), Some((1, false)));
    assert_eq!(schedule.pop_ready(|| false), None);
    assert_eq!(schedule.pop_ready(|| true), Some((0, true)));
    assert_eq!(
        schedule.next_timer(),
        Some(now),
        "it becomes urgent in any case"
    );
}

#[test]
fn a_timer_moves_to_an_earlier_time_only_and_ends_with_an_idle_name() {
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
fn a_timer_that_replaced_a_fired_one_stays() {
    let (mut schedule, now) = (Schedule::default(), Instant::now());
    let mut position = Position::default();
    schedule.enter(&0, 0, &mut position, Plan::At(now));
    let (key, _) = schedule.pop_due(now).expect("due");
    let sooner = now - Duration::from_secs(1);
    schedule.enter(&0, 0, &mut position, Plan::At(sooner));
    position.on_timer(key);
    assert!(position.covers(Plan::At(sooner)));
}
