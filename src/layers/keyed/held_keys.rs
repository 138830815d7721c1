//! The list of keys that a request holds.

use super::key::Key;
use crate::name::Queue;
use crate::{Permit, PermitHandle};
use std::sync::Arc;

/// The keys that a request holds, in the request's extensions: for handlers that need a fencing token, and for background
/// work.
///
/// Each keyed layer adds the keys it acquired. The extension is present, and may be empty, even if the request has no key
/// or the layer is disabled. It holds no permit: see [`HeldKey::upgrade`].
///
/// ```
/// use axum::{Extension, Router, routing::post};
/// use tower_permit::layers::keyed::path_segment;
/// use tower_permit::{Coordinator, HeldKeys, KeyedMutexLayer, Memory};
///
/// async fn save(Extension(held): Extension<HeldKeys>) -> String {
///     let token = held.token("document");
///     // … UPDATE document SET text = $text, token = $token WHERE name = $name AND token < $token …
///     format!("{token:?}")
/// }
///
/// # fn main() -> Result<(), tower_permit::Error> {
/// let permits = Coordinator::new(Memory::new());
/// let app: Router = Router::new()
///     .route("/documents/{name}", post(save))
///     .layer(KeyedMutexLayer::new(&permits, "document", path_segment(1))?.reject_with_response());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct HeldKeys {
    keys: Vec<HeldKey>,
}

/// A key that a request holds.
#[derive(Clone, Debug)]
pub struct HeldKey {
    layer: Arc<str>,
    queue: Queue,
    token: Option<u64>,
    handle: PermitHandle,
}

// === impl HeldKeys ===

impl HeldKeys {
    /// Returns the keys of a request, after inserting an empty list if there is none. Never `None`, though the type allows
    /// it.
    pub(super) fn get_or_insert(extensions: &mut http::Extensions) -> Option<&mut Self> {
        if extensions.get::<Self>().is_none() {
            extensions.insert(Self::default());
        }
        extensions.get_mut()
    }

    /// Returns all keys, in the order in which they were acquired.
    pub fn iter(&self) -> impl Iterator<Item = &HeldKey> {
        self.keys.iter()
    }

    /// Returns the key that the layer with this name acquired, for requests that hold several.
    ///
    /// ```
    /// # let held = tower_permit::HeldKeys::default();
    /// let token = held.get("buy", 10086).and_then(|held| held.token());
    /// ```
    pub fn get(&self, layer: &str, key: impl Into<Key>) -> Option<&HeldKey> {
        let key = key.into();
        let matches = |held: &&HeldKey| {
            let queue = key.only_queue(held.queue.kind(), layer);
            queue.is_ok_and(|queue| queue == held.queue)
        };
        self.of_layer(layer).find(matches)
    }

    /// Returns the fencing token of the keyed mutex with this name: that of the first key if the request holds several.
    pub fn token(&self, layer: &str) -> Option<u64> {
        self.of_layer(layer).find_map(HeldKey::token)
    }

    fn of_layer(&self, layer: &str) -> impl Iterator<Item = &HeldKey> {
        self.keys.iter().filter(move |held| &*held.layer == layer)
    }

    /// Returns new guards of the request's permits of this queue.
    pub(super) fn permits(&self, queue: &Queue) -> impl Iterator<Item = Permit> {
        let held = self.keys.iter().filter(move |held| held.queue == *queue);
        held.filter_map(HeldKey::upgrade)
    }

    /// Adds a key. Removes keys of the same queue that are not held any more, since their tokens are outdated.
    pub(super) fn push(&mut self, layer: &Arc<str>, permit: &Permit, token: Option<u64>) {
        let outdated = |held: &HeldKey| held.queue == *permit.queue() && held.upgrade().is_none();
        self.keys.retain(|held| !outdated(held));
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
    /// Returns the name of the layer.
    pub fn layer(&self) -> &str {
        &self.layer
    }

    /// Returns the encoded names of the layer and the key, joined, as the log shows them.
    pub fn name(&self) -> &str {
        self.queue.name()
    }

    /// Returns the fencing token of a keyed mutex, which is strictly higher than that of every earlier holder of the key;
    /// `None` for a keyed limit. See [`MutexGuard::token`](crate::MutexGuard::token) for its use.
    pub fn token(&self) -> Option<u64> {
        self.token
    }

    /// Returns a guard that holds the key beyond the response, for background work and upgraded connections. `None` if the
    /// key has been released or lost.
    ///
    /// The key is released when the request has ended and the last guard is dropped, and at the latest after the layer's
    /// [`max_hold`](super::KeyedLayer::max_hold), counted from the grant.
    pub fn upgrade(&self) -> Option<Permit> {
        self.handle.upgrade()
    }
}
