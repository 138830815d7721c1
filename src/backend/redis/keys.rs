//! Keys and channels. `script/layout.lua` describes what they store; a test compares both.

use crate::error::Error;
use crate::name::Queue;
use redis::{Cmd, RedisWrite};
use std::io::Write;
use std::sync::Arc;

/// The prefix of every key unless another one is set.
pub(in crate::backend) const DEFAULT_PREFIX: &str = "permit";
const MAX_PREFIX_BYTES: usize = 64;

/// The keys of a name in the general form, by what follows the hash tag: permits, queue, meta.
pub(super) const GENERAL_SUFFIXES: [&str; 3] = ["", ":queue", ":meta"];
/// The key of a name in the single-holder form.
pub(super) const SINGLE_SUFFIX: &str = ":single";
/// The guard of a node: prefix, this, node.
pub(super) const GUARD_INFIX: &str = ":guard:";
/// The highest token of deleted records: prefix, this.
pub(super) const TOKEN_SUFFIX: &str = ":token";
/// The channel that grants are pushed to: prefix, this, node.
pub(super) const PUSH_INFIX: &str = ":push:";

/// Which forms a name may have.
///
/// While a slot moves to another server of a cluster, the server executes a script only if all its keys are there. So a name
/// in a cluster always has the three keys of the general form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Forms {
    GeneralOnly,
    WithSingleHolder,
}

/// The keys of a name, all in one hash slot.
pub(super) struct Keys {
    pub(super) permits: String,
    #[cfg_attr(not(all(test, feature = "redis-cluster")), allow(dead_code))]
    pub(super) queue: String,
    pub(super) meta: String,
    pub(super) single_holder: String,
}

/// Returns a prefix that can precede every key.
pub(in crate::backend) fn checked_prefix(prefix: String) -> Result<Arc<str>, Error> {
    let fits = |c: char| !c.is_whitespace() && !c.is_control() && !"{}*?[]\\^".contains(c);
    if prefix.is_empty() || prefix.len() > MAX_PREFIX_BYTES || !prefix.chars().all(fits) {
        return Err(Error::config(format!(
            "a prefix has 1 to {MAX_PREFIX_BYTES} bytes and no braces, blanks, control characters or any of *?[]\\^"
        )));
    }
    Ok(prefix.into())
}

/// Returns the channel that grants for a node are pushed to.
pub(super) fn push_channel(prefix: &str, node: &str) -> String {
    format!("{prefix}{PUSH_INFIX}{node}")
}

/// Adds the keys of a batch, and their count before them.
pub(super) fn add_keys<'a>(
    command: &mut Cmd,
    prefix: &str,
    forms: Forms,
    node: &str,
    queues: impl IntoIterator<Item = &'a Queue, IntoIter: ExactSizeIterator + Clone>,
) {
    let queues = queues.into_iter();
    let single_holder = forms == Forms::WithSingleHolder;
    let per_name = GENERAL_SUFFIXES.len() + usize::from(single_holder);
    let shared = if single_holder { 2 } else { 0 };
    command.arg(per_name * queues.len() + shared);
    if single_holder {
        for queue in queues.clone() {
            add_key(command, prefix, queue, SINGLE_SUFFIX);
        }
        add_parts(command, &[prefix, GUARD_INFIX, node]);
        add_parts(command, &[prefix, TOKEN_SUFFIX]);
    }
    for queue in queues {
        for suffix in GENERAL_SUFFIXES {
            add_key(command, prefix, queue, suffix);
        }
    }
}

/// Adds a key of a name.
pub(super) fn add_key(command: &mut Cmd, prefix: &str, queue: &Queue, suffix: &str) {
    add_parts(command, &key_parts(prefix, queue, suffix));
}

fn add_parts(command: &mut Cmd, parts: &[&str]) {
    let mut key = command.writer_for_next_arg();
    for part in parts {
        // Appending to an argument cannot fail.
        let _ = key.write_all(part.as_bytes());
    }
}

fn key_parts<'a>(prefix: &'a str, queue: &'a Queue, suffix: &'a str) -> [&'a str; 7] {
    let kind = queue.kind().as_str();
    [prefix, ":", kind, ":{", queue.name(), "}", suffix]
}

// === impl Keys ===

impl Keys {
    pub(super) fn new(prefix: &str, queue: &Queue) -> Self {
        let key = |suffix| key_parts(prefix, queue, suffix).concat();
        let [permits, queue, meta] = GENERAL_SUFFIXES.map(key);
        Self {
            permits,
            queue,
            meta,
            single_holder: key(SINGLE_SUFFIX),
        }
    }

    #[cfg(all(test, feature = "redis-cluster"))]
    pub(super) fn all(&self) -> [&str; 4] {
        [&self.permits, &self.queue, &self.meta, &self.single_holder]
    }
}
