//! The `Layer`s of the keyed mutex and the keyed limit.

use super::key::Key;
use super::keyspace::Keyspace;
use super::service::{Exclusive, Keyed, Limited};
use super::settings::{KeyedSettings, OnMissingKey};
use crate::layers::rejection::{AsError, AsResponse};
use crate::layers::response::{AtResponse, UntilBodyEnd};
use crate::layers::settings::{OnLost, OnUnavailable};
use crate::name::Kind;
use crate::{Coordinator, Error, Inspection};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;
use tower_layer::Layer;

/// Applies a keyed mutex to a service: one request at a time for each key, over all processes.
///
/// ```
/// use std::time::Duration;
/// use tower_permit::layers::keyed::path_segment;
/// use tower_permit::{Coordinator, KeyedMutexLayer, Memory};
///
/// # fn main() -> Result<(), tower_permit::Error> {
/// let permits = Coordinator::new(Memory::new());
/// // What the handler parses: `7`, `07` and `+7` are one key.
/// let one_purchase_per_product = KeyedMutexLayer::new(&permits, "buy", path_segment(1).parse::<u64>())?
///     .wait_timeout(Duration::from_secs(3))
///     .max_waiting(100)
///     .reject_with_response();
/// # Ok(())
/// # }
/// ```
///
/// [`KeyedLayer`] documents the methods, the [module](self::super) is the guide.
pub type KeyedMutexLayer<K, H = AtResponse, R = AsError> = KeyedLayer<Exclusive, K, H, R>;

/// Applies a keyed concurrency limit to a service: at most `limit` concurrent requests for each key, over all processes.
///
/// ```
/// use http::Request;
/// use tower_permit::layers::keyed::header;
/// use tower_permit::{Coordinator, Key, KeyedConcurrencyLimitLayer, Memory};
///
/// # fn main() -> Result<(), tower_permit::Error> {
/// let permits = Coordinator::new(Memory::new());
/// let per_tenant = KeyedConcurrencyLimitLayer::new(&permits, "tenant", 3, header("x-tenant"))?;
///
/// // Or with a limit for each account:
/// #[derive(Clone)]
/// struct Account {
///     id: u64,
///     parallel: u32,
/// }
///
/// let per_account = KeyedConcurrencyLimitLayer::new(&permits, "account", 1, |request: &Request<()>| {
///     let account = request.extensions().get::<Account>()?;
///     Some(Key::from(account.id).with_limit(account.parallel))
/// })?;
/// # let _: (tower_permit::KeyedConcurrencyLimit<(), _>, tower_permit::KeyedConcurrencyLimit<(), _>) =
/// #     (tower::Layer::layer(&per_tenant, ()), tower::Layer::layer(&per_account, ()));
/// # Ok(())
/// # }
/// ```
///
/// [`KeyedLayer`] documents the methods, the [module](self::super) is the guide.
pub type KeyedConcurrencyLimitLayer<K, H = UntilBodyEnd, R = AsError> =
    KeyedLayer<Limited, K, H, R>;

/// The type of [`KeyedMutexLayer`] and [`KeyedConcurrencyLimitLayer`].
///
/// `M` is [`Exclusive`] or [`Limited`], `K` the [`KeyExtractor`](super::KeyExtractor), `H` the
/// [`HoldPolicy`](crate::layers::HoldPolicy), `R` the [`RejectionPolicy`](crate::layers::RejectionPolicy).
/// [`hold_until_body_end`](Self::hold_until_body_end), [`release_at_response`](Self::release_at_response) and
/// [`reject_with_response`](Self::reject_with_response) change the policies. See the [module](self::super) for the guide.
///
/// Creating a layer and wrapping a service neither connects nor spawns. Layers with one name and one backend share their
/// keys, in all processes. Layers with different names are independent.
pub struct KeyedLayer<M, K, H = AtResponse, R = AsError> {
    keyspace: Arc<Keyspace>,
    extractor: Arc<K>,
    settings: KeyedSettings,
    policies: PhantomData<fn(M, H, R)>,
}

// === impl KeyedLayer ===

impl<K> KeyedLayer<Exclusive, K> {
    /// Creates a layer with a mutex for each key that `extractor` returns, with the defaults of the methods below. `name`
    /// is the layer's name: the same key in a layer with another name is another key.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) if the name is too long.
    pub fn new(
        coordinator: &Coordinator,
        name: impl AsRef<str>,
        extractor: K,
    ) -> Result<Self, Error> {
        let keyspace = Keyspace::new(coordinator, Kind::Mutex, name.as_ref(), 1)?;
        Ok(Self::with_keyspace(keyspace, OnLost::End, extractor))
    }
}

impl<K> KeyedLayer<Limited, K, UntilBodyEnd> {
    /// Creates a layer with a limit for each key that `extractor` returns, with the defaults of the methods below. `name`
    /// is the layer's name: the same key in a layer with another name is another key. A key may have another limit than
    /// the layer ([`Key::with_limit`](super::Key::with_limit)).
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for a limit of 0, a limit that the backend does not support, or
    /// a name that is too long.
    pub fn new(
        coordinator: &Coordinator,
        name: impl AsRef<str>,
        limit: u32,
        extractor: K,
    ) -> Result<Self, Error> {
        let keyspace = Keyspace::new(coordinator, Kind::Limit, name.as_ref(), limit)?;
        Ok(Self::with_keyspace(keyspace, OnLost::Continue, extractor))
    }
}

impl<M, K, H, R> KeyedLayer<M, K, H, R> {
    /// Sets how long a request waits for all its keys together before it is rejected with
    /// [`WaitTimeout`](crate::ErrorKind::WaitTimeout). Default: 30 s.
    #[must_use]
    pub fn wait_timeout(mut self, timeout: Duration) -> Self {
        self.settings.common.wait_timeout = timeout;
        self
    }

    /// Sets how many requests of this process may wait for one key. Further requests are rejected at once with
    /// [`TooManyWaiting`](crate::ErrorKind::TooManyWaiting). Default: 1,024.
    ///
    /// A request counts if there is no room for it: none is rejected while its key is free. 0 is the same as
    /// [`reject_when_full`](Self::reject_when_full).
    #[must_use]
    pub fn max_waiting(mut self, max: usize) -> Self {
        self.settings.common.max_waiting = max;
        self
    }

    /// Sets how many requests of this process may wait for all keys of this layer together. A further request gets its key
    /// if that is free, else it is rejected with [`TooManyWaiting`](crate::ErrorKind::TooManyWaiting). Default: 16,384.
    ///
    /// A request counts from the first poll of its future until it holds its keys, including the round trip to the
    /// backend. A request that re-enters its key does not count.
    #[must_use]
    pub fn max_waiting_total(mut self, max: usize) -> Self {
        self.settings.max_waiting_total = max;
        self
    }

    /// Rejects a request at once with [`LimitReached`](crate::ErrorKind::LimitReached) if its key is not free, instead of
    /// waiting.
    #[must_use]
    pub fn reject_when_full(mut self) -> Self {
        self.settings.common.may_wait = false;
        self
    }

    /// Sets how long a request may hold its key. Default: 10 min.
    ///
    /// After that the key is released, a warning is logged, and the request ends with
    /// [`HeldTooLong`](crate::ErrorKind::HeldTooLong).
    #[must_use]
    pub fn max_hold(mut self, max: Duration) -> Self {
        self.settings.common.max_hold = max;
        self
    }

    /// Sets how long a response may remain unread before its permit is released, and its body ends with
    /// [`Stalled`](crate::ErrorKind::Stalled). `None`: for ever. Default: 30 s.
    ///
    /// The time counts from each frame of the body until the reader asks for the next one. A client that stops reading stops its
    /// server's reads when the buffers between them are full. Time in which the reader waits for a slow body does not count.
    #[must_use]
    pub fn stall_timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.settings.common.stall_timeout = timeout.into();
        self
    }

    /// Sets what happens to requests during an outage of the backend. Default: [`OnUnavailable::Reject`].
    #[must_use]
    pub fn on_unavailable(mut self, action: OnUnavailable) -> Self {
        self.settings.common.on_unavailable = action;
        self
    }

    /// Sets what happens to a request that loses its key while it runs, or while it waits for more keys. Default:
    /// [`OnLost::End`] for the mutex, [`OnLost::Continue`] for the limit.
    #[must_use]
    pub fn on_lost(mut self, action: OnLost) -> Self {
        self.settings.common.on_lost = action;
        self
    }

    /// Sets what happens to a request without a key. Default: [`OnMissingKey::Reject`].
    #[must_use]
    pub fn on_missing_key(mut self, action: OnMissingKey) -> Self {
        self.settings.on_missing_key = action;
        self
    }

    /// Enables or disables the layer. If disabled, requests go to the inner service without a permit; the types stay the
    /// same. Default: `true`.
    #[must_use]
    pub fn enabled(mut self, enabled: bool) -> Self {
        self.settings.common.enabled = enabled;
        self
    }

    /// Sets the `Retry-After` of a rejection, rounded up to whole seconds. Default: 1 s.
    ///
    /// Used only with [`reject_with_response`](Self::reject_with_response).
    #[must_use]
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.settings.common.retry_after = delay;
        self
    }

    /// Holds the key until the response's body has ended: the default of the keyed limit.
    ///
    /// Use it with a mutex if the work on the key continues while the body streams. A slow reader of the body then delays
    /// all other requests for the key.
    #[must_use]
    pub fn hold_until_body_end(self) -> KeyedLayer<M, K, UntilBodyEnd, R> {
        self.with_policies()
    }

    /// Releases the key when the response is ready: the default of the keyed mutex, so that a slow reader of the body does
    /// not delay other requests for the key.
    ///
    /// Requests for services with responses other than `http::Response` need this.
    #[must_use]
    pub fn release_at_response(self) -> KeyedLayer<M, K, AtResponse, R> {
        self.with_policies()
    }

    /// Rejects requests with an HTTP or gRPC response instead of an error. The service keeps the inner service's error
    /// type, which axum requires.
    ///
    /// For services from `http::Request` to `http::Response`. [`AsResponse`] lists the responses.
    #[must_use]
    pub fn reject_with_response(self) -> KeyedLayer<M, K, H, AsResponse> {
        self.with_policies()
    }

    /// Returns the held and the queued tickets of this key, over all processes.
    ///
    /// # Errors
    ///
    /// As [`Coordinator::inspect`]; [`InvalidKey`](crate::ErrorKind::InvalidKey) for a key that is too long or does not
    /// have exactly one name.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub async fn inspect(&self, key: impl Into<Key>) -> Result<Inspection, Error> {
        self.keyspace.inspect(&key.into()).await
    }

    /// Evicts a ticket that [`inspect`](Self::inspect) returned, as [`Coordinator::evict`] does for a semaphore. Returns
    /// `false` if the ticket did not exist.
    ///
    /// # Errors
    ///
    /// As [`inspect`](Self::inspect).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it resolves, the ticket may or may not be evicted.
    pub async fn evict(&self, key: impl Into<Key>, ticket: &str) -> Result<bool, Error> {
        self.keyspace.evict(&key.into(), ticket).await
    }

    fn with_policies<H2, R2>(self) -> KeyedLayer<M, K, H2, R2> {
        KeyedLayer {
            keyspace: self.keyspace,
            extractor: self.extractor,
            settings: self.settings,
            policies: PhantomData,
        }
    }
}

impl<M, K, H> KeyedLayer<M, K, H> {
    fn with_keyspace(keyspace: Keyspace, on_lost: OnLost, extractor: K) -> Self {
        Self {
            keyspace: Arc::new(keyspace),
            extractor: Arc::new(extractor),
            settings: KeyedSettings::new(on_lost),
            policies: PhantomData,
        }
    }
}

impl<M, S, K, H, R> Layer<S> for KeyedLayer<M, K, H, R> {
    type Service = Keyed<M, S, K, H, R>;

    fn layer(&self, inner: S) -> Self::Service {
        Keyed::new(inner, &self.keyspace, &self.extractor, self.settings)
    }
}

impl<M, K, H, R> Clone for KeyedLayer<M, K, H, R> {
    fn clone(&self) -> Self {
        Self {
            keyspace: Arc::clone(&self.keyspace),
            extractor: Arc::clone(&self.extractor),
            settings: self.settings,
            policies: PhantomData,
        }
    }
}

impl<M, K, H, R> fmt::Debug for KeyedLayer<M, K, H, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedLayer")
            .field("keyspace", &self.keyspace)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
