//! Where the driver runs.

use crate::client::panics::lock;
use crate::error::{Error, ErrorKind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::runtime::{Builder, Handle, Id};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

/// A driver that should have acted this long ago is on a runtime that is blocked or not driven.
const PATIENCE: Duration = Duration::from_millis(250);
/// How many runtimes of callers are remembered.
const MAX_RUNTIMES: usize = 8;

/// The runtime that a coordinator's driver is to run on.
#[derive(Clone, Debug, Default)]
pub(crate) enum Placement {
    /// That of a caller. The driver moves to another one when it ends or is not driven.
    #[default]
    Callers,
    Runtime(Handle),
    /// A thread with its own runtime, started at first use.
    DedicatedThread,
}

/// The runtime that the driver is bound to, if any.
#[derive(Debug, Default)]
pub(in crate::client) struct Pinned {
    placement: Placement,
    /// The runtime of the dedicated thread, which ends when the sender is dropped.
    thread: Mutex<Option<(Handle, oneshot::Sender<()>)>>,
    /// The runtime has ended.
    ended: AtomicBool,
}

/// The current driver of a coordinator.
#[derive(Debug, Default)]
pub(super) struct DriverSlot {
    /// Counts the drivers. One with another number has been replaced.
    pub(super) current: u64,
    /// When the current driver acts next, if there is one.
    due: Option<Instant>,
    /// It waits to be woken.
    asleep: bool,
    /// Wakes this driver only: one that was replaced and still sleeps must not consume a wakeup of its successor.
    pub(super) wake: Arc<Notify>,
    runtime: Option<Id>,
    /// The runtimes of the latest callers, the latest one last: when the driver's own ends, it moves to one of them.
    pub(super) runtimes: Vec<Handle>,
}

// === impl Pinned ===

impl Pinned {
    pub(super) fn new(placement: Placement) -> Self {
        Self {
            placement,
            ..Self::default()
        }
    }

    pub(in crate::client) fn is_pinned(&self) -> bool {
        !matches!(self.placement, Placement::Callers)
    }

    /// Notes that the runtime has ended. Returns the error for callers from then on.
    pub(in crate::client) fn end(&self) -> Error {
        self.ended.store(true, Ordering::Relaxed);
        Error::new(
            ErrorKind::NoRuntime,
            "the runtime that was given to the coordinator has ended",
        )
    }

    /// Returns the runtime to run on, or `None` for that of any caller. An error if the driver is bound to a runtime that has
    /// ended or cannot be started.
    pub(in crate::client) fn runtime(&self) -> Result<Option<Handle>, Error> {
        if self.ended.load(Ordering::Relaxed) {
            return Err(self.end());
        }
        match &self.placement {
            Placement::Callers => Ok(None),
            Placement::Runtime(runtime) => Ok(Some(runtime.clone())),
            Placement::DedicatedThread => self.dedicated_thread().map(Some),
        }
    }

    fn dedicated_thread(&self) -> Result<Handle, Error> {
        let mut thread = lock(&self.thread);
        if let Some((runtime, _)) = &*thread {
            return Ok(runtime.clone());
        }
        let (runtime, stop) = start_thread().map_err(|error| {
            Error::with_source(
                ErrorKind::NoRuntime,
                format!("the dedicated thread cannot be started: {error}"),
                error,
            )
        })?;
        *thread = Some((runtime.clone(), stop));
        Ok(runtime)
    }
}

/// Starts a thread with its own runtime. It ends when the sender is dropped.
fn start_thread() -> std::io::Result<(Handle, oneshot::Sender<()>)> {
    let (stop, stopped) = oneshot::channel::<()>();
    let (started, runtime) = std::sync::mpsc::sync_channel(1);
    let thread = std::thread::Builder::new().name("tower-permit".to_owned());
    // The runtime is made and dropped there, since a runtime must not be dropped on a thread of another one.
    thread.spawn(move || {
        let made = Builder::new_current_thread().enable_all().build();
        let handle = made.as_ref().map(|runtime| runtime.handle().clone());
        let _ = started.send(handle.map_err(|error| error.kind()));
        if let Ok(runtime) = made {
            let _ = runtime.block_on(stopped);
            // Tasks that are left must not delay the end of the thread.
            runtime.shutdown_background();
        }
    })?;
    let runtime = runtime.recv().map_err(std::io::Error::other)??;
    Ok((runtime, stop))
}

// === impl DriverSlot ===

impl DriverSlot {
    /// Where the driver runs, if there is one.
    pub(super) fn runtime(&self) -> Option<Id> {
        self.runtime.filter(|_| self.due.is_some())
    }

    /// Whether there is a driver that acts in time, or will as soon as this thread yields.
    pub(super) fn is_served(&self, now: Instant, here: Option<Id>, pinned: bool) -> bool {
        let in_time = self.due.is_some_and(|due| now < due + PATIENCE);
        in_time || (self.due.is_some() && (pinned || self.runtime == here))
    }

    /// A new driver starts on this runtime. Returns its number and what wakes it.
    pub(super) fn start(&mut self, runtime: Id, now: Instant) -> (u64, Arc<Notify>) {
        self.current += 1;
        self.due = Some(now);
        self.asleep = false;
        self.wake = Arc::default();
        self.runtime = Some(runtime);
        (self.current, Arc::clone(&self.wake))
    }

    /// The driver acts until `due`, and then waits to be woken or for that time.
    pub(super) fn acts(&mut self, due: Instant, asleep: bool) {
        self.due = Some(due);
        self.asleep = asleep;
    }

    /// Work is due at this time. Returns the wakeup to send if the driver sleeps for longer.
    pub(super) fn wakes(&mut self, at: Instant) -> Option<Arc<Notify>> {
        let wakes = self.asleep && self.due.is_some_and(|due| at < due);
        wakes.then(|| {
            self.due = Some(at);
            self.asleep = false;
            Arc::clone(&self.wake)
        })
    }

    /// The driver was dropped with its runtime.
    pub(super) fn ended(&mut self, runtime: Id) {
        self.due = None;
        self.runtimes.retain(|known| known.id() != runtime);
    }

    pub(super) fn remember(&mut self, runtime: Handle) {
        let id = runtime.id();
        self.runtimes.retain(|known| known.id() != id);
        if self.runtimes.len() >= MAX_RUNTIMES {
            self.runtimes.remove(0);
        }
        self.runtimes.push(runtime);
    }
}
