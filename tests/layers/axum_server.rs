//! An axum server on a TCP socket.

use crate::support::*;
use axum::Router;
use axum::body::Body;
use axum::routing::get;
use bytes::Bytes;
use futures_util::stream;
use std::convert::Infallible;
use test_support::HANG_GUARD;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tower_permit::{DistributedConcurrencyLimitLayer as LimitLayer, PermitHandle};

/// A streamed body that the witness counts until it ends or is dropped.
fn streamed(witness: &Witness, pieces: usize) -> Body {
    Body::from_stream(stream::unfold(
        (witness.enter(), pieces),
        |(inside, pieces)| async move {
            tokio::time::sleep(millis(2)).await;
            let next = pieces.checked_sub(1)?;
            Some((Ok::<_, Infallible>("piece\n"), (inside, next)))
        },
    ))
}

/// A client without a connection pool: each request opens a connection.
fn client() -> reqwest::Client {
    reqwest::Client::builder()
        .pool_max_idle_per_host(0)
        .build()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_connections_share_one_limit() {
    let witness = Witness::default();
    let counter = witness.clone();
    let app = Router::new()
        .route("/", get(move || async move { streamed(&counter, 3) }))
        .layer(LimitLayer::new(semaphore(4)).reject_with_response());
    let address = serve(app).await;
    let client = client();
    let requests: Vec<_> = (0..40)
        .map(|_| {
            let request = client.get(format!("http://{address}/"));
            tokio::spawn(async move { request.send().await.unwrap().text().await.unwrap() })
        })
        .collect();
    for request in requests {
        assert_eq!(request.await.unwrap(), "piece\npiece\npiece\n");
    }
    assert_eq!((witness.inside(), witness.peak()), (0, 4));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_server_responds_with_429() {
    let semaphore = semaphore(1);
    let app = Router::new().route("/", get(|| async { "hello" })).layer(
        LimitLayer::new(semaphore.clone())
            .reject_when_full()
            .retry_after(secs(7))
            .reject_with_response(),
    );
    let address = serve(app).await;
    let held = semaphore.acquire().await.unwrap();
    let response = client()
        .get(format!("http://{address}/"))
        .send()
        .await
        .unwrap();
    assert_eq!(response.status(), 429);
    assert_eq!(response.headers()["retry-after"], "7");
    let text = response.text().await.unwrap();
    assert_eq!(text, "too many concurrent requests, retry later");
    drop(held);
    let response = client().get(format!("http://{address}/")).send().await;
    assert_eq!(response.unwrap().text().await.unwrap(), "hello");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disconnected_client_releases_its_permit() {
    let witness = Witness::default();
    let counter = witness.clone();
    let semaphore = semaphore(1);
    let app = Router::new()
        .route(
            "/",
            get(move || async move { streamed(&counter, usize::MAX) }),
        )
        .layer(LimitLayer::new(semaphore.clone()).reject_with_response());
    let address = serve(app).await;

    let mut connection = TcpStream::connect(address).await.unwrap();
    connection
        .write_all(b"GET / HTTP/1.1\r\nhost: test\r\n\r\n")
        .await
        .unwrap();
    let mut read = Vec::new();
    while !read.windows(5).any(|part| part == b"piece") {
        connection.read_buf(&mut read).await.unwrap();
    }
    assert_eq!(witness.inside(), 1);
    let waiting = tokio::spawn(async move { semaphore.acquire().await });
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());

    drop(connection);
    let permit = timeout(secs(10), waiting).await.expect("released");
    drop(permit.unwrap().unwrap());
    assert_eq!(witness.inside(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_do_not_read_release_their_permits() {
    let endless = || async {
        let piece = Bytes::from(vec![b'x'; 64 * 1024]);
        Body::from_stream(stream::repeat(Ok::<_, Infallible>(piece)))
    };
    let semaphore = semaphore(20);
    let layer = LimitLayer::new(semaphore.clone()).reject_when_full();
    let app = Router::new()
        .route("/", get(endless))
        .layer(layer.stall_timeout(millis(500)).reject_with_response());
    let address = serve(app).await;
    let mut connections = Vec::new();
    for _ in 0..20 {
        let mut connection = TcpStream::connect(address).await.unwrap();
        let request = b"GET / HTTP/1.1\r\nhost: test\r\n\r\n";
        connection.write_all(request).await.unwrap();
        connections.push(connection);
    }
    let all = async {
        while semaphore.stats().lost < 20 {
            tokio::time::sleep(millis(10)).await
        }
    };
    timeout(HANG_GUARD, all).await.expect("each stalls");
    let response = client().get(format!("http://{address}/")).send().await;
    assert_eq!(response.unwrap().status(), 200);
    drop(connections);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn head_and_no_content_hold_no_permit() {
    let semaphore = semaphore(1);
    let app = Router::new()
        .route("/", get(|| async { "hello" }))
        .route("/none", get(|| async { http::StatusCode::NO_CONTENT }))
        .layer(LimitLayer::new(semaphore.clone()).reject_with_response());
    let address = serve(app).await;
    let client = reqwest::Client::new();
    for _ in 0..3 {
        let response = client.head(format!("http://{address}/")).send().await;
        assert_eq!(response.unwrap().status(), 200);
        let response = client.get(format!("http://{address}/none")).send().await;
        assert_eq!(response.unwrap().status(), 204);
        let permit = timeout(secs(10), semaphore.acquire()).await;
        drop(permit.expect("released").unwrap());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn background_work_holds_the_permit() {
    let semaphore = semaphore(1);
    let (finish, finished) = tokio::sync::watch::channel(false);
    let handler = move |request: axum::extract::Request| async move {
        let guard = request
            .extensions()
            .get::<PermitHandle>()
            .and_then(PermitHandle::upgrade);
        let accepted = guard.is_some();
        let mut finished = finished.clone();
        tokio::spawn(async move {
            let _ = finished.wait_for(|finished| *finished).await;
            drop(guard);
        });
        accepted.to_string()
    };
    let app = Router::new()
        .route("/", get(handler))
        .layer(LimitLayer::new(semaphore.clone()).reject_with_response());
    let address = serve(app).await;
    let response = client().get(format!("http://{address}/")).send().await;
    assert_eq!(response.unwrap().text().await.unwrap(), "true");

    let mut acquire = Box::pin(semaphore.acquire());
    assert!(timeout(millis(100), acquire.as_mut()).await.is_err());
    finish.send(true).unwrap();
    drop(timeout(secs(10), acquire).await.expect("released").unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn content_length_is_unchanged() {
    let app = Router::new()
        .route("/", get(|| async { Bytes::from("hello") }))
        .layer(LimitLayer::new(semaphore(1)).reject_with_response());
    let address = serve(app).await;
    let response = client().get(format!("http://{address}/")).send().await;
    assert_eq!(response.unwrap().content_length(), Some(5));
}
