//! Rules 8 and 10: fencing tokens, and no leftovers of idle names.

use super::fixtures::{Fixture, limit, pass_time, queue, silence};
use super::peer::{Peer, acquire, letters, operations, renew};
use crate::backend::TicketState;
use std::time::Duration;

/// Returns the token of a held ticket.
async fn token(peer: &mut Peer, ticket: u64) -> u64 {
    match peer.call(renew([ticket])).await.renewed[..] {
        [TicketState::Held { token }] => token,
        ref other => panic!("ticket {ticket} is not held: {other:?}"),
    }
}

pub(super) async fn rule_08_tokens_increase<F: Fixture>(fixture: &F) {
    let (mut a, mut b) = (fixture.peer(1), fixture.peer(1));
    let mut last = a.must_acquire(0).await;
    assert!(last < 1 << 53, "scripts need integers below 2^53");
    for ticket in 1..50 {
        assert_eq!(b.acquire([ticket]).await, "Q");
        a.release([ticket - 1]).await;
        let granted = token(&mut b, ticket).await;
        assert!(
            granted > last,
            "granted from the queue: {granted} after {last}"
        );
        b.release([ticket]).await;
        let acquired = a.must_acquire(ticket).await;
        assert!(
            acquired > granted,
            "granted at once: {acquired} after {granted}"
        );
        a.release([ticket]).await;
        let TicketState::Held { token: tried } =
            a.call(super::peer::try_acquire([ticket])).await.tried[0]
        else {
            panic!("try_acquire was refused");
        };
        assert!(tried > acquired, "tried: {tried} after {acquired}");
        last = tried;
    }
}

pub(super) async fn rule_08_a_permit_keeps_its_token<F: Fixture>(fixture: &F) {
    let (mut a, mut b) = (fixture.peer(1), fixture.peer(1));
    let first = a.must_acquire(1).await;
    assert_eq!(b.acquire([1]).await, "Q");
    assert_eq!(a.must_acquire(1).await, first);
    assert_eq!(token(&mut a, 1).await, first);
    assert_eq!(
        a.call(super::peer::try_acquire([1])).await.tried,
        [TicketState::Held { token: first }]
    );
    tokio::time::sleep(F::LEASE / 4).await;
    assert_eq!(token(&mut a, 1).await, first);
}

pub(super) async fn rule_08_a_push_and_a_retry_carry_the_same_token<F: Fixture>(fixture: &F) {
    let (mut a, mut b) = (fixture.peer(1), fixture.peer(1));
    a.must_acquire(1).await;
    assert_eq!(b.acquire([1]).await, "Q");
    a.release([1]).await;
    let pushed = b.pushed().await; // the push may be lost
    let acquired = b.must_acquire(1).await;
    assert_eq!(token(&mut b, 1).await, acquired);
    assert_eq!(pushed.map_or(acquired, |grant| grant.token), acquired);
}

pub(super) async fn rule_08_tokens_increase_over_expiry<F: Fixture>(fixture: &F) {
    let (mut a, mut b) = (fixture.peer(1), fixture.peer(1));
    let first = a.must_acquire(1).await;
    b.acquires_within(1, F::LEASE * 2).await;
    let second = token(&mut b, 1).await;
    assert!(second > first, "{second} after {first}");
}

pub(super) async fn rule_08_tokens_increase_over_a_flush<F: Fixture>(fixture: &F) {
    let mut a = fixture.peer(1);
    let mut last = 0;
    for ticket in 1..20 {
        let next = a.must_acquire(ticket).await;
        assert!(next > last, "{next} after {last}");
        last = next;
        if ticket % 4 == 0 {
            fixture.flush().await;
        } else {
            a.release([ticket]).await;
        }
    }
}

pub(super) async fn rule_08_tokens_increase_after_the_name_expired<F: Fixture>(fixture: &F) {
    let mut a = fixture.peer(1);
    let mut last = 0;
    for ticket in 1..200 {
        last = a.must_acquire(ticket).await;
        a.release([ticket]).await;
    }
    assert_nothing_stored(fixture).await;
    let next = a.must_acquire(1).await;
    assert!(next > last, "{next} after {last}");
}

pub(super) async fn rule_10_an_idle_name_leaves_nothing<F: Fixture>(fixture: &F) {
    let (mut a, mut b) = (fixture.peer(1), fixture.peer(1));
    a.must_acquire(1).await;
    assert_eq!(b.acquire([1, 2]).await, "QQ");
    a.release([1]).await;
    assert!(fixture.stored().await > 0);
    let outcome = b.call(operations().release([1, 2])).await;
    assert_eq!((outcome.in_use, outcome.queued), (0, 0));
    assert_nothing_stored(fixture).await;
    // Administrative calls do not re-create it.
    assert_eq!(a.counts().await, (0, 0));
    assert!(!a.evict(a.node.ticket(1)).await);
    assert_eq!(fixture.stored().await, 0);
}

pub(super) async fn rule_10_many_idle_names_leave_nothing<F: Fixture>(fixture: &F) {
    let mut a = fixture.peer(1);
    for name in 0..300 {
        a.queue = queue(&format!("name {name}"));
        assert_eq!(a.acquire([1]).await, "H");
        assert_eq!(a.release([1]).await, [true]);
    }
    assert_nothing_stored(fixture).await;
}

pub(super) async fn rule_10_a_crash_leaves_nothing_an_hour_later<F: Fixture>(fixture: &F) {
    let limit = limit::<F>(2);
    let (mut a, mut b) = (fixture.peer(limit), fixture.peer(limit));
    for name in ["one", "two", "three"] {
        for peer in [&mut a, &mut b] {
            peer.queue = queue(name);
            let outcome = peer.call(acquire([1, 2, 3])).await;
            assert!(letters(&outcome.acquired).ends_with('Q'));
        }
    }
    let hour = Duration::from_secs(3600);
    assert!(fixture.expires_within(hour + F::LEASE * 2).await);
}

/// Asserts that nothing is stored one lease after the last ticket was released.
async fn assert_nothing_stored<F: Fixture>(fixture: &F) {
    silence(F::LEASE + F::LEASE / 20).await;
    for _ in 0..20 {
        if fixture.stored().await == 0 {
            return;
        }
        assert!(!F::PAUSED_TIME, "records are left");
        pass_time(fixture, F::LEASE / 20, &mut []).await;
    }
    panic!("{} records are left", fixture.stored().await);
}
