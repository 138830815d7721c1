//! How a refusal looks: an error, or a response that tells the client.

use crate::{BoxError, Error, ErrorKind, Permit};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use http::{HeaderMap, StatusCode};
use http_body::{Body, Frame, SizeHint};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use pin_project_lite::pin_project;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// How a refusal looks to the caller: [`AsError`], [`AsHttpError`] or [`AsResponse`]. Sealed.
#[diagnostic::on_unimplemented(
    message = "this refusal cannot be given to the caller of a service with the response `{Res}`",
    note = "`.reject_with_response()` needs a service from `http::Request<_>` to `http::Response<_>`",
    note = "without it the service's error must be `Into<tower_permit::BoxError>`"
)]
pub trait Refuse<Req, Res, E>: sealed::Sealed {
    /// What the inner response becomes.
    type Response;
    /// What the inner error becomes.
    type Error;

    #[doc(hidden)]
    fn protocol(request: &Req) -> Protocol;
    /// Tells the request about its permit.
    #[doc(hidden)]
    fn mark(request: &mut Req, permit: &Permit);
    #[doc(hidden)]
    fn pass(response: Res) -> Self::Response;
    #[doc(hidden)]
    fn pass_error(error: E) -> Self::Error;
    #[doc(hidden)]
    fn refuse(refusal: Refusal) -> Result<Self::Response, Self::Error>;
}

/// A refusal is an error. The default.
///
/// The service's error is a [`BoxError`]. Ours downcasts to [`tower_permit::Error`](crate::Error), whose
/// [`kind`](crate::Error::kind) says what happened; the inner service's errors pass as they are.
#[derive(Clone, Copy, Debug)]
pub enum AsError {}

/// A refusal is an error, as with [`AsError`]; and the request's extensions get a
/// [`PermitHandle`](crate::PermitHandle). For services that take `http::Request`.
#[derive(Clone, Copy, Debug)]
pub enum AsHttpError {}

/// A refusal is a response, and the service keeps the inner service's error type: for servers.
///
/// | what happened | HTTP | gRPC |
/// | --- | --- | --- |
/// | the limit is reached, the wait ended, too many wait | 429 | 8, `RESOURCE_EXHAUSTED` |
/// | no key where one is asked for, or one that is too long or too many names | 400 | 3, `INVALID_ARGUMENT` |
/// | the key extractor panicked, or gave a limit that the backend cannot keep | 500 | 13, `INTERNAL` |
/// | anything else | 503 | 14, `UNAVAILABLE` |
///
/// An HTTP refusal is one line of plain text that tells nothing of the inside; 429 and 503 have a `Retry-After` in whole
/// seconds. A request whose content type begins with `application/grpc` is answered with 200 and trailers only. The
/// response's extensions hold the [`tower_permit::Error`](crate::Error), for middleware outside that wants to count or
/// log it.
#[derive(Clone, Copy, Debug)]
pub enum AsResponse {}

/// What a request has to be answered in.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Http,
    Grpc,
}

/// Why a request was refused, and what its answer needs.
#[doc(hidden)]
#[derive(Debug)]
pub struct Refusal {
    pub(crate) error: Error,
    pub(crate) protocol: Protocol,
    pub(crate) retry_after: Duration,
}

pin_project! {
    /// The body of a service that answers refusals itself: the inner service's body, or the refusal's short text.
    ///
    /// Its data is the inner body's, so that must be [`Bytes`] or something made of them.
    pub struct RejectionBody<B> {
        #[pin]
        inner: Inner<B>,
    }
}

pin_project! {
    #[project = InnerProj]
    enum Inner<B> {
        Passed { #[pin] body: B },
        // `None` when it was read, or when there is none.
        Refused { text: Option<Bytes> },
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::AsError {}
    impl Sealed for super::AsHttpError {}
    impl Sealed for super::AsResponse {}
}

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// gRPC leaves printable ASCII as it is, except the percent sign.
const GRPC_ENCODED: &AsciiSet = &CONTROLS.add(b'%');

// === impl Refuse ===

impl<Req, Res, E: Into<BoxError>> Refuse<Req, Res, E> for AsError {
    type Response = Res;
    type Error = BoxError;

    #[inline]
    fn protocol(_request: &Req) -> Protocol {
        Protocol::Http
    }

    #[inline]
    fn mark(_request: &mut Req, _permit: &Permit) {}

    fn pass(response: Res) -> Res {
        response
    }

    fn pass_error(error: E) -> BoxError {
        error.into()
    }

    fn refuse(refusal: Refusal) -> Result<Res, BoxError> {
        Err(refusal.error.into())
    }
}

impl<A, Res, E: Into<BoxError>> Refuse<http::Request<A>, Res, E> for AsHttpError {
    type Response = Res;
    type Error = BoxError;

    #[inline]
    fn protocol(request: &http::Request<A>) -> Protocol {
        <AsError as Refuse<_, Res, E>>::protocol(request)
    }

    #[inline]
    fn mark(request: &mut http::Request<A>, permit: &Permit) {
        request.extensions_mut().insert(permit.handle());
    }

    #[inline]
    fn pass(response: Res) -> Res {
        response
    }

    fn pass_error(error: E) -> BoxError {
        error.into()
    }

    fn refuse(refusal: Refusal) -> Result<Res, BoxError> {
        Err(refusal.error.into())
    }
}

impl<A, B, E> Refuse<http::Request<A>, http::Response<B>, E> for AsResponse {
    type Response = http::Response<RejectionBody<B>>;
    type Error = E;

    #[inline]
    fn protocol(request: &http::Request<A>) -> Protocol {
        Protocol::of(request.headers())
    }

    #[inline]
    fn mark(request: &mut http::Request<A>, permit: &Permit) {
        request.extensions_mut().insert(permit.handle());
    }

    #[inline]
    fn pass(response: http::Response<B>) -> Self::Response {
        response.map(|body| RejectionBody {
            inner: Inner::Passed { body },
        })
    }

    fn pass_error(error: E) -> E {
        error
    }

    fn refuse(refusal: Refusal) -> Result<Self::Response, E> {
        Ok(refusal.into_response())
    }
}

// === impl Protocol ===

impl Protocol {
    fn of(headers: &HeaderMap) -> Self {
        const GRPC: &[u8] = b"application/grpc";
        let grpc = headers
            .get(CONTENT_TYPE)
            .and_then(|value| value.as_bytes().get(..GRPC.len()))
            .is_some_and(|start| start.eq_ignore_ascii_case(GRPC));
        if grpc { Self::Grpc } else { Self::Http }
    }
}

// === impl Refusal ===

impl Refusal {
    fn into_response<B>(self) -> http::Response<RejectionBody<B>> {
        // Words for the client: the error's own may name hosts.
        let (status, code, text) = match self.error.kind() {
            ErrorKind::LimitReached | ErrorKind::WaitTimeout | ErrorKind::TooManyWaiting => (
                StatusCode::TOO_MANY_REQUESTS,
                8,
                "too many requests at the same time, try again later",
            ),
            ErrorKind::MissingKey | ErrorKind::InvalidKey => (
                StatusCode::BAD_REQUEST,
                3,
                "the request does not say what it is about, or says too much",
            ),
            ErrorKind::ExtractorPanicked | ErrorKind::InvalidConfig => {
                (StatusCode::INTERNAL_SERVER_ERROR, 13, "internal error")
            }
            _ => (
                StatusCode::SERVICE_UNAVAILABLE,
                14,
                "temporarily unavailable, try again later",
            ),
        };
        let mut response = match self.protocol {
            Protocol::Http => http(status, text),
            Protocol::Grpc => grpc(code, text),
        };
        let again = [
            StatusCode::TOO_MANY_REQUESTS,
            StatusCode::SERVICE_UNAVAILABLE,
        ];
        if again.contains(&response.status()) {
            let seconds = whole_seconds(self.retry_after);
            response.headers_mut().insert(RETRY_AFTER, seconds.into());
        }
        response.extensions_mut().insert(self.error);
        response
    }
}

fn http<B>(status: StatusCode, text: &'static str) -> http::Response<RejectionBody<B>> {
    let mut response = refused(Some(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = status;
    response.headers_mut().insert(
        CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    response
}

/// Trailers only: headers that end the stream.
fn grpc<B>(status: u16, message: &str) -> http::Response<RejectionBody<B>> {
    let mut response = refused(None);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(GRPC_STATUS, status.into());
    let message = utf8_percent_encode(message, GRPC_ENCODED).to_string();
    if let Ok(message) = HeaderValue::from_str(&message) {
        headers.insert(GRPC_MESSAGE, message);
    }
    response
}

fn refused<B>(text: Option<Bytes>) -> http::Response<RejectionBody<B>> {
    http::Response::new(RejectionBody {
        inner: Inner::Refused { text },
    })
}

/// Rounded up: a client that comes back a moment too early is refused again.
fn whole_seconds(duration: Duration) -> u64 {
    duration
        .as_secs()
        .saturating_add(u64::from(duration.subsec_nanos() > 0))
}

// === impl RejectionBody ===

impl<B> Body for RejectionBody<B>
where
    B: Body,
    B::Data: From<Bytes>,
{
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        match self.project().inner.project() {
            InnerProj::Passed { body } => body.poll_frame(cx),
            InnerProj::Refused { text } => {
                Poll::Ready(text.take().map(|text| Ok(Frame::data(text.into()))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            Inner::Passed { body } => body.is_end_stream(),
            Inner::Refused { text } => text.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.inner {
            Inner::Passed { body } => body.size_hint(),
            Inner::Refused { text } => {
                SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64))
            }
        }
    }
}

impl<B: fmt::Debug> fmt::Debug for RejectionBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.inner {
            Inner::Passed { body } => f.debug_tuple("RejectionBody").field(body).finish(),
            Inner::Refused { text } => f.debug_tuple("RejectionBody").field(text).finish(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_rounded_up() {
        for (millis, seconds) in [(0, 0), (1, 1), (999, 1), (1000, 1), (1001, 2)] {
            assert_eq!(whole_seconds(Duration::from_millis(millis)), seconds);
        }
        assert_eq!(whole_seconds(Duration::MAX), u64::MAX);
    }

    #[test]
    fn grpc_is_told_by_the_content_type() {
        for (value, protocol) in [
            ("application/grpc", Protocol::Grpc),
            ("application/grpc+proto", Protocol::Grpc),
            ("Application/gRPC-web", Protocol::Grpc),
            ("application/grp", Protocol::Http),
            ("application/json", Protocol::Http),
            ("", Protocol::Http),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(value));
            assert_eq!(Protocol::of(&headers), protocol, "{value}");
        }
        assert_eq!(Protocol::of(&HeaderMap::new()), Protocol::Http);
    }

    #[test]
    fn each_kind_has_its_status() {
        use ErrorKind::*;
        for (kind, status, code, again) in [
            (LimitReached, 429, "8", true),
            (WaitTimeout, 429, "8", true),
            (TooManyWaiting, 429, "8", true),
            (MissingKey, 400, "3", false),
            (InvalidKey, 400, "3", false),
            (ExtractorPanicked, 500, "13", false),
            (InvalidConfig, 500, "13", false),
            (Unavailable, 503, "14", true),
            (Lost, 503, "14", true),
        ] {
            let refuse = |protocol| {
                let refusal = Refusal {
                    error: Error::new(kind, "a secret of the inside"),
                    protocol,
                    retry_after: Duration::from_secs(7),
                };
                refusal.into_response::<String>()
            };
            let response = refuse(Protocol::Http);
            assert_eq!(response.status(), status, "{kind:?}");
            assert_eq!(response.headers().contains_key(RETRY_AFTER), again);
            let response = refuse(Protocol::Grpc);
            assert_eq!(response.status(), 200);
            assert_eq!(response.headers()[GRPC_STATUS], code, "{kind:?}");
            assert!(!response.headers().contains_key(RETRY_AFTER));
        }
    }

    #[test]
    fn a_grpc_message_is_percent_encoded() {
        let response = grpc::<String>(8, "50 % of ü\n");
        assert_eq!(response.headers()[GRPC_MESSAGE], "50 %25 of %C3%BC%0A");
    }
}
