//! The contract between the client and the shared state, and the backends that keep it.
//!
//! A [`Session`] acts for one node. The client sends one [`Call`] for each of several names at a time, as a batch; the
//! backend answers each call with a [`Reply`] and may push [`Event`]s at any time. `tests/conformance` checks every
//! backend against the rules.

use crate::error::Error;
#[cfg(test)]
use crate::error::ErrorKind;
use crate::name::{Node, Queue};
use futures_util::StreamExt;
use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::{self, BoxStream, FuturesUnordered};
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

pub(crate) mod any;
#[cfg(any(feature = "etcd", feature = "redis", feature = "zookeeper"))]
#[allow(dead_code)] // until every backend uses it
pub(crate) mod authority;
#[cfg(feature = "etcd")]
pub(crate) mod etcd;
pub(crate) mod memory;
#[cfg(any(feature = "etcd", feature = "redis", feature = "zookeeper"))]
#[allow(dead_code)] // until every backend uses it
pub(crate) mod reconnect;
#[cfg(feature = "redis")]
pub(crate) mod redis;
#[cfg(feature = "redlock")]
pub(crate) mod redlock;
#[cfg(any(feature = "etcd", feature = "redis-tls"))]
mod tls;
#[cfg(feature = "zookeeper")]
pub(crate) mod zookeeper;

#[cfg(test)]
#[path = "../../tests/conformance/mod.rs"]
mod conformance;
#[cfg(all(test, any(feature = "etcd", feature = "redis", feature = "zookeeper")))]
#[path = "../../tests/support/mod.rs"]
mod support;

/// The most tickets that one call may name.
pub(crate) const MAX_TICKETS: usize = 256;

/// Where permits live: [`Memory`](crate::Memory), [`Redis`](crate::Redis), [`Redlock`](crate::Redlock),
/// [`Etcd`](crate::Etcd) or [`ZooKeeper`](crate::ZooKeeper). Given to
/// [`Coordinator::new`](crate::Coordinator::new).
///
/// Sealed: the contract behind it is private while this crate is at 0.x.
#[allow(private_bounds)] // that is what seals it
pub trait Backend: Open {}

/// Makes the session of one node. Neither connects nor spawns: that happens at the first call.
pub(crate) trait Open {
    fn open(self, node: Node, events: Events) -> Arc<dyn Session>;
}

/// One node's access to a backend.
pub(crate) trait Session: Send + Sync + 'static {
    /// Executes calls about different names, all with the same lease. A backend with several servers splits them by
    /// server.
    ///
    /// The stream may be dropped at any time; the calls without a reply may then still be executed, also late: their
    /// numbers make that harmless.
    fn exchange(&self, batch: Vec<Call>) -> Replies<'_>;

    /// How many calls to send together.
    fn batching(&self) -> Batching;

    /// Lists holders and queued tickets, at most 1,000 of each.
    fn inspect(&self, queue: Queue) -> BoxFuture<'_, Result<Inspection, Error>>;

    /// Removes a ticket of any node. `false` if there was none.
    fn evict(&self, queue: Queue, ticket: String) -> BoxFuture<'_, Result<bool, Error>>;

    /// Connects and tries everything that calls with this lease need.
    fn check(&self, lease: Duration) -> BoxFuture<'_, Result<(), Error>>;

    fn capabilities(&self) -> Capabilities;

    /// What follows after "… is the greatest limit", where there is a reason to give.
    fn max_limit_reason(&self) -> &'static str {
        ""
    }
}

/// The replies to a batch: each with the position of its call, in any order, as soon as it is known.
pub(crate) type Replies<'a> = BoxStream<'a, (usize, Result<Reply, Error>)>;

/// How many calls a backend handles well at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Batching {
    /// Calls in one batch.
    pub(crate) calls: usize,
    /// Tickets in one batch, unless a single call names more.
    pub(crate) tickets: usize,
    /// Batches in flight at a time.
    pub(crate) in_flight: usize,
}

/// What the client sends about one name.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) queue: Queue,
    /// From the node's own counter. Lower than that of the node's last call about this name: the call changes nothing.
    pub(crate) number: u64,
    /// This node's limit: its tickets are granted only while fewer permits are in use.
    pub(crate) limit: u32,
    /// How long this node's tickets outlive its last heartbeat.
    pub(crate) lease: Duration,
    /// Tickets to release, held or queued. Executed first.
    pub(crate) release: Vec<u64>,
    /// Permits to renew. Never creates a permit and never keeps a queue entry.
    pub(crate) renew: Vec<u64>,
    /// Tickets to grant or enqueue, oldest first. A permit that is held already is renewed, a queue entry is kept.
    pub(crate) acquire: Vec<u64>,
    /// The same, but refused instead of enqueued.
    pub(crate) try_acquire: Vec<u64>,
}

/// The backend's answer to a [`Call`].
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reply {
    /// A later call about this name had been executed before: nothing was changed.
    Stale,
    Done(Outcome),
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Outcome {
    /// For each ticket of `release`, in order: was it held until now?
    pub(crate) released: Vec<bool>,
    /// For each ticket of `renew`, in order.
    pub(crate) renewed: Vec<TicketState>,
    /// For each ticket of `acquire`, in order.
    pub(crate) acquired: Vec<TicketState>,
    /// For each ticket of `try_acquire`, in order.
    pub(crate) tried: Vec<TicketState>,
    /// Queued tickets of this node that were granted by this very call, whether it named them or not.
    pub(crate) granted: Vec<Grant>,
    /// Permits in use by all nodes. May count permits of dead nodes that were not in the way yet.
    pub(crate) in_use: u64,
    /// Queued tickets of all nodes.
    pub(crate) queued: u64,
    /// Call again within this time, even if nothing is pushed. Only for a node with queued tickets.
    pub(crate) poll_after: Option<Duration>,
}

/// The state of a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TicketState {
    /// It holds a permit, for one lease from when this call was first sent.
    Held {
        /// The fencing token, in a queue whose limit is 1.
        token: u64,
    },
    Queued,
    /// It was a try and no permit was free.
    Refused,
    /// It is neither held nor queued.
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) ticket: u64,
    pub(crate) token: u64,
}

/// What a backend pushes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Event {
    /// Another node's call granted a ticket of this node. A hint: it may arrive late, or never.
    Granted { queue: Queue, grant: Grant },
    /// Every ticket of this node is gone, held or queued, of whatever name: its session has ended. Sent before anything
    /// is granted to the next one.
    #[cfg_attr(not(any(feature = "etcd", feature = "zookeeper")), allow(dead_code))]
    // others have no session
    Lost,
    /// The push channel was re-established: what was pushed meanwhile is lost.
    #[cfg_attr(not(any(feature = "redis", feature = "zookeeper")), allow(dead_code))]
    // others miss none
    Resync,
}

/// Where a session puts its events. Never blocks.
#[derive(Clone)]
pub(crate) struct Events(Arc<dyn Fn(Event) + Send + Sync>);

/// What a backend promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Permits are granted in the order in which tickets arrived, over all processes. What a process does with them
    /// is [its own choice](crate::CoordinatorBuilder::strict_fifo).
    pub fifo: bool,
    /// A mutex gets a fencing token that strictly increases.
    pub token: bool,
    /// The greatest limit that can be kept.
    pub max_limit: u32,
    /// The least lease.
    pub min_lease: Duration,
}

/// Who holds and who waits under one name, as the backend sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inspection {
    /// Permits in use, oldest deadline first. At most 1,000 are listed.
    pub holders: Vec<TicketInfo>,
    /// Tickets waiting, first in line first. At most 1,000 are listed.
    pub queue: Vec<TicketInfo>,
    /// All permits in use, listed or not.
    pub in_use: u64,
    /// All tickets waiting, listed or not.
    pub queued: u64,
}

/// One ticket of an [`Inspection`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TicketInfo {
    /// The ticket, as [`Coordinator::evict`](crate::Coordinator::evict) takes it.
    pub ticket: String,
    /// The process it belongs to: `host-pid-random`.
    pub node: String,
    /// What is left of its lease.
    pub lease_left: Duration,
    /// Nobody uses it: it was released, and stays in its process for a moment. Known of this process's own only.
    pub lingering: bool,
}

// === impl Grant ===
impl Grant {
    pub(crate) fn new(ticket: u64, token: u64) -> Self {
        Self { ticket, token }
    }
}

// === impl Events ===

impl Events {
    pub(crate) fn new(sink: impl Fn(Event) + Send + Sync + 'static) -> Self {
        Self(Arc::new(sink))
    }

    pub(crate) fn send(&self, event: Event) {
        (self.0)(event);
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Events")
    }
}

// === impl Batching ===

impl Batching {
    /// Calls are sent one by one, since a ticket costs the server a write whatever else is sent. Few enough at a time that
    /// each is answered in time; the others wait in the driver, where names take turns.
    #[cfg_attr(
        not(any(feature = "etcd", feature = "redlock", feature = "zookeeper")),
        allow(dead_code)
    )]
    pub(crate) const SINGLE: Self = Self {
        calls: 1,
        tickets: MAX_TICKETS,
        in_flight: 64,
    };
}

/// Executes each call of a batch for itself, all at the same time.
#[cfg_attr(
    not(any(feature = "etcd", feature = "redis", feature = "zookeeper")),
    allow(dead_code)
)]
pub(crate) fn each<'a, F>(batch: Vec<Call>, execute: impl Fn(Call) -> F) -> Replies<'a>
where
    F: Future<Output = Result<Reply, Error>> + Send + 'a,
{
    let calls = batch.into_iter().enumerate();
    calls
        .map(|(at, call)| execute(call).map(move |reply| (at, reply)))
        .collect::<FuturesUnordered<_>>()
        .boxed()
}

/// Executes a batch whose replies arrive together.
pub(crate) fn together<'a>(
    replies: impl Future<Output = Vec<Result<Reply, Error>>> + Send + 'a,
) -> Replies<'a> {
    let replies = replies.map(|replies| stream::iter(replies).enumerate());
    replies.flatten_stream().boxed()
}

/// Executes a single call.
#[cfg(test)]
pub(crate) async fn exchange_one(session: &dyn Session, call: Call) -> Result<Reply, Error> {
    let mut replies = session.exchange(vec![call]);
    match replies.next().await {
        Some((_, reply)) => reply,
        None => Err(Error::new(
            ErrorKind::Unavailable,
            "the backend ended the batch without a reply",
        )),
    }
}

/// How long the client waits for a reply at most.
pub(crate) fn call_time(lease: Duration) -> Duration {
    Duration::from_millis(500).min(lease / 6)
}
