//! What an operator has: inspect, evict, check.

use super::peer::acquire;
use super::rig::{Rig, limit, pass};
use crate::backend::Capabilities;
use std::time::Duration;

pub(super) async fn evict_takes_out_a_holder_and_grants_the_next<R: Rig>(rig: &R) {
    let (mut a, mut b) = (rig.peer(1), rig.peer(1));
    let operator = rig.peer(1);
    a.must_enter(1).await;
    assert_eq!(b.acquire([1]).await, "W");
    assert!(operator.evict(a.node.ticket(1)).await);
    assert_eq!(
        operator.counts().await,
        (1, 0),
        "granted by the very eviction"
    );
    assert!(operator.shows(b.node.ticket(1)).await);
    if R::VIRTUAL {
        // Elsewhere the push channel may not be ready so soon.
        assert_eq!(b.pushed().await.map(|grant| grant.ticket), Some(1));
    }
    assert_eq!(a.renew([1]).await, "G");
    assert_eq!(b.acquire([1]).await, "H");
}

pub(super) async fn evict_takes_out_a_waiter<R: Rig>(rig: &R) {
    let (mut a, mut b) = (rig.peer(1), rig.peer(1));
    a.must_enter(1).await;
    assert_eq!(b.acquire([1, 2]).await, "WW");
    assert!(a.evict(b.node.ticket(1)).await);
    assert!(!a.evict(b.node.ticket(1)).await, "a second time");
    assert_eq!(a.counts().await, (1, 1));
    a.release([1]).await;
    assert_eq!(b.renew([1, 2]).await, "GH");
}

pub(super) async fn evict_of_an_unknown_ticket_says_so<R: Rig>(rig: &R) {
    let mut a = rig.peer(1);
    assert!(!a.evict(a.node.ticket(1)).await, "nothing is stored");
    a.must_enter(1).await;
    let unknown = [
        a.node.ticket(2),
        a.node.ticket(11),
        format!("{}-01", a.node.as_str()),
        format!("x{}", a.node.ticket(1)),
        a.node.as_str().to_owned(),
        "nobody-1".to_owned(),
        "-".to_owned(),
        String::new(),
        "ü\n\0".to_owned(),
    ];
    for ticket in unknown {
        assert!(!a.evict(ticket.clone()).await, "{ticket:?}");
    }
    assert_eq!(a.renew([1]).await, "H");
}

pub(super) async fn inspect_shows_who_holds_and_who_waits<R: Rig>(rig: &R) {
    let (mut a, mut b) = (rig.peer(2).lease(R::LEASE * 3), rig.peer(2));
    let nobody = a.inspect().await;
    assert_eq!(nobody, Default::default());
    assert_eq!(a.acquire([1]).await, "H");
    assert_eq!(b.acquire([1, 2]).await, "HW");
    assert_eq!(a.acquire([2]).await, "W");
    let shown = b.inspect().await;
    let names = |list: &[crate::TicketInfo]| -> Vec<String> {
        list.iter().map(|info| info.ticket.clone()).collect()
    };
    // The oldest deadline first; and first in line first.
    assert_eq!(names(&shown.holders), [b.node.ticket(1), a.node.ticket(1)]);
    assert_eq!(names(&shown.queue), [b.node.ticket(2), a.node.ticket(2)]);
    assert_eq!((shown.in_use, shown.queued), (2, 2));
    assert_eq!(shown.holders[0].node, b.node.as_str());
    assert_eq!(shown.holders[1].node, a.node.as_str());
    for info in shown.holders.iter().chain(&shown.queue) {
        let lease = if info.node == a.node.as_str() { 3 } else { 1 } * R::LEASE;
        assert!(
            info.lease_left <= lease && info.lease_left > lease / 4,
            "{info:?}"
        );
    }
}

pub(super) async fn inspect_shows_only_the_living<R: Rig>(rig: &R) {
    let (mut dead, mut a) = (rig.peer(2), rig.peer(2));
    assert_eq!(dead.acquire([1]).await, "H");
    assert_eq!(a.acquire([1]).await, "H");
    assert_eq!(dead.acquire([2]).await, "W");
    a.repeats = acquire([1]);
    pass(rig, R::LEASE * 9 / 10, &mut [&mut a]).await;
    // Nobody calls in this moment, so nobody purges.
    tokio::time::sleep(R::LEASE / 5).await;
    if !R::TO_THE_POINT {
        // Its own session does, soon.
        tokio::time::sleep(R::LEASE / 4).await;
    }
    assert_eq!(a.counts().await, (1, 0));
    assert!(a.shows(a.node.ticket(1)).await);
}

pub(super) async fn inspect_lists_at_most_a_thousand<R: Rig>(rig: &R) {
    let mut a = rig.peer(1200).lease(R::LEASE * 10);
    for batch in 0..10 {
        a.acquire(batch * 256..(batch + 1) * 256).await;
    }
    let shown = a.inspect().await;
    assert_eq!((shown.in_use, shown.queued), (1200, 1360));
    assert_eq!((shown.holders.len(), shown.queue.len()), (1000, 1000));
    assert_eq!(shown.queue[0].ticket, a.node.ticket(1200));
}

pub(super) async fn check_and_capabilities<R: Rig>(rig: &R) {
    let a = rig.peer(1);
    // A push that is not allowed is worth an error here, though everything works without.
    let checked = a.session.check(R::LEASE).await;
    assert_eq!(checked.is_ok(), R::PUSHES || !R::QUEUES, "{checked:?}");
    let expected = Capabilities {
        fifo: R::QUEUES,
        token: true,
        max_limit: limit::<R>(u32::MAX),
        min_lease: Duration::from_secs(1),
    };
    assert_eq!(a.session.capabilities(), expected);
}
