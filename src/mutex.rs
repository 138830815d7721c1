//! A mutex with fencing tokens that all processes of a fleet share.

use crate::acquire::Acquire;
use crate::backend::Inspection;
use crate::client::{QueueClient, Terms, Wait};
use crate::error::{Error, ErrorKind};
use crate::permit::Permit;
use crate::semaphore::MAX_WAITING;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How many names may be locked together.
pub(crate) const MAX_NAMES: usize = 64;

/// A named lock: at most one guard is held at a time, over all processes that use the same backend.
///
/// Created by [`Coordinator::mutex`](crate::Coordinator::mutex). Cheap to clone. Waiters are served in order of arrival,
/// over all processes if the backend [supports](crate::Capabilities) that.
///
/// # Differences from `tokio::sync::Mutex`
///
/// * It contains no data.
/// * It can be lost: if this process is cut off or paused for longer than its lease, the backend grants the lock to
///   another waiter. [`MutexGuard::lost`] reports that; the [fencing token](MutexGuard::token) protects data from a holder
///   that has not noticed yet.
/// * Two requests of one process are two holders. A second `lock` of the same name by one task waits for itself: see
///   [`MutexGuard::reenter`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_permit::Error> {
/// use tower_permit::{Coordinator, Memory};
///
/// let permits = Coordinator::new(Memory::new());
/// let report = permits.mutex("report:2026-11")?;
///
/// let guard = report.lock().await?;
/// // … write guard.token() with the data, and let the store refuse a lower one …
/// let was_held = guard.unlock().await?;
/// assert!(was_held);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Mutex {
    queue_client: Arc<QueueClient>,
}

/// A locked [`Mutex`], renewed in the background for as long as this value lives. Dropping it unlocks.
///
/// Drop never blocks and never panics, and works during unwinding and outside a runtime. If no runtime is left, the lock is
/// released as soon as the coordinator is used on another one, or when its lease expires.
#[must_use = "dropping a guard unlocks at once"]
pub struct MutexGuard {
    permit: Permit,
    token: u64,
}

/// Several mutexes that were locked together by [`Coordinator::lock_all`](crate::Coordinator::lock_all). Dropping it
/// unlocks all of them.
#[must_use = "dropping the guards unlocks at once"]
#[derive(Debug)]
pub struct MutexGuards {
    guards: Vec<MutexGuard>,
}

// === impl Mutex ===

impl Mutex {
    pub(crate) fn new(queue_client: Arc<QueueClient>) -> Self {
        Self { queue_client }
    }

    /// Returns the encoded name, as [`Semaphore::name`](crate::Semaphore::name).
    pub fn name(&self) -> &str {
        self.queue_client.queue().name()
    }

    /// Locks the mutex. Waits in the queue until the lock is granted.
    ///
    /// # Errors
    ///
    /// As [`Semaphore::acquire`](crate::Semaphore::acquire).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future at any time removes the ticket from the queue, and releases a lock that was granted meanwhile.
    /// The ticket is enqueued at the first poll; a new call starts at the end of the queue.
    pub async fn lock(&self) -> Result<MutexGuard, Error> {
        self.acquire(true, None).await
    }

    /// Locks the mutex. Waits in the queue for at most `timeout`.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock), and [`WaitTimeout`](ErrorKind::WaitTimeout). Its message states whether this process holds
    /// the lock itself.
    ///
    /// # Cancel safety
    ///
    /// As [`lock`](Self::lock).
    pub async fn lock_timeout(&self, timeout: Duration) -> Result<MutexGuard, Error> {
        self.acquire(true, Some(timeout)).await
    }

    /// Locks the mutex if it is free and no ticket is queued. Takes a round trip to the backend, but does not wait in the
    /// queue.
    ///
    /// # Errors
    ///
    /// [`LimitReached`](ErrorKind::LimitReached) if the mutex is not free; else as [`lock`](Self::lock).
    ///
    /// # Cancel safety
    ///
    /// As [`lock`](Self::lock).
    pub async fn try_lock(&self) -> Result<MutexGuard, Error> {
        self.acquire(false, None).await
    }

    /// Returns the held and the queued tickets, over all processes.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`], [`ErrorKind::Denied`] or [`ErrorKind::Incompatible`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub async fn inspect(&self) -> Result<Inspection, Error> {
        self.queue_client.inspect().await
    }

    /// Evicts a ticket that [`inspect`](Self::inspect) returned, as [`Coordinator::evict`](crate::Coordinator::evict) does
    /// for a semaphore. Returns `false` if the ticket did not exist.
    ///
    /// # Errors
    ///
    /// As [`inspect`](Self::inspect).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it resolves, the ticket may or may not be evicted.
    pub async fn evict(&self, ticket: &str) -> Result<bool, Error> {
        self.queue_client.evict(ticket).await
    }

    async fn acquire(
        &self,
        may_wait: bool,
        timeout: Option<Duration>,
    ) -> Result<MutexGuard, Error> {
        let start = crate::clock::now();
        loop {
            let wait = Wait {
                may_wait,
                timeout: remaining(timeout, start),
                max_waiting: MAX_WAITING,
                terms: Terms::default(),
            };
            let permit = Acquire::new(&self.queue_client, &wait).await?;
            if let Some(guard) = MutexGuard::new(permit) {
                return Ok(guard);
            }
            // Lost before this task ran, for example by a pause: enqueue again.
        }
    }
}

// === impl MutexGuard ===

impl MutexGuard {
    /// Returns `None` if the permit is lost already.
    fn new(permit: Permit) -> Option<Self> {
        let token = permit.token().filter(|_| permit.is_valid())?;
        Some(Self { permit, token })
    }

    /// Returns the encoded name, as [`Semaphore::name`](crate::Semaphore::name).
    pub fn name(&self) -> &str {
        self.permit.queue().name()
    }

    /// Returns the fencing token. It is strictly higher than that of every earlier holder of this name, except in the short
    /// time after a flush or an eviction that the [guide](crate::guide::queue#when-the-store-forgets) describes.
    ///
    /// Send it with each write to the data that the lock protects, and let the store refuse a token that is lower than the
    /// highest one it has seen. A holder that was paused for longer than its lease, and has not noticed yet, then does no
    /// damage. The idea is Martin Kleppmann's ("How to do distributed locking", 2016).
    ///
    /// Only the order of tokens has a meaning. A token is below 2^63, so it fits a signed 64-bit column.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Returns the ticket as [`Mutex::inspect`] shows it.
    pub fn ticket(&self) -> String {
        self.permit.ticket()
    }

    /// Returns whether the lock is known to be held: not lost, and confirmed by the backend within the last lease. Once
    /// `false`, it stays `false`.
    pub fn is_valid(&self) -> bool {
        self.permit.is_valid()
    }

    /// Waits until the lock is lost, and returns the reason, as [`Permit::lost`]. Pending for ever if it is not lost.
    ///
    /// The lock is lost at the latest one lease after the last call that the backend confirmed, even while a call hangs.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect on the lock.
    pub async fn lost(&self) -> Error {
        self.permit.lost().await
    }

    /// Returns another guard of the same lock, for code that needs a lock that its caller holds. Dropping the last guard
    /// unlocks. The token is the same.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] if the lock is lost.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), tower_permit::Error> {
    /// # let permits = tower_permit::Coordinator::new(tower_permit::Memory::new());
    /// let account = permits.mutex("account:7")?;
    /// let outer = account.lock().await?;
    /// let inner = outer.reenter()?;
    /// drop(outer);
    /// assert!(account.try_lock().await.is_err(), "the inner guard still holds the lock");
    /// drop(inner);
    /// # Ok(())
    /// # }
    /// ```
    pub fn reenter(&self) -> Result<Self, Error> {
        let permit = self.permit.share().ok_or_else(lost)?;
        Ok(Self {
            permit,
            token: self.token,
        })
    }

    /// Unlocks and waits for the acknowledgement. Returns `true` if the lock was held until now, `false` if it had been
    /// lost before.
    ///
    /// While another guard of the same lock exists, it stays locked. If it passes to a local waiter by a
    /// [hand-off](crate::guide::queue), the result is what this process knows.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] if the backend has not answered for one lease. The release is resent until it is
    /// acknowledged.
    ///
    /// # Cancel safety
    ///
    /// The lock is released even if the future is dropped, polled or not.
    pub async fn unlock(self) -> Result<bool, Error> {
        self.permit.release().await
    }
}

impl fmt::Debug for MutexGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MutexGuard")
            .field("name", self.permit.queue())
            .field("token", &self.token)
            .finish_non_exhaustive()
    }
}

// === impl MutexGuards ===

impl MutexGuards {
    /// Locks these mutexes one after the other. They are sorted, so that callers with overlapping names do not deadlock. If
    /// one fails, those locked before are released.
    pub(crate) async fn lock(
        mutexes: Vec<Mutex>,
        timeout: Option<Duration>,
    ) -> Result<Self, Error> {
        let start = crate::clock::now();
        let mut guards = Vec::with_capacity(mutexes.len());
        for mutex in mutexes {
            let guard = tokio::select! {
                biased;
                // Without all guards, the rest of the wait is useless.
                error = first_lost(&guards) => return Err(error),
                guard = mutex.acquire(true, remaining(timeout, start)) => guard?,
            };
            guards.push(guard);
        }
        let guards = Self { guards };
        match guards.is_valid() {
            true => Ok(guards),
            false => Err(lost()),
        }
    }

    /// Returns the guards, in the order of their encoded names.
    pub fn guards(&self) -> &[MutexGuard] {
        &self.guards
    }

    /// Returns the guards, to be unlocked one by one.
    pub fn into_guards(self) -> Vec<MutexGuard> {
        self.guards
    }

    /// Returns whether all locks are known to be held, as [`MutexGuard::is_valid`].
    pub fn is_valid(&self) -> bool {
        self.guards.iter().all(MutexGuard::is_valid)
    }

    /// Waits until the first of the locks is lost, and returns the reason, as [`MutexGuard::lost`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect on the locks.
    pub async fn lost(&self) -> Error {
        first_lost(&self.guards).await
    }

    /// Unlocks all and waits for the acknowledgements. Returns `true` if all were held until now.
    ///
    /// # Errors
    ///
    /// As [`MutexGuard::unlock`]. All locks are released even if one of them fails.
    ///
    /// # Cancel safety
    ///
    /// All locks are released even if the future is dropped, polled or not.
    pub async fn unlock(self) -> Result<bool, Error> {
        let unlocks = self.guards.into_iter().map(MutexGuard::unlock);
        let results = futures_util::future::join_all(unlocks).await;
        let mut held = true;
        for result in results {
            held &= result?;
        }
        Ok(held)
    }
}

/// Pending for ever if there are no guards.
async fn first_lost(guards: &[MutexGuard]) -> Error {
    if guards.is_empty() {
        return std::future::pending().await;
    }
    let lost = guards.iter().map(|guard| Box::pin(guard.lost()));
    futures_util::future::select_all(lost).await.0
}

/// Returns the rest of a timeout that started at `start`.
fn remaining(timeout: Option<Duration>, start: Instant) -> Option<Duration> {
    let elapsed = crate::clock::now().saturating_duration_since(start);
    timeout.map(|timeout| timeout.saturating_sub(elapsed))
}

fn lost() -> Error {
    Error::new(
        ErrorKind::Lost,
        "the lock was lost: its lease expired or it was evicted",
    )
}
