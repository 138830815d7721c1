//! Rules 8 and 10: tokens, and what is left behind.

use super::peer::{Peer, acquire, letters, nothing, renew};
use super::rig::{Rig, limit, pass, queue, silence};
use crate::backend::TicketState;
use std::time::Duration;

/// The token that a node's ticket holds now.
async fn token(peer: &mut Peer, ticket: u64) -> u64 {
    match peer.say(renew([ticket])).await.renewed[..] {
        [TicketState::Held { token }] => token,
        ref other => panic!("ticket {ticket} does not hold: {other:?}"),
    }
}

pub(super) async fn rule_08_tokens_increase<R: Rig>(rig: &R) {
    let (mut a, mut b) = (rig.peer(1), rig.peer(1));
    let mut last = a.must_enter(0).await;
    assert!(last < 1 << 53, "numbers that scripts can count with");
    for ticket in 1..50 {
        assert_eq!(b.acquire([ticket]).await, "W");
        a.release([ticket - 1]).await;
        let granted = token(&mut b, ticket).await;
        assert!(
            granted > last,
            "granted from the queue: {granted} after {last}"
        );
        b.release([ticket]).await;
        let acquired = a.must_enter(ticket).await;
        assert!(
            acquired > granted,
            "let in at once: {acquired} after {granted}"
        );
        a.release([ticket]).await;
        let TicketState::Held { token: tried } =
            a.say(super::peer::try_acquire([ticket])).await.tried[0]
        else {
            panic!("a try was refused");
        };
        assert!(tried > acquired, "tried: {tried} after {acquired}");
        last = tried;
    }
}

pub(super) async fn rule_08_a_permit_keeps_its_token<R: Rig>(rig: &R) {
    let (mut a, mut b) = (rig.peer(1), rig.peer(1));
    let first = a.must_enter(1).await;
    assert_eq!(b.acquire([1]).await, "W");
    assert_eq!(a.must_enter(1).await, first);
    assert_eq!(token(&mut a, 1).await, first);
    assert_eq!(
        a.say(super::peer::try_acquire([1])).await.tried,
        [TicketState::Held { token: first }]
    );
    tokio::time::sleep(R::LEASE / 4).await;
    assert_eq!(token(&mut a, 1).await, first);
}

pub(super) async fn rule_08_a_push_and_a_retry_tell_the_same_token<R: Rig>(rig: &R) {
    let (mut a, mut b) = (rig.peer(1), rig.peer(1));
    a.must_enter(1).await;
    assert_eq!(b.acquire([1]).await, "W");
    a.release([1]).await;
    let pushed = b.pushed().await; // may be lost
    let acquired = b.must_enter(1).await;
    assert_eq!(token(&mut b, 1).await, acquired);
    assert_eq!(pushed.map_or(acquired, |grant| grant.token), acquired);
}

pub(super) async fn rule_08_tokens_increase_over_expiry<R: Rig>(rig: &R) {
    let (mut a, mut b) = (rig.peer(1), rig.peer(1));
    let first = a.must_enter(1).await;
    b.enters_within(1, R::LEASE * 2).await;
    let second = token(&mut b, 1).await;
    assert!(second > first, "{second} after {first}");
}

pub(super) async fn rule_08_tokens_increase_over_a_flush<R: Rig>(rig: &R) {
    let mut a = rig.peer(1);
    let mut last = 0;
    for ticket in 1..20 {
        let next = a.must_enter(ticket).await;
        assert!(next > last, "{next} after {last}");
        last = next;
        if ticket % 4 == 0 {
            rig.flush().await;
        } else {
            a.release([ticket]).await;
        }
    }
}

pub(super) async fn rule_08_tokens_increase_after_the_name_was_forgotten<R: Rig>(rig: &R) {
    let mut a = rig.peer(1);
    let mut last = 0;
    for ticket in 1..200 {
        last = a.must_enter(ticket).await;
        a.release([ticket]).await;
    }
    forgotten(rig).await;
    let next = a.must_enter(1).await;
    assert!(next > last, "{next} after {last}");
}

pub(super) async fn rule_10_an_idle_name_leaves_nothing<R: Rig>(rig: &R) {
    let (mut a, mut b) = (rig.peer(1), rig.peer(1));
    a.must_enter(1).await;
    assert_eq!(b.acquire([1, 2]).await, "WW");
    a.release([1]).await;
    assert!(rig.stored().await > 0);
    let outcome = b.say(nothing().release([1, 2])).await;
    assert_eq!((outcome.in_use, outcome.queued), (0, 0));
    forgotten(rig).await;
    // A look at it does not bring it back.
    assert_eq!(a.counts().await, (0, 0));
    assert!(!a.evict(a.node.ticket(1)).await);
    assert_eq!(rig.stored().await, 0);
}

pub(super) async fn rule_10_many_idle_names_leave_nothing<R: Rig>(rig: &R) {
    let mut a = rig.peer(1);
    for name in 0..300 {
        a.queue = queue(&format!("name {name}"));
        assert_eq!(a.acquire([1]).await, "H");
        assert_eq!(a.release([1]).await, [true]);
    }
    forgotten(rig).await;
}

pub(super) async fn rule_10_after_a_crash_nothing_is_left_an_hour_later<R: Rig>(rig: &R) {
    let limit = limit::<R>(2);
    let (mut a, mut b) = (rig.peer(limit), rig.peer(limit));
    for name in ["one", "two", "three"] {
        for peer in [&mut a, &mut b] {
            peer.queue = queue(name);
            let outcome = peer.say(acquire([1, 2, 3])).await;
            assert!(letters(&outcome.acquired).ends_with('W'));
        }
    }
    let hour = Duration::from_secs(3600);
    assert!(rig.forgets_within(hour + R::LEASE * 2).await);
}

/// Everybody has left: a lease later nothing is stored.
async fn forgotten<R: Rig>(rig: &R) {
    silence(R::LEASE + R::LEASE / 20).await;
    for _ in 0..20 {
        if rig.stored().await == 0 {
            return;
        }
        assert!(!R::VIRTUAL, "something is left");
        pass(rig, R::LEASE / 20, &mut []).await;
    }
    panic!("something is left: {} keys", rig.stored().await);
}
