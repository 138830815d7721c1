//! The line of one name as a listing shows it: pure.
//!
//! A ticket is a key, and its place is the revision that created it. Whoever reads the same keys comes to the same
//! answer: the front of the line holds, as far as each ticket's own limit lets it, and the first that its limit keeps
//! out holds back all behind it.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// All tickets of a name, as of a revision.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Line {
    revision: i64,
    /// By the revision that created each.
    places: BTreeMap<i64, Place>,
    by_ticket: HashMap<String, i64>,
}

/// One ticket's place.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Place {
    /// `<node>-<number>`.
    pub(super) ticket: String,
    /// Its node's limit, as far as it matters for this ticket.
    pub(super) limit: u32,
    /// How long it outlives its node's last word, in milliseconds.
    pub(super) lease: u64,
    /// The lease that its key is bound to.
    pub(super) bound_to: i64,
}

// === impl Line ===

impl Line {
    pub(super) fn new(revision: i64, places: impl IntoIterator<Item = (i64, Place)>) -> Self {
        let mut line = Self {
            revision,
            ..Self::default()
        };
        for (created, place) in places {
            line.put(created, place);
        }
        line
    }

    pub(super) fn revision(&self) -> i64 {
        self.revision
    }

    /// Everything up to this revision is in.
    pub(super) fn advance(&mut self, revision: i64) {
        self.revision = self.revision.max(revision);
    }

    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn put(&mut self, created: i64, place: Place) {
        if let Some(former) = self.by_ticket.insert(place.ticket.clone(), created)
            && former != created
        {
            self.places.remove(&former);
        }
        self.places.insert(created, place);
    }

    pub(super) fn remove(&mut self, ticket: &str) {
        if let Some(created) = self.by_ticket.remove(ticket) {
            self.places.remove(&created);
        }
    }

    /// The revision that created a ticket, if it is there.
    pub(super) fn created(&self, ticket: &str) -> Option<i64> {
        self.by_ticket.get(ticket).copied()
    }

    /// With its limit.
    pub(super) fn full(&self, ticket: &str) -> Option<(i64, u32)> {
        let created = self.created(ticket)?;
        Some((created, self.places.get(&created)?.limit))
    }

    /// How many hold: the front of the line.
    pub(super) fn in_use(&self) -> usize {
        let places = self.places.values().enumerate();
        let holds = |(at, place): &(usize, &Place)| {
            u32::try_from(*at).is_ok_and(|before| before < place.limit)
        };
        places.take_while(holds).count()
    }

    /// The shortest lease of all.
    pub(super) fn shortest_lease(&self) -> Option<Duration> {
        let leases = self.places.values().map(|place| place.lease);
        leases.min().map(Duration::from_millis)
    }

    /// Who holds, oldest first.
    pub(super) fn holders(&self) -> impl Iterator<Item = (i64, &Place)> {
        self.all().take(self.in_use())
    }

    /// Who waits, first in line first.
    pub(super) fn waiters(&self) -> impl Iterator<Item = (i64, &Place)> {
        self.all().skip(self.in_use())
    }

    fn all(&self) -> impl Iterator<Item = (i64, &Place)> {
        self.places.iter().map(|(created, place)| (*created, place))
    }

    /// Whether a ticket of this limit, entered now, would get in.
    pub(super) fn has_room(&self, limit: u32) -> bool {
        let in_use = self.in_use();
        in_use == self.len() && u32::try_from(in_use).is_ok_and(|in_use| in_use < limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(ticket: &str, limit: u32) -> Place {
        Place {
            ticket: ticket.to_owned(),
            limit,
            lease: 1000,
            bound_to: 1,
        }
    }

    fn line(limits: &[u32]) -> Line {
        let places = limits
            .iter()
            .zip(1..)
            .map(|(limit, at)| (at, place(&format!("n-{at}"), *limit)));
        Line::new(100, places)
    }

    fn holders(line: &Line) -> Vec<i64> {
        line.holders().map(|(created, _)| created).collect()
    }

    #[test]
    fn the_first_as_many_as_the_limit_hold() {
        assert_eq!(holders(&line(&[])), [0; 0]);
        assert_eq!(holders(&line(&[2, 2, 2])), [1, 2]);
        assert!(line(&[3, 3]).has_room(3));
        assert!(!line(&[3, 3]).has_room(2));
    }

    #[test]
    fn a_head_at_its_limit_holds_back_those_behind() {
        let mut line = line(&[3, 1, 3]);
        assert_eq!(holders(&line), [1]);
        assert!(!line.has_room(9));
        line.remove("n-1");
        assert_eq!(holders(&line), [2, 3]);
    }

    #[test]
    fn who_holds_goes_on_holding_when_others_come_go_or_raise_their_limits() {
        let mut line = line(&[2, 4, 1, 4]);
        assert_eq!(holders(&line), [1, 2]);
        line.put(3, place("n-3", 3));
        assert_eq!(holders(&line), [1, 2, 3, 4]);
        line.put(9, place("n-9", 1));
        line.remove("n-2");
        assert_eq!(holders(&line), [1, 3, 4]);
    }

    #[test]
    fn a_ticket_that_was_made_anew_has_a_new_place() {
        let mut line = line(&[1, 1]);
        line.put(7, place("n-1", 1));
        assert_eq!(holders(&line), [2]);
        assert_eq!((line.created("n-1"), line.len()), (Some(7), 2));
        line.remove("n-1");
        line.remove("n-1");
        assert_eq!(line.len(), 1);
    }
}
