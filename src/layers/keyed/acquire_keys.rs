//! Acquires the keys of a request.

use super::held_keys::HeldKeys;
use super::key::WantedQueue;
use super::keyspace::{Keyspace, WaitingRequest};
use super::settings::KeyedSettings;
use crate::clock;
use crate::layers::deadline::Deadline;
use crate::layers::held_permits::{HeldPermits, WatchedPermits};
use crate::layers::settings::Settings;
use crate::name::Kind;
use crate::semaphore::{Acquire, Wait};
use crate::{Error, ErrorKind, Permit};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::time::Instant;

/// Returns the extensions of a request, if its type has some.
pub(super) type GetExtensions<Req> = fn(&mut Req) -> Option<&mut http::Extensions>;

/// Acquires the permits of a request's keys one after the other, in an order that is the same in all processes, so that
/// requests with overlapping keys do not deadlock.
pub(super) struct AcquireKeys {
    keyspace: Arc<Keyspace>,
    settings: KeyedSettings,
    /// The queues of the missing permits, last first.
    wanted: Vec<WantedQueue>,
    deadline: Option<Deadline>,
    /// The time of the first poll.
    started: Option<Instant>,
    /// The wait for the last of `wanted`.
    acquire: Option<Pin<Box<Acquire>>>,
    /// From the first wait on, if any is needed.
    waiting: Option<WaitingRequest>,
    permits: WatchedPermits,
}

// === impl AcquireKeys ===

impl AcquireKeys {
    pub(super) fn new(
        keyspace: &Arc<Keyspace>,
        wanted: Vec<WantedQueue>,
        settings: KeyedSettings,
        deadline: Option<Deadline>,
    ) -> Self {
        Self {
            keyspace: Arc::clone(keyspace),
            settings,
            wanted,
            deadline,
            started: None,
            acquire: None,
            waiting: None,
            permits: WatchedPermits::new(HeldPermits::default()),
        }
    }

    pub(super) fn settings(&self) -> &Settings {
        &self.settings.common
    }

    /// Returns the permits acquired so far.
    pub(super) fn into_permits(self) -> WatchedPermits {
        self.permits
    }

    /// Acquires what is missing. Resolves when all permits are held and listed in the request's extensions.
    pub(super) fn poll<Req>(
        &mut self,
        request: &mut Req,
        extensions: GetExtensions<Req>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Error>> {
        let started = *self.started.get_or_insert_with(clock::now);
        let settings = &self.settings.common;
        loop {
            // After each acquired permit: its loss must be noticed while the next one is waited for.
            if let Poll::Ready(error) = self.permits.poll_lost(settings.on_lost, cx) {
                return Poll::Ready(Err(error));
            }
            let Some(wanted) = self.wanted.last() else {
                return Poll::Ready(Ok(()));
            };
            let permit = match &mut self.acquire {
                None => match reenter(&self.keyspace, wanted, extensions(request)) {
                    Some(permit) => Some(permit),
                    None => {
                        if settings.waits() && self.waiting.is_none() {
                            let max = self.settings.max_waiting_total;
                            self.waiting = self.keyspace.count_waiting(max);
                        }
                        let elapsed = clock::now().saturating_duration_since(started);
                        let wait = Wait {
                            // Above max_waiting_total a request only tries: it gets a free key or is rejected.
                            may_wait: self.waiting.is_some(),
                            ..settings.request(elapsed, self.deadline)
                        };
                        self.acquire = Some(Box::pin(self.keyspace.acquire(wanted, &wait)));
                        continue;
                    }
                },
                Some(acquire) => {
                    let outcome = ready!(acquire.as_mut().poll(cx));
                    self.acquire = None;
                    match outcome {
                        Ok(permit) if permit.claim() => Some(permit),
                        // Granted so long ago that it was released or lost before this was polled: enqueue again.
                        Ok(_released) => continue,
                        Err(error) if settings.allows(&error) => None,
                        Err(error) => {
                            let is_excess = settings.waits() && self.waiting.is_none();
                            return Poll::Ready(Err(match error.kind() {
                                ErrorKind::LimitReached if is_excess => {
                                    let max = self.settings.max_waiting_total;
                                    self.keyspace.too_many_waiting(max)
                                }
                                _ => with_key(error, wanted, settings, self.deadline),
                            }));
                        }
                    }
                }
            };
            self.wanted.pop();
            if let Some(permit) = permit {
                list(&self.keyspace, &permit, extensions(request));
                self.permits.push(permit);
            }
        }
    }
}

/// Returns another guard of a permit that an outer layer holds for this request.
fn reenter(
    keyspace: &Keyspace,
    wanted: &WantedQueue,
    extensions: Option<&mut http::Extensions>,
) -> Option<Permit> {
    let held = extensions?.get::<HeldKeys>()?;
    // An outer layer over another backend may have the same name.
    (held.permits(&wanted.queue)).find(|permit| keyspace.granted(permit))
}

/// Adds a permit to the request's [`HeldKeys`].
fn list(keyspace: &Keyspace, permit: &Permit, extensions: Option<&mut http::Extensions>) {
    let Some(extensions) = extensions else {
        return;
    };
    let token = match keyspace.kind() {
        Kind::Mutex => permit.token(),
        Kind::Limit => None,
    };
    if let Some(held) = HeldKeys::get_or_insert(extensions) {
        held.push(keyspace.name(), permit, token);
    }
}

/// Names the key in the error of a wait. The message of a mutex explains a task that waits for itself, which a request
/// does not.
fn with_key(
    error: Error,
    wanted: &WantedQueue,
    settings: &Settings,
    deadline: Option<Deadline>,
) -> Error {
    let is_late = deadline.is_some_and(|deadline| deadline.remaining().is_zero());
    match error.kind() {
        ErrorKind::WaitTimeout if is_late => Error::new(
            ErrorKind::WaitTimeout,
            "no permit became free before the request's deadline",
        ),
        ErrorKind::WaitTimeout => Error::new(
            ErrorKind::WaitTimeout,
            format!(
                "no permit became free within {:?}: retry later, or raise wait_timeout",
                settings.wait_timeout
            ),
        ),
        _ => error,
    }
    .with_name(&wanted.queue)
}
