//! Reads the values that commands return.

use redis::{Cmd, Value};
use std::time::Duration;

/// Whole milliseconds, at least one.
pub(in crate::backend) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1)
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

pub(in crate::backend) fn text(value: Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text),
        _ => None,
    }
}

/// Returns one field of a map, as RESP3 or RESP2 encodes it.
pub(in crate::backend) fn field(value: &Value, name: &str) -> Option<String> {
    let has_name = |key: &Value| text(key.clone()).is_some_and(|key| key == name);
    match value {
        Value::Map(pairs) => pairs
            .iter()
            .find(|(key, _)| has_name(key))
            .and_then(|(_, value)| text(value.clone())),
        Value::Array(items) => {
            let (pairs, _) = items.as_chunks();
            let found = pairs.iter().find(|[key, _]| has_name(key));
            found.and_then(|[_, value]| text(value.clone()))
        }
        _ => None,
    }
}

/// Returns one field of a reply to INFO.
pub(super) fn info_field(value: &Value, name: &str) -> Option<String> {
    text(value.clone())?.lines().find_map(|line| {
        let value = line.strip_prefix(name)?.strip_prefix(':')?;
        Some(value.trim().to_owned())
    })
}

/// Returns the name of a command.
pub(in crate::backend) fn command_name(command: &Cmd) -> String {
    match command.args_iter().next() {
        Some(redis::Arg::Simple(name)) => String::from_utf8_lossy(name).into_owned(),
        _ => String::new(),
    }
}
