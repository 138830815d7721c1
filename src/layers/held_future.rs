//! The inner service's future together with the permits of its request.

use super::held_permits::WatchedPermits;
use super::rejection::RejectionPolicy;
use super::response::{HoldPolicy, ResponsePermit};
use super::settings::OnLost;
use crate::Error;
use pin_project_lite::pin_project;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

pin_project! {
    /// An inner future that holds the permits of its request.
    ///
    /// Resolves to the inner future's output with the permits, or to the error of a loss that ends the request. After a
    /// loss the owner drops this future: that drops the inner future and then releases the permits.
    pub(crate) struct HeldFuture<F> {
        // Declared before the permits, so that it is dropped before they are released.
        #[pin]
        future: F,
        // Empty if the request needs no permit.
        permits: WatchedPermits,
        on_lost: OnLost,
    }
}

// === impl HeldFuture ===

impl<F> HeldFuture<F> {
    #[inline]
    pub(crate) fn new(future: F, permits: WatchedPermits, on_lost: OnLost) -> Self {
        Self {
            future,
            permits,
            on_lost,
        }
    }
}

impl<F: Future> Future for HeldFuture<F> {
    type Output = Result<(F::Output, ResponsePermit), Error>;

    #[inline]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        // The inner future first: a response that is ready is delivered even if its permit is lost by now.
        if let Poll::Ready(output) = this.future.poll(cx) {
            let permit = ResponsePermit::new(this.permits.take(), *this.on_lost);
            return Poll::Ready(Ok((output, permit)));
        }
        this.permits.poll_lost(*this.on_lost, cx).map(Err)
    }
}

/// Converts the inner service's result. A response takes the permit over; an error releases it.
#[inline]
pub(crate) fn respond<Req, Res, E, H, R>(
    result: Result<Res, E>,
    permit: ResponsePermit,
) -> Result<R::Response, R::Error>
where
    H: HoldPolicy<Res>,
    R: RejectionPolicy<Req, H::Response, E>,
{
    match result {
        Ok(response) => Ok(R::map_response(H::hold(response, permit))),
        Err(error) => {
            drop(permit);
            Err(R::map_error(error))
        }
    }
}
