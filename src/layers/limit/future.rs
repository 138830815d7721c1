//! The response future of the concurrency limit.

use crate::layers::deadline::Deadline;
use crate::layers::held_future::{HeldFuture, respond};
use crate::layers::held_permits::WatchedPermits;
use crate::layers::rejection::{Protocol, Rejection, RejectionPolicy};
use crate::layers::response::HoldPolicy;
use crate::layers::settings::{OnLost, Settings};
use crate::semaphore::Acquire;
use crate::{Error, Permit, Semaphore};
use pin_project_lite::pin_project;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tower_service::Service;

pin_project! {
    /// Response future of [`DistributedConcurrencyLimit`](super::DistributedConcurrencyLimit).
    ///
    /// # Cancel safety
    ///
    /// Dropping it at any time is safe. A queued ticket leaves the queue; a running inner future is dropped, and then the
    /// permit is released.
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct ResponseFuture<S, Req, H, R>
    where
        S: Service<Req>,
    {
        #[pin]
        state: State<S, Req, S::Future>,
        on_lost: OnLost,
        retry_after: Duration,
        protocol: Protocol,
        policies: PhantomData<fn() -> (H, R)>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, Req, F> {
        // No permit yet. → `Running`, or the end with a rejection. Boxed, since the request may be large and rarely waits
        // here. `None` only on the way to `Running`.
        Waiting { waiting: Option<Box<Waiting<S, Req>>> },
        // With its permit, or without if none is needed.
        Running { #[pin] future: HeldFuture<F> },
        Rejected { error: Error },
        Done,
    }
}

struct Waiting<S, Req> {
    /// The service that `poll_ready` was called on, if it was.
    inner: S,
    request: Req,
    semaphore: Semaphore,
    /// `None` until the inner service is ready.
    acquire: Option<Pin<Box<Acquire>>>,
    deadline: Option<Deadline>,
    settings: Settings,
}

/// Why a request ends before its inner service is called.
enum WaitError<E> {
    Rejected(Error),
    /// The inner service's `poll_ready` failed.
    Inner(E),
}

// === impl ResponseFuture ===

impl<S, Req, H, R> ResponseFuture<S, Req, H, R>
where
    S: Service<Req>,
{
    pub(super) fn waiting(
        inner: S,
        request: Req,
        semaphore: Semaphore,
        acquire: Option<Pin<Box<Acquire>>>,
        deadline: Option<Deadline>,
        settings: &Settings,
        protocol: Protocol,
    ) -> Self {
        let waiting = Some(Box::new(Waiting {
            inner,
            request,
            semaphore,
            acquire,
            deadline,
            settings: *settings,
        }));
        Self::new(State::Waiting { waiting }, settings, protocol)
    }

    #[inline]
    pub(super) fn running(
        future: S::Future,
        permit: Option<Permit>,
        settings: &Settings,
        protocol: Protocol,
    ) -> Self {
        let state = State::running(future, permit, settings.on_lost);
        Self::new(state, settings, protocol)
    }

    pub(super) fn rejected(error: Error, settings: &Settings, protocol: Protocol) -> Self {
        Self::new(State::Rejected { error }, settings, protocol)
    }

    #[inline]
    fn new(state: State<S, Req, S::Future>, settings: &Settings, protocol: Protocol) -> Self {
        Self {
            state,
            on_lost: settings.on_lost,
            retry_after: settings.retry_after,
            protocol,
            policies: PhantomData,
        }
    }
}

impl<S, Req, H, R> Future for ResponseFuture<S, Req, H, R>
where
    S: Service<Req>,
    H: HoldPolicy<S::Response>,
    R: RejectionPolicy<Req, H::Response, S::Error>,
{
    type Output = Result<R::Response, R::Error>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let error = match this.state.as_mut().project() {
                StateProj::Waiting { waiting } => match ready!(poll_permit(waiting, cx)) {
                    Ok(permit) => {
                        // → Running, which the next turn polls.
                        if let Some(waiting) = waiting.take() {
                            let Waiting {
                                mut inner,
                                mut request,
                                ..
                            } = *waiting;
                            if let Some(permit) = &permit {
                                R::expose_permit(&mut request, permit);
                            }
                            let future = inner.call(request);
                            let running = State::running(future, permit, *this.on_lost);
                            this.state.set(running);
                        }
                        continue;
                    }
                    Err(WaitError::Rejected(error)) => error,
                    Err(WaitError::Inner(error)) => {
                        this.state.set(State::Done);
                        return Poll::Ready(Err(R::map_error(error)));
                    }
                },
                StateProj::Running { future } => match ready!(future.poll(cx)) {
                    Ok((result, permit)) => {
                        this.state.set(State::Done);
                        return Poll::Ready(respond::<_, _, _, H, R>(result, permit));
                    }
                    Err(lost) => lost,
                },
                StateProj::Rejected { error } => error.clone(),
                // Polled after its end.
                StateProj::Done => return Poll::Pending,
            };
            // After a loss this drops the inner future and releases the permit.
            this.state.set(State::Done);
            return Poll::Ready(R::reject(Rejection {
                error,
                protocol: *this.protocol,
                retry_after: *this.retry_after,
            }));
        }
    }
}

impl<S, Req, H, R> fmt::Debug for ResponseFuture<S, Req, H, R>
where
    S: Service<Req>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Waiting { .. } => "waiting",
            State::Running { .. } => "running",
            State::Rejected { .. } => "rejected",
            State::Done => "done",
        };
        f.debug_struct("ResponseFuture")
            .field("state", &state)
            .finish_non_exhaustive()
    }
}

// === impl State ===

impl<S, Req, F> State<S, Req, F> {
    #[inline]
    fn running(future: F, permit: Option<Permit>, on_lost: OnLost) -> Self {
        let permits = WatchedPermits::new(permit.into());
        let future = HeldFuture::new(future, permits, on_lost);
        Self::Running { future }
    }
}

/// Waits for the inner service and then for a permit, as `poll_ready` does: while the inner service is not ready, no
/// permit is held and no ticket is queued. Resolves to `None` if no permit is needed.
fn poll_permit<S, Req>(
    waiting: &mut Option<Box<Waiting<S, Req>>>,
    cx: &mut Context<'_>,
) -> Poll<Result<Option<Permit>, WaitError<S::Error>>>
where
    S: Service<Req>,
{
    let Some(waiting) = waiting else {
        return Poll::Pending;
    };
    let Waiting {
        inner,
        semaphore,
        acquire,
        deadline,
        settings,
        ..
    } = &mut **waiting;
    match inner.poll_ready(cx) {
        Poll::Ready(Ok(())) => {}
        Poll::Ready(Err(error)) => return Poll::Ready(Err(WaitError::Inner(error))),
        Poll::Pending => {
            *acquire = None;
            return Poll::Pending;
        }
    }
    loop {
        let wait = acquire.get_or_insert_with(|| {
            let wait = settings.request(Duration::ZERO, *deadline);
            Box::pin(semaphore.acquire_with(&wait))
        });
        let outcome = ready!(wait.as_mut().poll(cx));
        *acquire = None;
        return Poll::Ready(match outcome {
            Ok(permit) if permit.claim() => Ok(Some(permit)),
            // Granted so long ago that it was released before this was polled: enqueue again.
            Ok(_released) => continue,
            Err(error) if settings.allows(&error) => Ok(None),
            Err(error) => Err(WaitError::Rejected(error)),
        });
    }
}
