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
    let (kind, message) = if error.is_connection_refusal() && text.contains("No such file") {
        (
            ErrorKind::Unavailable,
            format!("Redis is unreachable: there is no socket at {server}"),
        )
    } else if error.is_connection_refusal() {
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
    } else if is_final(&text) {
        (
            ErrorKind::Incompatible,
            format!("Redis at {server} cannot execute a command that this crate needs: {text}"),
        )
    } else {
        (
            ErrorKind::Unavailable,
            format!("Redis at {server} cannot answer now: {text}"),
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
    if error.is_connection_dropped() && !error.is_connection_refusal() {
        let message = format!(
            "the connection to Redis at {server} was closed before the first answer: if this happens each time, the server expects \
             TLS (use a rediss:// URL), or a proxy does not support HELLO"
        );
        return Error::with_source(ErrorKind::Unavailable, message, error.clone());
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

/// No repetition of the command ever succeeds: a command or an argument that the server does not know, or a fault of the script.
/// Every other error may end, in whatever words a proxy or a managed server reports a quota, a failover or a lost upstream.
fn is_final(text: &str) -> bool {
    const SIGNS: &[&str] = &[
        "unknown command",
        "unknown Redis command",
        "unknown subcommand",
        "wrong number of arg",
        "syntax error",
        "compiling script",
        // What Lua itself reports.
        ": attempt to ",
        "DB index is out of range",
        "invalid DB index",
        "cluster support disabled",
        "SELECT is not allowed in cluster mode",
        "unsupported command",
        "command is not supported",
        "not supported by",
    ];
    let text = text.to_ascii_lowercase();
    SIGNS
        .iter()
        .any(|sign| text.contains(&sign.to_ascii_lowercase()))
}

/// The server's own text, without what the client library adds.
pub(super) fn text(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        (Some(code), None) => code.to_owned(),
        (None, _) => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(text: &str) -> ErrorKind {
        let reply = redis::parse_redis_value(format!("-{text}\r\n").as_bytes());
        let error = reply.and_then(redis::Value::extract_error).unwrap_err();
        describe(&error, "host:6379").kind()
    }

    #[test]
    fn errors_that_may_end_are_an_outage() {
        for text in [
            "LOADING Redis is loading the dataset in memory",
            "OOM command not allowed when used memory > 'maxmemory'",
            "ERR max requests limit exceeded. Limit: 500000, Usage: 500000",
            "ERR max daily request limit exceeded",
            "ERR quota exceeded",
            "ERR upstream failure",
            "upstream failure",
            "no upstream host",
            "ERR Proxy error",
            "ERR server overloaded, try again later",
            "ERR Error running script: the instance is failing over",
            "FAILOVER in progress",
            "ERR Connection to the shard was lost",
            "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
            "ERR Script attempted to access a non local key in a cluster node",
            "NOGOODSLAVE no good replica",
            "ERR something else",
        ] {
            assert_eq!(kind(text), ErrorKind::Unavailable, "{text}");
        }
    }

    #[test]
    fn errors_that_never_end_are_final() {
        for text in [
            "ERR unknown command 'EVALSHA', with args beginning with: 'x'",
            "ERR wrong number of arguments for 'set' command",
            "ERR Error compiling script (new function): user_script:1: unexpected symbol",
            "ERR user_script:3: attempt to index a nil value script: x, on @user_script:3.",
            "ERR DB index is out of range",
            "WRONGTYPE Operation against a key holding the wrong kind of value",
            "INCOMPATIBLE key has format version 9",
        ] {
            assert_eq!(kind(text), ErrorKind::Incompatible, "{text}");
        }
    }
}
