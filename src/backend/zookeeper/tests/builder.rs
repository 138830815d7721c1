//! Servers, URLs, users and prefixes.

use super::*;

#[test]
fn servers_are_checked_when_given() {
    for good in [
        "localhost",
        "zk1:2181",
        "zk1:2181,zk2,zk3:2183/app/permits",
        "127.0.0.1:2181/",
        "[::1]:2181",
        "[::1]",
    ] {
        assert!(ZooKeeper::new(good).is_ok(), "{good}");
    }
    for bad in [
        "",
        ",",
        "zk1,",
        "zk1:0",
        "zk1:x",
        "zk1:70000",
        "/app",
        "zk1/a//b",
        "zk1/../a",
        "zk1/zookeeper",
        "::1:2181",
        "user:secret@zk1:2181",
        "zookeeper://zk1",
        "zk 1",
        "zk1,zk2,zk1:2181",
    ] {
        let error = ZooKeeper::new(bad).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{bad}");
        assert!(!format!("{error:?}").contains("secret"), "{error:?}");
    }
}

#[test]
fn a_url_configures_the_same() {
    let settings = |url| ZooKeeper::of_url(url).unwrap().settings;
    let parsed = settings("zookeeper://sh%40p:s%3Ae@zk1:2181,zk2/app");
    assert_eq!(&*parsed.servers, "zk1:2181,zk2");
    assert_eq!(parsed.base(), "/app/permit");
    assert_eq!(parsed.digest.as_deref(), Some("sh@p:s:e"));
    assert_eq!(settings("zookeeper://zk1").digest, None);
    let with_prefix = crate::AnyBackend::from_url("zookeeper://zk1/app?prefix=shop");
    assert!(with_prefix.is_ok());
    for bad in [
        "zookeeper://",
        "zookeeper:zk1",
        "zookeeper://u:secret@",
        "zookeeper://:secret@h",
        "zookeeper://u:secret@h,h",
    ] {
        let error = crate::AnyBackend::from_url(bad).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{bad}");
        assert!(!format!("{error:?}").contains("secret"), "{error:?}");
    }
}

#[test]
fn prefixes_are_checked_when_given() {
    let zookeeper = || ZooKeeper::new("h").unwrap();
    for good in ["shop", "shop:eu-1", "ü", &"a".repeat(64)] {
        assert!(zookeeper().prefix(good).is_ok(), "{good}");
    }
    for bad in [
        "",
        ".",
        "..",
        "zookeeper",
        "a/b",
        "a b",
        "a{b",
        "a*",
        "a\n",
        &"a".repeat(65),
    ] {
        let error = zookeeper().prefix(bad).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{bad}");
    }
}

#[test]
fn a_password_is_never_shown() {
    let zookeeper = ZooKeeper::new("h").unwrap();
    let zookeeper = zookeeper.auth("shop", "secret").unwrap();
    assert!(!format!("{zookeeper:?}").contains("secret"));
    assert!(ZooKeeper::new("h").unwrap().auth("", "x").is_err());
    assert!(ZooKeeper::new("h").unwrap().auth("a:b", "x").is_err());
}

#[tokio::test]
async fn nothing_connects_before_the_first_call() {
    let zookeeper = zookeeper("127.0.0.1:1");
    let (permits, start) = (Coordinator::new(zookeeper), Instant::now());
    let semaphore = permits.semaphore("a", 1).unwrap();
    let error = permits.check().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
    let error = semaphore.acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(start.elapsed() < 5 * SECOND);
}
