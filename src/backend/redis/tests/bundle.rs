//! Calls about several names that ride together.

use super::*;
use futures_util::future::join_all;

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

fn enters(call: Call) -> Call {
    Call {
        enter: vec![1],
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
    a.enter(&[1]).await;
    server.command(&["SCRIPT", "FLUSH"]);
    server.command(&["CONFIG", "RESETSTAT"]);
    for outcome in say_all(&a, enters).await {
        let outcome = outcome.unwrap();
        assert_eq!(
            (plain(&outcome.entered), outcome.in_use),
            (HELD.to_vec(), 1)
        );
    }
    // One alone, and the others 32 at a time; and some again since the script had gone.
    assert!(scripts(&server) <= 10, "{}", scripts(&server));
    for outcome in say_all(&b, enters).await {
        assert_eq!(outcome.unwrap().entered, WAITING);
    }
    let leaves = |call| Call {
        leave: vec![7, 1],
        ..call
    };
    for outcome in say_all(&a, leaves).await {
        assert_eq!(outcome.unwrap().left, [false, true]);
    }
    for outcome in say_all(&b, enters).await {
        assert_eq!(plain(&outcome.unwrap().entered), HELD);
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
    for (number, outcome) in say_all(&a, enters).await.into_iter().enumerate() {
        match number {
            10..14 | 20 => {
                let error = outcome.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Incompatible, "{number}: {error}");
            }
            _ => assert_eq!(plain(&outcome.unwrap().entered), HELD, "{number}"),
        }
    }
}

/// Calls that are given up do not hold up those that ride with them, and two in a row make the connection anew.
#[tokio::test]
async fn a_server_that_stands_still_is_given_up_by_all() {
    let server = RedisServer::start();
    let a = Peer::new(&server.url()).lease(Duration::from_secs(1));
    a.enter(&[1]).await;
    server.pause();
    let give_up = async |number| {
        let queue = name(number);
        let call = a.session.exchange(enters(Call { queue, ..a.call() }));
        timeout(Duration::from_millis(400), call).await
    };
    // One alone, two together: the two hear of it first.
    let (alone, one, other) = tokio::join!(give_up(1), give_up(2), give_up(3));
    assert!(alone.is_err());
    for answer in [one, other] {
        assert_eq!(answer.unwrap().unwrap_err().kind(), ErrorKind::Unavailable);
    }
    server.resume();
    for number in 1..4 {
        let queue = name(number);
        let outcome = a.say(enters(Call { queue, ..a.call() })).await.unwrap();
        assert_eq!(plain(&outcome.entered), HELD);
    }
}
