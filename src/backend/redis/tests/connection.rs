//! Connections to servers that are down, slow, restarted, or cut off.

use super::*;
use crate::backend::support::proxy::{Mode, Proxy, Way};

#[tokio::test]
async fn a_call_to_a_stopped_server_fails_at_once() {
    let mut server = RedisServer::start();
    let mut a = Peer::new(&server.url());
    a.acquire(&[1]).await;
    a.resynced().await;
    server.stop();
    for _ in 0..20 {
        let start = Instant::now();
        let error = a.try_acquire_tickets(&[2]).await.unwrap_err();
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
    // The longest pause after so short an outage.
    sleep(Duration::from_millis(410)).await;
    assert_eq!(plain(&a.acquire(&[3]).await.acquired), HELD);
    a.resynced().await;
}

/// In 5 s the shortest pauses allow 13 attempts. A constant pause as long as the first one would allow 200.
#[tokio::test]
async fn a_refused_login_is_repeated_with_growing_pauses() {
    const WINDOW: Duration = Duration::from_secs(5);
    let server = RedisServer::start_with(&["--requirepass", "secret"]);
    let proxy = Proxy::start(server.port()).await;
    let url = proxy.url().replace("redis://", "redis://:mistaken@");
    let a = Peer::new(&url);
    let start = Instant::now();
    while start.elapsed() < WINDOW {
        let error = a.try_acquire_tickets(&[1]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        sleep(Duration::from_millis(2)).await;
    }
    let attempts = proxy.connections();
    assert!((3..=13).contains(&attempts), "{attempts}");
}

#[tokio::test]
async fn a_server_of_another_kind_is_an_incompatible_server() {
    let other = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", other.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = other.accept().await {
            let answer = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n";
            let _ = tokio::io::AsyncWriteExt::write_all(&mut stream, answer).await;
        }
    });
    let error = Peer::new(&url).try_acquire_tickets(&[1]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
    assert!(error.to_string().contains("not RESP"), "{error}");
    assert!(!error.to_string().contains('\n'), "{error}");
}

#[tokio::test]
async fn a_restart_between_two_calls_fails_no_call() {
    let mut server = RedisServer::start();
    let mut a = Peer::new(&server.url());
    a.acquire(&[1]).await;
    a.resynced().await;
    server.restart();
    a.resynced().await;
    assert_eq!(plain(&a.acquire(&[2]).await.acquired), HELD);
    a.resynced().await;
}

#[tokio::test]
async fn an_abandoned_call_without_an_answer_opens_a_new_connection() {
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
    a.acquire(&[1]).await;
    let before = connections();
    server.pause();
    // Dropped before it can send anything.
    let call = exchange_one(&*a.session, a.call());
    assert!(timeout(Duration::from_millis(5), call).await.is_err());
    server.resume();
    a.acquire(&[1]).await;
    assert_eq!(
        connections() - before,
        1,
        "only the connection of this call"
    );
    server.pause();
    a.give_up().await;
    // The connection attempt continues while calls that wait for it are given up.
    a.give_up().await;
    a.give_up().await;
    server.resume();
    assert_eq!(plain(&a.acquire(&[1]).await.acquired), HELD);
    assert_eq!(connections() - before, 3);
}

#[tokio::test]
async fn a_connection_that_answers_slowly_is_kept() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let a = Peer::new(&proxy.url());
    a.acquire(&[1]).await;
    proxy.set(Way::Down, Mode::Delay(Duration::from_millis(200)));
    let early = a.renew(&[1]);
    let late = async {
        sleep(Duration::from_millis(100)).await;
        let call = exchange_one(&*a.session, a.call());
        // The early call is answered meanwhile.
        timeout(Duration::from_millis(200), call).await
    };
    let (early, late) = tokio::join!(early, late);
    assert_eq!(plain(&early.renewed), HELD);
    assert!(late.is_err());
    assert_eq!(plain(&a.renew(&[1]).await.renewed), HELD);
    assert_eq!(proxy.connections(), 1);
}

/// The peer of an idle connection has vanished without a sign: the first call over it is given up, the second one is
/// answered over a new connection.
#[tokio::test]
async fn a_black_hole_costs_one_call() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let a = Peer::new(&proxy.url());
    a.acquire(&[1]).await;
    for way in [Way::Up, Way::Down] {
        proxy.set_present(way, Mode::Lose);
    }
    let start = Instant::now();
    let call = exchange_one(&*a.session, a.call());
    assert!(timeout(Duration::from_millis(400), call).await.is_err());
    assert_eq!(plain(&a.renew(&[1]).await.renewed), HELD);
    let took = start.elapsed();
    assert!(took < Duration::from_millis(700), "{took:?}");
    assert_eq!(proxy.connections(), 2);
}

#[tokio::test]
async fn a_connection_attempt_times_out() {
    let server = RedisServer::start();
    let a = Peer::new(&server.url());
    server.pause();
    let start = Instant::now();
    let error = a.try_acquire_tickets(&[1]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(start.elapsed() < Duration::from_millis(2500));
    let error = a.session.check(LEASE).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    server.resume();
}

#[tokio::test]
async fn unix_sockets_databases_and_connection_limits() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("redis.sock");
    let socket = socket.to_str().unwrap();
    let server = RedisServer::start_with(&["--unixsocket", socket]);
    let (a, mut b) = (
        Peer::new(&format!("redis+unix://{socket}?db=3")),
        Peer::new(&format!("{}/3", server.url())),
    );
    a.acquire(&[1]).await;
    assert_eq!(b.acquire(&[1]).await.acquired, WAITING);
    a.release(&[1]).await;
    assert_eq!(b.granted().await.ticket, 1);
    assert_eq!(server.command(&["DBSIZE"]).int(), 0);
    a.session.check(LEASE).await.unwrap();

    let none = Peer::new(&format!("{}/99", server.url()));
    let error = none.try_acquire_tickets(&[1]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
    server.command(&["CONFIG", "SET", "maxclients", "2"]);
    let late = Peer::new(&server.url());
    let error = late.try_acquire_tickets(&[1]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

/// Many names at once, while connections are cut and scripts forgotten.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_succeed_while_connections_are_cut() {
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
                            acquire: ticket,
                            ..a.call()
                        }
                    } else {
                        Call {
                            queue,
                            release: vec![done - 1],
                            ..a.call()
                        }
                    };
                    match a.send(call).await {
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
            assert_eq!(plain(&a.acquire(&[ticket]).await.acquired), HELD);
            a.release(&[ticket]).await;
        });
        // One that ends in the middle of connecting.
        drop(runtime);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let a = a.clone();
            tokio::spawn(async move { drop(a.try_acquire_tickets(&[99]).await) });
            tokio::task::yield_now().await;
        });
    }
    assert_eq!(server.command(&["ZCARD", keys()[0]]), Answer::Int(0));
}

#[tokio::test]
async fn a_server_that_closes_the_connection_or_has_no_socket_is_explained() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            drop(connection);
        }
    });
    for (url, explanation) in [
        (
            format!("redis://{address}"),
            "expects TLS (use a rediss:// URL)",
        ),
        (
            "redis+unix:///no/such/socket".to_owned(),
            "there is no socket at /no/such/socket",
        ),
    ] {
        let permits = crate::Coordinator::new(Redis::new(url).unwrap());
        let error = permits.check().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains(explanation), "{error}");
    }
}
