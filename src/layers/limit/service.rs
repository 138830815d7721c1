use super::ResponseFuture;
use crate::clock;
use crate::layers::rejection::{AsError, Refuse};
use crate::layers::response::{Hold, UntilBodyEnd};
use crate::layers::settings::Settings;
use crate::semaphore::Acquire;
use crate::{Error, Permit, Semaphore};
use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::time::Instant;
use tower_service::Service;

/// A service that holds a permit of a [`Semaphore`] for each request.
///
/// `H` says how long it holds, `R` how a refusal looks. See the [module](self::super) for the guide.
pub struct DistributedConcurrencyLimit<S, H = UntilBodyEnd, R = AsError> {
    inner: S,
    semaphore: Semaphore,
    settings: Settings,
    /// What `poll_ready` has so far. Taken by `call`, never cloned.
    reservation: Reservation,
    mode: PhantomData<fn() -> (H, R)>,
}

/// Acquired in `poll_ready`, taken in `call`.
enum Reservation {
    /// Nothing: no place in the queue either.
    None,
    /// A place in the queue. Boxed, since `call` hands it to the future if it comes too early.
    Waiting(Pin<Box<Acquire>>),
    /// The wait is over and `poll_ready` has said so: ready it stays, even if what is in here goes stale.
    Ready(Outcome),
}

enum Outcome {
    /// Goes back by itself when it is not claimed in time.
    Permit(Permit),
    /// Kept for `call`'s future, since an error of `poll_ready` ends a `Buffer` for good.
    Refused { error: Error, since: Instant },
    /// No permit is needed: the backend does not answer, and the user chose `Allow`.
    Allowed { since: Instant },
}

/// How a request that comes now goes in.
enum Entry {
    /// `None`: it needs no permit.
    Admitted(Option<Permit>),
    Refused(Error),
    /// It acquires for itself, from this place in the queue if there is one.
    Waits(Option<Pin<Box<Acquire>>>),
}

// === impl DistributedConcurrencyLimit ===

impl<S> DistributedConcurrencyLimit<S> {
    /// A limit with default settings. For others use
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
            mode: PhantomData,
        }
    }

    /// The inner service.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The inner service, to be changed.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The inner service; a reservation goes back.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, H, R, Req> Service<Req> for DistributedConcurrencyLimit<S, H, R>
where
    S: Service<Req> + Clone,
    H: Hold<S::Response>,
    R: Refuse<Req, H::Response, S::Error>,
{
    type Response = R::Response;
    type Error = R::Error;
    type Future = ResponseFuture<S, Req, H, R>;

    /// Ready when the inner service is and a permit is reserved, or when it is known that there will be none.
    ///
    /// Fails only with the inner service's errors.
    #[inline]
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        let inner = self.inner.poll_ready(cx);
        if !matches!(inner, Poll::Ready(Ok(()))) {
            // No permit is held, nor a place kept, for a service that could not use it.
            self.reservation = Reservation::None;
            return inner.map_err(R::pass_error);
        }
        if self.settings.enabled && self.settings.queue {
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
            Entry::Admitted(permit) => {
                if let Some(permit) = &permit {
                    R::mark(&mut request, permit);
                }
                let future = self.inner.call(request);
                ResponseFuture::running(future, permit, &self.settings, protocol)
            }
            Entry::Refused(error) => ResponseFuture::refused(error, &self.settings, protocol),
            Entry::Waits(wait) => {
                // Nothing usable: the future acquires for itself. The inner service that was made ready goes with it, and
                // a clone stays here.
                let clone = self.inner.clone();
                let inner = mem::replace(&mut self.inner, clone);
                let semaphore = self.semaphore.clone();
                ResponseFuture::waiting(inner, request, semaphore, wait, &self.settings, protocol)
            }
        }
    }
}

impl<S: Clone, H, R> Clone for DistributedConcurrencyLimit<S, H, R> {
    /// The clone shares the limit, and starts without a reservation.
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

// === impl Reservation ===

impl Reservation {
    /// `None` → `Waiting` → `Ready`; from a permit that has already gone back to `Waiting` again, at the end of the
    /// queue. The waker is the wait's to wake; `Ready` needs none.
    fn poll_ready(
        &mut self,
        cx: &mut Context<'_>,
        semaphore: &Semaphore,
        settings: &Settings,
    ) -> Poll<()> {
        loop {
            match self {
                Self::None => {
                    *self = match semaphore.reserve_lingering(settings.reservation_terms()) {
                        Some(permit) => Self::Ready(Outcome::Permit(permit)),
                        None => Self::Waiting(Box::pin(semaphore.start(settings.reservation()))),
                    }
                }
                Self::Waiting(wait) => match ready!(wait.as_mut().poll(cx)) {
                    // Granted, perhaps long ago if nobody polled. From here on it is `call` that is waited for, so its
                    // time begins anew.
                    Ok(permit) if permit.rearm() => *self = Self::Ready(Outcome::Permit(permit)),
                    Ok(_gone_back) => *self = Self::None,
                    Err(error) => *self = Self::Ready(Outcome::of(error, settings)),
                },
                Self::Ready(_) => return Poll::Ready(()),
            }
        }
    }

    /// What is here for a request, if it can be used still. Nothing stays.
    #[inline]
    fn take(&mut self, settings: &Settings) -> Entry {
        // What happens most first. A permit is moved only when it is surely ours.
        if let Self::Ready(Outcome::Permit(permit)) = self
            && permit.claim()
            && let Self::Ready(Outcome::Permit(permit)) = mem::replace(self, Self::None)
        {
            return Entry::Admitted(Some(permit));
        }
        self.take_other(settings)
    }

    fn take_other(&mut self, settings: &Settings) -> Entry {
        let fresh =
            |since| clock::now().saturating_duration_since(since) < settings.reservation_ttl;
        match mem::replace(self, Self::None) {
            _ if !settings.enabled => Entry::Admitted(None),
            Self::Ready(Outcome::Allowed { since }) if fresh(since) => Entry::Admitted(None),
            Self::Ready(Outcome::Refused { error, since }) if fresh(since) => Entry::Refused(error),
            Self::Waiting(wait) => Entry::Waits(Some(wait)),
            Self::None | Self::Ready(_) => Entry::Waits(None),
        }
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Waiting(_) => "waiting",
            Self::Ready(Outcome::Permit(_)) => "permit",
            Self::Ready(Outcome::Refused { .. }) => "refused",
            Self::Ready(Outcome::Allowed { .. }) => "allowed",
        })
    }
}

// === impl Outcome ===

impl Outcome {
    fn of(error: Error, settings: &Settings) -> Self {
        let since = clock::now();
        if settings.allows(&error) {
            Self::Allowed { since }
        } else {
            Self::Refused { error, since }
        }
    }
}
