//! The keys and values in etcd.

use super::queue::{Entry, TicketQueue};
use crate::name::{Node, Queue};
use etcd_client::{GetOptions, GetResponse, KeyValue};
use std::time::Duration;

/// Returns what the keys of all tickets of a name start with. The ticket follows.
pub(super) fn queue_prefix(prefix: &str, queue: &Queue) -> String {
    format!("{prefix}/{}/{}/", queue.kind().as_str(), queue.name())
}

/// Returns the key of a session. Changing it fences off every write of that session that is still in flight.
pub(super) fn session_key(prefix: &str, node: &Node) -> String {
    format!("{prefix}/session/{}", node.as_str())
}

/// Returns the value of a ticket's key.
pub(super) fn ticket_value(limit: u32, lease: Duration) -> String {
    format!("{limit} {}", lease.as_millis())
}

/// Returns the options to read all keys with a prefix.
pub(super) fn with_prefix() -> Option<GetOptions> {
    Some(GetOptions::new().with_prefix())
}

/// Returns the ticket that a key is for. `None` for a key that is no ticket of the name with this prefix.
pub(super) fn parse_ticket<'a>(key: &'a [u8], prefix: &str) -> Option<&'a str> {
    let ticket = std::str::from_utf8(key).ok()?.strip_prefix(prefix)?;
    let (node, number) = ticket.rsplit_once('-')?;
    let is_ticket = !node.is_empty() && !ticket.contains('/') && number.parse::<u64>().is_ok();
    is_ticket.then_some(ticket)
}

/// Returns the entry of a ticket, and the revision that created it. `None` for keys that other programs have put there.
pub(super) fn parse_entry(kv: &KeyValue, prefix: &str) -> Option<(i64, Entry)> {
    let ticket = parse_ticket(kv.key(), prefix)?;
    let (limit, lease) = kv.value_str().ok()?.split_once(' ')?;
    let entry = Entry {
        ticket: ticket.to_owned(),
        limit: limit.parse().ok()?,
        lease: lease.parse().ok()?,
        etcd_lease: kv.lease(),
    };
    Some((kv.create_revision(), entry))
}

/// Returns the queue that a listing shows, as of a revision.
pub(super) fn parse_listing(listing: &GetResponse, revision: i64, prefix: &str) -> TicketQueue {
    let entries = listing
        .kvs()
        .iter()
        .filter_map(|kv| parse_entry(kv, prefix));
    TicketQueue::new(revision, entries)
}

/// Returns the number of a ticket, if it is one of this node.
pub(super) fn own_number(ticket: &str, node: &Node) -> Option<u64> {
    let number = ticket.strip_prefix(node.as_str())?.strip_prefix('-')?;
    let number: u64 = number.parse().ok()?;
    (node.ticket(number) == ticket).then_some(number)
}

/// Returns the name and the number of a ticket's key, if it is one of this node.
pub(super) fn own_ticket(key: &[u8], prefix: &str, node: &Node) -> Option<(Queue, u64)> {
    let key = std::str::from_utf8(key).ok()?;
    let (kind, rest) = key
        .strip_prefix(prefix)?
        .strip_prefix('/')?
        .split_once('/')?;
    let (name, ticket) = rest.split_once('/')?;
    Some((Queue::from_encoded(kind, name)?, own_number(ticket, node)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_are_no_tickets_are_ignored() {
        let ticket = |key: &str| parse_ticket(key.as_bytes(), "p/limit/a/").map(str::to_owned);
        assert_eq!(ticket("p/limit/a/n-1-ff-7").as_deref(), Some("n-1-ff-7"));
        for other in [
            "p/limit/a/",
            "p/limit/a/n",
            "p/limit/a/b/n-7",
            "p/limit/ab/n-7",
            "p/limit/a/-7",
        ] {
            assert_eq!(ticket(other), None, "{other}");
        }
    }

    #[test]
    fn a_number_has_one_written_form() {
        let node = Node::of_this_process();
        assert_eq!(own_number(&node.ticket(7), &node), Some(7));
        assert_eq!(own_number(&format!("{}-07", node.as_str()), &node), None);
        assert_eq!(own_number(&format!("x{}", node.ticket(7)), &node), None);
    }
}
