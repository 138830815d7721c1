//! The `Service` of the concurrency limit.

use super::future::ResponseFuture;
use super::reservation::{Admission, Reservation};
use crate::Semaphore;
use crate::layers::rejection::{AsError, RejectionPolicy};
use crate::layers::response::{HoldPolicy, UntilBodyEnd};
use crate::layers::settings::Settings;
use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::task::{Context, Poll, ready};
use tower_service::Service;

/// Middleware that holds a permit of a [`Semaphore`] for each request.
///
/// `H` is the [`HoldPolicy`]: when the permit is released. `R` is the [`RejectionPolicy`]. See the [module](self::super)
/// for the guide.
pub struct DistributedConcurrencyLimit<S, H = UntilBodyEnd, R = AsError> {
    inner: S,
    semaphore: Semaphore,
    settings: Settings,
    /// Acquired in `poll_ready`, taken in `call`. A clone starts without one.
    reservation: Reservation,
    policies: PhantomData<fn() -> (H, R)>,
}

// === impl DistributedConcurrencyLimit ===

impl<S> DistributedConcurrencyLimit<S> {
    /// Wraps `inner` with the default settings. For other settings, use
    /// [`DistributedConcurrencyLimitLayer`](super::DistributedConcurrencyLimitLayer).
    pub fn new(inner: S, semaphore: Semaphore) -> Self {
        Self::with_settings(inner, semaphore, Settings::default())
    }
}

impl<S, H, R> DistributedConcurrencyLimit<S, H, R> {
    pub(super) fn with_settings(inner: S, semaphore: Semaphore, settings: Settings) -> Self {
        Self {
            inner,
            semaphore,
            settings,
            reservation: Reservation::None,
            policies: PhantomData,
        }
    }

    /// Returns a reference to the inner service.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Returns a mutable reference to the inner service.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Returns the inner service, and releases a reserved permit.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, H, R, Req> Service<Req> for DistributedConcurrencyLimit<S, H, R>
where
    S: Service<Req> + Clone,
    H: HoldPolicy<S::Response>,
    R: RejectionPolicy<Req, H::Response, S::Error>,
{
    type Response = R::Response;
    type Error = R::Error;
    type Future = ResponseFuture<S, Req, H, R>;

    /// Returns ready when the inner service is ready and a permit is reserved, or the wait for one has failed. If the layer
    /// does not reserve (`acquire_in_call`, `reject_when_full`, disabled), the inner service alone decides.
    ///
    /// # Errors
    ///
    /// Only those of the inner service. A rejection is returned by `call`'s future.
    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        let inner = self.inner.poll_ready(cx);
        if !matches!(inner, Poll::Ready(Ok(()))) {
            // A service that is not ready could not use a permit: hold none, and leave the queue.
            self.reservation = Reservation::None;
            return inner.map_err(R::map_error);
        }
        if self.settings.reserves() {
            ready!(
                self.reservation
                    .poll_ready(cx, &self.semaphore, &self.settings)
            );
        }
        Poll::Ready(Ok(()))
    }

    #[inline]
    fn call(&mut self, mut request: Req) -> Self::Future {
        let protocol = R::protocol(&request);
        match self.reservation.take(&self.settings) {
            Admission::Admitted(permit) => {
                if let Some(permit) = &permit {
                    R::expose_permit(&mut request, permit);
                }
                let future = self.inner.call(request);
                ResponseFuture::running(future, permit, &self.settings, protocol)
            }
            Admission::Rejected(error) => ResponseFuture::rejected(error, &self.settings, protocol),
            Admission::Waits(acquire) => {
                // The future acquires the permit. It gets the inner service that was made ready; the clone stays here.
                let deadline = R::deadline(&request);
                let clone = self.inner.clone();
                let inner = mem::replace(&mut self.inner, clone);
                let semaphore = self.semaphore.clone();
                ResponseFuture::waiting(
                    inner,
                    request,
                    semaphore,
                    acquire,
                    deadline,
                    &self.settings,
                    protocol,
                )
            }
        }
    }
}

impl<S: Clone, H, R> Clone for DistributedConcurrencyLimit<S, H, R> {
    /// Returns a service that shares the limit and has no reservation.
    fn clone(&self) -> Self {
        Self::with_settings(self.inner.clone(), self.semaphore.clone(), self.settings)
    }
}

impl<S: fmt::Debug, H, R> fmt::Debug for DistributedConcurrencyLimit<S, H, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DistributedConcurrencyLimit")
            .field("inner", &self.inner)
            .field("semaphore", &self.semaphore)
            .field("settings", &self.settings)
            .field("reservation", &self.reservation)
            .finish()
    }
}
