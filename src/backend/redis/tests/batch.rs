//! Calls about several names that ride together.

use super::*;
use futures_util::future::{FutureExt, join_all};

const NAMES: u64 = 100;

fn name(number: u64) -> Queue {
    Queue::limit(format!("name {number}").as_bytes()).unwrap()
}

/// The same about each name, at the same moment.
async fn say_all(peer: &Peer, call: impl Fn(Call) -> Call) -> Vec<Result<Outcome, Error>> {
    let calls = (0..NAMES).map(|number| {
        let queue = name(number);
        peer.say(call(Call {
            queue,
            ..peer.call()
        }))
    });
    join_all(calls).await
}

fn acquires(call: Call) -> Call {
    Call {
        acquire: vec![1],
        ..call
    }
}

fn scripts(server: &RedisServer) -> u64 {
    let stats = server.command(&["INFO", "commandstats"]).text();
    script::calls(&stats, "evalsha")
}

#[tokio::test]
async fn what_comes_up_at_one_moment_goes_in_few_scripts() {
    let server = RedisServer::start();
    let (a, b) = (Peer::new(&server.url()), Peer::new(&server.url()));
    a.acquire(&[1]).await;
    server.command(&["SCRIPT", "FLUSH"]);
    server.command(&["CONFIG", "RESETSTAT"]);
    for outcome in say_all(&a, acquires).await {
        let outcome = outcome.unwrap();
        assert_eq!(
            (plain(&outcome.acquired), outcome.in_use),
            (HELD.to_vec(), 1)
        );
    }
    // One alone, and the others 32 at a time; and some again since the script had gone.
    assert!(scripts(&server) <= 10, "{}", scripts(&server));
    for outcome in say_all(&b, acquires).await {
        assert_eq!(outcome.unwrap().acquired, WAITING);
    }
    let releases = |call| Call {
        release: vec![7, 1],
        ..call
    };
    for outcome in say_all(&a, releases).await {
        assert_eq!(outcome.unwrap().released, [false, true]);
    }
    for outcome in say_all(&b, acquires).await {
        assert_eq!(plain(&outcome.unwrap().acquired), HELD);
    }
    assert!(scripts(&server) <= 25, "{}", scripts(&server));
}

#[tokio::test]
async fn an_error_about_one_name_is_no_error_about_others() {
    let server = RedisServer::start();
    let a = Peer::new(&server.url());
    let key = |number: u64, suffix| format!("shop:limit:{{{}}}{suffix}", name(number).name());
    let bad = ["", ":queue", ":meta", ":lone"];
    for (number, suffix) in bad.into_iter().enumerate() {
        server.command(&["SET", &key(number as u64 + 10, suffix), "mine"]);
    }
    server.command(&["LPUSH", &key(20, ":lone"), "mine"]);
    for (number, outcome) in say_all(&a, acquires).await.into_iter().enumerate() {
        match number {
            10..14 | 20 => {
                let error = outcome.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Incompatible, "{number}: {error}");
            }
            _ => assert_eq!(plain(&outcome.unwrap().acquired), HELD, "{number}"),
        }
    }
}

/// Calls that are given up do not hold up those that ride with them, and two in a row make the connection anew.
#[tokio::test]
async fn a_server_that_stands_still_is_given_up_by_all() {
    let server = RedisServer::start();
    let a = Peer::new(&server.url()).lease(Duration::from_secs(1));
    a.acquire(&[1]).await;
    server.pause();
    let give_up = async |number, after| {
        let queue = name(number);
        let call = exchange_one(&*a.session, acquires(Call { queue, ..a.call() }));
        timeout(after, call).await
    };
    // One alone, who gives up by himself, and two together, who hear of it.
    let (alone, one, other) = tokio::join!(
        give_up(1, Duration::from_millis(400)),
        give_up(2, Duration::from_secs(10)),
        give_up(3, Duration::from_secs(10)),
    );
    assert!(alone.is_err());
    for answer in [one, other] {
        assert_eq!(answer.unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
    }
    server.resume();
    for number in 1..4 {
        let queue = name(number);
        let outcome = a.say(acquires(Call { queue, ..a.call() })).await.unwrap();
        assert_eq!(plain(&outcome.acquired), HELD);
    }
}

/// Whatever else is said in the same breath: stale, long, wrong.
#[tokio::test]
async fn each_is_answered_for_itself() {
    let server = RedisServer::start();
    let (a, b) = (Peer::new(&server.url()), Peer::new(&server.url()));
    let stale: Vec<Call> = (0..NAMES).map(|_| a.call()).collect();
    for outcome in say_all(&a, acquires).await {
        assert_eq!(plain(&outcome.unwrap().acquired), HELD);
    }
    // Half of the names are nobody's own any more.
    for number in (0..NAMES).step_by(2) {
        let queue = name(number);
        let call = acquires(Call { queue, ..b.call() });
        assert_eq!(b.say(call).await.unwrap().acquired, WAITING);
    }
    let calls = stale.into_iter().zip(0..).map(|(stale, number)| {
        let queue = name(number);
        let call = a.call();
        let call = match number % 6 {
            0 | 1 => Call { queue, ..stale },
            2 | 3 => Call {
                queue,
                release: vec![5, 6],
                renew: vec![1],
                ..call
            },
            _ => Call {
                queue,
                release: vec![1, 5],
                acquire: vec![2],
                ..call
            },
        };
        exchange_one(&*a.session, call)
    });
    for (number, reply) in join_all(calls).await.into_iter().enumerate() {
        let outcome = match reply.unwrap() {
            Reply::Stale => {
                assert!(number % 6 < 2, "{number}");
                continue;
            }
            Reply::Done(outcome) => outcome,
        };
        let said = (
            outcome.released,
            plain(&outcome.renewed),
            plain(&outcome.acquired),
        );
        let expected = match number % 6 {
            2 | 3 => (vec![false; 2], HELD.to_vec(), vec![]),
            4 => (vec![true, false], vec![], WAITING.to_vec()),
            5 => (vec![true, false], vec![], HELD.to_vec()),
            _ => panic!("{number} was not stale: {said:?}"),
        };
        assert_eq!(said, expected, "{number}");
    }
}

/// Two calls about one name, the first of them given up before it went: the second one counts.
#[tokio::test]
async fn who_gives_up_takes_nobody_along() {
    let server = RedisServer::start();
    let a = Peer::new(&server.url());
    a.acquire(&[1]).await;
    let call = |number, acquire: &[u64], release: &[u64]| Call {
        queue: name(number),
        acquire: acquire.to_vec(),
        release: release.to_vec(),
        ..a.call()
    };
    for _ in 0..20 {
        let mut alone = exchange_one(&*a.session, call(0, &[], &[])).boxed();
        let mut first = exchange_one(&*a.session, call(1, &[1], &[])).boxed();
        let mut second = exchange_one(&*a.session, call(2, &[1], &[])).boxed();
        for given_up in [&mut alone, &mut first, &mut second] {
            assert!(futures_util::poll!(given_up).is_pending());
        }
        drop(first);
        let last = exchange_one(&*a.session, call(1, &[], &[1]));
        drop(alone);
        let (last, second) = tokio::join!(last, second);
        let Ok(Reply::Done(last)) = last else {
            panic!("{last:?}");
        };
        assert_eq!(last.in_use, 0);
        assert!(second.is_ok(), "{second:?}");
        // Nor does it come after that.
        let after = a.say(call(1, &[], &[])).await.unwrap();
        assert_eq!(after.in_use, 0);
    }
}

/// Those who were to go from there hear of its end, and those elsewhere do not wait for it.
#[test]
fn a_runtime_that_ends_or_stands_still_holds_up_nobody_elsewhere() {
    let server = RedisServer::start();
    let here = tokio::runtime::Runtime::new().unwrap();
    let a = Peer::new(&server.url());
    here.block_on(a.acquire(&[1]));
    let call = |number| {
        let queue = name(number);
        acquires(Call { queue, ..a.call() })
    };
    for ends in [false, true] {
        let mut there = tokio::runtime::Builder::new_current_thread();
        let there = there.enable_all().build().unwrap();
        let (mut alone, mut rider) = (
            exchange_one(&*a.session, call(1)).boxed(),
            exchange_one(&*a.session, call(2)).boxed(),
        );
        server.pause();
        there.block_on(async {
            assert!(futures_util::poll!(&mut alone).is_pending());
            assert!(futures_util::poll!(&mut rider).is_pending());
        });
        server.resume();
        let still = if ends {
            drop(there);
            let error = here.block_on(rider).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            None
        } else {
            Some((there, rider))
        };
        for _ in 0..2 {
            let start = Instant::now();
            let outcomes = here.block_on(say_all(&a, acquires));
            assert!(start.elapsed() < Duration::from_secs(1));
            for outcome in outcomes {
                assert_eq!(plain(&outcome.unwrap().acquired), HELD);
            }
        }
        // What it says in the end is late.
        if let Some((there, rider)) = still {
            let reply = there.block_on(async { timeout(Duration::from_secs(5), rider).await });
            assert_eq!(reply.unwrap().unwrap(), Reply::Stale);
        }
        drop(alone);
    }
}

/// As for one call: an idle connection often shows only now that it has ended.
#[tokio::test]
async fn an_idle_connection_that_has_ended_goes_unnoticed_by_all() {
    let server = RedisServer::start();
    let a = Peer::new(&server.url());
    a.acquire(&[1]).await;
    let kill = ["CLIENT", "KILL", "TYPE", "normal"];
    let subscribed = ["CLIENT", "KILL", "TYPE", "pubsub"];
    for kill in [kill, subscribed] {
        server.command(&kill);
    }
    // Nothing of ours has run since: nobody here knows yet.
    for (number, outcome) in say_all(&a, acquires).await.into_iter().enumerate() {
        match outcome {
            Ok(outcome) => assert_eq!(plain(&outcome.acquired), HELD, "{number}"),
            Err(error) => panic!("{number}: {error}"),
        }
    }
}

/// What was carried out is answered, though another name of the bundle needs a right that is missing.
#[tokio::test]
async fn a_missing_right_hits_only_those_who_need_it() {
    let server = RedisServer::start();
    let rights = format!("ACL SETUSER u reset on >secret ~shop:* &shop:* {RIGHTS}");
    server.command(&rights.split(' ').collect::<Vec<_>>());
    let (a, b) = (
        Peer::new(&server.url_of("u", "secret")),
        Peer::new(&server.url()),
    );
    for number in 0..2 {
        for peer in [&a, &b] {
            let queue = name(number);
            let call = acquires(Call {
                queue,
                ..peer.call()
            });
            peer.say(call).await.unwrap();
        }
    }
    server.command(&["ACL", "SETUSER", "u", "-set"]);
    let calls = (0..3).map(|number| {
        let call = Call {
            queue: name(number),
            ..a.call()
        };
        let release = vec![1];
        a.say(match number {
            2 => acquires(call),
            _ => Call { release, ..call },
        })
    });
    let [alone, shared, lone] = <[_; 3]>::try_from(join_all(calls).await).unwrap();
    assert_eq!(lone.unwrap_err().kind(), ErrorKind::Denied);
    assert_eq!(alone.unwrap().released, vec![true]);
    assert_eq!(shared.unwrap().released, vec![true]);
}
