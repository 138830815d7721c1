//! One watch for each name with a queued ticket of this process: it follows the queue and reports grants.

use super::connection::Connection;
use super::errors;
use super::queue;
use super::session_state::Shared;
use crate::backend::{Event, Grant};
use crate::error::Error;
use crate::name::Queue;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use zookeeper_client::{self as zk, Client, SessionState as ClientState};

/// A read that takes longer is repeated.
const READ_TIMEOUT: Duration = Duration::from_secs(2);
/// The pause after a read that failed.
const PAUSE: Duration = Duration::from_millis(50);

/// The watch of one name. Once it has ended, for whatever reason, the next call starts a new one.
struct QueueWatch {
    shared: Weak<Shared>,
    queue: Queue,
    epoch: u64,
    client: Client,
    wake: Arc<Notify>,
    /// No ticket of this process is queued any more.
    is_done: bool,
}

impl Shared {
    /// Watches a name until it has no queued ticket of this process.
    pub(super) fn watch(self: &Arc<Self>, queue: Queue, connection: &Arc<Connection>) {
        let wake = (self.state().names.get(&queue)).map(|name| name.wake_watch.clone());
        let watch = QueueWatch {
            shared: Arc::downgrade(self),
            queue,
            epoch: connection.epoch,
            client: connection.client.clone(),
            wake: wake.unwrap_or_default(),
            is_done: false,
        };
        let mut replaced = connection.replaced();
        tokio::spawn(async move {
            tokio::select! {
                () = watch.run() => {}
                _ = replaced.changed() => {}
            }
        });
    }
}

// === impl QueueWatch ===

impl QueueWatch {
    async fn run(mut self) {
        let client = self.client.clone();
        while !self.is_done {
            let Some(shared) = self.shared.upgrade() else {
                return;
            };
            let parent = shared.parent(&self.queue);
            let list = client.list_and_watch_children(&parent);
            let (names, changed) = match timeout(READ_TIMEOUT, list).await {
                Ok(Ok((names, watcher))) => (names, watcher.changed()),
                // Without the container no ticket is queued: the next call creates both again.
                Ok(Err(zk::Error::NoNode | zk::Error::NoAuth)) => return,
                Ok(Err(_)) if client.state().is_terminated() => return,
                Ok(Err(_)) => {
                    drop(shared);
                    sleep(PAUSE).await;
                    self.connected().await;
                    continue;
                }
                Err(_) => continue,
            };
            match self.collect_grants(&shared, &names).await {
                Ok(grants) => {
                    for grant in grants {
                        let queue = self.queue.clone();
                        shared.events.send(Event::Granted { queue, grant });
                    }
                }
                Err(_) if client.state().is_terminated() => return,
                Err(_) => {
                    sleep(PAUSE).await;
                    if !shared.state().is_current(self.epoch) {
                        return;
                    }
                    continue;
                }
            }
            drop(shared);
            if self.is_done {
                return;
            }
            let wake = self.wake.clone();
            tokio::select! {
                event = changed => if event.session_state.is_terminated() {
                    return;
                },
                () = wake.notified() => {}
            }
        }
    }

    /// Waits while the client crate reconnects.
    async fn connected(&self) {
        let mut watcher = self.client.state_watcher();
        let mut state = self.client.state();
        while state == ClientState::Disconnected {
            state = watcher.changed().await;
        }
    }

    /// Returns the tickets of this process that hold now, for the first time.
    async fn collect_grants(
        &mut self,
        shared: &Shared,
        names: &[String],
    ) -> Result<Vec<Grant>, Error> {
        let entries = queue::sorted_entries(names);
        let tickets = shared.evaluate(&self.client, self.epoch, &self.queue, &entries);
        let tickets = timeout(READ_TIMEOUT, tickets)
            .await
            .map_err(|_| errors::superseded())??;
        let mut state = shared.state();
        let name = (state.name(self.epoch, &self.queue)).ok_or_else(errors::superseded)?;
        if name.running {
            name.changed_while_running = true;
            return Ok(Vec::new());
        }
        let granted = name.grant(&shared.node, &tickets);
        if !name.has_queued() {
            name.is_watched = false;
            self.is_done = true;
        }
        Ok((granted.into_iter())
            .map(|(ticket, token)| Grant { ticket, token })
            .collect())
    }
}

impl Drop for QueueWatch {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        if let Some(shared) = self.shared.upgrade()
            && let Some(name) = shared.state().name(self.epoch, &self.queue)
        {
            name.is_watched = false;
        }
    }
}
