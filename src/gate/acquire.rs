//! A caller's wait for a permit.

use super::held::Terms;
use super::one_name::{Caller, Gate, Joined};
use super::pump::LOOK_AFTER_PUMP;
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
    /// Join the line. `false`: be refused at once when there is no room.
    pub(crate) queue: bool,
    /// Give up after this time.
    pub(crate) timeout: Option<Duration>,
    /// Be refused if so many wait here already.
    pub(crate) max_waiting: usize,
    /// The permit is given back by itself after this time.
    pub(crate) max_hold: Option<Duration>,
    /// The permit goes back by itself unless it is claimed within this time of its grant.
    pub(crate) reserve: Option<Duration>,
}

/// The wait for a permit. The place in the line is taken when this is made, and advances whether or not this is polled.
///
/// # Cancel safety
///
/// Dropping it at any time gives up the place, or gives the permit back that was granted meanwhile.
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
    gate: Arc<Gate>,
    waiter: u64,
    /// Somebody on this runtime sees to it that the gate goes on.
    watched: bool,
    answer: oneshot::Receiver<Result<Permit, Error>>,
    ends: Option<Instant>,
    /// Made at the first poll that finds no answer, where one is needed.
    timer: Option<Pin<Box<Sleep>>>,
    told: Told,
}

/// The span of a wait, with the time when it began if anybody looks.
#[derive(Debug)]
struct Told {
    span: Span,
    since: Option<Instant>,
}

// === impl Acquire ===

impl Acquire {
    pub(crate) fn new(gate: &Arc<Gate>, wait: &Wait) -> Self {
        let told = Told::new(gate);
        let (answer, receiver) = oneshot::channel();
        let terms = Terms {
            reserve: wait.reserve,
            max_hold: wait.max_hold,
        };
        let ends = wait.timeout.map(|timeout| later(now(), timeout));
        let stage = match gate.join(wait, Caller { answer, terms }) {
            Ok(Joined::Waits { waiter, watched }) => Stage::Waiting(Waiting {
                gate: Arc::clone(gate),
                waiter,
                watched,
                answer: receiver,
                ends,
                timer: None,
                told,
            }),
            Ok(Joined::Served(hold)) => {
                told.end("granted");
                Stage::Served(Permit::new(Arc::clone(gate), hold))
            }
            Err(error) => {
                told.end(error.kind().as_str());
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
            waiting.told.end(match &result {
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
            // If it was served already, the permit is in the channel and goes back with it.
            waiting.gate.give_up(waiting.waiter, false);
            waiting.told.end("cancelled");
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
            if self.watched && self.ends.is_none() {
                return Poll::Pending;
            }
            let left = self.ends.map(|ends| ends.saturating_duration_since(now()));
            let wait = left.map_or(LOOK_AFTER_PUMP, |left| left.min(LOOK_AFTER_PUMP));
            if self.timer.is_none() {
                self.timer = clock::timer_of(wait);
            }
            let Some(timer) = &mut self.timer else {
                return Poll::Pending;
            };
            ready!(timer.as_mut().poll(cx));
            if self.ends.is_some_and(|ends| ends <= now()) {
                if self.gate.give_up(self.waiter, true) {
                    return Poll::Ready(Err(self.timed_out()));
                }
                // It was served this very moment: the answer is in the channel.
            } else {
                self.gate.look_after_pump();
            }
            timer.as_mut().reset(Instant::now() + wait);
        }
    }

    fn timed_out(&self) -> Error {
        let mutex = self.gate.queue.kind() == Kind::Mutex;
        let message = if !mutex {
            "the wait for a permit ended before one was free"
        } else if self.gate.stats().in_use == 0 {
            "the wait for a lock ended before it was free"
        } else {
            "the wait for a lock ended before it was free: this process holds it itself. A task that locks what it has \
             locked waits for itself: let it use the guard it has, or MutexGuard::reenter"
        };
        Error::new(ErrorKind::WaitTimeout, message)
    }
}

// === impl Told ===

impl Told {
    fn new(gate: &Gate) -> Self {
        let span = tracing::info_span!(
            "permit.wait",
            name = %gate.queue,
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
