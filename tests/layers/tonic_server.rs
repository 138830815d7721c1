//! A tonic server and client on a TCP socket.

use crate::support::*;
use http::{Request, Response};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::{Ipv4Addr, SocketAddr};
use std::task::{Context, Poll};
use tokio::net::TcpListener;
use tokio::time::Instant;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tower::Service;
use tower_permit::DistributedConcurrencyLimitLayer as LimitLayer;

/// A gRPC service without generated code, which answers each request with status 0.
#[derive(Clone)]
struct Echo;

impl NamedService for Echo {
    const NAME: &'static str = "test.Echo";
}

impl Service<Request<Body>> for Echo {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        let response = Response::builder()
            .header("content-type", "application/grpc")
            .header("grpc-status", "0");
        ready(Ok(response.body(Body::empty()).expect("a response")))
    }
}

/// Starts a server with this timeout outside the limit.
async fn serve(layer: LimitLayer, timeout: Option<std::time::Duration>) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
    let listener = listener.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let mut server = Server::builder();
    if let Some(timeout) = timeout {
        server = server.timeout(timeout);
    }
    let server = server.layer(layer.reject_with_response()).add_service(Echo);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    address
}

/// Calls the service, and returns the gRPC status. tonic's own client would end the call by its `grpc-timeout`.
async fn call(address: SocketAddr, grpc_timeout: Option<&str>) -> String {
    let mut client = Client::builder(TokioExecutor::new());
    let client = client.http2_only(true).build_http();
    let request = Request::post(format!("http://{address}/test.Echo/Call"))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    let request = match grpc_timeout {
        Some(timeout) => request.header("grpc-timeout", timeout),
        None => request,
    };
    let request = request.body(Body::empty()).expect("a request");
    let response = client.request(request).await.expect("a response");
    let status = response.headers()["grpc-status"].to_str();
    status.expect("a number").to_owned()
}

#[tokio::test]
async fn a_wait_ends_with_the_timeout_of_the_server_or_the_request() {
    let semaphore = semaphore(1);
    let layer = LimitLayer::new(semaphore.clone())
        .acquire_in_call()
        .wait_timeout(secs(60));
    let address = serve(layer.clone(), None).await;
    let with_timeout = serve(layer, Some(millis(150))).await;
    assert_eq!(call(address, None).await, "0");
    let held = semaphore.acquire().await.expect("a permit");
    let start = Instant::now();
    // 1: cancelled by the server's own timeout. 4 or 8: its deadline.
    assert_ne!(call(with_timeout, None).await, "0");
    assert_ne!(call(address, Some("200m")).await, "0");
    assert!(start.elapsed() < secs(20), "{:?}", start.elapsed());
    drop(held);
    assert_eq!(call(with_timeout, Some("20S")).await, "0");
}
