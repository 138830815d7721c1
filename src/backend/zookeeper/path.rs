//! The paths and names of nodes in ZooKeeper, and the data of a ticket's node.

use crate::name::{Node, Queue};
use std::time::Duration;

/// The name of a ticket's node: `<node>-<number>-<sequence>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// The whole name, without the path.
    pub(super) name: String,
    /// The length of `<node>-<number>`.
    ticket: usize,
    pub(super) sequence: i32,
}

/// The data of a ticket's node. Every process reads it, so that all agree on which tickets hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Terms {
    pub(super) limit: u32,
    pub(super) lease: Duration,
}

/// Returns the path of the container of a name's tickets.
pub(super) fn parent(base: &str, queue: &Queue) -> String {
    format!("{base}/{}:{}", queue.kind().as_str(), queue.name())
}

/// Returns the path with which a ticket's node is created. The server appends the sequence.
pub(super) fn stem(parent: &str, node: &Node, number: u64) -> String {
    format!("{parent}/{}-", node.ticket(number))
}

// === impl Entry ===

impl Entry {
    /// Parses the name of a node. `None` if it is not a ticket.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let (rest, digits) = name.rsplit_once('-')?;
        // The sequence is a signed 32-bit number, which the server writes with at least ten characters.
        let (ticket, sequence) = match rest.strip_suffix('-') {
            Some(ticket) => (ticket, format!("-{digits}")),
            None => (rest, digits.to_owned()),
        };
        let all_digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if sequence.len() < 10 || !all_digits(digits) {
            return None;
        }
        let (node, number) = ticket.rsplit_once('-')?;
        if node.is_empty() || !all_digits(number) {
            return None;
        }
        Some(Self {
            ticket: ticket.len(),
            sequence: sequence.parse().ok()?,
            name: name.to_owned(),
        })
    }

    /// Returns `<node>-<number>`.
    pub(super) fn ticket(&self) -> &str {
        self.name.get(..self.ticket).unwrap_or_default()
    }

    pub(super) fn node(&self) -> &str {
        let node = self.ticket().rsplit_once('-');
        node.map(|(node, _)| node).unwrap_or_default()
    }

    /// Returns the ticket's number, if it is one of this node.
    pub(super) fn number_of(&self, node: &Node) -> Option<u64> {
        if self.node() != node.as_str() {
            return None;
        }
        let number = self.ticket().get(node.as_str().len() + 1..)?.parse().ok()?;
        (node.ticket(number) == self.ticket()).then_some(number)
    }
}

// === impl Terms ===

impl Terms {
    pub(super) fn to_data(self) -> Vec<u8> {
        format!("{} {}", self.limit, self.lease.as_millis()).into_bytes()
    }

    /// Parses the data of a node. `None` if it is not a ticket's.
    pub(super) fn parse(data: &[u8]) -> Option<Self> {
        let (limit, lease) = std::str::from_utf8(data).ok()?.split_once(' ')?;
        Some(Self {
            limit: limit.parse().ok()?,
            lease: Duration::from_millis(lease.parse().ok()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_consists_of_a_ticket_and_a_sequence() {
        let node = Node::of_this_process();
        for (sequence, text) in [
            (0, "0000000000"),
            (i32::MAX, "2147483647"),
            (i32::MIN, "-2147483648"),
            (-1, "-000000001"),
        ] {
            let name = format!("{}-{text}", node.ticket(7));
            let entry = Entry::parse(&name).expect("a ticket");
            assert_eq!(entry.sequence, sequence);
            assert_eq!(entry.ticket(), node.ticket(7));
            assert_eq!(entry.node(), node.as_str());
            assert_eq!(entry.number_of(&node), Some(7));
            assert_eq!(entry.number_of(&Node::of_this_process()), None);
        }
    }

    #[test]
    fn names_of_other_programs_are_not_tickets() {
        for name in [
            "",
            "-",
            "a",
            "lock-0000000001",
            "a-1-1",
            "a-1-",
            "-1-0000000001",
            "a-x-0000000001",
            "a-1-99999999999",
            "a-1-00000000x1",
            "ü-0000000001",
        ] {
            assert_eq!(Entry::parse(name), None, "{name:?}");
        }
    }

    #[test]
    fn terms_are_parsed_as_they_were_written() {
        let terms = Terms {
            limit: u32::MAX,
            lease: Duration::from_millis(10_500),
        };
        assert_eq!(Terms::parse(&terms.to_data()), Some(terms));
        for other in [&b""[..], b"1", b"x 1", b"1 x", b"\xff 1"] {
            assert_eq!(Terms::parse(other), None);
        }
    }
}
