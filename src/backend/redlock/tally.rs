//! Counts the votes of one call. Pure: sends nothing and reads no clock.

use super::server::{Ballot, Holder, Request, Vote};
use crate::backend::{Grant, TicketState};
use crate::error::Error;
use std::time::Duration;

/// The results so far.
#[derive(Debug)]
pub(super) struct Tally {
    results: Vec<Received>,
    /// A server has executed a later call of this node.
    pub(super) stale: bool,
}

#[derive(Clone, Debug)]
enum Received {
    Nothing,
    Failed(Error),
    Vote(Vote),
}

/// A grant by a majority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Won {
    /// A majority stores its token already.
    Before(Grant),
    /// A majority has granted it, and has to store this token now.
    Now(Grant),
}

// === impl Tally ===

impl Tally {
    pub(super) fn new(servers: usize) -> Self {
        Self {
            results: vec![Received::Nothing; servers],
            stale: false,
        }
    }

    pub(super) fn majority(&self) -> usize {
        self.results.len() / 2 + 1
    }

    pub(super) fn add(&mut self, server: usize, ballot: Result<Ballot, Error>) {
        let result = match ballot {
            Ok(Ballot::Vote(vote)) => Received::Vote(vote),
            Ok(Ballot::Stale) => {
                self.stale = true;
                return;
            }
            Err(error) => Received::Failed(error),
        };
        if let Some(slot) = self.results.get_mut(server) {
            *slot = result;
        }
    }

    /// The missing results cannot change the outcome.
    pub(super) fn is_decided(&self, request: &Request) -> bool {
        if self.stale || self.pending() == 0 {
            return true;
        }
        self.answered() >= self.majority()
            && request.renew.iter().all(|ticket| {
                let (ours, others) = self.votes_on(request, *ticket);
                let has_majority = ours.max(others) >= self.majority();
                has_majority || (self.is_settled(ours) && self.is_settled(others))
            })
            && request.release.iter().all(|ticket| {
                let held = self.votes_for_release(*ticket);
                held >= self.majority() || self.answered() - held >= self.majority()
            })
            && match self.won(request) {
                Some(Won::Before(_)) => true,
                // A majority may store its token already.
                Some(Won::Now(grant)) => {
                    let known = self.best_known(request, grant.ticket);
                    known.is_none_or(|(_, servers)| self.is_settled(servers))
                }
                None => (request.acquire.iter())
                    .all(|ticket| self.is_settled(self.takers(request, *ticket).0)),
            }
    }

    /// With so many votes there is a majority, or there cannot be one.
    fn is_settled(&self, votes: usize) -> bool {
        votes >= self.majority() || votes + self.pending() < self.majority()
    }

    fn pending(&self) -> usize {
        let nothing = |result: &&Received| matches!(result, Received::Nothing);
        self.results.iter().filter(nothing).count()
    }

    pub(super) fn answered(&self) -> usize {
        self.votes().count()
    }

    fn votes(&self) -> impl Iterator<Item = &Vote> {
        self.results.iter().filter_map(|result| match result {
            Received::Vote(vote) => Some(vote),
            _ => None,
        })
    }

    /// The errors of the servers that failed.
    pub(super) fn errors(&self) -> impl Iterator<Item = &Error> {
        self.results.iter().filter_map(|result| match result {
            Received::Failed(error) => Some(error),
            _ => None,
        })
    }

    // --- which servers have a vote ---

    /// The longest lease that any server has received.
    fn longest(&self, request: &Request) -> Duration {
        let longest = self.votes().map(|vote| vote.longest);
        longest.fold(request.lease, Duration::max)
    }

    /// The votes of servers that have remembered for one longest lease: all that they have forgotten has expired.
    fn voters(&self, request: &Request) -> impl Iterator<Item = &Vote> {
        let longest = self.longest(request);
        self.votes().filter(move |vote| vote.age >= longest)
    }

    pub(super) fn has_vote(&self, request: &Request, server: usize) -> bool {
        let longest = self.longest(request);
        matches!(self.results.get(server), Some(Received::Vote(vote)) if vote.age >= longest)
    }

    /// A majority answers, but too few of them have a vote. Returns how many have, and how long it takes until enough do.
    pub(super) fn too_young(&self, request: &Request) -> Option<(usize, Duration)> {
        let voters = self.voters(request).count();
        if voters >= self.majority() || self.answered() < self.majority() {
            return None;
        }
        let longest = self.longest(request);
        let mut waits: Vec<Duration> = (self.votes())
            .map(|vote| longest.saturating_sub(vote.age))
            .collect();
        waits.sort_unstable();
        Some((voters, waits.get(self.majority() - 1).copied()?))
    }

    // --- results of the vote ---

    /// How many votes show that this ticket is held, and how many that it is not.
    fn votes_on(&self, request: &Request, ticket: u64) -> (usize, usize) {
        let holds = |vote: &&Vote| vote.is_held_by(request, ticket) && vote.token() > 0;
        let all = self.voters(request).count();
        let ours = self.voters(request).filter(holds).count();
        (ours, all - ours)
    }

    /// The state of a ticket to renew: held, gone, or `None` without a majority for either.
    pub(super) fn renewed(&self, request: &Request, ticket: u64) -> Option<TicketState> {
        let (ours, others) = self.votes_on(request, ticket);
        if ours >= self.majority() {
            let tokens = self
                .voters(request)
                .filter(|v| v.is_held_by(request, ticket));
            let token = tokens.map(Vote::token).max().unwrap_or_default();
            Some(TicketState::Held { token })
        } else if others >= self.majority() {
            Some(TicketState::Gone)
        } else {
            None
        }
    }

    fn votes_for_release(&self, ticket: u64) -> usize {
        let held = |vote: &&Vote| vote.released == Some((ticket, true));
        self.votes().filter(held).count()
    }

    /// A released ticket was held by a majority.
    pub(super) fn held_until_now(&self, ticket: u64) -> bool {
        self.votes_for_release(ticket) >= self.majority()
    }

    /// How many servers have granted this ticket, and the highest token among them.
    fn takers(&self, request: &Request, ticket: u64) -> (usize, u64) {
        let takers = self
            .voters(request)
            .filter(|v| v.is_held_by(request, ticket));
        takers.fold((0, 0), |(count, token), vote| {
            let next = match vote.token() {
                0 => vote.next_token,
                token => token,
            };
            (count + 1, token.max(next))
        })
    }

    /// The ticket that a majority has granted.
    pub(super) fn won(&self, request: &Request) -> Option<Won> {
        request.acquire.iter().find_map(|ticket| {
            let (takers, token) = self.takers(request, *ticket);
            if takers < self.majority() {
                return None;
            }
            let known = self.best_known(request, *ticket);
            Some(
                match known.filter(|(_, servers)| *servers >= self.majority()) {
                    Some((token, _)) => Won::Before(Grant::new(*ticket, token)),
                    None => Won::Now(Grant::new(*ticket, token)),
                },
            )
        })
    }

    /// The token of this ticket that most servers store, and how many they are.
    fn best_known(&self, request: &Request, ticket: u64) -> Option<(u64, usize)> {
        let ours = self
            .voters(request)
            .filter(|v| v.is_held_by(request, ticket));
        let tokens: Vec<u64> = ours.map(Vote::token).filter(|token| *token > 0).collect();
        let servers = |token: &u64| tokens.iter().filter(|other| *other == token).count();
        let known = tokens.iter().map(|token| (*token, servers(token)));
        known.max_by_key(|(_, servers)| *servers)
    }

    /// A majority stores the same permit.
    pub(super) fn in_use(&self) -> bool {
        let holders = self.votes().filter_map(|vote| vote.holder.as_ref());
        agreed(holders, self.majority()).is_some()
    }
}

/// The permit that so many servers agree on. `left` is the time until fewer do.
pub(super) fn agreed<'a>(
    holders: impl Iterator<Item = &'a Holder>,
    majority: usize,
) -> Option<Holder> {
    let holders: Vec<&Holder> = holders.filter(|holder| holder.token > 0).collect();
    let same = |one: &Holder, other: &Holder| one.node == other.node && one.ticket == other.ticket;
    holders.iter().find_map(|one| {
        let mut left: Vec<Duration> = (holders.iter())
            .filter(|other| same(one, other))
            .map(|other| other.left)
            .collect();
        left.sort_unstable_by(|a, b| b.cmp(a));
        let left = *left.get(majority.checked_sub(1)?)?;
        Some(Holder {
            left,
            ..Holder::clone(one)
        })
    })
}

// === impl Vote ===

impl Vote {
    pub(super) fn is_held_by(&self, request: &Request, ticket: u64) -> bool {
        let holder = self.holder.as_ref();
        holder.is_some_and(|holder| holder.node == request.node && holder.ticket == ticket)
    }

    fn token(&self) -> u64 {
        self.holder.as_ref().map_or(0, |holder| holder.token)
    }
}
