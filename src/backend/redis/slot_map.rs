//! The slots of a cluster, as one node sees them, and the redirections that correct it.

use super::value::{int, text};
use redis::{RedisError, ServerErrorKind, Value};
use std::collections::BTreeSet;

/// Host and port of a node.
pub(super) type Address = (String, u16);

/// Which node has which slots.
#[derive(Debug, Default, PartialEq)]
pub(super) struct SlotMap {
    /// First and last slot, and the master's address.
    pub(super) ranges: Vec<(u16, u16, Address)>,
    pub(super) replicas: Vec<Address>,
}

/// Why a node of a cluster did not execute a command.
pub(super) enum Redirection {
    /// The slot is at another node.
    Moved(Address),
    /// The key may be at another node already: send this command there.
    Ask(Address),
    /// The node will execute it later.
    Wait,
}

// === impl SlotMap ===

impl SlotMap {
    /// Decodes a reply to CLUSTER SLOTS. A node that does not know its own host means the one that it was sent to.
    pub(super) fn decode(value: Value, sent_to: &str) -> Option<Self> {
        let Value::Array(ranges) = value else {
            return None;
        };
        let mut map = Self::default();
        for range in ranges {
            let Value::Array(items) = range else {
                return None;
            };
            let mut items = items.into_iter();
            let first = int(items.next()?)?.try_into().ok()?;
            let last = int(items.next()?)?.try_into().ok()?;
            let mut nodes = items.map(|node| address(node, sent_to));
            map.ranges.push((first, last, nodes.next()??));
            map.replicas.extend(nodes.flatten());
        }
        Some(map)
    }

    pub(super) fn owner(&self, slot: u16) -> Option<&Address> {
        let mut ranges = self.ranges.iter();
        let range = ranges.find(|(first, last, _)| (*first..=*last).contains(&slot));
        range.map(|(_, _, owner)| owner)
    }

    pub(super) fn masters(&self) -> BTreeSet<Address> {
        let masters = self.ranges.iter().map(|(_, _, master)| master.clone());
        masters.collect()
    }

    /// How many slots have a node.
    pub(super) fn covered(&self) -> u32 {
        let sizes = self.ranges.iter();
        let sizes = sizes.map(|(first, last, _)| u32::from(*last) + 1 - u32::from(*first));
        sizes.sum()
    }
}

fn address(node: Value, sent_to: &str) -> Option<Address> {
    let Value::Array(node) = node else {
        return None;
    };
    let mut node = node.into_iter();
    let host = match node.next()? {
        Value::Nil => String::new(),
        host => text(host)?,
    };
    let port = int(node.next()?)?.try_into().ok()?;
    let host = match host.as_str() {
        "" | "?" => sent_to.to_owned(),
        _ => host,
    };
    Some((host, port))
}

// === impl Redirection ===

impl Redirection {
    /// `None` if the error has nothing to do with the cluster.
    pub(super) fn of(error: &RedisError) -> Option<Self> {
        use redis::ErrorKind::Server;
        let address = || {
            let (host, port) = error.redirect_node()?.0.rsplit_once(':')?;
            let host = host.trim_start_matches('[').trim_end_matches(']');
            let known = !host.is_empty() && host != "?";
            known.then(|| Some((host.to_owned(), port.parse().ok()?)))?
        };
        match error.kind() {
            Server(ServerErrorKind::Moved) => Some(address().map_or(Self::Wait, Self::Moved)),
            Server(ServerErrorKind::Ask) => Some(address().map_or(Self::Wait, Self::Ask)),
            Server(
                ServerErrorKind::TryAgain
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::MasterDown
                | ServerErrorKind::BusyLoading
                | ServerErrorKind::ReadOnly,
            ) => Some(Self::Wait),
            _ => None,
        }
    }
}
