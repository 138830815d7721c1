//! The session of one node.

use super::queue::Push;
use super::store::SharedStore;
use crate::backend::{
    Batching, Call, Capabilities, Event, Events, Inspection, Replies, Session, together,
};
use crate::error::Error;
use crate::name::{Node, Queue};
use futures_util::future::BoxFuture;
use std::sync::Arc;
use std::time::Duration;

pub(super) struct MemorySession {
    store: Arc<SharedStore>,
    node: Node,
    events: Arc<Events>,
}

// === impl MemorySession ===

impl MemorySession {
    pub(super) fn new(store: Arc<SharedStore>, node: Node, events: Events) -> Self {
        Self {
            store,
            node,
            events: Arc::new(events),
        }
    }

    /// Sends the grants to their nodes. The store must not be locked.
    fn send(&self, queue: &Queue, pushes: Vec<Push>) {
        for Push { to, grant } in pushes {
            let queue = queue.clone();
            to.send(Event::Granted { queue, grant });
        }
    }
}

impl Session for MemorySession {
    fn exchange(&self, batch: Vec<Call>) -> Replies<'_> {
        together(async move {
            let now = self.store.now();
            let execute = |call: Call| {
                let (reply, pushes) =
                    (self.store.lock()).exchange(&self.node, &self.events, &call, now);
                self.send(&call.queue, pushes);
                Ok(reply)
            };
            batch.into_iter().map(execute).collect()
        })
    }

    fn batching(&self) -> Batching {
        Batching {
            calls: 128,
            tickets: 1024,
            in_flight: 1,
        }
    }

    fn inspect(&self, queue: Queue) -> BoxFuture<'_, Result<Inspection, Error>> {
        Box::pin(async move { Ok(self.store.lock().inspect(&queue, self.store.now())) })
    }

    fn evict(&self, queue: Queue, ticket: String) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(async move {
            let now = self.store.now();
            let (found, pushes) = self.store.lock().evict(&queue, &ticket, now);
            self.send(&queue, pushes);
            Ok(found)
        })
    }

    fn check(&self, _lease: Duration) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async { Ok(()) })
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            fifo: true,
            token: true,
            max_limit: u32::MAX,
            min_lease: Duration::from_secs(1),
        }
    }
}
