//! Stalls: no node could send a call for a while, because the server or all processes were paused.
//!
//! On a backend with sessions that expire by themselves ([`Fixture::HAS_GRACE`] is false), a node without a call for one
//! lease loses its tickets at once. Each test asserts that too.

use super::fixtures::{Fixture, queue, silence};
use super::peer::{acquire, operations, renew};
use crate::backend::TicketState;
use tokio::time::Instant;

pub(super) async fn a_stall_evicts_no_live_holder<F: Fixture>(fixture: &F) {
    let (mut a, mut b) = (fixture.peer(1), fixture.peer(1));
    a.must_acquire(1).await;
    assert_eq!(b.acquire([1]).await, "Q");
    silence(F::LEASE * 3 / 2).await;
    if !F::HAS_GRACE {
        assert_eq!(b.acquire([1]).await, "H");
        assert_eq!(a.renew([1]).await, "G");
        return;
    }
    // The first call after the stall is that of the queued node.
    assert_eq!(b.acquire([1]).await, "Q");
    assert_eq!(b.try_acquire([2]).await, "R");
    assert_eq!(a.renew([1]).await, "H");
    a.repeats = renew([1]);
    b.repeats = acquire([1]);
    super::fixtures::pass_time(fixture, F::LEASE * 3 / 2, &mut [&mut b, &mut a]).await;
    assert_eq!(b.acquire([1]).await, "Q", "still held after the grace");
    assert_eq!(a.renew([1]).await, "H");
}

pub(super) async fn a_stall_evicts_no_holder_through_another_name<F: Fixture>(fixture: &F) {
    let (mut a, mut b) = (fixture.peer(1), fixture.peer(1));
    a.must_acquire(1).await;
    silence(F::LEASE * 3 / 2).await;
    b.queue = queue("another name");
    for ticket in 0..50 {
        b.acquire([ticket]).await;
    }
    b.queue = queue("name");
    if !F::HAS_GRACE {
        assert_eq!(b.acquire([1]).await, "H");
        assert_eq!(a.renew([1]).await, "G");
        return;
    }
    assert_eq!(b.acquire([1]).await, "Q");
    assert_eq!(a.renew([1]).await, "H");
}

pub(super) async fn after_a_stall_dead_holders_expire_within_half_the_longest_lease<F: Fixture>(
    fixture: &F,
) {
    let (mut a, mut b, mut dead) = (fixture.peer(2), fixture.peer(2), fixture.peer(2));
    a.must_acquire(1).await;
    dead.must_acquire(1).await;
    silence(F::LEASE * 3 / 2).await;
    let woken = Instant::now();
    if !F::HAS_GRACE {
        assert_eq!(b.acquire([1, 2, 3]).await, "HHQ", "both nodes were silent");
        assert_eq!(a.renew([1]).await, "G");
        assert_eq!(dead.renew([1]).await, "G");
        return;
    }
    a.repeats = renew([1]);
    let acquired = b.acquires_within_beside(1, F::LEASE, &mut [&mut a]).await;
    let grace = F::LEASE / 2;
    assert!(acquired >= woken + grace);
    if F::PAUSED_TIME {
        assert!(
            acquired < woken + grace + F::LEASE / 100,
            "expired at the end of the grace"
        );
    }
    assert_eq!(a.renew([1]).await, "H");
    assert_eq!(dead.renew([1]).await, "G");
}

pub(super) async fn a_second_stall_does_not_prolong_the_grace<F: Fixture>(fixture: &F) {
    let (mut a, mut b, mut dead) = (fixture.peer(2), fixture.peer(2), fixture.peer(2));
    a.must_acquire(1).await;
    dead.must_acquire(1).await;
    silence(F::LEASE * 3 / 2).await;
    if !F::HAS_GRACE {
        assert_eq!(a.renew([1]).await, "G");
        assert_eq!(a.acquire([2]).await, "H");
        silence(F::LEASE * 3 / 5).await;
        assert_eq!(
            a.renew([2]).await,
            "H",
            "a pause below one lease loses no permit"
        );
        return;
    }
    assert_eq!(a.renew([1]).await, "H");
    silence(F::LEASE * 3 / 5).await;
    assert_eq!(
        b.acquire([1]).await,
        "H",
        "the grace of the dead node is over"
    );
    assert_eq!(a.renew([1]).await, "H", "this node renewed since");
}

pub(super) async fn stalls_within_a_grace_do_not_prolong_it<F: Fixture>(fixture: &F) {
    let mut dead = fixture.peer(1).lease(F::LEASE * 3);
    let mut b = fixture.peer(1);
    dead.must_acquire(1).await;
    b.call(operations()).await;
    silence(F::LEASE * 16 / 5).await;
    if !F::HAS_GRACE {
        assert_eq!(b.acquire([1]).await, "H");
        return;
    }
    // The grace ends after 1.5 leases of `b`.
    for _ in 0..3 {
        assert_eq!(b.acquire([1]).await, "Q");
        silence(F::LEASE * 3 / 5).await;
    }
    assert_eq!(b.acquire([1]).await, "H");
}

pub(super) async fn a_short_gap_does_not_keep_dead_holders_for_half_a_long_lease<F: Fixture>(
    fixture: &F,
) {
    let mut long = fixture.peer(2).lease(F::LEASE * 20);
    let (mut dead, mut b) = (fixture.peer(2), fixture.peer(2));
    long.must_acquire(1).await;
    dead.must_acquire(1).await;
    silence(F::LEASE * 3 / 5).await;
    let acquired = b.acquires_within(1, F::LEASE * 3).await;
    assert!(acquired >= dead.last_heartbeat.0 + F::LEASE);
    assert_eq!(long.renew([1]).await, "H");
}

pub(super) async fn a_slightly_late_holder_keeps_an_untaken_permit<F: Fixture>(fixture: &F) {
    let (mut a, mut b) = (fixture.peer(1), fixture.peer(1));
    let token = a.must_acquire(1).await;
    for _ in 0..2 {
        silence(F::LEASE * 2 / 5).await;
        b.call(operations()).await;
    }
    silence(F::LEASE * 3 / 10).await;
    if !F::HAS_GRACE {
        assert_eq!(a.renew([1]).await, "G", "its session has expired");
        assert_eq!(b.acquire([1]).await, "H");
        return;
    }
    assert_eq!(
        a.call(renew([1])).await.renewed,
        [TicketState::Held { token }]
    );
    assert_eq!(b.acquire([1]).await, "Q");
}

pub(super) async fn during_a_grace_a_silent_queue_head_neither_blocks_nor_loses_its_position<
    F: Fixture,
>(
    fixture: &F,
) {
    let (mut a, mut b, mut c) = (fixture.peer(1), fixture.peer(1), fixture.peer(1));
    a.must_acquire(1).await;
    assert_eq!(b.acquire([1]).await, "Q");
    silence(F::LEASE * 3 / 2).await;
    // The holder calls first after the stall and releases its permit. The queue head may be dead.
    a.call(operations().release([1])).await;
    c.acquires_within(1, F::LEASE / 4).await;
    if !F::HAS_GRACE {
        // The entry of `b` has expired. The next acquire enqueues it at the end.
        assert_eq!(a.acquire([2]).await, "Q");
        assert_eq!(b.acquire([1]).await, "Q");
        c.release([1]).await;
        assert_eq!(b.acquire([1]).await, "Q");
        assert_eq!(a.acquire([2]).await, "H");
        return;
    }
    // `b` was only silent: its entry is still ahead of later ones.
    assert_eq!(a.acquire([2]).await, "Q");
    assert_eq!(b.acquire([1]).await, "Q");
    c.release([1]).await;
    assert_eq!(a.acquire([2]).await, "Q");
    assert_eq!(b.acquire([1]).await, "H");
}
