//! Rules 1 and 3: limits and the order of grants.

use super::fixtures::{Fixture, pass_time, queue};
use super::peer::{acquire, letters, operations, renew, tickets, try_acquire};
use crate::backend::MAX_TICKETS;

pub(super) async fn rule_01_no_more_permits_than_the_limit<F: Fixture>(fixture: &F) {
    let (mut a, mut b) = (fixture.peer(2), fixture.peer(2));
    let first = a.call(acquire([1])).await;
    assert_eq!((first.in_use, first.queued), (1, 0));
    assert_eq!(b.acquire([1, 2]).await, "HQ");
    let third = a.call(acquire([2])).await;
    assert_eq!(letters(&third.acquired), "Q");
    assert_eq!((third.in_use, third.queued), (2, 2));
    assert_eq!(b.release([1]).await, [true]);
    assert_eq!(b.acquire([2]).await, "H");
    assert_eq!(a.acquire([1, 2]).await, "HQ");
}

pub(super) async fn rule_01_each_node_has_its_own_limit<F: Fixture>(fixture: &F) {
    let (mut small, mut large) = (fixture.peer(2), fixture.peer(4));
    assert_eq!(large.acquire([1, 2, 3]).await, "HHH");
    assert_eq!(small.try_acquire([1]).await, "R");
    assert_eq!(large.try_acquire([4, 5]).await, "HR");
    assert_eq!(large.release([2, 3]).await, [true, true]);
    assert_eq!(small.try_acquire([2]).await, "R");
    assert_eq!(large.release([4]).await, [true]);
    assert_eq!(small.try_acquire([3, 4]).await, "HR");
}

pub(super) async fn rule_01_a_queue_head_at_its_limit_blocks_those_behind<F: Fixture>(fixture: &F) {
    let (mut large, mut small) = (fixture.peer(3), fixture.peer(1));
    assert_eq!(large.acquire([1]).await, "H");
    assert_eq!(small.acquire([1]).await, "Q");
    assert_eq!(
        large.acquire([2]).await,
        "Q",
        "queued behind the other node's ticket"
    );
    assert_eq!(large.try_acquire([3]).await, "R");
    let outcome = small.call(renew([])).await;
    assert_eq!((outcome.in_use, outcome.queued), (1, 2));
    let outcome = large.call(operations().release([1])).await;
    assert_eq!(
        tickets(&outcome.granted),
        [2],
        "both are within their limits now"
    );
    assert_eq!(small.acquire([1]).await, "H");
}

pub(super) async fn rule_01_lowering_a_limit_evicts_no_holder<F: Fixture>(fixture: &F) {
    let mut a = fixture.peer(3);
    assert_eq!(a.acquire([1, 2, 3]).await, "HHH");
    a.limit = 1;
    assert_eq!(a.renew([1, 2, 3]).await, "HHH");
    assert_eq!(a.acquire([4]).await, "Q");
    assert_eq!(
        a.acquire([1, 2, 3]).await,
        "HHH",
        "a held ticket is renewed, not granted again"
    );
    assert_eq!(a.release([1, 2]).await, [true, true]);
    assert_eq!(a.acquire([4]).await, "Q", "one permit is still in use");
    assert_eq!(
        tickets(&a.call(operations().release([3])).await.granted),
        [4]
    );
}

pub(super) async fn rule_01_raising_a_limit_grants_queued_tickets<F: Fixture>(fixture: &F) {
    let mut a = fixture.peer(1);
    assert_eq!(a.acquire([1, 2, 3, 4]).await, "HQQQ");
    a.limit = 3;
    let outcome = a.call(renew([1])).await;
    assert_eq!(tickets(&outcome.granted), [2, 3]);
    assert_eq!((outcome.in_use, outcome.queued), (3, 1));
}

pub(super) async fn rule_01_a_whole_batch_of_256<F: Fixture>(fixture: &F) {
    let max = u64::try_from(MAX_TICKETS).expect("a number");
    // Some backends need longer for this many tickets.
    let [mut a, mut b] = [(); 2].map(|()| fixture.peer(100).lease(F::LEASE * 4));
    let outcome = a.call(acquire(1..=max)).await;
    let expected = "H".repeat(100) + &"Q".repeat(156);
    assert_eq!(letters(&outcome.acquired), expected);
    assert_eq!((outcome.in_use, outcome.queued), (100, 156));
    assert_eq!(b.acquire(1..=max).await, "Q".repeat(256));
    // They get the released permits, the oldest first.
    let outcome = a.call(operations().release(1..=max)).await;
    let held: Vec<bool> = (1..=max).map(|ticket| ticket <= 100).collect();
    assert_eq!(outcome.released, held);
    assert_eq!((outcome.in_use, outcome.queued), (100, 156));
    assert_eq!(b.renew(1..=max).await, "H".repeat(100) + &"G".repeat(156));
    assert_eq!(b.release(1..=max).await, held);
    let outcome = a.call(try_acquire(1..=max)).await;
    assert_eq!(letters(&outcome.tried), "H".repeat(100) + &"R".repeat(156));
}

pub(super) async fn rule_01_names_are_independent<F: Fixture>(fixture: &F) {
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
    fixture.peer(1).must_acquire(1).await;
    for name in names {
        let mut a = fixture.peer(1).about(queue(name));
        assert_eq!(a.acquire([1, 2]).await, "HQ", "{name:?}");
        assert_eq!(a.counts().await, (1, 1), "{name:?}");
    }
}

pub(super) async fn rule_03_first_in_first_out_over_all_nodes<F: Fixture>(fixture: &F) {
    let mut peers = [fixture.peer(1), fixture.peer(1), fixture.peer(1)];
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
            assert_eq!(peers[later.0].acquire([later.1]).await, "Q");
        }
        assert_eq!(peers[peer].acquire([ticket]).await, "H");
        assert_eq!(peers[peer].release([ticket]).await, [true]);
    }
}

pub(super) async fn rule_03_the_oldest_of_a_batch_is_first<F: Fixture>(fixture: &F) {
    let (mut a, mut b) = (fixture.peer(1), fixture.peer(1));
    b.must_acquire(1).await;
    // The order is that of the batch, not that of the numbers.
    let order = [7, 3, 10, 9, 1_000_000_000_000, 2];
    assert_eq!(a.acquire(order).await, "QQQQQQ");
    b.release([1]).await;
    for ticket in order {
        assert_eq!(a.renew(order).await.matches('H').count(), 1);
        assert_eq!(
            a.release([ticket]).await,
            [true],
            "ticket {ticket} was next"
        );
    }
}

pub(super) async fn rule_03_a_new_ticket_never_overtakes_the_queue<F: Fixture>(fixture: &F) {
    let (mut a, mut b, mut c) = (fixture.peer(1), fixture.peer(1), fixture.peer(1));
    a.must_acquire(1).await;
    assert_eq!(b.acquire([1]).await, "Q");
    let outcome = a
        .call(operations().release([1]).acquire([2]).try_acquire([3]))
        .await;
    assert_eq!(letters(&outcome.acquired), "Q");
    assert_eq!(letters(&outcome.tried), "R");
    assert_eq!(c.acquire([1]).await, "Q");
    assert_eq!(b.acquire([1]).await, "H");
}

pub(super) async fn rule_03_a_new_ticket_does_not_overtake_when_a_holder_dies<F: Fixture>(
    fixture: &F,
) {
    let (mut a, mut b, mut c) = (fixture.peer(1), fixture.peer(1), fixture.peer(1));
    a.must_acquire(1).await;
    b.repeats = acquire([1]);
    // Until just before the dead holder expires. The new ticket's node is then the first to call.
    pass_time(fixture, F::LEASE * 9 / 10, &mut [&mut b]).await;
    loop {
        tokio::time::sleep(F::LEASE / 10).await;
        let outcome = c.call(acquire([1])).await;
        assert_eq!(letters(&outcome.acquired), "Q");
        if outcome.queued == 1 {
            break; // this call granted the permit to the other node's ticket
        }
    }
    assert_eq!(b.acquire([1]).await, "H");
}

pub(super) async fn rule_03_try_acquire_never_overtakes_the_queue<F: Fixture>(fixture: &F) {
    let (mut a, mut b) = (fixture.peer(1), fixture.peer(5));
    a.must_acquire(1).await;
    assert_eq!(a.acquire([2]).await, "Q");
    assert_eq!(
        b.try_acquire([1]).await,
        "R",
        "it is within its limit, but a ticket is queued"
    );
    a.release([2]).await;
    assert_eq!(b.try_acquire([2]).await, "H");
}

pub(super) async fn rule_03_a_refused_try_acquire_stores_nothing<F: Fixture>(fixture: &F) {
    let (mut a, mut b) = (fixture.peer(1), fixture.peer(1));
    a.must_acquire(1).await;
    let outcome = b.call(try_acquire([1])).await;
    assert_eq!(letters(&outcome.tried), "R");
    assert_eq!((outcome.in_use, outcome.queued), (1, 0));
    assert_eq!(outcome.poll_after, None);
    a.release([1]).await;
    let outcome = b.call(operations()).await;
    assert_eq!((outcome.in_use, outcome.queued), (0, 0));
    assert_eq!(b.try_acquire([1, 2]).await, "HR");
}

pub(super) async fn rule_03_a_repeated_acquire_keeps_its_position<F: Fixture>(fixture: &F) {
    let (mut a, mut b, mut c) = (fixture.peer(1), fixture.peer(1), fixture.peer(1));
    a.must_acquire(1).await;
    assert_eq!(b.acquire([1]).await, "Q");
    assert_eq!(c.acquire([1]).await, "Q");
    for _ in 0..3 {
        let outcome = b.call(acquire([1])).await;
        assert_eq!(
            (outcome.in_use, outcome.queued),
            (1, 2),
            "the ticket is queued once"
        );
    }
    a.release([1]).await;
    assert_eq!(c.acquire([1]).await, "Q");
    assert_eq!(b.acquire([1]).await, "H");
}

pub(super) async fn rule_03_one_call_releases_and_enqueues_at_the_end<F: Fixture>(fixture: &F) {
    let mut a = fixture.peer(2);
    assert_eq!(a.acquire([1, 2, 3]).await, "HHQ");
    let outcome = a
        .call(operations().release([1]).renew([2]).acquire([3, 4]))
        .await;
    assert_eq!(outcome.released, [true]);
    assert_eq!(letters(&outcome.renewed), "H");
    assert_eq!(letters(&outcome.acquired), "HQ");
    assert_eq!(
        tickets(&outcome.granted),
        [3],
        "whether the call names it or not"
    );
}
