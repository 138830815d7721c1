//! The extractor of a parameter of an axum route.

use super::extract::sealed::FindText;
use super::extract::{Parsed, extractors, parse};
use super::key::{Key, KeyExtractor};
use axum::extract::{FromRequestParts, RawPathParams};
use futures_util::FutureExt;
use http::Request;
use std::borrow::Cow;

/// The extractor returned by [`route_param`].
#[derive(Clone, Debug)]
pub struct RouteParam {
    name: Cow<'static, str>,
}

/// Returns an extractor that uses this parameter of the axum route as the key, percent-decoded: `id` for a route
/// `/products/{id}/buy`, however deep the router is nested.
///
/// The key is compared as text: [`parse`](RouteParam::parse) it if the handler does. A route without this parameter has no
/// key. Nor has a request of a layer around the whole router, such as `layer.layer(router)`, since it is not routed yet: use
/// `Router::layer`, `Router::route_layer` or `MethodRouter::layer`.
///
/// ```
/// use axum::{Router, extract::Path, routing::post};
/// use tower_permit::layers::keyed::route_param;
/// use tower_permit::{Coordinator, KeyedMutexLayer, Memory};
///
/// # async fn buy(_: Path<u64>) {}
/// # fn main() -> Result<(), tower_permit::Error> {
/// let permits = Coordinator::new(Memory::new());
/// let lock = KeyedMutexLayer::new(&permits, "buy", route_param("id").parse::<u64>())?.reject_with_response();
/// let shop: Router = Router::new().route("/products/{id}/buy", post(buy).layer(lock));
/// let app: Router = Router::new().nest("/api/v1", shop);
/// # Ok(())
/// # }
/// ```
pub fn route_param(name: impl Into<Cow<'static, str>>) -> RouteParam {
    RouteParam { name: name.into() }
}

impl FindText for RouteParam {
    fn text<'a, B>(&self, request: &'a Request<B>) -> Option<Cow<'a, [u8]>> {
        // axum's extractor takes the parts of a request, and reads its extensions.
        let (mut parts, ()) = Request::new(()).into_parts();
        parts.extensions = request.extensions().clone();
        let params = RawPathParams::from_request_parts(&mut parts, &()).now_or_never()?;
        let params = params.ok()?;
        let (_, value) = params.iter().find(|(name, _)| *name == self.name)?;
        Some(Cow::Owned(value.as_bytes().to_vec()))
    }
}

extractors! {
    [] RouteParam, |this, request| this.text(request).map(|text| Key::from(&*text));
}

parse!(RouteParam);
