//! How a response carries its permit.

use super::held::{Held, Holding};
use super::settings::OnLost;
use crate::BoxError;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// A response that can carry its permit until it has been read to its end.
///
/// It is implemented for [`http::Response`], whose body becomes a [`PermitBody`], and with the feature `reqwest` for
/// `reqwest::Response`. Implement it for a response type of your own by passing the permit on to the part that lives
/// longest:
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
    message = "`{Self}` cannot carry a permit to the end of its body",
    label = "this response would let go of its permit as soon as it is made",
    note = "say `.release_at_response()` on the layer if the permit may go back when the response is ready",
    note = "or implement `tower_permit::layers::HoldPermit` for the response; `http::Response<B>` has it where \
            `B: http_body::Body`, and `reqwest::Response` with the feature `reqwest`"
)]
pub trait HoldPermit {
    /// The response with its permit.
    type Held;

    /// Puts the permit into the response. It goes back when `permit`, or the body made of it, is dropped or ends.
    fn hold_permit(self, permit: ResponsePermit) -> Self::Held;
}

/// The permit of a response, or several, to be carried by it. Dropping it gives them back.
///
/// It is empty for a request that needed none: one that was let through while the backend did not answer, or whose
/// layer is disabled.
pub struct ResponsePermit {
    held: Held,
    on_lost: OnLost,
}

/// How long a response holds its permit: [`UntilBodyEnd`] or [`AtResponse`]. Sealed.
#[diagnostic::on_unimplemented(
    message = "`{Res}` cannot carry a permit to the end of its body",
    label = "this response would let go of its permit as soon as it is made",
    note = "say `.release_at_response()` on the layer if the permit may go back when the response is ready"
)]
pub trait Hold<Res>: sealed::Sealed {
    /// What the response becomes.
    type Response;

    #[doc(hidden)]
    fn hold(response: Res, permit: ResponsePermit) -> Self::Response;
}

/// The permit goes back when the response's body has ended, or is dropped. The default: a response that streams
/// counts for as long as it streams.
#[derive(Clone, Copy, Debug)]
pub enum UntilBodyEnd {}

/// The permit goes back when the response is ready, before its body is read. Any response will do.
#[derive(Clone, Copy, Debug)]
pub enum AtResponse {}

pin_project! {
    /// A body that holds a permit until it ends.
    ///
    /// The permit goes back, once, at whatever comes first: the end of the body, an error, a frame of trailers, the
    /// moment the body is dropped, or at once if the body is empty. Frames, trailers, `is_end_stream` and `size_hint`
    /// are those of the inner body.
    ///
    /// The body ends with a [`tower_permit::Error`](crate::Error) of kind
    /// [`HeldTooLong`](crate::ErrorKind::HeldTooLong) when it was read for longer than `max_hold` and, if
    /// [`OnLost::End`](super::OnLost::End) was chosen, with [`Lost`](crate::ErrorKind::Lost) when the permit is lost.
    /// The inner body's own errors pass unwrapped.
    ///
    /// It is not [`Unpin`], so that it costs no allocation: to read it frame by frame, pin it (`std::pin::pin!`) or box
    /// it first.
    pub struct PermitBody<B> {
        #[pin]
        inner: B,
        // Empty when it went back, or when the request needed none.
        holding: Holding,
        on_lost: OnLost,
        // The permit ended before the body: nothing follows the error that said so.
        cut: bool,
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::UntilBodyEnd {}
    impl Sealed for super::AtResponse {}
}

// === impl Hold ===

impl<Res: HoldPermit> Hold<Res> for UntilBodyEnd {
    type Response = Res::Held;

    #[inline]
    fn hold(response: Res, permit: ResponsePermit) -> Self::Response {
        response.hold_permit(permit)
    }
}

impl<Res> Hold<Res> for AtResponse {
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

        if permit.held.is_empty() {
            return self;
        }
        let url = self.url().clone();
        let (mut parts, body) = http::Response::<reqwest::Body>::from(self).into_parts();
        // The way to hand a response its URL is an extension that only reqwest's own builder can make.
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
    pub(crate) fn new(held: Held, on_lost: OnLost) -> Self {
        Self { held, on_lost }
    }

    /// Makes `body` carry the permit.
    pub fn into_body<B: Body>(self, body: B) -> PermitBody<B> {
        let held = match body.is_end_stream() {
            true => Held::default(),
            false => self.held,
        };
        PermitBody {
            inner: body,
            holding: Holding::new(held),
            on_lost: self.on_lost,
            cut: false,
        }
    }
}

impl fmt::Debug for ResponsePermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponsePermit")
            .field("held", &!self.held.is_empty())
            .finish_non_exhaustive()
    }
}

// === impl PermitBody ===

impl<B> PermitBody<B> {
    /// The inner body.
    pub fn get_ref(&self) -> &B {
        &self.inner
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
        // Before the frame: a body that always has one ready must not outlive its permit.
        if let Poll::Ready(error) = this.holding.poll_lost(*this.on_lost, cx) {
            drop(this.holding.take());
            *this.cut = true;
            return Poll::Ready(Some(Err(error.into())));
        }
        let frame = ready!(this.inner.as_mut().poll_frame(cx));
        let last = match &frame {
            Some(Ok(frame)) => frame.is_trailers() || this.inner.is_end_stream(),
            Some(Err(_)) | None => true,
        };
        if last {
            drop(this.holding.take());
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
            .field("held", &!self.holding.is_empty())
            .finish_non_exhaustive()
    }
}
