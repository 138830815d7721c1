//! Shared by the tests: a shop that counts the concurrent requests of each product.

use crate::modes;
use crate::support::*;
use http::{Request, Response};
use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tower_permit::layers::keyed::{PathSegment, path_segment};
use tower_permit::{Coordinator, HeldKeys, KeyedMutexLayer, Memory};

pub(crate) fn permits() -> Coordinator {
    modes::coordinator(Memory::new())
}

/// One request at a time for each product.
pub(crate) fn mutex(permits: &Coordinator) -> KeyedMutexLayer<PathSegment> {
    KeyedMutexLayer::new(permits, "buy", tower_permit::layers::keyed::path_segment(1))
        .expect("a layer")
}

pub(crate) fn buy(product: &str) -> Request<()> {
    request(&format!("/products/{product}/buy"))
}

pub(crate) fn request(uri: &str) -> Request<()> {
    Request::post(uri).body(()).expect("a request")
}

/// Counts the running requests of each product, and records all requests in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shop {
    products: Arc<Mutex<HashMap<String, Witness>>>,
    all: Witness,
    served: Arc<Mutex<Vec<Served>>>,
}

#[derive(Clone, Debug)]
pub(crate) struct Served {
    pub(crate) uri: String,
    pub(crate) token: Option<u64>,
}

pub(crate) type Answer = Pin<Box<dyn Future<Output = Result<Response<()>, Boom>> + Send>>;

impl Shop {
    /// A service that takes this long for each request.
    pub(crate) fn service(
        &self,
        takes: Duration,
    ) -> Strict<impl Fn(Request<()>) -> Answer + Clone + Send + Sync + 'static> {
        let shop = self.clone();
        Strict::new(move |request: Request<()>| {
            let shop = shop.clone();
            Box::pin(async move {
                let uri = request.uri().to_string();
                let product = uri.split('/').nth(2).unwrap_or_default();
                let (_one, _all) = (shop.product(product).enter(), shop.all.enter());
                let held = request.extensions().get::<HeldKeys>();
                let token = held.and_then(|held| held.token("buy"));
                shop.served.lock().unwrap().push(Served { uri, token });
                tokio::time::sleep(takes).await;
                Ok(Response::new(()))
            }) as Answer
        })
    }

    pub(crate) fn product(&self, product: &str) -> Witness {
        let mut products = self.products.lock().unwrap();
        products.entry(product.to_owned()).or_default().clone()
    }

    pub(crate) fn all(&self) -> &Witness {
        &self.all
    }

    pub(crate) fn served(&self) -> Vec<Served> {
        self.served.lock().unwrap().clone()
    }

    /// The fencing tokens of the served requests, in order. Each has one.
    pub(crate) fn tokens(&self) -> Vec<u64> {
        let served = self.served.lock().unwrap();
        served.iter().map(|served| served.token.unwrap()).collect()
    }
}

/// In paused time: whether these keys are free and have no queued ticket.
pub(crate) async fn all_free(permits: &Coordinator, products: &[&str]) -> bool {
    let layer = mutex(permits).reject_when_full();
    for product in products {
        let shop = Shop::default();
        let service = tower::Layer::layer(&layer, shop.service(Duration::ZERO));
        if tower::ServiceExt::oneshot(service, buy(product))
            .await
            .is_err()
        {
            return false;
        }
    }
    true
}

/// Sends spellings of one product to `{prefix}/products/{id}/buy` of an app with this lock, and of texts that are no product.
async fn buy_by_all_spellings<K>(product: K, prefix: &str)
where
    K: tower_permit::layers::keyed::KeyExtractor<Request<axum::body::Body>> + Send + Sync + 'static,
{
    use axum::Router;
    use axum::body::Body;
    use axum::extract::Path;
    use axum::routing::post;
    use tower::ServiceExt;

    let inside = Witness::default();
    let witness = inside.clone();
    let handler = move |Path(product): Path<u64>| {
        let witness = witness.clone();
        async move {
            let _inside = witness.enter();
            tokio::time::sleep(millis(10)).await;
            product.to_string()
        }
    };
    let lock = KeyedMutexLayer::new(&permits(), "buy", product)
        .expect("a layer")
        .reject_with_response();
    let shop = Router::new()
        .route("/products/{id}/buy", post(handler))
        .route_layer(lock);
    let app = match prefix {
        "" => shop,
        _ => Router::new().nest(prefix, shop),
    };
    let buy = |product: &str| {
        let request = Request::post(format!("{prefix}/products/{product}/buy"));
        tokio::spawn(app.clone().oneshot(request.body(Body::empty()).unwrap()))
    };
    for response in ["7", "07", "+7", "007", "%37"].map(buy) {
        let response = response.await.unwrap().unwrap();
        assert_eq!(response.status(), 200);
        let body = axum::body::to_bytes(response.into_body(), 10).await;
        assert_eq!(body.unwrap(), "7");
    }
    assert_eq!(inside.peak(), 1);
    for product in ["x", "-7", "%FF"] {
        let response = buy(product).await.unwrap().unwrap();
        assert_eq!(response.status(), 400, "{product}");
    }
    // Another product does not wait.
    let (one, other) = (buy("7"), buy("8"));
    one.await.unwrap().unwrap();
    other.await.unwrap().unwrap();
    assert_eq!(inside.peak(), 2);
}

#[tokio::test(start_paused = true)]
async fn spellings_of_one_product_exclude_each_other() {
    buy_by_all_spellings(path_segment(1).parse::<u64>(), "").await;
}

#[cfg(feature = "axum")]
#[tokio::test(start_paused = true)]
async fn a_route_parameter_is_found_in_nested_routers() {
    use tower_permit::layers::keyed::route_param;
    for prefix in ["", "/api/v1"] {
        buy_by_all_spellings(route_param("id").parse::<u64>(), prefix).await;
    }
}
