//! Servers that are stopped, killed or unreachable.

use super::*;

#[tokio::test]
async fn a_paused_leader_loses_no_permit() {
    let cluster = EtcdCluster::start(3);
    let (a, b) = (Peer::of(&cluster), Peer::of(&cluster));
    let first = token(&a.acquire(&[1]).await);
    assert_eq!(b.acquire(&[1]).await, [TicketState::Queued]);
    let leader = cluster.leader();
    cluster.pause(leader);
    // The others elect a new leader. No grant is lost.
    let again = until_held(&a, 1, Duration::from_secs(5)).await;
    assert!(again < Duration::from_secs(3), "{again:?}");
    cluster.resume(leader);
    assert!(is_held(&a.renew(&[1]).await.unwrap()));
    assert_eq!(b.acquire(&[1]).await, [TicketState::Queued]);
    assert_eq!(a.release(&[1]).await, [true]);
    assert!(until_token(&b, 1, Duration::from_secs(3)).await > first);
}

#[tokio::test]
async fn a_server_is_killed_and_restarted() {
    let mut cluster = EtcdCluster::start(3);
    let (a, mut b) = (Peer::of(&cluster), Peer::of(&cluster));
    let first = token(&a.acquire(&[1]).await);
    assert_eq!(b.acquire(&[1]).await, [TicketState::Queued]);
    // Both are connected to the first server.
    cluster.kill(0);
    let again = until_held(&a, 1, Duration::from_secs(5)).await;
    assert!(again < Duration::from_secs(3), "{again:?}");
    assert_eq!(b.acquire(&[1]).await, [TicketState::Queued]);
    // The watch was opened again, on another server.
    sleep(Duration::from_millis(300)).await;
    assert_eq!(a.release(&[1]).await, [true]);
    let next = b.granted().await;
    assert!(next.ticket == 1 && next.token > first);
    cluster.restart(0);
    assert!(is_held(&b.renew(&[1]).await.unwrap()));
}

#[tokio::test]
async fn one_endpoint_is_down_from_the_start() {
    let mut cluster = EtcdCluster::start(3);
    cluster.kill(0);
    let a = Peer::of(&cluster);
    let took = until_held(&a, 1, Duration::from_secs(5)).await;
    assert!(took < Duration::from_secs(2), "{took:?}");
    a.session.check(LEASE).await.unwrap();
}

#[tokio::test]
async fn without_a_majority_nothing_is_granted_and_no_call_hangs() {
    let cluster = EtcdCluster::start(3);
    let b = Peer::of(&cluster);
    let first = until_token(&b, 1, Duration::from_secs(5)).await;
    assert_eq!(b.release(&[1]).await, [true]);
    let a = Peer::of(&cluster);
    a.session.check(LEASE).await.unwrap();
    cluster.pause(1);
    cluster.pause(2);
    let start = std::time::Instant::now();
    let error = a.try_to_acquire(&[1]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(
        start.elapsed() < Duration::from_secs(4),
        "{:?}",
        start.elapsed()
    );
    cluster.resume(1);
    cluster.resume(2);
    assert!(until_token(&a, 1, Duration::from_secs(5)).await > first);
}

#[tokio::test]
async fn a_check_of_a_partly_stopped_cluster_ends_in_time() {
    let cluster = EtcdCluster::start(3);
    let check = async || {
        let start = std::time::Instant::now();
        let checked = Peer::of(&cluster).session.check(LEASE).await;
        assert!(start.elapsed() < CHECK_TIMEOUT + Duration::from_millis(500));
        checked
    };
    let leader = cluster.leader();
    cluster.pause((leader + 1) % 3);
    check().await.unwrap();
    cluster.pause((leader + 2) % 3);
    let error = check().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("etcd"), "{error}");
    cluster.pause(leader);
    let error = check().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

#[tokio::test]
async fn a_watch_continues_after_a_restart_and_a_compaction() {
    let mut cluster = EtcdCluster::start(1);
    // However long the restart takes.
    let peer = || Peer::of(&cluster).lease(LEASE * 5);
    let (a, mut b) = (peer(), peer());
    let first = token(&a.acquire(&[1]).await);
    assert_eq!(b.acquire(&[1]).await, [TicketState::Queued]);
    sleep(Duration::from_millis(200)).await;
    cluster.kill(0);
    cluster.restart(0);
    for key in 0..20 {
        cluster.ctl(&["put", "other", &key.to_string()]);
    }
    let answer = cluster.ctl(&["get", "other", "-w", "fields"]);
    let revision = answer
        .lines()
        .find_map(|line| line.strip_prefix("\"Revision\" : "));
    cluster.ctl(&["compact", revision.expect("a revision")]);
    sleep(Duration::from_millis(500)).await;
    assert!(is_held(&a.renew(&[1]).await.unwrap()));
    a.release(&[1]).await;
    let next = b.granted().await;
    assert!(next.ticket == 1 && next.token > first);
}

#[tokio::test]
async fn a_wiped_cluster_loses_all_permits_and_grants_new_ones() {
    let mut cluster = EtcdCluster::start(1);
    let mut a = Peer::of(&cluster);
    for _ in 0..5 {
        a.acquire(&[1]).await;
        a.release(&[1]).await;
    }
    assert!(is_held(&a.acquire(&[1]).await));
    cluster.wipe();
    assert!(!is_held(&a.renew(&[1]).await.unwrap_or_default()));
    assert_eq!(a.event().await, Event::Lost);
    until_held(&a, 2, Duration::from_secs(3)).await;
}
