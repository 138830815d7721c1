//! What a session knows: the etcd lease of this process, the fence, and the state of each name.

use super::connection::ClusterConnection;
use super::errors::{self, Failure};
use super::name_state::NameState;
use crate::backend::Events;
use crate::error::Error;
use crate::name::{Node, Queue};
use futures_util::future::{BoxFuture, Shared as SharedFuture};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

/// The longest time that the revocation after the end of a session may take.
const REVOKE_TIMEOUT: Duration = Duration::from_secs(2);
/// With fewer names than this, idle ones are kept.
const FEW_NAMES: usize = 64;

/// What the session, its calls and its tasks share.
pub(super) struct Shared {
    pub(super) cluster: Arc<ClusterConnection>,
    pub(super) prefix: Arc<str>,
    pub(super) node: Node,
    pub(super) events: Events,
    state: Mutex<SessionState>,
    /// Closed when the session is gone.
    pub(super) alive: watch::Sender<()>,
}

/// Never locked across an await, nor while an event is sent.
pub(super) struct SessionState {
    pub(super) names: HashMap<Queue, NameState>,
    pub(super) lease: LeaseSlot,
    pub(super) fence: FenceSlot,
    pub(super) maintenance: MaintenanceSlot,
    /// The coordinator's lease.
    pub(super) ticket_lease: Duration,
    /// Since when no name has tickets or calls.
    pub(super) idle_since: Option<Instant>,
    /// Counts the watches.
    pub(super) last_watch: u64,
    /// With this many names, idle ones are removed.
    tidy_at: usize,
}

/// The etcd lease of this process.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldLease {
    pub(super) id: i64,
    /// As it was granted.
    pub(super) ttl: Duration,
    /// When the last answered renewal was sent.
    pub(super) confirmed: Instant,
    /// The revision of the session's key. A write under an earlier one changes nothing.
    pub(super) fence: i64,
}

#[derive(Default)]
pub(super) enum LeaseSlot {
    #[default]
    Empty,
    /// A task has been waiting for the grant since then.
    Granting(Granting, Instant),
    Held(HeldLease),
}

/// Resolves to `None` if its task ended with its runtime.
pub(super) type Granting = SharedFuture<BoxFuture<'static, Option<Result<(), Error>>>>;

/// The moves of the fence.
#[derive(Default)]
pub(super) struct FenceSlot {
    /// Counts them.
    pub(super) started: u64,
    /// The latest one that was answered.
    pub(super) done: u64,
    pub(super) moving: Option<FenceMove>,
}

/// A move of the fence in flight. It continues when the calls that await it are dropped.
#[derive(Clone)]
pub(super) struct FenceMove {
    pub(super) number: u64,
    pub(super) lease: i64,
    pub(super) since: Instant,
    pub(super) done: SharedFuture<BoxFuture<'static, Option<Result<(), Failure>>>>,
}

/// The maintenance task.
#[derive(Debug, Default)]
pub(super) struct MaintenanceSlot {
    /// Counts the tasks. A task with another number was replaced.
    pub(super) current: u64,
    /// When the task takes its next step, if there is a task.
    pub(super) due: Option<Instant>,
}

// === impl Shared ===

impl Shared {
    pub(super) fn new(
        cluster: Arc<ClusterConnection>,
        prefix: Arc<str>,
        node: Node,
        events: Events,
    ) -> Arc<Self> {
        Arc::new(Self {
            cluster,
            prefix,
            node,
            events,
            state: Mutex::new(SessionState {
                names: HashMap::new(),
                lease: LeaseSlot::default(),
                fence: FenceSlot::default(),
                maintenance: MaintenanceSlot::default(),
                ticket_lease: Duration::from_secs(1),
                idle_since: None,
                last_watch: 0,
                tidy_at: FEW_NAMES,
            }),
            alive: watch::Sender::new(()),
        })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, SessionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the id of the etcd lease, if there is one.
    pub(super) fn held_lease(&self) -> Option<i64> {
        match &self.state().lease {
            LeaseSlot::Held(lease) => Some(lease.id),
            _ => None,
        }
    }

    /// Returns the etcd lease if it is still the one with this id.
    pub(super) fn same_lease(&self, id: i64) -> Result<HeldLease, Failure> {
        match &self.state().lease {
            LeaseSlot::Held(lease) if lease.id == id => Ok(*lease),
            _ => Err(errors::lease_ended().into()),
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Tickets that are left end with the lease. Without any, the lease is revoked now.
        let idle = (self.state().names.values()).all(NameState::has_no_tickets);
        if idle
            && let (Some(lease), Ok(runtime)) =
                (self.held_lease(), tokio::runtime::Handle::try_current())
        {
            let cluster = self.cluster.clone();
            runtime.spawn(async move {
                let revoke = |client: etcd_client::Client| async move {
                    client.lease_client().revoke(lease).await
                };
                let _ = timeout(REVOKE_TIMEOUT, cluster.call(revoke)).await;
            });
        }
    }
}

// === impl SessionState ===

impl SessionState {
    /// Removes names that had no call for a lease. The maintenance task removes them too, while it runs.
    pub(super) fn tidy(&mut self, now: Instant) {
        if self.names.len() >= self.tidy_at {
            self.names.retain(|_, name| !name.is_over(now));
            self.tidy_at = FEW_NAMES.max(self.names.len() * 2);
        }
    }
}

// === impl FenceSlot ===

impl FenceSlot {
    pub(super) fn end(&mut self, number: u64) {
        self.moving.take_if(|moving| moving.number == number);
    }
}
