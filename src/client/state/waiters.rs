//! The waiters of one name in order of arrival, and the queued ticket of each.
//!
//! Pure: no clock, no tasks. `C` is the caller's end of the wait, which is opaque here.

use super::number_map::NumberMap;
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;

/// The waiters of one name.
#[derive(Debug)]
pub(crate) struct Waiters<C> {
    /// By the number of the ticket that each got on arrival, so the first is the oldest.
    by_arrival: NumberMap<Waiter<C>>,
    /// The waiter of a ticket, where it is not the one that arrived with it: a grant makes two waiters swap tickets.
    swapped: FxHashMap<u64, u64>,
    /// No call has named the tickets of waiters from this number on.
    new: u64,
    /// Earlier waiters whose ticket has to be named again.
    again: BTreeSet<u64>,
    /// How many of their tickets surely are queued.
    queued: usize,
}

#[derive(Debug)]
struct Waiter<C> {
    ticket: Ticket,
    since: Instant,
    /// A call that named its ticket was answered.
    answered: bool,
    caller: C,
}

/// The ticket of a waiter.
#[derive(Clone, Copy, Debug)]
struct Ticket {
    number: u64,
    /// `None` until a call has named it: the backend cannot know it before that.
    entry: Option<QueueEntry>,
}

/// A ticket's entry in the backend's queue. Decides what a pushed grant is worth.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueEntry {
    /// When the last answered call that named the ticket was sent, or else the first that named it. Whichever call grants
    /// the ticket, its lease counts from then or later.
    pub(crate) since: Instant,
    /// No call that named it was answered for a lease. It may have been granted, lost and enqueued again in that time: a
    /// push may be about the former grant.
    pub(crate) doubtful: bool,
    /// A reply has confirmed that it is queued.
    pub(crate) queued: bool,
}

/// A removed waiter.
#[derive(Debug)]
pub(crate) struct Removed<C> {
    pub(crate) caller: C,
    /// Its ticket, if the backend may know of it.
    pub(crate) known_ticket: Option<u64>,
    pub(crate) entry: Option<QueueEntry>,
}

// === impl Ticket ===

impl Ticket {
    /// A call names the ticket.
    fn name(&mut self, now: Instant) -> u64 {
        self.entry.get_or_insert(QueueEntry {
            since: now,
            doubtful: false,
            queued: false,
        });
        self.number
    }

    fn is_queued(&self) -> bool {
        self.entry.is_some_and(|entry| entry.queued)
    }
}

// === impl Waiters ===

impl<C> Default for Waiters<C> {
    fn default() -> Self {
        Self {
            by_arrival: NumberMap::default(),
            swapped: FxHashMap::default(),
            new: 0,
            again: BTreeSet::new(),
            queued: 0,
        }
    }
}

impl<C> Waiters<C> {
    pub(crate) fn len(&self) -> usize {
        self.by_arrival.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_arrival.is_empty()
    }

    /// How many of the tickets surely are queued.
    pub(crate) fn queued(&self) -> usize {
        self.queued
    }

    pub(crate) fn has_ticket(&self, ticket: u64) -> bool {
        self.owner(ticket).is_some()
    }

    /// The waiter of this ticket.
    fn owner(&self, ticket: u64) -> Option<u64> {
        if let Some(owner) = self.swapped.get(&ticket) {
            return Some(*owner);
        }
        let waiter = self.by_arrival.get(ticket)?;
        (waiter.ticket.number == ticket).then_some(ticket)
    }

    fn own(&mut self, ticket: u64, owner: u64) {
        if ticket == owner {
            self.swapped.remove(&ticket);
        } else {
            self.swapped.insert(ticket, owner);
        }
    }

    /// When the oldest waiter arrived.
    pub(crate) fn oldest_since(&self) -> Option<Instant> {
        self.by_arrival.first().map(|(_, waiter)| waiter.since)
    }

    /// Adds a waiter. `ticket` is new, and from now on also the waiter's own number.
    pub(crate) fn join(&mut self, ticket: u64, since: Instant, caller: C) {
        let waiter = Waiter {
            ticket: Ticket {
                number: ticket,
                entry: None,
            },
            since,
            answered: false,
            caller,
        };
        self.by_arrival.push(ticket, waiter);
    }

    /// Removes a waiter together with its ticket. `None` if it was removed already.
    pub(crate) fn give_up(&mut self, waiter: u64) -> Option<Removed<C>> {
        let gone = self.by_arrival.remove(waiter)?;
        Some(self.removed(waiter, gone))
    }

    fn removed(&mut self, waiter: u64, gone: Waiter<C>) -> Removed<C> {
        let Waiter { ticket, caller, .. } = gone;
        if ticket.number != waiter {
            self.swapped.remove(&ticket.number);
        }
        self.again.remove(&waiter);
        self.queued -= usize::from(ticket.is_queued());
        Removed {
            caller,
            known_ticket: ticket.entry.map(|_| ticket.number),
            entry: ticket.entry,
        }
    }

    /// Removes the oldest waiter: it gets a permit without its own ticket.
    pub(crate) fn pop_oldest(&mut self) -> Option<Removed<C>> {
        let (oldest, gone) = self.by_arrival.pop_first()?;
        Some(self.removed(oldest, gone))
    }

    /// `ticket` was granted: the oldest waiter gets it. The waiter of the granted ticket gets the oldest one's ticket.
    pub(crate) fn grant(&mut self, ticket: u64) -> Option<C> {
        let owner = self.owner(ticket)?;
        let (oldest, taken) = self.by_arrival.pop_first()?;
        self.swapped.remove(&ticket);
        self.again.remove(&owner);
        let mut granted = taken.ticket;
        if owner != oldest {
            let asks = self.again.remove(&oldest) || oldest >= self.new;
            if let Some(waiter) = self.by_arrival.get_mut(owner) {
                granted = std::mem::replace(&mut waiter.ticket, taken.ticket);
                self.own(taken.ticket.number, owner);
                if asks {
                    self.name_again(owner);
                }
            }
        }
        self.queued -= usize::from(granted.is_queued());
        Some(taken.caller)
    }

    /// The tickets to name in this call, oldest waiter first.
    pub(crate) fn take_requests(&mut self, most: usize, now: Instant) -> Vec<u64> {
        let mut tickets = Vec::new();
        while tickets.len() < most
            && let Some(waiter) = self.again.pop_first()
        {
            let waiter = self.by_arrival.get_mut(waiter);
            tickets.extend(waiter.map(|waiter| waiter.ticket.name(now)));
        }
        let room = most - tickets.len();
        for (number, waiter) in self.by_arrival.iter_mut_from(self.new).take(room) {
            self.new = number + 1;
            tickets.push(waiter.ticket.name(now));
        }
        tickets
    }

    pub(crate) fn has_requests(&self) -> bool {
        !self.again.is_empty() || self.by_arrival.reaches(self.new)
    }

    /// Names a ticket again in the next call: its call was not answered, or the answer is in doubt.
    pub(crate) fn request_again(&mut self, ticket: u64) {
        if let Some(waiter) = self.owner(ticket) {
            self.name_again(waiter);
        }
    }

    fn name_again(&mut self, waiter: u64) {
        if waiter < self.new {
            self.again.insert(waiter);
        }
    }

    /// Names the tickets of the `most` oldest waiters again.
    pub(crate) fn request_oldest(&mut self, most: usize) {
        let oldest = self.by_arrival.iter().take(most).map(|(waiter, _)| waiter);
        self.again
            .extend(oldest.take_while(|waiter| *waiter < self.new));
    }

    /// The call that was sent at `sent` was answered: `ticket` is queued. `false` if it has no waiter.
    pub(crate) fn answered(
        &mut self,
        ticket: u64,
        sent: Instant,
        now: Instant,
        lease: Duration,
    ) -> bool {
        let waiter = self.owner(ticket);
        let Some(waiter) = waiter.and_then(|waiter| self.by_arrival.get_mut(waiter)) else {
            return false;
        };
        waiter.answered = true;
        if let Some(entry) = &mut waiter.ticket.entry {
            entry.doubtful |= entry.since + lease <= now;
            entry.since = sent;
            self.queued += usize::from(!entry.queued);
            entry.queued = true;
        }
        true
    }

    /// `None` if the ticket has no waiter, or no call has named it yet.
    pub(crate) fn entry(&self, ticket: u64) -> Option<QueueEntry> {
        let waiter = self.by_arrival.get(self.owner(ticket)?)?;
        waiter.ticket.entry
    }

    /// Removes the waiters without any answer of the backend.
    pub(crate) fn take_newcomers(&mut self) -> Vec<Removed<C>> {
        let newcomers = self.by_arrival.iter().filter(|(_, w)| !w.answered);
        let newcomers: Vec<u64> = newcomers.map(|(waiter, _)| waiter).collect();
        newcomers
            .into_iter()
            .filter_map(|waiter| self.give_up(waiter))
            .collect()
    }

    /// Removes all waiters.
    pub(crate) fn take_all(&mut self) -> Vec<Removed<C>> {
        std::iter::from_fn(|| self.pop_oldest()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(10);

    fn waiters(tickets: &[u64]) -> Waiters<u64> {
        let mut waiters = Waiters::default();
        for ticket in tickets {
            waiters.join(*ticket, Instant::now(), *ticket);
        }
        waiters
    }

    #[test]
    fn a_grant_goes_to_the_oldest_and_the_two_swap_tickets() {
        let mut waiters = waiters(&[1, 2, 3]);
        assert_eq!(waiters.take_requests(8, Instant::now()), [1, 2, 3]);
        assert_eq!(
            waiters.grant(3),
            Some(1),
            "ticket 3 was granted, yet the oldest waiter gets it"
        );
        assert!(waiters.has_ticket(1) && waiters.has_ticket(2) && !waiters.has_ticket(3));
        let third = waiters.give_up(3).expect("the third waits still");
        assert_eq!(third.known_ticket, Some(1), "on the oldest one's ticket");
    }

    #[test]
    fn a_removed_waiter_releases_its_ticket_if_a_call_has_named_it() {
        let mut waiters = waiters(&[1, 2]);
        assert_eq!(waiters.take_requests(1, Instant::now()), [1]);
        assert_eq!(waiters.give_up(1).expect("waits").known_ticket, Some(1));
        assert_eq!(waiters.give_up(2).expect("waits").known_ticket, None);
        assert!(waiters.give_up(2).is_none(), "only once");
    }

    #[test]
    fn newcomers_are_the_waiters_without_an_answer() {
        let (mut waiters, now) = (waiters(&[1, 2]), Instant::now());
        waiters.take_requests(8, now);
        waiters.answered(1, now, now, LEASE);
        let newcomers = waiters.take_newcomers();
        assert_eq!(newcomers.len(), 1);
        assert_eq!(newcomers[0].caller, 2);
        assert_eq!(waiters.len(), 1);
    }
}
