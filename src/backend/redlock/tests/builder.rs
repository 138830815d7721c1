//! What is refused when a backend or a semaphore is made.

use super::*;
use crate::Coordinator;

#[test]
fn an_odd_number_of_different_servers_is_accepted() {
    for urls in [
        &["redis://a", "redis://b", "redis://c"][..],
        &["redis://a", "redis://a:6380", "redis+unix:///run/a.sock"],
        &[
            "redis://a",
            "redis://b",
            "redis://c",
            "redis://d",
            "redis://e",
        ],
    ] {
        assert!(Redlock::new(urls).is_ok(), "{urls:?}");
    }
}

#[test]
fn any_other_server_list_is_refused_with_the_reason() {
    let cases: &[(&[&str], &str)] = &[
        (&[], "has no servers"),
        (&["redis://a"], "tolerates no failure"),
        (&["redis://a", "redis://b"], "tolerates no failure"),
        (
            &["redis://a", "redis://b", "redis://c", "redis://d"],
            "no more failures than over 3",
        ),
        (
            &["redis://a", "redis://b", "redis://a"],
            "server 3 of Redlock, a:6379, is listed twice",
        ),
        (
            &["redis://a", "redis://b", "redis://A:6379"],
            "listed twice",
        ),
        (
            &["redis://a", "redis://b", "redis://u:secret@a./1"],
            "listed twice",
        ),
        (
            &["unix:///s", "redis://b", "redis+unix:///s?db=1"],
            "listed twice",
        ),
        (
            &["redis://a", "http://u:secret@b", "redis://c"],
            "server 2 of Redlock",
        ),
        (&["redis://a", "", "redis://c"], "server 2 of Redlock"),
        (
            &["redis://a", "redis://b", "rediss://u:secret@c/#insecure"],
            "server 3 of Redlock",
        ),
    ];
    for (urls, words) in cases {
        let error = Redlock::new(*urls).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{urls:?}");
        assert!(error.to_string().contains(words), "{urls:?}: {error}");
        assert!(!format!("{error:?}").contains("secret"), "{error:?}");
    }
    #[cfg(feature = "redis-sentinel")]
    {
        let plain = ["a", "b"].map(|host| Redis::new(format!("redis://{host}")).unwrap());
        let sentinel = Redis::sentinel(["c:26379"], "mymaster").unwrap();
        let error = Redlock::from_servers(plain.into_iter().chain([sentinel])).unwrap_err();
        assert!(error.to_string().contains("is no single server"), "{error}");
    }
    let three = || Redlock::new(["redis://a", "redis://b", "redis://c"]).unwrap();
    for prefix in ["", "a b", "a{b"] {
        let error = three().prefix(prefix).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    }
}

#[test]
fn debug_output_and_errors_contain_no_secret() {
    let urls = ["redis://user:secret@one.example", "redis://b", "redis://c"];
    let shown = format!("{:?}", Redlock::new(urls).unwrap());
    assert!(shown.contains("one.example:6379"), "{shown}");
    assert!(
        !shown.contains("secret") && !shown.contains("user"),
        "{shown}"
    );
}

#[test]
fn a_limit_above_1_is_refused_with_the_reason() {
    let three = Redlock::new(["redis://a", "redis://b", "redis://c"]).unwrap();
    let permits = Coordinator::new(three);
    assert!(!permits.capabilities().fifo);
    let error = permits.semaphore("export", 2).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    let message = error.to_string();
    assert!(
        message.contains("cannot keep a limit of 2") && message.contains("grant 3 by majority"),
        "{message}"
    );
    assert!(permits.semaphore("export", 1).is_ok());
    assert!(permits.mutex("export").is_ok());
}

#[test]
fn without_a_runtime_an_error_is_returned() {
    let a = Peer::new(
        &urls(&[])
            .into_iter()
            .chain(["redis://a", "redis://b", "redis://c"].map(String::from))
            .collect::<Vec<_>>(),
    );
    let error = futures_util::future::FutureExt::now_or_never(a.session.inspect(queue()));
    assert_eq!(error.unwrap().unwrap_err().kind(), ErrorKind::NoRuntime);
    let error = futures_util::future::FutureExt::now_or_never(a.session.check(LEASE));
    assert_eq!(error.unwrap().unwrap_err().kind(), ErrorKind::NoRuntime);
}
