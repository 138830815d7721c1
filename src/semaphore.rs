//! STUB: signatures are final, bodies are not.
use crate::{Error, Permit};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// A semaphore.
#[derive(Clone, Debug)]
pub struct Semaphore {}

/// How a caller wants to wait.
#[derive(Clone, Debug)]
pub(crate) struct Wait {
    /// `false`: refuse at once when there is no room (`ErrorKind::LimitReached`).
    pub(crate) queue: bool,
    pub(crate) timeout: Option<Duration>,
    pub(crate) max_waiting: usize,
    pub(crate) max_hold: Option<Duration>,
    /// The permit goes back by itself unless it is claimed within this time of its grant (`Permit::claim`).
    pub(crate) reserve: Option<Duration>,
}

/// The wait for a permit. Dropping it at any time is safe. Not polled: the place in the queue advances all the same.
#[derive(Debug)]
pub(crate) struct Acquire {}

impl Semaphore {
    /// The name in its safe form.
    pub fn name(&self) -> &str {
        todo!()
    }
    /// This process's limit.
    pub fn limit(&self) -> u32 {
        todo!()
    }
    /// Wait for a permit. Joins the queue now; does not panic without a runtime (the future ends with `NoRuntime`).
    pub(crate) fn start(&self, _wait: Wait) -> Acquire {
        todo!()
    }
    /// Acquire.
    pub async fn acquire(&self) -> Result<Permit, Error> {
        todo!()
    }
}

impl Future for Acquire {
    type Output = Result<Permit, Error>;
    fn poll(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Self::Output> {
        todo!()
    }
}
