//! The entry point: one coordinator per process.

use crate::backend::any::AnyBackend;
use crate::backend::{Backend, Capabilities, Inspection};
use crate::client::{Client, Placement, Settings};
use crate::error::{Error, ErrorKind};
use crate::mutex::{MAX_NAMES, Mutex, MutexGuards};
use crate::name::{Kind, Queue};
use crate::permit::Permit;
use crate::semaphore::{Semaphore, Stats};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

const DEFAULT_LEASE: Duration = Duration::from_secs(10);
const MAX_LEASE: Duration = Duration::from_secs(3600);
const MAX_LINGER: Duration = Duration::from_millis(10);
const DEFAULT_OUTAGE_AFTER: Duration = Duration::from_secs(1);
const MIN_OUTAGE_AFTER: Duration = Duration::from_millis(50);
const MAX_OUTAGE_AFTER: Duration = Duration::from_secs(3600);

/// The entry point: creates semaphores and mutexes by name, over one backend. Create one per process. It is cheap to
/// clone, all clones share their state, and it can be stored in a `static`.
///
/// Creating it neither connects nor spawns. That happens at the first use, on the runtime of the caller.
/// [`check`](Self::check) connects at once and reports what is wrong.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_permit::Error> {
/// use tower_permit::{Coordinator, Memory};
///
/// let permits = Coordinator::new(Memory::new());
/// permits.check().await?;
/// let permit = permits.semaphore("export", 4)?.acquire().await?;
/// # drop(permit);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Coordinator {
    client: Arc<Client>,
}

/// Builder of a [`Coordinator`], returned by [`Coordinator::builder`].
#[derive(Clone, Debug)]
pub struct CoordinatorBuilder<B> {
    backend: B,
    settings: Settings,
}

/// A name that is in use in this process, returned by [`Coordinator::names`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NameInUse {
    /// Whether it is the name of a semaphore or of a mutex. The key of a keyed layer is one of them.
    pub kind: NameKind,
    /// The encoded name. That of a key begins with the layer's name and a `+`.
    pub name: String,
    /// This process's figures.
    pub stats: Stats,
}

/// The kind of a name. A semaphore and a mutex of one name are independent of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum NameKind {
    /// A semaphore, or a key of a keyed limit.
    Semaphore,
    /// A mutex, or a key of a keyed mutex.
    Mutex,
}

// === impl Coordinator ===

impl Coordinator {
    /// Creates a coordinator with the default settings: a lease of 10 s, and an outage after 1 s without an answer.
    pub fn new(backend: impl Backend) -> Self {
        Self::builder(backend).open()
    }

    /// Creates a coordinator over the backend that this URL names, with the default settings. [`AnyBackend`] lists the
    /// URLs. Does not connect.
    ///
    /// # Errors
    ///
    /// As [`AnyBackend::from_url`].
    ///
    /// ```
    /// use tower_permit::Coordinator;
    ///
    /// let permits = Coordinator::from_url("memory:")?;
    /// # Ok::<(), tower_permit::Error>(())
    /// ```
    pub fn from_url(url: impl AsRef<str>) -> Result<Self, Error> {
        Ok(Self::new(AnyBackend::from_url(url)?))
    }

    /// Returns a builder, for other settings than the default.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tower_permit::{Coordinator, Memory};
    ///
    /// let permits = Coordinator::builder(Memory::new()).lease(Duration::from_secs(5)).build()?;
    /// # Ok::<(), tower_permit::Error>(())
    /// ```
    pub fn builder<B: Backend>(backend: B) -> CoordinatorBuilder<B> {
        CoordinatorBuilder {
            backend,
            settings: Settings {
                lease: DEFAULT_LEASE,
                outage_after: DEFAULT_OUTAGE_AFTER,
                strict_fifo: false,
                linger: MAX_LINGER,
                placement: Placement::Callers,
            },
        }
    }

    /// Returns the semaphore with this name: at most `limit` permits are held at a time, over all processes that use this
    /// name on this backend.
    ///
    /// A name is any string or bytes of at most 64 KiB, including the empty one. `limit` is this process's limit: other
    /// processes may have another (see [`Semaphore`]). Within one coordinator, the last limit given for a name counts.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for a limit of 0, a limit that the backend does not support, or a name that is too
    /// long.
    pub fn semaphore(&self, name: impl AsRef<[u8]>, limit: u32) -> Result<Semaphore, Error> {
        let queue = Queue::limit(name.as_ref())?;
        self.client.check_limit(limit)?;
        Ok(Semaphore::new(self.client.queue_client(queue, limit)))
    }

    /// Returns the mutex with this name: at most one guard is held at a time, over all processes that use this name on this
    /// backend. It is independent of a semaphore with the same name.
    ///
    /// Any number of names may be in use. An unused name keeps no state, and a wait for one name delays no other.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for a name that is too long.
    pub fn mutex(&self, name: impl AsRef<[u8]>) -> Result<Mutex, Error> {
        let queue = Queue::mutex(name.as_ref())?;
        Ok(Mutex::new(self.client.queue_client(queue, 1)))
    }

    /// Locks several mutexes, all or none. Waits until all locks are granted.
    ///
    /// Each is locked once, in an order that does not depend on the order given, so callers with overlapping names do not
    /// deadlock. If one fails or the future is dropped, those locked before are released.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] without a name, for more than 64 names, or for a name that is too long;
    /// [`ErrorKind::Lost`] if a lock is lost during the wait for the others; else as [`Mutex::lock`].
    ///
    /// # Cancel safety
    ///
    /// As [`Mutex::lock`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_permit::Error> {
    /// # let permits = tower_permit::Coordinator::new(tower_permit::Memory::new());
    /// let both = permits.lock_all(["account:7", "account:9", "account:7"]).await?;
    /// assert_eq!(both.guards().len(), 2);
    /// # drop(both);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn lock_all<N: AsRef<[u8]>>(
        &self,
        names: impl IntoIterator<Item = N>,
    ) -> Result<MutexGuards, Error> {
        let mutexes = self.mutexes(names);
        MutexGuards::lock(mutexes?, None).await
    }

    /// Locks several mutexes, all or none. Waits for at most `timeout` in total.
    ///
    /// # Errors
    ///
    /// As [`lock_all`](Self::lock_all), and [`ErrorKind::WaitTimeout`].
    ///
    /// # Cancel safety
    ///
    /// As [`Mutex::lock`].
    pub async fn lock_all_timeout<N: AsRef<[u8]>>(
        &self,
        names: impl IntoIterator<Item = N>,
        timeout: Duration,
    ) -> Result<MutexGuards, Error> {
        let mutexes = self.mutexes(names);
        MutexGuards::lock(mutexes?, Some(timeout)).await
    }

    /// Returns the mutexes without duplicates, in an order that is the same in all processes.
    fn mutexes<N: AsRef<[u8]>>(
        &self,
        names: impl IntoIterator<Item = N>,
    ) -> Result<Vec<Mutex>, Error> {
        let mut queues = BTreeSet::new();
        for name in names {
            queues.insert(Queue::mutex(name.as_ref())?);
            if queues.len() > MAX_NAMES {
                return Err(Error::config(format!(
                    "more than {MAX_NAMES} names cannot be locked together: split them up"
                )));
            }
        }
        if queues.is_empty() {
            return Err(Error::config(
                "the set of names to lock is empty: pass at least 1 name",
            ));
        }
        let mutexes = queues.into_iter();
        Ok(mutexes
            .map(|queue| Mutex::new(self.client.queue_client(queue, 1)))
            .collect())
    }

    /// Returns the semaphore of a queue that a layer named after a key. A mutex is a queue with a limit of 1.
    pub(crate) fn queue_semaphore(&self, queue: Queue, limit: u32) -> Semaphore {
        Semaphore::new(self.client.queue_client(queue, limit))
    }

    /// Returns an error if the backend does not support this limit.
    pub(crate) fn check_limit(&self, limit: u32) -> Result<(), Error> {
        self.client.check_limit(limit)
    }

    /// Returns whether this permit was granted through this coordinator.
    pub(crate) fn granted(&self, permit: &Permit) -> bool {
        permit.is_of(&self.client)
    }

    #[cfg(test)]
    pub(crate) fn entries(&self) -> usize {
        self.client.entries()
    }

    /// Returns every name that is in use in this process, in order: those of semaphores, mutexes and the keys of layers. A name
    /// is in use as long as a handle, a layer, a permit, a waiter or an unacknowledged release exists. Changes no limit.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_permit::Error> {
    /// use tower_permit::{Coordinator, Memory, NameKind};
    ///
    /// let permits = Coordinator::new(Memory::new());
    /// let permit = permits.semaphore("export", 4)?.acquire().await?;
    /// let [export] = permits.names().try_into().expect("one name");
    /// assert_eq!((export.kind, &*export.name, export.stats.in_use), (NameKind::Semaphore, "export", 1));
    /// # drop(permit);
    /// # Ok(())
    /// # }
    /// ```
    pub fn names(&self) -> Vec<NameInUse> {
        let names = self.client.all().into_iter();
        let mut names: Vec<_> = names
            .map(|name| NameInUse {
                kind: match name.queue().kind() {
                    Kind::Limit => NameKind::Semaphore,
                    Kind::Mutex => NameKind::Mutex,
                },
                name: name.queue().name().to_owned(),
                stats: name.stats(),
            })
            .collect();
        names.sort_unstable_by(|a, b| (a.kind, &a.name).cmp(&(b.kind, &b.name)));
        names
    }

    /// Returns this process's figures of the semaphore with this name, or `None` if it is not in use here. Changes no limit.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for a name that is too long.
    pub fn stats(&self, name: impl AsRef<[u8]>) -> Result<Option<Stats>, Error> {
        let queue = Queue::limit(name.as_ref())?;
        Ok(self.client.existing(&queue).map(|name| name.stats()))
    }

    /// Connects now and checks the backend. The error explains what is wrong: no connection, a wrong password, missing
    /// rights, or a server that is too old. Leaves no state at the backend.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`], [`ErrorKind::Denied`] or [`ErrorKind::Incompatible`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub async fn check(&self) -> Result<(), Error> {
        self.client.check().await
    }

    /// Returns what the backend supports.
    pub fn capabilities(&self) -> Capabilities {
        self.client.capabilities()
    }

    /// Returns the name of this node as [`inspect`](Self::inspect) shows it: `host-pid-random`.
    pub fn node(&self) -> &str {
        self.client.node.as_str()
    }

    /// Returns the held and the queued tickets of the semaphore with this name, over all processes.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for a name that is too long; else [`ErrorKind::Unavailable`], [`ErrorKind::Denied`] or
    /// [`ErrorKind::Incompatible`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub async fn inspect(&self, name: impl AsRef<[u8]>) -> Result<Inspection, Error> {
        self.inspect_queue(Queue::limit(name.as_ref())?).await
    }

    /// Evicts a ticket that [`inspect`](Self::inspect) returned from the semaphore with this name. Returns `false` if the
    /// ticket did not exist.
    ///
    /// The permit of a held ticket is lost. Its holder, or the local waiter that got it by a
    /// [hand-off](crate::guide::queue), notices that at the next renewal, at most a third of a lease later. A queued ticket
    /// only loses its position: its process enqueues it again at the end.
    ///
    /// # Errors
    ///
    /// As [`inspect`](Self::inspect).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it resolves, the ticket may or may not be evicted.
    pub async fn evict(&self, name: impl AsRef<[u8]>, ticket: &str) -> Result<bool, Error> {
        self.evict_ticket(Queue::limit(name.as_ref())?, ticket)
            .await
    }

    /// As [`inspect`](Self::inspect), for a queue that a layer named after a key.
    pub(crate) async fn inspect_queue(&self, queue: Queue) -> Result<Inspection, Error> {
        self.client.inspect(queue).await
    }

    /// As [`evict`](Self::evict), for a queue that a layer named after a key.
    pub(crate) async fn evict_ticket(&self, queue: Queue, ticket: &str) -> Result<bool, Error> {
        self.client.evict(queue, ticket.to_owned()).await
    }

    /// Releases all [lingering](CoordinatorBuilder::linger) permits, and resolves when the backend has acknowledged every
    /// release so far. Held permits and waiting callers are not affected.
    ///
    /// A dropped permit is released in the background. A serverless platform may freeze the process before that: await
    /// `flush` before the function returns. During an outage it waits until the backend answers again, so wrap it in a
    /// timeout if that matters. See the guide on [serverless platforms](crate::guide::serverless).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the wait. The releases continue.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_permit::Error> {
    /// # let permits = tower_permit::Coordinator::new(tower_permit::Memory::new());
    /// drop(permits.mutex("export")?.lock().await?);
    /// permits.flush().await;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn flush(&self) {
        self.client.flush().await;
    }

    /// Shuts down. Refuses new callers, waits for at most `timeout` until every permit is released, and then revokes the
    /// rest, which [`Permit::lost`] reports. Resolves when the backend has acknowledged all releases.
    ///
    /// If the backend does not answer, this resolves at the latest after `timeout`,
    /// [`outage_after`](CoordinatorBuilder::outage_after) and one second together. Permits without an
    /// acknowledged release become free when their lease expires.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::HeldTooLong`] if permits were revoked.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the wait. New callers are refused from its first poll on.
    pub async fn shutdown(&self, timeout: Duration) -> Result<(), Error> {
        let revoked = match self.client.shut_down(timeout).await {
            0 => return Ok(()),
            1 => "1 permit was".to_owned(),
            more => format!("{more} permits were"),
        };
        Err(Error::new(
            ErrorKind::HeldTooLong,
            format!("{revoked} still held after {timeout:?} and revoked"),
        ))
    }
}

// === impl CoordinatorBuilder ===

impl<B: Backend> CoordinatorBuilder<B> {
    /// Sets how long a node's tickets outlive its last heartbeat, and so how long the permits of a crashed process stay
    /// taken. Default: 10 s. Range: [`Capabilities::min_lease`] (usually 1 s) to 1 h.
    ///
    /// Permits are renewed every third of a lease. A process may be paused or cut off for two thirds of a lease before it
    /// can lose permits.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.lease = lease;
        self
    }

    /// Sets for how long the backend must not have answered before new callers are refused with
    /// [`ErrorKind::Unavailable`]. Default: 1 s. Range: 50 ms to 1 h.
    #[must_use]
    pub fn outage_after(mut self, outage_after: Duration) -> Self {
        self.settings.outage_after = outage_after;
        self
    }

    /// Turns hand-off and [lingering](Self::linger) off, so that permits are granted in the order in which tickets arrived
    /// at the backend, over all processes. Default: off.
    ///
    /// Otherwise a released permit passes to the oldest waiter of *this process* for the same name, without a round trip:
    /// any number of times within 10 ms after an answer that showed no ticket queued elsewhere, else at most 4 times and
    /// within 200 ms of its grant. Then it is released to the backend. The order is first in, first out within each
    /// process; a waiter of another process can be overtaken by that much for each permit.
    #[must_use]
    pub fn strict_fifo(mut self, strict: bool) -> Self {
        self.settings.strict_fifo = strict;
        self
    }

    /// Sets how long a released permit of a semaphore may stay in this process for the next caller, which then needs no round
    /// trip. Default and maximum: 10 ms. Zero turns it off.
    ///
    /// It stays only while the last answer of the backend is less than 10 ms old and showed no queued ticket and half the
    /// limit free. It is released at once when a ticket is queued, and at a [shutdown](Coordinator::shutdown). Meanwhile it
    /// counts as in use; if the process ends without a shutdown, until its lease expires.
    #[must_use]
    pub fn linger(mut self, linger: Duration) -> Self {
        self.settings.linger = linger;
        self
    }

    /// Runs the driver on this runtime: calls to the backend, renewals and connections. Default: the runtime of a caller;
    /// the driver moves to another one when that runtime ends.
    ///
    /// For a process with several runtimes, or with a runtime that is blocked at times: leases are renewed as long as this
    /// runtime runs. The runtime needs tokio's IO and time drivers and must outlive the use of the coordinator. Once it has
    /// ended, callers get [`ErrorKind::NoRuntime`] and held permits are lost.
    #[must_use]
    pub fn runtime(mut self, runtime: tokio::runtime::Handle) -> Self {
        self.settings.placement = Placement::Runtime(runtime);
        self
    }

    /// Runs the driver on a dedicated thread with its own runtime. Leases are renewed while all threads of the application
    /// are busy, and several runtimes in one process do not depend on each other. See the guide on
    /// [CPU-bound work](crate::guide::cpu_bound).
    ///
    /// The thread starts at the first use. It ends when the coordinator and everything created from it are dropped and
    /// every release is acknowledged.
    ///
    /// ```
    /// use tower_permit::{Coordinator, Memory};
    ///
    /// let permits = Coordinator::builder(Memory::new()).dedicated_thread().build()?;
    /// # Ok::<(), tower_permit::Error>(())
    /// ```
    #[must_use]
    pub fn dedicated_thread(mut self) -> Self {
        self.settings.placement = Placement::DedicatedThread;
        self
    }

    /// Builds the coordinator. Does not connect.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for a duration out of its range.
    pub fn build(self) -> Result<Coordinator, Error> {
        let Settings {
            lease,
            outage_after,
            linger,
            ..
        } = self.settings;
        let coordinator = self.open();
        let min_lease = coordinator.capabilities().min_lease;
        if !(min_lease..=MAX_LEASE).contains(&lease) {
            return Err(Error::config(format!(
                "a lease of {lease:?} is out of range: it must be {min_lease:?} to {MAX_LEASE:?}"
            )));
        }
        if !(MIN_OUTAGE_AFTER..=MAX_OUTAGE_AFTER).contains(&outage_after) {
            return Err(Error::config(format!(
                "an outage_after of {outage_after:?} is out of range: it must be {MIN_OUTAGE_AFTER:?} to \
                 {MAX_OUTAGE_AFTER:?}"
            )));
        }
        if linger > MAX_LINGER {
            return Err(Error::config(format!(
                "a linger of {linger:?} is out of range: it must be at most {MAX_LINGER:?}"
            )));
        }
        Ok(coordinator)
    }

    fn open(self) -> Coordinator {
        let backend = self.backend;
        Coordinator {
            client: Client::new(self.settings, |node, events| backend.open(node, events)),
        }
    }
}
