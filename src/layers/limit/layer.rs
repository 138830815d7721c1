//! The `Layer` of the concurrency limit.

use super::service::DistributedConcurrencyLimit;
use crate::Semaphore;
use crate::layers::rejection::{AsError, AsErrorWithHandle, AsResponse};
use crate::layers::response::{AtResponse, UntilBodyEnd};
use crate::layers::settings::{MIN_RESERVATION_TTL, OnLost, OnUnavailable, Settings};
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;
use tower_layer::Layer;

/// Applies a distributed concurrency limit to a service: each request holds a permit of one [`Semaphore`].
///
/// `H` is the [`HoldPolicy`](crate::layers::HoldPolicy), `R` the [`RejectionPolicy`](crate::layers::RejectionPolicy).
/// [`release_at_response`](Self::release_at_response), [`reject_with_response`](Self::reject_with_response) and
/// [`expose_permit`](Self::expose_permit) change them. See the [module](self::super) for the guide.
///
/// Creating a layer and wrapping a service neither connects nor spawns. All services of this layer, its clones and other
/// layers over the same semaphore share one limit. The layer's `max_waiting` and `max_hold` replace those of the
/// semaphore.
///
/// ```
/// use std::time::Duration;
/// use tower_permit::{Coordinator, DistributedConcurrencyLimitLayer, Memory};
///
/// # fn main() -> Result<(), tower_permit::Error> {
/// let permits = Coordinator::new(Memory::new());
/// let layer = DistributedConcurrencyLimitLayer::new(permits.semaphore("llm:gpt-5", 20)?)
///     .wait_timeout(Duration::from_secs(3))
///     .max_waiting(100)
///     .reject_with_response();
/// # Ok(())
/// # }
/// ```
pub struct DistributedConcurrencyLimitLayer<H = UntilBodyEnd, R = AsError> {
    semaphore: Semaphore,
    settings: Settings,
    policies: PhantomData<fn() -> (H, R)>,
}

// === impl DistributedConcurrencyLimitLayer ===

impl DistributedConcurrencyLimitLayer {
    /// Creates a layer over this semaphore, with the defaults of the methods below.
    pub fn new(semaphore: Semaphore) -> Self {
        Self {
            semaphore,
            settings: Settings::default(),
            policies: PhantomData,
        }
    }
}

impl<H, R> DistributedConcurrencyLimitLayer<H, R> {
    /// Sets how long a request waits for its permit before it is rejected with
    /// [`WaitTimeout`](crate::ErrorKind::WaitTimeout). Default: 30 s.
    #[must_use]
    pub fn wait_timeout(mut self, timeout: Duration) -> Self {
        self.settings.wait_timeout = timeout;
        self
    }

    /// Sets how many requests of this process may wait for this name. Further requests are rejected at once with
    /// [`TooManyWaiting`](crate::ErrorKind::TooManyWaiting). Default: 1,024.
    ///
    /// A request counts if there is no room for it: none is rejected while a permit is free. 0 is the same as
    /// [`reject_when_full`](Self::reject_when_full).
    #[must_use]
    pub fn max_waiting(mut self, max: usize) -> Self {
        self.settings.max_waiting = max;
        self
    }

    /// Rejects a request at once with [`LimitReached`](crate::ErrorKind::LimitReached) if no permit is free, instead of
    /// waiting.
    ///
    /// `poll_ready` then only polls the inner service, and `call`'s future tries to acquire once. Use this instead of
    /// `tower::load_shed`: a permit of another process is never ready at the first poll.
    #[must_use]
    pub fn reject_when_full(mut self) -> Self {
        self.settings.may_wait = false;
        self
    }

    /// Acquires the permit in `call`'s future instead of `poll_ready`, which then only polls the inner service.
    ///
    /// Use it if an outer layer must see the wait: a timeout, such as that of `tonic::transport::Server`, or a
    /// `tower::load_shed` that sheds for the inner service. And if requests have deadlines of their own
    /// ([`Deadline`](crate::layers::Deadline), `grpc-timeout`), which bound a wait in `call` only.
    #[must_use]
    pub fn acquire_in_call(mut self) -> Self {
        self.settings.acquire_in_call = true;
        self
    }

    /// Sets how long a permit or a rejection that `poll_ready` obtained stays reserved for `call`. Default: 1 s; at least
    /// 10 ms.
    ///
    /// After that the permit is released. A later `call` acquires another permit in its future.
    #[must_use]
    pub fn reservation_ttl(mut self, ttl: Duration) -> Self {
        self.settings.reservation_ttl = ttl.max(MIN_RESERVATION_TTL);
        self
    }

    /// Sets how long a request may hold its permit. Default: 10 min.
    ///
    /// After that the permit is released, a warning is logged, and the request ends with
    /// [`HeldTooLong`](crate::ErrorKind::HeldTooLong): its future if it still runs, else the response's body.
    #[must_use]
    pub fn max_hold(mut self, max: Duration) -> Self {
        self.settings.max_hold = max;
        self
    }

    /// Sets how long a response may remain unread before its permit is released, and its body ends with
    /// [`Stalled`](crate::ErrorKind::Stalled). `None`: for ever. Default: 30 s.
    ///
    /// The time counts from each frame of the body until the reader asks for the next one. A client that stops reading stops its
    /// server's reads when the buffers between them are full. Time in which the reader waits for a slow body does not count.
    #[must_use]
    pub fn stall_timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.settings.stall_timeout = timeout.into();
        self
    }

    /// Sets what happens to requests during an outage of the backend. Default: [`OnUnavailable::Reject`].
    #[must_use]
    pub fn on_unavailable(mut self, action: OnUnavailable) -> Self {
        self.settings.on_unavailable = action;
        self
    }

    /// Sets what happens to a running request that loses its permit. Default: [`OnLost::Continue`].
    #[must_use]
    pub fn on_lost(mut self, action: OnLost) -> Self {
        self.settings.on_lost = action;
        self
    }

    /// Enables or disables the layer. If disabled, requests go to the inner service without a permit; the types stay the
    /// same. Default: `true`.
    #[must_use]
    pub fn enabled(mut self, enabled: bool) -> Self {
        self.settings.enabled = enabled;
        self
    }

    /// Sets the `Retry-After` of a rejection, rounded up to whole seconds. Default: 1 s.
    ///
    /// Used only with [`reject_with_response`](Self::reject_with_response).
    #[must_use]
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.settings.retry_after = delay;
        self
    }

    /// Releases the permit when the response is ready, instead of at the end of its body.
    ///
    /// For response types without a body, and for services where only the time until the response counts.
    #[must_use]
    pub fn release_at_response(self) -> DistributedConcurrencyLimitLayer<AtResponse, R> {
        self.with_policies()
    }

    /// Rejects requests with an HTTP or gRPC response instead of an error. The service keeps the inner service's error
    /// type, which axum requires.
    ///
    /// For services from `http::Request` to `http::Response`. [`AsResponse`] lists the responses. The request's
    /// extensions also get a [`PermitHandle`](crate::PermitHandle), as with [`expose_permit`](Self::expose_permit).
    #[must_use]
    pub fn reject_with_response(self) -> DistributedConcurrencyLimitLayer<H, AsResponse> {
        self.with_policies()
    }

    /// Adds a [`PermitHandle`](crate::PermitHandle) to the request's extensions. It can hold the permit beyond the
    /// response, for upgraded connections and background work. Requests are still rejected with an error.
    ///
    /// For services that take `http::Request`. [`reject_with_response`](Self::reject_with_response) includes it.
    #[must_use]
    pub fn expose_permit(self) -> DistributedConcurrencyLimitLayer<H, AsErrorWithHandle> {
        self.with_policies()
    }

    fn with_policies<H2, R2>(self) -> DistributedConcurrencyLimitLayer<H2, R2> {
        DistributedConcurrencyLimitLayer {
            semaphore: self.semaphore,
            settings: self.settings,
            policies: PhantomData,
        }
    }
}

impl<S, H, R> Layer<S> for DistributedConcurrencyLimitLayer<H, R> {
    type Service = DistributedConcurrencyLimit<S, H, R>;

    fn layer(&self, inner: S) -> Self::Service {
        DistributedConcurrencyLimit::with_settings(inner, self.semaphore.clone(), self.settings)
    }
}

impl<H, R> Clone for DistributedConcurrencyLimitLayer<H, R> {
    fn clone(&self) -> Self {
        Self {
            semaphore: self.semaphore.clone(),
            settings: self.settings,
            policies: PhantomData,
        }
    }
}

impl<H, R> fmt::Debug for DistributedConcurrencyLimitLayer<H, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DistributedConcurrencyLimitLayer")
            .field("semaphore", &self.semaphore)
            .field("settings", &self.settings)
            .finish()
    }
}
