//! When a response releases its permit, and the body that holds it until then.

use super::held_permits::{HeldPermits, WatchedPermits};
use super::settings::OnLost;
use crate::{BoxError, Permit};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A response that can hold its permit until its body has ended.
///
/// Implemented for [`http::Response`] (its body becomes a [`PermitBody`]) and with the feature `reqwest` for
/// `reqwest::Response`. To implement it for another response type, pass the permit to the part that lives longest:
///
/// ```
/// use tower_permit::layers::{HoldPermit, PermitBody, ResponsePermit};
///
/// struct Completion<B> {
///     model: String,
///     tokens: B,
/// }
///
/// impl<B: http_body::Body> HoldPermit for Completion<B> {
///     type Held = Completion<PermitBody<B>>;
///
///     fn hold_permit(self, permit: ResponsePermit) -> Self::Held {
///         Completion { model: self.model, tokens: permit.into_body(self.tokens) }
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot hold a permit until the end of its body",
    label = "this response would release its permit as soon as it is ready",
    note = "call `.release_at_response()` on the layer to release the permit when the response is ready",
    note = "or implement `tower_permit::layers::HoldPermit` for the response; `http::Response<B>` implements it if \
            `B: http_body::Body`, and `reqwest::Response` with the feature `reqwest`"
)]
pub trait HoldPermit {
    /// The response that holds its permit.
    type Held;

    /// Moves the permit into the response. The permit is released when `permit` is dropped, or when the body made by
    /// [`ResponsePermit::into_body`] ends or is dropped.
    fn hold_permit(self, permit: ResponsePermit) -> Self::Held;
}

/// The permit of a response, or all permits of one that acquired several keys. Dropping it releases them.
///
/// It is empty for a request without a permit: during an outage with
/// [`OnUnavailable::Allow`](super::OnUnavailable::Allow), or if the layer is disabled.
pub struct ResponsePermit {
    permits: HeldPermits,
    on_lost: OnLost,
}

/// When a response releases its permit: [`UntilBodyEnd`] or [`AtResponse`]. Sealed.
#[diagnostic::on_unimplemented(
    message = "`{Res}` cannot hold a permit until the end of its body",
    label = "this response would release its permit as soon as it is ready",
    note = "call `.release_at_response()` on the layer to release the permit when the response is ready"
)]
pub trait HoldPolicy<Res>: sealed::Sealed {
    /// The response type of the layer's service.
    type Response;

    #[doc(hidden)]
    fn hold(response: Res, permit: ResponsePermit) -> Self::Response;
}

/// Releases the permit when the response's body has ended or is dropped, so that a streamed response counts for as long
/// as it streams. The default of the limit.
#[derive(Clone, Copy, Debug)]
pub enum UntilBodyEnd {}

/// Releases the permit when the response is ready, before its body is read. Works with any response type. The default of
/// the keyed layers.
#[derive(Clone, Copy, Debug)]
pub enum AtResponse {}

pin_project! {
    /// A response body that holds a permit until it ends.
    ///
    /// The permit is released once, at the first of: the end of the body, an error, a frame of trailers, the drop of the
    /// body. If the body is empty, it is released at once. Frames, trailers, `is_end_stream` and `size_hint` are those of
    /// the inner body.
    ///
    /// # Errors
    ///
    /// The body ends with a [`tower_permit::Error`](crate::Error) of kind
    /// [`HeldTooLong`](crate::ErrorKind::HeldTooLong) when the permit was held for longer than `max_hold`, and
    /// [`Stalled`](crate::ErrorKind::Stalled) when it was not read for `stall_timeout`. With
    /// [`OnLost::End`](super::OnLost::End) it also ends with [`Lost`](crate::ErrorKind::Lost) when the permit is lost, and
    /// with [`ShuttingDown`](crate::ErrorKind::ShuttingDown) when a shutdown revokes it. Errors of the inner body are
    /// passed on without a wrapper.
    ///
    /// It implements [`Unpin`] only if the inner body does. To read a body that does not frame by frame, pin it
    /// (`std::pin::pin!`) or box it first.
    pub struct PermitBody<B> {
        #[pin]
        inner: B,
        // Empty after the release, or if the request needed no permit.
        permits: WatchedPermits,
        on_lost: OnLost,
        // The reader has a frame and has to ask for the next one.
        paused: bool,
        // The permit was lost before the end of the body. No frame follows the error that reported it.
        cut: bool,
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::UntilBodyEnd {}
    impl Sealed for super::AtResponse {}
}

// === impl HoldPolicy ===

impl<Res: HoldPermit> HoldPolicy<Res> for UntilBodyEnd {
    type Response = Res::Held;

    #[inline]
    fn hold(response: Res, permit: ResponsePermit) -> Self::Response {
        response.hold_permit(permit)
    }
}

impl<Res> HoldPolicy<Res> for AtResponse {
    type Response = Res;

    #[inline]
    fn hold(response: Res, permit: ResponsePermit) -> Self::Response {
        drop(permit);
        response
    }
}

// === impl HoldPermit ===

impl<B: Body> HoldPermit for http::Response<B> {
    type Held = http::Response<PermitBody<B>>;

    fn hold_permit(self, permit: ResponsePermit) -> Self::Held {
        self.map(|body| permit.into_body(body))
    }
}

#[cfg(feature = "reqwest")]
#[cfg_attr(docsrs, doc(cfg(feature = "reqwest")))]
impl HoldPermit for reqwest::Response {
    type Held = Self;

    fn hold_permit(self, permit: ResponsePermit) -> Self {
        use reqwest::ResponseBuilderExt;

        if permit.permits.is_empty() {
            return self;
        }
        let url = self.url().clone();
        let (mut parts, body) = http::Response::<reqwest::Body>::from(self).into_parts();
        // The URL of a response is an extension that only reqwest's own builder can create.
        if let Ok(carrier) = http::Response::builder().url(url).body(()) {
            parts.extensions.extend(carrier.into_parts().0.extensions);
        }
        let body = reqwest::Body::wrap(permit.into_body(body));
        http::Response::from_parts(parts, body).into()
    }
}

// === impl ResponsePermit ===

impl ResponsePermit {
    #[inline]
    pub(crate) fn new(permits: HeldPermits, on_lost: OnLost) -> Self {
        Self { permits, on_lost }
    }

    /// Wraps `body` so that it holds the permit until it ends. An empty body releases the permit at once.
    pub fn into_body<B: Body>(self, body: B) -> PermitBody<B> {
        let permits = match body.is_end_stream() {
            true => HeldPermits::default(),
            false => self.permits,
        };
        let permits = WatchedPermits::new(permits);
        permits.set_reading(false);
        PermitBody {
            inner: body,
            permits,
            on_lost: self.on_lost,
            paused: true,
            cut: false,
        }
    }
}

impl fmt::Debug for ResponsePermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponsePermit")
            .field("held", &!self.permits.is_empty())
            .finish_non_exhaustive()
    }
}

// === impl PermitBody ===

impl<B> PermitBody<B> {
    /// Returns a body that holds this permit until it ends, for a handler or middleware that acquires permits itself. It does
    /// not end if the permit is lost, and has no stall timeout.
    pub fn new(body: B, permit: Permit) -> Self
    where
        B: Body,
    {
        ResponsePermit::new(Some(permit).into(), OnLost::Continue).into_body(body)
    }

    /// Returns a reference to the inner body.
    pub fn get_ref(&self) -> &B {
        &self.inner
    }
}

impl<B: Default> Default for PermitBody<B> {
    /// Returns a body without a permit.
    fn default() -> Self {
        Self {
            inner: B::default(),
            permits: WatchedPermits::new(HeldPermits::default()),
            on_lost: OnLost::default(),
            paused: false,
            cut: false,
        }
    }
}

impl<B> Body for PermitBody<B>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    type Data = B::Data;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let mut this = self.project();
        if *this.cut {
            return Poll::Ready(None);
        }
        // Before the frame: a body that always has a frame ready must not outlive its permit.
        if let Poll::Ready(error) = this.permits.poll_lost(*this.on_lost, cx) {
            drop(this.permits.take());
            *this.cut = true;
            return Poll::Ready(Some(Err(error.into())));
        }
        let Poll::Ready(frame) = this.inner.as_mut().poll_frame(cx) else {
            if std::mem::replace(this.paused, false) {
                this.permits.set_reading(true);
            }
            return Poll::Pending;
        };
        let last = match &frame {
            Some(Ok(frame)) => frame.is_trailers() || this.inner.is_end_stream(),
            Some(Err(_)) | None => true,
        };
        if last {
            drop(this.permits.take());
        } else {
            *this.paused = true;
            this.permits.set_reading(false);
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.cut || self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        if self.cut {
            return SizeHint::with_exact(0);
        }
        self.inner.size_hint()
    }
}

impl<B: fmt::Debug> fmt::Debug for PermitBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PermitBody")
            .field("inner", &self.inner)
            .field("held", &!self.permits.is_empty())
            .finish_non_exhaustive()
    }
}
