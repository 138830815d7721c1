//! Rules 2 and 9: calls that are repeated, given up, or late.

use super::peer::{acquire, letters, nothing, release, renew};
use super::rig::{Rig, elsewhere, limit, pass, queue};
use crate::backend::Reply;
use tokio::time::Instant;

pub(super) async fn rule_02_a_lower_number_changes_nothing<R: Rig>(rig: &R) {
    let (mut a, mut b) = (rig.peer(1), rig.peer(1));
    let Reply::Done(_) = a.send(5, acquire([1, 2])).await else {
        panic!("the first call was taken for an old one");
    };
    a.limit = 9;
    let old = nothing().release([1]).acquire([3]).try_acquire([4]);
    assert_eq!(a.send(4, old).await, Reply::Stale);
    a.limit = 1;
    assert_eq!(b.counts().await, (1, elsewhere::<R>(1)));
    let outcome = b.say(acquire([1])).await;
    assert_eq!(letters(&outcome.acquired), "W");
    let waiting = 1 + elsewhere::<R>(1);
    assert_eq!((outcome.in_use, outcome.queued), (1, waiting));
    // Nor did it set the number back.
    assert_eq!(a.send(4, nothing()).await, Reply::Stale);
}

pub(super) async fn rule_02_a_lower_number_is_not_even_a_word_of_its_node<R: Rig>(rig: &R) {
    let mut a = rig.peer(1);
    let _ = a.send(5, acquire([1, 2])).await;
    let word = a.last_word;
    tokio::time::sleep(R::LEASE / 4).await;
    let late = nothing().renew([1]).acquire([2]);
    assert_eq!(a.send(4, late).await, Reply::Stale);
    a.assert_lives(1, word, R::LEASE).await;
    a.assert_lives(2, word, R::LEASE).await;
}

pub(super) async fn rule_02_the_same_number_is_answered_again<R: Rig>(rig: &R) {
    let limit = limit::<R>(2);
    let mut a = rig.peer(limit);
    let say = acquire([1, 2, 3]);
    let first = a.send(1, say.clone()).await;
    let Reply::Done(first) = first else {
        panic!("the first call was taken for an old one");
    };
    for _ in 0..3 {
        let Reply::Done(again) = a.send(1, say.clone()).await else {
            panic!("the same number was taken for an old one");
        };
        assert_eq!(again.acquired, first.acquired);
        let in_use = u64::from(limit);
        assert_eq!((again.in_use, again.queued), (in_use, 3 - in_use));
    }
}

pub(super) async fn rule_02_the_same_number_is_carried_out_again_after_everything_ran_out<
    R: Rig,
>(
    rig: &R,
) {
    let (mut a, mut b) = (rig.peer(1), rig.peer(1));
    let _ = a.send(1, acquire([1])).await;
    let other = b.enters_within(1, R::LEASE * 3).await;
    assert!(other >= a.last_word.0 + R::LEASE);
    let Reply::Done(again) = a.send(1, acquire([1])).await else {
        panic!("the same number was taken for an old one");
    };
    assert_eq!(letters(&again.acquired), "W", "it holds no more");
}

pub(super) async fn rule_02_numbers_count_for_each_node_and_name<R: Rig>(rig: &R) {
    let (mut a, mut b) = (rig.peer(1), rig.peer(1));
    let _ = a.send(u64::from(u32::MAX) * 16, acquire([1])).await;
    assert!(matches!(b.send(1, acquire([1])).await, Reply::Done(_)));
    a.queue = queue("another name");
    let other = a.send(1, acquire([2])).await;
    assert!(matches!(other, Reply::Done(_)));
    a.queue = queue("name");
    let old = a.send(u64::from(u32::MAX) * 16 - 1, nothing()).await;
    assert_eq!(old, Reply::Stale);
}

pub(super) async fn rule_02_a_retried_enter_of_a_held_ticket_renews_it<R: Rig>(rig: &R) {
    let mut a = rig.peer(1);
    let token = a.must_enter(1).await;
    tokio::time::sleep(R::LEASE / 4).await;
    assert_eq!(a.must_enter(1).await, token, "the same permit");
    a.assert_lives(1, a.last_word, R::LEASE).await;
    // Under the same number likewise: an answer counts from when the batch was first sent, never from before.
    tokio::time::sleep(R::LEASE / 4).await;
    let _ = a.send(a.number, acquire([1])).await;
    a.assert_lives(1, a.last_word, R::LEASE).await;
    assert_eq!(a.counts().await, (1, 0));
}

pub(super) async fn rule_02_a_try_of_a_held_ticket_renews_it<R: Rig>(rig: &R) {
    let mut a = rig.peer(1);
    assert_eq!(a.tries([1]).await, "H");
    tokio::time::sleep(R::LEASE / 4).await;
    assert_eq!(a.tries([1]).await, "H");
    a.assert_lives(1, a.last_word, R::LEASE).await;
    assert_eq!(a.counts().await, (1, 0));
}

pub(super) async fn rule_02_keep_never_creates<R: Rig>(rig: &R) {
    let (mut a, mut b) = (rig.peer(1), rig.peer(1));
    let outcome = a.say(renew([1, 2])).await;
    assert_eq!(letters(&outcome.renewed), "GG");
    assert_eq!((outcome.in_use, outcome.queued), (0, 0));
    b.must_enter(1).await;
    assert_eq!(
        a.renew([1]).await,
        "G",
        "another node's ticket of this number is not it"
    );
    b.release([1]).await;
    assert_eq!(b.renew([1]).await, "G");
    assert_eq!(b.counts().await, (0, 0));
}

pub(super) async fn rule_02_keep_does_not_keep_a_mere_place<R: Rig>(rig: &R) {
    let (mut a, mut b) = (rig.peer(1), rig.peer(1));
    a.must_enter(1).await;
    assert_eq!(b.acquire([1]).await, "W");
    let outcome = b.say(renew([1])).await;
    assert_eq!(letters(&outcome.renewed), "G");
    assert_eq!((outcome.in_use, outcome.queued), (1, 1));
    a.release([1]).await;
    assert_eq!(b.renew([1]).await, "H", "granted now");
}

pub(super) async fn rule_02_leave_of_an_unknown_ticket_is_fine<R: Rig>(rig: &R) {
    let (mut a, mut b) = (rig.peer(1), rig.peer(1));
    assert_eq!(a.release([1, 2]).await, [false, false]);
    b.must_enter(1).await;
    assert_eq!(
        a.release([1]).await,
        [false],
        "another node's is not its own"
    );
    assert_eq!(b.renew([1]).await, "H");
    assert_eq!(b.release([9, 1, 8]).await, [false, true, false]);
    assert_eq!(b.release([1]).await, [false], "a second time");
    assert_eq!(a.counts().await, (0, 0));
}

pub(super) async fn rule_02_leave_says_whether_it_held<R: Rig>(rig: &R) {
    let mut a = rig.peer(1);
    assert_eq!(a.acquire([1, 2, 3]).await, "HWW");
    assert_eq!(a.release([3, 1]).await, [false, true]);
    assert_eq!(a.renew([2]).await, "H");
}

pub(super) async fn rule_09_a_leave_wins_over_its_own_late_enter<R: Rig>(rig: &R) {
    let (mut a, mut b) = (rig.peer(1), rig.peer(1));
    // Call 1 was given up and is still on its way when call 2 takes the ticket out.
    assert!(matches!(a.send(2, release([1])).await, Reply::Done(_)));
    assert_eq!(a.send(1, acquire([1])).await, Reply::Stale);
    assert_eq!(b.tries([1]).await, "H", "nobody holds what nobody knows");
    assert_eq!(b.counts().await, (1, 0));
}

pub(super) async fn rule_09_a_leave_wins_for_as_long_as_the_node_is_remembered<R: Rig>(rig: &R) {
    let (mut a, mut b) = (rig.peer(1), rig.peer(1));
    let _ = a.send(1, acquire([1])).await;
    let _ = a.send(3, release([1])).await;
    let left = a.last_word.0;
    tokio::time::sleep(R::LEASE / 2).await;
    let late = a.send(2, acquire([1])).await;
    if Instant::now() < left + R::LEASE {
        assert_eq!(
            late,
            Reply::Stale,
            "nobody is there, but the node is remembered"
        );
    }
    // What others say does not make it forgotten sooner.
    let _ = a.send(4, release([1])).await;
    let left = a.last_word.0;
    b.repeats = acquire([1]);
    pass(rig, R::LEASE * 4 / 5, &mut [&mut b]).await;
    let late = a.send(2, acquire([1])).await;
    if Instant::now() < left + R::LEASE {
        assert_eq!(late, Reply::Stale);
    }
}

pub(super) async fn rule_09_a_late_enter_after_a_flush_holds_for_one_lease_at_most<R: Rig>(
    rig: &R,
) {
    let (mut a, mut b) = (rig.peer(1), rig.peer(1));
    let _ = a.send(8, release([1])).await;
    rig.flush().await;
    if R::REMEMBERS {
        assert_eq!(a.send(7, acquire([1])).await, Reply::Stale, "not even then");
        return;
    }
    let Reply::Done(outcome) = a.send(7, acquire([1])).await else {
        panic!("a number survived the flush");
    };
    assert_eq!(letters(&outcome.acquired), "H");
    let late = a.last_word.0;
    // Its node lives and speaks about this name all the time, but not of that ticket.
    a.number = 10;
    a.repeats = nothing();
    let acquired = b.enters_within_beside(1, R::LEASE * 2, &mut [&mut a]).await;
    assert!(acquired >= late + R::LEASE);
}
