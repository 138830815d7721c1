//! The permits and the queue of one name. Pure: the time is an argument.

use super::lease_clock::{LeaseClock, Leases};
use crate::backend::{Call, Events, Grant, Inspection, Outcome, Reply, TicketInfo, TicketState};
use crate::name::Node;
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The most tickets of each kind that an inspection lists.
const MAX_LISTED: usize = 1000;

/// The permits and the queue of one name, and what its nodes sent last.
#[derive(Debug)]
pub(crate) struct TicketQueue {
    clock: LeaseClock,
    /// Every node with a heartbeat within the last lease. The node of a ticket is always among them.
    nodes: HashMap<Node, NodeState>,
    /// The queued tickets, by arrival.
    queued: BTreeMap<u64, Ticket>,
    /// The held tickets, by deadline and token.
    permits: BTreeMap<(Duration, u64), Ticket>,
    last_arrival: u64,
    last_token: u64,
}

/// What is known about a node.
#[derive(Debug)]
struct NodeState {
    /// The number of its last call.
    number: u64,
    limit: u32,
    lease: Duration,
    /// One lease after its last heartbeat. None of its tickets outlives that.
    until: Duration,
    /// Weak, since the receiver may own the session, and with it this queue.
    events: Weak<Events>,
    /// Its queued tickets, with their arrivals.
    queued: HashMap<u64, u64>,
    /// Its held tickets, with their deadlines and tokens.
    held: HashMap<u64, (Duration, u64)>,
}

#[derive(Clone, Debug)]
struct Ticket {
    node: Node,
    number: u64,
}

/// A grant to send to its node.
#[derive(Debug)]
pub(crate) struct Push {
    pub(crate) to: Arc<Events>,
    pub(crate) grant: Grant,
}

/// The grants from the head of the queue.
#[derive(Default)]
struct Granted {
    /// With their arrivals.
    tickets: Vec<(u64, Ticket, Grant)>,
    /// The head of the queue is blocked by its limit.
    is_blocked: bool,
}

// === impl TicketQueue ===

impl TicketQueue {
    /// Creates an empty queue. Its tokens will be above `last_token`.
    pub(crate) fn new(now: Duration, last_token: u64) -> Self {
        Self {
            clock: LeaseClock::new(now),
            nodes: HashMap::new(),
            queued: BTreeMap::new(),
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
        let last = self.nodes.get(node).map(|state| state.number);
        if last.is_some_and(|last| call.number < last) {
            return (Reply::Stale, Vec::new());
        }
        let due = self.touch(now);
        self.note_call(node, events, call);

        // Releases and renewals count before anything expires: the call shows that its node is alive.
        let released = (call.release.iter())
            .map(|ticket| self.remove(node, *ticket).is_some_and(|held| held))
            .collect();
        let renewed = (call.renew.iter())
            .map(|ticket| self.renew(node, *ticket))
            .collect();
        for ticket in call.acquire.iter().chain(&call.try_acquire) {
            self.renew(node, *ticket);
        }
        self.expire(due);

        let last_before = self.last_arrival;
        for ticket in &call.acquire {
            self.enqueue(node, *ticket);
        }
        let granted = self.grant();
        let acquired = (call.acquire.iter())
            .map(|ticket| self.state(node, *ticket))
            .collect();
        let tried = (call.try_acquire.iter())
            .map(|ticket| self.try_acquire(node, *ticket, call.limit, granted.is_blocked))
            .collect();

        let mut own = Vec::new();
        let mut pushes = Vec::new();
        for (arrival, ticket, grant) in granted.tickets {
            if ticket.node != *node {
                pushes.extend(self.push(&ticket.node, grant));
            } else if arrival <= last_before {
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
            queued: count(self.queued.len()),
            poll_after: self.poll_after(node),
        };
        (Reply::Done(outcome), pushes)
    }

    /// Removes a ticket, given in the form of [`Node::ticket`]. Returns whether it existed.
    pub(crate) fn evict(&mut self, ticket: &str, now: Duration) -> (bool, Vec<Push>) {
        let due = self.touch(now);
        let found = self.find(ticket);
        if let Some(ticket) = &found {
            self.remove(&ticket.node, ticket.number);
        }
        self.expire(due);
        let granted = self.grant().tickets.into_iter();
        let pushes = granted
            .filter_map(|(_, ticket, grant)| self.push(&ticket.node, grant))
            .collect();
        (found.is_some(), pushes)
    }

    /// Returns the tickets with an unexpired lease.
    pub(crate) fn inspect(&self, now: Duration) -> Inspection {
        let now = now.max(self.clock.now());
        let unexpired = (Bound::Excluded((now, u64::MAX)), Bound::Unbounded);
        let holders = (self.permits.range(unexpired))
            .map(|((deadline, _), ticket)| ticket.info(deadline.saturating_sub(now)));
        let queued = self.queued.values().filter_map(|ticket| {
            let until = self.nodes.get(&ticket.node)?.until;
            (until > now).then(|| (ticket, until.saturating_sub(now)))
        });
        Inspection {
            in_use: count(self.permits.range(unexpired).count()),
            queued: count(queued.clone().count()),
            holders: holders.take(MAX_LISTED).collect(),
            queue: queued
                .take(MAX_LISTED)
                .map(|(ticket, left)| ticket.info(left))
                .collect(),
        }
    }

    /// Removes what has expired without a call. Returns when to do so again, or `None` if the queue is empty and can be dropped.
    pub(crate) fn tidy(&mut self, now: Duration) -> Option<Duration> {
        let until = self.nodes.values().map(|state| state.until).max()?;
        if until > now {
            return Some(until);
        }
        if self.permits.is_empty() && self.queued.is_empty() {
            return None;
        }
        // All leases look expired. The whole process may have been paused, so that the same grace applies as in a call.
        let due = self.touch(now);
        self.expire(due);
        (!self.nodes.is_empty()).then(|| self.clock.grace_end().unwrap_or(now))
    }

    /// Advances the clock. Returns the deadline up to which everything expires, if anything may expire.
    fn touch(&mut self, now: Duration) -> Option<Duration> {
        let leases = self.leases();
        self.clock.touch(now, leases)
    }

    /// Notes what a call contains about its node.
    fn note_call(&mut self, node: &Node, events: &Arc<Events>, call: &Call) {
        let state = self.nodes.entry(node.clone()).or_default();
        state.number = call.number;
        state.limit = call.limit;
        state.lease = call.lease;
        state.until = (state.until).max(self.clock.now().saturating_add(call.lease));
        state.events = Arc::downgrade(events);
    }

    /// Removes a ticket. Returns whether it was held, or `None` if it did not exist.
    fn remove(&mut self, node: &Node, ticket: u64) -> Option<bool> {
        let state = self.nodes.get_mut(node)?;
        if let Some(permit) = state.held.remove(&ticket) {
            self.permits.remove(&permit);
            return Some(true);
        }
        let arrival = state.queued.remove(&ticket)?;
        self.queued.remove(&arrival);
        Some(false)
    }

    /// Moves the deadline of a held ticket to the end of its node's lease. Does not create a permit.
    fn renew(&mut self, node: &Node, ticket: u64) -> TicketState {
        let Some(state) = self.nodes.get_mut(node) else {
            return TicketState::Gone;
        };
        let Some(permit) = state.held.get_mut(&ticket) else {
            return TicketState::Gone;
        };
        let (deadline, token) = *permit;
        if deadline < state.until
            && let Some(ticket) = self.permits.remove(permit)
        {
            *permit = (state.until, token);
            self.permits.insert(*permit, ticket);
        }
        TicketState::Held { token }
    }

    /// Removes each held ticket whose deadline is not after `due`, and each node with a lease that ended by then.
    fn expire(&mut self, due: Option<Duration>) {
        let Some(due) = due else {
            return;
        };
        while let Some(first) = self.permits.first_entry()
            && first.key().0 <= due
        {
            let ticket = first.remove();
            if let Some(state) = self.nodes.get_mut(&ticket.node) {
                state.held.remove(&ticket.number);
            }
        }
        self.nodes.retain(|_, state| {
            let lives = state.until > due;
            if !lives {
                for arrival in state.queued.values() {
                    self.queued.remove(arrival);
                }
            }
            lives
        });
    }

    /// Appends a ticket to the queue, unless it is held or queued already.
    fn enqueue(&mut self, node: &Node, number: u64) {
        let Some(state) = self.nodes.get_mut(node) else {
            return;
        };
        if state.held.contains_key(&number) || state.queued.contains_key(&number) {
            return;
        }
        self.last_arrival += 1;
        state.queued.insert(number, self.last_arrival);
        let node = node.clone();
        self.queued
            .insert(self.last_arrival, Ticket { node, number });
    }

    /// Grants tickets from the head of the queue while their limits allow it.
    fn grant(&mut self) -> Granted {
        let now = self.clock.now();
        let highest_limit = self.nodes.values().map(|state| state.limit).max();
        let mut granted = Granted::default();
        let mut next = 0;
        while let Some((&arrival, ticket)) = self.queued.range(next..).next() {
            next = arrival + 1;
            let in_use = count(self.permits.len());
            if highest_limit.is_none_or(|limit| in_use >= u64::from(limit)) {
                granted.is_blocked = true;
                break;
            }
            let Some(state) = self.nodes.get_mut(&ticket.node) else {
                self.queued.remove(&arrival);
                continue;
            };
            if state.until <= now {
                // Its lease has run out, within a grace: it is not granted, but stays queued.
                continue;
            }
            if in_use >= u64::from(state.limit) {
                granted.is_blocked = true;
                break;
            }
            let ticket = ticket.clone();
            let token = next_token(&mut self.last_token, now);
            let permit = (state.until, token);
            state.queued.remove(&ticket.number);
            state.held.insert(ticket.number, permit);
            self.queued.remove(&arrival);
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
        is_blocked: bool,
    ) -> TicketState {
        let known = self.state(node, number);
        if known != TicketState::Gone {
            return known;
        }
        let in_use = count(self.permits.len());
        let Some(state) = self.nodes.get_mut(node) else {
            return TicketState::Refused;
        };
        if is_blocked || in_use >= u64::from(limit) {
            return TicketState::Refused;
        }
        let token = next_token(&mut self.last_token, self.clock.now());
        let permit = (state.until, token);
        state.held.insert(number, permit);
        let node = node.clone();
        self.permits.insert(permit, Ticket { node, number });
        TicketState::Held { token }
    }

    fn state(&self, node: &Node, ticket: u64) -> TicketState {
        let Some(state) = self.nodes.get(node) else {
            return TicketState::Gone;
        };
        match state.held.get(&ticket) {
            Some(&(_, token)) => TicketState::Held { token },
            None if state.queued.contains_key(&ticket) => TicketState::Queued,
            None => TicketState::Gone,
        }
    }

    /// Returns when the node has to call again: when the next permit may expire, and in any case before the silence becomes a
    /// gap.
    fn poll_after(&self, node: &Node) -> Option<Duration> {
        if self.nodes.get(node)?.queued.is_empty() {
            return None;
        }
        let often = self.leases()?.shortest * 9 / 20;
        let earliest = || self.permits.keys().next().map(|(deadline, _)| *deadline);
        let next = self.clock.grace_end().or_else(earliest);
        let next = next.map(|next| next.saturating_sub(self.clock.now()));
        Some(next.map_or(often, |next| next.min(often)))
    }

    fn leases(&self) -> Option<Leases> {
        let leases = self.nodes.values().map(|state| state.lease);
        Some(Leases {
            shortest: leases.clone().min()?,
            longest: leases.max()?,
        })
    }

    fn find(&self, ticket: &str) -> Option<Ticket> {
        let (node, number) = ticket.rsplit_once('-')?;
        let number: u64 = number.parse().ok()?;
        let mut nodes = self.nodes.iter();
        let (node, state) = nodes.find(|(known, _)| known.as_str() == node)?;
        let exists = state.held.contains_key(&number) || state.queued.contains_key(&number);
        let node = node.clone();
        (exists && node.ticket(number) == ticket).then_some(Ticket { node, number })
    }

    /// Returns the node, the number, the deadline and the token of each held ticket.
    #[cfg(test)]
    pub(crate) fn held(&self) -> impl Iterator<Item = (&Node, u64, Duration, u64)> {
        let permits = self.permits.iter();
        permits.map(|((deadline, token), ticket)| (&ticket.node, ticket.number, *deadline, *token))
    }

    #[cfg(test)]
    pub(crate) fn permit(&self, node: &Node, number: u64) -> Option<(Duration, u64)> {
        self.nodes.get(node)?.held.get(&number).copied()
    }

    fn push(&self, node: &Node, grant: Grant) -> Option<Push> {
        let to = self.nodes.get(node)?.events.upgrade()?;
        Some(Push { to, grant })
    }
}

// === impl NodeState ===

impl Default for NodeState {
    fn default() -> Self {
        Self {
            number: 0,
            limit: 0,
            lease: Duration::ZERO,
            until: Duration::ZERO,
            events: Weak::new(),
            queued: HashMap::new(),
            held: HashMap::new(),
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

/// Returns a token above all earlier ones, also above those before the name was removed, since it is at least the time in
/// microseconds.
fn next_token(last: &mut u64, now: Duration) -> u64 {
    let micros = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
    *last = last.saturating_add(1).max(micros);
    *last
}

fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}
