//! A caller's wait for a permit.

use crate::client::{CHECK_DRIVER, FIRST_CHECK, QueueClient, Receiver, Wait};
use crate::clock::{self, later, now};
use crate::error::{Error, ErrorKind};
use crate::name::Kind;
use crate::permit::Permit;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::{Instant, Sleep};
use tracing::{Span, field};

/// The wait for a permit. It begins when this is made, and proceeds whether or not this is polled.
///
/// # Cancel safety
///
/// Dropping it at any time ends the wait, or releases the permit that was granted meanwhile.
#[derive(Debug)]
pub(crate) struct Acquire {
    queue_client: Arc<QueueClient>,
    waiter: u64,
    receiver: Receiver,
    ends: Option<Instant>,
    /// Made at the first poll that finds no result, if one is needed.
    timer: Option<Pin<Box<Sleep>>>,
    span: Span,
    /// When it began, if the span is enabled.
    since: Option<Instant>,
    /// The result was returned.
    is_over: bool,
}

// === impl Acquire ===

impl Acquire {
    pub(crate) fn new(queue_client: &Arc<QueueClient>, wait: &Wait) -> Self {
        let span = tracing::info_span!(
            "permit.wait",
            name = %queue_client.queue(),
            outcome = field::Empty,
            waited_ms = field::Empty,
        );
        let since = (!span.is_disabled()).then(now);
        let ends = wait.timeout.map(|timeout| later(now(), timeout));
        let (waiter, receiver) = queue_client.join(wait);
        Self {
            queue_client: Arc::clone(queue_client),
            waiter,
            receiver,
            ends,
            timer: None,
            span,
            since,
            is_over: false,
        }
    }

    fn poll_result(&mut self, cx: &mut Context<'_>) -> Poll<Result<Permit, Error>> {
        loop {
            if let Poll::Ready(result) = Pin::new(&mut self.receiver).poll(cx) {
                let hold = match result {
                    Ok(result) => result?.receive(),
                    Err(_) => None,
                };
                let permit = |hold| Permit::new(Arc::clone(&self.queue_client), hold);
                return Poll::Ready(hold.map(permit).ok_or_else(|| self.timed_out()));
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
                // It was served at this very moment: the result is in the channel.
            } else {
                self.queue_client.ensure_driver();
            }
            let next = Instant::now() + self.next_check(CHECK_DRIVER);
            if let Some(timer) = &mut self.timer {
                timer.as_mut().reset(next);
            }
        }
    }

    /// Returns the time until the end of the wait, or `most` if that is sooner.
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
             locked waits for itself: use the guard that it has, or MutexGuard::reenter"
        };
        Error::new(ErrorKind::WaitTimeout, message)
    }

    fn end_span(&self, outcome: &str) {
        let Some(since) = self.since else {
            return;
        };
        self.span.record("outcome", outcome);
        let waited = now().saturating_duration_since(since);
        let waited = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
        self.span.record("waited_ms", waited);
    }
}

impl Future for Acquire {
    type Output = Result<Permit, Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.is_over {
            return Poll::Pending;
        }
        let result = ready!(self.poll_result(cx));
        let result = result.map_err(|error| error.with_name(self.queue_client.queue()));
        self.is_over = true;
        self.end_span(match &result {
            Ok(_) => "granted",
            Err(error) => error.kind().as_str(),
        });
        Poll::Ready(result)
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        if !self.is_over {
            self.queue_client.give_up(self.waiter, false);
            // A result that arrived before is in the channel: a permit is released, and an error is the outcome.
            let result = self.receiver.try_recv();
            self.end_span(match &result {
                Ok(Err(error)) => error.kind().as_str(),
                _ => "cancelled",
            });
        }
    }
}
