//! Executes one call: deletes the nodes of released tickets, creates those of new ones, and reads the queue to see which hold.
//!
//! A request is sent when its future is made, and ZooKeeper executes the requests of one session in that order. So each request is
//! sent under the lock, after a check that no later call has begun. That way an earlier call never changes anything after a later
//! one, and a listing that was requested after a change shows the change.

use super::connect::InFlight;
use super::errors;
use super::inspect::count;
use super::name_state::{CreatedNode, NameState, OwnTicket};
use super::path::{self, Entry, Terms};
use super::queue::TicketQueue;
use super::read::SYNC;
use super::session_state::Shared;
use crate::backend::{Call, Event, Grant, Outcome, Reply, TicketState};
use crate::clock::now;
use crate::error::{Error, ErrorKind};
use crate::name::Node;
use futures_util::future::join_all;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use zookeeper_client::{self as zk, CreateMode};

/// How often a call creates a ticket that the queue does not contain afterwards.
const ROUNDS: u32 = 5;

/// A call in progress. It is the latest about its name until another begins.
struct Run<'a> {
    shared: &'a Arc<Shared>,
    call: &'a Call,
    /// The path of the name's container.
    parent: String,
}

/// What a call has found out.
#[derive(Default)]
struct Findings {
    tickets: TicketQueue,
    /// The tickets that this call has created.
    created: HashSet<u64>,
}

// === impl Shared ===

impl Shared {
    pub(super) async fn exchange(self: &Arc<Self>, call: &Call) -> Result<Reply, Error> {
        let Some(run) = Run::begin(self, call) else {
            return Ok(Reply::Stale);
        };
        let work = self.connection(Some(call.lease)).await?;
        let outcome = run.execute(&work).await;
        work.end_with(&outcome);
        Ok(Reply::Done(outcome?))
    }
}

// === impl Run ===

impl<'a> Run<'a> {
    /// Returns `None` if a later call about this name began before.
    fn begin(shared: &'a Arc<Shared>, call: &'a Call) -> Option<Self> {
        let now = now();
        let mut state = shared.state();
        state.tidy(now);
        let name = state.names.entry(call.queue.clone());
        let name = name.or_insert_with(|| NameState::new(now));
        name.begin(call, now).then(|| Self {
            shared,
            call,
            parent: shared.parent(&call.queue),
        })
    }

    /// Accesses the state of the name and sends requests. Fails if a later call has begun or the connection was replaced.
    fn with<T>(&self, epoch: u64, act: impl FnOnce(&mut NameState) -> T) -> Result<T, Error> {
        let mut state = self.shared.state();
        match state.name(epoch, &self.call.queue) {
            Some(name) if name.number == self.call.number => Ok(act(name)),
            _ => Err(errors::superseded()),
        }
    }

    async fn execute(&self, work: &InFlight<'_>) -> Result<Outcome, Error> {
        let (call, shared, epoch) = (self.call, self.shared, work.epoch());
        let client = work.client();
        let reads_first = self.with(epoch, |name| name.has_to_read_first(call))?;
        let mut pushes = Vec::new();
        if reads_first {
            let tickets = self.read(work).await?;
            pushes = self.with(epoch, |name| name.grant(&shared.node, &tickets))?;
        }
        let released = self.release(work).await?;
        self.update_limits(work)?;
        let Findings { tickets, created } = self.acquire(work).await?;
        let (mut outcome, refused, grants) = self.with(epoch, |name| {
            let grants = name.grant(&shared.node, &tickets);
            let outcome = outcome(name, call, &tickets, &shared.node);
            let refused: Vec<String> = (call.try_acquire.iter().zip(&outcome.tried))
                .filter(|(_, state)| **state == TicketState::Refused)
                .filter_map(|(number, _)| name.tickets.get(number)?.node.clone())
                .map(|node| self.path(&node.name))
                .collect();
            (outcome, refused, grants)
        })?;
        outcome.released = released;
        // What this call granted is in its answer. What other nodes granted is pushed, unless the call names it.
        for (number, token) in grants {
            if reads_first && !created.contains(&number) {
                outcome.granted.push(Grant::new(number, token));
            } else {
                pushes.push((number, token));
            }
        }
        if !refused.is_empty() {
            let deletes = self.with(epoch, |_| {
                let deletes = refused.iter().map(|path| client.delete(path, None));
                deletes.collect::<Vec<_>>()
            })?;
            for deleted in join_all(deletes).await {
                self.expect_gone(deleted)?;
            }
            outcome.queued = outcome.queued.saturating_sub(count(refused.len()));
        }
        let starts_watch = self.with(epoch, |name| {
            for (number, state) in call.try_acquire.iter().zip(&outcome.tried) {
                if *state == TicketState::Refused {
                    name.tickets.remove(number);
                }
            }
            if name.has_queued() {
                outcome.poll_after = Some(call.lease * 9 / 20);
                !std::mem::replace(&mut name.is_watched, true)
            } else {
                false
            }
        })?;
        if starts_watch {
            shared.watch(call.queue.clone(), work.connection());
        }
        let is_named = |number: &u64| {
            (call
                .acquire
                .iter()
                .chain(&call.try_acquire)
                .chain(&call.renew))
            .any(|n| n == number)
        };
        for (ticket, token) in pushes {
            if !is_named(&ticket) && !call.release.contains(&ticket) {
                let queue = call.queue.clone();
                let grant = Grant { ticket, token };
                shared.events.send(Event::Granted { queue, grant });
            }
        }
        Ok(outcome)
    }

    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.parent)
    }

    /// The node is deleted, or was gone already.
    fn expect_gone(&self, deleted: Result<(), zk::Error>) -> Result<(), Error> {
        match deleted {
            Ok(()) | Err(zk::Error::NoNode) => Ok(()),
            Err(error) => Err(self.shared.error(&error, "delete a ticket")),
        }
    }

    /// Reads the queue. Adopts nodes without an answered creation.
    async fn read(&self, work: &InFlight<'_>) -> Result<TicketQueue, Error> {
        let client = work.client();
        let (sync, list) = self.with(work.epoch(), |_| {
            (client.sync("/"), client.list_children(&self.parent))
        })?;
        let (synced, names) = futures_util::join!(sync, list);
        synced.map_err(|error| self.shared.error(&error, SYNC))?;
        self.reconcile(work, self.shared.entries(names)?).await
    }

    /// Compares a listing with this node's tickets: adopts nodes without an answered creation, deletes nodes without a ticket, and
    /// determines which tickets hold.
    async fn reconcile(
        &self,
        work: &InFlight<'_>,
        mut entries: Vec<Entry>,
    ) -> Result<TicketQueue, Error> {
        let (client, epoch) = (work.client(), work.epoch());
        let (adopt, mut unknown) =
            self.with(epoch, |name| name.compare(&self.shared.node, &entries))?;
        for (number, node) in adopt {
            // The node of an earlier session ends with that session. Only one of this session is adopted.
            let path = self.path(&node);
            match client.get_data(&path).await {
                Ok((data, stat)) if stat.ephemeral_owner == client.session_id().0 => {
                    let terms = self.with(epoch, |name| {
                        let lease = name.terms.lease;
                        let ticket = name.tickets.get_mut(&number)?;
                        ticket.node = Some(CreatedNode::new(node, stat.czxid));
                        let limit = ticket.limit;
                        Some(Terms { limit, lease })
                    })?;
                    if let Some(terms) = terms.filter(|terms| Terms::parse(&data) != Some(*terms)) {
                        let update = client.set_data(&path, &terms.to_data(), None);
                        let _ = update.await;
                    }
                }
                Ok(_) => unknown.push(node),
                Err(zk::Error::NoNode) => entries.retain(|entry| entry.name != node),
                Err(error) => return Err(self.shared.error(&error, "read a ticket")),
            }
        }
        self.sweep(work, &unknown)?;
        entries.retain(|entry| !unknown.contains(&entry.name));
        (self.shared)
            .evaluate(client, epoch, &self.call.queue, &entries)
            .await
    }

    /// Deletes nodes of this process without a ticket, which are those of an earlier session. Does not await the answers.
    fn sweep(&self, work: &InFlight<'_>, unknown: &[String]) -> Result<(), Error> {
        let client = work.client();
        self.with(work.epoch(), |_| {
            for node in unknown {
                // The request is sent when its future is made.
                drop(client.delete(&self.path(node), None));
            }
        })
    }

    /// Deletes the nodes of the released tickets. Returns for each ticket whether it held until now.
    async fn release(&self, work: &InFlight<'_>) -> Result<Vec<bool>, Error> {
        let (call, client, epoch) = (self.call, work.client(), work.epoch());
        let (released, paths) = self.with(epoch, |name| {
            let (mut released, mut paths) = (Vec::new(), Vec::new());
            for number in &call.release {
                let ticket = name.tickets.get(number);
                released.push(ticket.is_some_and(|ticket| ticket.granted));
                paths.extend(ticket.and_then(|ticket| ticket.node.clone()));
            }
            let paths: Vec<String> = paths.iter().map(|node| self.path(&node.name)).collect();
            (released, paths)
        })?;
        let deletes = self.with(epoch, |_| {
            let deletes = paths.iter().map(|path| client.delete(path, None));
            deletes.collect::<Vec<_>>()
        })?;
        for deleted in join_all(deletes).await {
            self.expect_gone(deleted)?;
        }
        self.with(epoch, |name| {
            for number in &call.release {
                name.tickets.remove(number);
            }
        })?;
        Ok(released)
    }

    /// Applies a new limit to this node's queued tickets.
    fn update_limits(&self, work: &InFlight<'_>) -> Result<(), Error> {
        let (call, client) = (self.call, work.client());
        self.with(work.epoch(), |name| {
            if name.terms.limit == call.limit {
                return;
            }
            name.terms.limit = call.limit;
            let terms = name.terms;
            for ticket in name.tickets.values_mut().filter(|t| !t.granted) {
                ticket.limit = call.limit;
                if let Some(node) = &ticket.node {
                    drop(client.set_data(&self.path(&node.name), &terms.to_data(), None));
                }
            }
        })
    }

    /// Creates the nodes of new tickets, and those that were lost, and reads the queue.
    async fn acquire(&self, work: &InFlight<'_>) -> Result<Findings, Error> {
        let (call, shared, epoch) = (self.call, self.shared, work.epoch());
        let client = work.client();
        let mut findings = Findings::default();
        // A ticket that was sent before is created again only if the queue does not contain it.
        let mut missing = self.with(epoch, |name| {
            let named = call.acquire.iter().chain(&call.try_acquire);
            let new = named.filter(|number| !name.tickets.contains_key(number));
            new.copied().collect::<Vec<u64>>()
        })?;
        for _ in 0..ROUNDS {
            let stems: Vec<(u64, String)> = (missing.iter())
                .map(|number| (*number, path::stem(&self.parent, &shared.node, *number)))
                .collect();
            let mode = shared.create_options(CreateMode::EphemeralSequential);
            let (creates, sync, list) = self.with(epoch, |name| {
                let terms = Terms {
                    limit: call.limit,
                    lease: call.lease,
                };
                name.terms = terms;
                name.has_created = true;
                let until = now() + call.lease;
                let creates: Vec<_> = (stems.iter())
                    .map(|(number, stem)| {
                        let ticket = OwnTicket {
                            node: None,
                            limit: call.limit,
                            until,
                            granted: false,
                        };
                        name.tickets.insert(*number, ticket);
                        client.create(stem, &terms.to_data(), &mode)
                    })
                    .collect();
                (
                    creates,
                    client.sync("/"),
                    client.list_children(&self.parent),
                )
            })?;
            let (creates, synced, names) = futures_util::join!(join_all(creates), sync, list);
            let mut has_no_parent = false;
            let mut failed = None;
            for ((number, stem), create) in stems.iter().zip(creates) {
                match create {
                    Ok((stat, sequence)) => {
                        let node = format!("{stem}{sequence}");
                        let node = node.get(self.parent.len() + 1..).unwrap_or_default();
                        findings.created.insert(*number);
                        self.with(epoch, |name| {
                            if let Some(ticket) = name.tickets.get_mut(number) {
                                ticket.node = Some(CreatedNode::new(node.to_owned(), stat.czxid));
                            }
                        })?;
                    }
                    Err(zk::Error::NoNode) => has_no_parent = true,
                    Err(error) => failed = Some(shared.error(&error, "create a ticket")),
                }
            }
            if let Some(error) = failed {
                return Err(error);
            }
            synced.map_err(|error| shared.error(&error, SYNC))?;
            findings.tickets = self.reconcile(work, shared.entries(names)?).await?;
            missing = self.with(epoch, |name| self.missing(name, &findings.tickets))?;
            if missing.is_empty() {
                return Ok(findings);
            }
            if has_no_parent || findings.tickets.entries.is_empty() {
                shared.create_parent(client, &self.parent).await?;
            }
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            format!(
                "ZooKeeper at {} does not list a ticket that was just created, after {ROUNDS} attempts",
                shared.servers()
            ),
        ))
    }

    /// Returns the tickets to acquire that the queue does not contain. Forgets other tickets that it does not contain.
    fn missing(&self, name: &mut NameState, tickets: &TicketQueue) -> Vec<u64> {
        let present: HashSet<&str> = (tickets.entries.iter())
            .map(|entry| entry.name.as_str())
            .collect();
        let named: Vec<u64> = (self.call.acquire.iter().chain(&self.call.try_acquire))
            .copied()
            .collect();
        let to_acquire: HashSet<u64> = named.iter().copied().collect();
        name.tickets.retain(|number, ticket| {
            let node = ticket.node.as_ref();
            to_acquire.contains(number)
                || node.is_some_and(|node| present.contains(node.name.as_str()))
        });
        let is_missing = |number: &u64| {
            let node = name.tickets.get(number).and_then(|t| t.node.as_ref());
            node.is_none_or(|node| !present.contains(node.name.as_str()))
        };
        named.into_iter().filter(is_missing).collect()
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        if let Some(name) = state.names.get_mut(&self.call.queue)
            && name.number == self.call.number
        {
            name.end();
        }
    }
}

fn outcome(name: &NameState, call: &Call, tickets: &TicketQueue, node: &Node) -> Outcome {
    let holding: HashMap<u64, u64> = (name.holding(node, tickets).into_iter())
        .filter_map(|number| Some((number, name.tickets.get(&number)?.node.as_ref()?.token)))
        .collect();
    let state = |number: &u64, otherwise: TicketState| {
        let token = holding.get(number).copied();
        token.map_or(otherwise, |token| TicketState::Held { token })
    };
    let states = |numbers: &[u64], otherwise| numbers.iter().map(|n| state(n, otherwise)).collect();
    Outcome {
        released: Vec::new(),
        renewed: states(&call.renew, TicketState::Gone),
        acquired: states(&call.acquire, TicketState::Queued),
        tried: states(&call.try_acquire, TicketState::Refused),
        granted: Vec::new(),
        in_use: count(tickets.in_use),
        queued: count(tickets.entries.len().saturating_sub(tickets.in_use)),
        poll_after: None,
    }
}
