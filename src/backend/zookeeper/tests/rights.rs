//! Users, rights, chroots, and other reasons of a server to refuse a call.

use super::*;
use zookeeper_client::{Acl, AuthId, Error as ZkError, Permission};

async fn operator() -> Client {
    Client::connect(&server().connect_string()).await.unwrap()
}

#[tokio::test]
async fn with_a_user_the_nodes_are_for_that_user_only() {
    let zookeeper = zookeeper(server().connect_string());
    let with_auth = || zookeeper.clone().auth("shop", "secret").unwrap();
    let (a, mut b) = (Peer::new(&with_auth()), Peer::new(&with_auth()));
    a.session.check(LEASE).await.unwrap();
    a.acquire(&[1]).await;
    assert_eq!(b.acquire(&[1]).await.acquired, [TicketState::Queued]);
    let parent = format!("{}/mutex:name", zookeeper.settings.base());
    let children = operator().await.list_children(&parent).await;
    assert_eq!(children, Err(ZkError::NoAuth));
    for other in [
        zookeeper.clone(),
        zookeeper.clone().auth("shop", "wrong-one").unwrap(),
    ] {
        let peer = Peer::new(&other);
        for error in [
            peer.session.check(LEASE).await.unwrap_err(),
            peer.try_exchange(peer.acquire_call(&[1]))
                .await
                .unwrap_err(),
            peer.session.inspect(queue()).await.unwrap_err(),
            (peer.session.evict(queue(), a.node.ticket(1)).await).unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
            let text = format!("{error} {error:?}");
            assert!(text.contains("127.0.0.1"), "{text}");
            assert!(
                !text.contains("secret") && !text.contains("wrong-one"),
                "{text}"
            );
        }
        // A caller gets the same error, at once.
        let permits = Coordinator::new(other);
        let error = permits.mutex("name").unwrap().lock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied);
    }
    a.release(&[1]).await;
    assert_eq!(b.granted().await.ticket, 1);
}

#[tokio::test]
async fn a_missing_right_is_named_by_the_check() {
    let operator = operator().await;
    let anyone = |rights| [Acl::new(rights, AuthId::anyone())];
    for (rights, missing) in [
        (Permission::READ, "create"),
        (Permission::CREATE | Permission::READ, ""),
    ] {
        let zookeeper = zookeeper(server().connect_string());
        let acls = anyone(rights);
        let options = CreateMode::Persistent.with_acls(Acls::new(&acls));
        let base = zookeeper.settings.base();
        operator.create(&base, &[], &options).await.unwrap();
        let checked = Peer::new(&zookeeper).session.check(LEASE).await;
        if missing.is_empty() {
            checked.expect("the nodes of this crate grant all rights that it needs");
        } else {
            let error = checked.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Denied);
            assert!(error.to_string().contains(missing), "{error}");
        }
    }
}

#[tokio::test]
async fn everything_is_below_the_chroot() {
    let root = own_prefix();
    // The chroot is created if it does not exist.
    for _ in 0..2 {
        let servers = format!("{}/{root}/deep", server().connect_string());
        let zookeeper = ZooKeeper::new(servers).unwrap().prefix("shop").unwrap();
        let (a, mut b) = (Peer::new(&zookeeper), Peer::new(&zookeeper));
        a.session.check(LEASE).await.unwrap();
        a.acquire(&[1]).await;
        assert_eq!(b.acquire(&[1]).await.acquired, [TicketState::Queued]);
        let parent = format!("/{root}/deep/shop/mutex:name");
        let children = operator().await.list_children(&parent).await.unwrap();
        assert_eq!(children.len(), 2);
        a.release(&[1]).await;
        assert_eq!(b.granted().await.ticket, 1);
        b.release(&[1]).await;
    }
}

#[tokio::test]
async fn nodes_of_other_programs_are_ignored() {
    let zookeeper = zookeeper(server().connect_string());
    let (a, mut b) = (Peer::new(&zookeeper), Peer::new(&zookeeper));
    let parent = format!("{}/mutex:name", zookeeper.settings.base());
    a.acquire(&[1]).await;
    a.release(&[1]).await;
    let operator = operator().await;
    anchor(&zookeeper, &operator).await;
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    for (name, data) in [
        ("lock-0000000000", "1 1"),
        ("config", ""),
        ("host-1-abc-1-0000000000", "no terms"),
        ("-1-0000000000", "1 1"),
    ] {
        let node = format!("{parent}/{name}");
        (operator.create(&node, data.as_bytes(), &options).await).unwrap();
    }
    assert!(held_token(&a.acquire(&[2]).await.acquired).is_some());
    assert_eq!(b.acquire(&[1]).await.acquired, [TicketState::Queued]);
    assert_eq!(b.counts().await, (1, 1));
    a.release(&[2]).await;
    assert_eq!(b.granted().await.ticket, 1);
}

#[tokio::test]
async fn a_lease_longer_than_every_session_is_rejected() {
    let start = || {
        ZooKeepers::start_with(Servers {
            longest_session: 2 * SECOND,
            ..Servers::default()
        })
    };
    let server = tokio::task::spawn_blocking(start).await.unwrap();
    let zookeeper = zookeeper(server.connect_string());
    for checked in [true, false] {
        let permits = Coordinator::new(zookeeper.clone()); // 10 s
        let error = match checked {
            true => permits.check().await.unwrap_err(),
            false => permits.mutex("a").unwrap().lock().await.unwrap_err(),
        };
        assert_eq!(error.kind(), ErrorKind::Incompatible);
        assert!(error.to_string().contains("maxSessionTimeout"), "{error}");
    }
    let short = Coordinator::builder(zookeeper).lease(2 * SECOND);
    let short = short.build().unwrap();
    short.check().await.unwrap();
    drop(short.mutex("a").unwrap().lock().await.unwrap());
}
