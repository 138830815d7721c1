//! A semaphore whose permits a whole fleet shares.

use crate::client::QueueClient;
use crate::error::Error;
use crate::permit::Permit;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::coop;

pub(crate) use crate::acquire::Acquire;
pub use crate::client::Stats;
pub(crate) use crate::client::{Client, Terms, Wait};

/// So many callers of one process may wait for one name, unless [`Semaphore::max_waiting`] says otherwise.
pub(crate) const MAX_WAITING: usize = 1024;

/// A limit with a name: at most `limit` permits are out at a time, over every process that uses the same backend.
///
/// Made by [`Coordinator::semaphore`](crate::Coordinator::semaphore). Cheap to clone; all semaphores of one name in one
/// coordinator share one line and one limit (that of the last one made or [set](Self::set_limit)).
///
/// # Differences from `tokio::sync::Semaphore`
///
/// Permits are counted by the backend, so acquiring takes a trip over the network, and a permit can be lost: when this
/// process is cut off or paused for longer than its lease, others get in. [`Permit::is_valid`] and [`Permit::lost`]
/// tell. Processes may have different limits (a deploy that rolls out a new one): each is let in only while fewer than
/// its own limit are in use.
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

    /// Refuses a caller ([`TooManyWaiting`](crate::ErrorKind::TooManyWaiting)) when so many of this process wait for
    /// this name already. 1,024 unless set. Goes for this value and its clones.
    pub fn max_waiting(mut self, most: usize) -> Self {
        self.max_waiting = most;
        self
    }

    /// Gives a permit back by itself when it was held for so long; [`Permit::lost`] tells the holder. Not bounded unless
    /// set. Goes for this value and its clones.
    pub fn max_hold(mut self, most: Duration) -> Self {
        self.max_hold = Some(most);
        self
    }

    /// The name in its safe form: letters, digits and `-_.:` as they are, the rest percent-encoded, cut if long.
    pub fn name(&self) -> &str {
        self.queue_client.queue().name()
    }

    /// This process's limit.
    pub fn limit(&self) -> u32 {
        self.queue_client.limit()
    }

    /// Sets this process's limit for this name. Permits that are out stay out; nobody new comes in until it fits.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for a limit that the backend cannot keep, such as 0.
    pub fn set_limit(&self, limit: u32) -> Result<(), Error> {
        self.queue_client.set_limit(limit)
    }

    /// Takes a permit; waits in line as long as it takes.
    ///
    /// # Errors
    ///
    /// [`TooManyWaiting`](crate::ErrorKind::TooManyWaiting), [`Unavailable`](crate::ErrorKind::Unavailable) when the
    /// backend has not answered for `outage_after`, [`Denied`](crate::ErrorKind::Denied) or
    /// [`Incompatible`](crate::ErrorKind::Incompatible) when it answered with that,
    /// [`ShuttingDown`](crate::ErrorKind::ShuttingDown), [`NoRuntime`](crate::ErrorKind::NoRuntime).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future at any time gives up the place in the line; a permit that was granted meanwhile is given
    /// back. The place is taken at the first poll.
    pub async fn acquire(&self) -> Result<Permit, Error> {
        if let Some(permit) = self.take_lingering().await {
            return Ok(permit);
        }
        self.start(self.wait()).await
    }

    /// Takes a permit; waits in line for `timeout` at most.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), and [`WaitTimeout`](crate::ErrorKind::WaitTimeout).
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn acquire_timeout(&self, timeout: Duration) -> Result<Permit, Error> {
        if let Some(permit) = self.take_lingering().await {
            return Ok(permit);
        }
        let wait = Wait {
            timeout: Some(timeout),
            ..self.wait()
        };
        self.start(wait).await
    }

    /// Takes a permit if one is free and nobody waits. Asks the backend, so it takes a trip.
    ///
    /// # Errors
    ///
    /// [`LimitReached`](crate::ErrorKind::LimitReached) when there is none; else as [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire(&self) -> Result<Permit, Error> {
        if let Some(permit) = self.take_lingering().await {
            return Ok(permit);
        }
        let wait = Wait {
            queue: false,
            ..self.wait()
        };
        self.start(wait).await
    }

    /// What this process has seen of this name.
    pub fn stats(&self) -> Stats {
        self.queue_client.stats()
    }

    /// The quick way for what happens most: a permit that lingers here.
    #[inline]
    async fn take_lingering(&self) -> Option<Permit> {
        // Who takes permit after permit without ever waiting lets others run now and then.
        coop::consume_budget().await;
        self.reserve_lingering(Terms {
            reserve: None,
            max_hold: self.max_hold,
        })
    }

    /// How this semaphore's callers wait, unless they say otherwise.
    fn wait(&self) -> Wait {
        Wait {
            queue: true,
            timeout: None,
            max_waiting: self.max_waiting,
            max_hold: self.max_hold,
            reserve: None,
        }
    }

    /// A reservation, if a permit lingers here.
    #[inline]
    pub(crate) fn reserve_lingering(&self, terms: Terms) -> Option<Permit> {
        let hold = self.queue_client.acquire_lingering(terms)?;
        Some(Permit::new(Arc::clone(&self.queue_client), hold))
    }

    /// Joins the line now.
    pub(crate) fn start(&self, wait: Wait) -> Acquire {
        Acquire::new(&self.queue_client, &wait)
    }
}
