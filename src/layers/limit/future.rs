use crate::layers::answer;
use crate::layers::held::Holding;
use crate::layers::rejection::{Protocol, Refusal, Refuse};
use crate::layers::response::Hold;
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
    /// The future of a [`DistributedConcurrencyLimit`](super::DistributedConcurrencyLimit).
    ///
    /// # Cancel safety
    ///
    /// Dropping it at any time is safe: the place in the queue is given up, or the inner future is dropped and then the
    /// permit goes back.
    #[must_use = "futures do nothing unless you `.await` or poll them"]
    pub struct ResponseFuture<S, Req, H, R>
    where
        S: Service<Req>,
    {
        // First, so that an inner future is dropped before the permit goes back.
        #[pin]
        state: State<S, Req, S::Future>,
        // Empty until the permit is there, and if none is needed.
        holding: Holding,
        on_lost: OnLost,
        retry_after: Duration,
        protocol: Protocol,
        mode: PhantomData<fn() -> (H, R)>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, Req, F> {
        // No permit yet; → `Running`, or the end with a refusal. `None` when it is on its way to that. In a box: the request
        // is large, and seldom waits here.
        Waiting { waiting: Option<Box<Waiting<S, Req>>> },
        // The permit is held, or none is needed.
        Running { #[pin] future: F },
        Refused { error: Error },
        Done,
    }
}

struct Waiting<S, Req> {
    /// The service that was made ready, if any was.
    inner: S,
    request: Req,
    semaphore: Semaphore,
    /// `None` until the inner service is ready.
    wait: Option<Pin<Box<Acquire>>>,
    settings: Settings,
}

/// What a request met on its way in.
enum Entry<E> {
    /// `None`: it may pass without a permit.
    Admitted(Option<Permit>),
    Refused(Error),
    /// The inner service did.
    Failed(E),
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
        wait: Option<Pin<Box<Acquire>>>,
        settings: &Settings,
        protocol: Protocol,
    ) -> Self {
        let waiting = Some(Box::new(Waiting {
            inner,
            request,
            semaphore,
            wait,
            settings: *settings,
        }));
        Self::new(State::Waiting { waiting }, None, settings, protocol)
    }

    #[inline]
    pub(super) fn running(
        future: S::Future,
        permit: Option<Permit>,
        settings: &Settings,
        protocol: Protocol,
    ) -> Self {
        Self::new(State::Running { future }, permit, settings, protocol)
    }

    pub(super) fn refused(error: Error, settings: &Settings, protocol: Protocol) -> Self {
        Self::new(State::Refused { error }, None, settings, protocol)
    }

    #[inline]
    fn new(
        state: State<S, Req, S::Future>,
        permit: Option<Permit>,
        settings: &Settings,
        protocol: Protocol,
    ) -> Self {
        Self {
            state,
            holding: Holding::new(permit.into()),
            on_lost: settings.on_lost,
            retry_after: settings.retry_after,
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

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            let refused = match this.state.as_mut().project() {
                StateProj::Waiting { waiting } => match ready!(poll_entry(waiting, cx)) {
                    Entry::Admitted(permit) => {
                        // → Running, which the next turn polls.
                        if let Some(waiting) = waiting.take() {
                            let Waiting {
                                mut inner,
                                mut request,
                                ..
                            } = *waiting;
                            if let Some(permit) = &permit {
                                R::mark(&mut request, permit);
                            }
                            let future = inner.call(request);
                            *this.holding = Holding::new(permit.into());
                            this.state.set(State::Running { future });
                        }
                        continue;
                    }
                    Entry::Refused(error) => error,
                    Entry::Failed(error) => {
                        this.state.set(State::Done);
                        return Poll::Ready(Err(R::pass_error(error)));
                    }
                },
                StateProj::Running { future } => {
                    // The inner future first: an answer that is there is worth more than the news that its permit is not.
                    if let Poll::Ready(result) = future.poll(cx) {
                        this.state.set(State::Done);
                        let held = this.holding.take();
                        return Poll::Ready(answer::<_, _, _, H, R>(result, held, *this.on_lost));
                    }
                    ready!(this.holding.poll_lost(*this.on_lost, cx))
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
            State::Refused { .. } => "refused",
            State::Done => "done",
        };
        f.debug_struct("ResponseFuture")
            .field("state", &state)
            .finish_non_exhaustive()
    }
}

/// As in `poll_ready`, the inner service first: no permit, nor a place in the queue, while it is not ready.
fn poll_entry<S, Req>(
    waiting: &mut Option<Box<Waiting<S, Req>>>,
    cx: &mut Context<'_>,
) -> Poll<Entry<S::Error>>
where
    S: Service<Req>,
{
    let Some(waiting) = waiting else {
        return Poll::Pending;
    };
    let Waiting {
        inner,
        semaphore,
        wait,
        settings,
        ..
    } = &mut **waiting;
    match inner.poll_ready(cx) {
        Poll::Ready(Ok(())) => {}
        Poll::Ready(Err(error)) => return Poll::Ready(Entry::Failed(error)),
        Poll::Pending => {
            *wait = None;
            return Poll::Pending;
        }
    }
    loop {
        let acquire = wait.get_or_insert_with(|| Box::pin(semaphore.start(settings.request())));
        let outcome = ready!(acquire.as_mut().poll(cx));
        *wait = None;
        return Poll::Ready(match outcome {
            Ok(permit) if permit.claim() => Entry::Admitted(Some(permit)),
            // Granted so long ago that it went back before anybody polled: from the end of the queue again.
            Ok(_gone_back) => continue,
            Err(error) if settings.allows(&error) => Entry::Admitted(None),
            Err(error) => Entry::Refused(error),
        });
    }
}
