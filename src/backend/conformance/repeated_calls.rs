//! Rules 2 and 9: calls that are repeated, given up, or late.

use super::fixtures::{Fixture, limit, pass_time, queue, visible_elsewhere};
use super::peer::{acquire, letters, operations, release, renew};
use crate::backend::Reply;
use tokio::time::Instant;

pub(super) async fn rule_02_a_lower_number_changes_nothing<F: Fixture>(fixture: &F) {
    let (mut a, mut b) = (fixture.peer(1), fixture.peer(1));
    let Reply::Done(_) = a.send(5, acquire([1, 2])).await else {
        panic!("the first call is stale");
    };
    a.limit = 9;
    let old = operations().release([1]).acquire([3]).try_acquire([4]);
    assert_eq!(a.send(4, old).await, Reply::Stale);
    a.limit = 1;
    assert_eq!(b.counts().await, (1, visible_elsewhere::<F>(1)));
    let outcome = b.call(acquire([1])).await;
    assert_eq!(letters(&outcome.acquired), "Q");
    let waiting = 1 + visible_elsewhere::<F>(1);
    assert_eq!((outcome.in_use, outcome.queued), (1, waiting));
    // The lower number was not recorded either.
    assert_eq!(a.send(4, operations()).await, Reply::Stale);
}

pub(super) async fn rule_02_a_lower_number_is_no_heartbeat<F: Fixture>(fixture: &F) {
    let mut a = fixture.peer(1);
    let _ = a.send(5, acquire([1, 2])).await;
    let heartbeat = a.last_heartbeat;
    tokio::time::sleep(F::LEASE / 4).await;
    let late = operations().renew([1]).acquire([2]);
    assert_eq!(a.send(4, late).await, Reply::Stale);
    a.assert_lives(1, heartbeat, F::LEASE).await;
    a.assert_lives(2, heartbeat, F::LEASE).await;
}

pub(super) async fn rule_02_the_same_number_is_answered_again<F: Fixture>(fixture: &F) {
    let limit = limit::<F>(2);
    let mut a = fixture.peer(limit);
    let operations = acquire([1, 2, 3]);
    let first = a.send(1, operations.clone()).await;
    let Reply::Done(first) = first else {
        panic!("the first call is stale");
    };
    for _ in 0..3 {
        let Reply::Done(again) = a.send(1, operations.clone()).await else {
            panic!("a repeated number is stale");
        };
        assert_eq!(again.acquired, first.acquired);
        let in_use = u64::from(limit);
        assert_eq!((again.in_use, again.queued), (in_use, 3 - in_use));
    }
}

pub(super) async fn rule_02_the_same_number_is_executed_again_after_expiry<F: Fixture>(
    fixture: &F,
) {
    let (mut a, mut b) = (fixture.peer(1), fixture.peer(1));
    let _ = a.send(1, acquire([1])).await;
    let other = b.acquires_within(1, F::LEASE * 3).await;
    assert!(other >= a.last_heartbeat.0 + F::LEASE);
    let Reply::Done(again) = a.send(1, acquire([1])).await else {
        panic!("a repeated number is stale");
    };
    assert_eq!(letters(&again.acquired), "Q", "the permit has expired");
}

pub(super) async fn rule_02_numbers_are_per_node_and_name<F: Fixture>(fixture: &F) {
    let (mut a, mut b) = (fixture.peer(1), fixture.peer(1));
    let _ = a.send(u64::from(u32::MAX) * 16, acquire([1])).await;
    assert!(matches!(b.send(1, acquire([1])).await, Reply::Done(_)));
    a.queue = queue("another name");
    let other = a.send(1, acquire([2])).await;
    assert!(matches!(other, Reply::Done(_)));
    a.queue = queue("name");
    let old = a.send(u64::from(u32::MAX) * 16 - 1, operations()).await;
    assert_eq!(old, Reply::Stale);
}

pub(super) async fn rule_02_a_retried_acquire_of_a_held_ticket_renews_it<F: Fixture>(fixture: &F) {
    let mut a = fixture.peer(1);
    let token = a.must_acquire(1).await;
    tokio::time::sleep(F::LEASE / 4).await;
    assert_eq!(a.must_acquire(1).await, token, "the same permit");
    a.assert_lives(1, a.last_heartbeat, F::LEASE).await;
    // Under the same number too: its reply counts from when the call was first sent, never from before.
    tokio::time::sleep(F::LEASE / 4).await;
    let _ = a.send(a.number, acquire([1])).await;
    a.assert_lives(1, a.last_heartbeat, F::LEASE).await;
    assert_eq!(a.counts().await, (1, 0));
}

pub(super) async fn rule_02_try_acquire_of_a_held_ticket_renews_it<F: Fixture>(fixture: &F) {
    let mut a = fixture.peer(1);
    assert_eq!(a.try_acquire([1]).await, "H");
    tokio::time::sleep(F::LEASE / 4).await;
    assert_eq!(a.try_acquire([1]).await, "H");
    a.assert_lives(1, a.last_heartbeat, F::LEASE).await;
    assert_eq!(a.counts().await, (1, 0));
}

pub(super) async fn rule_02_renew_never_creates<F: Fixture>(fixture: &F) {
    let (mut a, mut b) = (fixture.peer(1), fixture.peer(1));
    let outcome = a.call(renew([1, 2])).await;
    assert_eq!(letters(&outcome.renewed), "GG");
    assert_eq!((outcome.in_use, outcome.queued), (0, 0));
    b.must_acquire(1).await;
    assert_eq!(
        a.renew([1]).await,
        "G",
        "the ticket of this number belongs to another node"
    );
    b.release([1]).await;
    assert_eq!(b.renew([1]).await, "G");
    assert_eq!(b.counts().await, (0, 0));
}

pub(super) async fn rule_02_renew_does_not_keep_a_queue_entry<F: Fixture>(fixture: &F) {
    let (mut a, mut b) = (fixture.peer(1), fixture.peer(1));
    a.must_acquire(1).await;
    assert_eq!(b.acquire([1]).await, "Q");
    let outcome = b.call(renew([1])).await;
    assert_eq!(letters(&outcome.renewed), "G");
    assert_eq!((outcome.in_use, outcome.queued), (1, 1));
    a.release([1]).await;
    assert_eq!(b.renew([1]).await, "H", "granted by the release");
}

pub(super) async fn rule_02_release_of_an_unknown_ticket_is_a_no_op<F: Fixture>(fixture: &F) {
    let (mut a, mut b) = (fixture.peer(1), fixture.peer(1));
    assert_eq!(a.release([1, 2]).await, [false, false]);
    b.must_acquire(1).await;
    assert_eq!(
        a.release([1]).await,
        [false],
        "the ticket belongs to another node"
    );
    assert_eq!(b.renew([1]).await, "H");
    assert_eq!(b.release([9, 1, 8]).await, [false, true, false]);
    assert_eq!(b.release([1]).await, [false], "released already");
    assert_eq!(a.counts().await, (0, 0));
}

pub(super) async fn rule_02_release_reports_whether_it_was_held<F: Fixture>(fixture: &F) {
    let mut a = fixture.peer(1);
    assert_eq!(a.acquire([1, 2, 3]).await, "HQQ");
    assert_eq!(a.release([3, 1]).await, [false, true]);
    assert_eq!(a.renew([2]).await, "H");
}

pub(super) async fn rule_09_a_release_wins_over_its_own_late_acquire<F: Fixture>(fixture: &F) {
    let (mut a, mut b) = (fixture.peer(1), fixture.peer(1));
    // Call 1 was given up and is executed after call 2, which releases the ticket.
    assert!(matches!(a.send(2, release([1])).await, Reply::Done(_)));
    assert_eq!(a.send(1, acquire([1])).await, Reply::Stale);
    assert_eq!(
        b.try_acquire([1]).await,
        "H",
        "the late call left no permit behind"
    );
    assert_eq!(b.counts().await, (1, 0));
}

pub(super) async fn rule_09_a_release_wins_while_the_node_is_remembered<F: Fixture>(fixture: &F) {
    let (mut a, mut b) = (fixture.peer(1), fixture.peer(1));
    let _ = a.send(1, acquire([1])).await;
    let _ = a.send(3, release([1])).await;
    let left = a.last_heartbeat.0;
    tokio::time::sleep(F::LEASE / 2).await;
    let late = a.send(2, acquire([1])).await;
    if Instant::now() < left + F::LEASE {
        assert_eq!(
            late,
            Reply::Stale,
            "the name is idle, but the node is remembered"
        );
    }
    // Calls of other nodes do not shorten that time.
    let _ = a.send(4, release([1])).await;
    let left = a.last_heartbeat.0;
    b.repeats = acquire([1]);
    pass_time(fixture, F::LEASE * 4 / 5, &mut [&mut b]).await;
    let late = a.send(2, acquire([1])).await;
    if Instant::now() < left + F::LEASE {
        assert_eq!(late, Reply::Stale);
    }
}

pub(super) async fn rule_09_a_late_acquire_after_a_flush_holds_for_at_most_one_lease<F: Fixture>(
    fixture: &F,
) {
    let (mut a, mut b) = (fixture.peer(1), fixture.peer(1));
    let _ = a.send(8, release([1])).await;
    fixture.flush().await;
    if F::NUMBERS_SURVIVE_FLUSH {
        assert_eq!(
            a.send(7, acquire([1])).await,
            Reply::Stale,
            "the node itself keeps its number"
        );
        return;
    }
    let Reply::Done(outcome) = a.send(7, acquire([1])).await else {
        panic!("the number survived the flush");
    };
    assert_eq!(letters(&outcome.acquired), "H");
    let late = a.last_heartbeat.0;
    // The node keeps sending calls about this name that do not name the ticket.
    a.number = 10;
    a.repeats = operations();
    let acquired = b
        .acquires_within_beside(1, F::LEASE * 2, &mut [&mut a])
        .await;
    assert!(acquired >= late + F::LEASE);
}
