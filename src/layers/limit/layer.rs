use super::DistributedConcurrencyLimit;
use crate::Semaphore;
use crate::layers::rejection::{AsError, AsHttpError, AsResponse};
use crate::layers::response::{AtResponse, UntilBodyEnd};
use crate::layers::settings::{LEAST_RESERVATION, OnLost, OnUnavailable, Settings};
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;
use tower_layer::Layer;

/// Wraps services so that each request holds a permit of one [`Semaphore`].
///
/// `H` says how long it holds, `R` how a refusal looks; both have methods that change them. See the
/// [module](self::super) for the guide.
///
/// Making a layer or wrapping a service neither connects nor spawns anything, and every service that comes of this
/// layer, its clones, or another layer over the same semaphore counts against the one limit. What is set here, or left
/// at its default, holds for the layer's requests in place of the semaphore's own `max_waiting` and `max_hold`.
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
    mode: PhantomData<fn() -> (H, R)>,
}

// === impl DistributedConcurrencyLimitLayer ===

impl DistributedConcurrencyLimitLayer {
    /// A layer over this semaphore, with the defaults of each method below.
    pub fn new(semaphore: Semaphore) -> Self {
        Self {
            semaphore,
            settings: Settings::default(),
            mode: PhantomData,
        }
    }
}

impl<H, R> DistributedConcurrencyLimitLayer<H, R> {
    /// How long a request waits for its permit before it is refused with
    /// [`WaitTimeout`](crate::ErrorKind::WaitTimeout). Default: 30 s.
    #[must_use]
    pub fn wait_timeout(mut self, timeout: Duration) -> Self {
        self.settings.wait_timeout = timeout;
        self
    }

    /// How many may wait in this process for this name; one more is refused at once with
    /// [`TooManyWaiting`](crate::ErrorKind::TooManyWaiting). Default: 1,024.
    #[must_use]
    pub fn max_waiting(mut self, waiting: usize) -> Self {
        self.settings.max_waiting = waiting;
        self
    }

    /// Nobody waits: a request that finds no room is refused at once with
    /// [`LimitReached`](crate::ErrorKind::LimitReached).
    ///
    /// `poll_ready` is then the inner service's only, and the one try is made in `call`'s future. This, and not
    /// `tower::load_shed`, is how to shed load with a limit whose state is on another machine.
    #[must_use]
    pub fn reject_when_full(mut self) -> Self {
        self.settings.queue = false;
        self
    }

    /// How long what `poll_ready` obtained, a permit or a refusal, waits for `call`. Default: 1 s; at least 10 ms.
    ///
    /// A permit that was not used by then goes back; the `call` that comes later takes another one in its future.
    #[must_use]
    pub fn reservation_ttl(mut self, ttl: Duration) -> Self {
        self.settings.reservation_ttl = ttl.max(LEAST_RESERVATION);
        self
    }

    /// How long one request may hold its permit. Default: 10 min.
    ///
    /// Then the permit goes back, with a warning in the log, and the request ends with
    /// [`HeldTooLong`](crate::ErrorKind::HeldTooLong): its future if it still runs, else the response's body.
    #[must_use]
    pub fn max_hold(mut self, hold: Duration) -> Self {
        self.settings.max_hold = hold;
        self
    }

    /// What happens when the backend does not answer. Default: [`OnUnavailable::Reject`].
    #[must_use]
    pub fn on_unavailable(mut self, choice: OnUnavailable) -> Self {
        self.settings.on_unavailable = choice;
        self
    }

    /// What happens to a request whose permit is lost while it runs. Default: [`OnLost::Continue`].
    #[must_use]
    pub fn on_lost(mut self, choice: OnLost) -> Self {
        self.settings.on_lost = choice;
        self
    }

    /// `false`: requests go straight to the inner service, while all types stay the same. Default: `true`.
    #[must_use]
    pub fn enabled(mut self, enabled: bool) -> Self {
        self.settings.enabled = enabled;
        self
    }

    /// What the `Retry-After` of a refusal says, rounded up to whole seconds. Default: 1 s.
    ///
    /// Seen only with [`reject_with_response`](Self::reject_with_response).
    #[must_use]
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.settings.retry_after = delay;
        self
    }

    /// The permit goes back when the response is ready, not at the end of its body.
    ///
    /// For responses without a body, and for services where only the time until the answer counts.
    #[must_use]
    pub fn release_at_response(self) -> DistributedConcurrencyLimitLayer<AtResponse, R> {
        self.with_mode()
    }

    /// A refusal is an HTTP or gRPC response, and the service keeps the inner service's error type.
    ///
    /// For services from `http::Request` to `http::Response`. See [`AsResponse`] for what the client sees. The
    /// request's extensions also get a [`PermitHandle`](crate::PermitHandle), which can keep the permit beyond the
    /// response, for upgrades and background work.
    #[must_use]
    pub fn reject_with_response(self) -> DistributedConcurrencyLimitLayer<H, AsResponse> {
        self.with_mode()
    }

    /// The request's extensions get a [`PermitHandle`](crate::PermitHandle), which can keep the permit beyond the
    /// response, for upgrades and background work. Refusals stay errors.
    ///
    /// For services that take `http::Request`. With [`reject_with_response`](Self::reject_with_response) it is there
    /// anyway.
    #[must_use]
    pub fn expose_permit(self) -> DistributedConcurrencyLimitLayer<H, AsHttpError> {
        self.with_mode()
    }

    fn with_mode<H2, R2>(self) -> DistributedConcurrencyLimitLayer<H2, R2> {
        DistributedConcurrencyLimitLayer {
            semaphore: self.semaphore,
            settings: self.settings,
            mode: PhantomData,
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
            mode: PhantomData,
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
