//! What the layers let a user choose, and how that becomes a wait.

use crate::semaphore::{Terms, Wait};
use crate::{Error, ErrorKind};
use std::time::Duration;

/// What happens to a request when nobody can say whether there is room, because the backend does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnUnavailable {
    /// It is refused with [`ErrorKind::Unavailable`]: the limit holds, at the price of requests.
    #[default]
    Reject,
    /// It passes without a permit: requests are served, at the price of the limit.
    ///
    /// That there is an outage shows after [`outage_after`](crate::CoordinatorBuilder::outage_after), 1 s unless set. Until
    /// then a request waits, and one whose `wait_timeout` is shorter is refused with
    /// [`WaitTimeout`](crate::ErrorKind::WaitTimeout): let `outage_after` be the shorter one.
    Allow,
}

/// What happens to a request whose permit is lost while the request runs, because its lease could not be renewed.
///
/// A permit that was held for longer than `max_hold` always ends its request, whatever is chosen here. Limits go on by
/// default, a keyed mutex ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnLost {
    /// It goes on. For a short time there may be more requests than the limit says.
    #[default]
    Continue,
    /// It ends with [`ErrorKind::Lost`] (or [`ErrorKind::ShuttingDown`] if a shutdown took the permit back): the inner
    /// future is dropped, or the response's body ends with that error.
    End,
}

/// The choices of one layer, copied into its services.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// `false`: the inner service is all there is.
    pub(crate) enabled: bool,
    /// `false`: nothing waits; the try is made in `call`, never in `poll_ready`.
    pub(crate) queue: bool,
    pub(crate) wait_timeout: Duration,
    pub(crate) max_waiting: usize,
    pub(crate) max_hold: Duration,
    /// How long what `poll_ready` obtained, a permit or a refusal, is good for `call`.
    pub(crate) reservation_ttl: Duration,
    pub(crate) on_unavailable: OnUnavailable,
    pub(crate) on_lost: OnLost,
    /// What a refusal that is a response tells the client.
    pub(crate) retry_after: Duration,
}

/// A permit granted to a request on its way goes back unless its future is polled within this time: what nobody polls
/// must hold nothing, but a busy runtime must not lose its turn either.
const CLAIM_WITHIN: Duration = Duration::from_secs(1);

/// Stands for "never": a later moment may be more than a clock can hold.
const FAR: Duration = Duration::from_secs(60 * 60 * 24 * 365 * 30);

/// With less a reservation could lapse each time before `poll_ready` hears of it, and would never be had.
pub(crate) const LEAST_RESERVATION: Duration = Duration::from_millis(10);

// === impl OnLost ===

impl OnLost {
    /// Whether a request whose permit met this end must end too.
    pub(crate) fn ends(self, error: &Error) -> bool {
        self == Self::End || error.kind() == ErrorKind::HeldTooLong
    }
}

// === impl Settings ===

impl Default for Settings {
    fn default() -> Self {
        Self {
            enabled: true,
            queue: true,
            wait_timeout: Duration::from_secs(30),
            max_waiting: 1024,
            max_hold: Duration::from_secs(600),
            reservation_ttl: Duration::from_secs(1),
            on_unavailable: OnUnavailable::default(),
            on_lost: OnLost::default(),
            retry_after: Duration::from_secs(1),
        }
    }
}

impl Settings {
    /// Whether a request that met this error instead of a permit is let through without one.
    pub(crate) fn allows(&self, error: &Error) -> bool {
        self.on_unavailable == OnUnavailable::Allow && error.kind() == ErrorKind::Unavailable
    }

    /// How `poll_ready` waits: what it obtains is a reservation until `call` claims it.
    pub(crate) fn reservation(&self) -> Wait {
        self.wait(self.reservation_ttl)
    }

    /// On which terms `poll_ready` takes a permit that needs no wait.
    #[inline]
    pub(crate) fn reservation_terms(&self) -> Terms {
        Terms {
            reserve: Some(self.reservation_ttl),
            max_hold: Some(self.max_hold),
        }
    }

    /// How a request that is on its way waits, in its own future.
    pub(crate) fn request(&self) -> Wait {
        self.wait(CLAIM_WITHIN)
    }

    /// The same, for what is left of its time.
    pub(crate) fn request_after(&self, passed: Duration) -> Wait {
        let wait = self.request();
        Wait {
            timeout: wait.timeout.map(|timeout| timeout.saturating_sub(passed)),
            ..wait
        }
    }

    fn wait(&self, reserve: Duration) -> Wait {
        Wait {
            queue: self.queue,
            timeout: Some(self.wait_timeout.min(FAR)),
            max_waiting: self.max_waiting,
            max_hold: Some(self.max_hold.min(FAR)),
            reserve: Some(reserve.min(FAR)),
        }
    }
}
