//! The tickets of one name in order. Pure.

use super::path::Entry;

/// All tickets of a name, as of one listing.
#[derive(Clone, Debug, Default)]
pub(super) struct TicketQueue {
    pub(super) entries: Vec<Entry>,
    /// How many hold: those at the front.
    pub(super) in_use: usize,
}

/// Returns the tickets among the names of nodes, oldest first.
///
/// The sequence of ZooKeeper wraps around, so that no number is the lowest. The order is that of the distances, which are always
/// less than half of the range.
pub(super) fn sorted_entries(names: &[String]) -> Vec<Entry> {
    let mut entries: Vec<Entry> = names.iter().filter_map(|name| Entry::parse(name)).collect();
    if let Some(base) = entries.first().map(|entry| entry.sequence) {
        entries.sort_by_key(|entry| entry.sequence.wrapping_sub(base));
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_continues_when_the_sequence_wraps_around() {
        let texts = ["-2147483648", "2147483646", "-2147483647", "2147483647"];
        let names: Vec<String> = (1..)
            .zip(texts)
            .map(|(n, s)| format!("a-{n}-{s}"))
            .collect();
        let entries = sorted_entries(&names);
        let tickets: Vec<&str> = entries.iter().map(Entry::ticket).collect();
        assert_eq!(tickets, ["a-2", "a-4", "a-1", "a-3"]);
    }
}
