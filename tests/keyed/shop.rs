//! What the tests share: a service that knows who is inside for which product.

use crate::modes;
use crate::support::*;
use http::{Request, Response};
use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tower_permit::layers::keyed::PathSegment;
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

/// Who is inside, for each product, and who was, in order.
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
    /// A service that takes so long for each.
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
}

/// In paused time: whether nothing of these keys is held or waited for.
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
