//! Users with few rights, and with too few.

use super::*;
use std::collections::BTreeSet;

fn user(server: &RedisServer, rights: &str) -> String {
    let mut words = vec!["ACL", "SETUSER", "u", "reset", "on", ">secret", "~shop:*"];
    words.extend(rights.split_whitespace());
    assert_eq!(server.command(&words).text(), "OK", "{rights}");
    server.url_of("u", "secret")
}

#[tokio::test]
async fn the_documented_rights_are_enough() {
    let server = RedisServer::start();
    let url = user(
        &server,
        &format!("resetchannels &shop:push:* -@all {RIGHTS}"),
    );
    let lease = Duration::from_millis(500);
    let (a, mut b) = (Peer::new(&url).lease(lease), Peer::new(&url).lease(lease));
    a.session.check(LEASE).await.unwrap();
    assert_eq!(server.command(&["DBSIZE"]).int(), 0);
    let dead = Peer::new(&url).lease(lease);
    dead.acquire(&[1]).await;
    drop(dead);
    a.acquire(&[1]).await;
    b.acquire(&[1]).await;
    for _ in 0..8 {
        sleep(lease / 5).await;
        a.acquire(&[1]).await;
        b.acquire(&[1]).await;
    }
    a.release(&[1]).await;
    assert_eq!(b.granted().await.ticket, 1);
    a.session.inspect(queue()).await.unwrap();
    a.session.evict(queue(), b.node.ticket(1)).await.unwrap();
}

#[tokio::test]
async fn each_missing_right_is_named() {
    let server = RedisServer::start();
    for right in RIGHTS.split_whitespace() {
        let url = user(
            &server,
            &format!("resetchannels &shop:push:* -@all {RIGHTS}"),
        );
        let minus = right.replace('+', "-");
        server.command(&["ACL", "SETUSER", "u", &minus]);
        server.command(&["SCRIPT", "FLUSH"]);
        let error = Peer::new(&url).session.check(LEASE).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{right}: {error}");
        let message = error.to_string().to_lowercase();
        assert!(message.contains(&right[1..]), "{right}: {error}");
        assert!(
            message.contains("127.0.0.1") && !message.contains("secret"),
            "{error}"
        );
        // Every remaining key expires, unless PEXPIRE is the missing right.
        for key in server.command(&["KEYS", "*"]).list() {
            let left = server.command(&["PTTL", &key]).int();
            assert!(left >= 0 || right == "+pexpire", "{right}: {key}");
        }
        server.command(&["FLUSHALL"]);
    }
    let error = Peer::new(&server.url_of("u", "wrong"))
        .session
        .check(LEASE)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(!error.to_string().contains("wrong"), "{error}");
    let locked = RedisServer::start_with(&["--requirepass", "x"]);
    let error = Peer::new(&locked.url())
        .try_acquire_tickets(&[1])
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
}

#[tokio::test]
async fn all_missing_rights_are_named_at_once() {
    let server = RedisServer::start();
    let missing = async |rights: &str| {
        let error = Peer::new(&user(&server, rights)).session.check(LEASE).await;
        let message = error.unwrap_err().to_string();
        let (_, missing) = message.split_once("missing: ").expect("a list");
        missing.to_owned()
    };
    let needed: BTreeSet<_> = RIGHTS.split_whitespace().collect();
    let none = missing("-@all").await;
    assert_eq!(none.split(' ').collect::<BTreeSet<_>>(), needed);
    // The right to keys and channels, not to commands.
    assert_eq!(
        missing("resetkeys ~other:* +@all resetchannels &shop:push:*").await,
        "~shop:*"
    );
    let both = missing("resetkeys ~other:* +@all resetchannels").await;
    assert_eq!(both, "~shop:* &shop:push:*");
}

#[tokio::test]
async fn refused_pushes_become_polls() {
    let server = RedisServer::start();
    // May listen, may not push; then neither.
    for rights in [
        "resetchannels &shop:push:* +@all -publish",
        "resetchannels +@all",
    ] {
        server.command(&["FLUSHALL"]);
        let url = user(&server, rights);
        let (a, b) = (Peer::new(&url), Peer::new(&url));
        let c = Peer::new(&url);
        a.acquire(&[1]).await;
        b.acquire(&[1]).await;
        a.release(&[1]).await;
        let waiting = c.acquire(&[1]).await;
        assert_eq!(waiting.poll_after, Some(POLL), "{rights}");
        b.release(&[1]).await;
        assert_eq!(plain(&c.acquire(&[1]).await.acquired), HELD);
    }
}
