//! What happens when nobody could say anything for a while: a process, or the server, was paused.
//!
//! Where a session decides who is alive ([`Rig::FORGIVES`] is false) whoever was silent for a lease is out, and each of these
//! tests sees to it that he is, at once.

use super::peer::{acquire, nothing, renew};
use super::rig::{Rig, queue, silence};
use crate::backend::TicketState;
use tokio::time::Instant;

pub(super) async fn a_stall_evicts_no_live_holder<R: Rig>(rig: &R) {
    let (mut a, mut b) = (rig.peer(1), rig.peer(1));
    a.must_enter(1).await;
    assert_eq!(b.acquire([1]).await, "W");
    silence(R::LEASE * 3 / 2).await;
    if !R::FORGIVES {
        assert_eq!(b.acquire([1]).await, "H");
        assert_eq!(a.renew([1]).await, "G");
        return;
    }
    // The first that wakes is the one who wants the other's permit.
    assert_eq!(b.acquire([1]).await, "W");
    assert_eq!(b.tries([2]).await, "R");
    assert_eq!(a.renew([1]).await, "H");
    a.repeats = renew([1]);
    b.repeats = acquire([1]);
    super::rig::pass(rig, R::LEASE * 3 / 2, &mut [&mut b, &mut a]).await;
    assert_eq!(b.acquire([1]).await, "W", "after the grace neither");
    assert_eq!(a.renew([1]).await, "H");
}

pub(super) async fn a_stall_evicts_nobody_through_another_name<R: Rig>(rig: &R) {
    let (mut a, mut b) = (rig.peer(1), rig.peer(1));
    a.must_enter(1).await;
    silence(R::LEASE * 3 / 2).await;
    b.queue = queue("another name");
    for ticket in 0..50 {
        b.acquire([ticket]).await;
    }
    b.queue = queue("name");
    if !R::FORGIVES {
        assert_eq!(b.acquire([1]).await, "H");
        assert_eq!(a.renew([1]).await, "G");
        return;
    }
    assert_eq!(b.acquire([1]).await, "W");
    assert_eq!(a.renew([1]).await, "H");
}

pub(super) async fn after_a_stall_the_dead_go_within_half_the_longest_lease<R: Rig>(rig: &R) {
    let (mut a, mut b, mut dead) = (rig.peer(2), rig.peer(2), rig.peer(2));
    a.must_enter(1).await;
    dead.must_enter(1).await;
    silence(R::LEASE * 3 / 2).await;
    let woken = Instant::now();
    if !R::FORGIVES {
        assert_eq!(b.acquire([1, 2, 3]).await, "HHW", "both were silent");
        assert_eq!(a.renew([1]).await, "G");
        assert_eq!(dead.renew([1]).await, "G");
        return;
    }
    a.repeats = renew([1]);
    let acquired = b.enters_within_beside(1, R::LEASE, &mut [&mut a]).await;
    let grace = R::LEASE / 2;
    assert!(acquired >= woken + grace);
    if R::VIRTUAL {
        assert!(acquired < woken + grace + R::LEASE / 100, "not later");
    }
    assert_eq!(a.renew([1]).await, "H");
    assert_eq!(dead.renew([1]).await, "G");
}

pub(super) async fn a_second_stall_does_not_prolong_the_grace<R: Rig>(rig: &R) {
    let (mut a, mut b, mut dead) = (rig.peer(2), rig.peer(2), rig.peer(2));
    a.must_enter(1).await;
    dead.must_enter(1).await;
    silence(R::LEASE * 3 / 2).await;
    if !R::FORGIVES {
        assert_eq!(a.renew([1]).await, "G");
        assert_eq!(a.acquire([2]).await, "H");
        silence(R::LEASE * 3 / 5).await;
        assert_eq!(a.renew([2]).await, "H", "less than a lease is no matter");
        return;
    }
    assert_eq!(a.renew([1]).await, "H");
    silence(R::LEASE * 3 / 5).await;
    assert_eq!(b.acquire([1]).await, "H", "the dead one had its grace");
    assert_eq!(a.renew([1]).await, "H", "that one was heard since");
}

pub(super) async fn stalls_within_a_grace_do_not_prolong_it<R: Rig>(rig: &R) {
    let mut dead = rig.peer(1).lease(R::LEASE * 3);
    let mut b = rig.peer(1);
    dead.must_enter(1).await;
    b.say(nothing()).await;
    silence(R::LEASE * 16 / 5).await;
    if !R::FORGIVES {
        assert_eq!(b.acquire([1]).await, "H");
        return;
    }
    // The grace ends at 1.5 leases of the short one.
    for _ in 0..3 {
        assert_eq!(b.acquire([1]).await, "W");
        silence(R::LEASE * 3 / 5).await;
    }
    assert_eq!(b.acquire([1]).await, "H");
}

pub(super) async fn a_short_gap_does_not_hold_the_dead_for_half_of_a_long_lease<R: Rig>(rig: &R) {
    let mut long = rig.peer(2).lease(R::LEASE * 20);
    let (mut dead, mut b) = (rig.peer(2), rig.peer(2));
    long.must_enter(1).await;
    dead.must_enter(1).await;
    silence(R::LEASE * 3 / 5).await;
    let acquired = b.enters_within(1, R::LEASE * 3).await;
    assert!(acquired >= dead.last_word.0 + R::LEASE);
    assert_eq!(long.renew([1]).await, "H");
}

pub(super) async fn who_is_a_little_late_keeps_what_nobody_took<R: Rig>(rig: &R) {
    let (mut a, mut b) = (rig.peer(1), rig.peer(1));
    let token = a.must_enter(1).await;
    for _ in 0..2 {
        silence(R::LEASE * 2 / 5).await;
        b.say(nothing()).await;
    }
    silence(R::LEASE * 3 / 10).await;
    if !R::FORGIVES {
        assert_eq!(a.renew([1]).await, "G", "late is too late");
        assert_eq!(b.acquire([1]).await, "H");
        return;
    }
    assert_eq!(
        a.say(renew([1])).await.renewed,
        [TicketState::Held { token }]
    );
    assert_eq!(b.acquire([1]).await, "W");
}

pub(super) async fn during_a_grace_a_silent_head_neither_blocks_nor_loses_its_place<R: Rig>(
    rig: &R,
) {
    let (mut a, mut b, mut c) = (rig.peer(1), rig.peer(1), rig.peer(1));
    a.must_enter(1).await;
    assert_eq!(b.acquire([1]).await, "W");
    silence(R::LEASE * 3 / 2).await;
    // The holder wakes first and gives its permit back; the head of the queue may be dead.
    a.say(nothing().release([1])).await;
    c.enters_within(1, R::LEASE / 4).await;
    if !R::FORGIVES {
        // It stands at the end of the line now.
        assert_eq!(a.acquire([2]).await, "W");
        assert_eq!(b.acquire([1]).await, "W");
        c.release([1]).await;
        assert_eq!(b.acquire([1]).await, "W");
        assert_eq!(a.acquire([2]).await, "H");
        return;
    }
    // It was not dead: it still stands before those who came later.
    assert_eq!(a.acquire([2]).await, "W");
    assert_eq!(b.acquire([1]).await, "W");
    c.release([1]).await;
    assert_eq!(a.acquire([2]).await, "W");
    assert_eq!(b.acquire([1]).await, "H");
}
