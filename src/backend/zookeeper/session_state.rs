//! What a session knows: its connection, the ZooKeeper session, and the state of each name.

use super::connection::Connection;
use super::errors;
use super::name_state::NameState;
use super::path;
use super::settings::Settings;
use crate::backend::Events;
use crate::backend::reconnect::Reconnecting;
use crate::error::Error;
use crate::name::{Node, Queue};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::time::Instant;
use zookeeper_client::{self as zk, Acls, Client, CreateMode, CreateOptions, SessionInfo};

/// With fewer names than this, idle ones are kept.
const FEW_NAMES: usize = 64;

/// What the session, its calls and its tasks share.
pub(super) struct Shared {
    pub(super) settings: Settings,
    pub(super) node: Node,
    pub(super) events: Events,
    state: Mutex<SessionState>,
}

/// Never locked across an await, nor while an event is sent.
pub(super) struct SessionState {
    pub(super) connection: Reconnecting<Connection>,
    /// The ZooKeeper session. The next connection resumes it, if it has not expired.
    pub(super) session: Option<SessionInfo>,
    /// Counts the connections.
    pub(super) epoch: u64,
    pub(super) names: HashMap<Queue, NameState>,
    /// With this many names, idle ones are removed.
    tidy_at: usize,
}

// === impl Shared ===

impl Shared {
    pub(super) fn new(settings: Settings, node: Node, events: Events) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(SessionState {
                connection: Reconnecting::new(format!("ZooKeeper at {}", settings.servers)),
                session: None,
                epoch: 0,
                names: HashMap::new(),
                tidy_at: FEW_NAMES,
            }),
            settings,
            node,
            events,
        })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, SessionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn servers(&self) -> &str {
        &self.settings.servers
    }

    /// Translates an error that occurred while trying to `act`.
    pub(super) fn error(&self, error: &zk::Error, act: &str) -> Error {
        errors::translate(error, self.servers(), act)
    }

    /// Returns the path of a name's container.
    pub(super) fn parent(&self, queue: &Queue) -> String {
        path::parent(&self.settings.base(), queue)
    }

    pub(super) fn create_options(&self, mode: CreateMode) -> CreateOptions<'static> {
        mode.with_acls(match self.settings.digest {
            Some(_) => Acls::creator_all(),
            None => Acls::anyone_all(),
        })
    }
}

// === impl SessionState ===

impl SessionState {
    /// Returns the state of a name, if the connection with this epoch is still the current one.
    pub(super) fn name(&mut self, epoch: u64, queue: &Queue) -> Option<&mut NameState> {
        match self.epoch == epoch {
            true => self.names.get_mut(queue),
            false => None,
        }
    }

    /// Removes idle names without any node of this process. The maintenance task removes the others once their nodes are gone.
    pub(super) fn tidy(&mut self, now: Instant) {
        if self.names.len() >= self.tidy_at {
            self.names
                .retain(|_, name| name.has_created || !name.is_idle(now));
            self.tidy_at = FEW_NAMES.max(self.names.len() * 2);
        }
    }

    /// Returns the client of the connection with this epoch, if it is still the current one.
    pub(super) fn client(&self, epoch: u64) -> Option<Client> {
        let connection = self.connection.current()?;
        (connection.epoch == epoch).then(|| connection.client.clone())
    }

    pub(super) fn is_current(&self, epoch: u64) -> bool {
        self.epoch == epoch
    }
}
