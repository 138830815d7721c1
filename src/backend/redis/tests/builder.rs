//! URLs and prefixes, checked when they are given.

use super::*;

#[test]
fn urls_are_checked_when_given() {
    for good in [
        "redis://127.0.0.1",
        "redis://127.0.0.1:6380/3",
        "redis://user:secret@[::1]:6380",
        "redis+unix:///run/redis.sock?db=1",
        "unix:///run/redis.sock",
    ] {
        assert!(Redis::new(good).is_ok(), "{good}");
    }
    for bad in [
        "",
        "127.0.0.1:6379",
        "http://u:secret@h",
        "redis://u:secret@h/x",
        "redis://u:secret@h/-1",
        "redis://u:secret@h?prefix=shop",
        "redis://:secret@0.0.0.0",
        "redis://u:secret@",
        "rediss://u:secret@h#insecure",
        "redis://u:sec#ret@h",
        "redis://u:6#secret@h",
    ] {
        let error = Redis::new(bad).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{bad}");
        assert!(
            !format!("{error} {error:?}").contains("secret"),
            "{error:?}"
        );
    }
    let error = Redis::new("redis://u:6#secret@h").unwrap_err().to_string();
    assert!(error.contains("%23"), "{error}");
    match Redis::new("rediss://u:secret@h") {
        Ok(_) if cfg!(feature = "redis-tls") => {}
        Ok(_) => panic!("TLS is not built in"),
        Err(error) => assert!(error.to_string().contains("feature redis-tls"), "{error}"),
    }
}

#[test]
fn prefixes_are_checked_when_given() {
    let redis = || Redis::new("redis://h").unwrap();
    for good in ["shop", "shop:eu-1", "ü", &"a".repeat(64)] {
        assert!(redis().prefix(good).is_ok(), "{good}");
    }
    for bad in [
        "",
        "a b",
        "a{b",
        "a}",
        "a*",
        "a?",
        "a[",
        "a\n",
        &"a".repeat(65),
    ] {
        let error = redis().prefix(bad).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{bad}");
    }
}

#[test]
fn debug_output_and_errors_contain_no_secret() {
    let redis = Redis::new("redis://user:secret@host.example:6380/2").unwrap();
    let shown = format!("{redis:?}");
    assert!(shown.contains("host.example:6380"), "{shown}");
    assert!(
        !shown.contains("secret") && !shown.contains("user"),
        "{shown}"
    );
}
