//! One error type for the whole crate: what happened, as a [`kind`](Error::kind), and the words for people.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// An error as tower's middlewares pass it: `Box<dyn Error + Send + Sync>`.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Everything that can go wrong, with a [`kind`](Error::kind) to decide by and a message in plain words.
///
/// Cheap to clone. It never shows a password: messages name hosts, never whole URLs.
///
/// ```
/// use tower_permit::{Coordinator, ErrorKind, Memory};
///
/// let error = Coordinator::new(Memory::new()).semaphore("export", 0).unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::InvalidConfig);
/// assert_eq!(error.to_string(), "a limit of 0 would admit no request: it must be at least 1");
/// ```
#[derive(Clone)]
pub struct Error {
    inner: Arc<Inner>,
}

struct Inner {
    kind: ErrorKind,
    message: Cow<'static, str>,
    source: Option<BoxError>,
}

/// What an [`Error`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A setting that cannot work: a limit of 0, a lease out of range, a wrong URL, a name that is too long.
    InvalidConfig,
    /// Every permit was taken, and the caller had asked not to wait.
    LimitReached,
    /// The wait for a permit ended before one was free.
    WaitTimeout,
    /// So many callers wait already that one more was refused.
    TooManyWaiting,
    /// The backend does not answer.
    Unavailable,
    /// The backend refused us: a wrong password, or a right that is missing.
    Denied,
    /// The backend cannot serve us: too old, not to be trusted, or something else is stored under our name.
    Incompatible,
    /// The permit was held once and is not held any more.
    Lost,
    /// The permit was held for longer than `max_hold`.
    HeldTooLong,
    /// The coordinator is shutting down.
    ShuttingDown,
    /// There is no tokio runtime on this thread.
    NoRuntime,
    /// A request without a key, where a keyed layer [rejects](crate::layers::keyed::OnMissingKey::Reject) such requests.
    MissingKey,
    /// A request's key cannot be used: it is too long, or it is too many names.
    InvalidKey,
    /// The function that finds a request's key panicked.
    ExtractorPanicked,
}

// === impl ErrorKind ===

impl ErrorKind {
    /// The kind as a word for logs and metrics: `wait_timeout`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InvalidConfig => "invalid_config",
            Self::LimitReached => "limit_reached",
            Self::WaitTimeout => "wait_timeout",
            Self::TooManyWaiting => "too_many_waiting",
            Self::Unavailable => "unavailable",
            Self::Denied => "denied",
            Self::Incompatible => "incompatible",
            Self::Lost => "lost",
            Self::HeldTooLong => "held_too_long",
            Self::ShuttingDown => "shutting_down",
            Self::NoRuntime => "no_runtime",
            Self::MissingKey => "missing_key",
            Self::InvalidKey => "invalid_key",
            Self::ExtractorPanicked => "extractor_panicked",
        }
    }
}

// === impl Error ===

impl Error {
    /// What happened, to decide by.
    pub fn kind(&self) -> ErrorKind {
        self.inner.kind
    }

    pub(crate) fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self::build(kind, message.into(), None)
    }

    /// With the error of a library below, kept as [`source`](std::error::Error::source).
    pub(crate) fn with_source(
        kind: ErrorKind,
        message: impl Into<Cow<'static, str>>,
        source: impl Into<BoxError>,
    ) -> Self {
        Self::build(kind, message.into(), Some(source.into()))
    }

    pub(crate) fn config(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::InvalidConfig, message)
    }

    fn build(kind: ErrorKind, message: Cow<'static, str>, source: Option<BoxError>) -> Self {
        Self {
            inner: Arc::new(Inner {
                kind,
                message,
                source,
            }),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.inner.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.inner.kind)
            .field("message", &self.inner.message)
            .field("source", &self.inner.source)
            .finish()
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.inner.source.as_ref().map(|source| &**source as _)
    }
}
