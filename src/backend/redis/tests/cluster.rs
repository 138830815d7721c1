//! Clusters. What happens under load is in `tests/deployments`.

use super::*;
use crate::backend::redis::keys::Keys;
use crate::backend::redis::route::slot;
use crate::backend::support::cluster::RedisCluster;
use proptest::prelude::*;

fn redis(cluster: &RedisCluster) -> Redis {
    let redis = Redis::cluster(&cluster.addresses()[..1]).unwrap();
    redis.prefix("shop").unwrap()
}

/// A queue at this node.
fn queue_at(cluster: &RedisCluster, port: u16) -> Queue {
    let at = |queue: &Queue| {
        let key = format!("shop:limit:{{{}}}", queue.name());
        cluster.master_of(&key).port() == port
    };
    let queues = (0..).map(|number: u32| Queue::limit(number.to_string().as_bytes()).unwrap());
    queues.into_iter().find(at).unwrap()
}

async fn acquire(peer: &Peer, queue: &Queue, ticket: u64) -> Result<Outcome, Error> {
    let (queue, acquire) = (queue.clone(), vec![ticket]);
    let call = Call {
        queue,
        acquire,
        ..peer.call()
    };
    peer.send(call).await
}

/// The same slot as the server reckons, for all keys of any name.
#[test]
fn all_keys_of_a_name_are_in_one_slot() {
    let server = RedisServer::start_with(&["--cluster-enabled", "yes", "--cluster-port", "{bus}"]);
    let same = |name: &[u8]| {
        for queue in [Queue::limit(name).unwrap(), Queue::mutex(name).unwrap()] {
            for key in Keys::new("a:b", &queue).all() {
                let theirs = server.command(&["CLUSTER", "KEYSLOT", key]).int();
                assert_eq!(theirs, i64::from(slot(&queue)), "{key}");
            }
        }
    };
    for name in ["", "a", "{a}", "}{", "{}", "ü", "a:queue", "a b\r\n\0"] {
        same(name.as_bytes());
    }
    same(&[b'x'; 60_000]);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(100));
    let names = proptest::collection::vec(any::<u8>(), 0..200);
    runner
        .run(&names, |name| {
            same(&name);
            Ok(())
        })
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_are_routed_to_their_nodes_and_pushes_arrive_once() {
    let cluster = RedisCluster::start(3, false);
    let (a, mut b) = (Peer::of(redis(&cluster)), Peer::of(redis(&cluster)));
    a.session.check(LEASE).await.unwrap();
    for node in &cluster.nodes {
        assert_eq!(node.command(&["DBSIZE"]).int(), 0);
    }
    let queues: Vec<_> = cluster
        .nodes
        .iter()
        .map(|node| queue_at(&cluster, node.port()))
        .collect();
    // Each process has a link to each node, and each node hands on what is pushed.
    for round in 0..3 {
        for (queue, node) in queues.iter().zip(&cluster.nodes) {
            assert_eq!(
                plain(&acquire(&a, queue, round).await.unwrap().acquired),
                HELD
            );
            assert_eq!(acquire(&b, queue, round).await.unwrap().acquired, WAITING);
            assert!(node.command(&["DBSIZE"]).int() >= 3);
            while b.events.try_recv().is_ok() {}
            let release = Call {
                queue: queue.clone(),
                release: vec![round],
                ..a.call()
            };
            a.send(release).await.unwrap();
            assert_eq!(b.granted().await.ticket, round);
            sleep(Duration::from_millis(30)).await;
            let again: Vec<_> = std::iter::from_fn(|| b.events.try_recv().ok()).collect();
            assert!(
                !again.iter().any(|e| matches!(e, Event::Granted { .. })),
                "{again:?}"
            );
            let release = Call {
                queue: queue.clone(),
                release: vec![round],
                ..b.call()
            };
            b.send(release).await.unwrap();
        }
    }
}

/// With all its keys a name is followed from node to node. While one does not exist, as without a queue, neither node answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_migrating_slot_is_followed() {
    let cluster = RedisCluster::start(3, false);
    let (a, mut b) = (Peer::of(redis(&cluster)), Peer::of(redis(&cluster)));
    let (from, to) = (&cluster.nodes[0], &cluster.nodes[1]);
    let queue = queue_at(&cluster, from.port());
    let release = async |peer: &Peer| {
        let call = Call {
            queue: queue.clone(),
            release: vec![1],
            ..peer.call()
        };
        peer.send(call).await.unwrap();
    };
    let meanwhile = async |from: &RedisServer, to: &RedisServer| {
        let half_way = Duration::from_millis(900);
        std::thread::scope(|scope| {
            let moving = scope.spawn(|| cluster.move_slot(slot(&queue), from, to, half_way));
            let message = tokio::task::block_in_place(|| {
                tokio::runtime::Handle::current().block_on(async {
                    sleep(half_way / 3).await;
                    let start = Instant::now();
                    let message = acquire(&a, &queue, 1).await;
                    assert!(start.elapsed() < Duration::from_millis(500));
                    message
                })
            });
            assert!(!moving.is_finished());
            moving.join().unwrap();
            message
        })
    };
    let held = acquire(&a, &queue, 1).await.unwrap().acquired;
    assert_eq!(acquire(&b, &queue, 1).await.unwrap().acquired, WAITING);
    assert_eq!(meanwhile(from, to).await.unwrap().acquired, held);
    assert_eq!(acquire(&a, &queue, 1).await.unwrap().acquired, held);
    assert_eq!(acquire(&b, &queue, 1).await.unwrap().acquired, WAITING);
    release(&a).await;
    assert_eq!(b.granted().await.ticket, 1, "pushed by the new node");
    let next = acquire(&b, &queue, 1).await.unwrap().acquired;
    assert!(token(&next) > token(&held));

    release(&b).await;
    let held = acquire(&a, &queue, 1).await.unwrap().acquired;
    let error = meanwhile(to, from).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("is being changed"), "{error}");
    assert_eq!(acquire(&a, &queue, 1).await.unwrap().acquired, held);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_are_reported_soon() {
    let mut cluster = RedisCluster::start(3, false);
    let single = RedisServer::start();
    let check = async |redis: Redis| {
        let start = Instant::now();
        let error = Peer::of(redis).session.check(LEASE).await.unwrap_err();
        assert!(start.elapsed() < CHECK_TIMEOUT + Duration::from_millis(500));
        error
    };
    let no_cluster = check(Redis::cluster([single.address()]).unwrap()).await;
    assert_eq!(no_cluster.kind(), ErrorKind::Incompatible, "{no_cluster}");
    let nowhere = check(Redis::cluster(["127.0.0.1:1"]).unwrap()).await;
    assert_eq!(nowhere.kind(), ErrorKind::Unavailable, "{nowhere}");
    let wrong = redis(&cluster).credentials("u", "hush");
    let wrong = check(wrong).await;
    assert_eq!(wrong.kind(), ErrorKind::Denied, "{wrong}");
    assert!(!wrong.to_string().contains("hush"), "{wrong}");
    let list = cluster.addresses().join(",");
    let by_url = Redis::of_any_url(&format!("redis+cluster://{list}")).unwrap();
    Peer::of(by_url).session.check(LEASE).await.unwrap();
    // One server gets calls about names of other nodes.
    let one = Peer::new(&cluster.nodes[0].url());
    let elsewhere = queue_at(&cluster, cluster.nodes[1].port());
    let error = acquire(&one, &elsewhere, 1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
    assert!(error.to_string().contains("Redis::cluster"), "{error}");
    // A right that is missing at one node only.
    let rights: Vec<_> = RIGHTS.split_whitespace().collect();
    let (last, but_last) = rights.split_last().unwrap();
    for (number, node) in cluster.nodes.iter().enumerate() {
        let user = [
            "ACL",
            "SETUSER",
            "u",
            "on",
            ">hush",
            "~shop:*",
            "&shop:push:*",
            "-@all",
            "+cluster|slots",
        ];
        let rights = if number == 2 { but_last } else { &rights };
        assert_eq!(node.command(&[&user[..], rights].concat()).text(), "OK");
    }
    let less = check(redis(&cluster).credentials("u", "hush")).await;
    assert_eq!(less.kind(), ErrorKind::Denied, "{less}");
    for node in &cluster.nodes {
        node.command(&["ACL", "SETUSER", "u", last]);
    }
    Peer::of(redis(&cluster).credentials("u", "hush"))
        .session
        .check(LEASE)
        .await
        .unwrap();

    let a = Peer::of(redis(&cluster));
    let queues: Vec<_> = cluster
        .nodes
        .iter()
        .map(|node| queue_at(&cluster, node.port()))
        .collect();
    for queue in &queues {
        acquire(&a, queue, 1).await.unwrap();
    }
    // One node has no replica: its names become unavailable with it, and later all others (cluster-require-full-coverage).
    cluster.nodes[1].kill();
    for _ in 0..10 {
        let start = Instant::now();
        let error = acquire(&a, &queues[1], 1).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(
            start.elapsed() < Duration::from_millis(600),
            "{:?}",
            start.elapsed()
        );
    }
    let all_down = async {
        loop {
            match acquire(&a, &queues[0], 1).await {
                Ok(_) => sleep(Duration::from_millis(20)).await,
                Err(error) => break error,
            }
        }
    };
    let error = timeout(HANG_GUARD, all_down).await.unwrap();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let partly = check(redis(&cluster)).await;
    assert_eq!(partly.kind(), ErrorKind::Unavailable, "{partly}");
    cluster.nodes[1].restart();
    let back = async { while acquire(&a, &queues[1], 1).await.is_err() {} };
    timeout(HANG_GUARD, back).await.unwrap();
}

#[test]
fn nodes_are_checked_when_given() {
    let none: [&str; 0] = [];
    for wrong in [
        Redis::cluster(none),
        Redis::cluster(["h:x"]),
        Redis::cluster(["redis://:hush@h/1"]),
        Redis::cluster(["h"]).unwrap().database(1),
        #[cfg(feature = "redis-tls")]
        Redis::cluster(["h:1", "rediss://h:2"]),
    ] {
        let error = wrong.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        assert!(!format!("{error} {error:?}").contains("hush"));
    }
    for wrong in [
        "redis+cluster://u:hush@",
        "redis+cluster://u:hush@h:1,",
        "redis+cluster://u:hush@h:1/1",
        "redis+cluster://u:hush@h:1?x=y",
    ] {
        let error = Redis::of_any_url(wrong).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{wrong}");
        assert!(!format!("{error} {error:?}").contains("hush"));
    }
    let redis = Redis::cluster(["h:1", "redis://u:hush@[::1]:2"]).unwrap();
    let shown = format!("{redis:?}");
    assert!(shown.contains("h:1") && !shown.contains("hush"), "{shown}");
}

/// The names of a missing node are refused while the others answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_shard_delays_no_other_shard() {
    let mut cluster = RedisCluster::start(3, false);
    for node in &cluster.nodes {
        node.command(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    let name_at = |port| {
        let queue = queue_at(&cluster, port);
        String::from_utf8(queue.name().bytes().collect()).unwrap()
    };
    let names = [0, 1].map(|node| name_at(cluster.nodes[node].port()));
    let permits = crate::Coordinator::new(redis(&cluster));
    let [gone, there] = names.map(|name| permits.semaphore(name, 1).unwrap());
    drop(gone.acquire().await.unwrap());
    cluster.nodes[0].kill();
    let busy = tokio::spawn(async move {
        loop {
            drop(there.acquire().await.unwrap());
            sleep(Duration::from_millis(20)).await;
        }
    });
    for _ in 0..3 {
        let within = Duration::from_secs(4);
        let error = timeout(within, gone.acquire()).await.expect("an answer");
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Unavailable);
        let error = timeout(within, gone.try_acquire())
            .await
            .expect("an answer");
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Unavailable);
    }
    assert!(!busy.is_finished(), "the others go on");
    busy.abort();
    cluster.nodes[0].restart();
    let back = async { while gone.acquire().await.is_err() {} };
    timeout(HANG_GUARD, back).await.unwrap();
}

/// As during a migration of a fleet: the cluster has one node, or a proxy presents it as one server.
#[tokio::test]
async fn a_single_server_client_of_a_cluster_node_shares_its_permits() {
    let cluster = RedisCluster::start(1, false);
    let one = Peer::new(&cluster.nodes[0].url());
    let other = Peer::of(redis(&cluster));
    assert_eq!(plain(&one.acquire(&[1]).await.acquired), HELD);
    assert_eq!(other.acquire(&[1]).await.acquired, WAITING);
    one.release(&[1]).await;
    assert_eq!(plain(&other.acquire(&[1]).await.acquired), HELD);
    assert_eq!(one.acquire(&[2]).await.acquired, WAITING);
    // Names of several slots, as one batch.
    let calls = (0..8).map(|number: u32| Call {
        queue: Queue::limit(number.to_string().as_bytes()).unwrap(),
        acquire: vec![3],
        ..one.call()
    });
    let mut replies = one.session.exchange(calls.collect());
    let mut answered = 0;
    while let Some((_, reply)) = futures_util::StreamExt::next(&mut replies).await {
        assert!(matches!(reply, Ok(Reply::Done(outcome)) if plain(&outcome.acquired) == HELD));
        answered += 1;
    }
    assert_eq!(answered, 8);
}
