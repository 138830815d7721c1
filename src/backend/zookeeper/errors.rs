//! The errors of ZooKeeper.

use crate::error::{Error, ErrorKind};
use std::time::Duration;
use zookeeper_client as zk;

/// Translates an error that occurred while trying to `act`.
///
/// The client crate often reports a lost connection as a custom error, and a client that has ended as an unexpected one.
pub(super) fn translate(error: &zk::Error, servers: &str, act: &str) -> Error {
    let (kind, message) = match error {
        zk::Error::NoAuth => (
            ErrorKind::Denied,
            format!(
                "ZooKeeper at {servers} denies permission to {act}: grant the right, or check the user and the password of ZooKeeper::auth"
            ),
        ),
        zk::Error::AuthFailed => (
            ErrorKind::Denied,
            format!("ZooKeeper at {servers} rejects this user and password: check ZooKeeper::auth"),
        ),
        zk::Error::InvalidAcl => (
            ErrorKind::Denied,
            format!(
                "ZooKeeper at {servers} denies permission to {act}: it does not know the user that the rights are for"
            ),
        ),
        zk::Error::QuotaExceeded => (
            ErrorKind::Unavailable,
            format!("ZooKeeper at {servers} cannot {act}: a quota is exceeded"),
        ),
        zk::Error::Unimplemented => (
            ErrorKind::Incompatible,
            format!("ZooKeeper at {servers} cannot {act}: at least version 3.5.3 is required"),
        ),
        zk::Error::NoChildrenForEphemerals => (
            ErrorKind::Incompatible,
            format!(
                "ZooKeeper at {servers} cannot {act}: the parent is an ephemeral node of another program"
            ),
        ),
        zk::Error::NotReadOnly => (
            ErrorKind::Unavailable,
            format!("ZooKeeper at {servers} is read-only: it has lost its quorum"),
        ),
        zk::Error::NoHosts | zk::Error::Timeout => (
            ErrorKind::Unavailable,
            format!(
                "ZooKeeper at {servers} cannot be reached, or closes the connection as a TLS port does"
            ),
        ),
        zk::Error::SessionExpired | zk::Error::SessionMoved => (
            ErrorKind::Unavailable,
            format!("ZooKeeper at {servers} has ended the session of this process"),
        ),
        _ => (
            ErrorKind::Unavailable,
            format!("the connection to ZooKeeper at {servers} failed while trying to {act}"),
        ),
    };
    Error::with_source(kind, message, error.clone())
}

/// The call timed out.
pub(super) fn no_answer(servers: &str) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!("ZooKeeper at {servers} does not answer in time"),
    )
}

/// The session would end before the lease, and other nodes would be granted permits that this one still trusts in.
pub(super) fn session_too_short(servers: &str, session: Duration, lease: Duration) -> Error {
    Error::new(
        ErrorKind::Incompatible,
        format!(
            "ZooKeeper at {servers} grants sessions of at most {session:?}, which is less than the lease of {lease:?}: \
             set a shorter lease, or raise maxSessionTimeout"
        ),
    )
}

pub(super) fn session_ended(servers: &str) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!("ZooKeeper at {servers} has ended the session of this process"),
    )
}

/// A later call about the same name began before this one ended, or the session has ended.
pub(super) fn superseded() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the call was superseded by a later one of this process, or its session has ended",
    )
}
