//! Calls about several names in one batch.

use super::*;
use futures_util::StreamExt;

const NAMES: u64 = 100;

pub(super) fn name(number: u64) -> Queue {
    Queue::limit(format!("name {number}").as_bytes()).unwrap()
}

/// Calls of one peer about the first names.
pub(super) fn calls(peer: &Peer, count: u64, call: impl Fn(u64, Call) -> Call) -> Vec<Call> {
    let calls = (0..count).map(|number| {
        let queue = name(number);
        call(
            number,
            Call {
                queue,
                ..peer.call()
            },
        )
    });
    calls.collect()
}

/// The replies, in the order of the calls.
pub(super) async fn exchange(peer: &Peer, batch: Vec<Call>) -> Vec<Result<Reply, Error>> {
    let mut replies: Vec<_> = batch.iter().map(|_| None).collect();
    let mut stream = peer.session.exchange(batch);
    let all = async {
        while let Some((at, reply)) = stream.next().await {
            assert!(replies[at].replace(reply).is_none(), "{at} twice");
        }
    };
    timeout(HANG_GUARD, all).await.expect("replies");
    replies
        .into_iter()
        .map(|reply| reply.expect("a reply"))
        .collect()
}

fn outcome(reply: Result<Reply, Error>) -> Outcome {
    match reply {
        Ok(Reply::Done(outcome)) => outcome,
        other => panic!("{other:?}"),
    }
}

pub(super) fn acquire_1(_: u64, call: Call) -> Call {
    Call {
        acquire: vec![1],
        ..call
    }
}

fn release_1(_: u64, call: Call) -> Call {
    Call {
        release: vec![1],
        ..call
    }
}

fn stats(server: &RedisServer, command: &str) -> u64 {
    let stats = server.command(&["INFO", "commandstats"]).text();
    script::calls(&stats, command)
}

#[tokio::test]
async fn a_batch_is_one_script() {
    let server = RedisServer::start();
    let (a, b) = (Peer::new(&server.url()), Peer::new(&server.url()));
    a.acquire(&[1]).await;
    server.command(&["CONFIG", "RESETSTAT"]);
    for reply in exchange(&a, calls(&a, NAMES, acquire_1)).await {
        let outcome = outcome(reply);
        assert_eq!(
            (plain(&outcome.acquired), outcome.in_use),
            (HELD.to_vec(), 1)
        );
    }
    // A fresh name costs one write, and nothing else of its own.
    let inside = ["evalsha", "time", "mget", "set", "get", "hmget", "zcard"];
    assert_eq!(
        inside.map(|command| stats(&server, command)),
        [1, 1, 1, NAMES, 0, 0, 0]
    );
    assert!(stats(&server, "exists") < NAMES / 8);
    for reply in exchange(&b, calls(&b, NAMES, acquire_1)).await {
        assert_eq!(outcome(reply).acquired, WAITING);
    }
    let releases = |_, call| Call {
        release: vec![7, 1],
        ..call
    };
    for reply in exchange(&a, calls(&a, NAMES, releases)).await {
        assert_eq!(outcome(reply).released, [false, true]);
    }
    for reply in exchange(&b, calls(&b, NAMES, acquire_1)).await {
        assert_eq!(plain(&outcome(reply).acquired), HELD);
    }
    assert_eq!(stats(&server, "evalsha"), 4);
}

#[tokio::test]
async fn the_releases_of_a_batch_are_one_deletion() {
    let server = RedisServer::start();
    let a = Peer::new(&server.url());
    for round in 0..3 {
        exchange(&a, calls(&a, NAMES, acquire_1)).await;
        server.command(&["CONFIG", "RESETSTAT"]);
        for reply in exchange(&a, calls(&a, NAMES, release_1)).await {
            let outcome = outcome(reply);
            assert_eq!((outcome.released, outcome.in_use), (vec![true], 0));
        }
        let inside = ["evalsha", "mget", "del", "set", "exists", "get", "hmget"];
        assert_eq!(
            inside.map(|command| stats(&server, command)),
            [1, 1, 1, 2, 0, 0, 0],
            "{round}"
        );
        // The guard of the node, and the highest token: for one lease.
        let keys = server.command(&["KEYS", "*"]).list();
        assert_eq!(keys.len(), 2, "{keys:?}");
        for key in keys {
            let left = server.command(&["PTTL", &key]).int();
            assert!((1..=10_000).contains(&left), "{key}: {left}");
        }
        // Released twice: an unknown ticket.
        for reply in exchange(&a, calls(&a, NAMES, release_1)).await {
            assert_eq!(outcome(reply).released, [false]);
        }
        server.command(&["FLUSHALL"]);
    }
}

#[tokio::test]
async fn an_error_about_one_name_is_no_error_about_others() {
    let server = RedisServer::start();
    let a = Peer::new(&server.url());
    let key = |number: u64, suffix| format!("shop:limit:{{{}}}{suffix}", name(number).name());
    let bad = ["", ":queue", ":meta", ":single"];
    for (number, suffix) in bad.into_iter().enumerate() {
        server.command(&["SET", &key(number as u64 + 10, suffix), "mine"]);
    }
    server.command(&["LPUSH", &key(20, ":single"), "mine"]);
    let replies = exchange(&a, calls(&a, NAMES, acquire_1)).await;
    for (number, reply) in replies.into_iter().enumerate() {
        match number {
            10..14 | 20 => {
                let error = reply.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Incompatible, "{number}: {error}");
            }
            _ => assert_eq!(plain(&outcome(reply).acquired), HELD, "{number}"),
        }
    }
    let list = server.command(&["LRANGE", &key(20, ":single"), "0", "-1"]);
    assert_eq!(list.list(), ["mine"]);
}

/// Stale calls, long calls, calls about names of several nodes: none affects the others of its batch.
#[tokio::test]
async fn each_call_is_answered_on_its_own() {
    let server = RedisServer::start();
    let (a, b) = (Peer::new(&server.url()), Peer::new(&server.url()));
    let stale: Vec<u64> = (0..NAMES).map(|_| a.call().number).collect();
    exchange(&a, calls(&a, NAMES, acquire_1)).await;
    // Half of the names are in the general form.
    let mut others = calls(&b, NAMES, acquire_1);
    let mut number = 0..;
    others.retain(|_| number.next().unwrap() % 2 == 0);
    for reply in exchange(&b, others).await {
        assert_eq!(outcome(reply).acquired, WAITING);
    }
    let batch = calls(&a, NAMES, |number, call| match number % 6 {
        0 | 1 => Call {
            number: stale[number as usize],
            ..release_1(number, call)
        },
        2 | 3 => Call {
            release: vec![5, 6],
            renew: vec![1],
            ..call
        },
        _ => Call {
            release: vec![1, 5],
            acquire: vec![2],
            ..call
        },
    });
    for (number, reply) in exchange(&a, batch).await.into_iter().enumerate() {
        if number % 6 < 2 {
            assert_eq!(reply.unwrap(), Reply::Stale, "{number}");
            continue;
        }
        let outcome = outcome(reply);
        let states = (
            outcome.released,
            plain(&outcome.renewed),
            plain(&outcome.acquired),
        );
        let expected = match number % 6 {
            2 | 3 => (vec![false; 2], HELD.to_vec(), vec![]),
            4 => (vec![true, false], vec![], WAITING.to_vec()),
            _ => (vec![true, false], vec![], HELD.to_vec()),
        };
        assert_eq!(states, expected, "{number}");
    }
}

/// A batch that is dropped may still be executed, but only before later calls about its names.
#[tokio::test]
async fn a_dropped_batch_changes_nothing_later() {
    let server = RedisServer::start();
    let a = Peer::new(&server.url());
    a.acquire(&[1]).await;
    for _ in 0..20 {
        let mut dropped = a.session.exchange(calls(&a, 3, acquire_1));
        assert!(futures_util::poll!(dropped.next()).is_pending());
        drop(dropped);
        let released = exchange(&a, calls(&a, 3, release_1)).await;
        for reply in released {
            assert_eq!(outcome(reply).in_use, 0);
        }
        for reply in exchange(&a, calls(&a, 3, |_, call| call)).await {
            assert_eq!(outcome(reply).in_use, 0);
        }
    }
}

/// Calls without releases are sent again. Whether a ticket was held is answered only once, so that the others fail.
#[tokio::test]
async fn an_idle_connection_that_has_ended_is_replaced() {
    let server = RedisServer::start();
    let a = Peer::new(&server.url());
    a.acquire(&[1]).await;
    let end_connections = || {
        // Nothing here runs before the next call, so that the session does not know.
        for kind in ["normal", "pubsub"] {
            server.command(&["CLIENT", "KILL", "TYPE", kind]);
        }
    };
    end_connections();
    for reply in exchange(&a, calls(&a, NAMES, acquire_1)).await {
        assert_eq!(plain(&outcome(reply).acquired), HELD);
    }
    end_connections();
    let batch = calls(&a, 4, |number, call| match number % 2 {
        0 => release_1(number, call),
        _ => acquire_1(number, call),
    });
    for (number, reply) in exchange(&a, batch).await.into_iter().enumerate() {
        match number % 2 {
            0 => assert_eq!(reply.unwrap_err().kind(), ErrorKind::Unavailable),
            _ => assert_eq!(plain(&outcome(reply).acquired), HELD),
        }
    }
}

/// What was executed is answered, though another name of the batch needs a right that is missing.
#[tokio::test]
async fn a_missing_right_affects_only_names_that_need_it() {
    let server = RedisServer::start();
    let rights = format!("ACL SETUSER u reset on >secret ~shop:* &shop:* {RIGHTS}");
    server.command(&rights.split(' ').collect::<Vec<_>>());
    let (a, b) = (
        Peer::new(&server.url_of("u", "secret")),
        Peer::new(&server.url()),
    );
    for peer in [&a, &b] {
        exchange(peer, calls(peer, 2, acquire_1)).await;
    }
    server.command(&["ACL", "SETUSER", "u", "-set"]);
    let batch = calls(&a, 3, |number, call| match number {
        2 => acquire_1(number, call),
        _ => release_1(number, call),
    });
    let [first, second, fresh] = <[_; 3]>::try_from(exchange(&a, batch).await).unwrap();
    assert_eq!(fresh.unwrap_err().kind(), ErrorKind::Denied);
    assert_eq!(outcome(first).released, vec![true]);
    assert_eq!(outcome(second).released, vec![true]);
}

#[tokio::test]
async fn full_memory_permits_a_batch_to_renew_and_release() {
    let server = RedisServer::start();
    let a = Peer::new(&server.url());
    exchange(&a, calls(&a, NAMES, acquire_1)).await;
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let renews = |_, call| Call {
        renew: vec![1],
        ..call
    };
    for reply in exchange(&a, calls(&a, NAMES, renews)).await {
        assert_eq!(plain(&outcome(reply).renewed), HELD);
    }
    for reply in exchange(&a, calls(&a, NAMES, release_1)).await {
        assert_eq!(outcome(reply).released, [true]);
    }
}

/// The batch of an empty call list, and one of the most tickets that are sent together.
#[tokio::test]
async fn batches_of_all_sizes() {
    let server = RedisServer::start();
    let a = Peer::new(&server.url()).limit(1000);
    assert!(exchange(&a, Vec::new()).await.is_empty());
    let many = |_, call| Call {
        acquire: (0..4).collect(),
        ..call
    };
    for reply in exchange(&a, calls(&a, 128, many)).await {
        assert_eq!(outcome(reply).in_use, 4);
    }
    let most = |_, call| Call {
        acquire: (0..256).collect(),
        ..call
    };
    for reply in exchange(&a, calls(&a, 2, most)).await {
        assert_eq!(outcome(reply).in_use, 256);
    }
}
