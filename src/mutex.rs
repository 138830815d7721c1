//! A mutex that a whole fleet shares, with fencing tokens.

use crate::acquire::Acquire;
use crate::backend::Inspection;
use crate::client::{QueueClient, Wait};
use crate::error::{Error, ErrorKind};
use crate::permit::Permit;
use crate::semaphore::MAX_WAITING;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// So many names may be held together.
pub(crate) const MOST_NAMES: usize = 64;

/// A lock with a name: at most one guard is out at a time, over every process that uses the same backend.
///
/// Made by [`Coordinator::mutex`](crate::Coordinator::mutex). Cheap to clone; whoever waits is served in order of
/// arrival, over all processes where the backend [promises](crate::Capabilities) it.
///
/// # Differences from `tokio::sync::Mutex`
///
/// It guards no data of yours, and it can be lost: when this process is cut off or paused for longer than its lease,
/// another gets in. [`MutexGuard::lost`] tells, and the [token](MutexGuard::token) is for whoever must not be fooled by
/// a holder that does not know yet. Two requests of one process are two holders, always; a second `lock` of the same
/// name by the same task waits for itself (see [`MutexGuard::reenter`]).
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
/// // … pass guard.token() on to what is written, and let the store refuse an older one …
/// let was_held = guard.unlock().await?;
/// assert!(was_held);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Mutex {
    queue_client: Arc<QueueClient>,
}

/// A [`Mutex`] that is held, renewed in the background for as long as this value lives. Dropping it unlocks.
///
/// Drop never blocks and never panics, works during unwinding and outside a runtime (if no runtime is left to send the
/// word, the mutex comes free when its lease runs out).
#[must_use = "a guard that is dropped unlocks at once"]
pub struct MutexGuard {
    permit: Permit,
    token: u64,
}

/// Several mutexes that are held together, by [`Coordinator::lock_all`](crate::Coordinator::lock_all). Dropping it
/// unlocks all of them.
#[must_use = "guards that are dropped unlock at once"]
#[derive(Debug)]
pub struct MutexGuards {
    guards: Vec<MutexGuard>,
}

// === impl Mutex ===

impl Mutex {
    pub(crate) fn new(queue_client: Arc<QueueClient>) -> Self {
        Self { queue_client }
    }

    /// The name in its safe form, as [`Semaphore::name`](crate::Semaphore::name).
    pub fn name(&self) -> &str {
        self.queue_client.queue().name()
    }

    /// Locks; waits in line as long as it takes.
    ///
    /// # Errors
    ///
    /// As [`Semaphore::acquire`](crate::Semaphore::acquire).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future at any time gives up the place in the line; a lock that was granted meanwhile is given back.
    /// The place is taken at the first poll.
    pub async fn lock(&self) -> Result<MutexGuard, Error> {
        self.start(true, None).await
    }

    /// Locks; waits in line for `timeout` at most.
    ///
    /// # Errors
    ///
    /// As [`lock`](Self::lock), and [`WaitTimeout`](ErrorKind::WaitTimeout), which says so if this very process holds it.
    ///
    /// # Cancel safety
    ///
    /// As [`lock`](Self::lock).
    pub async fn lock_timeout(&self, timeout: Duration) -> Result<MutexGuard, Error> {
        self.start(true, Some(timeout)).await
    }

    /// Locks if nobody holds it or waits for it. Asks the backend, so it takes a trip.
    ///
    /// # Errors
    ///
    /// [`LimitReached`](ErrorKind::LimitReached) when it is held; else as [`lock`](Self::lock).
    ///
    /// # Cancel safety
    ///
    /// As [`lock`](Self::lock).
    pub async fn try_lock(&self) -> Result<MutexGuard, Error> {
        self.start(false, None).await
    }

    /// Who holds it and who waits, over all processes.
    ///
    /// # Errors
    ///
    /// When the backend does not answer or refuses.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn inspect(&self) -> Result<Inspection, Error> {
        self.queue_client.inspect().await
    }

    /// Takes a ticket that [`inspect`](Self::inspect) has shown out, as
    /// [`Coordinator::evict`](crate::Coordinator::evict) does for a semaphore.
    ///
    /// # Errors
    ///
    /// When the backend does not answer or refuses.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before its end, the ticket may be out or not.
    pub async fn evict(&self, ticket: &str) -> Result<bool, Error> {
        self.queue_client.evict(ticket).await
    }

    async fn start(&self, queue: bool, timeout: Option<Duration>) -> Result<MutexGuard, Error> {
        let start = crate::clock::now();
        loop {
            let wait = Wait {
                queue,
                timeout: left(timeout, start),
                max_waiting: MAX_WAITING,
                max_hold: None,
                reserve: None,
            };
            let permit = Acquire::new(&self.queue_client, &wait).await?;
            if let Some(guard) = MutexGuard::new(permit) {
                return Ok(guard);
            }
            // Lost on the way here, by a pause: from the end of the line again.
        }
    }
}

// === impl MutexGuard ===

impl MutexGuard {
    /// `None` if it was lost on the way here.
    fn new(permit: Permit) -> Option<Self> {
        let token = permit.token().filter(|_| permit.is_valid())?;
        Some(Self { permit, token })
    }

    /// The name in its safe form.
    pub fn name(&self) -> &str {
        self.permit.queue().name()
    }

    /// The fencing token: strictly higher than that of every holder of this name before (but for the moment after a flush or
    /// an eviction that the [guide](crate::guide::queue#when-the-store-forgets) describes: then a lower one is out, to be
    /// refused).
    ///
    /// Hand it to whatever the lock protects, and let that refuse a token lower than the highest it has seen: then a
    /// holder that was paused for longer than its lease, and does not know yet, does no harm. (The idea is Martin
    /// Kleppmann's, "How to do distributed locking", 2016.)
    ///
    /// Only its order means something. It is below 2^63, so a signed column of 64 bits holds it.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// The ticket as [`Mutex::inspect`] shows it.
    pub fn ticket(&self) -> String {
        self.permit.ticket()
    }

    /// Whether it is surely still held: not lost, and confirmed by the backend within the last lease. Once `false` it
    /// stays `false`.
    pub fn is_valid(&self) -> bool {
        self.permit.is_valid()
    }

    /// Waits until the lock is lost; never ends if that does not happen. It is lost at the latest when one lease has gone
    /// by since the backend last confirmed it, even while a call hangs.
    ///
    /// The kinds are those of [`Permit::lost`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn lost(&self) -> Error {
        self.permit.lost().await
    }

    /// A second guard of the same hold, for code that needs a lock its caller has: the last guard out unlocks. Tokens are
    /// the same.
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
    /// assert!(account.try_lock().await.is_err(), "the inner one still holds");
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

    /// Unlocks and waits for the answer: `true` if it was held until now, `false` if it had been lost before. While
    /// another guard of the same hold is out, it stays locked. When it goes to somebody who waits here,
    /// [from hand to hand](crate::guide::queue), the answer is what this process knows.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] if the backend has not answered for one lease. The release is resent until it does.
    ///
    /// # Cancel safety
    ///
    /// It is unlocked even if the future is dropped after its first poll, or never polled.
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
    /// Locks all of these, in the order of their names, so that no two callers wait for each other. What was taken is
    /// given back when one fails.
    pub(crate) async fn lock(
        mutexes: Vec<Mutex>,
        timeout: Option<Duration>,
    ) -> Result<Self, Error> {
        let start = crate::clock::now();
        let mut guards = Vec::with_capacity(mutexes.len());
        for mutex in mutexes {
            let guard = tokio::select! {
                biased;
                // One that came early: there is nothing to wait for any more.
                error = first_lost(&guards) => return Err(error),
                guard = mutex.start(true, left(timeout, start)) => guard?,
            };
            guards.push(guard);
        }
        let guards = Self { guards };
        match guards.is_valid() {
            true => Ok(guards),
            false => Err(lost()),
        }
    }

    /// The guards, in the order of their names' safe forms.
    pub fn guards(&self) -> &[MutexGuard] {
        &self.guards
    }

    /// Takes them apart.
    pub fn into_guards(self) -> Vec<MutexGuard> {
        self.guards
    }

    /// Whether all of them are surely still held.
    pub fn is_valid(&self) -> bool {
        self.guards.iter().all(MutexGuard::is_valid)
    }

    /// Waits until the first of them is lost.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn lost(&self) -> Error {
        first_lost(&self.guards).await
    }

    /// Unlocks all and waits for the answers: `true` if all were held until now.
    ///
    /// # Errors
    ///
    /// As [`MutexGuard::unlock`]; all are unlocked all the same.
    ///
    /// # Cancel safety
    ///
    /// All are unlocked even if the future is dropped or never polled.
    pub async fn unlock(self) -> Result<bool, Error> {
        let unlocks = self.guards.into_iter().map(MutexGuard::unlock);
        let answers = futures_util::future::join_all(unlocks).await;
        let mut held = true;
        for answer in answers {
            held &= answer?;
        }
        Ok(held)
    }
}

/// Never ends if there are none.
async fn first_lost(guards: &[MutexGuard]) -> Error {
    if guards.is_empty() {
        return std::future::pending().await;
    }
    let lost = guards.iter().map(|guard| Box::pin(guard.lost()));
    futures_util::future::select_all(lost).await.0
}

/// What is left of a timeout.
fn left(timeout: Option<Duration>, start: Instant) -> Option<Duration> {
    let passed = crate::clock::now().saturating_duration_since(start);
    timeout.map(|timeout| timeout.saturating_sub(passed))
}

fn lost() -> Error {
    Error::new(ErrorKind::Lost, "the lock was lost")
}
