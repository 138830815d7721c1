//! The limit around a `reqwest::Client`.

use crate::support::*;
use axum::Router;
use axum::body::Body;
use axum::routing::get;
use futures_util::stream;
use reqwest::{Method, Request, Url};
use std::convert::Infallible;
use std::net::SocketAddr;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::timeout;
use tower::{Layer, Service, ServiceBuilder, ServiceExt};
use tower_permit::{DistributedConcurrencyLimitLayer as LimitLayer, ErrorKind};

/// Starts a server. `/slow` streams a first chunk, and the second one after a signal.
async fn upstream() -> (SocketAddr, watch::Sender<bool>) {
    let (go, signal) = watch::channel(false);
    let slow = move || async move {
        Body::from_stream(stream::unfold(
            (0, signal),
            |(piece, mut signal)| async move {
                if piece == 1 {
                    let _ = signal.wait_for(|sent| *sent).await;
                }
                (piece < 2).then_some((Ok::<_, Infallible>("piece\n"), (piece + 1, signal)))
            },
        ))
    };
    let app = Router::new()
        .route("/slow", get(slow))
        .route("/fast", get(|| async { ([("x-answer", "42")], "hello") }));
    (serve(app).await, go)
}

fn request(address: SocketAddr, path: &str) -> Request {
    let url = Url::parse(&format!("http://{address}{path}")).unwrap();
    Request::new(Method::GET, url)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_streamed_response_holds_the_permit_until_its_end() {
    let (address, go) = upstream().await;
    let semaphore = semaphore(1);
    let mut service = ServiceBuilder::new()
        .layer(LimitLayer::new(semaphore.clone()))
        .service(reqwest::Client::new());
    let mut response = service
        .ready()
        .await
        .unwrap()
        .call(request(address, "/slow"))
        .await
        .unwrap();
    assert_eq!(response.chunk().await.unwrap().unwrap(), "piece\n");

    let mut acquire = Box::pin(semaphore.acquire());
    assert!(timeout(millis(100), acquire.as_mut()).await.is_err());
    go.send(true).unwrap();
    assert_eq!(response.text().await.unwrap(), "piece\n");
    drop(timeout(secs(10), acquire).await.expect("released").unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_dropped_unread_releases() {
    let (address, _go) = upstream().await;
    let semaphore = semaphore(1);
    let service = LimitLayer::new(semaphore.clone()).layer(reqwest::Client::new());
    let response = service.oneshot(request(address, "/slow")).await.unwrap();
    drop(response);
    let permit = timeout(secs(10), semaphore.acquire()).await;
    drop(permit.expect("released").unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rest_of_the_response_is_unchanged() {
    let (address, _go) = upstream().await;
    let plain = reqwest::Client::new();
    let service = LimitLayer::new(semaphore(1)).layer(plain.clone());
    let expected = plain.execute(request(address, "/fast")).await.unwrap();
    let response = service.oneshot(request(address, "/fast")).await.unwrap();
    assert_eq!(response.url(), expected.url());
    assert_eq!(response.status(), expected.status());
    assert_eq!(response.version(), expected.version());
    assert_eq!(response.headers()["x-answer"], "42");
    assert_eq!(response.headers().len(), expected.headers().len());
    assert_eq!(response.remote_addr(), Some(address));
    assert_eq!(response.content_length(), Some(5));
    assert_eq!(response.text().await.unwrap(), "hello");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rejections_and_client_errors_are_distinguishable() {
    let (address, _go) = upstream().await;
    let semaphore = semaphore(1);
    let service = LimitLayer::new(semaphore.clone())
        .reject_when_full()
        .layer(reqwest::Client::new());
    let held = semaphore.acquire().await.unwrap();
    let error = service
        .clone()
        .oneshot(request(address, "/fast"))
        .await
        .unwrap_err();
    assert_eq!(kind(&error), ErrorKind::LimitReached);
    drop(held);

    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let unreachable = closed.local_addr().unwrap();
    drop(closed);
    let error = service
        .oneshot(request(unreachable, "/fast"))
        .await
        .unwrap_err();
    assert!(error.downcast_ref::<reqwest::Error>().unwrap().is_connect());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_fails_after_max_hold() {
    let (address, _go) = upstream().await;
    let service = LimitLayer::new(semaphore(1))
        .max_hold(secs(1))
        .layer(reqwest::Client::new());
    let response = service.oneshot(request(address, "/slow")).await.unwrap();
    let error = timeout(secs(10), response.text())
        .await
        .expect("it ends")
        .unwrap_err();
    let mut cause: Option<&dyn std::error::Error> = Some(&error);
    let found = loop {
        let error = cause.expect("an error of this crate among the causes");
        if let Some(found) = error.downcast_ref::<tower_permit::Error>() {
            break found;
        }
        cause = error.source();
    };
    assert_eq!(found.kind(), ErrorKind::HeldTooLong);
}
