//! What this process knows of its own tickets under one name. Pure: time comes as an argument.

use super::path::{Entry, Terms};
use crate::backend::Call;
use crate::name::Node;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Our side of one name.
#[derive(Clone, Debug)]
pub(super) struct Room {
    /// Of the last call. What an earlier one still wants to send is not sent any more.
    pub(super) number: u64,
    pub(super) terms: Terms,
    /// The last word about this name, and a lease.
    pub(super) until: Instant,
    pub(super) tickets: BTreeMap<u64, Ticket>,
    /// Something was created: it may come late, and has to be looked for.
    pub(super) used: bool,
    /// What the nodes of others say. `None`: it is no ticket.
    pub(super) others: HashMap<String, Option<Terms>>,
    /// A call is under way: it sees for itself what is granted.
    pub(super) busy: bool,
    /// Something changed while it was.
    pub(super) missed: bool,
    /// Somebody watches this name for us.
    pub(super) watched: bool,
    /// Wakes him.
    pub(super) kick: Arc<Notify>,
}

/// One of our own tickets, from before its node is created until it is seen to be gone.
#[derive(Clone, Debug)]
pub(super) struct Ticket {
    /// Its node, once we know it: until then it may or may not be there.
    pub(super) node: Option<Created>,
    pub(super) limit: u32,
    /// When it was named last, and a lease.
    pub(super) until: Instant,
    /// It was seen to hold.
    pub(super) granted: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Created {
    pub(super) name: String,
    pub(super) token: u64,
}

/// Who is in the line, as far as it matters to us.
#[derive(Clone, Debug, Default)]
pub(super) struct View {
    pub(super) line: Vec<Entry>,
    /// So many of the first hold.
    pub(super) in_use: usize,
}

// === impl Room ===

impl Room {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            number: 0,
            terms: Terms {
                limit: 1,
                lease: Duration::ZERO,
            },
            until: now,
            tickets: BTreeMap::new(),
            used: false,
            others: HashMap::new(),
            busy: false,
            missed: false,
            watched: false,
            kick: Arc::default(),
        }
    }

    /// Notes what a call says. `false`: a later one was here before.
    pub(super) fn begin(&mut self, call: &Call, now: Instant) -> bool {
        if call.number < self.number {
            return false;
        }
        self.number = call.number;
        self.terms.lease = call.lease;
        self.until = self.until.max(now + call.lease);
        for number in call
            .renew
            .iter()
            .chain(&call.acquire)
            .chain(&call.try_acquire)
        {
            if let Some(ticket) = self.tickets.get_mut(number) {
                ticket.until = ticket.until.max(now + call.lease);
            }
        }
        self.busy = true;
        true
    }

    /// The call is over. Whoever watches looks after what he left to it.
    pub(super) fn end(&mut self) {
        self.busy = false;
        if std::mem::take(&mut self.missed) {
            self.kick.notify_one();
        }
    }

    /// Nobody has spoken of it for twice its lease: a call that was given up meanwhile still finds its number.
    pub(super) fn is_idle(&self, now: Instant) -> bool {
        self.tickets.is_empty() && !self.busy && self.until + self.terms.lease <= now
    }

    pub(super) fn waits(&self) -> bool {
        self.tickets.values().any(|ticket| !ticket.granted)
    }

    /// Until when a ticket lives, if nothing more is said.
    pub(super) fn lives_until(&self, ticket: &Ticket) -> Instant {
        match ticket.granted {
            true => ticket.until,
            false => ticket.until.max(self.until),
        }
    }

    /// Does it have to be known, before this call changes anything, who holds?
    pub(super) fn has_to_look_first(&self, call: &Call) -> bool {
        let releases = |number: &u64| call.release.contains(number);
        let unsure = |number: &u64| self.tickets.get(number).is_some_and(|t| !t.granted);
        call.release.iter().any(unsure)
            || (!call.release.is_empty() || call.limit != self.terms.limit)
                && (self.tickets.iter()).any(|(number, t)| !t.granted && !releases(number))
    }

    /// What is known of a ticket's terms. Of our own the newest, which may be on their way to its node.
    fn limit(&self, entry: &Entry, own: &HashMap<&str, u32>) -> Known {
        if let Some(limit) = own.get(entry.name.as_str()) {
            return Known::Limit(*limit);
        }
        match self.others.get(&entry.name) {
            Some(Some(terms)) => Known::Limit(terms.limit),
            Some(None) => Known::NoTicket,
            None => Known::Not,
        }
    }

    /// Who holds: the first tickets in line, each while fewer than its own limit are before it. `Err`: what has to be
    /// read first.
    pub(super) fn judge(&self, line: &[Entry]) -> Result<View, Vec<String>> {
        const MOST_READ: usize = 16;
        let own = self.own_limits();
        let (mut seen, mut missing, mut in_use, mut open) = (Vec::new(), Vec::new(), 0, true);
        for entry in line {
            match self.limit(entry, &own) {
                Known::NoTicket => continue,
                _ if !open => {}
                Known::Limit(limit) if missing.is_empty() => {
                    open = u64::try_from(in_use).is_ok_and(|in_use| in_use < u64::from(limit));
                    in_use += usize::from(open);
                }
                Known::Limit(_) => {}
                Known::Not => missing.push(entry.name.clone()),
            }
            if missing.len() >= MOST_READ {
                break;
            }
            seen.push(entry.clone());
        }
        if !missing.is_empty() {
            return Err(missing);
        }
        Ok(View { line: seen, in_use })
    }

    /// The node of another that holds one of ours back which has room itself: perhaps its limit was raised.
    pub(super) fn held_back_by(&self, view: &View) -> Option<String> {
        let own = self.own_limits();
        let blocker = view.line.get(view.in_use)?;
        if own.contains_key(blocker.name.as_str()) {
            return None;
        }
        let behind = view.line.iter().enumerate().skip(view.in_use + 1);
        let fits = behind.into_iter().any(|(at, entry)| {
            let limit = own.get(entry.name.as_str());
            limit.is_some_and(|limit| u32::try_from(at).is_ok_and(|at| at < *limit))
        });
        fits.then(|| blocker.name.clone())
    }

    fn own_limits(&self) -> HashMap<&str, u32> {
        let created = |ticket: &'_ Ticket| ticket.limit;
        self.tickets
            .values()
            .filter_map(|ticket| Some((ticket.node.as_ref()?.name.as_str(), created(ticket))))
            .collect()
    }

    /// Forgets what others said who are gone, and finds what is ours and unknown: nodes to adopt, and nodes to delete.
    pub(super) fn compare(
        &mut self,
        node: &Node,
        line: &[Entry],
    ) -> (Vec<(u64, String)>, Vec<String>) {
        let there: HashSet<&str> = line.iter().map(|entry| entry.name.as_str()).collect();
        self.others.retain(|name, _| there.contains(name.as_str()));
        let (mut adopt, mut unknown) = (Vec::new(), Vec::new());
        for entry in line {
            let Some(number) = entry.number_of(node) else {
                continue;
            };
            match self.tickets.get(&number) {
                Some(Ticket { node: None, .. }) => adopt.push((number, entry.name.clone())),
                Some(Ticket {
                    node: Some(created),
                    ..
                }) if created.name == entry.name => {}
                _ => unknown.push(entry.name.clone()),
            }
        }
        (adopt, unknown)
    }

    /// Our tickets that hold, in order of the line.
    pub(super) fn holding(&self, node: &Node, view: &View) -> Vec<u64> {
        let holders = view.line.iter().take(view.in_use);
        holders
            .filter_map(|entry| {
                let number = entry.number_of(node)?;
                let created = self.tickets.get(&number)?.node.as_ref()?;
                (created.name == entry.name).then_some(number)
            })
            .collect()
    }

    /// Marks what holds. Returns the tickets for which that is new.
    pub(super) fn grant(&mut self, node: &Node, view: &View) -> Vec<(u64, u64)> {
        let (holding, until) = (self.holding(node, view), self.until);
        let mut granted = Vec::new();
        for number in holding {
            if let Some(ticket) = self.tickets.get_mut(&number)
                && !std::mem::replace(&mut ticket.granted, true)
            {
                ticket.until = ticket.until.max(until);
                granted.extend(ticket.node.as_ref().map(|node| (number, node.token)));
            }
        }
        granted
    }
}

enum Known {
    Limit(u32),
    NoTicket,
    Not,
}
