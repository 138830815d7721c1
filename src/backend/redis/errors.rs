//! Classifies the errors of servers and connections, and describes them. A message shows of a URL only host and port.

use crate::error::{Error, ErrorKind};
use redis::{RedisError, ServerErrorKind};

/// A reply with an unexpected form: from another kind of server, or changed by a proxy.
pub(in crate::backend) fn malformed(server: &str) -> Error {
    Error::new(
        ErrorKind::Incompatible,
        format!("Redis at {server} sent a reply that this version does not understand"),
    )
}

pub(in crate::backend) fn no_answer(server: &str) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!("Redis at {server} does not answer"),
    )
}

/// Describes the error of a command.
pub(in crate::backend) fn describe(error: &RedisError, server: &str) -> Error {
    let text = text(error);
    let (kind, message) = if error.is_connection_refusal() {
        (
            ErrorKind::Unavailable,
            format!("Redis at {server} is unreachable: the connection was refused"),
        )
    } else if error.is_io_error() {
        (
            ErrorKind::Unavailable,
            format!("the connection to Redis at {server} failed: {text}"),
        )
    } else if is_denied(error) {
        // Inside a script the server does not name the command that it refused.
        let hint = match text.contains("script") {
            true => " (Coordinator::check names the right that is missing)",
            false => "",
        };
        (
            ErrorKind::Denied,
            format!("Redis at {server} refused access: {text}{hint}"),
        )
    } else if error.redirect_node().is_some() {
        (
            ErrorKind::Incompatible,
            format!(
                "Redis at {server} is a node of a cluster: Redis::cluster is for those ({text})"
            ),
        )
    } else if error.kind() == redis::ErrorKind::RESP3NotSupported {
        (
            ErrorKind::Incompatible,
            format!("Redis at {server} is too old: it does not know RESP3, and 6.2 is needed"),
        )
    } else if let Some((_, record)) = text.split_once("INCOMPATIBLE ") {
        (
            ErrorKind::Incompatible,
            format!(
                "Redis at {server} stores a record of another version of tower-permit: {record}; \
                 run versions with the same format version, or choose another prefix"
            ),
        )
    } else if text.contains("WRONGTYPE") {
        (
            ErrorKind::Incompatible,
            format!(
                "Redis at {server} has something else stored under our keys, choose another prefix: {text}"
            ),
        )
    } else if is_temporary(error, &text) {
        (
            ErrorKind::Unavailable,
            format!("Redis at {server} cannot answer now: {text}"),
        )
    } else {
        (
            ErrorKind::Incompatible,
            format!("Redis at {server} sent an unexpected error: {text}"),
        )
    };
    Error::with_source(kind, message, error.clone())
}

/// Describes the error of the first commands of a connection: the peer may not be a Redis server at all.
pub(in crate::backend) fn describe_first(error: &RedisError, server: &str) -> Error {
    let cut_off = error.to_string().contains("end of input");
    if error.kind() == redis::ErrorKind::Parse && !cut_off {
        let message = format!(
            "the server at {server} sent a reply that is not RESP: check that the address is that of a Redis server"
        );
        return Error::with_source(ErrorKind::Incompatible, message, error.clone());
    }
    describe(error, server)
}

/// The connection does not work any more, or leads to the wrong server.
pub(super) fn needs_new_connection(error: &RedisError) -> bool {
    error.is_io_error()
        || error.is_unrecoverable_error()
        || error.kind() == redis::ErrorKind::Parse
        || text(error).contains("READONLY")
}

/// The server does not know the script, for example after SCRIPT FLUSH.
pub(in crate::backend) fn is_script_missing(error: &RedisError) -> bool {
    error.kind() == redis::ErrorKind::Server(ServerErrorKind::NoScript)
}

/// A wrong password, or a missing right.
pub(in crate::backend) fn is_denied(error: &RedisError) -> bool {
    const SIGNS: &[&str] = &[
        "NOPERM",
        "NOAUTH",
        "WRONGPASS",
        "invalid password",
        "invalid username-password",
        "ACL failure in script",
        "can't run this command",
        "has no permissions",
        "no permissions to",
    ];
    error.kind() == redis::ErrorKind::AuthenticationFailed || {
        let text = text(error);
        SIGNS.iter().any(|sign| text.contains(sign))
    }
}

/// The kind of right that a user lacks.
#[derive(Debug, PartialEq)]
pub(in crate::backend) enum MissingRight {
    Command,
    Key,
    Channel,
    Other,
}

/// Returns the right that a refused command needs. The server checks the command before its keys.
pub(in crate::backend) fn missing_right(error: &RedisError) -> MissingRight {
    let text = text(error);
    match text
        .split_once("permissions to access")
        .map(|(_, what)| what)
    {
        Some(what) if what.contains("key") => MissingRight::Key,
        Some(what) if what.contains("channel") => MissingRight::Channel,
        Some(_) => MissingRight::Other,
        None => MissingRight::Command,
    }
}

/// The same command may succeed later.
fn is_temporary(error: &RedisError, text: &str) -> bool {
    const SIGNS: &[&str] = &[
        "LOADING",
        "BUSY",
        "READONLY",
        "MASTERDOWN",
        "CLUSTERDOWN",
        "TRYAGAIN",
        "OOM",
        "MISCONF",
        "NOREPLICAS",
        "max number of clients",
        "UNKILLABLE",
        // The slot was moved while a script was running.
        "non local key",
    ];
    matches!(
        error.kind(),
        redis::ErrorKind::Parse | redis::ErrorKind::Client
    ) || SIGNS.iter().any(|sign| text.contains(sign))
}

/// The server's own text, without what the client library adds.
pub(super) fn text(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        (Some(code), None) => code.to_owned(),
        (None, _) => error.to_string(),
    }
}
