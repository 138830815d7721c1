use super::key::Key;
use crate::name::Queue;
use crate::{Permit, PermitHandle};
use std::sync::Arc;

/// The keys that a request holds, in its extensions: for handlers that want their token, and for background work.
///
/// Each keyed layer that a request passes adds its own. It is there, and may be empty, also if the request has no key or the
/// layer is disabled. Holding this holds nothing.
///
/// ```
/// use axum::{Extension, Router, routing::post};
/// use tower_permit::layers::keyed::path_segment;
/// use tower_permit::{Coordinator, HeldKeys, KeyedMutexLayer, Memory};
///
/// async fn buy(Extension(held): Extension<HeldKeys>) -> String {
///     let token = held.token("buy");
///     // … UPDATE stock SET left = left - 1, token = $token WHERE id = $id AND token < $token …
///     format!("{token:?}")
/// }
///
/// # fn main() -> Result<(), tower_permit::Error> {
/// let permits = Coordinator::new(Memory::new());
/// let app: Router = Router::new()
///     .route("/products/{id}/buy", post(buy))
///     .layer(KeyedMutexLayer::new(&permits, "buy", path_segment(1))?.reject_with_response());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct HeldKeys {
    keys: Vec<HeldKey>,
}

/// One name that a request holds.
#[derive(Clone, Debug)]
pub struct HeldKey {
    layer: Arc<str>,
    queue: Queue,
    token: Option<u64>,
    handle: PermitHandle,
}

// === impl HeldKeys ===

impl HeldKeys {
    /// Those of a request, to be added to. Always there, but the compiler does not know that.
    pub(super) fn of(extensions: &mut http::Extensions) -> Option<&mut Self> {
        if extensions.get::<Self>().is_none() {
            extensions.insert(Self::default());
        }
        extensions.get_mut()
    }

    /// All of them, in the order in which they were taken.
    pub fn iter(&self) -> impl Iterator<Item = &HeldKey> {
        self.keys.iter()
    }

    /// The one that the layer of this name took for this key: for requests that hold several.
    ///
    /// ```
    /// # let held = tower_permit::HeldKeys::default();
    /// let token = held.get("buy", 10086).and_then(|held| held.token());
    /// ```
    pub fn get(&self, layer: &str, key: impl Into<Key>) -> Option<&HeldKey> {
        let key = key.into();
        let is = |held: &&HeldKey| {
            let queue = key.queue(held.queue.kind(), layer);
            queue.is_ok_and(|queue| queue == held.queue)
        };
        self.by(layer).find(is)
    }

    /// The fencing token of the keyed mutex of this name. The first one, if the request holds several keys of it.
    pub fn token(&self, layer: &str) -> Option<u64> {
        self.by(layer).find_map(HeldKey::token)
    }

    fn by(&self, layer: &str) -> impl Iterator<Item = &HeldKey> {
        self.keys.iter().filter(move |held| &*held.layer == layer)
    }

    /// Guards of what the request holds of this queue.
    pub(super) fn guards(&self, queue: &Queue) -> impl Iterator<Item = Permit> {
        let held = self.keys.iter().filter(move |held| held.queue == *queue);
        held.filter_map(HeldKey::keep)
    }

    /// One more. What was held of the same queue and is not any more gives way to it: its token is an old one.
    pub(super) fn push(&mut self, layer: &Arc<str>, permit: &Permit, token: Option<u64>) {
        let gone = |held: &HeldKey| held.queue == *permit.queue() && held.keep().is_none();
        self.keys.retain(|held| !gone(held));
        self.keys.push(HeldKey {
            layer: Arc::clone(layer),
            queue: permit.queue().clone(),
            token,
            handle: permit.handle(),
        });
    }
}

// === impl HeldKey ===

impl HeldKey {
    /// The name of the layer.
    pub fn layer(&self) -> &str {
        &self.layer
    }

    /// The layer's name and the key's joined, in their safe form: what the log shows.
    pub fn name(&self) -> &str {
        self.queue.name()
    }

    /// The fencing token, of a mutex: strictly higher than that of every holder of this key before. `None` of a limit.
    /// See [`MutexGuard::token`](crate::MutexGuard::token) for its use.
    pub fn token(&self) -> Option<u64> {
        self.token
    }

    /// Holds the key beyond the response, for background work and upgraded connections: it is given back when the request
    /// and the last such permit are done with it; in any case after the layer's [`max_hold`](super::KeyedLayer::max_hold),
    /// counted from when the request got it. `None` if it has been given back or lost already.
    pub fn keep(&self) -> Option<Permit> {
        self.handle.keep()
    }
}
