//! Servers that restart empty have no vote for one longest lease.

use super::*;
use crate::Coordinator;

/// Removes the lock of `holder` from the last server, as if it had never arrived.
async fn holds_two_of_three(holder: &mut Peer, servers: &[RedisServer]) {
    holder.must_acquire(1).await;
    until(LEASE / 4, || servers.iter().all(is_held)).await;
    servers[2].command(&["DEL", LOCK]);
}

#[tokio::test]
async fn a_server_that_restarted_empty_admits_no_second_holder() {
    for flushed in [false, true] {
        let mut servers = servers(3);
        let (mut a, mut b) = (Peer::new(&urls(&servers)), Peer::new(&urls(&servers)));
        holds_two_of_three(&mut a, &servers).await;
        let heartbeat = Instant::now();
        if flushed {
            servers[1].command(&["FLUSHALL"]);
        } else {
            servers[1].restart();
        }
        // Two of three are free, and one of them has lost its data.
        b.acquires_within(1, LEASE * 2).await;
        let waited = heartbeat.elapsed();
        assert!(waited + LEASE / 10 >= LEASE, "{waited:?}");
        assert_ne!(a.renew(1).await.ok(), Some(TicketState::Held { token: 0 }));
        assert_eq!(a.renew(1).await.unwrap(), TicketState::Gone);
    }
}

#[tokio::test]
async fn a_restarted_server_waits_for_the_longest_lease_of_any_node() {
    let mut servers = servers(3);
    let long = LEASE * 3;
    let mut a = Peer::new(&urls(&servers)).lease(long);
    let mut b = Peer::new(&urls(&servers));
    holds_two_of_three(&mut a, &servers).await;
    let heartbeat = Instant::now();
    servers[1].restart();
    while heartbeat.elapsed() < LEASE * 5 / 2 {
        assert_eq!(
            b.acquire(1).await,
            TicketState::Queued,
            "after {:?}",
            heartbeat.elapsed()
        );
        sleep(LEASE / 6).await;
    }
    b.acquires_within(1, LEASE * 2).await;
    assert!(heartbeat.elapsed() + LEASE / 10 >= long);
}

#[tokio::test]
async fn a_majority_that_loses_its_data_loses_longer_leases() {
    // The guide warns of this case: the longer lease is not respected.
    let servers = servers(3);
    let mut a = Peer::new(&urls(&servers)).lease(LEASE * 6);
    let mut b = Peer::new(&urls(&servers));
    let token = a.must_acquire(1).await;
    let heartbeat = Instant::now();
    for server in &servers {
        server.command(&["FLUSHALL"]);
    }
    b.acquires_within(1, LEASE * 2).await;
    assert!(heartbeat.elapsed() + LEASE / 10 >= LEASE);
    assert!(
        heartbeat.elapsed() < a.lease,
        "the other one has not run out"
    );
    let Ok(TicketState::Held { token: next }) = b.renew(1).await else {
        panic!("not held");
    };
    assert!(next > token, "the token stops the older one");
    assert_eq!(a.renew(1).await.unwrap_err().kind(), ErrorKind::Unavailable);
}

#[tokio::test]
async fn a_holder_outlives_restarts_one_after_the_other() {
    let mut servers = servers(3);
    let (mut a, mut b) = (Peer::new(&urls(&servers)), Peer::new(&urls(&servers)));
    let token = a.must_acquire(1).await;
    until(LEASE / 4, || servers.iter().all(is_held)).await;
    for server in &mut servers {
        server.restart();
        let end = Instant::now() + LEASE * 5 / 4;
        while Instant::now() < end {
            assert_eq!(a.renew(1).await.unwrap(), TicketState::Held { token });
            assert_eq!(b.acquire(1).await, TicketState::Queued);
            sleep(LEASE / 5).await;
        }
        // The loss was reported. (The other node may have attempted the lock, and may be about to roll it back.)
        for _ in 0..5 {
            if is_held(server) {
                break;
            }
            assert_eq!(a.renew(1).await.unwrap(), TicketState::Held { token });
            sleep(LEASE / 10).await;
        }
        assert!(is_held(server));
    }
    assert!(a.release(1).await.unwrap());
    b.acquires_within(1, LEASE / 2).await;
}

#[tokio::test]
async fn servers_that_restart_with_their_data_vote_at_once() {
    let saves = ["--appendonly", "yes", "--appendfsync", "always"];
    let mut servers: Vec<_> = (0..3).map(|_| RedisServer::start_with(&saves)).collect();
    servers.iter().for_each(grow_old);
    let (mut a, mut b) = (
        Peer::new(&urls(&servers)).lease(LEASE * 3),
        Peer::new(&urls(&servers)).lease(LEASE * 3),
    );
    let token = a.must_acquire(1).await;
    until(LEASE, || servers.iter().all(is_held)).await;
    servers.iter_mut().for_each(RedisServer::restart);
    let back = Instant::now();
    assert_eq!(
        b.acquire(1).await,
        TicketState::Queued,
        "it is not forgotten"
    );
    assert!(servers.iter().all(is_held));
    a.acquires_within(1, LEASE * 2).await;
    assert_eq!(a.renew(1).await.unwrap(), TicketState::Held { token });
    assert!(a.release(1).await.unwrap());
    b.acquires_within(1, LEASE * 2).await;
    let TicketState::Held { token: next } = b.renew(1).await.unwrap() else {
        panic!("it does not hold");
    };
    assert!(next > token, "{next} after {token}");
    assert!(back.elapsed() < LEASE * 3, "no call waited for a vote");
}

#[tokio::test]
async fn the_first_lock_waits_for_one_lease() {
    let servers: Vec<RedisServer> = (0..3).map(|_| RedisServer::start()).collect();
    let permits = Coordinator::builder(redlock(&urls(&servers)))
        .lease(LEASE)
        .build()
        .unwrap();
    permits.check().await.unwrap();
    let start = Instant::now();
    let mutex = permits.mutex("buy").unwrap();
    let error = mutex.try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitReached, "{error}");
    let guard = mutex.lock().await.unwrap();
    let waited = start.elapsed();
    assert!(
        waited + LEASE / 5 > LEASE && waited < LEASE * 2,
        "{waited:?}"
    );
    drop(guard);
    let again = Instant::now();
    let other = permits.mutex("another").unwrap().lock().await.unwrap();
    assert!(again.elapsed() < LEASE * 3 / 4, "once and for all names");
    drop(other);
    permits.shutdown(LEASE).await.unwrap();
}
