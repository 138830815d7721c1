//! The keys of one layer: what all its services share.

use super::key::{Key, WantedQueue};
use crate::name::{Kind, Queue};
use crate::semaphore::{Acquire, Wait};
use crate::{Coordinator, Error, ErrorKind, Inspection, Permit};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The keys of one layer: a queue for each, named after the layer and the key.
pub(super) struct Keyspace {
    coordinator: Coordinator,
    kind: Kind,
    /// The layer's name.
    name: Arc<str>,
    /// The limit of a key without `Key::with_limit`.
    limit: u32,
    /// Requests that wait for any key of this layer.
    waiting: AtomicUsize,
}

/// Counts a waiting request until it is dropped.
pub(super) struct WaitingRequest(Arc<Keyspace>);

// === impl Keyspace ===

impl Keyspace {
    pub(super) fn new(
        coordinator: &Coordinator,
        kind: Kind,
        name: &str,
        limit: u32,
    ) -> Result<Self, Error> {
        coordinator.check_limit(limit)?;
        // Reports a name that is too long here instead of at each request.
        Queue::new(kind, &[name.as_bytes()])?;
        Ok(Self {
            coordinator: coordinator.clone(),
            kind,
            name: name.into(),
            limit,
            waiting: AtomicUsize::new(0),
        })
    }

    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    pub(super) fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub(super) async fn inspect(&self, key: &Key) -> Result<Inspection, Error> {
        let queue = key.only_queue(self.kind, &self.name)?;
        self.coordinator.inspect_queue(queue).await
    }

    pub(super) async fn evict(&self, key: &Key, ticket: &str) -> Result<bool, Error> {
        let queue = key.only_queue(self.kind, &self.name)?;
        self.coordinator.evict_ticket(queue, ticket).await
    }

    /// Returns the queues of this key, last first, in an order that is the same in all processes.
    pub(super) fn queues(&self, key: &Key) -> Result<Vec<WantedQueue>, Error> {
        let queues = key.queues(self.kind, &self.name, self.limit)?;
        for queue in &queues {
            self.coordinator.check_limit(queue.limit)?;
        }
        Ok(queues)
    }

    /// Starts to acquire a permit of this queue.
    pub(super) fn acquire(&self, wanted: &WantedQueue, wait: &Wait) -> Acquire {
        let semaphore = (self.coordinator).queue_semaphore(wanted.queue.clone(), wanted.limit);
        semaphore.acquire_with(wait)
    }

    /// Returns whether this permit was granted through the coordinator of this layer.
    pub(super) fn granted(&self, permit: &Permit) -> bool {
        self.coordinator.granted(permit)
    }

    /// Counts a request that begins to wait. `None` if `max` requests wait already.
    pub(super) fn count_waiting(self: &Arc<Self>, max: usize) -> Option<WaitingRequest> {
        let request = WaitingRequest(Arc::clone(self));
        (self.waiting.fetch_add(1, Ordering::Relaxed) < max).then_some(request)
    }

    /// The error for a request that would wait as well.
    pub(super) fn too_many_waiting(&self, max: usize) -> Error {
        let message = format!(
            "max_waiting_total is {max}, and as many requests of this process wait for keys of the layer {:?} already: \
             retry later, or raise it",
            self.name
        );
        Error::new(ErrorKind::TooManyWaiting, message)
    }
}

impl fmt::Debug for Keyspace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:?}", self.kind.as_str(), self.name)
    }
}

// === impl WaitingRequest ===

impl Drop for WaitingRequest {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}
