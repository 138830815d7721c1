//! One queue in memory: pure, with the time as an argument.

use super::lease_clock::{LeaseClock, Leases};
use crate::backend::{Call, Events, Grant, Inspection, Outcome, Reply, TicketInfo, TicketState};
use crate::name::Node;
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The most tickets of each kind that an inspection lists.
const MOST_LISTED: usize = 1000;

/// Who holds, who waits, and what each node said last.
#[derive(Debug)]
pub(crate) struct Room {
    clock: LeaseClock,
    /// Every node that spoke within the last lease. A ticket's node is always here.
    members: HashMap<Node, Member>,
    /// The tickets that wait, by arrival.
    line: BTreeMap<u64, Ticket>,
    /// The tickets that hold, by deadline and token.
    permits: BTreeMap<(Duration, u64), Ticket>,
    last_arrival: u64,
    last_token: u64,
}

/// What is known of a node.
#[derive(Debug)]
struct Member {
    /// The number of its last call.
    number: u64,
    limit: u32,
    lease: Duration,
    /// Its last word and its lease: no ticket of it outlives that.
    until: Duration,
    /// Weak: what the sink holds may hold the session, and so this room.
    events: Weak<Events>,
    /// Its tickets in the line, with their arrivals.
    waits: HashMap<u64, u64>,
    /// Its permits, with their deadlines and tokens.
    holds: HashMap<u64, (Duration, u64)>,
}

#[derive(Clone, Debug)]
struct Ticket {
    node: Node,
    number: u64,
}

/// A grant that its node has to be told of.
#[derive(Debug)]
pub(crate) struct Push {
    pub(crate) to: Arc<Events>,
    pub(crate) grant: Grant,
}

/// What a look at the head of the line led to.
#[derive(Default)]
struct Granted {
    /// With their arrivals.
    tickets: Vec<(u64, Ticket, Grant)>,
    /// Somebody waits whom his limit keeps out.
    held_back: bool,
}

// === impl Room ===

impl Room {
    /// An empty queue whose tokens will be above `last_token`.
    pub(crate) fn new(now: Duration, last_token: u64) -> Self {
        Self {
            clock: LeaseClock::new(now),
            members: HashMap::new(),
            line: BTreeMap::new(),
            permits: BTreeMap::new(),
            last_arrival: 0,
            last_token,
        }
    }

    pub(crate) fn last_token(&self) -> u64 {
        self.last_token
    }

    pub(crate) fn exchange(
        &mut self,
        node: &Node,
        events: &Arc<Events>,
        call: &Call,
        now: Duration,
    ) -> (Reply, Vec<Push>) {
        let last = self.members.get(node).map(|member| member.number);
        if last.is_some_and(|last| call.number < last) {
            return (Reply::Stale, Vec::new());
        }
        let due = self.touch(now);
        self.hear(node, events, call);

        // What is said of a permit counts before anything is purged: its own node is the first to know that it lives.
        let released = (call.release.iter())
            .map(|ticket| self.remove(node, *ticket).is_some_and(|held| held))
            .collect();
        let renewed = (call.renew.iter())
            .map(|ticket| self.renew(node, *ticket))
            .collect();
        for ticket in call.acquire.iter().chain(&call.try_acquire) {
            self.renew(node, *ticket);
        }
        self.purge(due);

        let newcomers = self.last_arrival;
        for ticket in &call.acquire {
            self.queue(node, *ticket);
        }
        let granted = self.grant();
        let acquired = (call.acquire.iter())
            .map(|ticket| self.state(node, *ticket))
            .collect();
        let tried = (call.try_acquire.iter())
            .map(|ticket| self.try_acquire(node, *ticket, call.limit, granted.held_back))
            .collect();

        let mut own = Vec::new();
        let mut pushes = Vec::new();
        for (arrival, ticket, grant) in granted.tickets {
            if ticket.node != *node {
                pushes.extend(self.push(&ticket.node, grant));
            } else if arrival <= newcomers {
                own.push(grant);
            }
        }
        let outcome = Outcome {
            released,
            renewed,
            acquired,
            tried,
            granted: own,
            in_use: count(self.permits.len()),
            queued: count(self.line.len()),
            poll_after: self.poll_after(node),
        };
        (Reply::Done(outcome), pushes)
    }

    /// Takes out a ticket in the form that [`Node::ticket`] gives it.
    pub(crate) fn evict(&mut self, ticket: &str, now: Duration) -> (bool, Vec<Push>) {
        let due = self.touch(now);
        let found = self.find(ticket);
        if let Some(ticket) = &found {
            self.remove(&ticket.node, ticket.number);
        }
        self.purge(due);
        let granted = self.grant().tickets.into_iter();
        let pushes = granted
            .filter_map(|(_, ticket, grant)| self.push(&ticket.node, grant))
            .collect();
        (found.is_some(), pushes)
    }

    /// Shows the tickets that live.
    pub(crate) fn inspect(&self, now: Duration) -> Inspection {
        let now = now.max(self.clock.now());
        let alive = (Bound::Excluded((now, u64::MAX)), Bound::Unbounded);
        let holders = (self.permits.range(alive))
            .map(|((deadline, _), ticket)| ticket.info(deadline.saturating_sub(now)));
        let waiters = self.line.values().filter_map(|ticket| {
            let until = self.members.get(&ticket.node)?.until;
            (until > now).then(|| (ticket, until.saturating_sub(now)))
        });
        Inspection {
            in_use: count(self.permits.range(alive).count()),
            queued: count(waiters.clone().count()),
            holders: holders.take(MOST_LISTED).collect(),
            queue: waiters
                .take(MOST_LISTED)
                .map(|(ticket, left)| ticket.info(left))
                .collect(),
        }
    }

    /// Looks after a room that nobody may have called about for long. Returns when to look again; `None`: it is
    /// empty and can go.
    pub(crate) fn tidy(&mut self, now: Duration) -> Option<Duration> {
        let until = self.members.values().map(|member| member.until).max()?;
        if until > now {
            return Some(until);
        }
        if self.permits.is_empty() && self.line.is_empty() {
            return None;
        }
        // Everybody looks dead. Perhaps the whole process was paused: they get the same grace as from a call.
        let due = self.touch(now);
        self.purge(due);
        (!self.members.is_empty()).then(|| self.clock.grace_end().unwrap_or(now))
    }

    /// Lets the clock know that somebody calls. Returns up to which deadline everything goes.
    fn touch(&mut self, now: Duration) -> Option<Duration> {
        let leases = self.leases();
        self.clock.touch(now, leases)
    }

    /// Notes what a call says about its node.
    fn hear(&mut self, node: &Node, events: &Arc<Events>, call: &Call) {
        let member = self.members.entry(node.clone()).or_default();
        member.number = call.number;
        member.limit = call.limit;
        member.lease = call.lease;
        member.until = (member.until).max(self.clock.now().saturating_add(call.lease));
        member.events = Arc::downgrade(events);
    }

    /// Takes a ticket out. Returns whether it held a permit; `None` if it was not there.
    fn remove(&mut self, node: &Node, ticket: u64) -> Option<bool> {
        let member = self.members.get_mut(node)?;
        if let Some(permit) = member.holds.remove(&ticket) {
            self.permits.remove(&permit);
            return Some(true);
        }
        let arrival = member.waits.remove(&ticket)?;
        self.line.remove(&arrival);
        Some(false)
    }

    /// Moves the deadline of a permit to the end of its node's lease. A place in the line is none.
    fn renew(&mut self, node: &Node, ticket: u64) -> TicketState {
        let Some(member) = self.members.get_mut(node) else {
            return TicketState::Gone;
        };
        let Some(permit) = member.holds.get_mut(&ticket) else {
            return TicketState::Gone;
        };
        let (deadline, token) = *permit;
        if deadline < member.until
            && let Some(ticket) = self.permits.remove(permit)
        {
            *permit = (member.until, token);
            self.permits.insert(*permit, ticket);
        }
        TicketState::Held { token }
    }

    /// Removes every permit whose deadline is not after `due`, and every node that was last heard a lease before.
    fn purge(&mut self, due: Option<Duration>) {
        let Some(due) = due else {
            return;
        };
        while let Some(first) = self.permits.first_entry()
            && first.key().0 <= due
        {
            let ticket = first.remove();
            if let Some(member) = self.members.get_mut(&ticket.node) {
                member.holds.remove(&ticket.number);
            }
        }
        self.members.retain(|_, member| {
            let alive = member.until > due;
            if !alive {
                for arrival in member.waits.values() {
                    self.line.remove(arrival);
                }
            }
            alive
        });
    }

    /// Puts a ticket at the end of the line, unless it holds or waits already.
    fn queue(&mut self, node: &Node, number: u64) {
        let Some(member) = self.members.get_mut(node) else {
            return;
        };
        if member.holds.contains_key(&number) || member.waits.contains_key(&number) {
            return;
        }
        self.last_arrival += 1;
        member.waits.insert(number, self.last_arrival);
        let node = node.clone();
        self.line.insert(self.last_arrival, Ticket { node, number });
    }

    /// Grants from the head of the line for as long as there is room.
    fn grant(&mut self) -> Granted {
        let now = self.clock.now();
        let most = self.members.values().map(|member| member.limit).max();
        let mut granted = Granted::default();
        let mut next = 0;
        while let Some((&arrival, ticket)) = self.line.range(next..).next() {
            next = arrival + 1;
            let in_use = count(self.permits.len());
            if most.is_none_or(|most| in_use >= u64::from(most)) {
                granted.held_back = true;
                break;
            }
            let Some(member) = self.members.get_mut(&ticket.node) else {
                self.line.remove(&arrival);
                continue;
            };
            if member.until <= now {
                // It looks dead, within a grace: not granted, but its place stays.
                continue;
            }
            if in_use >= u64::from(member.limit) {
                granted.held_back = true;
                break;
            }
            let ticket = ticket.clone();
            let token = next_token(&mut self.last_token, now);
            let permit = (member.until, token);
            member.waits.remove(&ticket.number);
            member.holds.insert(ticket.number, permit);
            self.line.remove(&arrival);
            self.permits.insert(permit, ticket.clone());
            let number = ticket.number;
            let grant = Grant {
                ticket: number,
                token,
            };
            granted.tickets.push((arrival, ticket, grant));
        }
        granted
    }

    fn try_acquire(
        &mut self,
        node: &Node,
        number: u64,
        limit: u32,
        held_back: bool,
    ) -> TicketState {
        let state = self.state(node, number);
        if state != TicketState::Gone {
            return state;
        }
        let in_use = count(self.permits.len());
        let Some(member) = self.members.get_mut(node) else {
            return TicketState::Refused;
        };
        if held_back || in_use >= u64::from(limit) {
            return TicketState::Refused;
        }
        let token = next_token(&mut self.last_token, self.clock.now());
        let permit = (member.until, token);
        member.holds.insert(number, permit);
        let node = node.clone();
        self.permits.insert(permit, Ticket { node, number });
        TicketState::Held { token }
    }

    fn state(&self, node: &Node, ticket: u64) -> TicketState {
        let Some(member) = self.members.get(node) else {
            return TicketState::Gone;
        };
        match member.holds.get(&ticket) {
            Some(&(_, token)) => TicketState::Held { token },
            None if member.waits.contains_key(&ticket) => TicketState::Queued,
            None => TicketState::Gone,
        }
    }

    /// When the next change may come that nobody pushes; before the silence becomes a gap at any rate.
    fn poll_after(&self, node: &Node) -> Option<Duration> {
        if self.members.get(node)?.waits.is_empty() {
            return None;
        }
        let often = self.leases()?.shortest * 9 / 20;
        let earliest = || self.permits.keys().next().map(|(deadline, _)| *deadline);
        let next = self.clock.grace_end().or_else(earliest);
        let next = next.map(|next| next.saturating_sub(self.clock.now()));
        Some(next.map_or(often, |next| next.min(often)))
    }

    fn leases(&self) -> Option<Leases> {
        let leases = self.members.values().map(|member| member.lease);
        Some(Leases {
            shortest: leases.clone().min()?,
            longest: leases.max()?,
        })
    }

    fn find(&self, ticket: &str) -> Option<Ticket> {
        let (node, number) = ticket.rsplit_once('-')?;
        let number: u64 = number.parse().ok()?;
        let mut members = self.members.iter();
        let (node, member) = members.find(|(known, _)| known.as_str() == node)?;
        let known = member.holds.contains_key(&number) || member.waits.contains_key(&number);
        let node = node.clone();
        (known && node.ticket(number) == ticket).then_some(Ticket { node, number })
    }

    /// Everything that holds: its node and number, its deadline and its token.
    #[cfg(test)]
    pub(crate) fn held(&self) -> impl Iterator<Item = (&Node, u64, Duration, u64)> {
        let permits = self.permits.iter();
        permits.map(|((deadline, token), ticket)| (&ticket.node, ticket.number, *deadline, *token))
    }

    #[cfg(test)]
    pub(crate) fn permit(&self, node: &Node, number: u64) -> Option<(Duration, u64)> {
        self.members.get(node)?.holds.get(&number).copied()
    }

    fn push(&self, node: &Node, grant: Grant) -> Option<Push> {
        let to = self.members.get(node)?.events.upgrade()?;
        Some(Push { to, grant })
    }
}

// === impl Member ===

impl Default for Member {
    fn default() -> Self {
        Self {
            number: 0,
            limit: 0,
            lease: Duration::ZERO,
            until: Duration::ZERO,
            events: Weak::new(),
            waits: HashMap::new(),
            holds: HashMap::new(),
        }
    }
}

// === impl Ticket ===

impl Ticket {
    fn info(&self, lease_left: Duration) -> TicketInfo {
        TicketInfo {
            ticket: self.node.ticket(self.number),
            node: self.node.as_str().to_owned(),
            lease_left,
            lingering: false,
        }
    }
}

/// Above every token before it, and above those of an earlier life of the name: the time in microseconds is.
fn next_token(last: &mut u64, now: Duration) -> u64 {
    let micros = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
    *last = last.saturating_add(1).max(micros);
    *last
}

fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}
