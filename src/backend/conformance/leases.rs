//! Rules 5, 6 and 7: the deadlines of tickets.

use super::fixtures::{Fixture, pass_time};
use super::peer::{acquire, letters, operations, renew};
use std::time::Duration;
use tokio::time::Instant;

pub(super) async fn rule_05_a_permit_expires_one_lease_after_its_nodes_last_heartbeat<
    F: Fixture,
>(
    fixture: &F,
) {
    let mut a = fixture.peer(2);
    for lease in [F::LEASE, F::LEASE * 10, Duration::from_secs(3600)] {
        let mut a = fixture.peer(9).lease(lease);
        a.must_acquire(1).await;
        a.assert_lives(1, a.last_heartbeat, lease).await;
    }
    a.limit = 4;
    assert_eq!(a.try_acquire([1]).await, "H");
    a.assert_lives(1, a.last_heartbeat, F::LEASE).await;
    assert_eq!(a.acquire([2]).await, "Q");
    a.assert_lives(2, a.last_heartbeat, F::LEASE).await;
}

pub(super) async fn rule_05_renew_and_acquire_move_the_deadline<F: Fixture>(fixture: &F) {
    let mut a = fixture.peer(2);
    assert_eq!(a.acquire([1, 2, 3]).await, "HHQ");
    tokio::time::sleep(F::LEASE / 4).await;
    let outcome = a.call(operations().renew([1]).acquire([2, 3])).await;
    assert_eq!(letters(&outcome.renewed), "H");
    assert_eq!(letters(&outcome.acquired), "HQ");
    for ticket in 1..=3 {
        a.assert_lives(ticket, a.last_heartbeat, F::LEASE).await;
    }
}

pub(super) async fn rule_05_a_permit_that_is_not_named_is_not_renewed<F: Fixture>(fixture: &F) {
    let (mut a, mut b) = (fixture.peer(2), fixture.peer(2));
    assert_eq!(a.acquire([1, 2]).await, "HH");
    let heartbeat = a.last_heartbeat;
    a.repeats = renew([2]);
    pass_time(fixture, F::LEASE / 4, &mut [&mut a]).await;
    a.assert_lives(1, heartbeat, F::LEASE).await;
    a.assert_lives(2, a.last_heartbeat, F::LEASE).await;
    let acquired = b
        .acquires_within_beside(1, F::LEASE * 2, &mut [&mut a])
        .await;
    assert!(acquired >= heartbeat.0 + F::LEASE);
    assert_eq!(a.renew([1, 2]).await, "GH");
}

pub(super) async fn rule_05_renew_never_shortens_a_deadline<F: Fixture>(fixture: &F) {
    let mut a = fixture.peer(1).lease(F::LEASE * 8);
    a.must_acquire(1).await;
    let heartbeat = a.last_heartbeat;
    a.lease = F::LEASE;
    assert_eq!(a.renew([1]).await, "H");
    a.assert_lives(1, heartbeat, F::LEASE * 8).await;
    // The permit also outlives the record of the node's last call.
    let mut b = fixture.peer(1);
    b.repeats = acquire([1]);
    pass_time(fixture, F::LEASE * 2, &mut [&mut b]).await;
    assert_eq!(b.acquire([1]).await, "Q");
    a.assert_lives(1, heartbeat, F::LEASE * 8).await;
    assert_eq!(a.renew([1]).await, "H");
}

pub(super) async fn rule_05_a_grant_by_another_node_counts_from_the_waiters_last_heartbeat<
    F: Fixture,
>(
    fixture: &F,
) {
    let (mut a, mut b, mut c) = (fixture.peer(1), fixture.peer(1), fixture.peer(1));
    a.must_acquire(1).await;
    assert_eq!(b.acquire([1, 2]).await, "QQ");
    // Its last heartbeat about this name, whichever ticket it names.
    tokio::time::sleep(F::LEASE / 10).await;
    b.release([2]).await;
    let heartbeat = b.last_heartbeat;
    a.repeats = renew([1]);
    pass_time(fixture, F::LEASE / 2, &mut [&mut a]).await;
    a.release([1]).await;
    b.assert_lives(1, heartbeat, F::LEASE).await;
    let acquired = c.acquires_within(1, F::LEASE * 2).await;
    assert!(acquired >= heartbeat.0 + F::LEASE);
}

pub(super) async fn rule_05_a_grant_by_another_node_has_the_waiters_lease<F: Fixture>(fixture: &F) {
    for (holder_lease, waiter_lease) in [(F::LEASE * 8, F::LEASE), (F::LEASE, F::LEASE * 8)] {
        let (mut a, mut b) = (
            fixture.peer(1).lease(holder_lease),
            fixture.peer(1).lease(waiter_lease),
        );
        a.must_acquire(1).await;
        assert_eq!(b.acquire([1]).await, "Q");
        let heartbeat = b.last_heartbeat;
        a.release([1]).await;
        b.assert_lives(1, heartbeat, waiter_lease).await;
        b.release([1]).await;
    }
}

pub(super) async fn rule_05_a_dead_holder_expires_one_lease_after_its_last_heartbeat<F: Fixture>(
    fixture: &F,
) {
    let (mut a, mut b) = (fixture.peer(1), fixture.peer(1));
    a.must_acquire(1).await;
    a.repeats = renew([1]);
    b.repeats = acquire([1]);
    pass_time(fixture, F::LEASE * 3 / 2, &mut [&mut a, &mut b]).await;
    let heartbeat = a.last_heartbeat.0;
    let acquired = b.acquires_within(1, F::LEASE * 2).await;
    assert!(
        acquired >= heartbeat + F::LEASE,
        "granted {:?} before the lease had expired",
        heartbeat + F::LEASE - acquired
    );
    if F::PAUSED_TIME {
        assert!(acquired < heartbeat + F::LEASE * 11 / 10);
    }
    assert_eq!(a.renew([1]).await, "G");
}

pub(super) async fn rule_05_a_queued_ticket_expires_after_one_lease<F: Fixture>(fixture: &F) {
    let (mut a, mut b) = (fixture.peer(1), fixture.peer(1));
    a.must_acquire(1).await;
    assert_eq!(b.acquire([1, 2]).await, "QQ");
    let heartbeat = b.last_heartbeat.0;
    a.repeats = renew([1]);
    pass_time(fixture, F::LEASE / 2, &mut [&mut a]).await;
    let counts = a.counts().await;
    if Instant::now() < heartbeat + F::LEASE {
        assert_eq!(counts, (1, 2));
    }
    pass_time(fixture, F::LEASE, &mut [&mut a]).await;
    assert_eq!(a.counts().await, (1, 0));
    a.release([1]).await;
    assert_eq!(
        a.counts().await,
        (0, 0),
        "no permit was granted to the dead node"
    );
}

pub(super) async fn rule_05_a_dead_queue_head_blocks_no_waiter<F: Fixture>(fixture: &F) {
    let (mut a, mut b, mut c) = (fixture.peer(1), fixture.peer(1), fixture.peer(1));
    a.must_acquire(1).await;
    assert_eq!(b.acquire([1, 2, 3]).await, "QQQ");
    assert_eq!(c.acquire([1]).await, "Q");
    a.repeats = renew([1]);
    c.repeats = acquire([1]);
    pass_time(fixture, F::LEASE * 2, &mut [&mut a, &mut c]).await;
    a.release([1]).await;
    assert_eq!(c.acquire([1]).await, "H");
}

pub(super) async fn rule_05_a_dead_node_frees_all_tickets<F: Fixture>(fixture: &F) {
    let (mut a, mut b) = (fixture.peer(3), fixture.peer(3));
    assert_eq!(a.acquire(1..=6).await, "HHHQQQ");
    let heartbeat = a.last_heartbeat.0;
    let acquired = b.acquires_within(1, F::LEASE * 2).await;
    assert!(acquired >= heartbeat + F::LEASE);
    let outcome = b.call(acquire([2, 3, 4])).await;
    assert_eq!(letters(&outcome.acquired), "HHQ");
    assert_eq!((outcome.in_use, outcome.queued), (3, 1));
}

pub(super) async fn rule_06_the_client_clock_does_not_matter<F: Fixture>(fixture: &F) {
    let (mut a, mut b) = (fixture.peer(1), fixture.peer(1));
    a.must_acquire(1).await;
    assert_eq!(b.acquire([1]).await, "Q");
    fixture
        .advance_client_clock(Duration::from_secs(3600))
        .await;
    assert_eq!(b.acquire([1]).await, "Q");
    assert_eq!(b.try_acquire([2]).await, "R");
    assert_eq!(a.renew([1]).await, "H");
    a.assert_lives(1, a.last_heartbeat, F::LEASE).await;
}

pub(super) async fn rule_07_a_short_lease_does_not_shorten_a_long_one<F: Fixture>(fixture: &F) {
    let mut long = fixture.peer(2).lease(F::LEASE * 10);
    let (mut dead, mut short) = (fixture.peer(2), fixture.peer(2));
    long.must_acquire(1).await;
    let heartbeat = long.last_heartbeat;
    dead.must_acquire(1).await;
    // `long` sends no call meanwhile. `short` gets the permit of `dead` and no other.
    let acquired = short.acquires_within(1, F::LEASE * 7).await;
    assert!(acquired >= dead.last_heartbeat.0 + F::LEASE);
    short.repeats = operations().renew([1]).acquire([2]);
    pass_time(fixture, F::LEASE, &mut [&mut short]).await;
    assert_eq!(short.counts().await, (2, 1));
    long.assert_lives(1, heartbeat, F::LEASE * 10).await;
    assert_eq!(long.renew([1]).await, "H");
}

pub(super) async fn rule_07_a_long_lease_does_not_extend_a_short_one<F: Fixture>(fixture: &F) {
    let mut long = fixture.peer(1).lease(F::LEASE * 10);
    let mut short = fixture.peer(1);
    short.must_acquire(1).await;
    let heartbeat = short.last_heartbeat;
    assert_eq!(long.acquire([1]).await, "Q");
    short.assert_lives(1, heartbeat, F::LEASE).await;
    // `poll_after` follows the shortest lease where a backend detects gaps: a longer pause would be a gap.
    let outcome = long.call(acquire([1])).await;
    let shortest = if F::HAS_GRACE { F::LEASE } else { long.lease };
    assert!(outcome.poll_after.is_some_and(|time| time < shortest / 2));
    let start = Instant::now();
    loop {
        let outcome = long.call(acquire([1])).await;
        if letters(&outcome.acquired) == "H" {
            break;
        }
        assert!(start.elapsed() < F::LEASE * 8);
        tokio::time::sleep(outcome.poll_after.expect("a time to poll again")).await;
    }
    assert!(Instant::now() >= heartbeat.0 + F::LEASE);
    if F::PAUSED_TIME {
        assert!(Instant::now() < heartbeat.0 + F::LEASE * 11 / 10);
    }
}
