//! What goes over the wire: scripts and their arguments, answers, pushes, and errors in plain words.

#[cfg(feature = "redis-cluster")]
use super::cluster::{Address, Map};
use crate::backend::{Call, Event, Grant, Inspection, Outcome, Reply, TicketState, TicketInfo};
use crate::error::{Error, ErrorKind};
use crate::name::{Node, Queue};
use redis::{Cmd, RedisError, RedisWrite, ServerErrorKind, Value};
use std::fmt;
use std::time::Duration;

/// How many tickets of each kind an inspection lists.
const LISTED: usize = 1_000;
/// Keys outlive what is in use by an hour, ms.
const HOUR: u64 = 3_600_000;
/// An eviction is one ticket that leaves.
pub(super) const EVICTION: Counts = [1, 0, 0, 0];

/// The keys of a queue, by what comes after the hash tag.
pub(super) const KEYS: &[&str] = &["", ":queue", ":meta", ":lone"];
/// While a slot moves to another server of a cluster, only scripts all of whose keys are there are carried out: no key
/// that is there instead of others.
pub(super) const KEYS_IN_CLUSTER: &[&str] = &["", ":queue", ":meta"];

/// The keys of one queue, all in one hash slot.
pub(super) struct Keys {
    permits: String,
    #[cfg(all(test, feature = "redis-cluster"))]
    queue: String,
    meta: String,
    lone: String,
}

/// One of them: the prefix, the queue, and what comes after the hash tag.
struct Key<'a>(&'a str, &'a Queue, &'a str);

/// How many tickets of a call leave, are kept, enter and try.
pub(super) type Counts = [usize; 4];

/// An answer to `exchange.lua`.
#[derive(Debug, PartialEq)]
pub(super) struct Answer {
    pub(super) reply: Reply,
    /// The server refused to push to others.
    pub(super) mute: bool,
    /// For each ticket of `leave`: was it there at all, holding or waiting?
    pub(super) was_there: Vec<bool>,
}

// === impl Keys ===

impl Keys {
    pub(super) fn new(prefix: &str, queue: &Queue) -> Self {
        let key = |suffix| Key(prefix, queue, suffix).to_string();
        Self {
            permits: key(""),
            #[cfg(all(test, feature = "redis-cluster"))]
            queue: key(":queue"),
            meta: key(":meta"),
            lone: key(":lone"),
        }
    }

    pub(super) fn meta(&self) -> &str {
        &self.meta
    }

    #[cfg(all(test, feature = "redis-cluster"))]
    pub(super) fn all(&self) -> [&str; 4] {
        [&self.permits, &self.queue, &self.meta, &self.lone]
    }

    /// Every command that the scripts use on keys, harmless to keys that nobody else uses. The last ones tidy up.
    pub(super) fn every_command(&self) -> Vec<Cmd> {
        let (permits, meta, lone) = (&*self.permits, &*self.meta, &*self.lone);
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
            &["set", lone, "", "px", "1000"],
            &["get", lone],
            &["del", lone],
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

// === impl Key ===

impl fmt::Display for Key<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(prefix, queue, suffix) = self;
        let (kind, name) = (queue.kind().as_str(), queue.name());
        [prefix, ":", kind, ":{", name, "}", suffix]
            .iter()
            .try_for_each(|part| f.write_str(part))
    }
}

/// The arguments of `exchange.lua` after the script: keys and all that a node has to say, with one lease.
pub(super) fn add_calls(
    command: &mut Cmd,
    prefix: &str,
    keys: &[&str],
    node: &Node,
    calls: &[Call],
) {
    add_keys(command, prefix, keys, calls.iter().map(|call| &call.queue));
    let lease = calls.first().map_or(0, |call| millis(call.lease));
    add_speaker(command, node.as_str(), lease, calls.len());
    for call in calls {
        add_numbers(command, call.number, call.limit, counts(call));
        for ticket in groups(call).into_iter().flatten() {
            command.arg(*ticket);
        }
    }
}

/// The same for one ticket that is taken out in nobody's name.
pub(super) fn add_eviction(
    command: &mut Cmd,
    prefix: &str,
    keys: &[&str],
    queue: &Queue,
    ticket: &str,
) {
    add_keys(command, prefix, keys, [queue]);
    add_speaker(command, "", 0, 1);
    add_numbers(command, 0, 0, EVICTION);
    command.arg(ticket);
}

/// The arguments of `inspect.lua` after the script.
pub(super) fn add_inspection(command: &mut Cmd, prefix: &str, keys: &[&str], queue: &Queue) {
    add_keys(command, prefix, keys, [queue]);
    command.arg(LISTED);
}

pub(super) fn counts(call: &Call) -> Counts {
    groups(call).map(Vec::len)
}

fn groups(call: &Call) -> [&Vec<u64>; 4] {
    [&call.release, &call.renew, &call.acquire, &call.try_acquire]
}

fn add_keys<'a>(
    command: &mut Cmd,
    prefix: &str,
    keys: &[&str],
    queues: impl IntoIterator<Item = &'a Queue, IntoIter: ExactSizeIterator>,
) {
    let queues = queues.into_iter();
    command.arg(keys.len() * queues.len());
    for queue in queues {
        for suffix in keys {
            command.write_arg_fmt(Key(prefix, queue, suffix));
        }
    }
}

fn add_speaker(command: &mut Cmd, node: &str, lease: u64, names: usize) {
    command
        .arg(node)
        .arg(lease)
        .arg(HOUR + 2 * lease)
        .arg(names);
}

/// Packed, as the script reads and writes numbers: it is slow with text.
fn add_numbers(command: &mut Cmd, number: u64, limit: u32, counts: Counts) {
    let [release, renew, acquire, tries] = counts.map(|count| count as f64);
    let numbers = [number as f64, limit.into(), release, renew, acquire, tries];
    command.write_arg(numbers.map(f64::to_le_bytes).as_flattened());
}

/// The channel of a node.
pub(super) fn inbox(prefix: &str, node: &str) -> String {
    format!("{prefix}:inbox:{node}")
}

pub(in crate::backend) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1)
}

/// The answers about so many names. `None` if it makes no sense.
pub(super) fn apart(value: Value, names: usize) -> Option<Vec<Result<Value, RedisError>>> {
    let Value::Array(answers) = value else {
        return None;
    };
    let answer = |value| match value {
        // An error of the server's own, in a list of one: the `redis` crate takes any for an error of the whole.
        Value::Array(error) => {
            let [Value::BulkString(text)] = error.as_slice() else {
                return None;
            };
            let error = [b"-", text.as_slice(), b"\r\n"].concat();
            Some(redis::parse_redis_value(&error).and_then(Value::extract_error))
        }
        value => Some(Ok(value)),
    };
    let answers: Vec<_> = answers.into_iter().map(answer).collect::<Option<_>>()?;
    (answers.len() == names).then_some(answers)
}

/// Reads an answer of `exchange.lua` to so many tickets. `None` if it makes no sense.
pub(super) fn answer(value: &Value, counts: Counts) -> Option<Answer> {
    let Value::BulkString(bytes) = value else {
        return None;
    };
    if bytes.is_empty() {
        return Some(Answer {
            reply: Reply::Stale,
            mute: false,
            was_there: Vec::new(),
        });
    }
    let (numbers, bytes) = bytes.split_first_chunk::<40>()?;
    let [in_use, waiting, poll_after, token, mute] = <[_; 5]>::try_from(numbers.as_chunks().0)
        .ok()?
        .map(f64::from_le_bytes);
    let token = whole(token)?;
    let [release, renew, acquire, tries] = counts;
    let (released, bytes) = bytes.split_at_checked(release)?;
    let (renewed, bytes) = bytes.split_at_checked(renew)?;
    let (acquired, bytes) = bytes.split_at_checked(acquire)?;
    let (tried, grants) = bytes.split_at_checked(tries)?;
    let states = |letters: &[u8]| -> Option<Vec<TicketState>> {
        letters.iter().map(|letter| state(*letter, token)).collect()
    };
    let (grants, []) = grants.as_chunks::<16>() else {
        return None;
    };
    let granted = grants.iter().map(|grant| {
        let [ticket, token] = <[_; 2]>::try_from(grant.as_chunks().0)
            .ok()?
            .map(f64::from_le_bytes);
        Some(Grant::new(whole(ticket)?, whole(token)?))
    });
    Some(Answer {
        was_there: released.iter().map(|was| *was != b'0').collect(),
        mute: mute != 0.0,
        reply: Reply::Done(Outcome {
            released: released.iter().map(|was| *was == b'1').collect(),
            renewed: states(renewed)?,
            acquired: states(acquired)?,
            tried: states(tried)?,
            granted: granted.collect::<Option<_>>()?,
            in_use: whole(in_use)?,
            queued: whole(waiting)?,
            poll_after: whole(poll_after).map(Duration::from_millis),
        }),
    })
}

/// A number of the script that counts something.
fn whole(number: f64) -> Option<u64> {
    (number >= 0.0 && number.fract() == 0.0).then_some(number as u64)
}

/// Reads an answer of `inspect.lua`. `None` if it makes no sense.
pub(super) fn inspection(value: Value) -> Option<Inspection> {
    let Value::Array(items) = value else {
        return None;
    };
    let [in_use, waiting, holders, waiters] = <[Value; 4]>::try_from(items).ok()?;
    Some(Inspection {
        holders: tickets(holders)?,
        waiters: tickets(waiters)?,
        in_use: unsigned(in_use)?,
        waiting: unsigned(waiting)?,
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

fn state(letter: u8, token: u64) -> Option<TicketState> {
    match letter {
        b'h' => Some(TicketState::Held { token }),
        b'w' => Some(TicketState::Queued),
        b'r' => Some(TicketState::Refused),
        b'g' => Some(TicketState::Gone),
        _ => None,
    }
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
