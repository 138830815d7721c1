//! The etcd lease of the process.

use super::*;

#[tokio::test]
async fn a_revoked_lease_loses_held_and_queued_tickets() {
    let cluster = EtcdCluster::start(1);
    let (mut a, mut b) = (Peer::of(&cluster), Peer::of(&cluster));
    assert!(is_held(&a.acquire(&[1]).await));
    assert_eq!(b.acquire(&[1, 2]).await, [TicketState::Queued; 2]);
    // While queued: the queue entries are lost, and the next call creates them again.
    b.revoke(&cluster);
    assert_eq!(b.event().await, Event::Lost);
    assert_eq!(b.acquire(&[1, 2]).await, [TicketState::Queued; 2]);
    // While held.
    a.revoke(&cluster);
    assert_eq!(a.event().await, Event::Lost);
    assert_eq!(b.granted().await.ticket, 1);
    assert_eq!(a.renew(&[1]).await.unwrap(), [TicketState::Gone]);
    assert_eq!(a.acquire(&[2]).await, [TicketState::Queued]);
}

/// A watch reports changes. Applied to a queue that is not known any more they would result in a wrong queue, with holders that
/// do not hold.
#[tokio::test]
async fn after_a_lost_lease_another_watch_follows_the_queue() {
    let cluster = EtcdCluster::start(1);
    let (mut a, b) = (Peer::of(&cluster), Peer::of(&cluster));
    assert!(is_held(&b.acquire(&[1]).await));
    assert_eq!(a.acquire(&[1]).await, [TicketState::Queued]);
    let watch = || a.session.shared.state().names[&queue()].watch;
    let before = watch();
    assert!(before.is_some(), "it is queued");
    a.session.shared.lose_lease(a.lease_id());
    assert_eq!(watch(), None);
    assert_eq!(a.acquire(&[2]).await, [TicketState::Queued]);
    assert!(watch() > before);
    assert_eq!(a.event().await, Event::Lost);
    assert_eq!(b.release(&[1]).await, [true]);
}

#[tokio::test]
async fn a_call_under_a_revoked_lease_fails_and_the_next_gets_a_new_lease() {
    let cluster = EtcdCluster::start(1);
    let mut a = Peer::of(&cluster);
    assert!(is_held(&a.acquire(&[1]).await));
    a.revoke(&cluster);
    let error = a.try_to_acquire(&[2]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(a.event().await, Event::Lost);
    assert!(is_held(&a.acquire(&[2]).await));
}

#[tokio::test]
async fn the_permits_of_a_dead_process_are_free_soon_after_its_lease() {
    let cluster = EtcdCluster::start(1);
    let b = Peer::of(&cluster);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let etcd = Etcd::new(cluster.endpoints()).unwrap();
    let a = runtime
        .spawn(async {
            let a = Peer::at(etcd).lease(Duration::from_secs(1));
            assert!(is_held(&a.acquire(&[1]).await));
            a
        })
        .await
        .unwrap();
    // Its tasks end with its runtime, as they would with the process.
    runtime.shutdown_background();
    let took = until_held(&b, 1, Duration::from_secs(6)).await;
    assert!(took > Duration::from_millis(900), "{took:?}");
    // On another runtime it continues, and is notified.
    let mut a = a;
    assert_eq!(a.renew(&[1]).await.unwrap(), [TicketState::Gone]);
    assert_eq!(a.event().await, Event::Lost);
}

#[tokio::test]
async fn the_maintenance_task_is_restarted_on_the_runtime_of_the_next_call() {
    let cluster = EtcdCluster::start(1);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let etcd = Etcd::new(cluster.endpoints()).unwrap();
    let mut a = runtime
        .spawn(async {
            let a = Peer::at(etcd).lease(Duration::from_secs(1));
            assert!(is_held(&a.acquire(&[1]).await));
            a
        })
        .await
        .unwrap();
    runtime.shutdown_background();
    // Calls about another ticket keep the etcd lease. The first ticket expires by its own lease.
    for _ in 0..10 {
        a.acquire(&[2]).await;
        sleep(Duration::from_millis(250)).await;
    }
    assert_eq!(
        a.granted().await.ticket,
        2,
        "the first ticket expired, but not the etcd lease"
    );
}

#[tokio::test]
async fn an_unused_session_leaves_no_keys() {
    let cluster = EtcdCluster::start(1);
    let a = Peer::of(&cluster);
    assert!(is_held(&a.acquire(&[1]).await));
    assert_eq!(a.release(&[1]).await, [true]);
    drop(a);
    sleep(Duration::from_millis(300)).await;
    assert_eq!(
        cluster.ctl(&["lease", "list"]).lines().count(),
        1,
        "only the heading"
    );
    assert_eq!(cluster.ctl(&["get", "--prefix", "permit"]), "");
}

#[tokio::test]
async fn a_late_write_is_fenced_off() {
    let cluster = EtcdCluster::start(1);
    let a = Peer::of(&cluster);
    a.acquire(&[1]).await;
    a.release(&[1]).await;
    // The server is stopped while it has the request. It executes the request afterwards, unless it is fenced off.
    cluster.pause(0);
    let acquire = Call {
        acquire: vec![2],
        ..a.call()
    };
    a.give_up(acquire, Duration::from_millis(200)).await;
    let release = Call {
        release: vec![2],
        ..a.call()
    };
    let released = tokio::spawn({
        let session = a.session.clone();
        async move { exchange_one(&*session, release).await }
    });
    sleep(Duration::from_millis(100)).await;
    cluster.resume(0);
    let released = timeout(HANG_GUARD, released).await.unwrap().unwrap();
    assert!(matches!(released, Ok(Reply::Done(_))), "{released:?}");
    sleep(Duration::from_millis(300)).await;
    let inspection = a.session.inspect(queue()).await.unwrap();
    assert_eq!((inspection.in_use, inspection.queued), (0, 0));
}

#[tokio::test]
async fn unknown_keys_under_the_lease_are_deleted() {
    let cluster = EtcdCluster::start(1);
    let a = Peer::of(&cluster).lease(Duration::from_secs(1));
    a.acquire(&[1]).await;
    let key = format!("permit/mutex/name/{}", a.node.ticket(7));
    let lease = format!("--lease={:x}", a.lease_id());
    cluster.ctl(&["put", &lease, &key, "1 1000"]);
    for _ in 0..8 {
        a.renew(&[1]).await.unwrap();
        sleep(Duration::from_millis(250)).await;
    }
    assert_eq!(cluster.ctl(&["get", &key]), "");
    assert!(is_held(&a.renew(&[1]).await.unwrap()));
}

#[tokio::test]
async fn two_tasks_of_one_process_have_two_tickets() {
    let cluster = EtcdCluster::start(1);
    let permits = crate::Coordinator::new(Etcd::new(cluster.endpoints()).unwrap());
    let inside = Arc::new(AtomicU64::new(0));
    let tasks = (0..8).map(|_| {
        let (permits, inside) = (permits.clone(), inside.clone());
        tokio::spawn(async move {
            for _ in 0..10 {
                let guard = permits.mutex("one").unwrap().lock().await.unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders");
                sleep(Duration::from_millis(1)).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                drop(guard);
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
}

#[tokio::test]
async fn holders_are_notified_at_once_of_a_lost_lease() {
    let cluster = EtcdCluster::start(1);
    let etcd = Etcd::new(cluster.endpoints()).unwrap();
    let permits = crate::Coordinator::builder(etcd)
        .lease(LEASE)
        .build()
        .unwrap();
    let guard = permits.mutex("one").unwrap().lock().await.unwrap();
    let permit = permits
        .semaphore("many", 3)
        .unwrap()
        .acquire()
        .await
        .unwrap();
    let leases = cluster.ctl(&["lease", "list"]);
    cluster.ctl(&["lease", "revoke", leases.lines().nth(1).unwrap()]);
    let lost = futures_util::future::join(guard.lost(), permit.lost());
    timeout(LEASE, lost).await.expect("both are notified");
    drop((guard, permit));
    let again = permits.mutex("one").unwrap();
    assert!(timeout(LEASE, again.lock()).await.unwrap().is_ok());
}

#[tokio::test]
async fn one_move_of_the_fence_serves_all_uncertain_names() {
    const NAMES: u32 = 200;
    let cluster = EtcdCluster::start(1);
    let a = Peer::of(&cluster).lease(LEASE * 5);
    let call = |name: u32| Call {
        queue: Queue::mutex(&name.to_be_bytes()).unwrap(),
        acquire: vec![1],
        ..a.call()
    };
    let moves = || {
        let key = keys::session_key(DEFAULT_PREFIX, &a.node);
        let answer = cluster.ctl(&["get", &key, "-w", "fields"]);
        let mut lines = answer.lines();
        let version = lines.find_map(|line| line.strip_prefix("\"Version\" : "));
        version.expect("a fence").parse::<u32>().unwrap()
    };
    a.exchange(call(0)).await.unwrap();
    let before = moves();
    cluster.pause(0);
    let given_up = (0..NAMES).map(|name| a.give_up(call(name), Duration::from_millis(100)));
    futures_util::future::join_all(given_up).await;
    cluster.resume(0);
    let answers = (0..NAMES).map(|name| a.exchange(call(name)));
    for answer in futures_util::future::join_all(answers).await {
        assert!(is_held(&answer.unwrap().acquired));
    }
    let moved = moves() - before;
    assert!((1..NAMES / 2).contains(&moved), "{moved}");
}
