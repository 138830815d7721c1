//! The waiters of one name in order of arrival, and the ticket of each.
//!
//! Pure: time is an argument. `C` is the caller's end of the wait, which is opaque here.

use super::permit::Terms;
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;

/// The waiters of one name.
#[derive(Debug)]
pub(crate) struct Waiters<C> {
    /// By the number of the ticket that each got on arrival, so the first is the oldest. Boxed, since a node of the tree
    /// has room for eleven of them.
    by_arrival: BTreeMap<u64, Box<Waiter<C>>>,
    /// The waiter of a ticket, if it is not the one that arrived with it: a grant makes two waiters swap tickets.
    swapped: FxHashMap<u64, u64>,
    /// No call has named the tickets of waiters from this number on.
    unsent_from: u64,
    /// Earlier waiters with a ticket that has to be sent again.
    again: BTreeSet<u64>,
    /// How many of the tickets are confirmed to be queued.
    pub(super) queued: usize,
}

#[derive(Debug)]
pub(crate) struct Waiter<C> {
    pub(crate) caller: C,
    pub(crate) terms: Terms,
    pub(crate) ticket: Ticket,
    /// It is refused if more waiters than this are queued.
    pub(crate) max_waiting: usize,
    since: Instant,
    /// A call that named its ticket was answered.
    answered: bool,
}

/// The ticket of a waiter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    pub(crate) number: u64,
    /// `None` until a call has named it: the backend cannot know it before that.
    pub(crate) entry: Option<QueueEntry>,
}

/// A ticket's entry in the backend's queue. It decides whether a pushed grant is valid, and from when it counts.
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

// === impl Ticket ===

impl Ticket {
    /// A call names the ticket. Returns its number.
    fn sent(&mut self, now: Instant) -> u64 {
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
            by_arrival: BTreeMap::new(),
            swapped: FxHashMap::default(),
            unsent_from: 0,
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

    #[cfg(test)]
    pub(crate) fn has_ticket(&self, ticket: u64) -> bool {
        self.owner(ticket).is_some()
    }

    /// The waiter of this ticket.
    fn owner(&self, ticket: u64) -> Option<u64> {
        if let Some(owner) = self.swapped.get(&ticket) {
            return Some(*owner);
        }
        let waiter = self.by_arrival.get(&ticket)?;
        (waiter.ticket.number == ticket).then_some(ticket)
    }

    /// When the oldest waiter arrived.
    pub(crate) fn oldest_since(&self) -> Option<Instant> {
        self.by_arrival.first_key_value().map(|(_, w)| w.since)
    }

    /// Adds a waiter. `ticket` is higher than all before, and also the waiter's number from now on.
    pub(crate) fn join(
        &mut self,
        ticket: u64,
        since: Instant,
        terms: Terms,
        max_waiting: usize,
        caller: C,
    ) {
        let waiter = Waiter {
            caller,
            terms,
            ticket: Ticket {
                number: ticket,
                entry: None,
            },
            max_waiting,
            since,
            answered: false,
        };
        self.by_arrival.insert(ticket, Box::new(waiter));
    }

    /// Removes a waiter together with its ticket. `None` if it was removed already.
    pub(crate) fn remove(&mut self, waiter: u64) -> Option<Waiter<C>> {
        let removed = *self.by_arrival.remove(&waiter)?;
        let ticket = removed.ticket;
        if ticket.number != waiter {
            self.swapped.remove(&ticket.number);
        }
        self.again.remove(&waiter);
        self.queued -= usize::from(ticket.is_queued());
        Some(removed)
    }

    /// Removes the oldest waiter, which gets a permit without its own ticket.
    pub(crate) fn remove_oldest(&mut self) -> Option<Waiter<C>> {
        let (oldest, _) = self.by_arrival.first_key_value()?;
        self.remove(*oldest)
    }

    /// Removes the waiters with a ticket that no answered call has named.
    pub(crate) fn remove_unanswered(&mut self) -> Vec<Waiter<C>> {
        let unanswered = self.by_arrival.iter().filter(|(_, w)| !w.answered);
        let unanswered: Vec<u64> = unanswered.map(|(waiter, _)| *waiter).collect();
        let removed = unanswered.into_iter().filter_map(|w| self.remove(w));
        removed.collect()
    }

    /// Removes the newest waiter that was sent, if more waiters are queued than it accepts.
    pub(crate) fn remove_excess(&mut self) -> Option<Waiter<C>> {
        let (newest, waiter) = self.by_arrival.range(..self.unsent_from).next_back()?;
        let is_excess = waiter.ticket.is_queued() && self.queued > waiter.max_waiting;
        let newest = is_excess.then_some(*newest)?;
        self.remove(newest)
    }

    /// Removes all waiters.
    pub(crate) fn remove_all(&mut self) -> impl Iterator<Item = Waiter<C>> {
        std::iter::from_fn(|| self.remove_oldest())
    }

    /// Removes the oldest waiter, which gets the granted `ticket`. The waiter of that ticket gets the oldest one's ticket.
    /// `None` if the ticket has no waiter.
    pub(crate) fn grant(&mut self, ticket: u64) -> Option<Waiter<C>> {
        let owner = self.owner(ticket)?;
        let (oldest, served) = self.by_arrival.pop_first()?;
        self.swapped.remove(&ticket);
        self.again.remove(&owner);
        let mut granted = served.ticket;
        if owner != oldest {
            let to_send = self.again.remove(&oldest) || oldest >= self.unsent_from;
            if let Some(waiter) = self.by_arrival.get_mut(&owner) {
                granted = std::mem::replace(&mut waiter.ticket, served.ticket);
                if served.ticket.number == owner {
                    self.swapped.remove(&owner);
                } else {
                    self.swapped.insert(served.ticket.number, owner);
                }
                if to_send {
                    self.send_again(owner);
                }
            }
        }
        self.queued -= usize::from(granted.is_queued());
        Some(*served)
    }

    /// The tickets to name in this call, oldest waiter first.
    pub(crate) fn send(&mut self, most: usize, now: Instant) -> Vec<u64> {
        let mut tickets = Vec::new();
        while tickets.len() < most
            && let Some(waiter) = self.again.pop_first()
        {
            let waiter = self.by_arrival.get_mut(&waiter);
            tickets.extend(waiter.map(|waiter| waiter.ticket.sent(now)));
        }
        let room = most - tickets.len();
        for (number, waiter) in self.by_arrival.range_mut(self.unsent_from..).take(room) {
            self.unsent_from = number + 1;
            tickets.push(waiter.ticket.sent(now));
        }
        tickets
    }

    pub(crate) fn has_tickets_to_send(&self) -> bool {
        let last = self.by_arrival.last_key_value();
        !self.again.is_empty() || last.is_some_and(|(last, _)| *last >= self.unsent_from)
    }

    /// Names a ticket again in the next call: its call was not answered, or the answer is in doubt. `false` if it has no
    /// waiter.
    pub(crate) fn resend(&mut self, ticket: u64) -> bool {
        let owner = self.owner(ticket);
        owner.map(|owner| self.send_again(owner)).is_some()
    }

    fn send_again(&mut self, waiter: u64) {
        if waiter < self.unsent_from {
            self.again.insert(waiter);
        }
    }

    /// Names the tickets of the `most` oldest waiters again.
    pub(crate) fn resend_oldest(&mut self, most: usize) {
        let sent = self.by_arrival.range(..self.unsent_from).take(most);
        self.again.extend(sent.map(|(waiter, _)| *waiter));
    }

    /// The call that was sent at `sent` was answered: `ticket` is queued. `false` if it has no waiter.
    pub(crate) fn confirm_queued(
        &mut self,
        ticket: u64,
        sent: Instant,
        now: Instant,
        lease: Duration,
    ) -> bool {
        let owner = self.owner(ticket);
        let Some(waiter) = owner.and_then(|owner| self.by_arrival.get_mut(&owner)) else {
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
        let waiter = self.by_arrival.get(&self.owner(ticket)?)?;
        waiter.ticket.entry
    }
}
