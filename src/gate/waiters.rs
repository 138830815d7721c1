//! Who waits here, in order of arrival, and which ticket stands in the shared queue for each.
//!
//! Pure: no clock, no tasks. `C` is the caller's end, which nothing here looks into.

use super::line::Line;
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::Instant;

/// The local line of one name.
#[derive(Debug)]
pub(crate) struct Waiters<C> {
    /// By the number of the ticket that each got when it came, so the first is the oldest.
    line: Line<Waiter<C>>,
    /// Which waiter a ticket stands for, where that is not the one that came with it: a grant makes two waiters swap
    /// tickets.
    swapped: FxHashMap<u64, u64>,
    /// No call has named the tickets of those with this number and above: the next one does.
    new: u64,
    /// Those before whose ticket has to be named once more.
    again: BTreeSet<u64>,
    /// How many tickets of the line surely stand in the queue.
    queued: usize,
}

#[derive(Debug)]
struct Waiter<C> {
    place: Place,
    since: Instant,
    /// A call that named it was answered.
    answered: bool,
    caller: C,
}

/// One ticket's way through the shared queue.
#[derive(Clone, Copy, Debug)]
struct Place {
    ticket: u64,
    /// `None` until a call has named it: nobody knows it before that.
    standing: Option<Standing>,
}

/// What a pushed grant of a ticket is worth.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Standing {
    /// When the last call was sent that named the ticket and was answered, or else the first that named it. Whoever's
    /// call grants the ticket, its lease counts from then or later.
    pub(crate) since: Instant,
    /// No call that named it was answered for a lease. Its place may have been granted and lost in that time, and been
    /// taken anew: a push may speak of the former grant.
    pub(crate) doubtful: bool,
    /// An answer has said that it stands in the queue.
    pub(crate) queued: bool,
}

/// A waiter that is out of the line.
#[derive(Debug)]
pub(crate) struct Departed<C> {
    pub(crate) caller: C,
    /// Its ticket, if the backend may know of it.
    pub(crate) known_ticket: Option<u64>,
    pub(crate) standing: Option<Standing>,
}

// === impl Place ===

impl Place {
    /// A call names its ticket.
    fn name(&mut self, now: Instant) -> u64 {
        self.standing.get_or_insert(Standing {
            since: now,
            doubtful: false,
            queued: false,
        });
        self.ticket
    }

    fn is_queued(&self) -> bool {
        self.standing.is_some_and(|standing| standing.queued)
    }
}

// === impl Waiters ===

impl<C> Default for Waiters<C> {
    fn default() -> Self {
        Self {
            line: Line::default(),
            swapped: FxHashMap::default(),
            new: 0,
            again: BTreeSet::new(),
            queued: 0,
        }
    }
}

impl<C> Waiters<C> {
    pub(crate) fn len(&self) -> usize {
        self.line.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.line.is_empty()
    }

    /// How many tickets of the line surely stand in the queue.
    pub(crate) fn queued(&self) -> usize {
        self.queued
    }

    pub(crate) fn has_ticket(&self, ticket: u64) -> bool {
        self.owner(ticket).is_some()
    }

    /// The waiter that this ticket stands for.
    fn owner(&self, ticket: u64) -> Option<u64> {
        if let Some(owner) = self.swapped.get(&ticket) {
            return Some(*owner);
        }
        let waiter = self.line.get(ticket)?;
        (waiter.place.ticket == ticket).then_some(ticket)
    }

    fn own(&mut self, ticket: u64, owner: u64) {
        if ticket == owner {
            self.swapped.remove(&ticket);
        } else {
            self.swapped.insert(ticket, owner);
        }
    }

    /// Since when the oldest has been waiting.
    pub(crate) fn oldest_since(&self) -> Option<Instant> {
        self.line.first().map(|(_, waiter)| waiter.since)
    }

    /// The last in line. `ticket` is new, and from now on also the waiter's own number.
    pub(crate) fn join(&mut self, ticket: u64, since: Instant, caller: C) {
        let place = Place {
            ticket,
            standing: None,
        };
        let waiter = Waiter {
            place,
            since,
            answered: false,
            caller,
        };
        self.line.push(ticket, waiter);
    }

    /// A waiter gives up, and takes the ticket that stands for it along. `None` if it has left already.
    pub(crate) fn give_up(&mut self, waiter: u64) -> Option<Departed<C>> {
        let gone = self.line.remove(waiter)?;
        Some(self.departed(waiter, gone))
    }

    fn departed(&mut self, waiter: u64, gone: Waiter<C>) -> Departed<C> {
        let Waiter { place, caller, .. } = gone;
        if place.ticket != waiter {
            self.swapped.remove(&place.ticket);
        }
        self.again.remove(&waiter);
        self.queued -= usize::from(place.is_queued());
        Departed {
            caller,
            known_ticket: place.standing.map(|_| place.ticket),
            standing: place.standing,
        }
    }

    /// The oldest waiter goes in on a ticket that nobody has any more. Its own ticket is no longer needed.
    pub(crate) fn take_oldest(&mut self) -> Option<Departed<C>> {
        let (oldest, gone) = self.line.pop_first()?;
        Some(self.departed(oldest, gone))
    }

    /// `ticket` was granted: the oldest waiter goes in on it. Whoever it stood for stands on the oldest one's ticket.
    pub(crate) fn grant(&mut self, ticket: u64) -> Option<C> {
        let owner = self.owner(ticket)?;
        let (oldest, taken) = self.line.pop_first()?;
        self.swapped.remove(&ticket);
        self.again.remove(&owner);
        let mut granted = taken.place;
        if owner != oldest {
            let asks = self.again.remove(&oldest) || oldest >= self.new;
            if let Some(waiter) = self.line.get_mut(owner) {
                granted = std::mem::replace(&mut waiter.place, taken.place);
                self.own(taken.place.ticket, owner);
                if asks {
                    self.name_again(owner);
                }
            }
        }
        self.queued -= usize::from(granted.is_queued());
        Some(taken.caller)
    }

    /// The tickets to name in this call, oldest waiter first.
    pub(crate) fn ask(&mut self, most: usize, now: Instant) -> Vec<u64> {
        let mut tickets = Vec::new();
        while tickets.len() < most
            && let Some(waiter) = self.again.pop_first()
        {
            let waiter = self.line.get_mut(waiter);
            tickets.extend(waiter.map(|waiter| waiter.place.name(now)));
        }
        let room = most - tickets.len();
        for (number, waiter) in self.line.iter_mut_from(self.new).take(room) {
            self.new = number + 1;
            tickets.push(waiter.place.name(now));
        }
        tickets
    }

    pub(crate) fn has_to_ask(&self) -> bool {
        !self.again.is_empty() || self.line.reaches(self.new)
    }

    /// Names a ticket (again) in the next call: it was not answered, or the answer cannot be relied on.
    pub(crate) fn ask_again(&mut self, ticket: u64) {
        if let Some(waiter) = self.owner(ticket) {
            self.name_again(waiter);
        }
    }

    fn name_again(&mut self, waiter: u64) {
        if waiter < self.new {
            self.again.insert(waiter);
        }
    }

    /// Names the tickets of the `most` oldest waiters (again).
    pub(crate) fn ask_oldest(&mut self, most: usize) {
        let oldest = self.line.iter().take(most).map(|(waiter, _)| waiter);
        self.again
            .extend(oldest.take_while(|waiter| *waiter < self.new));
    }

    /// The call that was sent at `sent` was answered: `ticket` stands in the queue. `false` if nobody waits on it.
    pub(crate) fn answered(
        &mut self,
        ticket: u64,
        sent: Instant,
        now: Instant,
        lease: Duration,
    ) -> bool {
        let waiter = self.owner(ticket);
        let Some(waiter) = waiter.and_then(|waiter| self.line.get_mut(waiter)) else {
            return false;
        };
        waiter.answered = true;
        if let Some(standing) = &mut waiter.place.standing {
            standing.doubtful |= standing.since + lease <= now;
            standing.since = sent;
            self.queued += usize::from(!standing.queued);
            standing.queued = true;
        }
        true
    }

    /// `None` if nobody waits on this ticket, or no call has named it yet.
    pub(crate) fn standing(&self, ticket: u64) -> Option<Standing> {
        let waiter = self.line.get(self.owner(ticket)?)?;
        waiter.place.standing
    }

    /// Takes everybody out whom the backend has never answered.
    pub(crate) fn take_newcomers(&mut self) -> Vec<Departed<C>> {
        let newcomers = self.line.iter().filter(|(_, w)| !w.answered);
        let newcomers: Vec<u64> = newcomers.map(|(waiter, _)| waiter).collect();
        newcomers
            .into_iter()
            .filter_map(|waiter| self.give_up(waiter))
            .collect()
    }

    /// Takes everybody out.
    pub(crate) fn take_all(&mut self) -> Vec<Departed<C>> {
        std::iter::from_fn(|| self.take_oldest()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(10);

    fn line(tickets: &[u64]) -> Waiters<u64> {
        let mut waiters = Waiters::default();
        for ticket in tickets {
            waiters.join(*ticket, Instant::now(), *ticket);
        }
        waiters
    }

    #[test]
    fn a_grant_goes_to_the_oldest_and_the_two_swap_tickets() {
        let mut waiters = line(&[1, 2, 3]);
        assert_eq!(waiters.ask(8, Instant::now()), [1, 2, 3]);
        assert_eq!(
            waiters.grant(3),
            Some(1),
            "ticket 3, yet the oldest goes in"
        );
        assert!(waiters.has_ticket(1) && waiters.has_ticket(2) && !waiters.has_ticket(3));
        let third = waiters.give_up(3).expect("the third still waits");
        assert_eq!(third.known_ticket, Some(1), "on the oldest one's ticket");
    }

    #[test]
    fn who_gives_up_takes_his_own_ticket_out_if_anybody_knows_it() {
        let mut waiters = line(&[1, 2]);
        assert_eq!(waiters.ask(1, Instant::now()), [1]);
        assert_eq!(waiters.give_up(1).expect("waits").known_ticket, Some(1));
        assert_eq!(waiters.give_up(2).expect("waits").known_ticket, None);
        assert!(waiters.give_up(2).is_none(), "only once");
    }

    #[test]
    fn newcomers_are_those_who_were_never_answered() {
        let (mut waiters, now) = (line(&[1, 2]), Instant::now());
        waiters.ask(8, now);
        waiters.answered(1, now, now, LEASE);
        let newcomers = waiters.take_newcomers();
        assert_eq!(newcomers.len(), 1);
        assert_eq!(newcomers[0].caller, 2);
        assert_eq!(waiters.len(), 1);
    }
}
