//! What `poll_ready` obtained for the next `call`.

use crate::clock;
use crate::layers::settings::Settings;
use crate::semaphore::Acquire;
use crate::{Error, Permit, Semaphore};
use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::time::Instant;

/// Acquired in `poll_ready`, taken in `call`.
pub(super) enum Reservation {
    /// Nothing, not even a ticket.
    None,
    /// A wait for a permit. Boxed, since `call` moves it into its future if it is not over.
    Waiting(Pin<Box<Acquire>>),
    /// The wait is over and `poll_ready` has returned `Ready`. It stays ready, even if the content expires.
    Ready(Reserved),
}

/// The result of a wait.
pub(super) enum Reserved {
    /// Released automatically unless `call` claims it in time.
    Permit(Permit),
    /// Kept for `call`'s future, since an error of `poll_ready` ends a `tower::buffer::Buffer` permanently.
    Rejected { error: Error, since: Instant },
    /// No permit is needed: an outage, and the layer is set to `OnUnavailable::Allow`.
    Allowed { since: Instant },
}

/// How a request that is called now is admitted.
pub(super) enum Admission {
    /// `None`: without a permit.
    Admitted(Option<Permit>),
    Rejected(Error),
    /// Its future acquires the permit, by this wait if there is one.
    Waits(Option<Pin<Box<Acquire>>>),
}

// === impl Reservation ===

impl Reservation {
    /// `None` → `Waiting` → `Ready`. From a permit that has already been released back to `Waiting`, at the end of the
    /// queue. `Waiting` registers the waker; `Ready` needs none.
    pub(super) fn poll_ready(
        &mut self,
        cx: &mut Context<'_>,
        semaphore: &Semaphore,
        settings: &Settings,
    ) -> Poll<()> {
        loop {
            match self {
                Self::None => {
                    *self = match semaphore.try_lingering(settings.reservation_terms()) {
                        Some(permit) => Self::Ready(Reserved::Permit(permit)),
                        None => {
                            Self::Waiting(Box::pin(semaphore.acquire_with(&settings.reservation())))
                        }
                    }
                }
                Self::Waiting(acquire) => match ready!(acquire.as_mut().poll(cx)) {
                    // The grant may be old if this was not polled. `call` gets the full `reservation_ttl` from now on.
                    Ok(permit) if permit.rearm() => *self = Self::Ready(Reserved::Permit(permit)),
                    Ok(_released) => *self = Self::None,
                    Err(error) => *self = Self::Ready(Reserved::from_error(error, settings)),
                },
                Self::Ready(_) => return Poll::Ready(()),
            }
        }
    }

    /// Takes what a request can still use, and leaves `None`.
    #[inline]
    pub(super) fn take(&mut self, settings: &Settings) -> Admission {
        // The most frequent case first. The permit is moved only once it is claimed.
        if let Self::Ready(Reserved::Permit(permit)) = self
            && permit.claim()
            && let Self::Ready(Reserved::Permit(permit)) = mem::replace(self, Self::None)
        {
            return Admission::Admitted(Some(permit));
        }
        self.take_other(settings)
    }

    fn take_other(&mut self, settings: &Settings) -> Admission {
        let fresh =
            |since| clock::now().saturating_duration_since(since) < settings.reservation_ttl;
        match mem::replace(self, Self::None) {
            _ if !settings.enabled => Admission::Admitted(None),
            Self::Ready(Reserved::Allowed { since }) if fresh(since) => Admission::Admitted(None),
            Self::Ready(Reserved::Rejected { error, since }) if fresh(since) => {
                Admission::Rejected(error)
            }
            Self::Waiting(acquire) => Admission::Waits(Some(acquire)),
            Self::None | Self::Ready(_) => Admission::Waits(None),
        }
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Waiting(_) => "waiting",
            Self::Ready(Reserved::Permit(_)) => "permit",
            Self::Ready(Reserved::Rejected { .. }) => "rejected",
            Self::Ready(Reserved::Allowed { .. }) => "allowed",
        })
    }
}

// === impl Reserved ===

impl Reserved {
    fn from_error(error: Error, settings: &Settings) -> Self {
        let since = clock::now();
        if settings.allows(&error) {
            Self::Allowed { since }
        } else {
            Self::Rejected { error, since }
        }
    }
}
