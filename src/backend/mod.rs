//! The contract between a gate and the shared side, and the backends that keep it.
//!
//! A [`Session`] speaks for one node. A gate says everything it has to say about a name in one [`Call`]; the backend
//! answers with a [`Reply`], and may push [`Event`]s at any time. `tests/conformance` holds every backend to the rules.

use crate::error::Error;
use crate::name::{Node, Queue};
use futures_util::future::BoxFuture;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub(crate) mod any;
#[cfg(feature = "etcd")]
pub(crate) mod etcd;
pub(crate) mod memory;
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
pub(crate) const MOST_TICKETS: usize = 256;

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

/// One node's side of a backend.
pub(crate) trait Session: Send + Sync + 'static {
    /// Everything a gate has to say about one name. The future may be dropped at any time; the call may then still be
    /// carried out, also late: its number makes that harmless.
    fn exchange(&self, call: Call) -> BoxFuture<'_, Result<Reply, Error>>;

    /// Who holds and who waits. At most 1,000 tickets of each are listed.
    fn inspect(&self, queue: Queue) -> BoxFuture<'_, Result<Inspection, Error>>;

    /// Takes a ticket of any node out of the queue. `false` if it was not there.
    fn evict(&self, queue: Queue, ticket: String) -> BoxFuture<'_, Result<bool, Error>>;

    /// Connects and tries everything that will be needed by calls with this lease.
    fn check(&self, lease: Duration) -> BoxFuture<'_, Result<(), Error>>;

    fn promises(&self) -> Promises;

    /// What follows after "… is the greatest limit", where there is a reason to give.
    fn why_no_greater_limit(&self) -> &'static str {
        ""
    }
}

/// What a gate says about one name.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) queue: Queue,
    /// From the node's own counter. Lower than the last one about this name: the call changes nothing.
    pub(crate) number: u64,
    /// This node's limit: its tickets are granted only while fewer are in use.
    pub(crate) limit: u32,
    /// How long this node's tickets outlive its last word.
    pub(crate) lease: Duration,
    /// Tickets that go, whether they hold or wait. Carried out first.
    pub(crate) leave: Vec<u64>,
    /// Permits to renew. Never creates one, and never keeps a mere place in the queue.
    pub(crate) keep: Vec<u64>,
    /// Tickets that want in, oldest first. A permit that is held already is renewed, a place is kept.
    pub(crate) enter: Vec<u64>,
    /// The same, but refused rather than queued.
    pub(crate) try_enter: Vec<u64>,
}

/// The backend's answer to a [`Call`].
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Reply {
    /// A later call about this name had arrived before: nothing was changed.
    Stale,
    Done(Outcome),
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Outcome {
    /// For each ticket of `leave`, in order: did it hold a permit until now?
    pub(crate) left: Vec<bool>,
    /// For each ticket of `keep`, in order.
    pub(crate) kept: Vec<State>,
    /// For each ticket of `enter`, in order.
    pub(crate) entered: Vec<State>,
    /// For each ticket of `try_enter`, in order.
    pub(crate) tried: Vec<State>,
    /// Tickets of this node that were waiting and were granted by this very call, whether it named them or not.
    pub(crate) granted: Vec<Grant>,
    /// Permits in use by all nodes. May count dead holders that nobody had to make room for yet.
    pub(crate) in_use: u64,
    /// Tickets waiting, of all nodes.
    pub(crate) waiting: u64,
    /// Call again by then, even if nothing is pushed. Only said to a node that has tickets waiting.
    pub(crate) look_again: Option<Duration>,
}

/// What became of a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It holds a permit, for one lease from when this call was first sent.
    Held {
        /// The fencing token, in a queue whose limit is 1.
        token: u64,
    },
    /// It stands in the queue.
    Waiting,
    /// It tried and there was no room.
    Refused,
    /// It holds nothing (any more).
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
    /// Somebody else's call granted a ticket of this node. A hint: it may be late, or never come.
    Granted { queue: Queue, grant: Grant },
    /// Every ticket of this node is gone, held or waiting, about whatever name: its session has ended. Sent before
    /// anything is granted to the next one.
    #[cfg_attr(not(any(feature = "etcd", feature = "zookeeper")), allow(dead_code))]
    // others have no session
    Lost,
    /// The push channel was made anew: what was pushed meanwhile is lost, so ask again.
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
pub struct Promises {
    /// Permits are granted in the order in which tickets arrived, over all processes. What a process does with them
    /// is [its own choice](crate::CoordinatorBuilder::strict_fifo).
    pub fifo: bool,
    /// A mutex gets a fencing token that strictly increases.
    pub token: bool,
    /// The greatest limit that can be kept.
    pub greatest_limit: u32,
    /// The least lease.
    pub least_lease: Duration,
}

/// Who holds and who waits under one name, as the backend sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inspection {
    /// Permits in use, oldest deadline first. At most 1,000 are listed.
    pub holders: Vec<TicketInfo>,
    /// Tickets waiting, first in line first. At most 1,000 are listed.
    pub waiters: Vec<TicketInfo>,
    /// All permits in use, listed or not.
    pub in_use: u64,
    /// All tickets waiting, listed or not.
    pub waiting: u64,
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

/// How long a gate waits for an answer at most.
pub(crate) fn call_time(lease: Duration) -> Duration {
    Duration::from_millis(500).min(lease / 6)
}
