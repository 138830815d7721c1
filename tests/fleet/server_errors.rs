//! Errors of a Redis server, wrong credentials, missing rights, full memory: which error callers get, and that holders keep
//! their permits.

use crate::modes;
use crate::support::logs::Logs;
use crate::support::redis::RedisServer;
use crate::{LEASE, backend, coordinator, counts, millis, until_counts, within};
use std::time::Instant;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tower_permit::{Coordinator, Error, ErrorKind, Redis};

const PASSWORD: &str = "hunter2-is-secret";

/// Returns all text that an error shows.
fn shown(error: &Error) -> String {
    let mut shown = format!("{error} {error:?} {error:#?}");
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        shown += &format!(" {error} {error:?}");
        source = error.source();
    }
    shown
}

/// Asserts that `acquire` and `try_acquire` fail at once with this kind and without the password.
async fn assert_all_fail(permits: &Coordinator, name: &str, kind: ErrorKind) {
    let semaphore = permits.semaphore(name, 2).unwrap();
    for _ in 0..2 {
        let start = Instant::now();
        let errors = [
            within(LEASE, "acquire", semaphore.acquire())
                .await
                .unwrap_err(),
            within(LEASE, "try", semaphore.try_acquire())
                .await
                .unwrap_err(),
        ];
        assert!(start.elapsed() < LEASE, "{:?}", start.elapsed());
        for error in errors {
            assert_eq!(error.kind(), kind, "{error:?}");
            assert!(!shown(&error).contains(PASSWORD), "{error:?}");
        }
    }
    let debug = format!("{permits:#?} {semaphore:#?}");
    assert!(!debug.contains(PASSWORD), "{debug}");
}

#[tokio::test]
async fn a_wrong_password_is_reported_at_once_and_never_shown() {
    let logs = Logs::capture();
    let server = RedisServer::start_with(&["--requirepass", "another"]);
    for user in ["", "default"] {
        let url = server.url_of(user, PASSWORD);
        let redis = backend(&url);
        assert!(!format!("{redis:?} {redis:#?}").contains(PASSWORD));
        let permits = modes::builder(redis).lease(LEASE).build().unwrap();
        assert_all_fail(&permits, "password", ErrorKind::Denied).await;
        let error = permits.check().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
        assert!(!shown(&error).contains(PASSWORD), "{error:?}");
        let error = permits.inspect("password").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
    }
    // No password where one is required.
    let permits = coordinator(&server.url());
    assert_all_fail(&permits, "password", ErrorKind::Denied).await;
    assert!(!logs.text().contains(PASSWORD));
    assert!(!logs.text().contains("another"));
}

#[tokio::test]
async fn a_password_is_not_shown_during_outages() {
    let logs = Logs::capture();
    let mut server = RedisServer::start();
    let user = format!(">{PASSWORD}");
    let rights = ["ACL", "SETUSER", "app", "on", &user, "~*", "&*", "+@all"];
    server.command(&rights);
    let permits = coordinator(&server.url_of("app", PASSWORD));
    let semaphore = permits.semaphore("secret", 1).unwrap();
    let held = semaphore.acquire().await.unwrap();
    server.kill();
    let error = within(LEASE, "a new caller", semaphore.acquire())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(!shown(&error).contains(PASSWORD));
    for error in [
        permits.check().await.unwrap_err(),
        permits.inspect("secret").await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(!shown(&error).contains(PASSWORD), "{error:?}");
    }
    // The server returns without that user: a configuration error, no outage.
    server.restart();
    let denied = async {
        loop {
            let error = semaphore.acquire_timeout(LEASE).await.unwrap_err();
            assert!(!shown(&error).contains(PASSWORD), "{error:?}");
            if error.kind() == ErrorKind::Denied {
                return;
            }
            tokio::time::sleep(millis(20)).await;
        }
    };
    within(2 * LEASE, "the refusal", denied).await;
    server.command(&rights);
    let works = async { while semaphore.acquire().await.is_err() {} };
    within(2 * LEASE, "the return to normal", works).await;
    drop(held);
    assert!(!logs.text().contains(PASSWORD), "{}", logs.text());
}

#[tokio::test]
async fn rights_withdrawn_and_restored_lose_no_permit() {
    let server = RedisServer::start();
    let secret = format!(">{PASSWORD}");
    server.command(&["ACL", "SETUSER", "app", "on", &secret, "~*", "&*", "+@all"]);
    let permits = coordinator(&server.url_of("app", PASSWORD));
    let semaphore = permits.semaphore("rights", 2).unwrap();
    let held = semaphore.acquire().await.unwrap();
    server.command(&["ACL", "SETUSER", "app", "-zadd"]);
    assert_all_fail(&permits, "rights", ErrorKind::Denied).await;
    let error = permits.check().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(shown(&error).to_lowercase().contains("zadd"), "{error}");
    server.command(&["ACL", "SETUSER", "app", "+zadd"]);
    let works = async { while semaphore.acquire().await.is_err() {} };
    within(LEASE, "the return to normal", works).await;
    tokio::time::sleep(LEASE * 3 / 2).await;
    assert!(held.is_valid());
    assert!(held.release().await.unwrap());
    until_counts(&permits, "rights", (0, 0), LEASE).await;
}

#[tokio::test]
async fn a_foreign_value_under_a_key_is_reported_and_kept() {
    let server = RedisServer::start();
    let permits = coordinator(&server.url());
    let other = permits.semaphore("other", 1).unwrap();
    let held = other.acquire().await.unwrap();
    for key in ["", ":queue", ":meta", ":single"] {
        let key = format!("fleet:limit:{{typed}}{key}");
        server.command(&["SET", &key, "mine"]);
        assert_all_fail(&permits, "typed", ErrorKind::Incompatible).await;
        assert_eq!(server.command(&["GET", &key]).text(), "mine");
        assert_eq!(
            server.command(&["DBSIZE"]).int(),
            2,
            "{key} and the other name"
        );
        server.command(&["DEL", &key]);
    }
    let permit = permits.semaphore("typed", 1).unwrap().acquire().await;
    assert!(permit.unwrap().release().await.unwrap());
    assert!(held.release().await.unwrap());
}

#[tokio::test]
async fn with_full_memory_permits_are_renewed_released_and_granted() {
    let server = RedisServer::start();
    let permits = coordinator(&server.url());
    let there = coordinator(&server.url());
    let semaphore = permits.semaphore("memory", 1).unwrap();
    let held = semaphore.acquire().await.unwrap();
    let waits = tokio::spawn({
        let semaphore = there.semaphore("memory", 1).unwrap();
        async move { semaphore.acquire().await }
    });
    until_counts(&permits, "memory", (1, 1), millis(1000)).await;
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let refused = server.command(&["SET", "x", "y"]);
    assert!(refused.text().contains("OOM"), "{refused:?}");
    tokio::time::sleep(LEASE * 3 / 2).await;
    assert!(held.is_valid(), "renewed");
    assert!(!waits.is_finished());
    assert!(held.release().await.unwrap());
    let next = within(LEASE, "the grant", waits).await.unwrap().unwrap();
    tokio::time::sleep(LEASE * 3 / 2).await;
    assert!(next.is_valid(), "renewed");
    // A new caller gets a result, either way, and does not hang.
    let result = semaphore.acquire_timeout(LEASE / 2);
    let result = within(LEASE, "a new caller", result).await;
    println!("a new caller with full memory: {result:?}");
    assert!(next.release().await.unwrap());
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    let permit = within(LEASE, "the return to normal", semaphore.acquire()).await;
    assert!(permit.unwrap().release().await.unwrap());
    assert_eq!(counts(&permits, "memory").await, (0, 0));
}

#[tokio::test]
async fn a_server_that_is_not_redis_is_reported() {
    for url in [
        "",
        "127.0.0.1",
        "http://user:hunter2-is-secret@localhost",
        "redis://user:hunter2-is-secret@:port",
        "redis://user:hunter2-is-secret@localhost:99999",
        "redis://:hunter2-is-secret@localhost/no-number",
    ] {
        let error = Redis::new(url).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{url}");
        assert!(!shown(&error).contains(PASSWORD), "{error:?}");
    }
    // A server with another protocol, and one that closes the connection.
    for reply in ["HTTP/1.1 400 Bad Request\r\n\r\n", ""] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let serving = tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let _ = client.read(&mut [0; 1024]).await;
                let _ = client.write_all(reply.as_bytes()).await;
            }
        });
        let permits = coordinator(&format!("redis://127.0.0.1:{port}"));
        let semaphore = permits.semaphore("strange", 1).unwrap();
        let error = within(LEASE, "a new caller", semaphore.acquire())
            .await
            .unwrap_err();
        println!("{reply:?}: {error}");
        assert!(permits.check().await.is_err());
        serving.abort();
    }
}

/// A server that supports RESP3 but no scripts.
#[tokio::test]
async fn check_reports_a_server_that_is_too_old() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let serving = tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut request = [0; 4096];
                while let Ok(length) = client.read(&mut request).await
                    && length > 0
                {
                    let request = String::from_utf8_lossy(&request[..length]).to_uppercase();
                    for word in request.split("\r\n") {
                        let reply = match word {
                            "HELLO" => {
                                "%2\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$6\r\n6.0.16\r\n"
                            }
                            "SUBSCRIBE" => ">3\r\n$9\r\nsubscribe\r\n$1\r\nx\r\n:1\r\n",
                            "EVALSHA" | "EVAL" => "-ERR unknown command\r\n",
                            _ => continue,
                        };
                        let _ = client.write_all(reply.as_bytes()).await;
                    }
                }
            });
        }
    });
    let permits = coordinator(&format!("redis://127.0.0.1:{port}"));
    let error = within(LEASE, "a check", permits.check()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible, "{error:?}");
    assert!(error.to_string().contains("6.0.16"), "{error}");
    serving.abort();
}
