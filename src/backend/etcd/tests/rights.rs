//! Users, passwords and rights.

use super::*;

/// Starts a cluster with a user `me` that may use the prefix `shop`, and a user `other` without rights.
fn with_users() -> EtcdCluster {
    let cluster = EtcdCluster::start_with(1, &["--bcrypt-cost", "4"]);
    for words in [
        &["user", "add", "root:root"][..],
        &["user", "grant-role", "root", "root"],
        &["role", "add", "permits"],
        &[
            "role",
            "grant-permission",
            "permits",
            "readwrite",
            "--prefix=true",
            "shop/",
        ],
        &["user", "add", "me:secret"],
        &["user", "grant-role", "me", "permits"],
        &["user", "add", "other:secret"],
        &["auth", "enable"],
    ] {
        if words[1] == "grant-role" && words[2] == "root" {
            cluster.ctl(&["role", "add", "root"]);
        }
        cluster.ctl(words);
    }
    cluster
}

#[tokio::test]
async fn missing_rights_are_reported_with_the_reason() {
    let cluster = with_users();
    let etcd = || {
        Etcd::new(cluster.endpoints())
            .unwrap()
            .prefix("shop")
            .unwrap()
    };
    let check = async |etcd: Etcd| Peer::at(etcd).session.check(LEASE).await;

    check(etcd().credentials("me", "secret")).await.unwrap();
    for (wrong, message) in [
        (etcd().credentials("me", "wrong"), "user and password"),
        (etcd().credentials("unknown", "secret"), "user and password"),
        (etcd(), "requires a user"),
        (etcd().credentials("other", "secret"), "shop/"),
        (
            etcd().prefix("other").unwrap().credentials("me", "secret"),
            "other/",
        ),
    ] {
        let error = check(wrong).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(error.to_string().contains(message), "{error}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}

#[tokio::test]
async fn calls_work_with_the_documented_rights() {
    let cluster = with_users();
    let etcd = || {
        let etcd = Etcd::new(cluster.endpoints())
            .unwrap()
            .prefix("shop")
            .unwrap();
        etcd.credentials("me", "secret")
    };
    let (a, mut b) = (Peer::at(etcd()), Peer::at(etcd()));
    assert!(is_held(&a.acquire(&[1]).await));
    assert_eq!(b.acquire(&[1]).await, [TicketState::Queued]);
    sleep(Duration::from_millis(300)).await;
    assert_eq!(a.session.inspect(queue()).await.unwrap().in_use, 1);
    assert!(a.session.evict(queue(), a.node.ticket(1)).await.unwrap());
    assert_eq!(b.granted().await.ticket, 1);
    // A user without rights is refused at once.
    let without_rights = Peer::at(etcd().credentials("other", "secret"));
    let error = without_rights.try_to_acquire(&[1]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
}

#[tokio::test]
async fn an_unknown_auth_token_is_replaced() {
    let mut cluster = with_users();
    let etcd = Etcd::new(cluster.endpoints())
        .unwrap()
        .prefix("shop")
        .unwrap();
    let a = Peer::at(etcd.credentials("me", "secret"));
    assert!(is_held(&a.acquire(&[1]).await));
    // Simple tokens do not outlive their server.
    cluster.kill(0);
    cluster.restart(0);
    until_held(&a, 1, Duration::from_secs(5)).await;
}

#[tokio::test]
async fn a_user_without_authentication_is_reported() {
    let cluster = EtcdCluster::start(1);
    let etcd = Etcd::new(cluster.endpoints())
        .unwrap()
        .credentials("me", "secret");
    let error = Peer::at(etcd).session.check(LEASE).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("no authentication"), "{error}");
}
