use super::line::{Entry, Extensions};
use crate::Error;
use crate::layers::answer;
use crate::layers::held::{Held, Holding};
use crate::layers::rejection::{Protocol, Refusal, Refuse};
use crate::layers::response::Hold;
use crate::layers::settings::Settings;
use pin_project_lite::pin_project;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tower_service::Service;

pin_project! {
    /// The future of a [`Keyed`](super::Keyed) service.
    ///
    /// The request gets in line at its first poll.
    ///
    /// # Cancel safety
    ///
    /// Dropping it at any time is safe: the place in the line is given up, or the inner future is dropped and then the key
    /// goes back.
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct ResponseFuture<S, Req, H, R>
    where
        S: Service<Req>,
    {
        // First, so that an inner future is dropped before the key goes back.
        #[pin]
        state: State<S, Req, S::Future>,
        // What the request has so far.
        holding: Holding,
        settings: Settings,
        protocol: Protocol,
        mode: PhantomData<fn() -> (H, R)>,
    }
}

pin_project! {
    #[project = StateProj]
    #[project_replace = StateTaken]
    enum State<S, Req, F> {
        // For keys; nothing of the inner service is held. → `Readying`, or the end with a refusal.
        Waiting {
            inner: S,
            request: Req,
            extensions: Extensions<Req>,
            entry: Entry,
        },
        // With all keys, or none to take. → `Running`, or the end with the inner service's error.
        Readying { inner: S, request: Req },
        Running { #[pin] future: F },
        Refused { error: Error },
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
        extensions: Extensions<Req>,
        entry: Entry,
        settings: Settings,
        protocol: Protocol,
    ) -> Self {
        let state = State::Waiting {
            inner,
            request,
            extensions,
            entry,
        };
        Self::new(state, settings, protocol)
    }

    pub(super) fn passing(inner: S, request: Req, settings: Settings, protocol: Protocol) -> Self {
        Self::new(State::Readying { inner, request }, settings, protocol)
    }

    pub(super) fn refused(error: Error, settings: Settings, protocol: Protocol) -> Self {
        Self::new(State::Refused { error }, settings, protocol)
    }

    fn new(state: State<S, Req, S::Future>, settings: Settings, protocol: Protocol) -> Self {
        Self {
            state,
            holding: Holding::new(Held::default()),
            settings,
            protocol,
            mode: PhantomData,
        }
    }
}

impl<S, Req, H, R> Future for ResponseFuture<S, Req, H, R>
where
    S: Service<Req>,
    H: Hold<S::Response>,
    R: Refuse<Req, H::Response, S::Error>,
{
    type Output = Result<R::Response, R::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let settings = this.settings;
        loop {
            let holding = &mut *this.holding;
            let refused = match this.state.as_mut().project() {
                StateProj::Waiting {
                    request,
                    extensions,
                    entry,
                    ..
                } => match ready!(entry.poll(request, *extensions, holding, settings, cx)) {
                    Ok(()) => {
                        // → Readying, which the next turn polls.
                        let taken = this.state.as_mut().project_replace(State::Done);
                        if let StateTaken::Waiting { inner, request, .. } = taken {
                            this.state.set(State::Readying { inner, request });
                        }
                        continue;
                    }
                    Err(error) => error,
                },
                StateProj::Readying { inner, .. } => match inner.poll_ready(cx) {
                    Poll::Ready(Ok(())) => {
                        // → Running, which the next turn polls.
                        let taken = this.state.as_mut().project_replace(State::Done);
                        if let StateTaken::Readying { mut inner, request } = taken {
                            let future = inner.call(request);
                            this.state.set(State::Running { future });
                        }
                        continue;
                    }
                    Poll::Ready(Err(error)) => {
                        this.state.set(State::Done);
                        drop(holding.take());
                        return Poll::Ready(Err(R::pass_error(error)));
                    }
                    Poll::Pending => ready!(holding.poll_lost(settings.on_lost, cx)),
                },
                StateProj::Running { future } => {
                    // The inner future first: an answer that is there is worth more than the news that its key is not.
                    if let Poll::Ready(result) = future.poll(cx) {
                        this.state.set(State::Done);
                        let held = holding.take();
                        return Poll::Ready(answer::<_, _, _, H, R>(
                            result,
                            held,
                            settings.on_lost,
                        ));
                    }
                    ready!(holding.poll_lost(settings.on_lost, cx))
                }
                StateProj::Refused { error } => error.clone(),
                // Polled after its end.
                StateProj::Done => return Poll::Pending,
            };
            this.state.set(State::Done);
            drop(this.holding.take());
            return Poll::Ready(R::refuse(Refusal {
                error: refused,
                protocol: *this.protocol,
                retry_after: settings.retry_after,
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
            State::Readying { .. } => "readying",
            State::Running { .. } => "running",
            State::Refused { .. } => "refused",
            State::Done => "done",
        };
        f.debug_struct("ResponseFuture")
            .field("state", &state)
            .finish_non_exhaustive()
    }
}
