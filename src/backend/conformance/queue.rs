//! Rules 1 and 3: how many are in, and who is next.

use super::peer::{acquire, letters, nothing, renew, tickets, try_acquire};
use super::rig::{Rig, pass, queue};
use crate::backend::MAX_TICKETS;

pub(super) async fn rule_01_only_as_many_are_in_as_the_limit_says<R: Rig>(rig: &R) {
    let (mut a, mut b) = (rig.peer(2), rig.peer(2));
    let first = a.say(acquire([1])).await;
    assert_eq!((first.in_use, first.queued), (1, 0));
    assert_eq!(b.acquire([1, 2]).await, "HW");
    let third = a.say(acquire([2])).await;
    assert_eq!(letters(&third.acquired), "W");
    assert_eq!((third.in_use, third.queued), (2, 2));
    assert_eq!(b.release([1]).await, [true]);
    assert_eq!(b.acquire([2]).await, "H");
    assert_eq!(a.acquire([1, 2]).await, "HW");
}

pub(super) async fn rule_01_each_node_is_held_to_its_own_limit<R: Rig>(rig: &R) {
    let (mut small, mut large) = (rig.peer(2), rig.peer(4));
    assert_eq!(large.acquire([1, 2, 3]).await, "HHH");
    assert_eq!(small.tries([1]).await, "R");
    assert_eq!(large.tries([4, 5]).await, "HR");
    assert_eq!(large.release([2, 3]).await, [true, true]);
    assert_eq!(small.tries([2]).await, "R");
    assert_eq!(large.release([4]).await, [true]);
    assert_eq!(small.tries([3, 4]).await, "HR");
}

pub(super) async fn rule_01_a_head_at_its_limit_holds_back_those_behind<R: Rig>(rig: &R) {
    let (mut large, mut small) = (rig.peer(3), rig.peer(1));
    assert_eq!(large.acquire([1]).await, "H");
    assert_eq!(small.acquire([1]).await, "W");
    assert_eq!(large.acquire([2]).await, "W", "it stands behind the other");
    assert_eq!(large.tries([3]).await, "R");
    let outcome = small.say(renew([])).await;
    assert_eq!((outcome.in_use, outcome.queued), (1, 2));
    let outcome = large.say(nothing().release([1])).await;
    assert_eq!(tickets(&outcome.granted), [2], "both fit now");
    assert_eq!(small.acquire([1]).await, "H");
}

pub(super) async fn rule_01_lowering_a_limit_evicts_nobody<R: Rig>(rig: &R) {
    let mut a = rig.peer(3);
    assert_eq!(a.acquire([1, 2, 3]).await, "HHH");
    a.limit = 1;
    assert_eq!(a.renew([1, 2, 3]).await, "HHH");
    assert_eq!(a.acquire([4]).await, "W");
    assert_eq!(
        a.acquire([1, 2, 3]).await,
        "HHH",
        "a held one is not let in anew"
    );
    assert_eq!(a.release([1, 2]).await, [true, true]);
    assert_eq!(a.acquire([4]).await, "W", "one is still in");
    assert_eq!(tickets(&a.say(nothing().release([3])).await.granted), [4]);
}

pub(super) async fn rule_01_raising_a_limit_lets_the_queue_in<R: Rig>(rig: &R) {
    let mut a = rig.peer(1);
    assert_eq!(a.acquire([1, 2, 3, 4]).await, "HWWW");
    a.limit = 3;
    let outcome = a.say(renew([1])).await;
    assert_eq!(tickets(&outcome.granted), [2, 3]);
    assert_eq!((outcome.in_use, outcome.queued), (3, 1));
}

pub(super) async fn rule_01_a_whole_batch_of_256<R: Rig>(rig: &R) {
    let most = u64::try_from(MAX_TICKETS).expect("a number");
    // Some backends take their time for so many.
    let [mut a, mut b] = [(); 2].map(|()| rig.peer(100).lease(R::LEASE * 4));
    let outcome = a.say(acquire(1..=most)).await;
    let expected = "H".repeat(100) + &"W".repeat(156);
    assert_eq!(letters(&outcome.acquired), expected);
    assert_eq!((outcome.in_use, outcome.queued), (100, 156));
    assert_eq!(b.acquire(1..=most).await, "W".repeat(256));
    // They fill the places of those that leave, the oldest first.
    let outcome = a.say(nothing().release(1..=most)).await;
    let held: Vec<bool> = (1..=most).map(|ticket| ticket <= 100).collect();
    assert_eq!(outcome.released, held);
    assert_eq!((outcome.in_use, outcome.queued), (100, 156));
    assert_eq!(b.renew(1..=most).await, "H".repeat(100) + &"G".repeat(156));
    assert_eq!(b.release(1..=most).await, held);
    let outcome = a.say(try_acquire(1..=most)).await;
    assert_eq!(letters(&outcome.tried), "H".repeat(100) + &"R".repeat(156));
}

pub(super) async fn rule_01_names_have_nothing_to_do_with_each_other<R: Rig>(rig: &R) {
    let names = [
        "name:queue",
        "name:meta",
        "",
        "{name}",
        "na}me{",
        "*",
        "a b",
        "ü",
    ];
    rig.peer(1).must_enter(1).await;
    for name in names {
        let mut a = rig.peer(1).about(queue(name));
        assert_eq!(a.acquire([1, 2]).await, "HW", "{name:?}");
        assert_eq!(a.counts().await, (1, 1), "{name:?}");
    }
}

pub(super) async fn rule_03_first_in_first_out_over_all_nodes<R: Rig>(rig: &R) {
    let mut peers = [rig.peer(1), rig.peer(1), rig.peer(1)];
    let order = [
        (0, 1),
        (1, 1),
        (2, 1),
        (1, 2),
        (0, 2),
        (2, 2),
        (1, 3),
        (0, 3),
    ];
    for (peer, ticket) in order {
        peers[peer].acquire([ticket]).await;
    }
    for (at, (peer, ticket)) in order.into_iter().enumerate() {
        for later in &order[at + 1..] {
            assert_eq!(peers[later.0].acquire([later.1]).await, "W");
        }
        assert_eq!(peers[peer].acquire([ticket]).await, "H");
        assert_eq!(peers[peer].release([ticket]).await, [true]);
    }
}

pub(super) async fn rule_03_the_oldest_of_a_batch_is_first<R: Rig>(rig: &R) {
    let (mut a, mut b) = (rig.peer(1), rig.peer(1));
    b.must_enter(1).await;
    // The order is that of the batch, not that of the numbers.
    let order = [7, 3, 10, 9, 1_000_000_000_000, 2];
    assert_eq!(a.acquire(order).await, "WWWWWW");
    b.release([1]).await;
    for ticket in order {
        assert_eq!(a.renew(order).await.matches('H').count(), 1);
        assert_eq!(a.release([ticket]).await, [true], "{ticket} was next");
    }
}

pub(super) async fn rule_03_a_newcomer_never_passes_the_queue<R: Rig>(rig: &R) {
    let (mut a, mut b, mut c) = (rig.peer(1), rig.peer(1), rig.peer(1));
    a.must_enter(1).await;
    assert_eq!(b.acquire([1]).await, "W");
    let outcome = a
        .say(nothing().release([1]).acquire([2]).try_acquire([3]))
        .await;
    assert_eq!(letters(&outcome.acquired), "W");
    assert_eq!(letters(&outcome.tried), "R");
    assert_eq!(c.acquire([1]).await, "W");
    assert_eq!(b.acquire([1]).await, "H");
}

pub(super) async fn rule_03_a_newcomer_does_not_profit_from_a_dead_holder<R: Rig>(rig: &R) {
    let (mut a, mut b, mut c) = (rig.peer(1), rig.peer(1), rig.peer(1));
    a.must_enter(1).await;
    b.repeats = acquire([1]);
    // Just before the dead holder goes; then the newcomer is the first to call.
    pass(rig, R::LEASE * 9 / 10, &mut [&mut b]).await;
    loop {
        tokio::time::sleep(R::LEASE / 10).await;
        let outcome = c.say(acquire([1])).await;
        assert_eq!(letters(&outcome.acquired), "W");
        if outcome.queued == 1 {
            break; // it was granted to the other by this very call
        }
    }
    assert_eq!(b.acquire([1]).await, "H");
}

pub(super) async fn rule_03_a_try_never_passes_the_queue<R: Rig>(rig: &R) {
    let (mut a, mut b) = (rig.peer(1), rig.peer(5));
    a.must_enter(1).await;
    assert_eq!(a.acquire([2]).await, "W");
    assert_eq!(b.tries([1]).await, "R", "it has room, but another is first");
    a.release([2]).await;
    assert_eq!(b.tries([2]).await, "H");
}

pub(super) async fn rule_03_a_try_that_fails_leaves_nothing_behind<R: Rig>(rig: &R) {
    let (mut a, mut b) = (rig.peer(1), rig.peer(1));
    a.must_enter(1).await;
    let outcome = b.say(try_acquire([1])).await;
    assert_eq!(letters(&outcome.tried), "R");
    assert_eq!((outcome.in_use, outcome.queued), (1, 0));
    assert_eq!(outcome.poll_after, None);
    a.release([1]).await;
    let outcome = b.say(nothing()).await;
    assert_eq!((outcome.in_use, outcome.queued), (0, 0));
    assert_eq!(b.tries([1, 2]).await, "HR");
}

pub(super) async fn rule_03_a_repeated_enter_keeps_its_place<R: Rig>(rig: &R) {
    let (mut a, mut b, mut c) = (rig.peer(1), rig.peer(1), rig.peer(1));
    a.must_enter(1).await;
    assert_eq!(b.acquire([1]).await, "W");
    assert_eq!(c.acquire([1]).await, "W");
    for _ in 0..3 {
        let outcome = b.say(acquire([1])).await;
        assert_eq!((outcome.in_use, outcome.queued), (1, 2), "not twice");
    }
    a.release([1]).await;
    assert_eq!(c.acquire([1]).await, "W");
    assert_eq!(b.acquire([1]).await, "H");
}

pub(super) async fn rule_03_one_call_leaves_and_enters_at_the_end<R: Rig>(rig: &R) {
    let mut a = rig.peer(2);
    assert_eq!(a.acquire([1, 2, 3]).await, "HHW");
    let outcome = a
        .say(nothing().release([1]).renew([2]).acquire([3, 4]))
        .await;
    assert_eq!(outcome.released, [true]);
    assert_eq!(letters(&outcome.renewed), "H");
    assert_eq!(letters(&outcome.acquired), "HW");
    assert_eq!(tickets(&outcome.granted), [3], "named or not");
}
