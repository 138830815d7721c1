//! What this process knows about one name: its own tickets, and the terms of other nodes' tickets. Pure.

use super::path::{Entry, Terms};
use super::queue::TicketQueue;
use crate::backend::Call;
use crate::name::Node;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// How many nodes are read at a time.
const MAX_READ: usize = 16;

#[derive(Clone, Debug)]
pub(super) struct NameState {
    /// The number of the latest call. Earlier calls send nothing any more.
    pub(super) number: u64,
    pub(super) terms: Terms,
    /// One lease after the last heartbeat about this name.
    pub(super) until: Instant,
    pub(super) tickets: BTreeMap<u64, OwnTicket>,
    /// Some node was created. It may appear late, and has to be swept before the name is removed.
    pub(super) has_created: bool,
    /// The data of other processes' nodes. `None`: the node is not a ticket.
    pub(super) other_terms: HashMap<String, Option<Terms>>,
    /// A call is in flight. It collects grants itself.
    pub(super) running: bool,
    /// The queue changed meanwhile.
    pub(super) changed_while_running: bool,
    /// A watch follows the queue.
    pub(super) is_watched: bool,
    /// Wakes that watch.
    pub(super) wake_watch: Arc<Notify>,
}

/// A ticket of this process, from before its node is created until the node is seen to be gone.
#[derive(Clone, Debug)]
pub(super) struct OwnTicket {
    /// Its node. `None` while the answer to the creation is missing: the node may exist or not.
    pub(super) node: Option<CreatedNode>,
    pub(super) limit: u32,
    /// One lease after the last call that named it.
    pub(super) until: Instant,
    /// It was seen to hold.
    pub(super) granted: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CreatedNode {
    pub(super) name: String,
    pub(super) token: u64,
}

/// What is known about the limit of an entry.
enum KnownLimit {
    Limit(u32),
    NotATicket,
    Unknown,
}

// === impl NameState ===

impl NameState {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            number: 0,
            terms: Terms {
                limit: 1,
                lease: Duration::ZERO,
            },
            until: now,
            tickets: BTreeMap::new(),
            has_created: false,
            other_terms: HashMap::new(),
            running: false,
            changed_while_running: false,
            is_watched: false,
            wake_watch: Arc::default(),
        }
    }

    /// Begins a call. Returns `false` if a later call began before.
    pub(super) fn begin(&mut self, call: &Call, now: Instant) -> bool {
        if call.number < self.number {
            return false;
        }
        self.number = call.number;
        self.terms.lease = call.lease;
        self.until = self.until.max(now + call.lease);
        for number in call
            .renew
            .iter()
            .chain(&call.acquire)
            .chain(&call.try_acquire)
        {
            if let Some(ticket) = self.tickets.get_mut(number) {
                ticket.until = ticket.until.max(now + call.lease);
            }
        }
        self.running = true;
        true
    }

    /// Ends a call. The watch reads the changes that it left to the call.
    pub(super) fn end(&mut self) {
        self.running = false;
        if std::mem::take(&mut self.changed_while_running) {
            self.wake_watch.notify_one();
        }
    }

    /// There was no call for twice the lease. A call that was given up meanwhile still finds its number before that.
    pub(super) fn is_idle(&self, now: Instant) -> bool {
        self.tickets.is_empty() && !self.running && self.until + self.terms.lease <= now
    }

    /// Some ticket of this process is queued.
    pub(super) fn has_queued(&self) -> bool {
        self.tickets.values().any(|ticket| !ticket.granted)
    }

    /// Returns when a ticket expires without another heartbeat.
    pub(super) fn expiry(&self, ticket: &OwnTicket) -> Instant {
        match ticket.granted {
            true => ticket.until,
            false => ticket.until.max(self.until),
        }
    }

    /// Whether the queue has to be read before this call changes it.
    pub(super) fn has_to_read_first(&self, call: &Call) -> bool {
        let is_released = |number: &u64| call.release.contains(number);
        let is_unsure = |number: &u64| self.tickets.get(number).is_some_and(|t| !t.granted);
        call.release.iter().any(is_unsure)
            || (!call.release.is_empty() || call.limit != self.terms.limit)
                && (self.tickets.iter()).any(|(number, t)| !t.granted && !is_released(number))
    }

    /// For this node's tickets this is the newest limit, which may still be on the way to the node.
    fn limit(&self, entry: &Entry, own: &HashMap<&str, u32>) -> KnownLimit {
        if let Some(limit) = own.get(entry.name.as_str()) {
            return KnownLimit::Limit(*limit);
        }
        match self.other_terms.get(&entry.name) {
            Some(Some(terms)) => KnownLimit::Limit(terms.limit),
            Some(None) => KnownLimit::NotATicket,
            None => KnownLimit::Unknown,
        }
    }

    /// Determines which tickets hold: those at the front, each while fewer tickets than its own limit are before it. Fails with
    /// the names of the nodes that have to be read first.
    pub(super) fn evaluate(&self, entries: &[Entry]) -> Result<TicketQueue, Vec<String>> {
        let own = self.own_limits();
        let (mut tickets, mut missing, mut in_use, mut open) = (Vec::new(), Vec::new(), 0, true);
        for entry in entries {
            match self.limit(entry, &own) {
                KnownLimit::NotATicket => continue,
                _ if !open => {}
                KnownLimit::Limit(limit) if missing.is_empty() => {
                    open = u64::try_from(in_use).is_ok_and(|in_use| in_use < u64::from(limit));
                    in_use += usize::from(open);
                }
                KnownLimit::Limit(_) => {}
                KnownLimit::Unknown => missing.push(entry.name.clone()),
            }
            if missing.len() >= MAX_READ {
                break;
            }
            tickets.push(entry.clone());
        }
        if !missing.is_empty() {
            return Err(missing);
        }
        Ok(TicketQueue {
            entries: tickets,
            in_use,
        })
    }

    /// Returns the node of another process that blocks one of this node's tickets which has room itself: its limit may have been raised
    /// since it was read.
    pub(super) fn blocking_node(&self, queue: &TicketQueue) -> Option<String> {
        let own = self.own_limits();
        let blocking = queue.entries.get(queue.in_use)?;
        if own.contains_key(blocking.name.as_str()) {
            return None;
        }
        let mut behind = queue.entries.iter().enumerate().skip(queue.in_use + 1);
        let has_room = behind.any(|(at, entry)| {
            let limit = own.get(entry.name.as_str());
            limit.is_some_and(|limit| u32::try_from(at).is_ok_and(|at| at < *limit))
        });
        has_room.then(|| blocking.name.clone())
    }

    fn own_limits(&self) -> HashMap<&str, u32> {
        (self.tickets.values())
            .filter_map(|ticket| Some((ticket.node.as_ref()?.name.as_str(), ticket.limit)))
            .collect()
    }

    /// Compares the entries with what is known. Forgets the terms of nodes that are gone. Returns the nodes of this process that
    /// belong to a ticket without a known node, and those that belong to no ticket.
    pub(super) fn compare(
        &mut self,
        node: &Node,
        entries: &[Entry],
    ) -> (Vec<(u64, String)>, Vec<String>) {
        let present: HashSet<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
        (self.other_terms).retain(|name, _| present.contains(name.as_str()));
        let (mut adopt, mut unknown) = (Vec::new(), Vec::new());
        for entry in entries {
            let Some(number) = entry.number_of(node) else {
                continue;
            };
            match self.tickets.get(&number) {
                Some(OwnTicket { node: None, .. }) => adopt.push((number, entry.name.clone())),
                Some(OwnTicket {
                    node: Some(created),
                    ..
                }) if created.name == entry.name => {}
                _ => unknown.push(entry.name.clone()),
            }
        }
        (adopt, unknown)
    }

    /// Returns this node's tickets that hold, oldest first.
    pub(super) fn holding(&self, node: &Node, queue: &TicketQueue) -> Vec<u64> {
        let holders = queue.entries.iter().take(queue.in_use);
        holders
            .filter_map(|entry| {
                let number = entry.number_of(node)?;
                let created = self.tickets.get(&number)?.node.as_ref()?;
                (created.name == entry.name).then_some(number)
            })
            .collect()
    }

    /// Marks this node's tickets that hold. Returns those that hold for the first time, with their tokens.
    pub(super) fn grant(&mut self, node: &Node, queue: &TicketQueue) -> Vec<(u64, u64)> {
        let (holding, until) = (self.holding(node, queue), self.until);
        let mut granted = Vec::new();
        for number in holding {
            if let Some(ticket) = self.tickets.get_mut(&number)
                && !std::mem::replace(&mut ticket.granted, true)
            {
                ticket.until = ticket.until.max(until);
                granted.extend(ticket.node.as_ref().map(|node| (number, node.token)));
            }
        }
        granted
    }
}

// === impl CreatedNode ===

impl CreatedNode {
    /// `created` is the id of the transaction that created the node. It is the fencing token, since it always increases.
    pub(super) fn new(name: String, created: i64) -> Self {
        Self {
            name,
            token: u64::try_from(created).unwrap_or(0),
        }
    }
}
