//! Counts votes. Pure: nothing is sent from here, and no clock is read.

use super::server::{Ask, Ballot, Holder, Vote};
use crate::backend::{Grant, TicketState};
use crate::error::Error;
use std::time::Duration;

/// What the servers have answered so far.
#[derive(Debug)]
pub(super) struct Count {
    heard: Vec<Heard>,
    /// Some server has heard a newer word of this node.
    pub(super) stale: bool,
}

#[derive(Clone, Debug)]
enum Heard {
    Nothing,
    Failed(Error),
    Vote(Vote),
}

/// What has become of a ticket that wants in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Won {
    /// A majority has confirmed it before.
    Before(Grant),
    /// A majority has let it in, and has to learn this token now.
    Now(Grant),
}

// === impl Count ===

impl Count {
    pub(super) fn new(servers: usize) -> Self {
        Self {
            heard: vec![Heard::Nothing; servers],
            stale: false,
        }
    }

    pub(super) fn majority(&self) -> usize {
        self.heard.len() / 2 + 1
    }

    pub(super) fn hear(&mut self, server: usize, said: Result<Ballot, Error>) {
        let heard = match said {
            Ok(Ballot::Vote(vote)) => Heard::Vote(vote),
            Ok(Ballot::Stale) => {
                self.stale = true;
                return;
            }
            Err(error) => Heard::Failed(error),
        };
        if let Some(slot) = self.heard.get_mut(server) {
            *slot = heard;
        }
    }

    /// Nothing that is still to come would change what is known.
    pub(super) fn is_decided(&self, ask: &Ask) -> bool {
        if self.stale || self.pending() == 0 {
            return true;
        }
        self.answered() >= self.majority()
            && ask.renew.iter().all(|ticket| {
                let (ours, others) = self.votes_on(ask, *ticket);
                let has_majority = ours.max(others) >= self.majority();
                has_majority || (self.is_settled(ours) && self.is_settled(others))
            })
            && ask.release.iter().all(|ticket| {
                let held = self.votes_for_leaving(*ticket);
                held >= self.majority() || self.answered() - held >= self.majority()
            })
            && match self.won(ask) {
                Some(Won::Before(_)) => true,
                // Perhaps a majority knows its token from before.
                Some(Won::Now(grant)) => {
                    let known = self.best_known(ask, grant.ticket);
                    known.is_none_or(|(_, servers)| self.is_settled(servers))
                }
                None => {
                    (ask.want.iter()).all(|ticket| self.is_settled(self.takers(ask, *ticket).0))
                }
            }
    }

    /// With so many votes it has a majority, or will not get one.
    fn is_settled(&self, votes: usize) -> bool {
        votes >= self.majority() || votes + self.pending() < self.majority()
    }

    fn pending(&self) -> usize {
        let nothing = |heard: &&Heard| matches!(heard, Heard::Nothing);
        self.heard.iter().filter(nothing).count()
    }

    pub(super) fn answered(&self) -> usize {
        self.votes().count()
    }

    fn votes(&self) -> impl Iterator<Item = &Vote> {
        self.heard.iter().filter_map(|heard| match heard {
            Heard::Vote(vote) => Some(vote),
            _ => None,
        })
    }

    /// What those that failed have met.
    pub(super) fn errors(&self) -> impl Iterator<Item = &Error> {
        self.heard.iter().filter_map(|heard| match heard {
            Heard::Failed(error) => Some(error),
            _ => None,
        })
    }

    // --- who has a vote ---

    /// The longest lease that anybody has heard of.
    fn longest(&self, ask: &Ask) -> Duration {
        let longest = self.votes().map(|vote| vote.longest);
        longest.fold(ask.lease, Duration::max)
    }

    /// The answers of those who have remembered for one longest lease: what they have forgotten has run out.
    fn voters(&self, ask: &Ask) -> impl Iterator<Item = &Vote> {
        let longest = self.longest(ask);
        self.votes().filter(move |vote| vote.age >= longest)
    }

    pub(super) fn has_vote(&self, ask: &Ask, server: usize) -> bool {
        let longest = self.longest(ask);
        matches!(self.heard.get(server), Some(Heard::Vote(vote)) if vote.age >= longest)
    }

    /// Enough answer, but too few of them have a vote. Returns how many have, and how long it takes until enough do.
    pub(super) fn too_young(&self, ask: &Ask) -> Option<(usize, Duration)> {
        let voters = self.voters(ask).count();
        if voters >= self.majority() || self.answered() < self.majority() {
            return None;
        }
        let longest = self.longest(ask);
        let mut waits: Vec<Duration> = (self.votes())
            .map(|vote| longest.saturating_sub(vote.age))
            .collect();
        waits.sort_unstable();
        Some((voters, waits.get(self.majority() - 1).copied()?))
    }

    // --- what the votes say ---

    /// Those who say that this ticket holds, and those who say that it does not.
    fn votes_on(&self, ask: &Ask, ticket: u64) -> (usize, usize) {
        let holds = |vote: &&Vote| vote.is_held_by(ask, ticket) && vote.token() > 0;
        let all = self.voters(ask).count();
        let ours = self.voters(ask).filter(holds).count();
        (ours, all - ours)
    }

    /// A ticket that is to be kept: held, gone, or `None` if no majority says either.
    pub(super) fn renewed(&self, ask: &Ask, ticket: u64) -> Option<TicketState> {
        let (ours, others) = self.votes_on(ask, ticket);
        if ours >= self.majority() {
            let tokens = self.voters(ask).filter(|v| v.is_held_by(ask, ticket));
            let token = tokens.map(Vote::token).max().unwrap_or_default();
            Some(TicketState::Held { token })
        } else if others >= self.majority() {
            Some(TicketState::Gone)
        } else {
            None
        }
    }

    fn votes_for_leaving(&self, ticket: u64) -> usize {
        let held = |vote: &&Vote| vote.released == Some((ticket, true));
        self.votes().filter(held).count()
    }

    /// A ticket that leaves: did it hold by a majority?
    pub(super) fn held_until_now(&self, ticket: u64) -> bool {
        self.votes_for_leaving(ticket) >= self.majority()
    }

    /// How many have let this ticket in, and the highest token among them.
    fn takers(&self, ask: &Ask, ticket: u64) -> (usize, u64) {
        let takers = self.voters(ask).filter(|v| v.is_held_by(ask, ticket));
        takers.fold((0, 0), |(count, token), vote| {
            let next = match vote.token() {
                0 => vote.next_token,
                token => token,
            };
            (count + 1, token.max(next))
        })
    }

    /// The ticket that a majority has let in, if there is one.
    pub(super) fn won(&self, ask: &Ask) -> Option<Won> {
        ask.want.iter().find_map(|ticket| {
            let (takers, token) = self.takers(ask, *ticket);
            if takers < self.majority() {
                return None;
            }
            let known = self.best_known(ask, *ticket);
            Some(
                match known.filter(|(_, servers)| *servers >= self.majority()) {
                    Some((token, _)) => Won::Before(Grant::new(*ticket, token)),
                    None => Won::Now(Grant::new(*ticket, token)),
                },
            )
        })
    }

    /// The token that most of those who have let this ticket in know, and how many they are.
    fn best_known(&self, ask: &Ask, ticket: u64) -> Option<(u64, usize)> {
        let ours = self.voters(ask).filter(|v| v.is_held_by(ask, ticket));
        let tokens: Vec<u64> = ours.map(Vote::token).filter(|token| *token > 0).collect();
        let servers = |token: &u64| tokens.iter().filter(|other| *other == token).count();
        let known = tokens.iter().map(|token| (*token, servers(token)));
        known.max_by_key(|(_, servers)| *servers)
    }

    /// Whether a majority shows one and the same permit.
    pub(super) fn in_use(&self) -> bool {
        let holders = self.votes().filter_map(|vote| vote.holder.as_ref());
        agreed(holders, self.majority()).is_some()
    }
}

/// The permit that so many servers agree on. Its time is what is left until fewer do.
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
    pub(super) fn is_held_by(&self, ask: &Ask, ticket: u64) -> bool {
        let holder = self.holder.as_ref();
        holder.is_some_and(|holder| holder.node == ask.node && holder.ticket == ticket)
    }

    fn token(&self) -> u64 {
        self.holder.as_ref().map_or(0, |holder| holder.token)
    }
}
