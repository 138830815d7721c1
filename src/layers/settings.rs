//! The settings that all layers have, and the waits they lead to.

use crate::layers::deadline::Deadline;
use crate::semaphore::{Terms, Wait};
use crate::{Error, ErrorKind};
use std::time::Duration;

/// What a layer does with a request during an outage of the backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnUnavailable {
    /// Rejects it with [`ErrorKind::Unavailable`]: the limit is kept, and requests fail. The default.
    #[default]
    Reject,
    /// Admits it without a permit: requests are served, and the limit is not kept.
    ///
    /// An outage is detected after [`outage_after`](crate::CoordinatorBuilder::outage_after) (default: 1 s). Until then
    /// requests wait. A request with a shorter `wait_timeout` is rejected with
    /// [`WaitTimeout`](crate::ErrorKind::WaitTimeout), so set `outage_after` below `wait_timeout`.
    Allow,
}

/// What a layer does with a running request that loses its permit.
///
/// A permit is lost when its lease expires, when it is evicted, or when a shutdown revokes it. A limit continues by
/// default, a keyed mutex ends the request. A permit held for longer than `max_hold` always ends its request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnLost {
    /// The request continues. For a short time there may be more concurrent requests than the limit.
    #[default]
    Continue,
    /// Ends the request with [`ErrorKind::Lost`], or with [`ErrorKind::ShuttingDown`] after a shutdown: the inner future is dropped,
    /// or the response's body ends with that error.
    End,
}

/// The settings of one layer, copied into its services.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// `false`: requests go to the inner service without a permit.
    pub(crate) enabled: bool,
    /// `false`: no request waits. `call`'s future tries once, and `poll_ready` acquires nothing.
    pub(crate) may_wait: bool,
    /// `poll_ready` acquires nothing, and requests wait in `call`'s future.
    pub(crate) acquire_in_call: bool,
    pub(crate) wait_timeout: Duration,
    pub(crate) max_waiting: usize,
    pub(crate) max_hold: Duration,
    pub(crate) stall_timeout: Option<Duration>,
    /// How long `call` can use what `poll_ready` obtained, a permit or a rejection.
    pub(crate) reservation_ttl: Duration,
    pub(crate) on_unavailable: OnUnavailable,
    pub(crate) on_lost: OnLost,
    /// The `Retry-After` of a rejection that is a response.
    pub(crate) retry_after: Duration,
}

/// A permit granted to a request's future is released unless the future is polled within this time. A future that is not
/// polled must not hold a permit; a busy runtime must not lose its grant either.
const CLAIM_WITHIN: Duration = Duration::from_secs(1);

/// Caps each setting, since a later time may overflow the clock.
const MAX_DURATION: Duration = Duration::from_secs(60 * 60 * 24 * 365 * 30);

/// A shorter reservation could expire each time before `poll_ready` runs again, so that no request is ever admitted.
pub(crate) const MIN_RESERVATION_TTL: Duration = Duration::from_millis(10);

// === impl OnLost ===

impl OnLost {
    /// Returns whether the loss of a permit with this error ends its request.
    pub(crate) fn ends(self, error: &Error) -> bool {
        self == Self::End || matches!(error.kind(), ErrorKind::HeldTooLong | ErrorKind::Stalled)
    }
}

// === impl Settings ===

impl Default for Settings {
    fn default() -> Self {
        Self {
            enabled: true,
            may_wait: true,
            acquire_in_call: false,
            wait_timeout: Duration::from_secs(30),
            max_waiting: 1024,
            max_hold: Duration::from_secs(600),
            stall_timeout: Some(Duration::from_secs(30)),
            reservation_ttl: Duration::from_secs(1),
            on_unavailable: OnUnavailable::default(),
            on_lost: OnLost::default(),
            retry_after: Duration::from_secs(1),
        }
    }
}

impl Settings {
    /// Returns whether a request that got this error instead of a permit is admitted without one.
    pub(crate) fn allows(&self, error: &Error) -> bool {
        self.on_unavailable == OnUnavailable::Allow && error.kind() == ErrorKind::Unavailable
    }

    /// Returns whether requests wait for a permit.
    pub(crate) fn waits(&self) -> bool {
        self.may_wait && self.max_waiting > 0
    }

    /// Returns whether `poll_ready` waits for a permit.
    #[inline]
    pub(crate) fn reserves(&self) -> bool {
        self.enabled && self.waits() && !self.acquire_in_call
    }

    /// The wait of `poll_ready`. Its permit is reserved until `call` claims it.
    pub(crate) fn reservation(&self) -> Wait {
        self.wait(self.reservation_ttl)
    }

    /// The terms of a permit that `poll_ready` acquires without a wait.
    #[inline]
    pub(crate) fn reservation_terms(&self) -> Terms {
        Terms {
            reserve: Some(self.reservation_ttl),
            max_hold: Some(self.max_hold),
            stall_timeout: self.stall_timeout,
        }
    }

    /// The wait of a request in its own future, which has already waited for `elapsed`.
    pub(crate) fn request(&self, elapsed: Duration, deadline: Option<Deadline>) -> Wait {
        let wait = self.wait(CLAIM_WITHIN);
        let left = deadline.map_or(Duration::MAX, Deadline::remaining);
        let timeout = wait
            .timeout
            .map(|all| all.saturating_sub(elapsed).min(left));
        Wait { timeout, ..wait }
    }

    fn wait(&self, reserve: Duration) -> Wait {
        Wait {
            may_wait: self.waits(),
            timeout: Some(self.wait_timeout.min(MAX_DURATION)),
            max_waiting: self.max_waiting,
            terms: Terms {
                reserve: Some(reserve.min(MAX_DURATION)),
                max_hold: Some(self.max_hold.min(MAX_DURATION)),
                stall_timeout: self.stall_timeout,
            },
        }
    }
}
