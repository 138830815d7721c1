//! The errors of etcd, and what they mean for a call.

use crate::backend::tls::{self, System};
use crate::error::{Error, ErrorKind};
use tokio::runtime::Handle;

pub(super) const ETCD: System = System {
    name: "etcd",
    builder: "Etcd",
    plain: "an http:// address",
};

/// Why a call failed.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    /// The etcd lease that the call relies on has ended.
    LeaseGone,
    Other(Error),
}

/// What may help against an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remedy {
    /// Another server, or a new connection to the same one.
    OtherConnection,
    None,
}

/// Translates an error of the client crate, and returns what may help against it.
pub(super) fn classify(error: &etcd_client::Error, server: &str) -> (Failure, Remedy) {
    use etcd_client::Error as E;
    match error {
        E::GRpcStatus(status) => {
            if let Some(error) = tls_error(status, server) {
                return (Failure::Other(error), Remedy::OtherConnection);
            }
            let text = status.message();
            if text.contains("requested lease not found") {
                return (Failure::LeaseGone, Remedy::None);
            }
            refusal(text, server).map_or_else(
                || {
                    let failure = unavailable(server, &innermost_cause(status));
                    (failure, Remedy::OtherConnection)
                },
                |(error, remedy)| (Failure::Other(error), remedy),
            )
        }
        E::LeaseKeepAliveError(text) if text.contains("not found") => {
            (Failure::LeaseGone, Remedy::None)
        }
        E::TransportError(error) => {
            let tls_error = tls_error(error, server).map(Failure::Other);
            let failure = tls_error.unwrap_or_else(|| unavailable(server, &innermost_cause(error)));
            (failure, Remedy::OtherConnection)
        }
        other => (
            unavailable(server, &other.to_string()),
            Remedy::OtherConnection,
        ),
    }
}

/// Returns the error of the TLS layer, if it is one. Another server may have, or require, another certificate.
pub(super) fn tls_error(error: &(dyn std::error::Error + 'static), server: &str) -> Option<Error> {
    if let Some(cause) = tls::find_cause(error) {
        return Some(tls::describe(cause, &ETCD, server));
    }
    // A client's certificate is refused after the client has finished its handshake. Only the text of the alert is left then.
    let text = innermost_cause(error);
    (text.contains("fatal alert")).then(|| tls::certificate_refused(&text, &ETCD, server))
}

/// Whether the server closed the connection without a reason that arrived here.
pub(super) fn was_closed(error: &etcd_client::Error) -> bool {
    use etcd_client::Error as E;
    let text = match error {
        E::GRpcStatus(status) => innermost_cause(status),
        E::TransportError(error) => innermost_cause(error),
        _ => return false,
    };
    text.contains("closed") || text.contains("eof")
}

/// Returns what etcd refuses on purpose. It is recognized by the text, since several causes share one gRPC code.
fn refusal(text: &str, server: &str) -> Option<(Error, Remedy)> {
    let denied = |what: &str| Error::new(ErrorKind::Denied, format!("etcd at {server} {what}"));
    if text.contains("invalid auth token") || text.contains("revision in header is old") {
        // A new connection brings a new token.
        return Some((
            Error::new(
                ErrorKind::Unavailable,
                format!("etcd at {server} requires a new login: the token has expired"),
            ),
            Remedy::OtherConnection,
        ));
    }
    let error = if text.contains("invalid user ID or password") {
        denied("rejects this user and password: check Etcd::credentials")
    } else if text.contains("user name is empty") || text.contains("user name not found") {
        denied("requires a user and a password: set Etcd::credentials")
    } else if text.contains("authentication is not enabled") {
        denied("has no authentication enabled: remove the user and the password")
    } else if text.contains("permission denied") {
        denied(
            "denies this user permission to read and write below the prefix: grant its role readwrite",
        )
    } else {
        return None;
    };
    Some((error, Remedy::None))
}

/// Returns the text of the innermost cause. The outer errors only repeat that a request failed.
fn innermost_cause(error: &dyn std::error::Error) -> String {
    let mut innermost = error.source();
    while let Some(deeper) = innermost.and_then(|e| e.source()) {
        innermost = Some(deeper);
    }
    match innermost {
        Some(cause) => cause.to_string(),
        None => error.to_string(),
    }
}

fn unavailable(server: &str, reason: &str) -> Failure {
    Failure::Other(Error::new(
        ErrorKind::Unavailable,
        format!("etcd at {server} does not answer: {reason}"),
    ))
}

/// The call timed out.
pub(super) fn no_answer(server: &str) -> Failure {
    Failure::Other(Error::new(
        ErrorKind::Unavailable,
        format!("etcd at {server} does not answer in time"),
    ))
}

pub(super) fn unexpected_answer() -> Error {
    Error::new(
        ErrorKind::Incompatible,
        "the answer of etcd lacks a part that every version sends: check what serves this address",
    )
}

/// The etcd lease that a call began with has ended during the call.
pub(super) fn lease_ended() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the etcd lease of this process ended during the call",
    )
}

/// A later call about the same name began before this one ended.
pub(super) fn superseded() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the call was superseded by a later one of this process",
    )
}

/// Returns the current runtime, which drives connections and background tasks.
pub(super) fn runtime() -> Result<Handle, Error> {
    Handle::try_current().map_err(|_| {
        Error::new(
            ErrorKind::NoRuntime,
            "the etcd backend was called outside a tokio runtime: call it within one",
        )
    })
}

// === impl Failure ===

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::LeaseGone => lease_ended(),
            Failure::Other(error) => error,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}
