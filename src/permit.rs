//! A granted ticket as a value: dropping it lets the ticket leave.

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
/// Dropping it releases it. Drop never blocks and never panics, and works during unwinding and outside a runtime. If no
/// runtime is left, the release is sent as soon as the coordinator is used on another one; see
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
#[must_use = "a permit that is dropped is given back at once"]
pub struct Permit {
    queue_client: Arc<QueueClient>,
    hold: Hold,
    /// Cleared by `release`, which lets the ticket leave itself.
    drops: bool,
}

/// A weak handle to a permit: it holds nothing, but [`keep`](Self::keep) makes it a guard of the same permit.
///
/// A layer puts one into the extensions of each `http::Request`, for work that outlives the response (an upgraded
/// connection, a task in the background): with
/// [`reject_with_response`](crate::DistributedConcurrencyLimitLayer::reject_with_response) or
/// [`expose_permit`](crate::DistributedConcurrencyLimitLayer::expose_permit).
#[derive(Clone)]
pub struct PermitHandle {
    queue_client: Weak<QueueClient>,
    hold: Hold,
}

pin_project! {
    /// Ends when a permit is lost. Holds nothing.
    pub(crate) struct WhenLost {
        queue_client: Arc<QueueClient>,
        hold: Hold,
        // Hears every loss since it was made, polled or not.
        #[pin]
        next_loss: OwnedNotified,
        // For a mutex, which is lost when its time is over, whoever is busy meanwhile. Made at the first poll.
        timer: Option<Pin<Box<Sleep>>>,
        // When that is. Looked at in each poll, for no timer ends in a process that was stopped or is busy.
        expires: Option<Instant>,
        // Whether it may have been lost before `next_loss` was made, or by what that has heard.
        look: bool,
    }
}

// === impl Permit ===

impl Permit {
    #[inline]
    pub(crate) fn new(queue_client: Arc<QueueClient>, hold: Hold) -> Self {
        Self {
            queue_client,
            hold,
            drops: true,
        }
    }

    /// The ticket as [`Coordinator::inspect`](crate::Coordinator::inspect) shows it.
    pub fn ticket(&self) -> String {
        self.queue_client.ticket(self.hold.ticket)
    }

    /// Whether it is surely still held, by this process's own reckoning: not lost, and confirmed by the backend within
    /// the last lease. It can turn `true` again when the backend was only out of reach for a while.
    pub fn is_valid(&self) -> bool {
        self.queue_client.is_valid(self.hold)
    }

    /// Waits until the permit is lost; never ends if that does not happen.
    ///
    /// The kind is [`ErrorKind::Lost`] when the backend does not know it any more (its lease ran out while this process
    /// was cut off or paused, or it was evicted), [`ErrorKind::HeldTooLong`] when `max_hold` went by, and
    /// [`ErrorKind::ShuttingDown`] when a shutdown took it back.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn lost(&self) -> Error {
        self.when_lost().await
    }

    /// Gives the permit back and waits for the answer: `true` if it was held until now, `false` if it had been lost
    /// before. While another guard ([`PermitHandle::keep`]) shares it, it stays held. When it goes to somebody who waits here,
    /// [from hand to hand](crate::guide::queue), the answer is what this process knows.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unavailable`] if the backend has not answered for one lease. The release is resent until it does.
    ///
    /// # Cancel safety
    ///
    /// The permit is given back even if the future is dropped after its first poll, or never polled.
    pub async fn release(mut self) -> Result<bool, Error> {
        let (answer, held) = oneshot::channel();
        self.drops = false;
        self.queue_client.drop_guard(self.hold, Some(answer));
        held.await.map_err(|_| {
            Error::new(
                ErrorKind::Unavailable,
                "the backend has not acknowledged the release within a lease: it is resent until it does",
            )
        })
    }

    /// The fencing token, if it is still held.
    pub(crate) fn token(&self) -> Option<u64> {
        self.queue_client.token(self.hold)
    }

    /// One more guard of the same permit.
    pub(crate) fn share(&self) -> Option<Self> {
        let shared = self.queue_client.share(self.hold);
        shared.then(|| Self::new(Arc::clone(&self.queue_client), self.hold))
    }

    /// Whether it is of this coordinator.
    pub(crate) fn is_of(&self, client: &Arc<Client>) -> bool {
        self.queue_client.is_of(client)
    }

    pub(crate) fn queue(&self) -> &Queue {
        self.queue_client.queue()
    }

    /// A weak handle to this permit.
    pub fn handle(&self) -> PermitHandle {
        PermitHandle {
            queue_client: Arc::downgrade(&self.queue_client),
            hold: self.hold,
        }
    }

    /// Takes a reserved permit for good. `false`: it has gone back already.
    #[inline]
    pub(crate) fn claim(&self) -> bool {
        self.queue_client.claim(self.hold)
    }

    /// The reservation starts anew. `false`: it has gone back already.
    pub(crate) fn rearm(&self) -> bool {
        self.queue_client.rearm(self.hold)
    }

    /// As [`lost`](Self::lost), without the borrow.
    pub(crate) fn when_lost(&self) -> WhenLost {
        WhenLost {
            queue_client: Arc::clone(&self.queue_client),
            hold: self.hold,
            next_loss: self.queue_client.next_loss(),
            timer: None,
            expires: None,
            look: true,
        }
    }
}

impl Drop for Permit {
    #[inline]
    fn drop(&mut self) {
        if self.drops {
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
    /// Makes the handle a guard: the permit is given back when the last of its guards is dropped. `None` if it has been
    /// given back or lost already.
    pub fn keep(&self) -> Option<Permit> {
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

// === impl WhenLost ===

impl Future for WhenLost {
    type Output = Error;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Error> {
        let mut this = self.project();
        *this.look |= this.expires.is_some_and(|at| at <= clock::now());
        loop {
            if std::mem::take(this.look) {
                if let Some(kind) = this.queue_client.lost(*this.hold) {
                    return Poll::Ready(error(kind));
                }
                let expiry = this.queue_client.expiry(*this.hold);
                *this.timer = expiry.and_then(clock::timer);
                *this.expires = expiry;
            }
            if this.next_loss.as_mut().poll(cx).is_ready() {
                this.next_loss.set(this.queue_client.next_loss());
                *this.look = true;
            }
            if let Some(timer) = this.timer
                && timer.as_mut().poll(cx).is_ready()
            {
                *this.look = true;
            }
            if !*this.look {
                return Poll::Pending;
            }
        }
    }
}

impl fmt::Debug for WhenLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WhenLost")
    }
}

fn error(kind: ErrorKind) -> Error {
    let message = match kind {
        ErrorKind::HeldTooLong => "the permit was held for longer than max_hold",
        ErrorKind::ShuttingDown => "the permit was taken back by a shutdown",
        _ => "the permit was lost",
    };
    Error::new(kind, message)
}
