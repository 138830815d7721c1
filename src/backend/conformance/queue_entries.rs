//! Rule 4: a lost queue entry is re-created, and a push is a hint.

use super::fixtures::{Fixture, limit, pass_time, silence};
use super::peer::{acquire, letters, operations, renew, tickets};
use crate::backend::TicketState;
use tokio::time::Instant;

pub(super) async fn rule_04_a_lost_queue_entry_is_recreated_by_the_next_acquire<F: Fixture>(
    fixture: &F,
) {
    let (mut a, mut b) = (fixture.peer(1), fixture.peer(1));
    a.must_acquire(1).await;
    assert_eq!(b.acquire([1]).await, "Q");
    fixture.flush().await;
    assert_eq!(a.acquire([2]).await, "H", "the store is empty");
    assert_eq!(b.acquire([1]).await, "Q");
    a.release([2]).await;
    assert_eq!(b.acquire([1]).await, "H");
}

pub(super) async fn rule_04_an_expired_queue_entry_is_recreated_by_the_next_acquire<F: Fixture>(
    fixture: &F,
) {
    let (mut a, mut b) = (fixture.peer(1), fixture.peer(1));
    a.must_acquire(1).await;
    assert_eq!(b.acquire([1]).await, "Q");
    a.repeats = renew([1]);
    pass_time(fixture, F::LEASE * 2, &mut [&mut a]).await;
    assert_eq!(b.acquire([1]).await, "Q");
    a.release([1]).await;
    assert_eq!(b.acquire([1]).await, "H");
}

pub(super) async fn rule_04_a_lost_permit_is_reported_gone<F: Fixture>(fixture: &F) {
    let mut a = fixture.peer(limit::<F>(2));
    assert!(a.acquire([1, 2, 3]).await.starts_with('H'));
    fixture.flush().await;
    let outcome = a.call(operations().renew([1, 2]).acquire([3])).await;
    assert_eq!(letters(&outcome.renewed), "GG");
    if F::HAS_QUEUE {
        assert_eq!(letters(&outcome.acquired), "H");
    } else {
        assert_eq!(a.acquire([3]).await, "H");
    }
}

pub(super) async fn rule_04_polling_suffices_after_a_release<F: Fixture>(fixture: &F) {
    let (mut a, mut b) = (fixture.peer(1), fixture.peer(1));
    a.must_acquire(1).await;
    let outcome = b.call(acquire([1])).await;
    assert_eq!(letters(&outcome.acquired), "Q");
    a.release([1]).await;
    let poll_after = outcome.poll_after.expect("a time to poll again");
    assert!(poll_after < F::LEASE / 2, "a longer pause would be a gap");
    tokio::time::sleep(poll_after).await;
    assert_eq!(b.acquire([1]).await, "H");
}

pub(super) async fn rule_04_polling_suffices_after_a_holder_dies<F: Fixture>(fixture: &F) {
    let (mut a, mut b) = (fixture.peer(1), fixture.peer(1));
    // Before the holder's last heartbeat: its reply may be slow.
    let start = Instant::now();
    a.must_acquire(1).await;
    let mut calls = 0;
    loop {
        let outcome = b.call(acquire([1])).await;
        if outcome.acquired != [TicketState::Queued] {
            break;
        }
        calls += 1;
        assert!(start.elapsed() < F::LEASE * 2, "{outcome:?}");
        tokio::time::sleep(outcome.poll_after.expect("a time to poll again")).await;
    }
    assert!(start.elapsed() + F::LEASE / 100 >= F::LEASE);
    // Where pauses are random, 17 on average.
    assert!(calls < 30, "{calls} calls until the permit was granted");
    if F::PAUSED_TIME {
        assert!(
            start.elapsed() < F::LEASE * 11 / 10,
            "granted as soon as the lease has expired"
        );
    }
}

pub(super) async fn rule_04_only_nodes_with_queued_tickets_get_poll_after<F: Fixture>(fixture: &F) {
    let (mut a, mut b) = (fixture.peer(1), fixture.peer(1));
    assert_eq!(a.call(acquire([1])).await.poll_after, None);
    assert!(b.call(acquire([1])).await.poll_after.is_some());
    assert_eq!(
        a.call(renew([1])).await.poll_after,
        None,
        "only another node's ticket is queued"
    );
    assert!(
        b.call(operations()).await.poll_after.is_some(),
        "whether the call names the ticket or not"
    );
    a.release([1]).await;
    assert_eq!(b.call(renew([1])).await.poll_after, None);
}

pub(super) async fn rule_04_a_grant_is_pushed_to_its_node<F: Fixture>(fixture: &F) {
    let (mut a, mut b, mut c) = (fixture.peer(1), fixture.peer(1), fixture.peer(1));
    // The first pushes may be sent before the channel is connected.
    for round in 0..if F::PUSHES { 20 } else { 3 } {
        a.must_acquire(round).await;
        assert_eq!(b.acquire([round]).await, "Q");
        assert_eq!(c.acquire([round]).await, "Q");
        a.release([round]).await;
        let pushed = b.pushed().await;
        let outcome = b.call(acquire([round])).await;
        let [TicketState::Held { token }] = outcome.acquired[..] else {
            panic!("it was not granted: {outcome:?}");
        };
        assert!(outcome.granted.is_empty(), "by another's call: {outcome:?}");
        b.release([round]).await;
        if let Some(grant) = pushed {
            assert_eq!((grant.ticket, grant.token), (round, token));
            assert!(F::PUSHES);
            // The release by `b` granted the ticket of `c`. No grant of another node was pushed to `a`.
            assert_eq!(c.pushed().await.map(|grant| grant.ticket), Some(round));
            assert_eq!(a.pushed().await, None);
            return;
        }
        c.release([round]).await;
        while c.events.try_recv().is_ok() {}
    }
    assert!(!F::PUSHES, "no grant was pushed");
}

pub(super) async fn rule_04_grants_to_the_calling_node_are_in_its_reply<F: Fixture>(fixture: &F) {
    let mut a = fixture.peer(2);
    assert_eq!(a.acquire([1, 2, 3, 4]).await, "HHQQ");
    let outcome = a.call(operations().release([2])).await;
    assert_eq!(tickets(&outcome.granted), [3]);
    let outcome = a.call(operations().release([1]).acquire([4])).await;
    assert_eq!(tickets(&outcome.granted), [4], "named or not");
    assert_eq!(letters(&outcome.acquired), "H");
    let [TicketState::Held { token }] = outcome.acquired[..] else {
        unreachable!("asserted above");
    };
    assert_eq!(outcome.granted[0].token, token);
    let outcome = a.call(operations().release([3]).acquire([5])).await;
    assert_eq!(tickets(&outcome.granted), [0; 0], "it was never queued");
    silence(F::LEASE / 20).await;
    assert_eq!(a.pushed().await, None);
}
