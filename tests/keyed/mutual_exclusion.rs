//! Which requests exclude each other.

use crate::modes;
use crate::shop::*;
use crate::support::*;
use http::{HeaderName, Request};
use std::collections::HashSet;
use tokio::time::Instant;
use tower::{Layer, Service, ServiceExt};
use tower_permit::layers::keyed::{header, key_fn, path_segment, query};
use tower_permit::{Key, KeyedConcurrencyLimitLayer, KeyedMutexLayer, Memory};

#[tokio::test(start_paused = true)]
async fn one_request_at_a_time_for_each_key() {
    let (permits, shop) = (permits(), Shop::default());
    let service = mutex(&permits).layer(shop.service(millis(10)));
    let start = Instant::now();
    let buyers: Vec<_> = (0..50)
        .map(|n| {
            tokio::spawn(
                service
                    .clone()
                    .oneshot(buy(["1", "2", "3", "4", "5"][n % 5])),
            )
        })
        .collect();
    for buyer in buyers {
        buyer.await.unwrap().unwrap();
    }
    for product in ["1", "2", "3", "4", "5"] {
        assert_eq!(shop.product(product).peak(), 1, "product {product}");
    }
    assert_eq!(shop.all().peak(), 5, "products do not wait for each other");
    let took = start.elapsed();
    assert!(took >= millis(100) && took < millis(150), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn two_coordinators_exclude_each_other() {
    let (memory, shop) = (Memory::new(), Shop::default());
    let services = [1, 2].map(|_| {
        let permits = modes::coordinator(memory.clone());
        mutex(&permits).layer(shop.service(millis(10)))
    });
    let buyers: Vec<_> = (0..40)
        .map(|n| tokio::spawn(services[n % 2].clone().oneshot(buy("7"))))
        .collect();
    for buyer in buyers {
        buyer.await.unwrap().unwrap();
    }
    assert_eq!(shop.product("7").peak(), 1);
    let tokens = shop.tokens();
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}

#[tokio::test(start_paused = true)]
async fn requests_for_one_key_are_served_in_order() {
    let (permits, shop) = (permits(), Shop::default());
    let service = mutex(&permits).layer(shop.service(millis(10)));
    let mut buyers = Vec::new();
    for n in 0..40 {
        let uri = format!("/products/{}/buy?{n:02}", n % 2);
        buyers.push(tokio::spawn(service.clone().oneshot(request(&uri))));
        settle().await;
    }
    for buyer in buyers {
        buyer.await.unwrap().unwrap();
    }
    for product in ["0", "1"] {
        let of_product = |uri: &String| uri.starts_with(&format!("/products/{product}/"));
        let served = shop.served().into_iter().map(|request| request.uri);
        let served: Vec<_> = served.filter(of_product).collect();
        assert_eq!(served.len(), 20);
        assert!(served.is_sorted(), "{served:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn encodings_of_one_segment_are_one_key() {
    let (permits, shop) = (permits(), Shop::default());
    let service = mutex(&permits).layer(shop.service(secs(1)));
    let first = tokio::spawn(service.clone().oneshot(buy("a%62")));
    settle().await;
    let second = tokio::spawn(service.clone().oneshot(buy("ab")));
    let others = [
        "A%62", "a", "abc", "a%2562", "", "*", "%7B%7D", "%0A", "%00", "%ff",
    ];
    for product in others {
        let other = tokio::time::timeout(millis(1200), service.clone().oneshot(buy(product)));
        other.await.expect(product).unwrap();
        if product == others[0] {
            assert!(first.is_finished() && !second.is_finished());
        }
    }
    second.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn layers_with_different_names_are_independent() {
    let (permits, shop) = (permits(), Shop::default());
    let mut inside = Vec::new();
    // A layer name and a key that are equal when joined, and a limit with the name of a mutex.
    for (name, key) in [("buy", "7"), ("sell", "7"), ("buy+7", ""), ("", "buy+7")] {
        let layer = KeyedMutexLayer::new(&permits, name, move |_: &Request<()>| key).unwrap();
        let service = layer.layer(shop.service(secs(1)));
        inside.push(tokio::spawn(service.oneshot(buy("7"))));
    }
    let limit = KeyedConcurrencyLimitLayer::new(&permits, "buy", 1, path_segment(1)).unwrap();
    let service = limit.release_at_response().layer(shop.service(secs(1)));
    inside.push(tokio::spawn(service.oneshot(buy("7"))));
    let own = permits.mutex("buy+7").unwrap().lock().await.unwrap();
    settle().await;
    assert_eq!(shop.product("7").inside(), 5);
    drop(own);
    for one in inside {
        one.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn layers_with_one_name_share_their_keys() {
    let (permits, shop) = (permits(), Shop::default());
    let services = [mutex(&permits), mutex(&permits)].map(|one| one.layer(shop.service(millis(9))));
    let buyers = services.map(|service| tokio::spawn(service.oneshot(buy("7"))));
    for buyer in buyers {
        buyer.await.unwrap().unwrap();
    }
    assert_eq!(shop.product("7").peak(), 1);
}

#[tokio::test(start_paused = true)]
async fn each_tenant_has_its_limit_and_delays_no_other() {
    let (permits, shop) = (permits(), Shop::default());
    let tenant = header(HeaderName::from_static("x-tenant"));
    let layer = KeyedConcurrencyLimitLayer::new(&permits, "tenant", 3, tenant).unwrap();
    let service = layer.release_at_response().layer(shop.service(millis(10)));
    let start = Instant::now();
    let tenants: Vec<_> = (0..20).map(|tenant| format!("tenant {tenant}")).collect();
    let mut tasks = Vec::new();
    for (at, tenant) in tenants.iter().enumerate() {
        // The first tenants send ten times the load.
        for _ in 0..if at < 3 { 120 } else { 12 } {
            let uri = format!("/tenants/{at}");
            let request = Request::get(uri).header("x-tenant", tenant).body(());
            let answer = service.clone().oneshot(request.unwrap());
            tasks.push((
                at,
                tokio::spawn(async move {
                    answer.await.unwrap();
                    Instant::now()
                }),
            ));
        }
    }
    for (at, task) in tasks {
        let took = task.await.unwrap() - start;
        let bound = if at < 3 { millis(450) } else { millis(60) };
        assert!(took < bound, "tenant {at}: {took:?}");
    }
    for at in 0..20 {
        assert_eq!(shop.product(&at.to_string()).peak(), 3, "tenant {at}");
    }
    assert_eq!(shop.all().peak(), 60);
}

#[tokio::test(start_paused = true)]
async fn a_key_may_have_its_own_limit() {
    let (permits, shop) = (permits(), Shop::default());
    let plan = |request: &Request<()>| {
        let tenant = request.uri().path().trim_start_matches("/tenants/");
        match tenant {
            "small" => Key::from(tenant).with_limit(2),
            "large" => Key::from(tenant).with_limit(5),
            _ => tenant.into(),
        }
    };
    let layer = KeyedConcurrencyLimitLayer::new(&permits, "tenant", 1, plan).unwrap();
    let service = layer.release_at_response().layer(shop.service(millis(10)));
    let tasks: Vec<_> = (0..30)
        .map(|n| request(["/tenants/small", "/tenants/large", "/tenants/free"][n % 3]))
        .map(|request| tokio::spawn(service.clone().oneshot(request)))
        .collect();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    let peaks = ["small", "large", "free"].map(|tenant| shop.product(tenant).peak());
    assert_eq!(peaks, [2, 5, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_key_of_several_names_excludes_requests_for_each_name() {
    let permits = permits();
    let cart = key_fn(|products: &Vec<u32>| Key::all(products.iter().copied()));
    let layer = KeyedMutexLayer::new(&permits, "buy", cart).unwrap();
    let witnesses: [Witness; 5] = Default::default();
    let counters = witnesses.clone();
    let service = layer.layer(Strict::new(move |products: Vec<u32>| {
        let products: HashSet<_> = products.into_iter().collect();
        let inside: Vec<_> = products
            .iter()
            .map(|at| counters[*at as usize].enter())
            .collect();
        async move {
            tokio::time::sleep(millis(1)).await;
            drop(inside);
            Ok(())
        }
    }));
    // Each order of each overlap.
    let carts = [
        vec![0, 1],
        vec![1, 0],
        vec![0, 0, 1],
        vec![1, 2],
        vec![2, 0],
        vec![0, 1, 2, 3, 4],
        vec![4, 3, 2, 1, 0],
        vec![3],
        vec![4, 3],
    ];
    let tasks: Vec<_> = (0..270)
        .map(|n| tokio::spawn(service.clone().oneshot(carts[n % carts.len()].clone())))
        .collect();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    for witness in witnesses {
        assert_eq!((witness.peak(), witness.inside()), (1, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn acquired_names_are_released_if_the_rest_times_out() {
    let permits = permits();
    let both = key_fn(|_: &()| Key::all(["a", "b"]));
    let layer = KeyedMutexLayer::new(&permits, "buy", both).unwrap();
    let service = layer
        .wait_timeout(secs(3))
        .layer(Strict::new(|()| async { Ok(()) }));
    let one = key_fn(|key: &&'static str| *key);
    let shop = KeyedMutexLayer::new(&permits, "buy", one).unwrap();
    let slow = shop.clone().layer(Strict::new(|_| async {
        tokio::time::sleep(secs(10)).await;
        Ok(())
    }));
    let b = tokio::spawn(slow.oneshot("b"));
    settle().await;

    let start = Instant::now();
    let waiting = tokio::spawn(service.oneshot(()));
    settle().await;
    let at_once = shop
        .reject_when_full()
        .layer(Strict::new(|_| async { Ok(()) }));
    assert!(
        at_once.clone().oneshot("a").await.is_err(),
        "it is acquired first"
    );
    let error = waiting.await.unwrap().unwrap_err();
    assert_eq!(kind(&error), tower_permit::ErrorKind::WaitTimeout);
    // One timeout covers both names.
    assert!(start.elapsed() < millis(3100), "{:?}", start.elapsed());
    settle().await;
    at_once.oneshot("a").await.expect("released");
    b.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn tuples_of_extractors_join_their_keys() {
    let (permits, shop) = (permits(), Shop::default());
    let both = (path_segment(1), query("size"));
    let layer = KeyedMutexLayer::new(&permits, "buy", both).unwrap();
    let mut service = layer.layer(shop.service(secs(1)));
    let mut buy = |uri: &str| tokio::spawn(service.call(request(uri)));
    let all = [
        buy("/products/7/buy?size=4"),
        buy("/products/7/buy?size=5"),
        buy("/products/7/buy?color=red&size=%34"),
        buy("/products/74/buy?size="),
    ];
    settle().await;
    assert_eq!(shop.product("7").inside(), 2);
    assert_eq!(shop.product("74").inside(), 1);
    for one in all {
        one.await.unwrap().unwrap();
    }
}
