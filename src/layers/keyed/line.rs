//! What the services of one layer share, and a request's way to its keys.

use super::held::HeldKeys;
use super::key::{Key, Wanted};
use crate::backend::Inspection;
use crate::clock;
use crate::layers::held::Holding;
use crate::layers::settings::Settings;
use crate::name::{Kind, Queue};
use crate::semaphore::{Acquire, Client, Wait};
use crate::{Error, ErrorKind, Permit};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use tokio::time::Instant;

/// One layer's keys, and who is on the way to them.
pub(super) struct Line {
    client: Arc<Client>,
    kind: Kind,
    name: Arc<str>,
    limit: u32,
    /// Requests that wait, whatever for.
    waiting: AtomicUsize,
}

/// How to get at a request's extensions.
pub(super) type Extensions<Req> = fn(&mut Req) -> Option<&mut http::Extensions>;

/// A request's way to its keys: one after the other, in an order that all agree on. What it has so far is held elsewhere.
pub(super) struct Entry {
    line: Arc<Line>,
    /// Last first.
    wanted: Vec<Wanted>,
    max_waiting_total: usize,
    /// The first poll.
    since: Option<Instant>,
    wait: Option<Pin<Box<Acquire>>>,
    /// From the first wait on, if any is needed.
    place: Option<Place>,
}

/// Counts a request that waits, until it is dropped.
struct Place(Arc<Line>);

// === impl Line ===

impl Line {
    pub(super) fn new(
        client: &Arc<Client>,
        kind: Kind,
        name: &str,
        limit: u32,
    ) -> Result<Self, Error> {
        Queue::new(kind, &[name.as_bytes()])?;
        Ok(Self {
            client: Arc::clone(client),
            kind,
            name: name.into(),
            limit,
            waiting: AtomicUsize::new(0),
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) async fn inspect(&self, key: &Key) -> Result<Inspection, Error> {
        let queue = key.queue(self.kind, &self.name)?;
        self.client.inspect(queue).await
    }

    pub(super) async fn evict(&self, key: &Key, ticket: &str) -> Result<bool, Error> {
        let queue = key.queue(self.kind, &self.name)?;
        self.client.evict(queue, ticket.to_owned()).await
    }

    /// The way to this key.
    pub(super) fn enter(
        self: &Arc<Self>,
        key: &Key,
        max_waiting_total: usize,
    ) -> Result<Entry, Error> {
        let wanted = key.wanted(self.kind, &self.name, self.limit)?;
        for name in &wanted {
            self.client.check_limit(name.limit)?;
        }
        Ok(Entry {
            line: Arc::clone(self),
            wanted,
            max_waiting_total,
            since: None,
            wait: None,
            place: None,
        })
    }

    /// Joins the line of a name.
    fn start(&self, wanted: &Wanted, wait: &Wait) -> Acquire {
        let queue_client = self.client.queue_client(wanted.queue.clone(), wanted.limit);
        Acquire::new(&queue_client, wait)
    }

    fn place(self: &Arc<Self>, most: usize) -> Result<Place, Error> {
        let place = Place(Arc::clone(self));
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= most {
            return Err(Error::new(
                ErrorKind::TooManyWaiting,
                format!("{most} requests of this process wait for keys of {self:?} already"),
            ));
        }
        Ok(place)
    }

    /// What this very request holds already, by a layer further out.
    fn reenter(
        &self,
        wanted: &Wanted,
        extensions: Option<&mut http::Extensions>,
    ) -> Option<Permit> {
        let held = extensions?.get::<HeldKeys>()?;
        // A layer over another backend may have the same name.
        (held.guards(&wanted.queue)).find(|permit| permit.is_of(&self.client))
    }

    /// Tells the request what it holds.
    fn note(&self, permit: &Permit, extensions: Option<&mut http::Extensions>) {
        let Some(extensions) = extensions else {
            return;
        };
        let token = match self.kind {
            Kind::Mutex => permit.token(),
            Kind::Limit => None,
        };
        if let Some(held) = HeldKeys::of(extensions) {
            held.push(&self.name, permit, token);
        }
    }
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{:?}", self.kind.as_str(), self.name)
    }
}

// === impl Place ===

impl Drop for Place {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

// === impl Entry ===

impl Entry {
    /// Takes what is left to take. When this ends well, `holding` has all of it, and the request's extensions say so.
    pub(super) fn poll<Req>(
        &mut self,
        request: &mut Req,
        extensions: Extensions<Req>,
        holding: &mut Holding,
        settings: &Settings,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Error>> {
        let since = *self.since.get_or_insert_with(clock::now);
        loop {
            // Again after each one that is taken: it must not be lost unheard while the next is waited for.
            if let Poll::Ready(error) = holding.poll_lost(settings.on_lost, cx) {
                return Poll::Ready(Err(error));
            }
            let Some(wanted) = self.wanted.last() else {
                return Poll::Ready(Ok(()));
            };
            let permit = match &mut self.wait {
                None => match self.line.reenter(wanted, extensions(request)) {
                    Some(permit) => Some(permit),
                    None => {
                        if settings.queue && self.place.is_none() {
                            self.place = Some(self.line.place(self.max_waiting_total)?);
                        }
                        let passed = clock::now().saturating_duration_since(since);
                        let wait = settings.request_after(passed);
                        self.wait = Some(Box::pin(self.line.start(wanted, &wait)));
                        continue;
                    }
                },
                Some(wait) => {
                    let outcome = ready!(wait.as_mut().poll(cx));
                    self.wait = None;
                    match outcome {
                        Ok(permit) if permit.claim() => Some(permit),
                        // Granted so long ago that it went back, or was lost, before anybody polled: from the end of the line
                        // again.
                        Ok(_gone_back) => continue,
                        Err(error) if settings.allows(&error) => None,
                        Err(error) => return Poll::Ready(Err(about(wanted, error))),
                    }
                }
            };
            self.wanted.pop();
            if let Some(permit) = permit {
                self.line.note(&permit, extensions(request));
                holding.push(permit);
            }
        }
    }
}

/// The words of a mutex are for a task that waits for itself; here it is one request that waits for others.
fn about(wanted: &Wanted, error: Error) -> Error {
    match error.kind() {
        ErrorKind::WaitTimeout => Error::new(
            ErrorKind::WaitTimeout,
            format!("the wait for {} ended before it was free", wanted.queue),
        ),
        _ => error,
    }
}
