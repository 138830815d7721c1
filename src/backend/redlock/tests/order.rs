//! Messages in the unluckiest order.

use super::witness::Witness;
use super::*;
use crate::Coordinator;
use crate::backend::redlock::server::{Ballot, Keys, Request, Server, Vote};
use crate::backend::support::proxy::{Mode, Proxy, Way};
use futures_util::future::join_all;

/// One node, message by message.
struct Hand {
    node: String,
    attempt: u64,
}

impl Hand {
    fn new(node: &str) -> Self {
        let node = node.to_owned();
        Self { node, attempt: 0 }
    }

    /// Returns a new request that acquires this ticket.
    fn request(&mut self, ticket: u64) -> Request {
        self.attempt += 2;
        Request {
            keys: Keys::new("shop", &queue(), &self.node),
            node: self.node.clone(),
            number: self.attempt,
            attempt: self.attempt,
            lease: LEASE,
            release: Vec::new(),
            renew: Vec::new(),
            acquire: vec![ticket],
            candidate: Some(ticket),
        }
    }
}

async fn vote(server: &Server, request: &Request) -> Vote {
    match server.vote(request).await.unwrap() {
        Ballot::Vote(vote) => vote,
        Ballot::Stale => panic!("stale"),
    }
}

async fn takes(server: &Server, request: &Request) -> bool {
    vote(server, request).await.is_held_by(request, 1)
}

fn open(servers: &[RedisServer]) -> Vec<Server> {
    let line = |server: &RedisServer| SingleServer::new(Redis::new(server.url()).unwrap()).unwrap();
    servers.iter().map(|it| Server::new(line(it))).collect()
}

#[tokio::test]
async fn a_late_rollback_releases_no_other_lock() {
    let processes = servers(1);
    let server = &open(&processes)[0];
    let (mut a, mut b) = (Hand::new("a"), Hand::new("b"));
    let first = a.request(1);
    assert!(takes(server, &first).await);
    // A second attempt of the same ticket: the rollback of the first one arrives after this one has won.
    let second = a.request(1);
    assert!(takes(server, &second).await);
    let grant = Grant::new(1, 7);
    assert!(server.confirm(&second, grant, false).await.unwrap());
    server.release(&first, true).await.unwrap();
    assert_eq!(server.read(&first.keys).await.unwrap().unwrap().token, 7);
    // A third one fails elsewhere and is rolled back: what is confirmed is no attempt's any more.
    let third = a.request(1);
    assert!(takes(server, &third).await);
    for late in [&third, &second, &first] {
        server.release(late, true).await.unwrap();
        assert_eq!(server.read(&first.keys).await.unwrap().unwrap().token, 7);
    }
    // It releases, another node acquires, and all requests arrive again.
    let release = Request {
        release: vec![1],
        candidate: None,
        acquire: vec![],
        ..a.request(1)
    };
    assert_eq!(vote(server, &release).await.released, Some((1, true)));
    let other = b.request(1);
    assert!(takes(server, &other).await);
    for late in [&third, &second, &first] {
        server.release(late, true).await.unwrap();
    }
    assert_eq!(server.read(&first.keys).await.unwrap().unwrap().node, "b");
}

#[tokio::test]
async fn an_attempt_that_arrives_after_its_rollback_acquires_nothing() {
    let processes = servers(1);
    let server = &open(&processes)[0];
    let mut a = Hand::new("a");
    let (first, second) = (a.request(1), a.request(1));
    server.release(&first, true).await.unwrap();
    assert!(matches!(server.vote(&first).await.unwrap(), Ballot::Stale));
    assert!(!is_locked(&processes[0]));
    // A late token changes nothing either.
    assert!(takes(server, &second).await);
    let grant = Grant::new(1, 7);
    assert!(!server.confirm(&first, grant, true).await.unwrap());
    server.release(&second, true).await.unwrap();
    for create in [false, true] {
        assert!(!server.confirm(&second, grant, create).await.unwrap());
    }
    assert!(!is_locked(&processes[0]));
}

#[tokio::test]
async fn a_server_stores_a_lock_for_longer_than_a_lease() {
    let servers = servers(3);
    let mut a = Peer::new(&urls(&servers)).lease(Duration::from_secs(100));
    a.must_acquire(1).await;
    until(LEASE, || servers.iter().all(is_locked)).await;
    for server in &servers {
        let left = server.command(&["PTTL", LOCK]).int();
        assert!(left > 100_500 && left <= 101_002, "{left}");
    }
}

#[tokio::test]
async fn a_late_rollback_delays_other_clients_only_briefly() {
    let servers = servers(3);
    let mut proxies = Vec::new();
    for server in &servers {
        proxies.push(Proxy::start(server.port()).await);
    }
    let through: Vec<String> = proxies.iter().map(Proxy::url).collect();
    let (mut a, mut b) = (Peer::new(&through), Peer::new(&urls(&servers)));
    a.must_acquire(1).await;
    a.release(1).await.unwrap();
    // From now on its requests are delayed: attempts, rollbacks and all others.
    for proxy in &proxies {
        proxy.set(Way::Up, Mode::Hold);
    }
    a.try_acquire_ticket(2).await.unwrap_err();
    let token = b.must_acquire(1).await;
    for proxy in &proxies {
        proxy.set(Way::Up, Mode::Pass);
    }
    for _ in 0..10 {
        sleep(LEASE / 30).await;
        assert_eq!(b.renew(1).await.unwrap(), TicketState::Held { token });
    }
    // Now it arrives without a holder: it may acquire the lock, and rolls it back.
    assert!(b.release(1).await.unwrap());
    for proxy in &proxies {
        proxy.set(Way::Up, Mode::Hold);
    }
    a.try_acquire_ticket(3).await.unwrap_err();
    for proxy in &proxies {
        proxy.set(Way::Up, Mode::Pass);
    }
    b.acquires_within(2, LEASE / 2).await;
}

#[tokio::test]
async fn three_clients_that_lock_one_server_each_make_progress() {
    let servers = servers(3);
    // Each is nearest to a server of its own; the ways to the others, and so the rollbacks, are long.
    let mut ways = Vec::new();
    for client in 0..3 {
        let mut own = Vec::new();
        for (at, server) in servers.iter().enumerate() {
            let proxy = Proxy::start(server.port()).await;
            if at != client {
                proxy.set(Way::Up, Mode::Delay(Duration::from_millis(25)));
            }
            own.push(proxy);
        }
        ways.push(own);
    }
    let witness = Witness::default();
    let permits: Vec<Coordinator> = (ways.iter())
        .map(|own| {
            let urls: Vec<String> = own.iter().map(Proxy::url).collect();
            let builder = Coordinator::builder(redlock(&urls));
            builder.lease(LEASE * 2).build().unwrap()
        })
        .collect();
    let run = |times: usize| {
        let clients = permits.iter().map(|permits| {
            let (permits, witness) = (permits.clone(), witness.clone());
            async move {
                for _ in 0..times {
                    let guard = permits.mutex("buy").unwrap().lock().await.unwrap();
                    let inside = witness.enter();
                    sleep(Duration::from_millis(2)).await;
                    drop(inside);
                    guard.unlock().await.unwrap();
                }
            }
        });
        join_all(clients)
    };
    timeout(LEASE * 15, run(4))
        .await
        .expect("somebody is stuck");
    for own in &ways {
        for proxy in own {
            proxy.set(Way::Up, Mode::Pass);
        }
    }
    timeout(LEASE * 5, run(8)).await.expect("somebody is stuck");
    assert_eq!(witness.peak(), 1);
}

#[tokio::test]
async fn three_clients_that_locked_one_server_each_need_few_retries() {
    let servers = servers(3);
    let hands = open(&servers);
    for round in 0..5 {
        // Each holds one server, and its rollback is delayed.
        let mut asks = Vec::new();
        for (server, node) in hands.iter().zip(["x", "y", "z"]) {
            let node = format!("{node}{round}");
            let request = Hand::new(&node).request(1);
            assert!(takes(server, &request).await);
            asks.push(request);
        }
        let mut peers: Vec<Peer> = (0..3).map(|_| Peer::new(&urls(&servers))).collect();
        for peer in &mut peers {
            assert_eq!(
                [peer.acquire(1).await],
                WAITING,
                "a minority is free at most"
            );
        }
        for (server, request) in hands.iter().zip(&asks) {
            server.release(request, true).await.unwrap();
        }
        let start = Instant::now();
        let waits = peers.iter_mut().map(|peer| async {
            let tries = peer.acquires_within(1, LEASE).await;
            assert!(peer.release(1).await.unwrap());
            tries
        });
        let tries = join_all(waits).await;
        assert!(tries.iter().all(|tries| *tries < 8), "{tries:?} tries");
        assert!(start.elapsed() < LEASE, "{:?}", start.elapsed());
    }
}
