//! The recipe: what a call does in ZooKeeper.
//!
//! A request is sent when its future is made, and ZooKeeper carries out what one session sends in that order. So whatever a
//! call sends it sends under the lock, once it has seen that no later call has begun: an earlier call never changes
//! anything behind a later one's back, and a list that was asked for after a change shows it.

use super::link::{Link, UnderWay};
use super::path::{self, Entry, Terms};
use super::room::{Created, Room, Ticket, View};
use crate::backend::{Call, Event, Grant, Inspection, Outcome, Reply, TicketInfo, TicketState};
use crate::clock::now;
use crate::error::{Error, ErrorKind};
use crate::name::Queue;
use futures_util::future::join_all;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use zookeeper_client::{self as zk, Acls, Client, CreateMode, CreateOptions};

/// The most tickets of each kind that an inspection lists.
const MOST_LISTED: usize = 1000;
/// How often a call looks for what it has created.
const ROUNDS: u32 = 5;

/// A call that is the latest about its name, until another begins.
struct Turn<'a> {
    link: &'a Arc<Link>,
    call: &'a Call,
    parent: String,
}

/// What a call found, so far.
#[derive(Default)]
struct Found {
    view: View,
    /// The tickets that this call has created.
    created: HashSet<u64>,
}

// === impl Link ===

impl Link {
    pub(super) async fn exchange(self: &Arc<Self>, call: &Call) -> Result<Reply, Error> {
        let Some(turn) = Turn::begin(self, call) else {
            return Ok(Reply::Stale);
        };
        let work = self.live(Some(call.lease)).await?;
        let outcome = turn.say(&work).await;
        work.done();
        Ok(Reply::Done(outcome?))
    }

    pub(super) fn parent(&self, queue: &Queue) -> String {
        path::parent(&self.settings.base(), queue)
    }

    fn options(&self, mode: CreateMode) -> CreateOptions<'static> {
        mode.with_acls(match self.settings.digest {
            Some(_) => Acls::creator_all(),
            None => Acls::anyone_all(),
        })
    }

    /// The tickets under a name, first in line first.
    pub(super) async fn list(&self, client: &Client, parent: &str) -> Result<Vec<Entry>, Error> {
        self.listed(client.list_children(parent).await)
    }

    pub(super) fn listed(
        &self,
        names: Result<Vec<String>, zk::Error>,
    ) -> Result<Vec<Entry>, Error> {
        match names {
            Ok(names) => Ok(path::line(&names)),
            Err(zk::Error::NoNode) => Ok(Vec::new()),
            Err(error) => Err(self.error(&error, "list the tickets of a name")),
        }
    }

    /// What the nodes of others say. One that has gone meanwhile counts until the next list shows it.
    async fn read(
        &self,
        client: &Client,
        parent: &str,
        names: &[String],
    ) -> Result<Vec<(String, Option<Terms>)>, Error> {
        let paths: Vec<String> = (names.iter())
            .map(|name| format!("{parent}/{name}"))
            .collect();
        let data = join_all(paths.iter().map(|path| client.get_data(path))).await;
        let gone = Terms {
            limit: u32::MAX,
            lease: Duration::ZERO,
        };
        (names.iter().zip(data))
            .map(|(name, data)| match data {
                Ok((data, _)) => Ok((name.clone(), Terms::parse(&data))),
                Err(zk::Error::NoNode) => Ok((name.clone(), Some(gone))),
                Err(error) => Err(self.error(&error, "read a ticket")),
            })
            .collect()
    }

    /// Who holds, by the list and by what each ticket says.
    pub(super) async fn judge(
        &self,
        client: &Client,
        epoch: u64,
        queue: &Queue,
        line: &[Entry],
    ) -> Result<View, Error> {
        let parent = self.parent(queue);
        let mut looked_twice = false;
        loop {
            let missing = {
                let mut state = self.state();
                let room = state.room(epoch, queue).ok_or_else(superseded)?;
                match room.judge(line) {
                    Ok(view) => match room.held_back_by(&view) {
                        Some(name) if !looked_twice => {
                            looked_twice = true;
                            vec![name]
                        }
                        _ => return Ok(view),
                    },
                    Err(missing) => missing,
                }
            };
            let read = self.read(client, &parent, &missing).await?;
            let mut state = self.state();
            let room = state.room(epoch, queue).ok_or_else(superseded)?;
            room.others.extend(read);
        }
    }

    /// Makes the container of a name, and what it is in.
    async fn make_parent(&self, client: &Client, parent: &str) -> Result<(), Error> {
        let act = "create a node below our prefix";
        let container = self.options(CreateMode::Container);
        match client.create(parent, &[], &container).await {
            Ok(_) | Err(zk::Error::NodeExists) => return Ok(()),
            Err(zk::Error::NoNode) => {}
            Err(error) => return Err(self.error(&error, act)),
        }
        let base = self.settings.base();
        let made = client
            .mkdir(&base, &self.options(CreateMode::Persistent))
            .await;
        made.map_err(|error| self.error(&error, "create the node of our prefix"))?;
        match client.create(parent, &[], &container).await {
            Ok(_) | Err(zk::Error::NodeExists) => Ok(()),
            Err(error) => Err(self.error(&error, act)),
        }
    }

    /// Again, if the connection is lost over it: nothing is changed.
    pub(super) async fn inspect(self: &Arc<Self>, queue: &Queue) -> Result<Inspection, Error> {
        match self.look_over(queue).await {
            Err(error) if error.kind() == ErrorKind::Unavailable => self.look_over(queue).await,
            seen => seen,
        }
    }

    async fn look_over(self: &Arc<Self>, queue: &Queue) -> Result<Inspection, Error> {
        let work = self.live(None).await?;
        let client = work.client();
        let parent = self.parent(queue);
        client.sync("/").await.map_err(|e| self.error(&e, "ask"))?;
        let line = self.list(client, &parent).await?;
        let now = now();
        let mut room = match self.state().rooms.get(queue) {
            Some(room) => room.clone(),
            None => Room::new(now),
        };
        let view = loop {
            match room.judge(&line) {
                Ok(view) => break view,
                Err(missing) => room
                    .others
                    .extend(self.read(client, &parent, &missing).await?),
            }
        };
        // Of those who wait nothing more is known than that they were here when they were read, or not even that.
        let listed = view.in_use + MOST_LISTED;
        let unread: Vec<String> = (view.line.iter().take(listed))
            .filter(|entry| entry.number_of(&self.node).is_none())
            .filter(|entry| !room.others.contains_key(&entry.name))
            .map(|entry| entry.name.clone())
            .collect();
        for names in unread.chunks(128) {
            room.others.extend(self.read(client, &parent, names).await?);
        }
        work.done();
        let info = |entry: &Entry| {
            let own = entry.number_of(&self.node);
            let own = own.and_then(|number| room.tickets.get(&number));
            let other = room.others.get(&entry.name).copied().flatten();
            TicketInfo {
                ticket: entry.ticket().to_owned(),
                node: entry.node().to_owned(),
                lease_left: match own {
                    Some(ticket) => room.lives_until(ticket).saturating_duration_since(now),
                    None => other.map_or(Duration::ZERO, |terms| terms.lease),
                },
                lingering: false,
            }
        };
        let (holders, waiters) = view.line.split_at(view.in_use.min(view.line.len()));
        let mut inspection = Inspection {
            in_use: count(holders.len()),
            queued: count(waiters.len()),
            holders: holders.iter().map(info).collect(),
            queue: waiters.iter().take(MOST_LISTED).map(info).collect(),
        };
        inspection.holders.sort_by_key(|info| info.lease_left);
        inspection.holders.truncate(MOST_LISTED);
        Ok(inspection)
    }

    pub(super) async fn evict(
        self: &Arc<Self>,
        queue: &Queue,
        ticket: &str,
    ) -> Result<bool, Error> {
        let work = self.live(None).await?;
        let client = work.client();
        let parent = self.parent(queue);
        client.sync("/").await.map_err(|e| self.error(&e, "ask"))?;
        let line = self.list(client, &parent).await?;
        let mut found = false;
        for entry in line.iter().filter(|entry| entry.ticket() == ticket) {
            match client
                .delete(&format!("{parent}/{}", entry.name), None)
                .await
            {
                Ok(()) => found = true,
                Err(zk::Error::NoNode) => {}
                Err(error) => return Err(self.error(&error, "delete a ticket")),
            }
        }
        work.done();
        Ok(found)
    }

    /// Everything that will be needed, once.
    pub(super) async fn check(self: &Arc<Self>, lease: Duration) -> Result<(), Error> {
        let work = self.live(Some(lease)).await?;
        let client = work.client();
        let queue = Queue::limit(format!("check:{}", self.node.as_str()).as_bytes())?;
        let parent = self.parent(&queue);
        self.make_parent(client, &parent).await?;
        let terms = Terms {
            limit: 1,
            lease: Duration::ZERO,
        };
        let stem = path::stem(&parent, &self.node, 0);
        let mode = self.options(CreateMode::EphemeralSequential);
        let created = client.create(&stem, &terms.to_data(), &mode).await;
        let (_, sequence) = created.map_err(|error| self.error(&error, "create a ticket"))?;
        let node = format!("{stem}{sequence}");
        let read = client.get_data(&node).await;
        let listed = client.list_children(&parent).await;
        let written = client.set_data(&node, &terms.to_data(), None).await;
        let deleted = client.delete(&node, None).await;
        let _ = client.delete(&parent, None).await;
        work.done();
        let (read, written) = (read.map(drop), written.map(drop));
        for (done, act) in [
            (read, "read a ticket"),
            (listed.map(drop), "list the tickets of a name"),
            (written, "write to a ticket"),
            (deleted, "delete a ticket"),
        ] {
            done.map_err(|error| self.error(&error, act))?;
        }
        Ok(())
    }
}

// === impl Turn ===

impl<'a> Turn<'a> {
    /// `None` if a later call about this name was here before.
    fn begin(link: &'a Arc<Link>, call: &'a Call) -> Option<Self> {
        let now = now();
        let mut state = link.state();
        state.tidy(now);
        let room = (state.rooms.entry(call.queue.clone())).or_insert_with(|| Room::new(now));
        room.begin(call, now).then(|| Self {
            link,
            call,
            parent: link.parent(&call.queue),
        })
    }

    /// Looks at what we know, and sends, if no later call has begun and the connection is still the one.
    fn with<T>(&self, epoch: u64, act: impl FnOnce(&mut Room) -> T) -> Result<T, Error> {
        let mut state = self.link.state();
        match state.room(epoch, &self.call.queue) {
            Some(room) if room.number == self.call.number => Ok(act(room)),
            _ => Err(superseded()),
        }
    }

    async fn say(&self, work: &UnderWay<'_>) -> Result<Outcome, Error> {
        let (call, link, epoch) = (self.call, self.link, work.epoch());
        let client = work.client();
        let looks_first = self.with(epoch, |room| room.has_to_look_first(call))?;
        let mut pushes = Vec::new();
        if looks_first {
            let view = self.look(work).await?;
            pushes = self.with(epoch, |room| room.grant(&link.node, &view))?;
        }
        let released = self.release(work).await?;
        self.update_limits(work)?;
        let Found { view, created } = self.acquire(work).await?;
        let (mut outcome, refused, news) = self.with(epoch, |room| {
            let news = room.grant(&link.node, &view);
            let outcome = answer(room, call, &view, &link.node);
            let refused: Vec<String> = (call.try_acquire.iter().zip(&outcome.tried))
                .filter(|(_, state)| **state == TicketState::Refused)
                .filter_map(|(number, _)| room.tickets.get(number)?.node.clone())
                .map(|node| self.path(&node.name))
                .collect();
            (outcome, refused, news)
        })?;
        outcome.released = released;
        // What this call granted is in its answer; what others granted is pushed, unless it is named.
        for (number, token) in news {
            if looks_first && !created.contains(&number) {
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
                self.gone(deleted)?;
            }
            outcome.queued = outcome.queued.saturating_sub(count(refused.len()));
        }
        let watches = self.with(epoch, |room| {
            for (number, state) in call.try_acquire.iter().zip(&outcome.tried) {
                if *state == TicketState::Refused {
                    room.tickets.remove(number);
                }
            }
            if room.waits() {
                outcome.poll_after = Some(call.lease * 9 / 20);
                !std::mem::replace(&mut room.watched, true)
            } else {
                false
            }
        })?;
        if watches {
            link.watch(call.queue.clone(), work.live());
        }
        let named = |number: &u64| {
            (call
                .acquire
                .iter()
                .chain(&call.try_acquire)
                .chain(&call.renew))
            .any(|n| n == number)
        };
        for (ticket, token) in pushes {
            if !named(&ticket) && !call.release.contains(&ticket) {
                let queue = call.queue.clone();
                let grant = Grant { ticket, token };
                link.events.send(Event::Granted { queue, grant });
            }
        }
        Ok(outcome)
    }

    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.parent)
    }

    fn gone(&self, deleted: Result<(), zk::Error>) -> Result<(), Error> {
        match deleted {
            Ok(()) | Err(zk::Error::NoNode) => Ok(()),
            Err(error) => Err(self.link.error(&error, "delete a ticket")),
        }
    }

    /// Who is in the line now. What is ours and was not known by its node is known afterwards.
    async fn look(&self, work: &UnderWay<'_>) -> Result<View, Error> {
        let client = work.client();
        let (sync, list) = self.with(work.epoch(), |_| {
            (client.sync("/"), client.list_children(&self.parent))
        })?;
        let (synced, names) = futures_util::join!(sync, list);
        synced.map_err(|error| self.link.error(&error, "ask"))?;
        self.take_in(work, self.link.listed(names)?).await
    }

    async fn take_in(&self, work: &UnderWay<'_>, mut line: Vec<Entry>) -> Result<View, Error> {
        let (client, epoch) = (work.client(), work.epoch());
        let (adopt, mut unknown) = self.with(epoch, |room| room.compare(&self.link.node, &line))?;
        for (number, name) in adopt {
            // The reply was lost: is it of this session? One of a former session goes by itself.
            let path = self.path(&name);
            match client.get_data(&path).await {
                Ok((data, stat)) if stat.ephemeral_owner == client.session_id().0 => {
                    let wanted = self.with(epoch, |room| {
                        let lease = room.terms.lease;
                        let ticket = room.tickets.get_mut(&number)?;
                        ticket.node = Some(created(name, stat.czxid));
                        let limit = ticket.limit;
                        Some(Terms { limit, lease })
                    })?;
                    if let Some(terms) = wanted.filter(|terms| Terms::parse(&data) != Some(*terms))
                    {
                        let update = client.set_data(&path, &terms.to_data(), None);
                        let _ = update.await;
                    }
                }
                Ok(_) => unknown.push(name),
                Err(zk::Error::NoNode) => line.retain(|entry| entry.name != name),
                Err(error) => return Err(self.link.error(&error, "read a ticket")),
            }
        }
        self.sweep(work, &unknown)?;
        line.retain(|entry| !unknown.contains(&entry.name));
        (self.link)
            .judge(client, epoch, &self.call.queue, &line)
            .await
    }

    /// Deletes what is ours and nobody knows: it is of a session that has ended. Nobody waits for that.
    fn sweep(&self, work: &UnderWay<'_>, unknown: &[String]) -> Result<(), Error> {
        let client = work.client();
        self.with(work.epoch(), |_| {
            for name in unknown {
                // Sent by this, though the answer is of no interest.
                drop(client.delete(&self.path(name), None));
            }
        })
    }

    /// Did each ticket that leaves hold until now?
    async fn release(&self, work: &UnderWay<'_>) -> Result<Vec<bool>, Error> {
        let (call, client, epoch) = (self.call, work.client(), work.epoch());
        let (released, paths) = self.with(epoch, |room| {
            let (mut released, mut paths) = (Vec::new(), Vec::new());
            for number in &call.release {
                let ticket = room.tickets.get(number);
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
            self.gone(deleted)?;
        }
        self.with(epoch, |room| {
            for number in &call.release {
                room.tickets.remove(number);
            }
        })?;
        Ok(released)
    }

    /// Whoever waits here waits by the newest limit.
    fn update_limits(&self, work: &UnderWay<'_>) -> Result<(), Error> {
        let (call, client) = (self.call, work.client());
        self.with(work.epoch(), |room| {
            if room.terms.limit == call.limit {
                return;
            }
            room.terms.limit = call.limit;
            let terms = room.terms;
            for ticket in room.tickets.values_mut().filter(|t| !t.granted) {
                ticket.limit = call.limit;
                if let Some(node) = &ticket.node {
                    drop(client.set_data(&self.path(&node.name), &terms.to_data(), None));
                }
            }
        })
    }

    /// Creates what wants in and is not there, and looks who is in.
    async fn acquire(&self, work: &UnderWay<'_>) -> Result<Found, Error> {
        let (call, link, epoch) = (self.call, self.link, work.epoch());
        let client = work.client();
        let mut found = Found::default();
        // What was never sent is created at once. What was is looked for first.
        let mut wanted = self.with(epoch, |room| {
            let wants = call.acquire.iter().chain(&call.try_acquire);
            let new = wants.filter(|number| !room.tickets.contains_key(number));
            new.copied().collect::<Vec<u64>>()
        })?;
        for _ in 0..ROUNDS {
            let stems: Vec<(u64, String)> = (wanted.iter())
                .map(|number| (*number, path::stem(&self.parent, &link.node, *number)))
                .collect();
            let mode = link.options(CreateMode::EphemeralSequential);
            let (creates, sync, list) = self.with(epoch, |room| {
                let terms = Terms {
                    limit: call.limit,
                    lease: call.lease,
                };
                room.terms = terms;
                room.used = true;
                let until = now() + call.lease;
                let creates: Vec<_> = (stems.iter())
                    .map(|(number, stem)| {
                        let ticket = Ticket {
                            node: None,
                            limit: call.limit,
                            until,
                            granted: false,
                        };
                        room.tickets.insert(*number, ticket);
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
            let mut homeless = false;
            let mut failed = None;
            for ((number, stem), create) in stems.iter().zip(creates) {
                match create {
                    Ok((stat, sequence)) => {
                        let name = format!("{stem}{sequence}");
                        let name = name.get(self.parent.len() + 1..).unwrap_or_default();
                        found.created.insert(*number);
                        self.with(epoch, |room| {
                            if let Some(ticket) = room.tickets.get_mut(number) {
                                ticket.node = Some(created(name.to_owned(), stat.czxid));
                            }
                        })?;
                    }
                    Err(zk::Error::NoNode) => homeless = true,
                    Err(error) => failed = Some(link.error(&error, "create a ticket")),
                }
            }
            if let Some(error) = failed {
                return Err(error);
            }
            synced.map_err(|error| link.error(&error, "ask"))?;
            found.view = self.take_in(work, link.listed(names)?).await?;
            wanted = self.with(epoch, |room| self.missing(room, &found.view))?;
            if wanted.is_empty() {
                return Ok(found);
            }
            if homeless || found.view.line.is_empty() {
                link.make_parent(client, &self.parent).await?;
            }
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            format!(
                "ZooKeeper at {} loses what is created as soon as it is there",
                link.servers()
            ),
        ))
    }

    /// What wants in and is not in the line. What else is not in the line is forgotten.
    fn missing(&self, room: &mut Room, view: &View) -> Vec<u64> {
        let there: HashSet<&str> = view.line.iter().map(|entry| entry.name.as_str()).collect();
        let wants: Vec<u64> = (self.call.acquire.iter().chain(&self.call.try_acquire))
            .copied()
            .collect();
        let wanted: HashSet<u64> = wants.iter().copied().collect();
        room.tickets.retain(|number, ticket| {
            let node = ticket.node.as_ref();
            wanted.contains(number) || node.is_some_and(|node| there.contains(node.name.as_str()))
        });
        let missing = |number: &u64| {
            let node = room.tickets.get(number).and_then(|t| t.node.as_ref());
            node.is_none_or(|node| !there.contains(node.name.as_str()))
        };
        wants.into_iter().filter(missing).collect()
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.link.state();
        if let Some(room) = state.rooms.get_mut(&self.call.queue)
            && room.number == self.call.number
        {
            room.end();
        }
    }
}

fn answer(room: &Room, call: &Call, view: &View, node: &crate::name::Node) -> Outcome {
    let holding: HashMap<u64, u64> = (room.holding(node, view).into_iter())
        .filter_map(|number| Some((number, room.tickets.get(&number)?.node.as_ref()?.token)))
        .collect();
    let state = |number: &u64, other: TicketState| {
        let token = holding.get(number).copied();
        token.map_or(other, |token| TicketState::Held { token })
    };
    let states = |numbers: &[u64], other| numbers.iter().map(|n| state(n, other)).collect();
    Outcome {
        released: Vec::new(),
        renewed: states(&call.renew, TicketState::Gone),
        acquired: states(&call.acquire, TicketState::Queued),
        tried: states(&call.try_acquire, TicketState::Refused),
        granted: Vec::new(),
        in_use: count(view.in_use),
        queued: count(view.line.len().saturating_sub(view.in_use)),
        poll_after: None,
    }
}

fn created(name: String, czxid: i64) -> Created {
    Created {
        name,
        token: u64::try_from(czxid).unwrap_or(0),
    }
}

pub(super) fn superseded() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "a later call of this process, or the loss of its session, ended this one",
    )
}

fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}
