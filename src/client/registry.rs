//! What all names of a coordinator share, and the client of each name.

use super::driver::{Placement, Work};
use super::outage::OutageDetector;
use super::panics::lock;
use super::queue_client::QueueClient;
use super::state::Shortcuts;
use crate::backend::{Capabilities, Event, Events, Inspection, Session, call_time};
use crate::error::Error;
use crate::name::{Node, Queue};
use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use tokio::sync::Notify;

/// With n failing names each of them pauses for n times this at least, 1 s at most: together they send 10,000 calls per second, or
/// one each.
const RETRY_EVERY: Duration = Duration::from_micros(100);
const LONGEST_RETRY: Duration = Duration::from_secs(1);

/// What all names of one coordinator share.
pub(crate) struct Client {
    pub(super) session: Arc<dyn Session>,
    pub(crate) node: Node,
    pub(super) lease: Duration,
    pub(super) shortcuts: Shortcuts,
    /// Numbers of calls and tickets. No number is used twice, so a late call is detected by its lower number.
    numbers: AtomicU64,
    pub(super) outages: OutageDetector,
    pub(super) closing: AtomicBool,
    /// The number of names that count as failing: their last call failed.
    pub(super) failing: AtomicU32,
    pub(super) work: Work,
    /// Notifies that a name has become quiet, or a release was acknowledged.
    pub(super) progress: Notify,
    pub(super) by_queue: Mutex<HashMap<Queue, Weak<QueueClient>>>,
}

/// The settings of a coordinator.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) lease: Duration,
    pub(crate) outage_after: Duration,
    /// Permits are not handed off here: each is released at the backend.
    pub(crate) strict_fifo: bool,
    /// How long a released permit stays here for the next caller.
    pub(crate) linger: Duration,
    /// Where the driver runs.
    pub(crate) placement: Placement,
}

// === impl Client ===

impl Client {
    pub(crate) fn new(
        settings: Settings,
        open: impl FnOnce(Node, Events) -> Arc<dyn Session>,
    ) -> Arc<Self> {
        let lease = settings.lease;
        let node = Node::of_this_process();
        Arc::new_cyclic(|client: &Weak<Self>| {
            let client = client.clone();
            let events = Events::new(move |event| {
                if let Some(client) = client.upgrade() {
                    client.on_event(event);
                }
            });
            let session = open(node.clone(), events);
            let shortcuts = Shortcuts {
                hand_off: !settings.strict_fifo,
                linger: settings.linger,
                sees_others: session.capabilities().fifo,
            };
            // Two attempts, the second over a new connection, end well before an outage is declared.
            let call_timeout = call_time(lease).min(settings.outage_after / 5 * 2);
            Self {
                node,
                lease,
                shortcuts,
                numbers: AtomicU64::new(1),
                outages: OutageDetector::new(settings.outage_after),
                closing: AtomicBool::new(false),
                failing: AtomicU32::new(0),
                work: Work::new(session.batching(), settings.placement, call_timeout),
                session,
                progress: Notify::new(),
                by_queue: Mutex::new(HashMap::new()),
            }
        })
    }

    pub(crate) fn capabilities(&self) -> Capabilities {
        self.session.capabilities()
    }

    pub(crate) async fn check(&self) -> Result<(), Error> {
        let (session, lease) = (Arc::clone(&self.session), self.lease);
        self.at_driver(async move { session.check(lease).await })
            .await
    }

    /// Lists holders and queued tickets.
    pub(crate) async fn inspect(&self, queue: Queue) -> Result<Inspection, Error> {
        let (session, of) = (Arc::clone(&self.session), queue.clone());
        let mut seen = self
            .at_driver(async move { session.inspect(of).await })
            .await?;
        let name = self.existing(&queue);
        let lingering = name.map(|name| name.read(|state| state.permits.all_lingering()));
        let lingering = lingering.into_iter().flatten();
        let lingering: Vec<_> = lingering.map(|ticket| self.node.ticket(ticket)).collect();
        for holder in &mut seen.holders {
            holder.lingering = lingering.contains(&holder.ticket);
        }
        Ok(seen)
    }

    pub(crate) async fn evict(&self, queue: Queue, ticket: String) -> Result<bool, Error> {
        let session = Arc::clone(&self.session);
        self.at_driver(async move { session.evict(queue, ticket).await })
            .await
    }

    /// Runs a request of an operator on the runtime that the driver is bound to, if it is: a connection lives on the runtime
    /// that made it.
    async fn at_driver<T: Send + 'static>(
        &self,
        request: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        let pinned = &self.work.pinned;
        match pinned.runtime()? {
            Some(runtime) => runtime.spawn(request).await.map_err(|_| pinned.end())?,
            None => request.await,
        }
    }

    /// Returns an error if the backend does not support this limit.
    pub(crate) fn check_limit(&self, limit: u32) -> Result<(), Error> {
        let max_limit = self.session.capabilities().max_limit;
        if limit == 0 {
            return Err(Error::config(
                "a limit of 0 would admit no request: it must be at least 1",
            ));
        }
        if limit > max_limit {
            let why = self.session.max_limit_reason();
            return Err(Error::config(format!(
                "this backend cannot keep a limit of {limit}: {max_limit} is the greatest{why}"
            )));
        }
        Ok(())
    }

    /// Returns the client of a name; `limit` is this process's limit from now on.
    pub(crate) fn queue_client(self: &Arc<Self>, queue: Queue, limit: u32) -> Arc<QueueClient> {
        let name = self.get_or_insert(queue, limit);
        name.update(|state, _| state.set_limit(limit));
        name
    }

    fn get_or_insert(self: &Arc<Self>, queue: Queue, limit: u32) -> Arc<QueueClient> {
        let mut by_queue = lock(&self.by_queue);
        if let Some(name) = by_queue.get(&queue).and_then(Weak::upgrade) {
            return name;
        }
        let name = Arc::new(QueueClient::new(Arc::clone(self), queue.clone(), limit));
        by_queue.insert(queue, Arc::downgrade(&name));
        name
    }

    /// Returns the client of a name, if the name is in use here.
    pub(crate) fn existing(&self, queue: &Queue) -> Option<Arc<QueueClient>> {
        lock(&self.by_queue).get(queue).and_then(Weak::upgrade)
    }

    /// The client of a name was dropped.
    pub(super) fn forget(&self, queue: &Queue) {
        let mut by_queue = lock(&self.by_queue);
        // There may be a new one under the same name by now.
        if by_queue.get(queue).is_some_and(|g| g.strong_count() == 0) {
            by_queue.remove(queue);
        }
    }

    pub(crate) fn all(&self) -> Vec<Arc<QueueClient>> {
        let by_queue = lock(&self.by_queue);
        by_queue.values().filter_map(Weak::upgrade).collect()
    }

    pub(super) fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the shortest pause of a name with failing calls.
    pub(super) fn least_pause(&self) -> Duration {
        let failing = self.failing.load(Ordering::Relaxed);
        RETRY_EVERY.saturating_mul(failing).min(LONGEST_RETRY)
    }

    fn on_event(self: &Arc<Self>, event: Event) {
        match event {
            // For a name without a client here the limit does not matter: the ticket is released.
            Event::Granted { queue, grant } => {
                let name = self.get_or_insert(queue, 1);
                name.apply(|state, now| state.pushed(grant, now));
            }
            Event::Lost => self.all().iter().for_each(|name| {
                name.apply(|state, _| state.lose_all());
            }),
            Event::Resync => {
                let resync = |name: &Arc<QueueClient>| name.update(|state, _| state.resync());
                self.all().iter().for_each(resync);
            }
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("node", &self.node)
            .field("lease", &self.lease)
            .finish_non_exhaustive()
    }
}
