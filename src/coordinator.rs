//! What a user makes once per process.

use crate::backend::any::AnyBackend;
use crate::backend::{Backend, Capabilities, Inspection};
use crate::client::{Client, Placement, Settings};
use crate::error::{Error, ErrorKind};
use crate::mutex::{MOST_NAMES, Mutex, MutexGuards};
use crate::name::Queue;
use crate::semaphore::Semaphore;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

const LEASE: Duration = Duration::from_secs(10);
const LONGEST_LEASE: Duration = Duration::from_secs(3600);
const LONGEST_LINGER: Duration = Duration::from_millis(10);
const OUTAGE_AFTER: Duration = Duration::from_secs(1);
const LEAST_OUTAGE_AFTER: Duration = Duration::from_millis(50);

/// Hands out semaphores and mutexes by name, over one backend. Make one per process, and keep it: it is cheap to clone, all clones
/// are one, and it can live in a `static`.
///
/// Making one neither connects nor spawns: that happens at first use, on the runtime of the caller.
/// [`check`](Self::check) connects now and says what is wrong.
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

/// Settings of a [`Coordinator`], by [`Coordinator::builder`].
#[derive(Clone, Debug)]
pub struct CoordinatorBuilder<B> {
    backend: B,
    settings: Settings,
}

// === impl Coordinator ===

impl Coordinator {
    /// A coordinator with the default settings: leases of 10 s, newcomers refused when the backend has not answered for
    /// 1 s.
    pub fn new(backend: impl Backend) -> Self {
        Self::builder(backend).open()
    }

    /// A coordinator over the backend that this URL names, with the default settings: see [`AnyBackend`]. As ever, the
    /// connection is made at first use.
    ///
    /// # Errors
    ///
    /// As [`AnyBackend::from_url`].
    ///
    /// ```
    /// use tower_permit::Coordinator;
    ///
    /// let permits = Coordinator::connect("memory:")?;
    /// # Ok::<(), tower_permit::Error>(())
    /// ```
    pub fn connect(url: impl AsRef<str>) -> Result<Self, Error> {
        Ok(Self::new(AnyBackend::from_url(url)?))
    }

    /// A coordinator with settings of your own.
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
                lease: LEASE,
                outage_after: OUTAGE_AFTER,
                strict_fifo: false,
                linger: LONGEST_LINGER,
                placement: Placement::Callers,
            },
        }
    }

    /// The semaphore with this name: at most `limit` permits are out at a time, over every process that uses this name
    /// on this backend.
    ///
    /// A name is any string or bytes up to 64 KiB, the empty one too. `limit` is this process's: others may have
    /// another (see [`Semaphore`]); within one coordinator the last one given counts for all its semaphores of the name.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for a limit of 0, one that the backend cannot keep, or a name that is too long.
    pub fn semaphore(&self, name: impl AsRef<[u8]>, limit: u32) -> Result<Semaphore, Error> {
        let queue = Queue::limit(name.as_ref())?;
        self.client.check_limit(limit)?;
        Ok(Semaphore::new(self.client.queue_client(queue, limit)))
    }

    /// The mutex with this name: at most one guard is out at a time, over every process that uses this name on this
    /// backend. A semaphore of the same name has nothing to do with it.
    ///
    /// Any number of names may be in use; nothing is kept for one that nobody uses, and waiting for one delays no other.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for a name that is too long.
    pub fn mutex(&self, name: impl AsRef<[u8]>) -> Result<Mutex, Error> {
        let queue = Queue::mutex(name.as_ref())?;
        Ok(Mutex::new(self.client.queue_client(queue, 1)))
    }

    /// Locks several mutexes, all or none; waits in line as long as it takes.
    ///
    /// They are taken in one order whatever the order given, each once, so callers with overlapping names never wait for
    /// each other for ever. What was taken is given back when one fails or the future is dropped.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for no name at all, more than 64, or one that is too long; [`ErrorKind::Lost`]
    /// when one is lost while the others are waited for; else as [`Mutex::lock`].
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

    /// Locks several mutexes, all or none; waits for `timeout` at most, in all.
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

    /// Each once, in an order that all processes agree on.
    fn mutexes<N: AsRef<[u8]>>(
        &self,
        names: impl IntoIterator<Item = N>,
    ) -> Result<Vec<Mutex>, Error> {
        let mut queues = BTreeSet::new();
        for name in names {
            queues.insert(Queue::mutex(name.as_ref())?);
            if queues.len() > MOST_NAMES {
                return Err(Error::config(format!(
                    "more than {MOST_NAMES} names cannot be locked together"
                )));
            }
        }
        if queues.is_empty() {
            return Err(Error::config("no name at all cannot be locked"));
        }
        let mutexes = queues.into_iter();
        Ok(mutexes
            .map(|queue| Mutex::new(self.client.queue_client(queue, 1)))
            .collect())
    }

    /// For what makes its names as it goes.
    pub(crate) fn client(&self) -> &Arc<Client> {
        &self.client
    }

    /// Connects now and says in plain words what is wrong: no connection, a wrong password, missing rights, a server
    /// that is too old. Leaves nothing behind.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`], [`ErrorKind::Denied`] or [`ErrorKind::Incompatible`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn check(&self) -> Result<(), Error> {
        self.client.check().await
    }

    /// What the backend promises.
    pub fn capabilities(&self) -> Capabilities {
        self.client.capabilities()
    }

    /// This process as others see it in [`inspect`](Self::inspect): `host-pid-random`.
    pub fn node(&self) -> &str {
        self.client.node().as_str()
    }

    /// Who holds and who waits for the semaphore with this name, over all processes.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for a name that is too long; else when the backend does not answer or refuses.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn inspect(&self, name: impl AsRef<[u8]>) -> Result<Inspection, Error> {
        let queue = Queue::limit(name.as_ref())?;
        self.client.inspect(queue).await
    }

    /// Takes a ticket that [`inspect`](Self::inspect) has shown out of the semaphore with this name. `false` if it was
    /// not there.
    ///
    /// A permit is lost by it: its holder learns that at its next renewal, a third of its lease later at most, or whoever has
    /// got it [from hand to hand](crate::guide::queue) by then. A waiter only loses its place: its process puts it at the
    /// end of the queue again.
    ///
    /// # Errors
    ///
    /// As [`inspect`](Self::inspect).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before its end, the ticket may be out or not.
    pub async fn evict(&self, name: impl AsRef<[u8]>, ticket: &str) -> Result<bool, Error> {
        let queue = Queue::limit(name.as_ref())?;
        self.client.evict(queue, ticket.to_owned()).await
    }

    /// Releases what [lingers](CoordinatorBuilder::linger), and resolves when the backend has acknowledged every release
    /// so far. Permits that are held and callers that wait are not affected.
    ///
    /// A dropped permit is released in the background. A platform that freezes a process after its response may do so
    /// before that: a function there awaits this before it returns. During an outage it waits until the backend is back;
    /// bound it with a timeout where that matters. See the guide about [serverless platforms](crate::guide::serverless).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future stops the waiting. The releases go on.
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

    /// Refuses new callers, waits for `within` at most until every permit is released, then takes back what is still held
    /// (its holders see it by [`Permit::lost`](crate::Permit::lost)). Resolves when the backend has acknowledged all
    /// releases. Where it does not answer, or refuses, that is given up after `within`,
    /// [`outage_after`](CoordinatorBuilder::outage_after) and a second or less: what was held then becomes free when its
    /// lease runs out.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::HeldTooLong`] if permits had to be taken back.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future stops the waiting; newcomers are refused from its first poll on.
    pub async fn shutdown(&self, within: Duration) -> Result<(), Error> {
        match self.client.shut_down(within).await {
            0 => Ok(()),
            cut => Err(Error::new(
                ErrorKind::HeldTooLong,
                format!("{cut} permits were still held after {within:?} and were taken back"),
            )),
        }
    }
}

// === impl CoordinatorBuilder ===

impl<B: Backend> CoordinatorBuilder<B> {
    /// How long a permit outlives the last word of its process: so long it takes until the permits of a process that
    /// died are free again. 10 s unless set; 1 s to 1 h. It is renewed every third of it, so a process may be paused or
    /// cut off for two thirds of it before its permits are in doubt.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.lease = lease;
        self
    }

    /// Newcomers are refused with [`ErrorKind::Unavailable`] when the backend has not answered for this long. 1 s unless
    /// set; 50 ms to 1 h.
    pub fn outage_after(mut self, outage_after: Duration) -> Self {
        self.settings.outage_after = outage_after;
        self
    }

    /// Sends every permit back to the queue when it is released, so that permits are granted in the order in which
    /// tickets arrived there, over all processes. Off unless set.
    ///
    /// Without it a permit that is released goes straight to the oldest caller of *this process* who waits for the same
    /// name, without a trip to the backend: freely for 10 ms after an answer that showed nobody waiting elsewhere, else 4
    /// times and within 200 ms of its grant at most; then it goes back to the queue. So the order is first in, first out
    /// within each process, and who waits elsewhere is passed by that much at most for each permit. With it permits do not
    /// [linger](Self::linger) either.
    pub fn strict_fifo(mut self, strict: bool) -> Self {
        self.settings.strict_fifo = strict;
        self
    }

    /// For how long a permit of a semaphore that is released may stay in this process, for the next caller who comes: he
    /// needs no trip to the backend then. 10 ms unless set, which is the longest; zero turns it off.
    ///
    /// It stays only while the last answer of the backend is less than 10 ms old and showed nobody waiting and half the
    /// limit free. It goes back at once when somebody waits, and at a [shutdown](Coordinator::shutdown). Meanwhile it counts
    /// as in use; if the program ends at that moment without a shutdown, until its lease is over.
    pub fn linger(mut self, linger: Duration) -> Self {
        self.settings.linger = linger;
        self
    }

    /// Runs everything on this runtime: calls to the backend, renewals, connections. Without it they run on the runtime
    /// of a caller, and move when that one ends.
    ///
    /// For a process with several runtimes, or one whose runtime is blocked now and then: leases are renewed as long as
    /// this runtime runs. It needs tokio's IO and time drivers, and has to outlive the use of the coordinator: once it has
    /// ended, callers get [`ErrorKind::NoRuntime`] and held permits are lost.
    pub fn runtime(mut self, runtime: tokio::runtime::Handle) -> Self {
        self.settings.placement = Placement::Runtime(runtime);
        self
    }

    /// Runs everything on a thread of the coordinator's own, with a runtime of its own: leases are renewed while all
    /// threads of the application compute, and several runtimes in one process do not depend on each other. See the guide
    /// about [CPU-bound work](crate::guide::cpu_bound).
    ///
    /// The thread starts at first use. It ends when the coordinator and all that it gave out are dropped and every
    /// release is acknowledged.
    ///
    /// ```
    /// use tower_permit::{Coordinator, Memory};
    ///
    /// let permits = Coordinator::builder(Memory::new()).dedicated_thread().build()?;
    /// # Ok::<(), tower_permit::Error>(())
    /// ```
    pub fn dedicated_thread(mut self) -> Self {
        self.settings.placement = Placement::DedicatedThread;
        self
    }

    /// Makes the coordinator.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for a time out of its range.
    pub fn build(self) -> Result<Coordinator, Error> {
        let Settings {
            lease,
            outage_after,
            linger,
            ..
        } = self.settings;
        let coordinator = self.open();
        let min_lease = coordinator.capabilities().min_lease;
        if !(min_lease..=LONGEST_LEASE).contains(&lease) {
            return Err(Error::config(format!(
                "a lease of {lease:?} is out of range: {min_lease:?} to {LONGEST_LEASE:?}"
            )));
        }
        if !(LEAST_OUTAGE_AFTER..=LONGEST_LEASE).contains(&outage_after) {
            return Err(Error::config(format!(
                "outage_after {outage_after:?} is out of range: {LEAST_OUTAGE_AFTER:?} to {LONGEST_LEASE:?}"
            )));
        }
        if linger > LONGEST_LINGER {
            return Err(Error::config(format!(
                "a linger of {linger:?} is out of range: at most {LONGEST_LINGER:?}"
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
