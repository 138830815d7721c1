//! One watch for each name with a queued ticket of this process: it follows the queue and reports grants.

use super::errors;
use super::keys;
use super::name_state::NameState;
use super::session_state::Shared;
use crate::backend::{Event, Grant};
use crate::error::Error;
use crate::name::Queue;
use etcd_client::{EventType, WatchOptions, WatchResponse, WatchStream};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;

/// The longest time that opening a watch takes.
const OPEN_TIMEOUT: Duration = Duration::from_secs(2);
/// The pause after a watch that broke.
const PAUSE: Duration = Duration::from_millis(50);

/// Follows one name until it has no queued ticket of this process.
struct QueueWatch {
    shared: Weak<Shared>,
    queue: Queue,
    number: u64,
    prefix: String,
    session_ended: watch::Receiver<()>,
}

/// Why a watch has ended.
enum End {
    /// No ticket is queued, or the session is gone.
    Done,
    Broken,
}

impl Shared {
    /// Starts to follow a name, unless a watch follows it already.
    pub(super) fn watch(self: &Arc<Self>, queue: &Queue) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let mut state = self.state();
        state.last_watch += 1;
        let number = state.last_watch;
        let Some(name) = (state.names.get_mut(queue)).filter(|name| name.watch.is_none()) else {
            return;
        };
        name.watch = Some(number);
        drop(state);
        let watch = QueueWatch {
            shared: Arc::downgrade(self),
            queue: queue.clone(),
            number,
            prefix: keys::queue_prefix(&self.prefix, queue),
            session_ended: self.alive.subscribe(),
        };
        runtime.spawn(watch.run());
    }
}

// === impl QueueWatch ===

impl QueueWatch {
    async fn run(mut self) {
        let mut session_ended = self.session_ended.clone();
        tokio::select! {
            () = self.follow() => {}
            _ = session_ended.changed() => {}
        }
    }

    async fn follow(&mut self) {
        while let Some(shared) = self.shared.upgrade() {
            let connections = shared.cluster.changes();
            let stream = self.open(&shared).await;
            drop(shared);
            let end = match stream {
                Ok(stream) => self.receive(stream, connections).await,
                Err(_) => End::Broken,
            };
            if matches!(end, End::Done) || !self.update(|name| name.watched = false) {
                return;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Reads the queue, and opens a watch that starts at the next revision.
    async fn open(&self, shared: &Arc<Shared>) -> Result<WatchStream, Error> {
        let queue = shared.list(&self.prefix).await?;
        let start = queue.revision() + 1;
        self.update(|name| name.update_queue(&queue));
        let connection = shared.cluster.connection().await?;
        let options = WatchOptions::new().with_prefix().with_start_revision(start);
        let mut client = connection.client().watch_client();
        let opening = client.watch(self.prefix.clone(), Some(options));
        match timeout(OPEN_TIMEOUT, opening).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err(errors::classify(&error, connection.server()).0.into()),
            Err(_) => {
                shared.cluster.discard(&connection, None);
                Err(errors::no_answer(connection.server()).into())
            }
        }
    }

    async fn receive(&self, mut stream: WatchStream, mut connections: watch::Receiver<u64>) -> End {
        loop {
            let response = tokio::select! {
                response = stream.message() => response,
                // The connection was replaced.
                _ = connections.changed() => return End::Broken,
            };
            let Ok(Some(response)) = response else {
                return End::Broken;
            };
            // The changes were compacted away, or the server has lost its majority. The next watch begins with a listing.
            if response.canceled() || response.compact_revision() > 0 {
                return End::Broken;
            }
            if !self.update(|name| self.apply(name, &response)) {
                return End::Done;
            }
        }
    }

    fn apply(&self, name: &mut NameState, response: &WatchResponse) {
        name.watched = true;
        let queue = name.queue_mut();
        let known = queue.revision();
        for event in response.events() {
            let Some(kv) = event.kv().filter(|kv| kv.mod_revision() > known) else {
                continue;
            };
            match event.event_type() {
                EventType::Put => {
                    if let Some((created, entry)) = keys::parse_entry(kv, &self.prefix) {
                        queue.put(created, entry);
                    }
                }
                EventType::Delete => {
                    if let Some(ticket) = keys::parse_ticket(kv.key(), &self.prefix) {
                        queue.remove(ticket);
                    }
                }
            }
        }
        // Not the revision of the response, since a long history arrives in several responses.
        let changed = response.events().iter().filter_map(|event| event.kv());
        if let Some(last) = changed.map(|kv| kv.mod_revision()).max() {
            queue.advance(last);
        }
    }

    /// Changes the state of the name and reports new grants. Returns `false` if this watch is not needed any more.
    fn update(&self, change: impl FnOnce(&mut NameState)) -> bool {
        let Some(shared) = self.shared.upgrade() else {
            return false;
        };
        let mut state = shared.state();
        let name = state.names.get_mut(&self.queue);
        let Some(name) = name.filter(|name| name.watch == Some(self.number)) else {
            return false;
        };
        change(name);
        // A call in flight reads the queue itself, and reports grants in its answer.
        let grants: Vec<Grant> = match name.running {
            true => Vec::new(),
            false => name.collect_grants(&shared.node),
        };
        let is_needed = name.running || name.has_queued();
        if !is_needed {
            name.watch = None;
            name.watched = false;
        }
        drop(state);
        for grant in grants {
            let queue = self.queue.clone();
            shared.events.send(Event::Granted { queue, grant });
        }
        is_needed
    }
}

impl Drop for QueueWatch {
    fn drop(&mut self) {
        let Some(shared) = self.shared.upgrade() else {
            return;
        };
        let mut state = shared.state();
        if let Some(name) = state.names.get_mut(&self.queue)
            && name.watch == Some(self.number)
        {
            name.watch = None;
            name.watched = false;
        }
    }
}
