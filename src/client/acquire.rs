//! A caller's wait for a permit.

use super::driver::{CHECK_DRIVER, FIRST_CHECK};
use super::queue_client::{Caller, Joined, QueueClient};
use super::state::Terms;
use crate::clock::{self, later, now};
use crate::error::{Error, ErrorKind};
use crate::name::Kind;
use crate::permit::Permit;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep};
use tracing::{Span, field};

/// How a caller wants to wait.
#[derive(Clone, Debug)]
pub(crate) struct Wait {
    /// Wait for a permit. `false`: be refused at once when none is free.
    pub(crate) queue: bool,
    /// Give up after this time.
    pub(crate) timeout: Option<Duration>,
    /// Be refused if this many callers wait here already.
    pub(crate) max_waiting: usize,
    /// The permit is released after this time.
    pub(crate) max_hold: Option<Duration>,
    /// The permit is released unless it is claimed within this time of its grant.
    pub(crate) reserve: Option<Duration>,
}

/// The wait for a permit. It begins when this is made, and proceeds whether or not this is polled.
///
/// # Cancel safety
///
/// Dropping it at any time ends the wait, or releases the permit that was granted meanwhile.
#[derive(Debug)]
pub(crate) struct Acquire {
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Served(Permit),
    Waiting(Waiting),
    Refused(Error),
    Over,
}

#[derive(Debug)]
struct Waiting {
    queue_client: Arc<QueueClient>,
    waiter: u64,
    answer: oneshot::Receiver<Result<Permit, Error>>,
    ends: Option<Instant>,
    /// Made at the first poll that finds no answer, where one is needed.
    timer: Option<Pin<Box<Sleep>>>,
    span: WaitSpan,
}

/// The span of a wait, with its beginning if the span is enabled.
#[derive(Debug)]
struct WaitSpan {
    span: Span,
    since: Option<Instant>,
}

// === impl Acquire ===

impl Acquire {
    pub(crate) fn new(queue_client: &Arc<QueueClient>, wait: &Wait) -> Self {
        let span = WaitSpan::new(queue_client);
        let (answer, receiver) = oneshot::channel();
        let terms = Terms {
            reserve: wait.reserve,
            max_hold: wait.max_hold,
        };
        let ends = wait.timeout.map(|timeout| later(now(), timeout));
        let stage = match queue_client.join(wait, Caller { answer, terms }) {
            Ok(Joined::Waits(waiter)) => Stage::Waiting(Waiting {
                queue_client: Arc::clone(queue_client),
                waiter,
                answer: receiver,
                ends,
                timer: None,
                span,
            }),
            Ok(Joined::Served(hold)) => {
                span.end("granted");
                Stage::Served(Permit::new(Arc::clone(queue_client), hold))
            }
            Err(error) => {
                span.end(error.kind().as_str());
                Stage::Refused(error)
            }
        };
        Self { stage }
    }
}

impl Future for Acquire {
    type Output = Result<Permit, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Stage::Waiting(waiting) = &mut this.stage {
            let result = ready!(waiting.poll(cx));
            waiting.span.end(match &result {
                Ok(_) => "granted",
                Err(error) => error.kind().as_str(),
            });
            this.stage = Stage::Over;
            return Poll::Ready(result);
        }
        match std::mem::replace(&mut this.stage, Stage::Over) {
            Stage::Served(permit) => Poll::Ready(Ok(permit)),
            Stage::Refused(error) => Poll::Ready(Err(error)),
            Stage::Waiting(_) | Stage::Over => Poll::Pending,
        }
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        if let Stage::Waiting(waiting) = &self.stage {
            // If it was served already, the permit is in the channel and is released with it.
            waiting.queue_client.give_up(waiting.waiter, false);
            waiting.span.end("cancelled");
        }
    }
}

// === impl Waiting ===

impl Waiting {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Permit, Error>> {
        loop {
            if let Poll::Ready(answer) = Pin::new(&mut self.answer).poll(cx) {
                return Poll::Ready(answer.unwrap_or_else(|_| Err(self.timed_out())));
            }
            if self.ends.is_none() && self.queue_client.is_driven_here() {
                // A driver on this runtime does not stop as long as this task runs.
                return Poll::Pending;
            }
            if self.timer.is_none() {
                self.timer = clock::timer_of(self.next_check(FIRST_CHECK));
            }
            let Some(timer) = &mut self.timer else {
                return Poll::Pending;
            };
            ready!(timer.as_mut().poll(cx));
            if self.ends.is_some_and(|ends| ends <= now()) {
                if self.queue_client.give_up(self.waiter, true) {
                    return Poll::Ready(Err(self.timed_out()));
                }
                // It was served this very moment: the answer is in the channel.
            } else {
                self.queue_client.ensure_driver();
            }
            let next = Instant::now() + self.next_check(CHECK_DRIVER);
            if let Some(timer) = &mut self.timer {
                timer.as_mut().reset(next);
            }
        }
    }

    /// The time until the end of the wait, or `most` if that is sooner.
    fn next_check(&self, most: Duration) -> Duration {
        let left = self.ends.map(|ends| ends.saturating_duration_since(now()));
        left.map_or(most, |left| left.min(most))
    }

    fn timed_out(&self) -> Error {
        let mutex = self.queue_client.queue().kind() == Kind::Mutex;
        let message = if !mutex {
            "the wait for a permit ended before one was free"
        } else if self.queue_client.stats().in_use == 0 {
            "the wait for a lock ended before it was free"
        } else {
            "the wait for a lock ended before it was free: this process holds it itself. A task that locks what it has \
             locked waits for itself: let it use the guard it has, or MutexGuard::reenter"
        };
        Error::new(ErrorKind::WaitTimeout, message)
    }
}

// === impl WaitSpan ===

impl WaitSpan {
    fn new(queue_client: &QueueClient) -> Self {
        let span = tracing::info_span!(
            "permit.wait",
            name = %queue_client.queue(),
            outcome = field::Empty,
            waited_ms = field::Empty,
        );
        let since = (!span.is_disabled()).then(now);
        Self { span, since }
    }

    fn end(&self, outcome: &str) {
        let Some(since) = self.since else {
            return;
        };
        self.span.record("outcome", outcome);
        let waited = now().saturating_duration_since(since);
        let waited = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
        self.span.record("waited_ms", waited);
    }
}
