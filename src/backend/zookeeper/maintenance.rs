//! The supervisor of a connection: it reports the end of the session, and removes expired tickets and idle names.

use super::connection::{Connection, EndGuard};
use super::session_state::Shared;
use crate::backend::Event;
use crate::clock::now;
use crate::name::Queue;
use futures_util::future::join_all;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;
use zookeeper_client::{self as zk, Client, SessionState as ClientState, StateWatcher};

/// The longest time that cleaning up one name takes.
const SWEEP_TIMEOUT: Duration = Duration::from_secs(2);

/// Watches the session of a connection. Holds no client, since that would keep the session alive.
pub(super) struct Supervisor {
    shared: Weak<Shared>,
    epoch: u64,
    watcher: StateWatcher,
    _end: EndGuard,
    replaced: watch::Receiver<()>,
    interval: Duration,
}

// === impl Supervisor ===

impl Supervisor {
    pub(super) fn new(shared: &Arc<Shared>, connection: &Arc<Connection>) -> Self {
        Self {
            shared: Arc::downgrade(shared),
            epoch: connection.epoch,
            watcher: connection.client.state_watcher(),
            _end: connection.end_guard(),
            replaced: connection.replaced(),
            interval: (connection.requested_timeout / 25).min(Duration::from_millis(500)),
        }
    }

    pub(super) async fn run(mut self) {
        let mut state = self.watcher.peek_state();
        loop {
            if state.is_terminated() {
                if let Some(shared) = self.shared.upgrade() {
                    shared.end_session(self.epoch);
                }
                return;
            }
            tokio::select! {
                next = self.watcher.changed() => {
                    if next == ClientState::SyncConnected && state == ClientState::Disconnected
                        && let Some(shared) = self.shared.upgrade()
                    {
                        shared.events.send(Event::Resync);
                    }
                    state = next;
                }
                () = tokio::time::sleep(self.interval) => match self.shared.upgrade() {
                    Some(shared) => shared.remove_expired(self.epoch).await,
                    None => return,
                },
                _ = self.replaced.changed() => return,
            }
        }
    }
}

// === impl Shared ===

impl Shared {
    /// Deletes the nodes of tickets that no call has named for a lease, and removes idle names.
    async fn remove_expired(self: &Arc<Self>, epoch: u64) {
        let (mut paths, mut idle) = (Vec::new(), Vec::new());
        let now = now();
        let client = {
            let mut state = self.state();
            let Some(client) = state.client(epoch) else {
                return;
            };
            for (queue, name) in &mut state.names {
                if name.running {
                    continue;
                }
                let expired: Vec<u64> = (name.tickets.iter())
                    .filter(|(_, ticket)| name.expiry(ticket) <= now)
                    .map(|(number, _)| *number)
                    .collect();
                for number in expired {
                    let node = name.tickets.remove(&number).and_then(|t| t.node);
                    let parent = self.parent(queue);
                    paths.extend(node.map(|node| format!("{parent}/{}", node.name)));
                }
                if name.is_idle(now) {
                    idle.push(queue.clone());
                }
            }
            for path in &paths {
                // The request is sent when its future is made. If it fails, a sweep deletes the node later.
                drop(client.delete(path, None));
            }
            client
        };
        for queue in idle {
            if let Ok(true) = timeout(SWEEP_TIMEOUT, self.sweep(&client, epoch, &queue)).await {
                let mut state = self.state();
                let name = state.names.get(&queue);
                if name.is_some_and(|name| name.is_idle(now)) && state.is_current(epoch) {
                    state.names.remove(&queue);
                }
            }
        }
    }

    /// Deletes the nodes of this process that no ticket accounts for: a node that was created late would live as long as the
    /// session. Returns `false` if that failed.
    async fn sweep(&self, client: &Client, epoch: u64, queue: &Queue) -> bool {
        let parent = self.parent(queue);
        let Ok(entries) = self.list(client, &parent).await else {
            return false;
        };
        let deletes = {
            let mut state = self.state();
            let Some(name) = state.name(epoch, queue).filter(|name| !name.running) else {
                return false;
            };
            let (_, unknown) = name.compare(&self.node, &entries);
            let paths = unknown.iter().map(|node| format!("{parent}/{node}"));
            paths
                .map(|path| client.delete(&path, None))
                .collect::<Vec<_>>()
        };
        let deleted = join_all(deletes).await;
        deleted
            .iter()
            .all(|deleted| matches!(deleted, Ok(()) | Err(zk::Error::NoNode)))
    }
}
