//! Ensembles of three servers, some of which are stopped.

use super::*;

async fn ensemble() -> ZooKeepers {
    let start = || ZooKeepers::start(3);
    tokio::task::spawn_blocking(start).await.unwrap()
}

#[tokio::test]
async fn a_killed_leader_loses_no_permit() {
    let mut servers = ensemble().await;
    let zookeeper = zookeeper(servers.connect_string());
    let permits = || {
        Coordinator::builder(zookeeper.clone())
            .lease(6 * SECOND)
            .build()
    };
    let (here, there) = (permits().unwrap(), permits().unwrap());
    let guard = here.mutex("a").unwrap().lock().await.unwrap();
    let queued = there.mutex("a").unwrap();
    let waiting = tokio::spawn(async move { queued.lock().await });
    sleep(200 * MILLI).await;

    let leader = servers.leader();
    servers.kill(leader);
    let killed = Instant::now();
    // New waiters are granted permits as soon as there is a new leader.
    let other = here.mutex("b").unwrap();
    while other.try_lock().await.is_err() {
        assert!(killed.elapsed() < 6 * SECOND, "no permit was granted");
        sleep(50 * MILLI).await;
    }
    assert!(guard.is_valid(), "its session outlives the leader");
    assert!(!waiting.is_finished());
    let first = guard.token();
    assert!(guard.unlock().await.unwrap(), "it was held until now");
    let second = timeout(HANG_GUARD, waiting).await.expect("granted");
    let second = second.unwrap().unwrap();
    assert!(
        second.token() > first,
        "tokens increase over a change of the leader"
    );
    assert!(second.unlock().await.unwrap());
}

#[tokio::test]
async fn a_paused_leader_loses_no_permit() {
    let servers = ensemble().await;
    let zookeeper = zookeeper(servers.connect_string());
    let permits = Coordinator::builder(zookeeper).lease(6 * SECOND);
    let permits = permits.build().unwrap();
    let semaphore = permits.semaphore("a", 2).unwrap();
    let held = semaphore.acquire().await.unwrap();
    let leader = servers.leader();
    servers.pause(leader);
    let start = Instant::now();
    while semaphore.try_acquire().await.is_err() {
        assert!(
            start.elapsed() < 12 * SECOND,
            "the other servers grant permits"
        );
        sleep(50 * MILLI).await;
    }
    servers.resume(leader);
    sleep(SECOND).await;
    drop(semaphore.try_acquire().await.unwrap());
    drop(held);
}

#[tokio::test]
async fn a_check_of_a_partly_stopped_ensemble_ends_in_time() {
    let mut servers = ensemble().await;
    let leader = servers.leader();
    let zookeeper = zookeeper(servers.connect_string());
    let check = async || {
        let start = Instant::now();
        let checked = Peer::new(&zookeeper).session.check(LEASE).await;
        assert!(start.elapsed() < CHECK_TIMEOUT + SECOND / 2);
        checked
    };
    servers.pause((leader + 1) % 3);
    // The server that the client connects to first varies.
    for _ in 0..6 {
        check().await.unwrap();
    }
    servers.resume((leader + 1) % 3);
    servers.kill((leader + 1) % 3);
    for _ in 0..3 {
        check().await.unwrap();
    }
    servers.pause(leader);
    let error = check().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    servers.kill((leader + 2) % 3);
    let error = check().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    servers.kill(leader);
    let error = check().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

#[tokio::test]
async fn permits_survive_an_outage_of_the_majority() {
    let mut servers = ensemble().await;
    let zookeeper = zookeeper(servers.connect_string());
    let permits = Coordinator::new(zookeeper.clone());
    let mutex = permits.mutex("a").unwrap();
    let guard = mutex.lock().await.unwrap();
    let token = guard.token();
    servers.kill(0);
    servers.kill(1);
    sleep(200 * MILLI).await;
    let new = Coordinator::new(zookeeper);
    let error = new.check().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    servers.restart(1);
    let start = Instant::now();
    while new.check().await.is_err() {
        assert!(start.elapsed() < 10 * SECOND);
        sleep(50 * MILLI).await;
    }
    let other = new.mutex("a").unwrap();
    assert!(other.try_lock().await.is_err(), "the permit is still held");
    drop(guard);
    let next = timeout(HANG_GUARD, other.lock()).await.expect("an answer");
    assert!(next.unwrap().token() > token);
}
