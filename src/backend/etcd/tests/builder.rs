//! Addresses, URLs, credentials and prefixes.

use super::*;

#[test]
fn addresses_are_accepted_in_every_form() {
    for address in [
        "h:1",
        "http://h:1",
        "http://h:1/",
        "https://h:2379",
        "[::1]:2379",
        "10.0.0.1:2379",
    ] {
        let etcd = Etcd::new([address]).unwrap_or_else(|error| panic!("{address}: {error}"));
        assert_eq!(etcd.servers.len(), 1);
    }
}

#[test]
fn malformed_addresses_are_rejected_and_never_repeated() {
    let malformed: &[&[&str]] = &[
        &[],
        &[""],
        &["secret"],
        &["secret:"],
        &["ftp://secret:1"],
        &["http://secret:1/path"],
        &["http://me:secret@h:1"],
        &["h:1", "http://h:1"],
        &["http://h:1", "https://i:1"],
    ];
    for endpoints in malformed {
        let error = Etcd::new(endpoints.iter()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{endpoints:?}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}

#[test]
fn a_url_contains_the_servers_and_the_credentials() {
    let etcd = Etcd::of_url("etcd://me:s%40crt@a:1,b:2").unwrap();
    assert_eq!(etcd.servers, ["http://a:1", "http://b:2"]);
    assert_eq!(
        etcd.credentials,
        Some(("me".to_owned(), "s@crt".to_owned()))
    );
    assert!(Etcd::of_url("etcds://a:1/").unwrap().tls.is_some());
    for bad in [
        "",
        "etcd:",
        "etcd://",
        "http://a:1",
        "etcd://secret",
        "etcd://secret@a:1",
        "etcd://a:1/secret",
    ] {
        let error = Etcd::of_url(bad).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{bad}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}

#[test]
fn prefixes_are_checked() {
    let etcd = || Etcd::new(["h:1"]).unwrap();
    for good in ["shop", "a/b", "ü", "{x}"] {
        assert!(etcd().prefix(good).is_ok(), "{good}");
    }
    let long = "x".repeat(65);
    for bad in ["", "/a", "a/", "a//b", "a b", "a\n", &long] {
        let error = etcd().prefix(bad).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{bad:?}");
    }
}

#[test]
fn debug_shows_no_password() {
    let output = format!(
        "{:?}",
        Etcd::new(["h:1"]).unwrap().credentials("me", "secret")
    );
    assert!(output.contains("me") && output.contains("h:1"), "{output}");
    assert!(!output.contains("secret"), "{output}");
}

#[tokio::test]
async fn an_unreachable_server_is_named() {
    let peer = Peer::at(Etcd::new(["127.0.0.1:1"]).unwrap());
    let error = peer.session.check(LEASE).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
}
