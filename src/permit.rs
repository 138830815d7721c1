//! A held ticket as a value: dropping it releases the ticket.

use crate::client::{Client, Hold, QueueClient};
use crate::clock;
use crate::error::{Error, ErrorKind};
use crate::name::Queue;
use pin_project_lite::pin_project;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use tokio::sync::futures::OwnedNotified;
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep};

/// One permit of a [`Semaphore`](crate::Semaphore), renewed in the background for as long as this value lives.
///
/// Dropping it releases it in the background. Drop never blocks and never panics, and works during unwinding and outside a
/// runtime. If no runtime is left, the release is sent as soon as the coordinator is used on another one: see
/// [`CoordinatorBuilder::dedicated_thread`](crate::CoordinatorBuilder::dedicated_thread).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tower_permit::Error> {
/// use tower_permit::{Coordinator, Memory};
///
/// let permits = Coordinator::new(Memory::new());
/// let permit = permits.semaphore("export", 4)?.acquire().await?;
/// assert!(permit.is_valid());
/// let was_held = permit.release().await?;
/// assert!(was_held);
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping a permit releases it at once"]
pub struct Permit {
    queue_client: Arc<QueueClient>,
    hold: Hold,
    /// Set by `release`, so that drop does not release the ticket again.
    released: bool,
}

/// A weak handle to a permit. It does not hold the permit; [`upgrade`](Self::upgrade) returns a guard that does.
///
/// A [`DistributedConcurrencyLimitLayer`](crate::DistributedConcurrencyLimitLayer) adds one to the extensions of each
/// `http::Request`, for work that outlives the response, such as an upgraded connection or a background task: with
/// [`reject_with_response`](crate::DistributedConcurrencyLimitLayer::reject_with_response) or
/// [`expose_permit`](crate::DistributedConcurrencyLimitLayer::expose_permit).
#[derive(Clone)]
pub struct PermitHandle {
    queue_client: Weak<QueueClient>,
    hold: Hold,
}

pin_project! {
    /// Resolves when a permit is lost. Does not hold the permit.
    pub(crate) struct LossFuture {
        queue_client: Arc<QueueClient>,
        hold: Hold,
        // Notified of each loss of this name since it was created, polled or not.
        #[pin]
        next_loss: OwnedNotified,
        // Only for a mutex, which is lost at its deadline even while a call is in flight. Created at the first poll.
        timer: Option<Pin<Box<Sleep>>>,
        // The deadline. Checked at each poll, since a timer may fire late in a process that was stopped or is busy.
        expires: Option<Instant>,
        // Whether the state has to be checked: at the first poll, and after each notification.
        check: bool,
    }
}

// === impl Permit ===

impl Permit {
    #[inline]
    pub(crate) fn new(queue_client: Arc<QueueClient>, hold: Hold) -> Self {
        Self {
            queue_client,
            hold,
            released: false,
        }
    }

    /// Returns the ticket as [`Coordinator::inspect`](crate::Coordinator::inspect) shows it.
    pub fn ticket(&self) -> String {
        self.queue_client.ticket(self.hold.ticket)
    }

    /// Returns whether the permit is known to be held: not lost, and confirmed by the backend within the last lease.
    /// It can become `true` again if the backend was only unreachable for a while.
    pub fn is_valid(&self) -> bool {
        self.queue_client.is_valid(self.hold)
    }

    /// Waits until the permit is lost, and returns the reason. Pending for ever if it is not lost.
    ///
    /// * [`ErrorKind::Lost`]: its lease expired while this process was cut off or paused, or it was evicted.
    /// * [`ErrorKind::HeldTooLong`]: it was held for longer than `max_hold`.
    /// * [`ErrorKind::Stalled`]: the response that held it was not read for `stall_timeout`.
    /// * [`ErrorKind::ShuttingDown`]: a shutdown revoked it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect on the permit.
    pub async fn lost(&self) -> Error {
        self.lost_owned().await
    }

    /// Releases the permit and waits for the acknowledgement. Returns `true` if it was held until now, `false` if it had
    /// been lost before.
    ///
    /// While another guard ([`PermitHandle::upgrade`]) shares the permit, it stays held. If it passes to a local waiter by
    /// a [hand-off](crate::guide::queue), the result is what this process knows.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] if the backend has not answered for one lease. The release is resent until it is
    /// acknowledged.
    ///
    /// # Cancel safety
    ///
    /// The permit is released even if the future is dropped, polled or not.
    pub async fn release(mut self) -> Result<bool, Error> {
        let (answer, held) = oneshot::channel();
        self.released = true;
        self.queue_client.drop_guard(self.hold, Some(answer));
        held.await.map_err(|_| {
            Error::new(
                ErrorKind::Unavailable,
                "the backend has not acknowledged the release within a lease: it is resent until it is acknowledged",
            )
        })
    }

    /// Returns the fencing token, if the permit is held.
    pub(crate) fn token(&self) -> Option<u64> {
        self.queue_client.token(self.hold)
    }

    /// Returns another guard of the same permit.
    pub(crate) fn share(&self) -> Option<Self> {
        let shared = self.queue_client.share(self.hold);
        shared.then(|| Self::new(Arc::clone(&self.queue_client), self.hold))
    }

    /// Returns whether it was granted through this client.
    pub(crate) fn is_of(&self, client: &Arc<Client>) -> bool {
        self.queue_client.is_of(client)
    }

    pub(crate) fn queue(&self) -> &Queue {
        self.queue_client.queue()
    }

    /// Returns a weak handle to this permit.
    pub fn handle(&self) -> PermitHandle {
        PermitHandle {
            queue_client: Arc::downgrade(&self.queue_client),
            hold: self.hold,
        }
    }

    /// Ends the reservation of a permit that is used now. Returns `false` if the permit has been released already.
    #[inline]
    pub(crate) fn claim(&self) -> bool {
        self.queue_client.claim(self.hold)
    }

    /// Notes whether the reader of the response waits for its next part, or has one and has to ask for more.
    pub(crate) fn set_reading(&self, waits: bool) {
        self.queue_client.set_reading(self.hold, waits);
    }

    /// Restarts the reservation. Returns `false` if the permit has been released already.
    pub(crate) fn rearm(&self) -> bool {
        self.queue_client.rearm(self.hold)
    }

    /// As [`lost`](Self::lost), as a future that does not borrow the permit.
    pub(crate) fn lost_owned(&self) -> LossFuture {
        LossFuture {
            queue_client: Arc::clone(&self.queue_client),
            hold: self.hold,
            next_loss: self.queue_client.next_loss(),
            timer: None,
            expires: None,
            check: true,
        }
    }
}

impl Drop for Permit {
    #[inline]
    fn drop(&mut self) {
        if !self.released {
            self.queue_client.drop_guard(self.hold, None);
        }
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit")
            .field("name", self.queue_client.queue())
            .field("ticket", &self.ticket())
            .finish()
    }
}

// === impl PermitHandle ===

impl PermitHandle {
    /// Returns a guard of the permit, or `None` if the permit has been released or lost. The permit is released when its
    /// last guard is dropped.
    pub fn upgrade(&self) -> Option<Permit> {
        let queue_client = self.queue_client.upgrade()?;
        let shared = queue_client.share(self.hold);
        shared.then(|| Permit::new(queue_client, self.hold))
    }
}

impl fmt::Debug for PermitHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PermitHandle").finish_non_exhaustive()
    }
}

// === impl LossFuture ===

impl Future for LossFuture {
    type Output = Error;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Error> {
        let mut this = self.project();
        *this.check |= this.expires.is_some_and(|at| at <= clock::now());
        loop {
            if std::mem::take(this.check) {
                match this.queue_client.expiry(*this.hold) {
                    Ok(expiry) => {
                        *this.timer = expiry.and_then(clock::timer);
                        *this.expires = expiry;
                    }
                    Err(kind) => {
                        return Poll::Ready(error(kind).with_name(this.queue_client.queue()));
                    }
                }
            }
            if this.next_loss.as_mut().poll(cx).is_ready() {
                this.next_loss.set(this.queue_client.next_loss());
                *this.check = true;
            }
            if let Some(timer) = this.timer
                && timer.as_mut().poll(cx).is_ready()
            {
                *this.check = true;
            }
            if !*this.check {
                return Poll::Pending;
            }
        }
    }
}

impl fmt::Debug for LossFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LossFuture")
    }
}

fn error(kind: ErrorKind) -> Error {
    let message = match kind {
        ErrorKind::Stalled => {
            "the response was not read for stall_timeout, and its permit is released"
        }
        ErrorKind::HeldTooLong => "the permit was held for longer than max_hold and is released",
        ErrorKind::ShuttingDown => "the permit was revoked by a shutdown",
        _ => "the permit was lost: its lease expired or it was evicted",
    };
    Error::new(kind, message)
}
