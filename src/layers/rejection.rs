//! How a layer rejects a request: with an error, or with an HTTP or gRPC response.

use super::deadline::Deadline;
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

/// How a layer rejects a request: [`AsError`], [`AsErrorWithHandle`] or [`AsResponse`]. Sealed.
#[diagnostic::on_unimplemented(
    message = "the layer cannot reject requests of a service with the response `{Res}` in this way",
    note = "with `.reject_with_response()` the service must take `http::Request<_>` and return `http::Response<_>`",
    note = "without it the service's error must be `Into<tower_permit::BoxError>`"
)]
pub trait RejectionPolicy<Req, Res, E>: sealed::Sealed {
    /// The response type of the layer's service.
    type Response;
    /// The error type of the layer's service.
    type Error;

    #[doc(hidden)]
    fn protocol(request: &Req) -> Protocol;
    /// Returns the request's own deadline.
    #[doc(hidden)]
    fn deadline(request: &Req) -> Option<Deadline>;
    /// Adds a handle of the permit to the request.
    #[doc(hidden)]
    fn expose_permit(request: &mut Req, permit: &Permit);
    #[doc(hidden)]
    fn map_response(response: Res) -> Self::Response;
    #[doc(hidden)]
    fn map_error(error: E) -> Self::Error;
    #[doc(hidden)]
    fn reject(rejection: Rejection) -> Result<Self::Response, Self::Error>;
}

/// Rejects a request with an error. The default.
///
/// The service's error type is [`BoxError`]. An error of the layer downcasts to [`tower_permit::Error`](crate::Error);
/// its [`kind`](crate::Error::kind) is the reason. Errors of the inner service are passed on without a wrapper.
#[derive(Clone, Copy, Debug)]
pub enum AsError {}

/// Rejects a request with an error, as [`AsError`], and adds a [`PermitHandle`](crate::PermitHandle) to the extensions of
/// each admitted request. For services that take `http::Request`.
#[derive(Clone, Copy, Debug)]
pub enum AsErrorWithHandle {}

/// Rejects a request with a response. The service keeps the inner service's error type, as servers require.
///
/// | reason | HTTP | gRPC |
/// | --- | --- | --- |
/// | limit reached, wait timed out, too many waiting | 429 | 8, `RESOURCE_EXHAUSTED` |
/// | required key missing, key too long or of too many names | 400 | 3, `INVALID_ARGUMENT` |
/// | key extractor panicked or returned a limit that the backend does not support | 500 | 13, `INTERNAL` |
/// | any other | 503 | 14, `UNAVAILABLE` |
///
/// The HTTP body is one line of plain text without internal details. 429 and 503 have a `Retry-After` header in whole
/// seconds. A request with a content type that begins with `application/grpc` gets status 200 and a trailers-only response with
/// its content type, also that of grpc-web; 8 and 14 have a `grpc-retry-pushback-ms`. The response's extensions contain the [`tower_permit::Error`](crate::Error), for outer middleware that counts or logs
/// rejections.
#[derive(Clone, Copy, Debug)]
pub enum AsResponse {}

/// The protocol of a request and its response.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Http,
    /// With this content type, which is also that of grpc-web outside the layer that translates it.
    Grpc(&'static str),
}

/// The reason of a rejection, and what its response needs.
#[doc(hidden)]
#[derive(Debug)]
pub struct Rejection {
    pub(crate) error: Error,
    pub(crate) protocol: Protocol,
    pub(crate) retry_after: Duration,
}

pin_project! {
    /// The body of a response of a layer with [`AsResponse`]: the inner service's body, or the text of a rejection.
    ///
    /// It implements [`Body`] if the inner body's data type can be made from [`Bytes`].
    pub struct RejectionBody<B> {
        #[pin]
        content: Content<B>,
    }
}

pin_project! {
    #[project = ContentProj]
    enum Content<B> {
        Inner { #[pin] body: B },
        // `None` once it was read, and for gRPC.
        Rejected { text: Option<Bytes> },
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::AsError {}
    impl Sealed for super::AsErrorWithHandle {}
    impl Sealed for super::AsResponse {}
}

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_RETRY_PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// The content types of gRPC requests and their responses, the longest first.
const GRPC_TYPES: [&str; 3] = [
    "application/grpc-web-text",
    "application/grpc-web",
    "application/grpc",
];

const RESOURCE_EXHAUSTED: u16 = 8;
const UNAVAILABLE: u16 = 14;

/// gRPC percent-encodes everything but printable ASCII, and the percent sign.
const GRPC_ENCODED: &AsciiSet = &CONTROLS.add(b'%');

// === impl RejectionPolicy ===

impl<Req, Res, E: Into<BoxError>> RejectionPolicy<Req, Res, E> for AsError {
    type Response = Res;
    type Error = BoxError;

    #[inline]
    fn protocol(_request: &Req) -> Protocol {
        Protocol::Http
    }

    fn deadline(_request: &Req) -> Option<Deadline> {
        None
    }

    #[inline]
    fn expose_permit(_request: &mut Req, _permit: &Permit) {}

    fn map_response(response: Res) -> Res {
        response
    }

    fn map_error(error: E) -> BoxError {
        error.into()
    }

    fn reject(rejection: Rejection) -> Result<Res, BoxError> {
        Err(rejection.error.into())
    }
}

impl<A, Res, E: Into<BoxError>> RejectionPolicy<http::Request<A>, Res, E> for AsErrorWithHandle {
    type Response = Res;
    type Error = BoxError;

    #[inline]
    fn protocol(request: &http::Request<A>) -> Protocol {
        <AsError as RejectionPolicy<_, Res, E>>::protocol(request)
    }

    fn deadline(request: &http::Request<A>) -> Option<Deadline> {
        Deadline::of(request)
    }

    #[inline]
    fn expose_permit(request: &mut http::Request<A>, permit: &Permit) {
        request.extensions_mut().insert(permit.handle());
    }

    #[inline]
    fn map_response(response: Res) -> Res {
        response
    }

    fn map_error(error: E) -> BoxError {
        error.into()
    }

    fn reject(rejection: Rejection) -> Result<Res, BoxError> {
        Err(rejection.error.into())
    }
}

impl<A, B, E> RejectionPolicy<http::Request<A>, http::Response<B>, E> for AsResponse {
    type Response = http::Response<RejectionBody<B>>;
    type Error = E;

    #[inline]
    fn protocol(request: &http::Request<A>) -> Protocol {
        Protocol::of(request.headers())
    }

    fn deadline(request: &http::Request<A>) -> Option<Deadline> {
        Deadline::of(request)
    }

    #[inline]
    fn expose_permit(request: &mut http::Request<A>, permit: &Permit) {
        request.extensions_mut().insert(permit.handle());
    }

    #[inline]
    fn map_response(response: http::Response<B>) -> Self::Response {
        response.map(|body| RejectionBody {
            content: Content::Inner { body },
        })
    }

    fn map_error(error: E) -> E {
        error
    }

    fn reject(rejection: Rejection) -> Result<Self::Response, E> {
        Ok(rejection.into_response())
    }
}

// === impl Protocol ===

impl Protocol {
    fn of(headers: &HeaderMap) -> Self {
        let content_type = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
        let starts_with = |grpc: &&'static str| {
            let start = content_type.and_then(|value| value.get(..grpc.len()));
            start.is_some_and(|start| start.eq_ignore_ascii_case(grpc.as_bytes()))
        };
        let grpc = GRPC_TYPES.into_iter().find(starts_with);
        grpc.map_or(Self::Http, Self::Grpc)
    }
}

// === impl Rejection ===

impl Rejection {
    fn into_response<B>(self) -> http::Response<RejectionBody<B>> {
        // A fixed text: the error's message may name hosts.
        let (status, code, text) = match self.error.kind() {
            ErrorKind::LimitReached | ErrorKind::WaitTimeout | ErrorKind::TooManyWaiting => (
                StatusCode::TOO_MANY_REQUESTS,
                RESOURCE_EXHAUSTED,
                "too many concurrent requests, retry later",
            ),
            ErrorKind::MissingKey | ErrorKind::InvalidKey => (
                StatusCode::BAD_REQUEST,
                3,
                "missing or invalid concurrency key",
            ),
            ErrorKind::ExtractorPanicked | ErrorKind::InvalidConfig => {
                (StatusCode::INTERNAL_SERVER_ERROR, 13, "internal error")
            }
            _ => (
                StatusCode::SERVICE_UNAVAILABLE,
                UNAVAILABLE,
                "temporarily unavailable, retry later",
            ),
        };
        let mut response = match self.protocol {
            Protocol::Http => http_response(status, text),
            Protocol::Grpc(content_type) => {
                grpc_response(content_type, code, text, self.retry_after)
            }
        };
        let retryable = [
            StatusCode::TOO_MANY_REQUESTS,
            StatusCode::SERVICE_UNAVAILABLE,
        ];
        if retryable.contains(&response.status()) {
            let seconds = whole_seconds(self.retry_after);
            response.headers_mut().insert(RETRY_AFTER, seconds.into());
        }
        response.extensions_mut().insert(self.error);
        response
    }
}

fn http_response<B>(status: StatusCode, text: &'static str) -> http::Response<RejectionBody<B>> {
    let mut response = rejection_response(Some(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = status;
    response.headers_mut().insert(
        CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    response
}

/// Trailers-only: the status is in the headers, and the body is empty.
fn grpc_response<B>(
    content_type: &'static str,
    status: u16,
    message: &str,
    retry_after: Duration,
) -> http::Response<RejectionBody<B>> {
    let mut response = rejection_response(None);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(GRPC_STATUS, status.into());
    let message = utf8_percent_encode(message, GRPC_ENCODED).to_string();
    if let Ok(message) = HeaderValue::from_str(&message) {
        headers.insert(GRPC_MESSAGE, message);
    }
    if [RESOURCE_EXHAUSTED, UNAVAILABLE].contains(&status) {
        let millis = u32::try_from(retry_after.as_millis()).unwrap_or(u32::MAX);
        headers.insert(GRPC_RETRY_PUSHBACK, millis.into());
    }
    response
}

fn rejection_response<B>(text: Option<Bytes>) -> http::Response<RejectionBody<B>> {
    http::Response::new(RejectionBody {
        content: Content::Rejected { text },
    })
}

/// Rounds up, since a client that retries a moment too early is rejected again.
fn whole_seconds(duration: Duration) -> u64 {
    duration
        .as_secs()
        .saturating_add(u64::from(duration.subsec_nanos() > 0))
}

// === impl RejectionBody ===

impl<B: Default> Default for RejectionBody<B> {
    /// Returns the default of the inner body.
    fn default() -> Self {
        Self {
            content: Content::Inner { body: B::default() },
        }
    }
}

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
        match self.project().content.project() {
            ContentProj::Inner { body } => body.poll_frame(cx),
            ContentProj::Rejected { text } => {
                Poll::Ready(text.take().map(|text| Ok(Frame::data(text.into()))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Inner { body } => body.is_end_stream(),
            Content::Rejected { text } => text.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Inner { body } => body.size_hint(),
            Content::Rejected { text } => {
                SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64))
            }
        }
    }
}

impl<B: fmt::Debug> fmt::Debug for RejectionBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.content {
            Content::Inner { body } => f.debug_tuple("RejectionBody").field(body).finish(),
            Content::Rejected { text } => f.debug_tuple("RejectionBody").field(text).finish(),
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
    fn protocol_follows_the_content_type() {
        for (value, protocol) in [
            ("application/grpc", Protocol::Grpc("application/grpc")),
            ("application/grpc+proto", Protocol::Grpc("application/grpc")),
            (
                "Application/gRPC-web",
                Protocol::Grpc("application/grpc-web"),
            ),
            (
                "application/grpc-web-text+proto",
                Protocol::Grpc("application/grpc-web-text"),
            ),
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
    fn each_error_kind_has_a_status() {
        use ErrorKind::*;
        for (kind, status, code, retryable) in [
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
            let reject = |protocol| {
                let rejection = Rejection {
                    error: Error::new(kind, "an internal detail"),
                    protocol,
                    retry_after: Duration::from_secs(7),
                };
                rejection.into_response::<String>()
            };
            let response = reject(Protocol::Http);
            assert_eq!(response.status(), status, "{kind:?}");
            assert_eq!(response.headers().contains_key(RETRY_AFTER), retryable);
            let response = reject(Protocol::Grpc("application/grpc"));
            assert_eq!(response.status(), 200);
            assert_eq!(response.headers()[GRPC_STATUS], code, "{kind:?}");
            assert!(!response.headers().contains_key(RETRY_AFTER));
        }
    }

    #[test]
    fn a_grpc_message_is_percent_encoded() {
        let response =
            grpc_response::<String>("application/grpc", 8, "50 % of ü\n", Duration::ZERO);
        assert_eq!(response.headers()[GRPC_MESSAGE], "50 %25 of %C3%BC%0A");
    }
}
