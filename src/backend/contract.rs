//! The contract between the client and a backend.
//!
//! A [`Session`] acts for one node. The client sends one [`Call`] for each of several names at a time, as a batch. The backend
//! answers each call with a [`Reply`], and may push an [`Event`] at any time. The conformance suite checks every backend against the
//! rules.

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

/// The most tickets that one call may name.
pub(crate) const MAX_TICKETS: usize = 256;

/// Stores permits: [`Memory`](crate::Memory), [`Redis`](crate::Redis), [`Redlock`](crate::Redlock),
/// [`Etcd`](crate::Etcd) or [`ZooKeeper`](crate::ZooKeeper). Pass one to
/// [`Coordinator::new`](crate::Coordinator::new).
///
/// Sealed: the contract behind it is private while this crate is at 0.x.
#[allow(private_bounds)] // seals the trait
pub trait Backend: Open {}

/// Opens the session of one node.
pub(crate) trait Open {
    /// Neither connects nor spawns: the first call does.
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

    /// Returns how many calls to send together.
    fn batching(&self) -> Batching;

    /// Lists holders and queued tickets, at most 1,000 of each.
    fn inspect(&self, queue: Queue) -> BoxFuture<'_, Result<Inspection, Error>>;

    /// Removes a ticket of any node. Returns `false` if it did not exist.
    fn evict(&self, queue: Queue, ticket: String) -> BoxFuture<'_, Result<bool, Error>>;

    /// Connects, and tries every request that calls with this lease need.
    fn check(&self, lease: Duration) -> BoxFuture<'_, Result<(), Error>>;

    fn capabilities(&self) -> Capabilities;

    /// Returns the reason for `max_limit`, as a continuation of the error message for a higher limit.
    fn max_limit_reason(&self) -> &'static str {
        ""
    }
}

/// The replies to a batch, each with the position of its call. They arrive in any order, each as soon as it is known.
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

/// What the client sends about one name: at most one call is in flight for each.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) queue: Queue,
    /// From the node's own counter. A call with a lower number than the node's last one about this name changes nothing.
    pub(crate) number: u64,
    /// The node's limit: its tickets are granted only while fewer permits are in use.
    pub(crate) limit: u32,
    /// How long the node's tickets outlive its last heartbeat.
    pub(crate) lease: Duration,
    /// Tickets to release, held or queued. Executed first.
    pub(crate) release: Vec<u64>,
    /// Permits to renew. Never creates a permit and never keeps a queue entry.
    pub(crate) renew: Vec<u64>,
    /// Tickets to grant or enqueue, oldest first. A ticket that is held already is renewed, one that is queued stays queued.
    pub(crate) acquire: Vec<u64>,
    /// Tickets to grant or refuse.
    pub(crate) try_acquire: Vec<u64>,
}

/// The backend's answer to a [`Call`].
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reply {
    /// A later call about this name was executed before this one: nothing was changed.
    Stale,
    Done(Outcome),
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Outcome {
    /// For each ticket of `release`, in order: whether it was held until now.
    pub(crate) released: Vec<bool>,
    /// For each ticket of `renew`, in order.
    pub(crate) renewed: Vec<TicketState>,
    /// For each ticket of `acquire`, in order.
    pub(crate) acquired: Vec<TicketState>,
    /// For each ticket of `try_acquire`, in order.
    pub(crate) tried: Vec<TicketState>,
    /// Queued tickets of this node that this call granted, whether it named them or not.
    pub(crate) granted: Vec<Grant>,
    /// Permits in use by all nodes. May count expired permits that no ticket had to wait for yet.
    pub(crate) in_use: u64,
    /// Queued tickets of all nodes.
    pub(crate) queued: u64,
    /// The time within which to call again, even if nothing is pushed. Only for a node with queued tickets.
    pub(crate) poll_after: Option<Duration>,
}

/// The state of a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TicketState {
    /// It holds a permit for one lease, counted from when this call was sent.
    Held {
        /// The fencing token of a mutex.
        token: u64,
    },
    Queued,
    /// It was only tried, and no permit was free.
    Refused,
    /// It is neither held nor queued.
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) ticket: u64,
    pub(crate) token: u64,
}

/// A push of a backend.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Event {
    /// Another node's call granted a ticket of this node. This is a hint: it may arrive late, or never.
    Granted { queue: Queue, grant: Grant },
    /// Every ticket of this node is gone, for every name: its session has ended. Sent before the next session is granted
    /// anything.
    #[cfg_attr(not(any(feature = "etcd", feature = "zookeeper")), allow(dead_code))]
    // the other backends have no session
    Lost,
    /// The push channel was re-established: what was pushed before is lost.
    #[cfg_attr(not(any(feature = "redis", feature = "zookeeper")), allow(dead_code))]
    // the other backends lose no push
    Resync,
}

/// The receiver of a session's events. Never blocks.
#[derive(Clone)]
pub(crate) struct Events(Arc<dyn Fn(Event) + Send + Sync>);

/// What a backend guarantees and supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Permits are granted in the order in which tickets arrived, over all processes. Within a process,
    /// [`strict_fifo`](crate::CoordinatorBuilder::strict_fifo) determines the order.
    pub fifo: bool,
    /// Each grant of a mutex has a fencing token, and tokens strictly increase.
    pub token: bool,
    /// The highest limit that the backend supports.
    pub max_limit: u32,
    /// The shortest lease that the backend supports.
    pub min_lease: Duration,
}

/// The holders and the queue of one name, as the backend sees them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inspection {
    /// Permits in use, earliest deadline first. At most 1,000 are listed.
    pub holders: Vec<TicketInfo>,
    /// Queued tickets, oldest first. At most 1,000 are listed.
    pub queue: Vec<TicketInfo>,
    /// The number of permits in use, listed or not.
    pub in_use: u64,
    /// The number of queued tickets, listed or not.
    pub queued: u64,
}

/// One ticket of an [`Inspection`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TicketInfo {
    /// The ticket, in the form that [`Coordinator::evict`](crate::Coordinator::evict) accepts.
    pub ticket: String,
    /// The node that it belongs to: `host-pid-random`.
    pub node: String,
    /// What is left of its lease.
    pub lease_left: Duration,
    /// It was released and stays in its process for its next caller. Only known for tickets of this process.
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
    /// One call in each batch, since each ticket costs the server a write of its own. The number in flight is low enough that
    /// each is answered in time; the others wait in the driver, which serves names in turn.
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

/// Executes each call of a batch by itself, all at the same time.
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

/// Executes a batch with replies that arrive together.
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

/// Returns the longest time that the client waits for a reply.
pub(crate) fn call_time(lease: Duration) -> Duration {
    Duration::from_millis(500).min(lease / 6)
}
