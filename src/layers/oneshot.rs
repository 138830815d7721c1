//! A future that waits until a service is ready and then calls it once.

use pin_project_lite::pin_project;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tower_service::Service;

pin_project! {
    /// Waits until the service is ready, then calls it. As `tower::util::Oneshot`.
    #[project = OneshotProj]
    pub(crate) enum Oneshot<S, Req, F> {
        // The request is `None` only while the service is called.
        Readying { service: S, request: Option<Req> },
        Called { #[pin] future: F },
    }
}

// === impl Oneshot ===

impl<S, Req> Oneshot<S, Req, S::Future>
where
    S: Service<Req>,
{
    pub(crate) fn new(service: S, request: Req) -> Self {
        let request = Some(request);
        Self::Readying { service, request }
    }
}

impl<S, Req> Future for Oneshot<S, Req, S::Future>
where
    S: Service<Req>,
{
    type Output = Result<S::Response, S::Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            match self.as_mut().project() {
                OneshotProj::Readying { service, request } => {
                    ready!(service.poll_ready(cx))?;
                    // Only after a panic of `call`: there is no future to poll.
                    let Some(request) = request.take() else {
                        return Poll::Pending;
                    };
                    // → Called, which the next turn polls.
                    let future = service.call(request);
                    self.set(Self::Called { future });
                }
                OneshotProj::Called { future } => return future.poll(cx),
            }
        }
    }
}
