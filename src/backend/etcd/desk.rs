//! What this process knows of one name: its own tickets, and the line as it was seen last. Pure.

use super::line::Line;
use super::wire;
use crate::backend::{Call, Grant, Outcome, TicketState};
use crate::name::Node;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;
use tokio::time::Instant;

#[derive(Debug)]
pub(super) struct Desk {
    /// Of the last call.
    pub(super) number: u64,
    /// Counts the calls that were begun. One whose number this is not any more has been overtaken.
    pub(super) run: u64,
    pub(super) running: bool,
    /// A write was sent and never answered: it may still be carried out, unless it is fenced off.
    pub(super) doubt: bool,
    limit: u32,
    /// Some ticket may wait under another limit than that.
    relimit: bool,
    /// The last word about this name, and its lease: no place in the line outlives that.
    until: Instant,
    own: BTreeMap<u64, Own>,
    line: Line,
    /// Tickets that have run out and whose keys are being removed, with the revisions that created them.
    expired: HashMap<u64, i64>,
    /// Which watch follows the line, if one does, and whether it has begun to.
    pub(super) watch: Option<u64>,
    pub(super) watched: bool,
}

/// A ticket of this process.
#[derive(Debug)]
struct Own {
    /// One lease after the last call that named it. Only what holds has a time of its own.
    until: Instant,
    /// It waits, or has waited: not a mere try.
    acquired: bool,
    /// It was seen to hold. From then on it does for as long as its key is there.
    granted: bool,
    /// Its key was seen.
    seen: bool,
}

/// What a call has to write before it can look.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Tickets whose keys go, and whether each was known to hold.
    pub(super) release: Vec<(u64, bool)>,
    /// What has run out and goes too, lest it be taken for what is to come.
    pub(super) clear: Vec<u64>,
    /// Tickets that wait under another limit than the call's, with the revisions that created them.
    pub(super) relimit: Vec<(u64, i64)>,
    /// New tickets.
    pub(super) acquire: Vec<u64>,
    /// The line as it is before the call changes it has to be seen.
    pub(super) look_before: bool,
}

/// What a call has found.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// As it was before the call changed it.
    pub(super) before: Option<Line>,
    /// Tickets that left, with whether they held until then.
    pub(super) released: HashMap<u64, bool>,
    pub(super) after: Line,
    /// Tries that were refused.
    pub(super) refused: Vec<u64>,
}

// === impl Desk ===

impl Desk {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            number: 0,
            run: 0,
            running: false,
            doubt: false,
            limit: 0,
            relimit: false,
            until: now,
            own: BTreeMap::new(),
            line: Line::default(),
            expired: HashMap::new(),
            watch: None,
            watched: false,
        }
    }

    /// A call comes. `None` if a later one came before; else the number of its run.
    pub(super) fn begin(&mut self, call: &Call, now: Instant) -> Option<u64> {
        if call.number < self.number {
            return None;
        }
        self.number = call.number;
        self.run += 1;
        // One that was given up may still have something on its way.
        self.doubt |= self.running;
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

    /// Nothing here has to be kept.
    pub(super) fn is_idle(&self) -> bool {
        !self.running && self.own.is_empty() && self.expired.is_empty()
    }

    /// Nothing here has to be remembered.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.is_idle() && self.until <= now
    }

    pub(super) fn needs_lease(&self, call: &Call) -> bool {
        !call.acquire.is_empty()
            || !call.try_acquire.is_empty()
            || call
                .renew
                .iter()
                .any(|ticket| self.own.contains_key(ticket))
    }

    /// Everything of this process is gone.
    pub(super) fn lose(&mut self) {
        self.own.clear();
        self.expired.clear();
        self.line = Line::default();
        self.doubt = false;
        // The watch tells what changes from here on, which is no line: another one begins with a listing.
        self.watch = None;
        self.watched = false;
    }

    /// What this call has to write. Its new tickets are ours from now on.
    pub(super) fn plan(&mut self, node: &Node, call: &Call, now: Instant) -> Plan {
        let acquire: Vec<u64> = (call.acquire.iter())
            .filter(|ticket| self.own.get(ticket).is_none_or(|own| !own.seen))
            .copied()
            .collect();
        for ticket in &acquire {
            self.add(*ticket, true, now + call.lease);
        }
        let known =
            |ticket: &&u64| self.own.contains_key(ticket) || self.expired.contains_key(ticket);
        let release: Vec<(u64, bool)> = (call.release.iter().filter(known))
            .map(|ticket| (*ticket, self.is_granted(*ticket)))
            .collect();
        let entering = acquire.iter().chain(&call.try_acquire);
        let clear = entering
            .filter(|ticket| self.expired.contains_key(ticket))
            .copied()
            .collect();
        let stays = |ticket: &u64| !call.release.contains(ticket);
        let waiting = (self.own.iter())
            .filter(|(ticket, own)| own.acquired && own.seen && !own.granted && stays(ticket))
            .filter_map(|(ticket, _)| Some((*ticket, self.line.full(&node.ticket(*ticket))?)));
        self.relimit |= self.limit != call.limit;
        self.limit = call.limit;
        let waiting: Vec<(u64, (i64, u32))> = match self.relimit || !release.is_empty() {
            true => waiting.collect(),
            false => Vec::new(),
        };
        let relimit: Vec<(u64, i64)> = (waiting.iter())
            .filter(|(_, (_, limit))| *limit != call.limit)
            .map(|(ticket, (created, _))| (*ticket, *created))
            .collect();
        let changes = !release.is_empty() || !relimit.is_empty();
        let unsure = release.iter().any(|(_, granted)| !granted);
        Plan {
            look_before: unsure || (changes && !waiting.is_empty()),
            release,
            clear,
            relimit,
            acquire,
        }
    }

    /// Every ticket that waits has the limit of the last call.
    pub(super) fn relimited(&mut self, limit: u32) {
        self.relimit &= self.limit != limit;
    }

    /// A ticket's key is about to be written.
    pub(super) fn add(&mut self, ticket: u64, acquired: bool, until: Instant) {
        let own = self.own.entry(ticket).or_insert(Own {
            until,
            acquired,
            granted: false,
            seen: false,
        });
        own.until = own.until.max(until);
    }

    /// A ticket's key was made just now, so whatever it was before is over.
    pub(super) fn made(&mut self, ticket: u64) {
        if let Some(own) = self.own.get_mut(&ticket) {
            own.granted = false;
        }
        self.expired.remove(&ticket);
    }

    /// Whether a ticket is ours and its key was seen.
    pub(super) fn has(&self, ticket: u64) -> bool {
        self.own.get(&ticket).is_some_and(|own| own.seen)
    }

    /// The newest revision that was seen.
    pub(super) fn revision(&self) -> i64 {
        self.line.revision()
    }

    /// Whether it is a try that nobody has been told of.
    pub(super) fn is_mere_try(&self, ticket: u64) -> bool {
        self.own.get(&ticket).is_some_and(|own| !own.acquired)
    }

    /// All tickets that are ours or on their way out.
    pub(super) fn knows(&self, ticket: u64) -> bool {
        self.own.contains_key(&ticket) || self.expired.contains_key(&ticket)
    }

    pub(super) fn is_granted(&self, ticket: u64) -> bool {
        self.own.get(&ticket).is_some_and(|own| own.granted)
    }

    /// These keys are gone.
    pub(super) fn removed(&mut self, tickets: &[u64]) {
        for ticket in tickets {
            self.own.remove(ticket);
            self.expired.remove(ticket);
        }
    }

    /// The line as the newest listing shows it.
    pub(super) fn see(&mut self, line: &Line) {
        // A watch may be ahead.
        if line.revision() >= self.line.revision() {
            self.line = line.clone();
        }
    }

    pub(super) fn line(&mut self) -> &mut Line {
        &mut self.line
    }

    /// Looks what became of our tickets. Returns those that waited and are newly seen to hold.
    pub(super) fn look(&mut self, node: &Node) -> Vec<Grant> {
        let mut held: HashMap<u64, i64> = HashMap::new();
        for (created, place) in self.line.holders() {
            if let Some(number) = wire::own_number(&place.ticket, node) {
                held.insert(number, created);
            }
        }
        let (line, until) = (&self.line, self.until);
        let maybe = self.running || self.doubt;
        let mut grants = Vec::new();
        self.own.retain(|ticket, own| {
            let there = line.created(&node.ticket(*ticket)).is_some();
            if !there {
                // Not there any more, or not there yet.
                return !own.seen && maybe;
            }
            own.seen = true;
            if let Some(created) = held.get(ticket)
                && !own.granted
                && own.acquired
            {
                own.granted = true;
                // Its node's last word about the name counts for what waited.
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

    /// Some ticket of ours waits.
    pub(super) fn waits(&self) -> bool {
        self.own.values().any(|own| own.acquired && !own.granted)
    }

    /// A try that got in is a permit like any other.
    pub(super) fn admit(&mut self, ticket: u64) {
        if let Some(own) = self.own.get_mut(&ticket) {
            own.granted = true;
            own.acquired = true;
            own.seen = true;
        }
    }

    /// What a call is answered, and the grants that the answer does not tell of.
    pub(super) fn answer(
        &mut self,
        node: &Node,
        call: &Call,
        found: &Found,
        poll: Duration,
    ) -> (Outcome, Vec<Grant>) {
        self.see(&found.after);
        let news = self.look(node);
        let waited: Vec<u64> = (found.before.iter())
            .flat_map(Line::waiters)
            .filter_map(|(_, place)| wire::own_number(&place.ticket, node))
            .collect();
        let named = |ticket: &u64| {
            let mut named = call
                .acquire
                .iter()
                .chain(&call.renew)
                .chain(&call.try_acquire);
            named.any(|named| named == ticket)
        };
        let (granted, others): (Vec<Grant>, Vec<Grant>) = news
            .into_iter()
            .partition(|grant| waited.contains(&grant.ticket));
        let pushes = others.into_iter().filter(|grant| !named(&grant.ticket));
        let extra = self.extra(node);
        let waits = self.waits();
        let often = self
            .line
            .shortest_lease()
            .unwrap_or(call.lease)
            .min(call.lease)
            * 9
            / 20;
        let outcome = Outcome {
            released: (call.release.iter())
                .map(|ticket| found.released.get(ticket).copied().unwrap_or(false))
                .collect(),
            renewed: call.renew.iter().map(|t| self.renewed(node, *t)).collect(),
            acquired: call.acquire.iter().map(|t| self.state(node, *t)).collect(),
            tried: (call.try_acquire.iter())
                .map(|ticket| match found.refused.contains(ticket) {
                    true => TicketState::Refused,
                    false => self.state(node, *ticket),
                })
                .collect(),
            granted,
            in_use: count(self.line.in_use() + extra),
            queued: count(self.line.len() - self.line.in_use() - extra),
            poll_after: waits.then_some(match self.watched {
                true => often,
                false => often.min(poll),
            }),
        };
        (outcome, pushes.collect())
    }

    /// How many of ours hold though the line as it is now would not let them in: a limit was lowered before them.
    fn extra(&self, node: &Node) -> usize {
        let waiters = self.line.waiters();
        let own = waiters.filter_map(|(_, place)| wire::own_number(&place.ticket, node));
        own.filter(|ticket| self.is_granted(*ticket)).count()
    }

    fn state(&self, node: &Node, ticket: u64) -> TicketState {
        let Some(own) = self.own.get(&ticket) else {
            return TicketState::Gone;
        };
        match self.line.created(&node.ticket(ticket)) {
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

    /// When the next of our tickets runs out. While a call is under way none does: its gate is speaking.
    pub(super) fn next_end(&self) -> Option<Instant> {
        if self.running {
            return None;
        }
        let ends = self.own.values().map(|own| own.end(self.until));
        ends.min()
    }

    /// Everything runs so much longer.
    pub(super) fn forgive(&mut self, late: Duration) {
        self.until += late;
        self.own.values_mut().for_each(|own| own.until += late);
    }

    /// Nothing of this process holds or waits.
    pub(super) fn is_empty(&self) -> bool {
        self.own.is_empty()
    }

    /// Takes out what has run out by now. Returns whatever has to be removed, also from before.
    pub(super) fn expire(&mut self, node: &Node, now: Instant) -> Vec<(u64, i64)> {
        let (line, until, expired) = (&self.line, self.until, &mut self.expired);
        let running = self.running;
        self.own.retain(|ticket, own| {
            let alive = running || own.end(until) > now;
            if !alive && let Some(created) = line.created(&node.ticket(*ticket)) {
                expired.insert(*ticket, created);
            }
            alive
        });
        expired.iter().map(|(t, created)| (*t, *created)).collect()
    }

    /// These keys are gone, or were made anew.
    pub(super) fn cleared(&mut self, tickets: &[(u64, i64)]) {
        for (ticket, created) in tickets {
            if self.expired.get(ticket) == Some(created) {
                self.expired.remove(ticket);
            }
        }
    }

    /// What is left of a ticket's lease.
    pub(super) fn lease_left(&self, ticket: u64, now: Instant) -> Option<Duration> {
        let own = self.own.get(&ticket)?;
        Some(own.end(self.until).saturating_duration_since(now))
    }
}

// === impl Own ===

impl Own {
    fn end(&self, word: Instant) -> Instant {
        match self.granted {
            true => self.until,
            false => self.until.max(word),
        }
    }
}

/// The revision that created the key of a mutex's ticket: later tickets have higher ones.
pub(super) fn token(created: i64) -> u64 {
    u64::try_from(created).unwrap_or(0)
}

pub(super) fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}
