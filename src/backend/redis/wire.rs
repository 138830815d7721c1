//! What goes over the wire besides batches: inspections, pushes, values of commands, and errors in plain words.

#[cfg(feature = "redis-cluster")]
use super::cluster::{Address, Map};
use super::codec::{Forms, GENERAL_KEYS, SINGLE_HOLDER_KEY, add_key, key_parts};
use crate::backend::{Event, Grant, Inspection, TicketInfo};
use crate::error::{Error, ErrorKind};
use crate::name::Queue;
use redis::{Cmd, RedisError, ServerErrorKind, Value};
use std::time::Duration;

/// How many tickets of each kind an inspection lists.
const LISTED: usize = 1_000;
/// The keys of a name, all in one hash slot.
pub(super) struct Keys {
    permits: String,
    #[cfg(all(test, feature = "redis-cluster"))]
    queue: String,
    meta: String,
    single_holder: String,
}

// === impl Keys ===

impl Keys {
    pub(super) fn new(prefix: &str, queue: &Queue) -> Self {
        let key = |suffix| key_parts(prefix, queue, suffix).concat();
        Self {
            permits: key(""),
            #[cfg(all(test, feature = "redis-cluster"))]
            queue: key(":queue"),
            meta: key(":meta"),
            single_holder: key(SINGLE_HOLDER_KEY),
        }
    }

    pub(super) fn meta(&self) -> &str {
        &self.meta
    }

    #[cfg(all(test, feature = "redis-cluster"))]
    pub(super) fn all(&self) -> [&str; 4] {
        [&self.permits, &self.queue, &self.meta, &self.single_holder]
    }

    /// Every command that the scripts use on keys, harmless to keys that nobody else uses. The last ones tidy up.
    pub(super) fn every_command(&self) -> Vec<Cmd> {
        let (permits, meta, single) = (&*self.permits, &*self.meta, &*self.single_holder);
        let words: &[&[&str]] = &[
            &["time"],
            &["eval", "return 0", "0"],
            &["evalsha", "", "0"],
            &["zadd", permits, "1", "x"],
            &["zcard", permits],
            &["zcount", permits, "0", "1"],
            &["zrange", permits, "0", "0"],
            &["zmscore", permits, "x"],
            &["pexpire", permits, "1000"],
            &["zremrangebyscore", permits, "-inf", "0"],
            &["zrem", permits, "x"],
            &["hset", meta, "x", "x"],
            &["pexpire", meta, "1000"],
            &["hmget", meta, "x"],
            &["hgetall", meta],
            &["hdel", meta, "x"],
            &["set", single, "", "px", "1000"],
            &["get", single],
            &["mget", single],
            &["exists", single],
            &["del", single],
        ];
        let command = |words: &&[&str]| {
            let mut command = Cmd::new();
            for word in *words {
                command.arg(*word);
            }
            command
        };
        words.iter().map(command).collect()
    }
}

/// Adds the arguments of `inspect.lua`.
pub(super) fn add_inspection(command: &mut Cmd, prefix: &str, forms: Forms, queue: &Queue) {
    let suffixes = match forms {
        Forms::GeneralOnly => &[][..],
        Forms::WithSingleHolder => &[SINGLE_HOLDER_KEY],
    };
    command.arg(GENERAL_KEYS.len() + suffixes.len());
    for suffix in GENERAL_KEYS.iter().chain(suffixes) {
        add_key(command, prefix, queue, suffix);
    }
    command.arg(LISTED);
}

/// The channel of a node.
pub(super) fn inbox(prefix: &str, node: &str) -> String {
    format!("{prefix}:push:{node}")
}

pub(in crate::backend) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1)
}

/// Reads an answer of `inspect.lua`. `None` if it makes no sense.
pub(super) fn inspection(value: Value) -> Option<Inspection> {
    let Value::Array(items) = value else {
        return None;
    };
    let [in_use, waiting, holders, waiters] = <[Value; 4]>::try_from(items).ok()?;
    Some(Inspection {
        holders: tickets(holders)?,
        queue: tickets(waiters)?,
        in_use: unsigned(in_use)?,
        queued: unsigned(waiting)?,
    })
}

/// Reads what was pushed: `kind:name ticket token ticket token …`. Anything else is ignored.
pub(super) fn pushed(data: &[Value], inbox: &str, mut tell: impl FnMut(Event)) {
    let [Value::BulkString(channel), Value::BulkString(payload)] = data else {
        return;
    };
    if channel != inbox.as_bytes() {
        return;
    }
    for event in std::str::from_utf8(payload)
        .ok()
        .and_then(grants)
        .into_iter()
        .flatten()
    {
        tell(event);
    }
}

fn grants(payload: &str) -> Option<Vec<Event>> {
    let mut words = payload.split(' ');
    let (kind, name) = words.next()?.split_once(':')?;
    let queue = Queue::from_encoded(kind, name)?;
    let mut events = Vec::new();
    while let Some(ticket) = words.next() {
        let grant = Grant {
            ticket: ticket.parse().ok()?,
            token: words.next()?.parse().ok()?,
        };
        let queue = queue.clone();
        events.push(Event::Granted { queue, grant });
    }
    Some(events)
}

fn tickets(value: Value) -> Option<Vec<TicketInfo>> {
    let Value::Array(items) = value else {
        return None;
    };
    let mut items = items.into_iter();
    let mut tickets = Vec::new();
    while let Some(ticket) = items.next() {
        let ticket = text_of(ticket)?;
        let left = unsigned(items.next()?)?;
        // What somebody else put there is shown as it is.
        let node = ticket
            .rsplit_once('-')
            .map_or("", |(node, _)| node)
            .to_owned();
        tickets.push(TicketInfo {
            ticket,
            node,
            lease_left: Duration::from_millis(left),
            lingering: false,
        });
    }
    Some(tickets)
}

pub(in crate::backend) fn int(value: Value) -> Option<i64> {
    match value {
        Value::Int(number) => Some(number),
        _ => None,
    }
}

pub(in crate::backend) fn unsigned(value: Value) -> Option<u64> {
    u64::try_from(int(value)?).ok()
}

pub(in crate::backend) fn text_of(value: Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text),
        _ => None,
    }
}

/// The name of a command.
pub(in crate::backend) fn name(command: &Cmd) -> String {
    match command.args_iter().next() {
        Some(redis::Arg::Simple(name)) => String::from_utf8_lossy(name).into_owned(),
        _ => String::new(),
    }
}

/// One field of a map, as RESP3 or RESP2 shows it.
pub(in crate::backend) fn field(value: &Value, name: &str) -> Option<String> {
    let is_it = |key: &Value| text_of(key.clone()).is_some_and(|key| key == name);
    match value {
        Value::Map(pairs) => pairs
            .iter()
            .find(|(key, _)| is_it(key))
            .and_then(|(_, value)| text_of(value.clone())),
        Value::Array(items) => {
            let (pairs, _) = items.as_chunks();
            let found = pairs.iter().find(|[key, _]| is_it(key));
            found.and_then(|[_, value]| text_of(value.clone()))
        }
        _ => None,
    }
}

/// One line of an answer to INFO.
pub(super) fn info(value: &Value, name: &str) -> Option<String> {
    text_of(value.clone())?.lines().find_map(|line| {
        line.strip_prefix(name)?
            .strip_prefix(':')
            .map(|v| v.trim().to_owned())
    })
}

/// Host and port, as a sentinel tells them.
#[cfg(feature = "redis-sentinel")]
pub(super) fn address(value: &Value) -> Option<(String, u16)> {
    let Value::Array(items) = value else {
        return None;
    };
    let [host, port] = items.as_slice() else {
        return None;
    };
    Some((text_of(host.clone())?, text_of(port.clone())?.parse().ok()?))
}

/// An answer to CLUSTER SLOTS. A node that does not know its own host means the one it was asked at.
#[cfg(feature = "redis-cluster")]
pub(super) fn map(value: Value, asked: &str) -> Option<Map> {
    let Value::Array(ranges) = value else {
        return None;
    };
    let mut map = Map::default();
    for range in ranges {
        let Value::Array(items) = range else {
            return None;
        };
        let mut items = items.into_iter();
        let first = int(items.next()?)?.try_into().ok()?;
        let last = int(items.next()?)?.try_into().ok()?;
        let mut nodes = items.map(|node| {
            let Value::Array(node) = node else {
                return None;
            };
            let mut node = node.into_iter();
            let host = match node.next()? {
                Value::Nil => String::new(),
                host => text_of(host)?,
            };
            let port = int(node.next()?)?.try_into().ok()?;
            let host = match host.as_str() {
                "" | "?" => asked.to_owned(),
                _ => host,
            };
            Some((host, port))
        });
        map.ranges.push((first, last, nodes.next()??));
        map.replicas.extend(nodes.flatten());
    }
    Some(map)
}

/// A node of a cluster has not carried a command out: what to do instead.
#[cfg(feature = "redis-cluster")]
pub(super) enum Turn {
    Moved(Address),
    Ask(Address),
    Wait,
}

#[cfg(feature = "redis-cluster")]
pub(super) fn turn(error: &RedisError) -> Option<Turn> {
    use redis::ErrorKind::Server;
    let address = || {
        let (host, port) = error.redirect_node()?.0.rsplit_once(':')?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let known = !host.is_empty() && host != "?";
        known.then(|| Some((host.to_owned(), port.parse().ok()?)))?
    };
    match error.kind() {
        Server(ServerErrorKind::Moved) => Some(address().map_or(Turn::Wait, Turn::Moved)),
        Server(ServerErrorKind::Ask) => Some(address().map_or(Turn::Wait, Turn::Ask)),
        Server(
            ServerErrorKind::TryAgain
            | ServerErrorKind::ClusterDown
            | ServerErrorKind::MasterDown
            | ServerErrorKind::BusyLoading
            | ServerErrorKind::ReadOnly,
        ) => Some(Turn::Wait),
        _ => None,
    }
}

/// An answer that makes no sense: somebody else's server, or a proxy.
pub(in crate::backend) fn nonsense(server: &str) -> Error {
    Error::new(
        ErrorKind::Incompatible,
        format!("Redis at {server} answered what this version does not understand"),
    )
}

pub(super) fn no_answer(server: &str) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!("Redis at {server} does not answer"),
    )
}

/// A Redis error in plain words. Never with anything of the URL but host and port.
pub(in crate::backend) fn error(error: &RedisError, server: &str) -> Error {
    let text = text(error);
    let (kind, message) = if error.is_connection_refusal() {
        (
            ErrorKind::Unavailable,
            format!("Redis at {server} is not there: the connection was refused"),
        )
    } else if error.is_io_error() {
        (
            ErrorKind::Unavailable,
            format!("the connection to Redis at {server} failed: {text}"),
        )
    } else if is_denied(error) {
        // Inside a script the server does not say which command it refused.
        let hint = match text.contains("script") {
            true => " (a check of the coordinator names the right that is missing)",
            false => "",
        };
        (
            ErrorKind::Denied,
            format!("Redis at {server} refuses us: {text}{hint}"),
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
    } else if text.contains("WRONGTYPE") {
        (
            ErrorKind::Incompatible,
            format!(
                "Redis at {server} has something else stored under our keys, choose another prefix: {text}"
            ),
        )
    } else if is_passing(error, &text) {
        (
            ErrorKind::Unavailable,
            format!("Redis at {server} cannot answer now: {text}"),
        )
    } else {
        (
            ErrorKind::Incompatible,
            format!("Redis at {server} cannot serve us: {text}"),
        )
    };
    Error::with_source(kind, message, error.clone())
}

/// The same of the first answers over a connection: they may be nothing that Redis would say.
pub(in crate::backend) fn first_error(error: &RedisError, server: &str) -> Error {
    let cut_off = error.to_string().contains("end of input");
    if error.kind() == redis::ErrorKind::Parse && !cut_off {
        let message = format!("what answers at {server} does not speak as Redis does");
        return Error::with_source(ErrorKind::Incompatible, message, error.clone());
    }
    self::error(error, server)
}

/// The connection is no good any more, or leads to the wrong server.
pub(super) fn wants_new_connection(error: &RedisError) -> bool {
    error.is_io_error()
        || error.is_unrecoverable_error()
        || error.kind() == redis::ErrorKind::Parse
        || text(error).contains("READONLY")
}

/// The server lacks the script, perhaps because somebody flushed it.
pub(in crate::backend) fn is_script_missing(error: &RedisError) -> bool {
    error.kind() == redis::ErrorKind::Server(ServerErrorKind::NoScript)
}

/// A wrong password, or a right that is missing.
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

/// What a server refuses to who lacks a right.
#[derive(Debug, PartialEq)]
pub(in crate::backend) enum Denied {
    Command,
    Key,
    Channel,
    Other,
}

/// What of a command it was. The server knows the right to a command before that to a key.
pub(in crate::backend) fn denied(error: &RedisError) -> Denied {
    let text = text(error);
    match text
        .split_once("permissions to access")
        .map(|(_, what)| what)
    {
        Some(what) if what.contains("key") => Denied::Key,
        Some(what) if what.contains("channel") => Denied::Channel,
        Some(_) => Denied::Other,
        None => Denied::Command,
    }
}

/// Something that passes by itself.
fn is_passing(error: &RedisError, text: &str) -> bool {
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
        // The slot moved away while a script ran.
        "non local key",
    ];
    matches!(
        error.kind(),
        redis::ErrorKind::Parse | redis::ErrorKind::Client
    ) || SIGNS.iter().any(|sign| text.contains(sign))
}

/// The server's own words, without what the client library adds.
pub(super) fn text(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        (Some(code), None) => code.to_owned(),
        (None, _) => error.to_string(),
    }
}
