//! A semaphore that all processes of a fleet share.

use crate::client::QueueClient;
use crate::error::Error;
use crate::permit::Permit;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::coop;

pub(crate) use crate::acquire::Acquire;
pub use crate::client::Stats;
pub(crate) use crate::client::{Terms, Wait};

/// How many callers of one process may wait for one name, unless set by [`Semaphore::max_waiting`].
pub(crate) const MAX_WAITING: usize = 1024;

/// A named limit: at most `limit` permits are held at a time, over all processes that use the same backend.
///
/// Created by [`Coordinator::semaphore`](crate::Coordinator::semaphore). Cheap to clone. All semaphores of one name in one
/// coordinator share one queue and one limit: the last one given to `semaphore` or [`set_limit`](Self::set_limit).
///
/// # Differences from `tokio::sync::Semaphore`
///
/// * The backend counts the permits, so acquiring one takes a network round trip.
/// * A permit can be lost: if this process is cut off or paused for longer than its lease, the backend grants the permit
///   to another waiter. [`Permit::is_valid`] and [`Permit::lost`] report that.
/// * Processes may have different limits, for example during a rolling deploy. Each process gets permits only while fewer
///   than its own limit are held.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_permit::Error> {
/// use tower_permit::{Coordinator, ErrorKind, Memory};
///
/// let permits = Coordinator::new(Memory::new());
/// let export = permits.semaphore("export", 1)?;
/// let first = export.acquire().await?;
/// assert_eq!(export.try_acquire().await.unwrap_err().kind(), ErrorKind::LimitReached);
/// drop(first);
/// let second = export.acquire().await?;
/// # drop(second);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Semaphore {
    queue_client: Arc<QueueClient>,
    max_waiting: usize,
    max_hold: Option<Duration>,
}

// === impl Semaphore ===

impl Semaphore {
    pub(crate) fn new(queue_client: Arc<QueueClient>) -> Self {
        Self {
            queue_client,
            max_waiting: MAX_WAITING,
            max_hold: None,
        }
    }

    /// Sets how many callers of this process may wait for this name. Further callers are refused with
    /// [`TooManyWaiting`](crate::ErrorKind::TooManyWaiting). Default: 1,024. Applies to this value and to clones made from it.
    ///
    /// Only callers without a free permit count, so no caller is refused while one is free. With 0, [`acquire`](Self::acquire)
    /// behaves like [`try_acquire`](Self::try_acquire).
    #[must_use]
    pub fn max_waiting(mut self, max: usize) -> Self {
        self.max_waiting = max;
        self
    }

    /// Sets how long a permit may be held. After that it is released and [`Permit::lost`] resolves. Default: unlimited.
    /// Applies to this value and its clones.
    #[must_use]
    pub fn max_hold(mut self, max: Duration) -> Self {
        self.max_hold = Some(max);
        self
    }

    /// Returns the encoded name: ASCII letters, digits and `-_.:` unchanged, the rest percent-encoded. A long name is cut
    /// and ends with a hash.
    pub fn name(&self) -> &str {
        self.queue_client.queue().name()
    }

    /// Returns this process's limit.
    pub fn limit(&self) -> u32 {
        self.queue_client.stats().limit
    }

    /// Sets this process's limit for this name. A lower limit evicts no holder: no permit is granted until fewer than the
    /// new limit are held.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for a limit that the backend does not support, such as 0.
    pub fn set_limit(&self, limit: u32) -> Result<(), Error> {
        self.queue_client.set_limit(limit)
    }

    /// Acquires a permit. Waits in the queue until one is granted.
    ///
    /// # Errors
    ///
    /// * [`TooManyWaiting`](crate::ErrorKind::TooManyWaiting): [`max_waiting`](Self::max_waiting) callers wait already.
    /// * [`Unavailable`](crate::ErrorKind::Unavailable): the backend has not answered for `outage_after`.
    /// * [`Denied`](crate::ErrorKind::Denied): the credentials are wrong or lack a right.
    /// * [`Incompatible`](crate::ErrorKind::Incompatible): the backend is too old, or a key contains other data.
    /// * [`ShuttingDown`](crate::ErrorKind::ShuttingDown): after [`Coordinator::shutdown`](crate::Coordinator::shutdown).
    /// * [`NoRuntime`](crate::ErrorKind::NoRuntime): this thread has no tokio runtime, the coordinator's runtime has ended, or
    ///   the runtime has no timers.
    /// * [`LimitReached`](crate::ErrorKind::LimitReached): `max_waiting` is 0 and no permit is free.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future at any time removes the ticket from the queue, and releases a permit that was granted
    /// meanwhile. The ticket is enqueued at the first poll; a new call starts at the end of the queue.
    pub async fn acquire(&self) -> Result<Permit, Error> {
        if let Some(permit) = self.acquire_lingering().await {
            return Ok(permit);
        }
        self.acquire_with(&self.wait()).await
    }

    /// Acquires a permit. Waits in the queue for at most `timeout`.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), and [`WaitTimeout`](crate::ErrorKind::WaitTimeout).
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn acquire_timeout(&self, timeout: Duration) -> Result<Permit, Error> {
        if let Some(permit) = self.acquire_lingering().await {
            return Ok(permit);
        }
        let wait = Wait {
            timeout: Some(timeout),
            ..self.wait()
        };
        self.acquire_with(&wait).await
    }

    /// Acquires a permit if one is free and no ticket is queued. Takes a round trip to the backend, but does not wait in
    /// the queue.
    ///
    /// # Errors
    ///
    /// [`LimitReached`](crate::ErrorKind::LimitReached) if no permit is free; else as [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire(&self) -> Result<Permit, Error> {
        if let Some(permit) = self.acquire_lingering().await {
            return Ok(permit);
        }
        let wait = Wait {
            may_wait: false,
            ..self.wait()
        };
        self.acquire_with(&wait).await
    }

    /// Returns this process's counters for this name.
    pub fn stats(&self) -> Stats {
        self.queue_client.stats()
    }

    /// Acquires a lingering permit without a round trip: the most frequent case below saturation.
    #[inline]
    async fn acquire_lingering(&self) -> Option<Permit> {
        // A task that acquires permits in a loop and never waits must yield to other tasks.
        coop::consume_budget().await;
        self.try_lingering(self.terms())
    }

    /// The wait of [`acquire`](Self::acquire).
    fn wait(&self) -> Wait {
        Wait {
            may_wait: self.max_waiting > 0,
            timeout: None,
            max_waiting: self.max_waiting,
            terms: self.terms(),
        }
    }

    #[inline]
    fn terms(&self) -> Terms {
        Terms {
            reserve: None,
            max_hold: self.max_hold,
            stall_timeout: None,
        }
    }

    /// Returns a permit that lingers in this process, if there is one.
    #[inline]
    pub(crate) fn try_lingering(&self, terms: Terms) -> Option<Permit> {
        let hold = self.queue_client.acquire_lingering(terms)?;
        Some(Permit::new(Arc::clone(&self.queue_client), hold))
    }

    /// Starts to acquire a permit: the ticket is enqueued now, not at the first poll.
    pub(crate) fn acquire_with(&self, wait: &Wait) -> Acquire {
        Acquire::new(&self.queue_client, wait)
    }
}
