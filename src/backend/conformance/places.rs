//! Rule 4: a lost place is found again, and a push is a hint.

use super::peer::{acquire, letters, nothing, renew, tickets};
use super::rig::{Rig, limit, pass, silence};
use crate::backend::TicketState;
use tokio::time::Instant;

pub(super) async fn rule_04_a_waiter_whose_place_was_lost_is_back_after_its_next_enter<R: Rig>(
    rig: &R,
) {
    let (mut a, mut b) = (rig.peer(1), rig.peer(1));
    a.must_enter(1).await;
    assert_eq!(b.acquire([1]).await, "W");
    rig.flush().await;
    assert_eq!(a.acquire([2]).await, "H", "the store is empty");
    assert_eq!(b.acquire([1]).await, "W");
    a.release([2]).await;
    assert_eq!(b.acquire([1]).await, "H");
}

pub(super) async fn rule_04_a_waiter_that_was_silent_for_too_long_is_back_after_its_next_enter<
    R: Rig,
>(
    rig: &R,
) {
    let (mut a, mut b) = (rig.peer(1), rig.peer(1));
    a.must_enter(1).await;
    assert_eq!(b.acquire([1]).await, "W");
    a.repeats = renew([1]);
    pass(rig, R::LEASE * 2, &mut [&mut a]).await;
    assert_eq!(b.acquire([1]).await, "W");
    a.release([1]).await;
    assert_eq!(b.acquire([1]).await, "H");
}

pub(super) async fn rule_04_a_permit_that_was_lost_is_seen_to_be_gone<R: Rig>(rig: &R) {
    let mut a = rig.peer(limit::<R>(2));
    assert!(a.acquire([1, 2, 3]).await.starts_with('H'));
    rig.flush().await;
    let outcome = a.say(nothing().renew([1, 2]).acquire([3])).await;
    assert_eq!(letters(&outcome.renewed), "GG");
    if R::QUEUES {
        assert_eq!(letters(&outcome.acquired), "H");
    } else {
        assert_eq!(a.acquire([3]).await, "H");
    }
}

pub(super) async fn rule_04_look_again_is_enough_when_a_permit_is_given_back<R: Rig>(rig: &R) {
    let (mut a, mut b) = (rig.peer(1), rig.peer(1));
    a.must_enter(1).await;
    let outcome = b.say(acquire([1])).await;
    assert_eq!(letters(&outcome.acquired), "W");
    a.release([1]).await;
    let poll_after = outcome.poll_after.expect("told when to look again");
    assert!(poll_after < R::LEASE / 2, "before it counts as a gap");
    tokio::time::sleep(poll_after).await;
    assert_eq!(b.acquire([1]).await, "H");
}

pub(super) async fn rule_04_look_again_is_enough_when_a_holder_dies<R: Rig>(rig: &R) {
    let (mut a, mut b) = (rig.peer(1), rig.peer(1));
    // Before the holder's last word, for its answer may be long on the way.
    let start = Instant::now();
    a.must_enter(1).await;
    let mut calls = 0;
    loop {
        let outcome = b.say(acquire([1])).await;
        if outcome.acquired != [TicketState::Queued] {
            break;
        }
        calls += 1;
        assert!(start.elapsed() < R::LEASE * 2, "{outcome:?}");
        tokio::time::sleep(outcome.poll_after.expect("told when to look again")).await;
    }
    assert!(start.elapsed() + R::LEASE / 100 >= R::LEASE);
    // Where the pauses are random: 17 on average.
    assert!(calls < 30, "it was told to look again {calls} times");
    if R::VIRTUAL {
        assert!(start.elapsed() < R::LEASE * 11 / 10, "to the point");
    }
}

pub(super) async fn rule_04_only_who_waits_is_told_to_look_again<R: Rig>(rig: &R) {
    let (mut a, mut b) = (rig.peer(1), rig.peer(1));
    assert_eq!(a.say(acquire([1])).await.poll_after, None);
    assert!(b.say(acquire([1])).await.poll_after.is_some());
    assert_eq!(a.say(renew([1])).await.poll_after, None, "another waits");
    assert!(b.say(nothing()).await.poll_after.is_some(), "named or not");
    a.release([1]).await;
    assert_eq!(b.say(renew([1])).await.poll_after, None);
}

pub(super) async fn rule_04_a_grant_is_pushed_to_the_node_it_is_for<R: Rig>(rig: &R) {
    let (mut a, mut b, mut c) = (rig.peer(1), rig.peer(1), rig.peer(1));
    // The first pushes may come before the channel is ready.
    for round in 0..if R::PUSHES { 20 } else { 3 } {
        a.must_enter(round).await;
        assert_eq!(b.acquire([round]).await, "W");
        assert_eq!(c.acquire([round]).await, "W");
        a.release([round]).await;
        let pushed = b.pushed().await;
        let outcome = b.say(acquire([round])).await;
        let [TicketState::Held { token }] = outcome.acquired[..] else {
            panic!("it was not granted: {outcome:?}");
        };
        assert!(outcome.granted.is_empty(), "by another's call: {outcome:?}");
        b.release([round]).await;
        if let Some(grant) = pushed {
            assert_eq!((grant.ticket, grant.token), (round, token));
            assert!(R::PUSHES);
            // The third one was granted by the second's leaving; the first never heard of anybody's.
            assert_eq!(c.pushed().await.map(|grant| grant.ticket), Some(round));
            assert_eq!(a.pushed().await, None);
            return;
        }
        c.release([round]).await;
        while c.events.try_recv().is_ok() {}
    }
    assert!(!R::PUSHES, "nothing is ever pushed");
}

pub(super) async fn rule_04_what_a_call_granted_its_own_node_is_in_the_answer<R: Rig>(rig: &R) {
    let mut a = rig.peer(2);
    assert_eq!(a.acquire([1, 2, 3, 4]).await, "HHWW");
    let outcome = a.say(nothing().release([2])).await;
    assert_eq!(tickets(&outcome.granted), [3]);
    let outcome = a.say(nothing().release([1]).acquire([4])).await;
    assert_eq!(tickets(&outcome.granted), [4], "named or not");
    assert_eq!(letters(&outcome.acquired), "H");
    let [TicketState::Held { token }] = outcome.acquired[..] else {
        unreachable!("said above");
    };
    assert_eq!(outcome.granted[0].token, token);
    let outcome = a.say(nothing().release([3]).acquire([5])).await;
    assert_eq!(tickets(&outcome.granted), [0; 0], "it never waited");
    silence(R::LEASE / 20).await;
    assert_eq!(a.pushed().await, None);
}
