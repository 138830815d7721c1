//! What is particular to Redis. The rules that hold for every backend are in `tests/conformance`.

mod clock;

use super::*;
use crate::backend::support::redis::{Answer, RedisServer};
use crate::backend::{Event, Grant};
use redis::aio::MultiplexedConnection;
use std::sync::atomic::AtomicU64;
use std::time::Instant;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

const LEASE: Duration = Duration::from_secs(10);
const HELD: &[State] = &[State::Held { token: 0 }];
const WAITING: &[State] = &[State::Waiting];
const RIGHTS: &str = "+eval +evalsha +time +zadd +zrem +zcard +zcount +zrange +zmscore +zremrangebyscore +hmget \
                      +hset +hdel +hgetall +pexpire +publish +subscribe";

/// One node, as a gate would use it.
struct Peer {
    session: Arc<dyn Session>,
    events: mpsc::UnboundedReceiver<Event>,
    node: Node,
    number: AtomicU64,
    lease: Duration,
    limit: u32,
}

impl Peer {
    fn new(url: &str) -> Self {
        Self::of(Redis::new(url).unwrap().prefix("shop").unwrap())
    }

    fn of(backend: Redis) -> Self {
        let (sender, events) = mpsc::unbounded_channel();
        let node = Node::of_this_process();
        let sink = Events::new(move |event| {
            let _ = sender.send(event);
        });
        Self {
            session: Open::open(backend, node.clone(), sink),
            events,
            node,
            number: AtomicU64::new(1),
            lease: LEASE,
            limit: 1,
        }
    }

    fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    fn limit(mut self, limit: u32) -> Self {
        self.limit = limit;
        self
    }

    fn call(&self) -> Call {
        Call {
            queue: queue(),
            number: self.number.fetch_add(1, Ordering::Relaxed),
            limit: self.limit,
            lease: self.lease,
            leave: Vec::new(),
            keep: Vec::new(),
            enter: Vec::new(),
            try_enter: Vec::new(),
        }
    }

    async fn say(&self, call: Call) -> Result<Outcome, Error> {
        match timeout(Duration::from_secs(5), self.session.exchange(call)).await {
            Ok(Ok(Reply::Done(outcome))) => Ok(outcome),
            Ok(Ok(Reply::Stale)) => panic!("stale"),
            Ok(Err(error)) => Err(error),
            Err(_) => panic!("no answer"),
        }
    }

    async fn enter(&self, tickets: &[u64]) -> Outcome {
        self.try_to_enter(tickets).await.unwrap()
    }

    async fn try_to_enter(&self, tickets: &[u64]) -> Result<Outcome, Error> {
        self.say(Call {
            enter: tickets.to_vec(),
            ..self.call()
        })
        .await
    }

    async fn keep(&self, tickets: &[u64]) -> Outcome {
        let keep = tickets.to_vec();
        self.say(Call {
            keep,
            ..self.call()
        })
        .await
        .unwrap()
    }

    async fn leave(&self, tickets: &[u64]) -> Outcome {
        let leave = tickets.to_vec();
        self.say(Call {
            leave,
            ..self.call()
        })
        .await
        .unwrap()
    }

    /// Gives up at once, as a gate does when an answer takes too long.
    async fn give_up(&self) {
        let call = self.session.exchange(self.call());
        assert!(timeout(Duration::from_millis(50), call).await.is_err());
    }

    async fn granted(&mut self) -> Grant {
        let next = async {
            loop {
                match self.events.recv().await {
                    Some(Event::Granted { grant, .. }) => return grant,
                    Some(Event::Resync) => {}
                    None => panic!("no more events"),
                }
            }
        };
        timeout(Duration::from_secs(5), next)
            .await
            .expect("a grant")
    }

    async fn resynced(&mut self) {
        let next = async { while self.events.recv().await != Some(Event::Resync) {} };
        timeout(Duration::from_secs(5), next)
            .await
            .expect("a resync");
    }
}

fn queue() -> Queue {
    Queue::limit(b"llm").unwrap()
}

fn keys() -> [&'static str; 3] {
    [
        "shop:limit:{llm}",
        "shop:limit:{llm}:queue",
        "shop:limit:{llm}:meta",
    ]
}

/// States with their tokens set to 0.
fn plain(states: &[State]) -> Vec<State> {
    let plain = |state: &State| match state {
        State::Held { .. } => State::Held { token: 0 },
        other => *other,
    };
    states.iter().map(plain).collect()
}

fn token(states: &[State]) -> u64 {
    match states {
        [State::Held { token }] => *token,
        other => panic!("{other:?} holds nothing"),
    }
}

// === The builder ===

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
        "redis://:secret@0.0.0.0",
        "redis://u:secret@",
        "rediss://u:secret@h",
    ] {
        let error = Redis::new(bad).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{bad}");
        assert!(
            !format!("{error} {error:?}").contains("secret"),
            "{error:?}"
        );
    }
    assert!(
        Redis::new("rediss://h")
            .unwrap_err()
            .to_string()
            .contains("TLS")
    );
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
fn nothing_secret_is_shown() {
    let redis = Redis::new("redis://user:secret@host.example:6380/2").unwrap();
    let shown = format!("{redis:?}");
    assert!(shown.contains("host.example:6380"), "{shown}");
    assert!(
        !shown.contains("secret") && !shown.contains("user"),
        "{shown}"
    );
}

// === The script ===

#[tokio::test]
async fn grants_queues_and_hands_on() {
    let server = RedisServer::start();
    let (a, mut b) = (Peer::new(&server.url()), Peer::new(&server.url()));
    let first = a.enter(&[1]).await;
    assert_eq!(plain(&first.entered), HELD);
    assert_eq!(
        (first.in_use, first.waiting, first.look_again),
        (1, 0, None)
    );

    let second = b.enter(&[7]).await;
    assert_eq!(second.entered, WAITING);
    assert_eq!((second.in_use, second.waiting), (1, 1));
    let look_again = second.look_again.unwrap();
    assert!(
        look_again > Duration::ZERO && look_again < LEASE / 2,
        "{look_again:?}"
    );
    // Only those who wait are asked to look again, and nobody passes the queue.
    let tried = a
        .say(Call {
            try_enter: vec![2],
            ..a.call()
        })
        .await
        .unwrap();
    assert_eq!(
        (tried.tried, tried.look_again),
        (vec![State::Refused], None)
    );

    let left = a.leave(&[1, 99]).await;
    assert_eq!(
        (left.left, left.in_use, left.waiting),
        (vec![true, false], 1, 0)
    );
    let grant = b.granted().await;
    assert_eq!(grant.ticket, 7);
    assert!(grant.token > token(&first.entered));
    let kept = b.keep(&[7]).await;
    assert_eq!(kept.kept, vec![State::Held { token: grant.token }]);
    assert_eq!(kept.look_again, None);
}

#[tokio::test]
async fn own_grants_come_with_the_reply() {
    let server = RedisServer::start();
    let a = Peer::new(&server.url()).limit(2);
    let entered = a.enter(&[1, 2, 3, 4, 5]).await.entered;
    assert_eq!(
        plain(&entered),
        [HELD, HELD, WAITING, WAITING, WAITING].concat()
    );
    // A place is not a permit, and cannot be kept.
    assert_eq!(a.keep(&[3]).await.kept, vec![State::Gone]);
    let left = a.leave(&[4, 2, 1]).await;
    let tickets: Vec<u64> = left.granted.iter().map(|grant| grant.ticket).collect();
    assert_eq!((tickets, left.left), (vec![3, 5], vec![false, true, true]));
    assert!(left.granted[0].token < left.granted[1].token);
    assert_eq!((left.in_use, left.waiting), (2, 0));
    // Named or not.
    a.enter(&[6]).await;
    let call = Call {
        leave: vec![3],
        enter: vec![6],
        ..a.call()
    };
    let both = a.say(call).await.unwrap();
    assert_eq!(plain(&both.entered), HELD);
    assert_eq!(both.granted.len(), 1);
}

#[tokio::test]
async fn a_late_call_changes_nothing() {
    let server = RedisServer::start();
    let a = Peer::new(&server.url());
    let late = Call {
        enter: vec![1],
        ..a.call()
    };
    a.leave(&[1]).await;
    assert_eq!(a.session.exchange(late).await.unwrap(), Reply::Stale);
    let same = Call {
        enter: vec![2],
        ..a.call()
    };
    let first = a.say(same.clone()).await.unwrap();
    let again = a.say(same).await.unwrap();
    assert_eq!(first.entered, again.entered);
    assert_eq!(again.in_use, 1);
}

#[tokio::test]
async fn a_full_call_is_carried_out() {
    let server = RedisServer::start();
    let a = Peer::new(&server.url()).limit(100);
    let tickets: Vec<u64> = (1..=256).collect();
    let entered = a.enter(&tickets).await;
    assert_eq!((entered.in_use, entered.waiting), (100, 156));
    assert_eq!(
        a.keep(&tickets)
            .await
            .kept
            .iter()
            .filter(|s| **s == State::Gone)
            .count(),
        156
    );
    let left = a.leave(&tickets).await;
    assert_eq!((left.in_use, left.waiting, left.granted.len()), (0, 0, 0));
    // As many are granted by one call as fit into one, and the next follows at once.
    let b = Peer::new(&server.url());
    b.enter(&[1]).await;
    for start in [1000, 2000] {
        b.enter(&(start..start + 256).collect::<Vec<_>>()).await;
    }
    let b = b.limit(1000);
    let first = b.leave(&[1]).await;
    assert_eq!((first.granted.len(), first.waiting), (256, 256));
    assert_eq!(first.look_again, Some(Duration::from_millis(1)));
    assert_eq!(b.keep(&[]).await.granted.len(), 256);
}

#[tokio::test]
async fn survives_script_flush() {
    let server = RedisServer::start();
    let a = Peer::new(&server.url());
    for ticket in 1..20 {
        server.command(&["SCRIPT", "FLUSH"]);
        assert_eq!(plain(&a.enter(&[ticket]).await.entered), HELD);
        server.command(&["SCRIPT", "FLUSH"]);
        a.leave(&[ticket]).await;
    }
}

#[tokio::test]
async fn something_else_under_a_key_is_said_and_left_alone() {
    for key in keys() {
        let server = RedisServer::start();
        server.command(&["SET", key, "mine"]);
        let a = Peer::new(&server.url());
        let error = a.try_to_enter(&[1, 2]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Incompatible, "{key}: {error}");
        assert!(error.to_string().contains("prefix"), "{error}");
        assert_eq!(server.command(&["DBSIZE"]).int(), 1, "{key}");
        assert_eq!(server.command(&["GET", key]).text(), "mine");
    }
    // Also when it comes later.
    let server = RedisServer::start();
    let a = Peer::new(&server.url());
    a.enter(&[1]).await;
    server.command(&["SET", keys()[1], "mine"]);
    let error = a.try_to_enter(&[2]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
    assert_eq!(server.command(&["ZCARD", keys()[0]]).int(), 1);
    // What is no state of ours.
    server.command(&["HSET", keys()[2], "state", "x"]);
    let error = a.try_to_enter(&[2]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
}

#[tokio::test]
async fn full_memory_lets_permits_be_kept_and_left() {
    let server = RedisServer::start();
    let (a, mut b) = (Peer::new(&server.url()), Peer::new(&server.url()));
    a.enter(&[1]).await;
    b.enter(&[2]).await;
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    assert!(server.command(&["SET", "x", "y"]).text().starts_with("OOM"));
    assert_eq!(plain(&a.keep(&[1]).await.kept), HELD);
    assert_eq!(a.leave(&[1]).await.left, vec![true]);
    assert_eq!(b.granted().await.ticket, 2);
    assert_eq!(b.leave(&[2]).await.left, vec![true]);
    server.command(&["SCRIPT", "FLUSH"]);
    assert_eq!(plain(&a.enter(&[3]).await.entered), HELD);
}

#[tokio::test]
async fn an_idle_name_leaves_nothing() {
    let server = RedisServer::start();
    let lease = Duration::from_secs(1);
    let (a, b) = (
        Peer::new(&server.url()).lease(lease),
        Peer::new(&server.url()).lease(lease),
    );
    let left = |key: &str| server.command(&["PTTL", key]).int();
    let [permits, queue, meta] = keys();
    a.enter(&[1]).await;
    assert!(left(permits) > 3_600_000 && left(meta) > 3_600_000);
    b.enter(&[2]).await;
    assert!(left(queue) > 3_600_000);
    a.leave(&[1]).await;
    assert_eq!(left(queue), -2);
    assert!(left(permits) > 3_600_000, "made anew, with its expiry");
    server.command(&["PEXPIRE", permits, "5000000"]);
    b.keep(&[2]).await;
    assert!(left(permits) > 4_900_000, "never shrinks");
    b.leave(&[2]).await;
    assert_eq!(left(permits), -2);
    assert!((1..=1000).contains(&left(meta)), "{}", left(meta));
    a.enter(&[3]).await;
    assert!(left(permits) > 3_600_000 && left(meta) > 3_600_000);
    a.leave(&[3]).await;
    sleep(Duration::from_millis(1100)).await;
    assert_eq!(server.command(&["DBSIZE"]).int(), 0);
}

#[tokio::test]
async fn tokens_increase_across_a_flush() {
    let mut server = RedisServer::start();
    let a = Peer::new(&server.url());
    let mut last = 0;
    for ticket in 1..30 {
        match ticket {
            10 => drop(server.command(&["FLUSHALL"])),
            20 => server.restart(),
            _ => {}
        }
        let token = token(&a.enter(&[ticket]).await.entered);
        assert!(token > last && token < 1 << 53, "{token} after {last}");
        last = token;
        a.leave(&[ticket]).await;
    }
}

#[tokio::test]
async fn a_stall_takes_nothing_from_the_living() {
    let server = RedisServer::start();
    let lease = Duration::from_millis(600);
    let (a, b) = (
        Peer::new(&server.url()).lease(lease),
        Peer::new(&server.url()).lease(lease),
    );
    let dead = Peer::new(&server.url()).lease(lease).limit(2);
    a.enter(&[1]).await;
    dead.enter(&[5]).await;
    assert_eq!(b.enter(&[2]).await.entered, WAITING);
    server.pause();
    sleep(lease * 2).await;
    server.resume();
    // The first to call is not the holder: it must not get in, nor lose its place.
    assert_eq!(b.enter(&[2]).await.entered, WAITING);
    assert_eq!(plain(&a.keep(&[1]).await.kept), HELD);
    for _ in 0..4 {
        sleep(lease / 6).await;
        assert_eq!(b.enter(&[2]).await.entered, WAITING);
        assert_eq!(plain(&a.keep(&[1]).await.kept), HELD);
    }
    // The dead one has gone meanwhile.
    let seen = b.session.inspect(queue()).await.unwrap();
    assert_eq!((seen.in_use, seen.waiting), (1, 1));
    assert_eq!(server.command(&["ZCARD", keys()[0]]).int(), 1);
}

#[tokio::test]
async fn the_dead_go_after_a_lease() {
    let server = RedisServer::start();
    let lease = Duration::from_millis(500);
    let holder = Peer::new(&server.url()).lease(lease);
    let waiter = Peer::new(&server.url()).lease(lease);
    let mut b = Peer::new(&server.url()).lease(lease);
    holder.enter(&[1]).await;
    waiter.enter(&[1, 2, 3]).await;
    let start = Instant::now();
    let mut outcome = b.enter(&[9]).await;
    while outcome.entered == WAITING {
        sleep(outcome.look_again.unwrap()).await;
        outcome = b.enter(&[9]).await;
    }
    let took = start.elapsed();
    assert!(
        took > lease - Duration::from_millis(50) && took < lease * 2,
        "{took:?}"
    );
    assert_eq!((outcome.in_use, outcome.waiting), (1, 0));
    // What is forgotten leaves no trace in meta either.
    for _ in 0..12 {
        sleep(lease / 5).await;
        b.keep(&[9]).await;
    }
    assert_eq!(server.command(&["HLEN", keys()[2]]).int(), 2);
    assert!(b.events.try_recv().is_ok());
}

/// A gap that endangers short leases only does not keep the dead for half of a long one.
#[tokio::test]
async fn a_long_lease_beside_a_short_one() {
    let server = RedisServer::start();
    let short = Duration::from_millis(300);
    let long = Peer::new(&server.url())
        .limit(2)
        .lease(Duration::from_secs(60));
    long.enter(&[1]).await;
    let dead = Peer::new(&server.url()).limit(2).lease(short);
    dead.enter(&[1]).await;
    // Seldom enough for each call to come after a gap.
    for _ in 0..4 {
        sleep(short).await;
        long.enter(&[2]).await;
    }
    let kept = long.keep(&[1, 2]).await;
    assert_eq!(plain(&kept.kept), [HELD, HELD].concat());
}

/// Whatever is said in whatever order comes out as it would with a plain queue.
#[tokio::test]
async fn random_calls_match_a_plain_queue() {
    let server = RedisServer::start();
    let mut peers: Vec<Peer> = (0..3).map(|_| Peer::new(&server.url())).collect();
    for peer in &peers {
        peer.keep(&[]).await;
    }
    let (mut holders, mut line) = (Vec::<(usize, u64)>::new(), Vec::<(usize, u64)>::new());
    let mut limits = [1; 3];
    let mut expected = vec![Vec::new(); 3];
    let mut last_token = 0;
    for step in 0..3000 {
        let who = rand::random_range(0..3);
        if rand::random_ratio(1, 8) {
            limits[who] = rand::random_range(1..5);
        }
        peers[who].limit = limits[who];
        let pick = |most: usize| -> Vec<u64> {
            let count = rand::random_range(0..=most);
            (0..count)
                .map(|_| rand::random_range(0..12))
                .collect::<std::collections::BTreeSet<_>>()
                .into_iter()
                .collect()
        };
        let (leave, keep) = (pick(3), pick(3));
        let mut wanted = pick(4);
        let try_enter = wanted.split_off(rand::random_range(0..=wanted.len()));
        let call = Call {
            leave,
            keep,
            enter: wanted,
            try_enter,
            ..peers[who].call()
        };

        let mut outcome = Outcome::default();
        for ticket in &call.leave {
            outcome.left.push(holders.contains(&(who, *ticket)));
            holders.retain(|held| *held != (who, *ticket));
            line.retain(|place| *place != (who, *ticket));
        }
        for ticket in &call.keep {
            let held = holders.contains(&(who, *ticket));
            outcome.kept.push(if held { HELD[0] } else { State::Gone });
        }
        let mut own = Vec::new();
        while let Some(head) = line.first().copied() {
            if holders.len() >= limits[head.0] as usize {
                break;
            }
            line.remove(0);
            holders.push(head);
            if head.0 == who {
                own.push(head.1)
            } else {
                expected[head.0].push(head.1)
            }
        }
        let tried = call.try_enter.iter().map(|ticket| (ticket, false));
        for (ticket, queues) in call.enter.iter().map(|ticket| (ticket, true)).chain(tried) {
            let ticket = (who, *ticket);
            let state = if holders.contains(&ticket) {
                HELD[0]
            } else if line.contains(&ticket) {
                State::Waiting
            } else if line.is_empty() && holders.len() < limits[who] as usize {
                holders.push(ticket);
                HELD[0]
            } else if queues {
                line.push(ticket);
                State::Waiting
            } else {
                State::Refused
            };
            if queues {
                outcome.entered.push(state)
            } else {
                outcome.tried.push(state)
            }
        }
        let said = format!("step {step}: {call:?}");
        let answer = peers[who].say(call).await.unwrap();
        assert_eq!(answer.left, outcome.left, "{said}");
        assert_eq!(plain(&answer.kept), outcome.kept, "{said}");
        assert_eq!(plain(&answer.entered), outcome.entered, "{said}");
        assert_eq!(plain(&answer.tried), outcome.tried, "{said}");
        assert_eq!(
            (answer.in_use, answer.waiting),
            (holders.len() as u64, line.len() as u64),
            "{said}"
        );
        assert_eq!(
            answer
                .granted
                .iter()
                .map(|grant| grant.ticket)
                .collect::<Vec<_>>(),
            own,
            "{said}"
        );
        assert_eq!(
            answer.look_again.is_some(),
            line.iter().any(|place| place.0 == who),
            "{said}"
        );
        for grant in &answer.granted {
            assert!(grant.token > last_token, "{said}");
            last_token = grant.token;
        }
        for (peer, expected) in peers.iter_mut().zip(&mut expected) {
            for ticket in expected.drain(..) {
                assert_eq!(peer.granted().await.ticket, ticket, "{said}");
            }
        }
        if rand::random_ratio(1, 20) && !(holders.is_empty() && line.is_empty()) {
            let (node, ticket) = *holders.iter().chain(&line).next_back().unwrap();
            let name = peers[node].node.ticket(ticket);
            assert!(
                peers[who].session.evict(queue(), name).await.unwrap(),
                "{said}"
            );
            holders.retain(|held| *held != (node, ticket));
            line.retain(|place| *place != (node, ticket));
            while let Some(head) = line.first().copied() {
                if holders.len() >= limits[head.0] as usize {
                    break;
                }
                line.remove(0);
                holders.push(head);
                assert_eq!(peers[head.0].granted().await.ticket, head.1, "{said}");
            }
        }
    }
}

#[tokio::test]
async fn inspect_and_evict() {
    let server = RedisServer::start();
    let (a, mut b) = (Peer::new(&server.url()), Peer::new(&server.url()));
    assert_eq!(
        a.session.inspect(queue()).await.unwrap(),
        Inspection::default()
    );
    assert!(!a.session.evict(queue(), "nobody-1".into()).await.unwrap());
    assert_eq!(server.command(&["DBSIZE"]).int(), 0);
    a.enter(&[1]).await;
    b.enter(&[2, 3]).await;
    let seen = a.session.inspect(queue()).await.unwrap();
    assert_eq!((seen.in_use, seen.waiting), (1, 2));
    assert_eq!(seen.holders[0].ticket, a.node.ticket(1));
    assert_eq!(seen.holders[0].node, a.node.as_str());
    assert!(seen.holders[0].lease_left > LEASE / 2 && seen.holders[0].lease_left <= LEASE);
    assert_eq!(seen.waiters[1].ticket, b.node.ticket(3));
    assert!(a.session.evict(queue(), b.node.ticket(3)).await.unwrap());
    assert!(a.session.evict(queue(), a.node.ticket(1)).await.unwrap());
    assert!(!a.session.evict(queue(), a.node.ticket(1)).await.unwrap());
    assert_eq!(b.granted().await.ticket, 2);
    assert_eq!(a.keep(&[1]).await.kept, vec![State::Gone]);
    let kept = b.keep(&[2]).await;
    assert_eq!(
        (plain(&kept.kept), kept.waiting, kept.look_again),
        (HELD.to_vec(), 0, None)
    );
}

// === Rights ===

fn user(server: &RedisServer, rights: &str) -> String {
    let mut words = vec!["ACL", "SETUSER", "u", "reset", "on", ">secret", "~shop:*"];
    words.extend(rights.split_whitespace());
    assert_eq!(server.command(&words).text(), "OK", "{rights}");
    server.url_of("u", "secret")
}

#[tokio::test]
async fn the_least_rights_are_enough() {
    let server = RedisServer::start();
    let url = user(
        &server,
        &format!("resetchannels &shop:inbox:* -@all {RIGHTS}"),
    );
    let lease = Duration::from_millis(500);
    let (a, mut b) = (Peer::new(&url).lease(lease), Peer::new(&url).lease(lease));
    a.session.check().await.unwrap();
    assert_eq!(server.command(&["DBSIZE"]).int(), 0);
    let dead = Peer::new(&url).lease(lease);
    dead.enter(&[1]).await;
    drop(dead);
    a.enter(&[1]).await;
    b.enter(&[1]).await;
    for _ in 0..8 {
        sleep(lease / 5).await;
        a.enter(&[1]).await;
        b.enter(&[1]).await;
    }
    a.leave(&[1]).await;
    assert_eq!(b.granted().await.ticket, 1);
    a.session.inspect(queue()).await.unwrap();
    a.session.evict(queue(), b.node.ticket(1)).await.unwrap();
}

#[tokio::test]
async fn each_missing_right_is_named() {
    let server = RedisServer::start();
    for right in RIGHTS.split_whitespace() {
        let url = user(
            &server,
            &format!("resetchannels &shop:inbox:* -@all {RIGHTS}"),
        );
        let minus = right.replace('+', "-");
        server.command(&["ACL", "SETUSER", "u", &minus]);
        server.command(&["SCRIPT", "FLUSH"]);
        let error = Peer::new(&url).session.check().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{right}: {error}");
        let said = error.to_string().to_lowercase();
        assert!(said.contains(&right[1..]), "{right}: {error}");
        assert!(
            said.contains("127.0.0.1") && !said.contains("secret"),
            "{error}"
        );
        // Nothing that is left stays for ever, unless that is the very right.
        for key in server.command(&["KEYS", "*"]).list() {
            let left = server.command(&["PTTL", &key]).int();
            assert!(left >= 0 || right == "+pexpire", "{right}: {key}");
        }
        server.command(&["FLUSHALL"]);
    }
    let error = Peer::new(&server.url_of("u", "wrong"))
        .session
        .check()
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(!error.to_string().contains("wrong"), "{error}");
    let locked = RedisServer::start_with(&["--requirepass", "x"]);
    let error = Peer::new(&locked.url())
        .try_to_enter(&[1])
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
}

#[tokio::test]
async fn refused_pushes_become_polls() {
    let server = RedisServer::start();
    // May listen, may not push; then neither.
    for rights in [
        "resetchannels &shop:inbox:* +@all -publish",
        "resetchannels +@all",
    ] {
        server.command(&["FLUSHALL"]);
        let url = user(&server, rights);
        let (a, b) = (Peer::new(&url), Peer::new(&url));
        let c = Peer::new(&url);
        a.enter(&[1]).await;
        b.enter(&[1]).await;
        a.leave(&[1]).await;
        let waiting = c.enter(&[1]).await;
        assert_eq!(waiting.look_again, Some(POLL), "{rights}");
        b.leave(&[1]).await;
        assert_eq!(plain(&c.enter(&[1]).await.entered), HELD);
    }
}

// === The connection ===

#[tokio::test]
async fn a_server_that_is_down_is_said_at_once() {
    let mut server = RedisServer::start();
    let mut a = Peer::new(&server.url());
    a.enter(&[1]).await;
    a.resynced().await;
    server.stop();
    for _ in 0..20 {
        let start = Instant::now();
        let error = a.try_to_enter(&[2]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(
            start.elapsed() < Duration::from_millis(100),
            "{:?}",
            start.elapsed()
        );
        sleep(Duration::from_millis(5)).await;
    }
    while a.events.try_recv().is_ok() {}
    server.restart();
    sleep(Duration::from_millis(110)).await;
    assert_eq!(plain(&a.enter(&[3]).await.entered), HELD);
    a.resynced().await;
}

#[tokio::test]
async fn a_restart_between_two_calls_goes_unnoticed() {
    let mut server = RedisServer::start();
    let mut a = Peer::new(&server.url());
    a.enter(&[1]).await;
    a.resynced().await;
    server.restart();
    a.resynced().await;
    assert_eq!(plain(&a.enter(&[2]).await.entered), HELD);
    a.resynced().await;
}

#[tokio::test]
async fn two_calls_given_up_make_a_new_connection() {
    let server = RedisServer::start();
    let a = Peer::new(&server.url());
    let connections = || server.command(&["INFO", "stats"]).text();
    let connections = || -> i64 {
        let line = "total_connections_received:";
        connections()
            .lines()
            .find_map(|l| l.strip_prefix(line)?.parse().ok())
            .unwrap()
    };
    a.enter(&[1]).await;
    let before = connections();
    server.pause();
    a.give_up().await;
    server.resume();
    a.enter(&[1]).await;
    server.pause();
    a.give_up().await;
    server.resume();
    a.enter(&[1]).await;
    assert_eq!(connections() - before, 1, "one at a time is no reason");
    server.pause();
    a.give_up().await;
    a.give_up().await;
    // Connecting goes on while calls that wait for it are given up.
    a.give_up().await;
    a.give_up().await;
    server.resume();
    assert_eq!(plain(&a.enter(&[1]).await.entered), HELD);
    assert_eq!(connections() - before, 3);
}

#[tokio::test]
async fn an_attempt_to_connect_has_an_end() {
    let server = RedisServer::start();
    let a = Peer::new(&server.url());
    server.pause();
    let start = Instant::now();
    let error = a.try_to_enter(&[1]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(start.elapsed() < Duration::from_millis(2500));
    let error = a.session.check().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    server.resume();
}

#[tokio::test]
async fn sockets_databases_and_full_houses() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("redis.sock");
    let socket = socket.to_str().unwrap();
    let server = RedisServer::start_with(&["--unixsocket", socket]);
    let (a, mut b) = (
        Peer::new(&format!("redis+unix://{socket}?db=3")),
        Peer::new(&format!("{}/3", server.url())),
    );
    a.enter(&[1]).await;
    assert_eq!(b.enter(&[1]).await.entered, WAITING);
    a.leave(&[1]).await;
    assert_eq!(b.granted().await.ticket, 1);
    assert_eq!(server.command(&["DBSIZE"]).int(), 0);
    a.session.check().await.unwrap();

    let none = Peer::new(&format!("{}/99", server.url()));
    let error = none.try_to_enter(&[1]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
    server.command(&["CONFIG", "SET", "maxclients", "2"]);
    let late = Peer::new(&server.url());
    let error = late.try_to_enter(&[1]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

/// Many names at once, while connections are cut and scripts forgotten.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn goes_on_while_connections_are_cut() {
    let server = RedisServer::start();
    let a = Arc::new(Peer::new(&server.url()));
    let tasks: Vec<_> = (0..16)
        .map(|name: u32| {
            let a = a.clone();
            tokio::spawn(async move {
                let queue = Queue::limit(format!("n{name}").as_bytes()).unwrap();
                let (end, mut done, mut failed) = (Instant::now() + Duration::from_secs(1), 0, 0);
                while Instant::now() < end {
                    let (queue, ticket) = (queue.clone(), vec![done]);
                    let call = if done % 2 == 0 {
                        Call {
                            queue,
                            enter: ticket,
                            ..a.call()
                        }
                    } else {
                        Call {
                            queue,
                            leave: vec![done - 1],
                            ..a.call()
                        }
                    };
                    match a.say(call).await {
                        Ok(_) => done += 1,
                        Err(error) => {
                            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                            failed += 1;
                            sleep(Duration::from_millis(5)).await;
                        }
                    }
                }
                (done, failed)
            })
        })
        .collect();
    for _ in 0..20 {
        sleep(Duration::from_millis(50)).await;
        server.command(&["SCRIPT", "FLUSH"]);
        server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    }
    for task in tasks {
        let (done, failed) = task.await.unwrap();
        assert!(
            done > 100 && failed < done / 10,
            "{done} done, {failed} failed"
        );
    }
}

#[test]
fn ten_runtimes_one_after_another() {
    let server = RedisServer::start();
    let a = Arc::new(Peer::new(&server.url()));
    for ticket in 0..10 {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            assert_eq!(plain(&a.enter(&[ticket]).await.entered), HELD);
            a.leave(&[ticket]).await;
        });
        // One that ends in the middle of connecting.
        drop(runtime);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let a = a.clone();
            tokio::spawn(async move { drop(a.try_to_enter(&[99]).await) });
            tokio::task::yield_now().await;
        });
    }
    assert_eq!(server.command(&["ZCARD", keys()[0]]), Answer::Int(0));
}

// === What it costs ===

/// Prints what a lone acquire and release cost the server: `cargo test --lib costs -- --ignored --nocapture`.
#[tokio::test]
#[ignore = "a measurement"]
async fn costs() {
    let server = RedisServer::start();
    let client = Client::open(server.url()).unwrap();
    let mut plain: MultiplexedConnection = client.get_multiplexed_async_connection().await.unwrap();
    let micros = || -> f64 {
        let info = server.command(&["INFO", "commandstats"]).text();
        let line = info
            .lines()
            .find(|line| line.starts_with("cmdstat_evalsha:"))
            .unwrap();
        let value = line.split("usec_per_call=").nth(1).unwrap();
        value.split(',').next().unwrap().parse().unwrap()
    };
    // What everybody writes first.
    let enter = Script::new(
        "local time = redis.call('TIME')
         local now = time[1] * 1000 + math.floor(time[2] / 1000)
         redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
         if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[3]) then return 0 end
         redis.call('ZADD', KEYS[1], now + ARGV[1], ARGV[2])
         redis.call('PEXPIRE', KEYS[1], ARGV[1])
         return 1",
    );
    let leave = Script::new("return redis.call('ZREM', KEYS[1], ARGV[1])");
    let bare = Script::new("return redis.call('ZADD', KEYS[1], ARGV[1], ARGV[2])");
    let a = Peer::new(&server.url()).limit(20);
    for _ in 0..2 {
        server.command(&["CONFIG", "RESETSTAT"]);
        for i in 0..5000 {
            let ticket = a.node.ticket(i);
            let mut call = bare.key("bare");
            let _: i64 = call
                .arg(1)
                .arg(&ticket)
                .invoke_async(&mut plain)
                .await
                .unwrap();
            let mut call = leave.key("bare");
            let _: i64 = call.arg(&ticket).invoke_async(&mut plain).await.unwrap();
        }
        let no_limit = micros() * 2.0;
        server.command(&["CONFIG", "RESETSTAT"]);
        for i in 0..5000 {
            let ticket = a.node.ticket(i);
            let mut call = enter.key("plain");
            let _: i64 = call
                .arg(10_000)
                .arg(&ticket)
                .arg(20)
                .invoke_async(&mut plain)
                .await
                .unwrap();
            let mut call = leave.key("plain");
            let _: i64 = call.arg(&ticket).invoke_async(&mut plain).await.unwrap();
        }
        let pair = micros() * 2.0;
        let mut ours = [0.0; 3];
        server.command(&["CONFIG", "RESETSTAT"]);
        for i in 0..5000 {
            a.enter(&[i]).await;
            a.leave(&[i]).await;
        }
        ours[0] = micros() * 2.0;
        a.enter(&[1_000_000]).await;
        server.command(&["CONFIG", "RESETSTAT"]);
        for i in 0..5000 {
            a.enter(&[i]).await;
            a.leave(&[i]).await;
        }
        ours[1] = micros() * 2.0;
        server.command(&["CONFIG", "RESETSTAT"]);
        for i in 0..5000 {
            let call = Call {
                leave: vec![i],
                enter: vec![i + 1],
                ..a.call()
            };
            a.say(call).await.unwrap();
        }
        ours[2] = micros();
        println!(
            "ZADD and ZREM alone {no_limit:.1}, plain pair {pair:.1}, idle name {:.1}, busy name {:.1}, both in one call {:.1} us",
            ours[0], ours[1], ours[2]
        );
    }
}
