//! Values in an unknown form: refused with an error, and not changed.

use super::*;

/// The lock and the fence of a later version, and a marker that is none.
#[tokio::test]
async fn unknown_values_are_refused_and_unchanged() {
    let fence = |peer: &Peer| format!("{LOCK}:{}", peer.node.as_str());
    for (at, value) in ["2 host-1-x 7 4 0", "2 1 2", "x"].into_iter().enumerate() {
        let servers = servers(3);
        let mut a = Peer::new(&urls(&servers));
        let key = [LOCK.to_owned(), fence(&a), MARKER.to_owned()][at].clone();
        for server in &servers[1..] {
            server.command(&["SET", &key, value]);
        }
        let error = a.try_acquire_ticket(1).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Incompatible, "{key}: {error}");
        for part in [&*key, value, "format version"] {
            assert!(error.to_string().contains(part), "{part}: {error}");
        }
        for server in &servers[1..] {
            assert_eq!(server.command(&["GET", &key]).text(), value);
        }
    }
}

#[tokio::test]
async fn an_unknown_lock_is_neither_listed_nor_evicted() {
    let servers = servers(3);
    let a = Peer::new(&urls(&servers));
    for server in &servers {
        server.command(&["SET", LOCK, "2 host-1-x 7 4 9"]);
    }
    let error = a.session.inspect(queue()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
    let eviction = a.session.evict(queue(), "host-1-x-7".to_owned()).await;
    assert_eq!(eviction.unwrap_err().kind(), ErrorKind::Incompatible);
    assert!(servers.iter().all(is_locked));
}
