//! The error type of the whole crate: a [`kind`](Error::kind) for programs and a message for people.

use crate::name::Queue;
use std::borrow::Cow;
use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;

/// Alias for a boxed error, as in tower.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// An error of this crate, with a [`kind`](Error::kind) and a message: what failed, with which value, and what to do.
///
/// Cheap to clone. It never contains a password: messages name hosts, not whole URLs.
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
    name: Option<Arc<str>>,
}

struct Inner {
    kind: ErrorKind,
    message: Cow<'static, str>,
    source: Option<BoxError>,
}

/// The kind of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An invalid setting: a limit of 0, a lease out of range, a wrong URL, a name that is too long.
    InvalidConfig,
    /// Every permit is held, and the caller does not wait.
    LimitReached,
    /// No permit became free before the timeout of the wait.
    WaitTimeout,
    /// `max_waiting` or `max_waiting_total` callers of this process wait already.
    TooManyWaiting,
    /// The backend has not answered for `outage_after`.
    Unavailable,
    /// The backend denied access: a wrong password, or a missing right.
    Denied,
    /// The backend cannot be used: it is too old, its configuration is unsafe, or a key of this crate contains other data.
    Incompatible,
    /// The permit is not held any more: its lease expired, or it was evicted.
    Lost,
    /// The permit was held for longer than `max_hold`.
    HeldTooLong,
    /// The response that held the permit was not read for `stall_timeout`.
    Stalled,
    /// The coordinator is shutting down.
    ShuttingDown,
    /// There is no tokio runtime on this thread.
    NoRuntime,
    /// The request has no key, and the keyed layer requires one: see [`OnMissingKey`](crate::layers::keyed::OnMissingKey).
    MissingKey,
    /// The request's key is too long or has too many names.
    InvalidKey,
    /// The key extractor of a keyed layer panicked.
    ExtractorPanicked,
}

// === impl ErrorKind ===

impl ErrorKind {
    /// Returns the kind in snake case, for logs and metrics: `wait_timeout`.
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
            Self::Stalled => "stalled",
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
    /// Returns the kind of this error.
    pub fn kind(&self) -> ErrorKind {
        self.inner.kind
    }

    /// Returns the encoded name of the semaphore, mutex or key that refused, or whose permit was lost. `None` if the error is
    /// about no single name.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Adds the name of a queue, unless there is one.
    pub(crate) fn with_name(mut self, queue: &Queue) -> Self {
        self.name.get_or_insert_with(|| queue.shared_name());
        self
    }

    pub(crate) fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self::build(kind, message.into(), None)
    }

    /// Creates an error with the error of another library as its [`source`](std::error::Error::source).
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
            name: None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{name}: {}", self.inner.message),
            None => f.write_str(&self.inner.message),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.inner.kind)
            .field("name", &self.name)
            .field("message", &self.inner.message)
            .field("source", &self.inner.source)
            .finish()
    }
}

// An error is never changed after it was made, so a panic leaves no half-made one.
impl UnwindSafe for Error {}
impl RefUnwindSafe for Error {}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.inner.source.as_ref().map(|source| &**source as _)
    }
}
