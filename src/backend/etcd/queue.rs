//! The tickets of one name in order, as a listing of its keys shows them. Pure.
//!
//! Each ticket is a key, and the order is that of the revisions that created the keys. Every node that reads the same keys
//! derives the same holders: tickets hold from the front of the queue, each while fewer tickets than its own node's limit are
//! before it. The first ticket that has reached its limit blocks all behind it.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// All tickets of a name, as of a revision.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct TicketQueue {
    revision: i64,
    /// By the revision that created each.
    entries: BTreeMap<i64, Entry>,
    by_ticket: HashMap<String, i64>,
}

/// One ticket in the queue.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    /// `<node>-<number>`.
    pub(super) ticket: String,
    /// The limit of the ticket's node.
    pub(super) limit: u32,
    /// How long the ticket outlives its node's last heartbeat, in milliseconds.
    pub(super) lease: u64,
    /// The etcd lease that the key is attached to.
    pub(super) etcd_lease: i64,
}

// === impl TicketQueue ===

impl TicketQueue {
    pub(super) fn new(revision: i64, entries: impl IntoIterator<Item = (i64, Entry)>) -> Self {
        let mut queue = Self {
            revision,
            ..Self::default()
        };
        for (created, entry) in entries {
            queue.put(created, entry);
        }
        queue
    }

    pub(super) fn revision(&self) -> i64 {
        self.revision
    }

    /// Notes that every change up to this revision is included.
    pub(super) fn advance(&mut self, revision: i64) {
        self.revision = self.revision.max(revision);
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn put(&mut self, created: i64, entry: Entry) {
        if let Some(former) = self.by_ticket.insert(entry.ticket.clone(), created)
            && former != created
        {
            self.entries.remove(&former);
        }
        self.entries.insert(created, entry);
    }

    pub(super) fn remove(&mut self, ticket: &str) {
        if let Some(created) = self.by_ticket.remove(ticket) {
            self.entries.remove(&created);
        }
    }

    /// Returns the revision that created a ticket, if it is there.
    pub(super) fn created(&self, ticket: &str) -> Option<i64> {
        self.by_ticket.get(ticket).copied()
    }

    /// Returns the revision that created a ticket and its limit, if it is there.
    pub(super) fn created_and_limit(&self, ticket: &str) -> Option<(i64, u32)> {
        let created = self.created(ticket)?;
        Some((created, self.entries.get(&created)?.limit))
    }

    /// Returns how many tickets hold: those at the front.
    pub(super) fn in_use(&self) -> usize {
        let entries = self.entries.values().enumerate();
        let holds = |(at, entry): &(usize, &Entry)| {
            u32::try_from(*at).is_ok_and(|before| before < entry.limit)
        };
        entries.take_while(holds).count()
    }

    /// Returns the shortest lease of all tickets.
    pub(super) fn shortest_lease(&self) -> Option<Duration> {
        let leases = self.entries.values().map(|entry| entry.lease);
        leases.min().map(Duration::from_millis)
    }

    /// Returns the tickets that hold, oldest first.
    pub(super) fn holders(&self) -> impl Iterator<Item = (i64, &Entry)> {
        self.all().take(self.in_use())
    }

    /// Returns the queued tickets, oldest first.
    pub(super) fn queued(&self) -> impl Iterator<Item = (i64, &Entry)> {
        self.all().skip(self.in_use())
    }

    fn all(&self) -> impl Iterator<Item = (i64, &Entry)> {
        self.entries
            .iter()
            .map(|(created, entry)| (*created, entry))
    }

    /// Whether a new ticket with this limit would hold at once.
    pub(super) fn has_room(&self, limit: u32) -> bool {
        let in_use = self.in_use();
        in_use == self.len() && u32::try_from(in_use).is_ok_and(|in_use| in_use < limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(ticket: &str, limit: u32) -> Entry {
        Entry {
            ticket: ticket.to_owned(),
            limit,
            lease: 1000,
            etcd_lease: 1,
        }
    }

    fn queue(limits: &[u32]) -> TicketQueue {
        let entries = limits
            .iter()
            .zip(1..)
            .map(|(limit, at)| (at, entry(&format!("n-{at}"), *limit)));
        TicketQueue::new(100, entries)
    }

    fn holders(queue: &TicketQueue) -> Vec<i64> {
        queue.holders().map(|(created, _)| created).collect()
    }

    #[test]
    fn as_many_tickets_as_the_limit_hold() {
        assert_eq!(holders(&queue(&[])), [0; 0]);
        assert_eq!(holders(&queue(&[2, 2, 2])), [1, 2]);
        assert!(queue(&[3, 3]).has_room(3));
        assert!(!queue(&[3, 3]).has_room(2));
    }

    #[test]
    fn a_head_at_its_limit_blocks_those_behind() {
        let mut queue = queue(&[3, 1, 3]);
        assert_eq!(holders(&queue), [1]);
        assert!(!queue.has_room(9));
        queue.remove("n-1");
        assert_eq!(holders(&queue), [2, 3]);
    }

    #[test]
    fn a_holder_keeps_its_permit_when_others_arrive_or_leave_or_raise_their_limits() {
        let mut queue = queue(&[2, 4, 1, 4]);
        assert_eq!(holders(&queue), [1, 2]);
        queue.put(3, entry("n-3", 3));
        assert_eq!(holders(&queue), [1, 2, 3, 4]);
        queue.put(9, entry("n-9", 1));
        queue.remove("n-2");
        assert_eq!(holders(&queue), [1, 3, 4]);
    }

    #[test]
    fn a_ticket_that_was_created_again_is_at_the_end() {
        let mut queue = queue(&[1, 1]);
        queue.put(7, entry("n-1", 1));
        assert_eq!(holders(&queue), [2]);
        assert_eq!((queue.created("n-1"), queue.len()), (Some(7), 2));
        queue.remove("n-1");
        queue.remove("n-1");
        assert_eq!(queue.len(), 1);
    }
}
