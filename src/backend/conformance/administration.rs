//! Administration: inspect, evict, check, capabilities.

use super::fixtures::{Fixture, limit, pass_time};
use super::peer::acquire;
use crate::backend::Capabilities;
use std::time::Duration;

pub(super) async fn evict_removes_a_holder_and_grants_the_next<F: Fixture>(fixture: &F) {
    let (mut a, mut b) = (fixture.peer(1), fixture.peer(1));
    let operator = fixture.peer(1);
    a.must_acquire(1).await;
    assert_eq!(b.acquire([1]).await, "Q");
    assert!(operator.evict(a.node.ticket(1)).await);
    assert_eq!(
        operator.counts().await,
        (1, 0),
        "the eviction itself grants the next ticket"
    );
    assert!(operator.shows(b.node.ticket(1)).await);
    if F::PAUSED_TIME {
        // In real time the push channel may not be connected yet.
        assert_eq!(b.pushed().await.map(|grant| grant.ticket), Some(1));
    }
    assert_eq!(a.renew([1]).await, "G");
    assert_eq!(b.acquire([1]).await, "H");
}

pub(super) async fn evict_removes_a_queued_ticket<F: Fixture>(fixture: &F) {
    let (mut a, mut b) = (fixture.peer(1), fixture.peer(1));
    a.must_acquire(1).await;
    assert_eq!(b.acquire([1, 2]).await, "QQ");
    assert!(a.evict(b.node.ticket(1)).await);
    assert!(!a.evict(b.node.ticket(1)).await, "evicted already");
    assert_eq!(a.counts().await, (1, 1));
    a.release([1]).await;
    assert_eq!(b.renew([1, 2]).await, "GH");
}

pub(super) async fn evict_of_an_unknown_ticket_returns_false<F: Fixture>(fixture: &F) {
    let mut a = fixture.peer(1);
    assert!(!a.evict(a.node.ticket(1)).await, "nothing is stored");
    a.must_acquire(1).await;
    let unknown = [
        a.node.ticket(2),
        a.node.ticket(11),
        format!("{}-01", a.node.as_str()),
        format!("x{}", a.node.ticket(1)),
        a.node.as_str().to_owned(),
        "unknown-1".to_owned(),
        "-".to_owned(),
        String::new(),
        "ü\n\0".to_owned(),
    ];
    for ticket in unknown {
        assert!(!a.evict(ticket.clone()).await, "{ticket:?}");
    }
    assert_eq!(a.renew([1]).await, "H");
}

pub(super) async fn inspect_lists_holders_and_queue<F: Fixture>(fixture: &F) {
    let (mut a, mut b) = (fixture.peer(2).lease(F::LEASE * 3), fixture.peer(2));
    let idle = a.inspect().await;
    assert_eq!(idle, Default::default());
    assert_eq!(a.acquire([1]).await, "H");
    assert_eq!(b.acquire([1, 2]).await, "HQ");
    assert_eq!(a.acquire([2]).await, "Q");
    let shown = b.inspect().await;
    let names = |list: &[crate::TicketInfo]| -> Vec<String> {
        list.iter().map(|info| info.ticket.clone()).collect()
    };
    // Holders by deadline, the queue in its order.
    assert_eq!(names(&shown.holders), [b.node.ticket(1), a.node.ticket(1)]);
    assert_eq!(names(&shown.queue), [b.node.ticket(2), a.node.ticket(2)]);
    assert_eq!((shown.in_use, shown.queued), (2, 2));
    assert_eq!(shown.holders[0].node, b.node.as_str());
    assert_eq!(shown.holders[1].node, a.node.as_str());
    for info in shown.holders.iter().chain(&shown.queue) {
        let lease = if info.node == a.node.as_str() { 3 } else { 1 } * F::LEASE;
        assert!(
            info.lease_left <= lease && info.lease_left > lease / 4,
            "{info:?}"
        );
    }
}

pub(super) async fn inspect_lists_only_live_tickets<F: Fixture>(fixture: &F) {
    let (mut dead, mut a) = (fixture.peer(2), fixture.peer(2));
    assert_eq!(dead.acquire([1]).await, "H");
    assert_eq!(a.acquire([1]).await, "H");
    assert_eq!(dead.acquire([2]).await, "Q");
    a.repeats = acquire([1]);
    pass_time(fixture, F::LEASE * 9 / 10, &mut [&mut a]).await;
    // No call is made meanwhile, so none removes the expired tickets.
    tokio::time::sleep(F::LEASE / 5).await;
    if !F::EXPIRES_EXACTLY {
        // The session removes them, a little later.
        tokio::time::sleep(F::LEASE / 4).await;
    }
    assert_eq!(a.counts().await, (1, 0));
    assert!(a.shows(a.node.ticket(1)).await);
}

pub(super) async fn inspect_lists_at_most_a_thousand<F: Fixture>(fixture: &F) {
    let mut a = fixture.peer(1200).lease(F::LEASE * 10);
    for batch in 0..10 {
        a.acquire(batch * 256..(batch + 1) * 256).await;
    }
    let shown = a.inspect().await;
    assert_eq!((shown.in_use, shown.queued), (1200, 1360));
    assert_eq!((shown.holders.len(), shown.queue.len()), (1000, 1000));
    assert_eq!(shown.queue[0].ticket, a.node.ticket(1200));
}

pub(super) async fn check_and_capabilities<F: Fixture>(fixture: &F) {
    let a = fixture.peer(1);
    // Without the right to publish all calls work, and `check` reports an error all the same.
    let checked = a.session.check(F::LEASE).await;
    assert_eq!(checked.is_ok(), F::PUSHES || !F::HAS_QUEUE, "{checked:?}");
    let expected = Capabilities {
        fifo: F::HAS_QUEUE,
        token: true,
        max_limit: limit::<F>(u32::MAX),
        min_lease: Duration::from_secs(1),
    };
    assert_eq!(a.session.capabilities(), expected);
}
