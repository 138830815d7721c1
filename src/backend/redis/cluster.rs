//! The nodes of a cluster: which one has which slot, one connection to each that is used, and retries while that changes.
//!
//! Each connection subscribes to this process's channel: a ticket is granted at the node of its name, and that is where this
//! process's calls about the name go. The cluster forwards messages to its other nodes, so that the same push may arrive over
//! several connections: it is accepted from the connection of its name's node if there is one, else from any.

use super::connection::{Connection, Preamble, Target};
use super::endpoint::Endpoint;
use super::errors;
use super::route::{Route, SLOTS, slot};
use super::slot_map::{Address, Redirection, SlotMap};
use crate::backend::{Event, Events};
use crate::clock;
use crate::error::{Error, ErrorKind};
use crate::name::{Node, Queue};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::{Cmd, RedisError, Value};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// A slot map that is no older is not fetched again.
const FRESH_FOR: Duration = Duration::from_millis(150);
/// How long one node may take to return its slot map.
const FETCH_TIMEOUT: Duration = Duration::from_millis(300);
/// A fetch without a result after this time belongs to a runtime that is not driven.
const FETCH_STUCK: Duration = Duration::from_secs(2);
/// How many nodes are queried at the same time.
const PARALLEL_FETCHES: usize = 3;
/// The first and the longest pause before a command is sent again.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(100));
/// How many redirections of a command are followed without a pause.
const REDIRECTIONS_AT_ONCE: u32 = 4;

pub(super) struct Cluster {
    /// For messages.
    name: Arc<str>,
    /// The configured nodes. The settings of the first one are used for all.
    seeds: Vec<Endpoint>,
    channel: String,
    events: Events,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    map: SlotMap,
    /// Redirections of single slots since the map was fetched.
    moved: HashMap<u16, Address>,
    connections: HashMap<Address, Arc<Connection>>,
    /// When the map was last fetched.
    fetched: Option<Instant>,
    /// An error or a redirection contradicts the map.
    doubtful: bool,
    /// A call has been fetching the map since then.
    fetching: Option<Instant>,
    /// Why the last fetch failed.
    failed: Option<Error>,
}

enum Choice {
    Use(Arc<Connection>),
    /// The map has to be fetched. If that fails, this connection may work.
    Fetch(Option<Arc<Connection>>),
    /// Another call fetches the map.
    Wait,
    Fail(Error),
}

/// Marks the fetch as ended when dropped.
struct Fetching<'a>(&'a Cluster);

// === impl Cluster ===

impl Cluster {
    pub(super) fn new(seeds: Vec<Endpoint>, channel: String, events: Events) -> Arc<Self> {
        Arc::new(Self {
            name: format!("the cluster of {}", Endpoint::names(&seeds)).into(),
            seeds,
            channel,
            events,
            state: Mutex::default(),
        })
    }

    pub(super) fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub(super) fn is_push_refused(&self, slot: u16) -> bool {
        let state = self.state();
        let owner = state.owner(slot);
        let connection = owner.and_then(|owner| state.connections.get(owner));
        connection.is_some_and(|connection| connection.is_push_refused())
    }

    /// Sends a command to the node of its slot, and again while the cluster refuses to execute it, for as long as the route
    /// allows.
    pub(super) async fn try_send(
        self: &Arc<Self>,
        route: Route,
        command: &Cmd,
    ) -> Result<Result<Value, RedisError>, Error> {
        let end = clock::now() + route.retry_for;
        let (mut pause, mut redirections) = (PAUSE.0, 0);
        let mut elsewhere = None;
        loop {
            let (connection, preamble) = match elsewhere.take() {
                Some(address) => (Ok(self.connection(address)), Preamble::Asking),
                None => (self.owner(route.slot).await, Preamble::None),
            };
            let answer = match connection {
                Ok(connection) => connection.try_send(command, preamble).await,
                Err(error) => Err(error),
            };
            let mut at_once = false;
            let failed = match answer {
                Ok(Ok(value)) => return Ok(Ok(value)),
                Ok(Err(error)) => match Redirection::of(&error) {
                    Some(redirection) => {
                        redirections += 1;
                        at_once = redirections <= REDIRECTIONS_AT_ONCE
                            && !matches!(redirection, Redirection::Wait);
                        match redirection {
                            Redirection::Moved(address) => self.moved(route.slot, address),
                            Redirection::Ask(address) => elsewhere = Some(address),
                            Redirection::Wait => self.doubt(),
                        }
                        Error::new(
                            ErrorKind::Unavailable,
                            format!("{} is being changed: {}", self.name, errors::text(&error)),
                        )
                    }
                    None => {
                        if errors::needs_new_connection(&error) {
                            self.doubt();
                        }
                        return Ok(Err(error));
                    }
                },
                Err(error) if error.kind() == ErrorKind::Unavailable => {
                    self.doubt();
                    error
                }
                Err(error) => return Err(error),
            };
            if at_once {
                continue;
            }
            if clock::now() + pause > end {
                return Err(failed);
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// Returns the connection to the node of a slot. The map is fetched when it is doubtful, or when that node is not
    /// connected: it may have been replaced.
    async fn owner(self: &Arc<Self>, slot: u16) -> Result<Arc<Connection>, Error> {
        loop {
            match self.choose(slot) {
                Choice::Use(connection) => return Ok(connection),
                Choice::Fail(error) => return Err(error),
                Choice::Wait => sleep(PAUSE.0).await,
                Choice::Fetch(connection) => {
                    let fetched = self.fetch_map().await;
                    if let (Err(_), Some(connection)) = (fetched, connection) {
                        return Ok(connection);
                    }
                }
            }
        }
    }

    fn choose(self: &Arc<Self>, slot: u16) -> Choice {
        let mut state = self.state();
        let now = clock::now();
        let within = |at: Option<Instant>, time| {
            at.is_some_and(|at| now.saturating_duration_since(at) < time)
        };
        let fresh = within(state.fetched, FRESH_FOR);
        let fetching = within(state.fetching, FETCH_STUCK);
        let owner = state.owner(slot).cloned();
        let connection = owner.map(|owner| state.connection(self, owner));
        match connection {
            Some(connection) if fresh || fetching => Choice::Use(connection),
            Some(connection) if connection.is_ready() && !state.doubtful => Choice::Use(connection),
            None if fetching => Choice::Wait,
            None if fresh => Choice::Fail(state.failed.clone().unwrap_or_else(|| {
                Error::new(
                    ErrorKind::Unavailable,
                    format!("slot {slot} is with no node of {}", self.name),
                )
            })),
            connection => {
                state.fetching = Some(now);
                Choice::Fetch(connection)
            }
        }
    }

    fn connection(self: &Arc<Self>, address: Address) -> Arc<Connection> {
        self.state().connection(self, address)
    }

    fn new_connection(self: &Arc<Self>, address: &Address) -> Arc<Connection> {
        let (cluster, at) = (Arc::downgrade(self), address.clone());
        let events = self.events.clone();
        let events = Events::new(move |event| {
            let twice = match &event {
                Event::Granted { queue, .. } => Weak::upgrade(&cluster)
                    .is_some_and(|cluster| cluster.has_owner_connected(slot(queue), &at)),
                Event::Lost | Event::Resync => false,
            };
            if !twice {
                events.send(event);
            }
        });
        let target = Target::Server(self.endpoint(address));
        Connection::new(target, Some(self.channel.clone()), events)
    }

    fn endpoint(&self, (host, port): &Address) -> Endpoint {
        self.seeds[0].at(host, *port)
    }

    /// Pushes about this slot arrive over the connection of another node than this one.
    fn has_owner_connected(&self, slot: u16, at: &Address) -> bool {
        let state = self.state();
        match state.owner(slot) {
            Some(owner) if owner != at => {
                let connection = state.connections.get(owner);
                connection.is_some_and(|it| it.is_ready() && !it.is_push_refused())
            }
            _ => false,
        }
    }

    fn moved(&self, slot: u16, address: Address) {
        let mut state = self.state();
        state.moved.insert(slot, address);
        state.doubtful = true;
    }

    fn doubt(&self) {
        self.state().doubtful = true;
    }

    /// Fetches the map from the node that returns it first. Only one call at a time does.
    async fn fetch_map(self: &Arc<Self>) -> Result<(), Error> {
        let fetching = Fetching(self);
        let mut others = self.nodes_to_query().into_iter();
        let mut command = redis::cmd("CLUSTER");
        command.arg("SLOTS");
        let command = &command;
        let fetch = |node: Endpoint| async move {
            let reply = timeout(FETCH_TIMEOUT, node.query(command)).await;
            match reply.unwrap_or_else(|_| Err(errors::no_answer(&node.name()))) {
                Ok(reply) => SlotMap::decode(reply, &node.host())
                    .ok_or_else(|| errors::malformed(&node.name())),
                Err(error) if error.to_string().contains("cluster support disabled") => {
                    Err(Error::new(
                        ErrorKind::Incompatible,
                        format!(
                            "Redis at {} is no node of a cluster: Redis::new is for single servers",
                            node.name()
                        ),
                    ))
                }
                Err(error) => Err(error),
            }
        };
        let parallel = others.by_ref().take(PARALLEL_FETCHES);
        let mut fetches: FuturesUnordered<_> = parallel.map(fetch).collect();
        let mut failed: Option<Error> = None;
        let mut fetched = None;
        while let Some(map) = fetches.next().await {
            match map {
                Ok(map) => {
                    fetched = Some(map);
                    break;
                }
                Err(error) => {
                    // An error that waiting does not cure is more useful.
                    let better = |failed: &Error| {
                        failed.kind() == ErrorKind::Unavailable
                            || error.kind() != ErrorKind::Unavailable
                    };
                    if failed.as_ref().is_none_or(better) {
                        failed = Some(error);
                    }
                    fetches.extend(others.next().map(fetch));
                }
            }
        }
        let mut state = self.state();
        state.fetched = Some(clock::now());
        let result = match fetched {
            Some(map) => {
                let masters = map.masters();
                state
                    .connections
                    .retain(|address, _| masters.contains(address));
                state.map = map;
                state.moved.clear();
                state.doubtful = false;
                state.failed = None;
                Ok(())
            }
            None => {
                let error = failed.unwrap_or_else(|| errors::no_answer(&self.name));
                state.failed = Some(error.clone());
                Err(error)
            }
        };
        drop(state);
        drop(fetching);
        result
    }

    /// Returns the connected nodes first, because they are alive; then all others, each once.
    fn nodes_to_query(&self) -> Vec<Endpoint> {
        let state = self.state();
        let ready =
            |address: &Address| (state.connections.get(address)).is_some_and(|it| it.is_ready());
        let known: BTreeSet<&Address> = (state.map.ranges.iter().map(|(_, _, master)| master))
            .chain(&state.map.replicas)
            .collect();
        // In a random order: a node may be cut off from the others without noticing.
        let mut known: Vec<_> = (known.into_iter())
            .map(|address| (!ready(address), rand::random::<u32>(), address))
            .collect();
        known.sort();
        let known: Vec<_> = (known.into_iter())
            .map(|(_, _, address)| self.endpoint(address))
            .collect();
        let names: BTreeSet<_> = known.iter().map(Endpoint::name).collect();
        let seeds = self
            .seeds
            .iter()
            .filter(|seed| !names.contains(&seed.name()));
        let mut seeds: Vec<_> = seeds.map(|seed| (rand::random::<u32>(), seed)).collect();
        seeds.sort_by_key(|(order, _)| *order);
        let seeds = seeds.into_iter().map(|(_, seed)| seed);
        known.iter().chain(seeds).cloned().collect()
    }

    /// Returns one unused queue at each master.
    pub(super) async fn queues_to_check(
        self: &Arc<Self>,
        node: &Node,
    ) -> Result<Vec<Queue>, Error> {
        self.state().fetching = Some(clock::now());
        self.fetch_map().await?;
        let mut left: BTreeSet<Address> = {
            let state = self.state();
            let covered = state.map.covered();
            if covered < u32::from(SLOTS) {
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    format!(
                        "{} of {SLOTS} slots are with no node of {}",
                        u32::from(SLOTS) - covered,
                        self.name
                    ),
                ));
            }
            state.map.masters()
        };
        let mut queues = Vec::new();
        for number in 0_u32.. {
            let queue = Queue::limit(format!("check:{}:{number}", node.as_str()).as_bytes())?;
            let owner = self.state().owner(slot(&queue)).cloned();
            if owner.is_some_and(|owner| left.remove(&owner)) {
                queues.push(queue);
            }
            if left.is_empty() || number > u32::from(SLOTS) * 4 {
                break;
            }
        }
        Ok(queues)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl State ===

impl State {
    fn owner(&self, slot: u16) -> Option<&Address> {
        self.moved.get(&slot).or_else(|| self.map.owner(slot))
    }

    fn connection(&mut self, cluster: &Arc<Cluster>, address: Address) -> Arc<Connection> {
        (self.connections.entry(address))
            .or_insert_with_key(|address| cluster.new_connection(address))
            .clone()
    }
}

// === impl Fetching ===

impl Drop for Fetching<'_> {
    fn drop(&mut self) {
        self.0.state().fetching = None;
    }
}
