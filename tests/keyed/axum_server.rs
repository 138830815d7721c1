//! An axum server on a TCP socket.

use crate::modes;
use crate::shop::permits;
use crate::support::*;
use axum::extract::Path;
use axum::routing::{get, post};
use axum::{Extension, Router};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use test_support::HANG_GUARD;
use tokio::time::timeout;
use tower_permit::layers::keyed::{header, path_segment, query};
use tower_permit::{Coordinator, HeldKeys, KeyedConcurrencyLimitLayer, KeyedMutexLayer, Memory};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shop_sells_exactly_its_stock() {
    let permits = permits();
    let stock: Arc<[AtomicI64; 2]> = Arc::new([5.into(), 5.into()]);
    let (last, shelves) = (Arc::new(AtomicU64::new(0)), stock.clone());
    let sell = move |Path(id): Path<usize>, Extension(held): Extension<HeldKeys>| {
        let (shelves, last) = (shelves.clone(), last.clone());
        async move {
            let token = held.get("buy", id).and_then(|held| held.token()).unwrap();
            if id == 0 {
                assert!(last.swap(token, Ordering::SeqCst) < token);
            }
            // Read, work and write: wrong if two requests do it at once.
            let left = shelves[id].load(Ordering::SeqCst);
            tokio::time::sleep(millis(3)).await;
            shelves[id].store(left - i64::from(left > 0), Ordering::SeqCst);
            (left > 0).to_string()
        }
    };
    let layer = KeyedMutexLayer::new(&permits, "buy", path_segment(1)).unwrap();
    let app = Router::new()
        .route("/products/{id}/buy", post(sell))
        .layer(layer.reject_with_response());
    let address = serve(app).await;
    let client = reqwest::Client::new();
    let buyers: Vec<_> = (0..40)
        .map(|n| {
            let buy = client.post(format!("http://{address}/products/{}/buy", n % 2));
            tokio::spawn(async move { buy.send().await.unwrap().text().await.unwrap() })
        })
        .collect();
    let mut sold = 0;
    for buyer in buyers {
        sold += usize::from(buyer.await.unwrap() == "true");
    }
    assert_eq!(sold, 10);
    assert!(stock.iter().all(|left| left.load(Ordering::SeqCst) == 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn within_nest_a_layer_sees_the_path_without_the_prefix() {
    let permits = permits();
    let names = |Extension(held): Extension<HeldKeys>| async move {
        let names: Vec<_> = held.iter().map(|held| held.name().to_owned()).collect();
        names.join(" ")
    };
    let layer = |name, segment| {
        let layer = KeyedMutexLayer::new(&permits, name, path_segment(segment)).unwrap();
        layer.reject_with_response()
    };
    let inner = Router::new()
        .route("/products/{id}", get(names))
        .layer(layer("inner", 1));
    let app = Router::new()
        .nest("/api/v1", inner)
        .layer(layer("outer", 3));
    let address = serve(app).await;
    let answer = reqwest::get(format!("http://{address}/api/v1/products/a%2Fb")).await;
    let text = answer.unwrap().text().await.unwrap();
    assert_eq!(text, "outer+a%2Fb inner+a%2Fb");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rejections_are_responses() {
    let permits = permits();
    let layer = KeyedMutexLayer::new(&permits, "buy", query("id")).unwrap();
    let layer = layer.reject_when_full().reject_with_response();
    let (entered, mut inside) = tokio::sync::mpsc::unbounded_channel();
    let handler = move || {
        let entered = entered.clone();
        async move {
            entered.send(()).unwrap();
            std::future::pending::<()>().await;
        }
    };
    let address = serve(Router::new().route("/", get(handler)).layer(layer.clone())).await;
    let status = |query: &str| {
        let request = reqwest::get(format!("http://{address}/{query}"));
        async move { request.await.unwrap().status().as_u16() }
    };
    assert_eq!(status("").await, 400);

    let first = tokio::spawn(reqwest::get(format!("http://{address}/?id=7")));
    timeout(secs(10), inside.recv()).await.unwrap();
    assert_eq!(status("?id=7").await, 429);
    // The client disconnects: the key is free.
    first.abort();
    let mut tries = 0;
    while layer.inspect("7").await.unwrap().in_use > 0 {
        tries += 1;
        assert!(tries < 1000, "never released");
        tokio::time::sleep(millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_sees_an_error_for_a_cut_body() {
    let permits = modes::builder(Memory::new())
        .lease(secs(1))
        .build()
        .unwrap();
    let layer = KeyedMutexLayer::new(&permits, "read", path_segment(1)).unwrap();
    let app = Router::new()
        .route("/files/{name}", get(endless))
        .layer(layer.clone().hold_until_body_end().reject_with_response());
    let address = serve(app).await;
    let mut response = reqwest::get(format!("http://{address}/files/a"))
        .await
        .unwrap();
    assert!(response.chunk().await.unwrap().is_some());
    let inspection = layer.inspect("a").await.unwrap();
    assert!(
        layer
            .evict("a", &inspection.holders[0].ticket)
            .await
            .unwrap()
    );
    let rest = async {
        while response.chunk().await?.is_some() {}
        Ok::<_, reqwest::Error>(())
    };
    let end = timeout(secs(10), rest).await.expect("an end");
    assert!(end.is_err(), "cut, not complete");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_counts_towards_its_tenants_limit_until_its_end() {
    let permits = permits();
    let layer = KeyedConcurrencyLimitLayer::new(&permits, "tenant", 1, header("x-tenant")).unwrap();
    let layer = layer.reject_when_full().reject_with_response();
    let app = Router::new().route("/", get(endless)).layer(layer);
    let url = format!("http://{}", serve(app).await);
    let client = reqwest::Client::new();
    let get = async |tenant: Option<&str>| {
        let request = client.get(&url);
        let request = match tenant {
            Some(tenant) => request.header("x-tenant", tenant),
            None => request,
        };
        request.send().await.unwrap()
    };
    let mut first = get(Some("a")).await;
    assert!(first.chunk().await.unwrap().is_some());
    assert_eq!(get(Some("a")).await.status(), 429);
    assert_eq!(get(Some("b")).await.status(), 200);
    // Without a key the limit cannot be avoided.
    assert_eq!(get(None).await.status(), 400);
    drop(first);
    let free = async { while get(Some("a")).await.status() != 200 {} };
    timeout(HANG_GUARD, free).await.expect("it is released");
}

async fn endless() -> axum::body::Body {
    let pieces = futures_util::stream::unfold((), |()| async {
        tokio::time::sleep(millis(2)).await;
        Some((Ok::<_, std::convert::Infallible>("piece\n"), ()))
    });
    axum::body::Body::from_stream(pieces)
}

/// A coordinator for a server that does not exist.
#[cfg(feature = "redis")]
fn unreachable() -> Coordinator {
    modes::coordinator(tower_permit::Redis::new("redis://127.0.0.1:1").unwrap())
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn during_an_outage_requests_are_rejected_or_allowed() {
    use tower::{Layer, ServiceExt};

    let shop = crate::shop::Shop::default();
    let cart = |_: &http::Request<()>| tower_permit::Key::all([1, 2]);
    let layer = KeyedMutexLayer::new(&unreachable(), "buy", cart).unwrap();
    let service = layer.layer(shop.service(millis(1)));
    let error = timeout(secs(5), service.oneshot(crate::shop::buy("7"))).await;
    let error = error.expect("an end").unwrap_err();
    assert_eq!(kind(&error), tower_permit::ErrorKind::Unavailable);
    assert!(shop.served().is_empty());

    let layer = layer.on_unavailable(tower_permit::layers::OnUnavailable::Allow);
    let service = layer.layer(shop.service(millis(1)));
    let answer = timeout(secs(5), service.oneshot(crate::shop::buy("7"))).await;
    answer.expect("an end").unwrap();
    assert_eq!(shop.served()[0].token, None, "it holds nothing");
}
