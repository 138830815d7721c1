//! Losses of the connection in each phase: no ticket exists twice, and none is lost.

use super::*;
use crate::backend::support::proxy::{Mode, Proxy, Way};

async fn behind_proxy() -> (Proxy, Peer, Peer) {
    let proxy = Proxy::start(server().port(0)).await;
    let direct = zookeeper(server().connect_string());
    let operator = Client::connect(&server().connect_string()).await.unwrap();
    anchor(&direct, &operator).await;
    let mut cut = direct.clone();
    cut.settings.servers = proxy.address().into();
    (proxy, Peer::new(&cut), Peer::new(&direct))
}

#[tokio::test]
async fn names_whose_calls_never_connected_are_removed() {
    let mut peer = Peer::new(&zookeeper("127.0.0.1:1"));
    peer.lease = SECOND;
    let send = async |names: std::ops::Range<u32>| {
        for name in names {
            let queue = Queue::mutex(&name.to_be_bytes()).unwrap();
            let call = Call {
                queue,
                ..peer.acquire_call(&[1])
            };
            peer.try_exchange(call).await.unwrap_err();
        }
    };
    send(0..1000).await;
    sleep(2 * SECOND).await;
    send(1000..1100).await;
    let known = peer.shared.state().names.len();
    assert!(known < 300, "{known}");
}

#[tokio::test]
async fn a_connection_lost_while_connecting_creates_no_second_ticket() {
    for way in [Way::Up, Way::Down] {
        let (proxy, peer, other) = behind_proxy().await;
        proxy.set_new(way, Mode::LoseOneAndCut);
        assert!(peer.try_exchange(peer.acquire_call(&[1])).await.is_err());
        proxy.set_new(way, Mode::Pass);
        assert!(
            held_token(&peer.acquire(&[1]).await.acquired).is_some(),
            "{way:?}"
        );
        assert_eq!(other.counts().await, (1, 0), "{way:?}");
    }
}

#[tokio::test]
async fn a_connection_lost_while_acquiring_creates_no_second_ticket() {
    for way in [Way::Up, Way::Down] {
        let (proxy, peer, other) = behind_proxy().await;
        peer.acquire(&[]).await;
        proxy.set_present(way, Mode::LoseOneAndCut);
        let outcome = peer.acquire(&[1]).await;
        assert!(held_token(&outcome.acquired).is_some(), "{way:?}");
        assert_eq!(other.counts().await, (1, 0), "{way:?}: it exists once");
        assert_eq!(peer.release(&[1]).await.released, [true]);
        assert_eq!(other.counts().await, (0, 0), "{way:?}");
    }
}

#[tokio::test]
async fn a_node_whose_creation_was_not_answered_is_adopted() {
    let (proxy, peer, other) = behind_proxy().await;
    peer.acquire(&[]).await;
    proxy.set_present(Way::Down, Mode::Lose);
    // The node is created, but the answer is lost. The call is given up, and the connection is replaced.
    assert!(peer.try_exchange(peer.acquire_call(&[1])).await.is_err());
    assert_eq!(other.counts().await, (1, 0), "it exists");
    let token = held_token(&peer.acquire(&[1]).await.acquired);
    assert!(token.is_some(), "the node is adopted");
    assert_eq!(other.counts().await, (1, 0), "there is no second node");
    let renewed = peer.renew(&[1]).await.renewed;
    assert_eq!(held_token(&renewed), token);
}

#[tokio::test]
async fn a_node_whose_creation_was_not_answered_is_deleted_on_release() {
    let (proxy, peer, other) = behind_proxy().await;
    peer.acquire(&[]).await;
    proxy.set_present(Way::Down, Mode::Lose);
    assert!(peer.try_exchange(peer.acquire_call(&[1])).await.is_err());
    assert_eq!(other.counts().await, (1, 0));
    peer.release(&[1]).await;
    assert_eq!(other.counts().await, (0, 0));
}

#[tokio::test]
async fn a_delayed_call_that_was_given_up_changes_nothing_later() {
    let (proxy, peer, other) = behind_proxy().await;
    peer.acquire(&[]).await;
    proxy.set_present(Way::Up, Mode::Hold);
    assert!(peer.try_exchange(peer.acquire_call(&[1])).await.is_err());
    let releasing = tokio::spawn(async move {
        assert_eq!(peer.release(&[1]).await.released.len(), 1);
        peer
    });
    sleep(300 * MILLI).await;
    proxy.set(Way::Up, Mode::Pass);
    let peer = releasing.await.unwrap();
    assert_eq!(other.counts().await, (0, 0));
    sleep(200 * MILLI).await;
    assert_eq!(
        other.counts().await,
        (0, 0),
        "it is not executed later either"
    );
    assert!(held_token(&peer.acquire(&[2]).await.acquired).is_some());
}

#[tokio::test]
async fn a_connection_lost_while_renewing_loses_no_permit() {
    for way in [Way::Up, Way::Down] {
        let (proxy, mut peer, _) = behind_proxy().await;
        let token = held_token(&peer.acquire(&[1]).await.acquired);
        proxy.set_present(way, Mode::LoseOneAndCut);
        let renewed = peer.renew(&[1]).await.renewed;
        assert_eq!(held_token(&renewed), token, "{way:?}");
        while let Ok(event) = peer.events.try_recv() {
            assert_ne!(event, Event::Lost, "{way:?}: the session has not ended");
        }
    }
}

#[tokio::test]
async fn a_connection_lost_while_releasing_leaves_no_permit() {
    for way in [Way::Up, Way::Down] {
        let (proxy, peer, other) = behind_proxy().await;
        peer.acquire(&[1]).await;
        proxy.set_present(way, Mode::LoseOneAndCut);
        assert_eq!(peer.release(&[1]).await.released, [true], "{way:?}");
        assert_eq!(other.counts().await, (0, 0), "{way:?}");
    }
}

#[tokio::test]
async fn a_connection_lost_while_queued_loses_no_grant() {
    let (proxy, mut peer, other) = behind_proxy().await;
    other.acquire(&[7]).await;
    assert_eq!(peer.acquire(&[1]).await.acquired, [TicketState::Queued]);
    proxy.set_new(Way::Up, Mode::Hold);
    proxy.cut();
    sleep(50 * MILLI).await;
    // Released while no grant can be pushed.
    other.release(&[7]).await;
    proxy.set(Way::Up, Mode::Pass);
    assert_eq!(peer.granted().await.ticket, 1);
    assert!(held_token(&peer.acquire(&[1]).await.acquired).is_some());
}

#[tokio::test]
async fn a_stuck_connection_is_replaced() {
    let (proxy, peer, _) = behind_proxy().await;
    let token = held_token(&peer.acquire(&[1]).await.acquired);
    proxy.set_present(Way::Up, Mode::Lose);
    let start = Instant::now();
    let renewed = peer.renew(&[1]).await.renewed;
    assert_eq!(held_token(&renewed), token, "in the same session");
    assert!(start.elapsed() < 3 * SECOND, "{:?}", start.elapsed());
}
