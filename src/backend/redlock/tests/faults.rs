//! Servers that are down, slow, or lose answers.

use super::*;
use crate::Coordinator;
use crate::backend::support::clock::WallClock;
use crate::backend::support::proxy::{Mode, Proxy, Way};

/// Much shorter than the timeout of a call.
const QUICK: Duration = Duration::from_millis(60);

async fn proxies(servers: &[RedisServer]) -> Vec<Proxy> {
    let mut proxies = Vec::new();
    for server in servers {
        proxies.push(Proxy::start(server.port()).await);
    }
    proxies
}

fn through(proxies: &[Proxy]) -> Vec<String> {
    proxies.iter().map(Proxy::url).collect()
}

/// Locks and unlocks, each time at once.
async fn works_at_once(a: &mut Peer, b: &mut Peer, tickets: std::ops::Range<u64>) {
    for ticket in tickets {
        let start = Instant::now();
        a.must_acquire(ticket).await;
        assert_eq!(b.acquire(ticket).await, TicketState::Queued);
        assert!(matches!(
            a.renew(ticket).await,
            Ok(TicketState::Held { .. })
        ));
        assert!(a.release(ticket).await.unwrap());
        assert!(start.elapsed() < QUICK * 4, "{:?}", start.elapsed());
        b.acquires_within(ticket, QUICK * 5).await;
        assert!(b.release(ticket).await.unwrap());
    }
}

#[tokio::test]
async fn two_of_five_may_be_down() {
    let mut servers = servers(5);
    let (mut a, mut b) = (Peer::new(&urls(&servers)), Peer::new(&urls(&servers)));
    works_at_once(&mut a, &mut b, 0..3).await;
    a.must_acquire(10).await;
    servers[0].kill();
    servers[3].kill();
    assert!(matches!(a.renew(10).await, Ok(TicketState::Held { .. })));
    assert!(a.release(10).await.unwrap());
    works_at_once(&mut a, &mut b, 11..15).await;
    // Also for new sessions.
    let (mut a, mut b) = (Peer::new(&urls(&servers)), Peer::new(&urls(&servers)));
    works_at_once(&mut a, &mut b, 0..3).await;
}

#[tokio::test]
async fn with_three_of_five_down_no_lock_is_granted_and_holders_are_notified() {
    let mut servers = servers(5);
    let permits = Coordinator::builder(redlock(&urls(&servers)))
        .lease(LEASE)
        .build()
        .unwrap();
    let guard = permits.mutex("buy").unwrap().lock().await.unwrap();
    let start = Instant::now();
    servers[0..3].iter_mut().for_each(RedisServer::kill);
    let mut b = Peer::new(&urls(&servers));
    let error = b.try_acquire_ticket(1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(
        error
            .to_string()
            .contains("2 of 5 servers of Redlock answer"),
        "{error}"
    );
    timeout(LEASE * 2, guard.lost()).await.expect("it is lost");
    assert!(start.elapsed() > LEASE / 2, "not before its time");
    // One restarts empty: three answer, but two have a vote.
    servers[0].restart();
    let back = Instant::now();
    b.acquires_within(1, LEASE * 2).await;
    assert!(back.elapsed() >= LEASE, "{:?}", back.elapsed());
}

#[tokio::test]
async fn a_refusing_server_does_not_make_an_outage_of_the_others_final() {
    let mut servers = servers(2);
    servers.insert(0, RedisServer::start_with(&["--requirepass", "other"]));
    let mut a = Peer::new(&urls(&servers));
    a.must_acquire(1).await;
    assert!(a.release(1).await.unwrap());
    // Two do not answer, and one of them may be back soon.
    servers[1].kill();
    let error = a.try_acquire_ticket(2).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let error = a.session.inspect(queue()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    servers[1].restart();
    grow_old(&servers[1]);
    a.acquires_within(2, LEASE).await;
    // Without a majority of servers that grant access, waiting does not help.
    servers[2].kill();
    servers[2].add_args(&["--requirepass", "other"]);
    servers[2].restart();
    servers[1].kill();
    let error = a.try_acquire_ticket(3).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
}

#[tokio::test]
async fn a_slow_server_delays_no_call_and_is_cleaned_up_later() {
    let servers = servers(5);
    let (mut a, mut b) = (Peer::new(&urls(&servers)), Peer::new(&urls(&servers)));
    works_at_once(&mut a, &mut b, 0..2).await;
    servers[2].pause();
    works_at_once(&mut a, &mut b, 2..8).await;
    // One that lost meanwhile: its late success is rolled back.
    a.must_acquire(10).await;
    assert_eq!(b.acquire(10).await, TicketState::Queued);
    servers[2].resume();
    sleep(LEASE / 4).await;
    assert!(matches!(a.renew(10).await, Ok(TicketState::Held { .. })));
    assert!(a.release(10).await.unwrap());
    until(LEASE / 2, || !servers.iter().any(is_locked)).await;
    a.must_acquire(11).await;
    until(LEASE / 2, || servers.iter().all(is_held)).await;
}

#[tokio::test]
async fn a_lost_answer_is_repaired() {
    let servers = servers(3);
    let proxies = proxies(&servers).await;
    let (mut a, mut b) = (Peer::new(&through(&proxies)), Peer::new(&urls(&servers)));
    for round in 0..3 {
        let (first, second) = (round * 2, round * 2 + 1);
        a.must_acquire(first).await;
        // The release is executed, and its reply is lost.
        for proxy in &proxies[1..] {
            proxy.set_present(Way::Down, Mode::LoseOneAndCut);
        }
        a.release(first).await.unwrap_err();
        assert!(!a.release(first).await.unwrap(), "it was released before");
        // The acquire is lost too: it is repeated, or given up, rolled back and sent again.
        for proxy in &proxies[1..] {
            proxy.set_present(Way::Down, Mode::LoseOneAndCut);
        }
        let _ = a.try_acquire_ticket(second).await;
        a.acquires_within(second, LEASE / 2).await;
        assert_eq!(b.acquire(first).await, TicketState::Queued);
        assert!(a.release(second).await.unwrap());
        b.acquires_within(first, LEASE / 2).await;
        assert!(b.release(first).await.unwrap());
    }
}

#[tokio::test]
async fn a_clock_step_of_one_server_admits_no_second_holder() {
    let clock = WallClock::new();
    let mut servers = servers(2);
    servers.push(RedisServer::start_with_env(&[], clock.env()));
    grow_old(&servers[2]);
    let [mut a, mut b] = [(); 2].map(|()| Peer::new(&urls(&servers)).lease(LEASE * 3));
    let token = a.must_acquire(1).await;
    for step in [3600, 0, -3600, 0] {
        clock.shift(step);
        assert_eq!(b.acquire(1).await, TicketState::Queued, "{step}");
        assert_eq!(
            a.renew(1).await.unwrap(),
            TicketState::Held { token },
            "{step}"
        );
    }
    assert!(a.release(1).await.unwrap());
    b.acquires_within(1, LEASE).await;
}

#[tokio::test]
async fn an_attempt_without_answers_leaves_no_state() {
    let servers = servers(3);
    let proxies = proxies(&servers).await;
    let mut a = Peer::new(&through(&proxies));
    a.must_acquire(1).await;
    a.release(1).await.unwrap();
    for proxy in &proxies {
        proxy.set_present(Way::Down, Mode::Lose);
    }
    a.try_acquire_ticket(2).await.unwrap_err();
    until(LEASE / 2, || !servers.iter().any(is_locked)).await;
}

#[tokio::test]
async fn a_failed_extension_frees_nothing() {
    let servers = servers(5);
    let (mut a, mut b) = (Peer::new(&urls(&servers)), Peer::new(&urls(&servers)));
    let token = a.must_acquire(1).await;
    until(LEASE / 4, || servers.iter().all(is_held)).await;
    servers[0..3].iter().for_each(RedisServer::pause);
    // Neither held nor gone.
    for _ in 0..2 {
        assert_eq!(a.renew(1).await.unwrap_err().kind(), ErrorKind::Unavailable);
        assert!(servers[3..].iter().all(is_locked));
    }
    servers[0..3].iter().for_each(RedisServer::resume);
    sleep(LEASE / 6).await;
    assert!(servers.iter().all(is_locked));
    assert_eq!(b.acquire(1).await, TicketState::Queued);
    assert_eq!(a.renew(1).await.unwrap(), TicketState::Held { token });
}

#[tokio::test]
async fn a_lock_is_gone_only_if_a_majority_reports_it() {
    let servers = servers(5);
    let mut a = Peer::new(&urls(&servers));
    a.must_acquire(1).await;
    until(LEASE / 4, || servers.iter().all(is_held)).await;
    let forget = |which: std::ops::Range<usize>| {
        for server in &servers[which] {
            server.command(&["DEL", LOCK]);
        }
    };
    forget(0..2);
    assert!(matches!(a.renew(1).await, Ok(TicketState::Held { .. })));
    // The loss of two servers is repaired, because a majority stores the holder.
    until(LEASE / 4, || servers.iter().all(is_held)).await;
    // Two report the lock, two do not, one does not answer.
    forget(0..2);
    servers[2].pause();
    let error = a.renew(1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    servers[2].resume();
    sleep(LEASE / 6).await;
    forget(0..3);
    assert_eq!(a.renew(1).await.unwrap(), TicketState::Gone);
}

#[tokio::test]
async fn abandoned_calls_leave_no_state() {
    let servers = servers(3);
    let (mut a, mut b) = (Peer::new(&urls(&servers)), Peer::new(&urls(&servers)));
    a.must_acquire(1_000).await;
    a.release(1_000).await.unwrap();
    for ticket in 0..60 {
        let acquire = vec![ticket];
        let call = Call {
            acquire,
            ..a.call()
        };
        let after = Duration::from_micros(rand::random_range(0..1500));
        let _ = timeout(after, exchange_one(&*a.session, call)).await;
        if ticket % 3 == 0 {
            a.release(ticket).await.unwrap();
        } else {
            // It still acquires.
            a.acquires_within(ticket, LEASE / 2).await;
            assert_eq!(b.acquire(ticket).await, TicketState::Queued);
            assert!(a.release(ticket).await.unwrap());
        }
        b.acquires_within(ticket, LEASE / 2).await;
        b.release(ticket).await.unwrap();
    }
    until(LEASE / 2, || !servers.iter().any(is_locked)).await;
}
