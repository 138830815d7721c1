//! Over Redis, in real time. Two coordinators act as two processes.

use crate::modes;
use crate::redis_server::RedisServer;
use crate::shop::*;
use crate::support::{millis, secs};
use common::redis::expect_empty;
use futures_util::StreamExt;
use std::time::Duration;
use tower::{Layer, ServiceExt};
use tower_permit::layers::keyed::{header, path_segment};
use tower_permit::{Coordinator, KeyedConcurrencyLimitLayer, Redis};

const LEASE: Duration = secs(1);

fn permits(server: &RedisServer) -> Coordinator {
    with_lease(server, LEASE)
}

fn with_lease(server: &RedisServer, lease: Duration) -> Coordinator {
    let redis = Redis::new(server.url()).unwrap();
    let redis = redis.prefix("shop").unwrap();
    modes::builder(redis).lease(lease).build().unwrap()
}

#[tokio::test]
async fn two_processes_exclude_each_other_with_increasing_tokens() {
    let (server, shop) = (RedisServer::start(), Shop::default());
    let services = [(); 2].map(|()| mutex(&permits(&server)).layer(shop.service(millis(5))));
    let buyers = (0..100).map(|n| {
        let service = services[n % 2].clone();
        tokio::spawn(service.oneshot(buy(["1", "2"][n / 2 % 2])))
    });
    for buyer in buyers.collect::<Vec<_>>() {
        buyer.await.unwrap().unwrap();
    }
    for product in ["1", "2"] {
        assert_eq!(shop.product(product).peak(), 1, "product {product}");
        let served = shop.served().into_iter();
        let served = served.filter(|request| request.uri.contains(&format!("/{product}/")));
        let tokens: Vec<_> = served.map(|request| request.token.unwrap()).collect();
        assert_eq!(tokens.len(), 50);
        assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
    }
    assert_eq!(shop.all().peak(), 2);
}

#[tokio::test]
async fn two_processes_share_the_limit_of_a_tenant() {
    let (server, shop) = (RedisServer::start(), Shop::default());
    let services = [(); 2].map(|()| {
        let tenant = header(http::HeaderName::from_static("x-tenant"));
        let layer = KeyedConcurrencyLimitLayer::new(&permits(&server), "tenant", 3, tenant);
        let layer = layer.unwrap().release_at_response();
        layer.layer(shop.service(millis(5)))
    });
    let tasks: Vec<_> = (0..400)
        .map(|n| {
            let tenant = n % 20;
            let mut request = request(&format!("/tenants/{tenant}"));
            let headers = request.headers_mut();
            headers.insert("x-tenant", tenant.to_string().parse().unwrap());
            tokio::spawn(services[n / 20 % 2].clone().oneshot(request))
        })
        .collect();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    for tenant in 0..20 {
        assert_eq!(
            shop.product(&tenant.to_string()).peak(),
            3,
            "tenant {tenant}"
        );
    }
}

#[tokio::test]
async fn unused_keys_leave_nothing_in_redis() {
    let (server, shop) = (RedisServer::start(), Shop::default());
    // A long lease, since two hundred names at once on a busy machine must not be lost.
    let lease = 5 * LEASE;
    let permits = with_lease(&server, lease);
    let limit = KeyedConcurrencyLimitLayer::new(&permits, "tenant", 3, path_segment(1));
    let limit = limit.unwrap().release_at_response();
    let service = mutex(&permits).layer(limit.layer(shop.service(Duration::ZERO)));
    let requests = (0..5_000).map(|n| service.clone().oneshot(buy(&n.to_string())));
    let mut answers = futures_util::stream::iter(requests).buffer_unordered(200);
    while let Some(answer) = answers.next().await {
        answer.unwrap();
    }
    expect_empty(&server, lease + secs(2)).await;
}
