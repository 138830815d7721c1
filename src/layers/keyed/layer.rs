use super::key::Key;
use super::line::Line;
use super::service::{Choices, Keyed};
use crate::layers::rejection::{AsError, AsResponse};
use crate::layers::response::{AtResponse, UntilBodyEnd};
use crate::layers::settings::{OnLost, OnUnavailable, Settings};
use crate::name::Kind;
use crate::{Coordinator, Error, Inspection};
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;
use tower_layer::Layer;

/// Wraps services so that one request at a time is inside for each key, over every process.
///
/// ```
/// use std::time::Duration;
/// use tower_permit::layers::keyed::path_segment;
/// use tower_permit::{Coordinator, KeyedMutexLayer, Memory};
///
/// # fn main() -> Result<(), tower_permit::Error> {
/// let permits = Coordinator::new(Memory::new());
/// let one_purchase_per_product = KeyedMutexLayer::new(&permits, "buy", path_segment(1))?
///     .wait_timeout(Duration::from_secs(3))
///     .max_waiting(100)
///     .reject_with_response();
/// # Ok(())
/// # }
/// ```
///
/// Its methods are those of [`KeyedLayer`]; the guide is the [module](self::super).
pub type KeyedMutexLayer<K, H = AtResponse, R = AsError> = KeyedLayer<Exclusive, K, H, R>;

/// Wraps services so that at most so many requests at a time are inside for each key, over every process.
///
/// ```
/// use http::{HeaderName, Request};
/// use tower_permit::layers::keyed::header;
/// use tower_permit::{Coordinator, Key, KeyedConcurrencyLimitLayer, Memory};
///
/// # fn main() -> Result<(), tower_permit::Error> {
/// let permits = Coordinator::new(Memory::new());
/// let per_tenant =
///     KeyedConcurrencyLimitLayer::new(&permits, "tenant", 3, header(HeaderName::from_static("x-tenant")))?;
///
/// // Or with the limit that the request's own plan says:
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
/// Its methods are those of [`KeyedLayer`]; the guide is the [module](self::super).
pub type KeyedConcurrencyLimitLayer<K, H = AtResponse, R = AsError> = KeyedLayer<Limited, K, H, R>;

/// What [`KeyedMutexLayer`] and [`KeyedConcurrencyLimitLayer`] are.
///
/// `M` says which of the two, `K` finds the key of a request, `H` says how long it is held, `R` how a refusal looks; the
/// last two have methods that change them. See the [module](self::super) for the guide.
///
/// Making a layer or wrapping a service neither connects nor spawns anything. Layers of one name over one backend, in
/// any process, share their keys; layers of different names have nothing to do with each other.
pub struct KeyedLayer<M, K, H = AtResponse, R = AsError> {
    line: Arc<Line>,
    key: Arc<K>,
    choices: Choices,
    mode: PhantomData<fn(M, H, R)>,
}

/// Marks a keyed mutex: one request at a time for each key.
#[derive(Clone, Copy, Debug)]
pub enum Exclusive {}

/// Marks a keyed concurrency limit: at most so many requests at a time for each key.
#[derive(Clone, Copy, Debug)]
pub enum Limited {}

/// What happens to a request that has no key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnMissingKey {
    /// It passes, and holds nothing.
    #[default]
    Pass,
    /// It is refused with [`ErrorKind::MissingKey`](crate::ErrorKind::MissingKey); as a response that is a 400.
    Reject,
}

// === impl KeyedLayer ===

impl<K> KeyedLayer<Exclusive, K> {
    /// A mutex for each key that `key` finds, with the defaults of each method below. `name` is the layer's own: the same
    /// key in a layer of another name is another key.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) if the name is too long.
    pub fn new(coordinator: &Coordinator, name: impl AsRef<str>, key: K) -> Result<Self, Error> {
        Self::with_kind(coordinator, Kind::Mutex, name.as_ref(), 1, OnLost::End, key)
    }
}

impl<K> KeyedLayer<Limited, K> {
    /// A limit for each key that `key` finds, with the defaults of each method below. `name` is the layer's own: the same
    /// key in a layer of another name is another key. A key may bring a limit of its own
    /// ([`Key::with_limit`](super::Key::with_limit)).
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for a limit of 0, one that the backend cannot keep, or a name
    /// that is too long.
    pub fn new(
        coordinator: &Coordinator,
        name: impl AsRef<str>,
        limit: u32,
        key: K,
    ) -> Result<Self, Error> {
        coordinator.client().check_limit(limit)?;
        let on_lost = OnLost::Continue;
        Self::with_kind(coordinator, Kind::Limit, name.as_ref(), limit, on_lost, key)
    }
}

impl<M, K, H, R> KeyedLayer<M, K, H, R> {
    /// How long a request waits before it is refused with [`WaitTimeout`](crate::ErrorKind::WaitTimeout), for all its
    /// names together. Default: 30 s.
    #[must_use]
    pub fn wait_timeout(mut self, timeout: Duration) -> Self {
        self.choices.settings.wait_timeout = timeout;
        self
    }

    /// How many may wait in this process for one key; one more is refused at once with
    /// [`TooManyWaiting`](crate::ErrorKind::TooManyWaiting). Default: 1,024.
    #[must_use]
    pub fn max_waiting(mut self, waiting: usize) -> Self {
        self.choices.settings.max_waiting = waiting;
        self
    }

    /// How many may wait in this process for any key of this layer; one more is refused at once with
    /// [`TooManyWaiting`](crate::ErrorKind::TooManyWaiting). Default: 16,384.
    ///
    /// A request waits from the first poll of its future until it has its key, the trip to the backend included. One that
    /// re-enters does not.
    #[must_use]
    pub fn max_waiting_total(mut self, waiting: usize) -> Self {
        self.choices.max_waiting_total = waiting;
        self
    }

    /// Nobody waits: a request whose key is taken is refused at once with
    /// [`LimitReached`](crate::ErrorKind::LimitReached).
    #[must_use]
    pub fn reject_when_full(mut self) -> Self {
        self.choices.settings.queue = false;
        self
    }

    /// How long one request may hold its key. Default: 10 min.
    ///
    /// Then the key goes back, with a warning in the log, and the request ends with
    /// [`HeldTooLong`](crate::ErrorKind::HeldTooLong).
    #[must_use]
    pub fn max_hold(mut self, hold: Duration) -> Self {
        self.choices.settings.max_hold = hold;
        self
    }

    /// What happens when the backend does not answer. Default: [`OnUnavailable::Reject`].
    #[must_use]
    pub fn on_unavailable(mut self, choice: OnUnavailable) -> Self {
        self.choices.settings.on_unavailable = choice;
        self
    }

    /// What happens to a request whose key is lost while it runs, or while it waits for more. Default: [`OnLost::End`]
    /// for the mutex, [`OnLost::Continue`] for the limit.
    #[must_use]
    pub fn on_lost(mut self, choice: OnLost) -> Self {
        self.choices.settings.on_lost = choice;
        self
    }

    /// What happens to a request that has no key. Default: [`OnMissingKey::Pass`].
    #[must_use]
    pub fn on_missing_key(mut self, choice: OnMissingKey) -> Self {
        self.choices.on_missing_key = choice;
        self
    }

    /// `false`: requests go straight to the inner service, while all types stay the same. Default: `true`.
    #[must_use]
    pub fn enabled(mut self, enabled: bool) -> Self {
        self.choices.settings.enabled = enabled;
        self
    }

    /// What the `Retry-After` of a refusal says, rounded up to whole seconds. Default: 1 s.
    ///
    /// Seen only with [`reject_with_response`](Self::reject_with_response).
    #[must_use]
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.choices.settings.retry_after = delay;
        self
    }

    /// The key is held until the response's body has ended, not only until the response is there.
    ///
    /// Then the slowest reader of a response keeps everybody else from the key: choose it where work on the key goes on
    /// while the body streams.
    #[must_use]
    pub fn hold_until_body_end(self) -> KeyedLayer<M, K, UntilBodyEnd, R> {
        self.with_mode()
    }

    /// A refusal is an HTTP or gRPC response, and the service keeps the inner service's error type.
    ///
    /// For services from `http::Request` to `http::Response`. See [`AsResponse`] for what the client sees.
    #[must_use]
    pub fn reject_with_response(self) -> KeyedLayer<M, K, H, AsResponse> {
        self.with_mode()
    }

    /// Who holds this key of the layer and who waits for it, over all processes.
    ///
    /// # Errors
    ///
    /// When the backend does not answer or refuses; [`InvalidKey`](crate::ErrorKind::InvalidKey) for a key that is too long
    /// or not one name.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn inspect(&self, key: impl Into<Key>) -> Result<Inspection, Error> {
        self.line.inspect(&key.into()).await
    }

    /// Takes a ticket that [`inspect`](Self::inspect) has shown out, as
    /// [`Coordinator::evict`](crate::Coordinator::evict) does. `false` if it was not there.
    ///
    /// # Errors
    ///
    /// As [`inspect`](Self::inspect).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before its end, the ticket may be out or not.
    pub async fn evict(&self, key: impl Into<Key>, ticket: &str) -> Result<bool, Error> {
        self.line.evict(&key.into(), ticket).await
    }

    fn with_mode<H2, R2>(self) -> KeyedLayer<M, K, H2, R2> {
        KeyedLayer {
            line: self.line,
            key: self.key,
            choices: self.choices,
            mode: PhantomData,
        }
    }
}

impl<M, K> KeyedLayer<M, K> {
    fn with_kind(
        coordinator: &Coordinator,
        kind: Kind,
        name: &str,
        limit: u32,
        on_lost: OnLost,
        key: K,
    ) -> Result<Self, Error> {
        let settings = Settings {
            on_lost,
            ..Settings::default()
        };
        Ok(Self {
            line: Arc::new(Line::new(coordinator.client(), kind, name, limit)?),
            key: Arc::new(key),
            choices: Choices {
                settings,
                max_waiting_total: 16 * 1024,
                on_missing_key: OnMissingKey::default(),
            },
            mode: PhantomData,
        })
    }
}

impl<M, S, K, H, R> Layer<S> for KeyedLayer<M, K, H, R> {
    type Service = Keyed<M, S, K, H, R>;

    fn layer(&self, inner: S) -> Self::Service {
        Keyed::new(inner, &self.line, &self.key, self.choices)
    }
}

impl<M, K, H, R> Clone for KeyedLayer<M, K, H, R> {
    fn clone(&self) -> Self {
        Self {
            line: Arc::clone(&self.line),
            key: Arc::clone(&self.key),
            choices: self.choices,
            mode: PhantomData,
        }
    }
}

impl<M, K, H, R> fmt::Debug for KeyedLayer<M, K, H, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedLayer")
            .field("line", &self.line)
            .field("choices", &self.choices)
            .finish_non_exhaustive()
    }
}
