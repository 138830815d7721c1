//! Sessions that end, and sessions that outlive their runtime.

use super::*;
use crate::backend::support::clock::WallClock;
use crate::backend::support::proxy::{Mode, Proxy, Way};
use tokio::runtime::Builder;

/// Returns a peer behind a proxy, so that its session can be made to expire, and one without a proxy.
async fn peer_behind_proxy() -> (Proxy, Peer, Peer) {
    let proxy = Proxy::start(server().port(0)).await;
    let direct = zookeeper(server().connect_string());
    let mut cut = direct.clone();
    cut.settings.servers = proxy.address().into();
    let mut peer = Peer::new(&cut);
    peer.lease = SECOND;
    (proxy, peer, Peer::new(&direct))
}

#[tokio::test]
async fn the_end_of_a_session_loses_all_tickets() {
    let (proxy, mut peer, other) = peer_behind_proxy().await;
    let token = held_token(&peer.acquire(&[1]).await.acquired);
    assert_eq!(peer.acquire(&[2]).await.acquired, [TicketState::Queued]);
    assert_eq!(other.acquire(&[1]).await.acquired, [TicketState::Queued]);
    proxy.set(Way::Up, Mode::Lose);
    while other.counts().await != (1, 0) {
        sleep(20 * MILLI).await;
    }
    proxy.set(Way::Up, Mode::Pass);
    proxy.cut();
    peer.lost().await;
    let renewed = peer.renew(&[1, 2]).await.renewed;
    assert_eq!(renewed, [TicketState::Gone, TicketState::Gone]);
    let acquired = peer.acquire(&[2]).await.acquired;
    assert_eq!(acquired, [TicketState::Queued], "at the end of the queue");
    assert!(held_token(&other.acquire(&[1]).await.acquired) > token);
    assert_eq!(other.counts().await, (1, 1));
}

#[tokio::test]
async fn a_session_ends_while_a_permit_is_held() {
    let (proxy, mut peer, mut other) = peer_behind_proxy().await;
    let first = held_token(&peer.acquire(&[1]).await.acquired).unwrap();
    assert_eq!(other.acquire(&[1]).await.acquired, [TicketState::Queued]);
    proxy.set(Way::Up, Mode::Lose);
    let granted = other.granted().await;
    assert_eq!(granted.ticket, 1);
    assert!(granted.token > first, "tokens increase");
    proxy.set(Way::Up, Mode::Pass);
    proxy.cut();
    peer.lost().await;
    assert_eq!(peer.renew(&[1]).await.renewed, [TicketState::Gone]);
}

#[tokio::test]
async fn callers_are_notified_of_the_end_of_a_session() {
    let proxy = Proxy::start(server().port(0)).await;
    let direct = zookeeper(server().connect_string());
    let mut cut = direct.clone();
    cut.settings.servers = proxy.address().into();
    let permits = Coordinator::builder(cut).lease(2 * SECOND).build().unwrap();
    let other = Coordinator::builder(direct)
        .lease(2 * SECOND)
        .build()
        .unwrap();
    let mutex = permits.mutex("m").unwrap();
    let guard = mutex.lock().await.unwrap();
    let permit = permits.semaphore("s", 1).unwrap().acquire().await.unwrap();
    // A ticket is queued, too, when the session ends.
    let (queued, others) = (
        permits.mutex("queue").unwrap(),
        other.mutex("queue").unwrap(),
    );
    let held = others.lock().await.unwrap();
    let waiting = tokio::spawn(async move { queued.lock().await });
    wait_until_queued(&others, 1).await;
    // The waiter must have had an answer: a new waiter is refused during an outage.
    sleep(300 * MILLI).await;

    proxy.set(Way::Up, Mode::Lose);
    let cut_off = Instant::now();
    let why = timeout(HANG_GUARD, guard.lost()).await.expect("lost");
    assert_eq!(why.kind(), ErrorKind::Lost);
    assert!(
        cut_off.elapsed() < SECOND * 7 / 2,
        "{:?}",
        cut_off.elapsed()
    );
    let others_mutex = other.mutex("m").unwrap();
    let next = timeout(5 * SECOND, others_mutex.lock()).await;
    let next = next.expect("the session has ended").unwrap();
    assert!(next.token() > guard.token());
    assert!(!permit.is_valid());
    wait_until_queued(&others, 0).await;

    proxy.set(Way::Up, Mode::Pass);
    proxy.cut();
    let why = timeout(HANG_GUARD, permit.lost()).await.expect("lost");
    assert_eq!(why.kind(), ErrorKind::Lost);
    wait_until_queued(&others, 1).await; // queued again
    drop((held, next));
    let second = timeout(HANG_GUARD, waiting).await.expect("granted");
    drop(second.unwrap().unwrap());
    drop(
        timeout(HANG_GUARD, mutex.lock())
            .await
            .expect("granted")
            .unwrap(),
    );
}

/// Waits until the queue has this length.
async fn wait_until_queued(mutex: &crate::Mutex, queued: u64) {
    let end = Instant::now() + 20 * SECOND;
    loop {
        let inspection = mutex.inspect().await;
        if inspection
            .as_ref()
            .is_ok_and(|inspection| inspection.queued == queued)
        {
            return;
        }
        assert!(Instant::now() < end, "not {queued}: {inspection:?}");
        sleep(20 * MILLI).await;
    }
}

#[test]
fn a_session_outlives_the_runtime_that_made_it() {
    server();
    let zookeeper = zookeeper(server().connect_string());
    let runtime = || {
        Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
    };
    let there = runtime().unwrap();
    let peer = Peer::new(&zookeeper);
    let token = there.block_on(async { held_token(&peer.acquire(&[1]).await.acquired) });
    assert!(token.is_some());
    there.shutdown_background();
    let here = runtime().unwrap();
    let renewed = here.block_on(async { peer.renew(&[1]).await.renewed });
    assert_eq!(held_token(&renewed), token);
}

#[test]
fn a_session_outlives_a_runtime_that_is_not_driven() {
    server();
    let zookeeper = zookeeper(server().connect_string());
    let runtime = || Builder::new_current_thread().enable_all().build().unwrap();
    let (there, peer) = (runtime(), Peer::new(&zookeeper));
    let token = there.block_on(async { held_token(&peer.acquire(&[1]).await.acquired) });
    let here = runtime();
    let renewed = here.block_on(async { peer.renew(&[1]).await.renewed });
    assert_eq!(held_token(&renewed), token);
    // When its runtime is driven again, the old connection does not close the session.
    there.block_on(async { sleep(300 * MILLI).await });
    let renewed = here.block_on(async { peer.renew(&[1]).await.renewed });
    assert_eq!(held_token(&renewed), token);
}

#[tokio::test]
async fn the_permits_of_a_dead_process_are_free_when_its_session_ends() {
    let zookeeper = zookeeper(server().connect_string());
    let mut dead = Peer::new(&zookeeper);
    dead.lease = SECOND;
    dead.acquire(&[1]).await;
    let died = Instant::now();
    let session = dead.shared.session();
    drop(dead);
    assert!(session.is_some());
    let mut other = Peer::new(&zookeeper);
    assert_eq!(other.acquire(&[1]).await.acquired, [TicketState::Queued]);
    other.granted().await;
    let (took, lease) = (died.elapsed(), SECOND);
    assert!(took > lease && took < lease * 5 / 2, "{took:?}");
}

#[tokio::test]
async fn a_step_of_the_servers_clock_ends_no_session() {
    let clock = WallClock::new();
    let env = clock.env().into();
    let start = || {
        let mut servers = ZooKeepers::start(1);
        servers.env = env;
        servers.restart(0);
        assert!(servers.wait_until_ready());
        servers
    };
    let servers = tokio::task::spawn_blocking(start).await.unwrap();
    let zookeeper = zookeeper(servers.connect_string());
    let operator = Client::connect(&servers.connect_string()).await.unwrap();
    let (mut peer, other) = (Peer::new(&zookeeper), Peer::new(&zookeeper));
    peer.lease = 2 * SECOND;
    let token = held_token(&peer.acquire(&[1]).await.acquired);
    for (round, step) in [3600, 0, -3600].into_iter().enumerate() {
        clock.shift(step);
        let mode = zookeeper_client::CreateMode::Persistent;
        let options = mode.with_acls(zookeeper_client::Acls::anyone_all());
        let (stat, _) = operator
            .create(&format!("/round-{round}"), b"", &options)
            .await
            .unwrap();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let off = stat.ctime / 1000 - now.unwrap().as_secs().cast_signed();
        assert!((off - step).abs() < 30, "{off} s off, not {step}");
        // Longer than a session timeout.
        let end = Instant::now() + 3 * SECOND;
        while Instant::now() < end {
            let renewed = peer.renew(&[1]).await.renewed;
            assert_eq!(held_token(&renewed), token, "{step}");
            assert_eq!(
                other.acquire(&[1]).await.acquired,
                [TicketState::Queued],
                "{step}"
            );
            sleep(SECOND / 2).await;
        }
    }
    peer.release(&[1]).await;
    assert!(held_token(&other.acquire(&[1]).await.acquired) > token);
}

#[tokio::test]
async fn a_wiped_server_loses_all_permits_and_grants_new_ones() {
    let start = || ZooKeepers::start(1);
    let mut servers = tokio::task::spawn_blocking(start).await.unwrap();
    let zookeeper = zookeeper(servers.connect_string());
    let mut peer = Peer::new(&zookeeper);
    peer.lease = 2 * SECOND;
    for ticket in 0..5 {
        peer.acquire(&[ticket]).await;
        peer.release(&[ticket]).await;
    }
    assert!(held_token(&peer.acquire(&[6]).await.acquired).is_some());
    let servers = tokio::task::spawn_blocking(move || {
        servers.wipe(0);
        assert!(servers.wait_until_ready());
        servers
    });
    let servers = servers.await.unwrap();
    let other = Peer::new(&zookeeper);
    assert!(held_token(&other.acquire(&[1]).await.acquired).is_some());
    // It has seen a later transaction than the server has now, and is rejected until its session has timed out.
    peer.lost().await;
    assert_eq!(peer.acquire(&[7]).await.acquired, [TicketState::Queued]);
    other.release(&[1]).await;
    assert_eq!(peer.granted().await.ticket, 7);
    drop(servers);
}

#[tokio::test]
async fn nodes_without_a_ticket_are_deleted() {
    let zookeeper = zookeeper(server().connect_string());
    let mut peer = Peer::new(&zookeeper);
    peer.lease = SECOND / 2;
    let other = Peer::new(&zookeeper);
    peer.acquire(&[1]).await;
    peer.release(&[1]).await;
    // As after a call that was executed late.
    let late = format!(
        "{}/mutex:name/{}-",
        zookeeper.settings.base(),
        peer.node.ticket(9)
    );
    let late_client = Client::connect(&zookeeper.settings.servers).await.unwrap();
    anchor(&zookeeper, &late_client).await;
    let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let created = late_client.create(&late, b"1 500", &options).await;
    created.unwrap();
    assert_eq!(other.counts().await, (1, 0));
    sleep(peer.lease * 3).await;
    assert_eq!(other.counts().await, (0, 0), "deleted without a call");
}
