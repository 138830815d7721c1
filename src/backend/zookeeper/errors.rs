//! ZooKeeper's errors in plain words.

use crate::error::{Error, ErrorKind};
use zookeeper_client as zk;

/// What an error means that came while we wanted to `act`. A lost connection often comes as a custom error, and a client
/// that ended as an unexpected one.
pub(super) fn error(error: &zk::Error, servers: &str, act: &str) -> Error {
    let (kind, words) = match error {
        zk::Error::NoAuth => (
            ErrorKind::Denied,
            format!(
                "ZooKeeper at {servers} does not let us {act}: a right is missing, or user and password are not those that the node asks for"
            ),
        ),
        zk::Error::AuthFailed => (
            ErrorKind::Denied,
            format!("ZooKeeper at {servers} refuses our user and password"),
        ),
        zk::Error::InvalidAcl => (
            ErrorKind::Denied,
            format!(
                "ZooKeeper at {servers} does not let us {act}: it does not know the user that the rights are for"
            ),
        ),
        zk::Error::QuotaExceeded => (
            ErrorKind::Denied,
            format!("ZooKeeper at {servers} does not let us {act}: a quota is used up"),
        ),
        zk::Error::Unimplemented => (
            ErrorKind::Incompatible,
            format!(
                "ZooKeeper at {servers} cannot {act}: 3.5.3 is the oldest version that will do"
            ),
        ),
        zk::Error::NoChildrenForEphemerals => (
            ErrorKind::Incompatible,
            format!("ZooKeeper at {servers} cannot {act}: something else is stored there"),
        ),
        zk::Error::NotReadOnly => (
            ErrorKind::Unavailable,
            format!("ZooKeeper at {servers} is read only: it has lost its quorum"),
        ),
        zk::Error::NoHosts | zk::Error::Timeout => (
            ErrorKind::Unavailable,
            format!("ZooKeeper at {servers} cannot be reached, or hangs up as a port for TLS does"),
        ),
        zk::Error::SessionExpired | zk::Error::SessionMoved => (
            ErrorKind::Unavailable,
            format!("ZooKeeper at {servers} has ended our session"),
        ),
        _ => (
            ErrorKind::Unavailable,
            format!("the connection to ZooKeeper at {servers} failed as we wanted to {act}"),
        ),
    };
    Error::with_source(kind, words, error.clone())
}

pub(super) fn silent(servers: &str) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!("ZooKeeper at {servers} does not answer"),
    )
}

/// A session that ends before our lease does would let another in while we still trust in the lease.
pub(super) fn short_session(
    servers: &str,
    session: std::time::Duration,
    lease: std::time::Duration,
) -> Error {
    Error::new(
        ErrorKind::Incompatible,
        format!(
            "ZooKeeper at {servers} grants sessions of at most {session:?}, which is less than the lease of {lease:?}: \
             choose a shorter lease, or raise maxSessionTimeout"
        ),
    )
}
