//! The response future of the keyed layers.

use super::acquire_keys::{AcquireKeys, GetExtensions};
use crate::Error;
use crate::layers::held_future::{HeldFuture, respond};
use crate::layers::held_permits::{HeldPermits, WatchedPermits};
use crate::layers::oneshot::Oneshot;
use crate::layers::rejection::{Protocol, Rejection, RejectionPolicy};
use crate::layers::response::HoldPolicy;
use crate::layers::settings::{OnLost, Settings};
use pin_project_lite::pin_project;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tower_service::Service;

pin_project! {
    /// Response future of [`Keyed`](super::Keyed).
    ///
    /// The request is enqueued at the first poll.
    ///
    /// # Cancel safety
    ///
    /// Dropping it at any time is safe. A queued ticket leaves the queue; a running inner future is dropped, and then the
    /// key is released.
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct ResponseFuture<S, Req, H, R>
    where
        S: Service<Req>,
    {
        #[pin]
        state: State<S, Req, S::Future>,
        retry_after: Duration,
        protocol: Protocol,
        policies: PhantomData<fn() -> (H, R)>,
    }
}

pin_project! {
    #[project = StateProj]
    #[project_replace = StateTaken]
    enum State<S, Req, F> {
        // Waits for the keys, without a claim on the inner service. → `Running`, or the end with a rejection. The fields
        // are dropped in this order: the permits last.
        Waiting {
            inner: S,
            request: Req,
            extensions: GetExtensions<Req>,
            keys: AcquireKeys,
        },
        // With all keys, or without if none is needed: makes the inner service ready and calls it.
        Running { #[pin] future: HeldFuture<Oneshot<S, Req, F>> },
        Rejected { error: Error },
        Done,
    }
}

// === impl ResponseFuture ===

impl<S, Req, H, R> ResponseFuture<S, Req, H, R>
where
    S: Service<Req>,
{
    pub(super) fn waiting(
        inner: S,
        request: Req,
        extensions: GetExtensions<Req>,
        keys: AcquireKeys,
        protocol: Protocol,
    ) -> Self {
        let retry_after = keys.settings().retry_after;
        let state = State::Waiting {
            inner,
            request,
            extensions,
            keys,
        };
        Self::new(state, retry_after, protocol)
    }

    /// For a request that needs no key.
    pub(super) fn running(inner: S, request: Req, settings: &Settings, protocol: Protocol) -> Self {
        let permits = WatchedPermits::new(HeldPermits::default());
        let state = State::running(inner, request, permits, settings.on_lost);
        Self::new(state, settings.retry_after, protocol)
    }

    pub(super) fn rejected(error: Error, settings: &Settings, protocol: Protocol) -> Self {
        Self::new(State::Rejected { error }, settings.retry_after, protocol)
    }

    fn new(state: State<S, Req, S::Future>, retry_after: Duration, protocol: Protocol) -> Self {
        Self {
            state,
            retry_after,
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

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let error = match this.state.as_mut().project() {
                StateProj::Waiting {
                    request,
                    extensions,
                    keys,
                    ..
                } => match ready!(keys.poll(request, *extensions, cx)) {
                    Ok(()) => {
                        // → Running, which the next turn polls.
                        let taken = this.state.as_mut().project_replace(State::Done);
                        if let StateTaken::Waiting {
                            inner,
                            request,
                            keys,
                            ..
                        } = taken
                        {
                            let on_lost = keys.settings().on_lost;
                            let permits = keys.into_permits();
                            let running = State::running(inner, request, permits, on_lost);
                            this.state.set(running);
                        }
                        continue;
                    }
                    Err(error) => error,
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
            // After a loss this drops the request or the inner future, and then releases the permits.
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

impl<S, Req> State<S, Req, S::Future>
where
    S: Service<Req>,
{
    fn running(inner: S, request: Req, permits: WatchedPermits, on_lost: OnLost) -> Self {
        let future = HeldFuture::new(Oneshot::new(inner, request), permits, on_lost);
        Self::Running { future }
    }
}
