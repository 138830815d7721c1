//! Records with an unknown format version: refused with an error, and not changed.

use super::batch::{acquire_1, calls, exchange, name};
use super::*;

/// Appends a byte to a record.
const APPEND: &str = "return record .. 'x'";
/// Raises the format version of a record.
const RAISE: &str = "return string.char(string.byte(record) + 1) .. string.sub(record, 2)";

/// Changes a string, or a field of a hash.
fn tamper(server: &RedisServer, key: &str, field: Option<&str>, change: &str) {
    let script = format!(
        "local function change(record) {change} end
         if ARGV[1] then
           return redis.call('HSET', KEYS[1], ARGV[1], change(redis.call('HGET', KEYS[1], ARGV[1])))
         end
         return redis.call('SET', KEYS[1], change(redis.call('GET', KEYS[1])), 'KEEPTTL')"
    );
    let mut command = vec!["EVAL", script.as_str(), "1", key];
    command.extend(field);
    let answer = server.command(&command);
    assert!(!format!("{answer:?}").contains("Error"), "{answer:?}");
}

/// Every key with its content, to see whether anything was changed.
fn dump(server: &RedisServer) -> Vec<String> {
    let mut keys = server.command(&["KEYS", "*"]).list();
    keys.sort();
    let content = |key: String| {
        let script = "return redis.sha1hex(redis.call('DUMP', KEYS[1]))";
        let hash = server.command(&["EVAL", script, "1", &key]).text();
        format!("{key} {hash}")
    };
    keys.into_iter().map(content).collect()
}

fn assert_incompatible(error: &Error, parts: &[&str]) {
    assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
    for part in parts {
        assert!(error.to_string().contains(part), "{part}: {error}");
    }
}

/// The ticket of a node with an unknown record stays queued, and calls that need the record fail.
#[tokio::test]
async fn a_record_of_another_node_is_refused_and_its_ticket_stays_queued() {
    for change in [APPEND, RAISE] {
        let server = RedisServer::start();
        let (a, b, c) = (
            Peer::new(&server.url()),
            Peer::new(&server.url()),
            Peer::new(&server.url()),
        );
        let [_, queue_key, meta, _] = keys();
        a.acquire(&[1]).await;
        b.acquire(&[7]).await;
        tamper(&server, meta, Some(b.node.as_str()), change);
        let before = dump(&server);
        let parts = ["limit:{llm}:meta", b.node.as_str(), "format version"];
        assert_incompatible(&c.try_acquire_tickets(&[1]).await.unwrap_err(), &parts);
        let release = Call {
            release: vec![1],
            ..a.call()
        };
        assert_incompatible(&a.send(release).await.unwrap_err(), &parts);
        let renew = Call {
            renew: vec![1],
            ..a.call()
        };
        assert_incompatible(&a.send(renew).await.unwrap_err(), &parts);
        let inspection = a.session.inspect(queue()).await;
        assert_incompatible(&inspection.unwrap_err(), &parts);
        let eviction = a.session.evict(queue(), b.node.ticket(7)).await;
        assert_incompatible(&eviction.unwrap_err(), &parts);
        assert_eq!(dump(&server), before);
        let queued = server.command(&["ZRANGE", queue_key, "0", "-1"]).list();
        assert_eq!(queued, [b.node.ticket(7)]);
    }
}

/// Nodes are forgotten once a longest lease: never one with an unknown record.
#[tokio::test]
async fn a_sweep_drops_no_unknown_record() {
    let server = RedisServer::start();
    let lease = Duration::from_millis(300);
    let (a, b) = (
        Peer::new(&server.url()).limit(2).lease(lease),
        Peer::new(&server.url()).limit(2).lease(lease),
    );
    let [_, _, meta, _] = keys();
    a.acquire(&[1]).await;
    b.acquire(&[7]).await;
    b.release(&[7]).await;
    tamper(&server, meta, Some(b.node.as_str()), APPEND);
    let mut refused = None;
    for _ in 0..12 {
        sleep(lease / 4).await;
        let renew = Call {
            renew: vec![1],
            ..a.call()
        };
        if let Err(error) = a.send(renew).await {
            refused = Some(error);
            break;
        }
    }
    assert_incompatible(&refused.expect("an error"), &[b.node.as_str()]);
    assert_eq!(server.command(&["HEXISTS", meta, b.node.as_str()]).int(), 1);
}

#[tokio::test]
async fn unknown_records_of_the_caller_and_of_the_state_are_refused() {
    for change in [APPEND, RAISE] {
        let server = RedisServer::start();
        let (a, b) = (Peer::new(&server.url()), Peer::new(&server.url()));
        let [_, _, meta, _] = keys();
        a.acquire(&[1]).await;
        b.acquire(&[7]).await;
        for field in [a.node.as_str(), "state"] {
            tamper(&server, meta, Some(field), change);
            let before = dump(&server);
            let release = Call {
                release: vec![1],
                ..a.call()
            };
            assert_incompatible(&a.send(release).await.unwrap_err(), &[meta, field]);
            let inspection = b.session.inspect(queue()).await;
            assert_incompatible(&inspection.unwrap_err(), &[meta, field]);
            assert_eq!(dump(&server), before);
        }
    }
}

#[tokio::test]
async fn a_single_holder_record_is_refused() {
    for change in [APPEND, RAISE] {
        let server = RedisServer::start();
        let (a, b) = (Peer::new(&server.url()), Peer::new(&server.url()));
        let [.., single] = keys();
        a.acquire(&[1]).await;
        tamper(&server, single, None, change);
        let before = dump(&server);
        for peer in [&a, &b] {
            let error = peer.try_acquire_tickets(&[1]).await.unwrap_err();
            assert_incompatible(&error, &[single, "format version"]);
            let inspection = peer.session.inspect(queue()).await;
            assert_incompatible(&inspection.unwrap_err(), &[single]);
            let eviction = peer.session.evict(queue(), a.node.ticket(1)).await;
            assert_incompatible(&eviction.unwrap_err(), &[single]);
        }
        assert_eq!(dump(&server), before);
    }
}

/// One name of a batch is refused, in either form; the others are served.
#[tokio::test]
async fn an_unknown_record_affects_no_other_name_of_a_batch() {
    for change in [APPEND, RAISE] {
        let server = RedisServer::start();
        let (a, b) = (Peer::new(&server.url()), Peer::new(&server.url()));
        exchange(&a, calls(&a, 8, acquire_1)).await;
        // Names 0 to 3 are in the general form, with a queued ticket each.
        exchange(&b, calls(&b, 4, acquire_1)).await;
        let key = |number: u64, suffix| format!("shop:limit:{{{}}}{suffix}", name(number).name());
        let [.., suffix] = keys().map(|key| key.trim_start_matches("shop:limit:{llm}"));
        tamper(&server, &key(2, ":meta"), Some(b.node.as_str()), change);
        tamper(&server, &key(5, suffix), None, change);
        for number in [2, 5] {
            let before = dump(&server).len();
            let replies = exchange(&a, calls(&a, 8, acquire_1)).await;
            for (at, reply) in (0..).zip(replies) {
                match (at, reply) {
                    (2 | 5, reply) => {
                        let parts = [&*format!("{{{}}}", name(at).name()), "format version"];
                        assert_incompatible(&reply.unwrap_err(), &parts);
                    }
                    (_, reply) => assert!(matches!(reply, Ok(Reply::Done(_))), "{at}: {reply:?}"),
                }
            }
            assert_eq!(dump(&server).len(), before, "{number}");
        }
        let queued = server.command(&["ZRANGE", &key(2, ":queue"), "0", "-1"]);
        assert_eq!(queued.list(), [b.node.ticket(1)]);
    }
}

/// The keys of a node and of all names that protect against late calls and falling tokens.
#[tokio::test]
async fn guard_and_token_are_refused() {
    for change in [APPEND, RAISE] {
        let server = RedisServer::start();
        let a = Peer::new(&server.url());
        exchange(&a, calls(&a, 4, acquire_1)).await;
        let release = |_, call| Call {
            release: vec![1],
            ..call
        };
        exchange(&a, calls(&a, 4, release)).await;
        for key in [
            format!("shop:guard:{}", a.node.as_str()),
            "shop:token".to_owned(),
        ] {
            tamper(&server, &key, None, change);
            let before = dump(&server);
            for count in [1, 4] {
                for reply in exchange(&a, calls(&a, count, acquire_1)).await {
                    assert_incompatible(&reply.unwrap_err(), &[&key, "format version"]);
                }
            }
            assert_eq!(dump(&server), before);
            server.command(&["DEL", &key]);
        }
    }
}
