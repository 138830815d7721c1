//! Rules 5, 6 and 7: how long tickets live.

use super::peer::{acquire, letters, nothing, renew};
use super::rig::{Rig, pass};
use std::time::Duration;
use tokio::time::Instant;

pub(super) async fn rule_05_a_permit_ends_one_lease_after_its_nodes_last_word<R: Rig>(rig: &R) {
    let mut a = rig.peer(2);
    for lease in [R::LEASE, R::LEASE * 10, Duration::from_secs(3600)] {
        let mut a = rig.peer(9).lease(lease);
        a.must_enter(1).await;
        a.assert_lives(1, a.last_word, lease).await;
    }
    a.limit = 4;
    assert_eq!(a.tries([1]).await, "H");
    a.assert_lives(1, a.last_word, R::LEASE).await;
    assert_eq!(a.acquire([2]).await, "W");
    a.assert_lives(2, a.last_word, R::LEASE).await;
}

pub(super) async fn rule_05_keep_and_enter_move_the_deadline<R: Rig>(rig: &R) {
    let mut a = rig.peer(2);
    assert_eq!(a.acquire([1, 2, 3]).await, "HHW");
    tokio::time::sleep(R::LEASE / 4).await;
    let outcome = a.say(nothing().renew([1]).acquire([2, 3])).await;
    assert_eq!(letters(&outcome.renewed), "H");
    assert_eq!(letters(&outcome.acquired), "HW");
    for ticket in 1..=3 {
        a.assert_lives(ticket, a.last_word, R::LEASE).await;
    }
}

pub(super) async fn rule_05_a_permit_that_is_not_named_is_not_renewed<R: Rig>(rig: &R) {
    let (mut a, mut b) = (rig.peer(2), rig.peer(2));
    assert_eq!(a.acquire([1, 2]).await, "HH");
    let word = a.last_word;
    a.repeats = renew([2]);
    pass(rig, R::LEASE / 4, &mut [&mut a]).await;
    a.assert_lives(1, word, R::LEASE).await;
    a.assert_lives(2, a.last_word, R::LEASE).await;
    let acquired = b.enters_within_beside(1, R::LEASE * 2, &mut [&mut a]).await;
    assert!(acquired >= word.0 + R::LEASE);
    assert_eq!(a.renew([1, 2]).await, "GH");
}

pub(super) async fn rule_05_keep_never_shrinks_a_deadline<R: Rig>(rig: &R) {
    let mut a = rig.peer(1).lease(R::LEASE * 8);
    a.must_enter(1).await;
    let word = a.last_word;
    a.lease = R::LEASE;
    assert_eq!(a.renew([1]).await, "H");
    a.assert_lives(1, word, R::LEASE * 8).await;
    // Nor is it forgotten together with what was said last.
    let mut b = rig.peer(1);
    b.repeats = acquire([1]);
    pass(rig, R::LEASE * 2, &mut [&mut b]).await;
    assert_eq!(b.acquire([1]).await, "W");
    a.assert_lives(1, word, R::LEASE * 8).await;
    assert_eq!(a.renew([1]).await, "H");
}

pub(super) async fn rule_05_a_grant_by_another_counts_from_the_waiters_last_word<R: Rig>(rig: &R) {
    let (mut a, mut b, mut c) = (rig.peer(1), rig.peer(1), rig.peer(1));
    a.must_enter(1).await;
    assert_eq!(b.acquire([1, 2]).await, "WW");
    // Its last word about this name, whatever it is about.
    tokio::time::sleep(R::LEASE / 10).await;
    b.release([2]).await;
    let word = b.last_word;
    a.repeats = renew([1]);
    pass(rig, R::LEASE / 2, &mut [&mut a]).await;
    a.release([1]).await;
    b.assert_lives(1, word, R::LEASE).await;
    let acquired = c.enters_within(1, R::LEASE * 2).await;
    assert!(acquired >= word.0 + R::LEASE);
}

pub(super) async fn rule_05_a_grant_by_another_has_the_waiters_lease<R: Rig>(rig: &R) {
    for (ours, theirs) in [(R::LEASE * 8, R::LEASE), (R::LEASE, R::LEASE * 8)] {
        let (mut a, mut b) = (rig.peer(1).lease(ours), rig.peer(1).lease(theirs));
        a.must_enter(1).await;
        assert_eq!(b.acquire([1]).await, "W");
        let word = b.last_word;
        a.release([1]).await;
        b.assert_lives(1, word, theirs).await;
        b.release([1]).await;
    }
}

pub(super) async fn rule_05_a_dead_holder_goes_one_lease_after_its_last_word<R: Rig>(rig: &R) {
    let (mut a, mut b) = (rig.peer(1), rig.peer(1));
    a.must_enter(1).await;
    a.repeats = renew([1]);
    b.repeats = acquire([1]);
    pass(rig, R::LEASE * 3 / 2, &mut [&mut a, &mut b]).await;
    let word = a.last_word.0;
    let acquired = b.enters_within(1, R::LEASE * 2).await;
    assert!(
        acquired >= word + R::LEASE,
        "{:?} too early",
        word + R::LEASE - acquired
    );
    if R::VIRTUAL {
        assert!(acquired < word + R::LEASE * 11 / 10);
    }
    assert_eq!(a.renew([1]).await, "G");
}

pub(super) async fn rule_05_a_waiting_ticket_lives_one_lease_too<R: Rig>(rig: &R) {
    let (mut a, mut b) = (rig.peer(1), rig.peer(1));
    a.must_enter(1).await;
    assert_eq!(b.acquire([1, 2]).await, "WW");
    let word = b.last_word.0;
    a.repeats = renew([1]);
    pass(rig, R::LEASE / 2, &mut [&mut a]).await;
    let counts = a.counts().await;
    if Instant::now() < word + R::LEASE {
        assert_eq!(counts, (1, 2));
    }
    pass(rig, R::LEASE, &mut [&mut a]).await;
    assert_eq!(a.counts().await, (1, 0));
    a.release([1]).await;
    assert_eq!(a.counts().await, (0, 0), "nothing was granted to the dead");
}

pub(super) async fn rule_05_a_dead_waiter_at_the_head_holds_nobody_up<R: Rig>(rig: &R) {
    let (mut a, mut b, mut c) = (rig.peer(1), rig.peer(1), rig.peer(1));
    a.must_enter(1).await;
    assert_eq!(b.acquire([1, 2, 3]).await, "WWW");
    assert_eq!(c.acquire([1]).await, "W");
    a.repeats = renew([1]);
    c.repeats = acquire([1]);
    pass(rig, R::LEASE * 2, &mut [&mut a, &mut c]).await;
    a.release([1]).await;
    assert_eq!(c.acquire([1]).await, "H");
}

pub(super) async fn rule_05_a_dead_node_frees_everything<R: Rig>(rig: &R) {
    let (mut a, mut b) = (rig.peer(3), rig.peer(3));
    assert_eq!(a.acquire(1..=6).await, "HHHWWW");
    let word = a.last_word.0;
    let acquired = b.enters_within(1, R::LEASE * 2).await;
    assert!(acquired >= word + R::LEASE);
    let outcome = b.say(acquire([2, 3, 4])).await;
    assert_eq!(letters(&outcome.acquired), "HHW");
    assert_eq!((outcome.in_use, outcome.queued), (3, 1));
}

pub(super) async fn rule_06_the_clock_of_the_client_does_not_matter<R: Rig>(rig: &R) {
    let (mut a, mut b) = (rig.peer(1), rig.peer(1));
    a.must_enter(1).await;
    assert_eq!(b.acquire([1]).await, "W");
    rig.client_clock_jumps(Duration::from_secs(3600)).await;
    assert_eq!(b.acquire([1]).await, "W");
    assert_eq!(b.tries([2]).await, "R");
    assert_eq!(a.renew([1]).await, "H");
    a.assert_lives(1, a.last_word, R::LEASE).await;
}

pub(super) async fn rule_07_a_short_lease_does_not_cut_a_long_one<R: Rig>(rig: &R) {
    let mut long = rig.peer(2).lease(R::LEASE * 10);
    let (mut dead, mut short) = (rig.peer(2), rig.peer(2));
    long.must_enter(1).await;
    let word = long.last_word;
    dead.must_enter(1).await;
    // The long one is silent; the short one gets the dead one's place, and no more.
    let acquired = short.enters_within(1, R::LEASE * 7).await;
    assert!(acquired >= dead.last_word.0 + R::LEASE);
    short.repeats = nothing().renew([1]).acquire([2]);
    pass(rig, R::LEASE, &mut [&mut short]).await;
    assert_eq!(short.counts().await, (2, 1));
    long.assert_lives(1, word, R::LEASE * 10).await;
    assert_eq!(long.renew([1]).await, "H");
}

pub(super) async fn rule_07_a_long_lease_does_not_stretch_a_short_one<R: Rig>(rig: &R) {
    let mut long = rig.peer(1).lease(R::LEASE * 10);
    let mut short = rig.peer(1);
    short.must_enter(1).await;
    let word = short.last_word;
    assert_eq!(long.acquire([1]).await, "W");
    short.assert_lives(1, word, R::LEASE).await;
    // It looks again as often as the shortest lease wants, else its silence would be a gap, where there are such.
    let outcome = long.say(acquire([1])).await;
    let shortest = if R::FORGIVES { R::LEASE } else { long.lease };
    assert!(outcome.poll_after.is_some_and(|time| time < shortest / 2));
    let start = Instant::now();
    loop {
        let outcome = long.say(acquire([1])).await;
        if letters(&outcome.acquired) == "H" {
            break;
        }
        assert!(start.elapsed() < R::LEASE * 8);
        tokio::time::sleep(outcome.poll_after.expect("told when to look again")).await;
    }
    assert!(Instant::now() >= word.0 + R::LEASE);
    if R::VIRTUAL {
        assert!(Instant::now() < word.0 + R::LEASE * 11 / 10);
    }
}
