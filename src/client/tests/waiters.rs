//! The waiters of a name: which one gets a grant, and which tickets are released.

use crate::client::state::{Terms, Waiters};
use std::time::Duration;
use tokio::time::Instant;

const LEASE: Duration = Duration::from_secs(10);

fn waiters(tickets: &[u64]) -> Waiters<u64> {
    let mut waiters = Waiters::default();
    for ticket in tickets {
        waiters.join(
            *ticket,
            Instant::now(),
            Terms::default(),
            usize::MAX,
            *ticket,
        );
    }
    waiters
}

#[test]
fn a_grant_goes_to_the_oldest_and_the_two_swap_tickets() {
    let mut waiters = waiters(&[1, 2, 3]);
    assert_eq!(waiters.send(8, Instant::now()), [1, 2, 3]);
    assert_eq!(
        waiters.grant(3).map(|oldest| oldest.caller),
        Some(1),
        "ticket 3 was granted, yet the oldest waiter gets it"
    );
    assert!(waiters.has_ticket(1) && waiters.has_ticket(2) && !waiters.has_ticket(3));
    let third = waiters.remove(3).expect("the third still waits");
    assert_eq!(third.ticket.number, 1, "with the oldest waiter's ticket");
    assert!(third.ticket.entry.is_some(), "which a call has named");
}

#[test]
fn a_removed_waiter_releases_its_ticket_if_a_call_has_named_it() {
    let mut waiters = waiters(&[1, 2]);
    assert_eq!(waiters.send(1, Instant::now()), [1]);
    let named = waiters.remove(1).expect("waits");
    assert!(named.ticket.number == 1 && named.ticket.entry.is_some());
    assert!(waiters.remove(2).expect("waits").ticket.entry.is_none());
    assert!(waiters.remove(2).is_none(), "only once");
}

#[test]
fn unanswered_waiters_are_those_whose_ticket_no_answered_call_has_named() {
    let (mut waiters, now) = (waiters(&[1, 2]), Instant::now());
    waiters.send(8, now);
    waiters.confirm_queued(1, now, now, LEASE);
    let unanswered = waiters.remove_unanswered();
    assert_eq!(unanswered.len(), 1);
    assert_eq!(unanswered[0].caller, 2);
    assert_eq!(waiters.len(), 1);
}
