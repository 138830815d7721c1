//! What this process knows about one name: its own tickets, and the queue as it was last seen. Pure.

use super::keys;
use super::plan::{Findings, Plan};
use super::queue::TicketQueue;
use crate::backend::{Call, Grant, Outcome, TicketState};
use crate::name::Node;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;
use tokio::time::Instant;

#[derive(Debug)]
pub(super) struct NameState {
    /// The number of the latest call.
    pub(super) number: u64,
    /// Counts the calls that began. A call with an earlier number than this was superseded.
    pub(super) run: u64,
    /// A call is in flight.
    pub(super) running: bool,
    /// A write was sent and not answered: it may still be executed, unless it is fenced off.
    pub(super) uncertain: bool,
    limit: u32,
    /// Some queued ticket may have another limit than that.
    limit_outdated: bool,
    /// One lease after the last heartbeat about this name. No queue entry outlives that.
    until: Instant,
    own: BTreeMap<u64, OwnTicket>,
    queue: TicketQueue,
    /// Expired tickets with keys that are being removed, and the revisions that created them.
    expired: HashMap<u64, i64>,
    /// The number of the watch that follows the queue, if there is one.
    pub(super) watch: Option<u64>,
    /// That watch has begun to receive changes.
    pub(super) watched: bool,
}

/// A ticket of this process.
#[derive(Debug)]
struct OwnTicket {
    /// One lease after the last call that named it. Only a holder expires by this time alone.
    until: Instant,
    /// It is or was queued, unlike a ticket that was only tried.
    acquired: bool,
    /// It was seen to hold. From then on it holds for as long as its key exists.
    granted: bool,
    /// Its key was seen.
    key_seen: bool,
}

// === impl NameState ===

impl NameState {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            number: 0,
            run: 0,
            running: false,
            uncertain: false,
            limit: 0,
            limit_outdated: false,
            until: now,
            own: BTreeMap::new(),
            queue: TicketQueue::default(),
            expired: HashMap::new(),
            watch: None,
            watched: false,
        }
    }

    /// Begins a call. Returns the number of its run, or `None` if a later call began before.
    pub(super) fn begin(&mut self, call: &Call, now: Instant) -> Option<u64> {
        if call.number < self.number {
            return None;
        }
        self.number = call.number;
        self.run += 1;
        // The earlier call was given up: it may have a write in flight.
        self.uncertain |= self.running;
        self.running = true;
        let until = now + call.lease;
        self.until = self.until.max(until);
        for ticket in call
            .renew
            .iter()
            .chain(&call.acquire)
            .chain(&call.try_acquire)
        {
            if let Some(own) = self.own.get_mut(ticket) {
                own.until = own.until.max(until);
            }
        }
        Some(self.run)
    }

    pub(super) fn is_current(&self, run: u64) -> bool {
        self.running && self.run == run
    }

    /// There are no tickets and no calls.
    pub(super) fn is_idle(&self) -> bool {
        !self.running && self.own.is_empty() && self.expired.is_empty()
    }

    /// The state can be dropped: it is idle, and its last call was a lease ago.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.is_idle() && self.until <= now
    }

    /// The call can only be executed under an etcd lease.
    pub(super) fn needs_lease(&self, call: &Call) -> bool {
        !call.acquire.is_empty()
            || !call.try_acquire.is_empty()
            || call
                .renew
                .iter()
                .any(|ticket| self.own.contains_key(ticket))
    }

    /// Forgets every ticket: the etcd lease of this process has ended.
    pub(super) fn clear(&mut self) {
        self.own.clear();
        self.expired.clear();
        self.queue = TicketQueue::default();
        self.uncertain = false;
        // The watch reports changes to a queue that is not known any more. Another watch begins with a listing.
        self.watch = None;
        self.watched = false;
    }

    /// Returns what this call has to write. Its new tickets are known from now on.
    pub(super) fn plan(&mut self, node: &Node, call: &Call, now: Instant) -> Plan {
        let create: Vec<u64> = (call.acquire.iter())
            .filter(|ticket| self.own.get(ticket).is_none_or(|own| !own.key_seen))
            .copied()
            .collect();
        for ticket in &create {
            self.add(*ticket, true, now + call.lease);
        }
        let is_known =
            |ticket: &&u64| self.own.contains_key(ticket) || self.expired.contains_key(ticket);
        let release: Vec<(u64, bool)> = (call.release.iter().filter(is_known))
            .map(|ticket| (*ticket, self.is_granted(*ticket)))
            .collect();
        let remove_expired = (create.iter().chain(&call.try_acquire))
            .filter(|ticket| self.expired.contains_key(ticket))
            .copied()
            .collect();
        let stays = |ticket: &u64| !call.release.contains(ticket);
        let queued = (self.own.iter())
            .filter(|(ticket, own)| own.acquired && own.key_seen && !own.granted && stays(ticket))
            .filter_map(|(ticket, _)| {
                let entry = self.queue.created_and_limit(&node.ticket(*ticket))?;
                Some((*ticket, entry))
            });
        self.limit_outdated |= self.limit != call.limit;
        self.limit = call.limit;
        let queued: Vec<(u64, (i64, u32))> = match self.limit_outdated || !release.is_empty() {
            true => queued.collect(),
            false => Vec::new(),
        };
        let update_limit: Vec<(u64, i64)> = (queued.iter())
            .filter(|(_, (_, limit))| *limit != call.limit)
            .map(|(ticket, (created, _))| (*ticket, *created))
            .collect();
        let changes = !release.is_empty() || !update_limit.is_empty();
        let is_unsure = release.iter().any(|(_, granted)| !granted);
        Plan {
            read_first: is_unsure || (changes && !queued.is_empty()),
            release,
            remove_expired,
            update_limit,
            create,
        }
    }

    /// Notes that every queued ticket has this limit now.
    pub(super) fn limit_updated(&mut self, limit: u32) {
        self.limit_outdated &= self.limit != limit;
    }

    /// Notes that a ticket's key is about to be written.
    pub(super) fn add(&mut self, ticket: u64, acquired: bool, until: Instant) {
        let own = self.own.entry(ticket).or_insert(OwnTicket {
            until,
            acquired,
            granted: false,
            key_seen: false,
        });
        own.until = own.until.max(until);
    }

    /// Notes that a ticket's key was created just now. What was known of an earlier key is void.
    pub(super) fn created(&mut self, ticket: u64) {
        if let Some(own) = self.own.get_mut(&ticket) {
            own.granted = false;
        }
        self.expired.remove(&ticket);
    }

    /// Whether the key of one of this node's tickets was seen.
    pub(super) fn is_stored(&self, ticket: u64) -> bool {
        self.own.get(&ticket).is_some_and(|own| own.key_seen)
    }

    /// Returns the newest revision that was seen.
    pub(super) fn revision(&self) -> i64 {
        self.queue.revision()
    }

    /// Whether the ticket was only tried, and no success was reported yet.
    pub(super) fn is_open_try(&self, ticket: u64) -> bool {
        self.own.get(&ticket).is_some_and(|own| !own.acquired)
    }

    /// Whether the ticket is one of this node, also if its expired key is being removed.
    pub(super) fn knows(&self, ticket: u64) -> bool {
        self.own.contains_key(&ticket) || self.expired.contains_key(&ticket)
    }

    pub(super) fn is_granted(&self, ticket: u64) -> bool {
        self.own.get(&ticket).is_some_and(|own| own.granted)
    }

    /// Notes that the keys of these tickets are gone.
    pub(super) fn removed(&mut self, tickets: &[u64]) {
        for ticket in tickets {
            self.own.remove(ticket);
            self.expired.remove(ticket);
        }
    }

    /// Stores the queue of a listing, unless the watch is ahead of it.
    pub(super) fn update_queue(&mut self, queue: &TicketQueue) {
        if queue.revision() >= self.queue.revision() {
            self.queue = queue.clone();
        }
    }

    pub(super) fn queue_mut(&mut self) -> &mut TicketQueue {
        &mut self.queue
    }

    /// Compares this node's tickets with the queue. Returns the queued ones that hold now, for the first time.
    pub(super) fn collect_grants(&mut self, node: &Node) -> Vec<Grant> {
        let mut held: HashMap<u64, i64> = HashMap::new();
        for (created, entry) in self.queue.holders() {
            if let Some(number) = keys::own_number(&entry.ticket, node) {
                held.insert(number, created);
            }
        }
        let (queue, until) = (&self.queue, self.until);
        let may_be_in_flight = self.running || self.uncertain;
        let mut grants = Vec::new();
        self.own.retain(|ticket, own| {
            if queue.created(&node.ticket(*ticket)).is_none() {
                // It is gone, or not created yet.
                return !own.key_seen && may_be_in_flight;
            }
            own.key_seen = true;
            if let Some(created) = held.get(ticket)
                && !own.granted
                && own.acquired
            {
                own.granted = true;
                // For a queued ticket, every heartbeat about the name counts.
                own.until = own.until.max(until);
                grants.push((*created, *ticket));
            }
            true
        });
        grants.sort_unstable();
        (grants.into_iter())
            .map(|(created, ticket)| Grant::new(ticket, token(created)))
            .collect()
    }

    /// Some ticket of this process is queued.
    pub(super) fn has_queued(&self) -> bool {
        (self.own.values()).any(|own| own.acquired && !own.granted)
    }

    /// Notes that a tried ticket holds: it is a permit like any other from now on.
    pub(super) fn grant_try(&mut self, ticket: u64) {
        if let Some(own) = self.own.get_mut(&ticket) {
            own.granted = true;
            own.acquired = true;
            own.key_seen = true;
        }
    }

    /// Returns the outcome of a call, and the grants that are not part of it.
    pub(super) fn outcome(
        &mut self,
        node: &Node,
        call: &Call,
        findings: &Findings,
        poll: Duration,
    ) -> (Outcome, Vec<Grant>) {
        self.update_queue(&findings.after);
        let grants = self.collect_grants(node);
        let queued_before: Vec<u64> = (findings.before.iter())
            .flat_map(TicketQueue::queued)
            .filter_map(|(_, entry)| keys::own_number(&entry.ticket, node))
            .collect();
        let is_named = |ticket: &u64| {
            let mut named = call
                .acquire
                .iter()
                .chain(&call.renew)
                .chain(&call.try_acquire);
            named.any(|named| named == ticket)
        };
        let (granted, others): (Vec<Grant>, Vec<Grant>) = grants
            .into_iter()
            .partition(|grant| queued_before.contains(&grant.ticket));
        let pushes = others.into_iter().filter(|grant| !is_named(&grant.ticket));
        let beyond_limit = self.held_beyond_limit(node);
        let has_queued = self.has_queued();
        let often = self
            .queue
            .shortest_lease()
            .unwrap_or(call.lease)
            .min(call.lease)
            * 9
            / 20;
        let outcome = Outcome {
            released: (call.release.iter())
                .map(|ticket| findings.released.get(ticket).copied().unwrap_or(false))
                .collect(),
            renewed: call.renew.iter().map(|t| self.renewed(node, *t)).collect(),
            acquired: call.acquire.iter().map(|t| self.state(node, *t)).collect(),
            tried: (call.try_acquire.iter())
                .map(|ticket| match findings.refused.contains(ticket) {
                    true => TicketState::Refused,
                    false => self.state(node, *ticket),
                })
                .collect(),
            granted,
            in_use: count(self.queue.in_use() + beyond_limit),
            queued: count(self.queue.len() - self.queue.in_use() - beyond_limit),
            poll_after: has_queued.then_some(match self.watched {
                true => often,
                false => often.min(poll),
            }),
        };
        (outcome, pushes.collect())
    }

    /// Returns how many of this node's tickets hold although the queue would not grant them now: a limit before them was lowered.
    fn held_beyond_limit(&self, node: &Node) -> usize {
        let queued = self.queue.queued();
        let own = queued.filter_map(|(_, entry)| keys::own_number(&entry.ticket, node));
        own.filter(|ticket| self.is_granted(*ticket)).count()
    }

    fn state(&self, node: &Node, ticket: u64) -> TicketState {
        let Some(own) = self.own.get(&ticket) else {
            return TicketState::Gone;
        };
        match self.queue.created(&node.ticket(ticket)) {
            Some(created) if own.granted => TicketState::Held {
                token: token(created),
            },
            Some(_) => TicketState::Queued,
            None => TicketState::Gone,
        }
    }

    fn renewed(&self, node: &Node, ticket: u64) -> TicketState {
        match self.state(node, ticket) {
            TicketState::Queued => TicketState::Gone,
            state => state,
        }
    }

    // --- leases ---

    /// Returns when the next of this node's tickets expires. None does while a call is in flight, since the call is a heartbeat.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        if self.running {
            return None;
        }
        let ends = self.own.values().map(|own| own.expiry(self.until));
        ends.min()
    }

    /// Extends all leases.
    pub(super) fn extend(&mut self, by: Duration) {
        self.until += by;
        self.own.values_mut().for_each(|own| own.until += by);
    }

    /// No ticket of this process is held or queued.
    pub(super) fn has_no_tickets(&self) -> bool {
        self.own.is_empty()
    }

    /// Removes the tickets that have expired. Returns all tickets with keys to remove, also those of earlier calls.
    pub(super) fn expire(&mut self, node: &Node, now: Instant) -> Vec<(u64, i64)> {
        let (queue, until, expired) = (&self.queue, self.until, &mut self.expired);
        let running = self.running;
        self.own.retain(|ticket, own| {
            let lives = running || own.expiry(until) > now;
            if !lives && let Some(created) = queue.created(&node.ticket(*ticket)) {
                expired.insert(*ticket, created);
            }
            lives
        });
        expired.iter().map(|(t, created)| (*t, *created)).collect()
    }

    /// Notes that the expired keys of these tickets are gone, or were created again.
    pub(super) fn expired_removed(&mut self, tickets: &[(u64, i64)]) {
        for (ticket, created) in tickets {
            if self.expired.get(ticket) == Some(created) {
                self.expired.remove(ticket);
            }
        }
    }

    /// Returns what is left of a ticket's lease.
    pub(super) fn lease_left(&self, ticket: u64, now: Instant) -> Option<Duration> {
        let own = self.own.get(&ticket)?;
        Some(own.expiry(self.until).saturating_duration_since(now))
    }
}

// === impl OwnTicket ===

impl OwnTicket {
    fn expiry(&self, name_until: Instant) -> Instant {
        match self.granted {
            true => self.until,
            false => self.until.max(name_until),
        }
    }
}

/// Returns the fencing token: the revision that created the ticket's key. Later tickets have higher ones.
fn token(created: i64) -> u64 {
    u64::try_from(created).unwrap_or(0)
}

pub(super) fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}
