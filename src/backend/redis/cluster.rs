//! The nodes of a cluster: which one has which slot, one link to each that is used, and what to do while that changes.
//!
//! Each link listens on our channel: whoever grants a ticket does so at the node of the name, and there we listen, for it is
//! where our own calls about the name go. The cluster hands messages on to its other nodes, so that the same push may
//! come by several links: it is taken from the link of its name's node if that is there, else from any.

use super::connection::{Link, Manner, Target};
use super::server::Server;
use super::servers::Spot;
use super::wire::{self, Turn};
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

const SLOTS: u16 = 16_384;
/// A map that is no older is not fetched again.
const FRESH: Duration = Duration::from_millis(150);
/// How long one node may take to tell its map.
const TELLING: Duration = Duration::from_millis(300);
/// Whoever has been asking for longer sits in a runtime that nobody drives.
const STUCK: Duration = Duration::from_secs(2);
/// So many are asked at once.
const ASKED: usize = 3;
/// Pauses before a command is sent again.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(100));
/// So many times a command is sent on at once.
const AT_ONCE: u32 = 4;

pub(super) type Address = (String, u16);

pub(super) struct Cluster {
    /// For people.
    name: Arc<str>,
    /// Nodes that the user named. The first one says how to talk to all.
    seeds: Vec<Server>,
    inbox: String,
    events: Events,
    state: Mutex<TicketState>,
}

#[derive(Default)]
struct TicketState {
    map: Map,
    /// What a node said of single slots since.
    moved: HashMap<u16, Address>,
    links: HashMap<Address, Arc<Link>>,
    /// When the map was last asked for.
    asked: Option<Instant>,
    /// Something spoke against the map.
    doubtful: bool,
    /// Somebody has been asking for it since then.
    asking: Option<Instant>,
    /// Why nobody told it, the last time.
    failed: Option<Error>,
}

/// Who has what, as one node sees it.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Map {
    /// First and last slot, and the master's address.
    pub(super) ranges: Vec<(u16, u16, Address)>,
    pub(super) replicas: Vec<Address>,
}

enum Choice {
    Link(Arc<Link>),
    /// The map has to be fetched. If that fails, this link may do.
    Ask(Option<Arc<Link>>),
    /// Somebody else is at it.
    Wait,
    Nobody(Error),
}

/// Asking for the map ends, in whatever way.
struct Asking<'a>(&'a Cluster);

/// The slot of all keys of a queue.
pub(super) fn slot(queue: &Queue) -> u16 {
    let crc = queue.name().bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| match crc & 0x8000 {
            0 => crc << 1,
            _ => (crc << 1) ^ 0x1021,
        })
    });
    crc % SLOTS
}

// === impl Cluster ===

impl Cluster {
    pub(super) fn new(seeds: Vec<Server>, inbox: String, events: Events) -> Arc<Self> {
        Arc::new(Self {
            name: format!("the cluster of {}", Server::names(&seeds)).into(),
            seeds,
            inbox,
            events,
            state: Mutex::default(),
        })
    }

    pub(super) fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub(super) fn is_deaf(&self, slot: u16) -> bool {
        let state = self.state();
        let link = state.owner(slot).and_then(|owner| state.links.get(owner));
        link.is_some_and(|link| link.is_deaf())
    }

    /// Sends a command to where its slot is, and again while the cluster says that it has not carried it out, for as long as
    /// the spot allows.
    pub(super) async fn try_send(
        self: &Arc<Self>,
        spot: Spot,
        command: &Cmd,
    ) -> Result<Result<Value, RedisError>, Error> {
        let end = clock::now() + spot.patience;
        let (mut pause, mut turns) = (PAUSE.0, 0);
        let mut elsewhere = None;
        loop {
            let (link, manner) = match elsewhere.take() {
                Some(address) => (Ok(self.link(address)), Manner::Asking),
                None => (self.owner(spot.slot).await, Manner::Plain),
            };
            let answer = match link {
                Ok(link) => link.try_send(command, manner).await,
                Err(error) => Err(error),
            };
            let mut at_once = false;
            let failed = match answer {
                Ok(Ok(value)) => return Ok(Ok(value)),
                Ok(Err(error)) => match wire::turn(&error) {
                    Some(turn) => {
                        turns += 1;
                        at_once = turns <= AT_ONCE && !matches!(turn, Turn::Wait);
                        match turn {
                            Turn::Moved(address) => self.moved(spot.slot, address),
                            Turn::Ask(address) => elsewhere = Some(address),
                            Turn::Wait => self.doubt(),
                        }
                        Error::new(
                            ErrorKind::Unavailable,
                            format!("{} is being changed: {}", self.name, wire::text(&error)),
                        )
                    }
                    None => {
                        if wire::wants_new_connection(&error) {
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

    /// The link to the node of a slot. The map is fetched when it is doubtful, or before anybody is connected to: a node that is
    /// gone has perhaps been replaced.
    async fn owner(self: &Arc<Self>, slot: u16) -> Result<Arc<Link>, Error> {
        loop {
            match self.choose(slot) {
                Choice::Link(link) => return Ok(link),
                Choice::Nobody(error) => return Err(error),
                Choice::Wait => sleep(PAUSE.0).await,
                Choice::Ask(link) => {
                    let told = self.ask().await;
                    if let (Err(_), Some(link)) = (told, link) {
                        return Ok(link);
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
        let (fresh, asking) = (within(state.asked, FRESH), within(state.asking, STUCK));
        let owner = state.owner(slot).cloned();
        let link = owner.map(|owner| state.link(self, owner));
        match link {
            Some(link) if fresh || asking => Choice::Link(link),
            Some(link) if link.is_ready() && !state.doubtful => Choice::Link(link),
            None if asking => Choice::Wait,
            None if fresh => Choice::Nobody(state.failed.clone().unwrap_or_else(|| {
                Error::new(
                    ErrorKind::Unavailable,
                    format!("slot {slot} is with no node of {}", self.name),
                )
            })),
            link => {
                state.asking = Some(now);
                Choice::Ask(link)
            }
        }
    }

    fn link(self: &Arc<Self>, address: Address) -> Arc<Link> {
        self.state().link(self, address)
    }

    fn new_link(self: &Arc<Self>, address: &Address) -> Arc<Link> {
        let (cluster, at) = (Arc::downgrade(self), address.clone());
        let events = self.events.clone();
        let events = Events::new(move |event| {
            let twice = match &event {
                Event::Granted { queue, .. } => Weak::upgrade(&cluster)
                    .is_some_and(|cluster| cluster.hears_better(slot(queue), &at)),
                Event::Lost | Event::Resync => false,
            };
            if !twice {
                events.send(event);
            }
        });
        let server = self.server(address);
        Link::new(Target::Server(server), Some(self.inbox.clone()), events)
    }

    fn server(&self, (host, port): &Address) -> Server {
        self.seeds[0].at(host, *port)
    }

    /// What is pushed about this slot comes by another link than this one.
    fn hears_better(&self, slot: u16, at: &Address) -> bool {
        let state = self.state();
        match state.owner(slot) {
            Some(owner) if owner != at => {
                (state.links.get(owner)).is_some_and(|link| link.is_ready() && !link.is_deaf())
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

    /// Fetches the map from whoever tells it first. Only one at a time does.
    async fn ask(self: &Arc<Self>) -> Result<(), Error> {
        let asking = Asking(self);
        let mut others = self.whom_to_ask().into_iter();
        let mut question = redis::cmd("CLUSTER");
        question.arg("SLOTS");
        let question = &question;
        let tell = |server: Server| async move {
            let told = timeout(TELLING, server.ask(question)).await;
            match told.unwrap_or_else(|_| Err(wire::no_answer(&server.name()))) {
                Ok(told) => {
                    let host = server.host();
                    wire::map(told, &host).ok_or_else(|| wire::nonsense(&server.name()))
                }
                Err(error) if error.to_string().contains("cluster support disabled") => {
                    Err(Error::new(
                        ErrorKind::Incompatible,
                        format!(
                            "Redis at {} is no node of a cluster: Redis::new is for single servers",
                            server.name()
                        ),
                    ))
                }
                Err(error) => Err(error),
            }
        };
        let mut asked: FuturesUnordered<_> = others.by_ref().take(ASKED).map(tell).collect();
        let mut failed: Option<Error> = None;
        let mut told = None;
        while let Some(map) = asked.next().await {
            match map {
                Ok(map) => {
                    told = Some(map);
                    break;
                }
                Err(error) => {
                    // What waiting would not mend is worth more to know.
                    let better = |failed: &Error| {
                        failed.kind() == ErrorKind::Unavailable
                            || error.kind() != ErrorKind::Unavailable
                    };
                    if failed.as_ref().is_none_or(better) {
                        failed = Some(error);
                    }
                    asked.extend(others.next().map(tell));
                }
            }
        }
        let mut state = self.state();
        state.asked = Some(clock::now());
        let result = match told {
            Some(map) => {
                let masters: BTreeSet<_> = map.masters();
                state.links.retain(|address, _| masters.contains(address));
                state.map = map;
                state.moved.clear();
                state.doubtful = false;
                state.failed = None;
                Ok(())
            }
            None => {
                let error = failed.unwrap_or_else(|| wire::no_answer(&self.name));
                state.failed = Some(error.clone());
                Err(error)
            }
        };
        drop(state);
        drop(asking);
        result
    }

    /// Those that we talk to first, for they are alive; then all others, each once.
    fn whom_to_ask(&self) -> Vec<Server> {
        let state = self.state();
        let ready = |address: &Address| state.links.get(address).is_some_and(|l| l.is_ready());
        let known: BTreeSet<&Address> = (state.map.ranges.iter().map(|(_, _, master)| master))
            .chain(&state.map.replicas)
            .collect();
        // In another order each time: one may be cut off from the others and not know it.
        let mut known: Vec<_> = (known.into_iter())
            .map(|address| (!ready(address), rand::random::<u32>(), address))
            .collect();
        known.sort();
        let known: Vec<_> = (known.into_iter())
            .map(|(_, _, address)| self.server(address))
            .collect();
        let names: BTreeSet<_> = known.iter().map(Server::name).collect();
        let seeds = self
            .seeds
            .iter()
            .filter(|seed| !names.contains(&seed.name()));
        let mut seeds: Vec<_> = seeds.map(|seed| (rand::random::<u32>(), seed)).collect();
        seeds.sort_by_key(|(order, _)| *order);
        let seeds = seeds.into_iter().map(|(_, seed)| seed);
        known.iter().chain(seeds).cloned().collect()
    }

    /// One queue at each master.
    pub(super) async fn queues_to_check(
        self: &Arc<Self>,
        node: &Node,
    ) -> Result<Vec<Queue>, Error> {
        self.state().asking = Some(clock::now());
        self.ask().await?;
        let mut left: BTreeSet<Address> = {
            let state = self.state();
            let with_somebody: u32 = (state.map.ranges.iter())
                .map(|(first, last, _)| u32::from(*last) + 1 - u32::from(*first))
                .sum();
            if with_somebody < u32::from(SLOTS) {
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    format!(
                        "{} of {SLOTS} slots are with no node of {}",
                        u32::from(SLOTS) - with_somebody,
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

    fn state(&self) -> MutexGuard<'_, TicketState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl State ===

impl TicketState {
    fn owner(&self, slot: u16) -> Option<&Address> {
        self.moved.get(&slot).or_else(|| {
            let mut ranges = self.map.ranges.iter();
            let range = ranges.find(|(first, last, _)| (*first..=*last).contains(&slot));
            range.map(|(_, _, owner)| owner)
        })
    }

    fn link(&mut self, cluster: &Arc<Cluster>, address: Address) -> Arc<Link> {
        (self.links.entry(address))
            .or_insert_with_key(|address| cluster.new_link(address))
            .clone()
    }
}

// === impl Map ===

impl Map {
    fn masters(&self) -> BTreeSet<Address> {
        (self.ranges.iter())
            .map(|(_, _, master)| master.clone())
            .collect()
    }
}

// === impl Asking ===

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.state().asking = None;
    }
}
