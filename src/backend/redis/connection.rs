//! The link: one multiplexed connection that answers calls and receives pushes, made anew whenever it fails.

#[cfg(feature = "redis-sentinel")]
use super::sentinel::Master;
use super::server::{Driver, Server, Stream};
use super::wire;
use crate::backend::{Event, Events};
use crate::clock;
use crate::error::{Error, ErrorKind};
use futures_util::FutureExt;
use futures_util::future::{self, BoxFuture, Either, Shared};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, PushInfo, PushKind, RedisError, Value};
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

/// How long an attempt to connect may take.
const CONNECTING: Duration = Duration::from_secs(2);
/// An attempt that has not ended by then belongs to a runtime that is not driven.
const STUCK: Duration = Duration::from_secs(3);
/// Pauses between failed attempts.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(100));
/// A call that is dropped sooner says nothing about its connection.
const GIVEN_UP: Duration = Duration::from_millis(50);
/// How often one call looks for a connection: each round finds one that its runtime took with it.
const ROUNDS: u32 = 5;

/// The connection of one session, made at first use.
pub(super) struct Link {
    target: Arc<Target>,
    /// Where the server is, for people: never more than host and port.
    server: Arc<str>,
    /// The channel to listen on, where something is pushed at all.
    inbox: Option<String>,
    events: Events,
    slot: Mutex<Slot>,
    /// Our channel was refused: nothing will be pushed.
    deaf: AtomicBool,
}

/// Where a link leads to.
pub(super) enum Target {
    Server(Server),
    /// Looked for anew by each attempt.
    #[cfg(feature = "redis-sentinel")]
    Master(Master),
}

/// A command, and what has to go before it in the same breath.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Manner {
    Plain,
    /// The slot is on its way to this server.
    #[cfg(feature = "redis-cluster")]
    Asking,
}

enum Slot {
    /// Nothing there. Until `not_before` the last failure is the answer.
    Empty {
        failed: Option<Failed>,
    },
    /// A task is at it. It goes on when the calls that wait for it are dropped.
    Connecting {
        attempt: Attempt,
        since: Instant,
        failures: u32,
    },
    Ready(Arc<Connection>),
}

#[derive(Clone)]
struct Failed {
    error: Error,
    not_before: Instant,
    failures: u32,
}

/// Resolves to `None` if the task ended with its runtime.
type Attempt = Shared<BoxFuture<'static, Option<Result<Arc<Connection>, Error>>>>;

struct Connection {
    redis: MultiplexedConnection,
    /// The server is a node of a cluster, by its own word.
    in_cluster: bool,
    _driver: Option<Driver>,
    /// True or closed: nothing drives it any more, and what is sent now will not arrive. A message sent in the moment of
    /// the end can be lost in between with no error, so that a call that waits for its answer watches this too.
    ended: watch::Receiver<bool>,
    /// How many calls were answered.
    answers: AtomicU32,
}

/// A call in flight. If it is dropped before its answer, it was given up.
///
/// Answers come in the order of the calls. So if nothing was answered since the call was sent, the connection is stuck: its peer
/// may have vanished without a sign. It is discarded, and the next call is sent over a new one.
struct InFlight<'a> {
    link: &'a Link,
    connection: &'a Arc<Connection>,
    sent: Instant,
    /// The connection's answers by then.
    answers: u32,
    answered: bool,
}

// === impl Link ===

impl Link {
    pub(super) fn new(target: Target, inbox: Option<String>, events: Events) -> Arc<Self> {
        Arc::new(Self {
            server: target.name().into(),
            target: Arc::new(target),
            inbox,
            events,
            slot: Mutex::new(Slot::Empty { failed: None }),
            deaf: AtomicBool::new(false),
        })
    }

    pub(super) fn server(&self) -> &Arc<str> {
        &self.server
    }

    /// Nothing is pushed to us: ask often.
    pub(super) fn is_deaf(&self) -> bool {
        self.deaf.load(Ordering::Relaxed)
    }

    /// The server is a node of a cluster, even if it was configured as a single server.
    pub(super) async fn is_in_cluster(self: &Arc<Self>) -> Result<bool, Error> {
        Ok(self.connection().await?.in_cluster)
    }

    /// There is a connection, and it is driven.
    #[cfg(feature = "redis-cluster")]
    pub(super) fn is_ready(&self) -> bool {
        matches!(&*self.slot(), Slot::Ready(connection) if connection.is_driven())
    }

    /// Sends one command and awaits its answer, the server's own error still in its hand. The outer error: it was not sent.
    /// The caller bounds the time by dropping the future.
    pub(super) async fn try_send(
        self: &Arc<Self>,
        command: &Cmd,
        manner: Manner,
    ) -> Result<Result<Value, RedisError>, Error> {
        let connection = self.connection().await?;
        let mut in_flight = InFlight {
            link: self,
            connection: &connection,
            sent: clock::now(),
            answers: connection.answers.load(Ordering::Relaxed),
            answered: false,
        };
        let answer = connection.query(command, manner).await;
        in_flight.answered = true;
        connection.answers.fetch_add(1, Ordering::Relaxed);
        if let Err(error) = &answer
            && wire::wants_new_connection(error)
        {
            self.discard(&connection);
        }
        Ok(answer)
    }

    async fn connection(self: &Arc<Self>) -> Result<Arc<Connection>, Error> {
        for _ in 0..ROUNDS {
            let attempt = {
                let mut slot = self.slot();
                match &*slot {
                    Slot::Ready(connection) if connection.is_driven() => {
                        return Ok(connection.clone());
                    }
                    Slot::Ready(_) => self.connect(&mut slot, 0)?,
                    Slot::Connecting {
                        since, failures, ..
                    } if clock::now().saturating_duration_since(*since) > STUCK => {
                        let failures = *failures;
                        self.connect(&mut slot, failures)?
                    }
                    Slot::Connecting { attempt, .. } => attempt.clone(),
                    Slot::Empty { failed: None } => self.connect(&mut slot, 0)?,
                    Slot::Empty {
                        failed: Some(failed),
                    } if clock::now() < failed.not_before => return Err(failed.error.clone()),
                    Slot::Empty {
                        failed: Some(failed),
                    } => {
                        let failures = failed.failures;
                        self.connect(&mut slot, failures)?
                    }
                }
            };
            match attempt.clone().await {
                Some(Ok(connection)) if connection.is_driven() => return Ok(connection),
                Some(Ok(connection)) => self.discard(&connection),
                Some(Err(error)) => return Err(error),
                None => self.forget(&attempt),
            }
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            format!(
                "the connection to Redis at {} breaks as soon as it is made",
                self.server
            ),
        ))
    }

    /// Starts an attempt of its own task: it survives the calls that wait for it.
    fn connect(self: &Arc<Self>, slot: &mut Slot, failures: u32) -> Result<Attempt, Error> {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return Err(Error::new(
                ErrorKind::NoRuntime,
                "Redis needs a tokio runtime",
            ));
        };
        let (done, attempt) = oneshot::channel();
        let attempt = attempt.map(Result::ok).boxed().shared();
        *slot = Slot::Connecting {
            attempt: attempt.clone(),
            since: clock::now(),
            failures,
        };
        let (link, this) = (Arc::downgrade(self), attempt.clone());
        let (target, inbox, server, events) = (
            self.target.clone(),
            self.inbox.clone(),
            self.server.clone(),
            self.events.clone(),
        );
        runtime.spawn(async move {
            let made =
                tokio::time::timeout(CONNECTING, open(&target, inbox.as_deref(), &events)).await;
            let made = made.unwrap_or_else(|_| Err(wire::no_answer(&server)));
            let result = made.map(|(connection, refused)| {
                if let Some(link) = link.upgrade() {
                    link.hears(refused.as_ref());
                }
                connection
            });
            // The slot first: a call that learns of the end looks there.
            if let Some(link) = link.upgrade() {
                link.settle(&this, &result, failures);
            }
            let subscribed = result.is_ok();
            let _ = done.send(result);
            if subscribed && link.upgrade().is_some_and(|link| !link.is_deaf()) {
                events.send(Event::Resync);
            }
        });
        Ok(attempt)
    }

    /// An attempt has ended. A later one may have taken its place.
    fn settle(&self, this: &Attempt, result: &Result<Arc<Connection>, Error>, failures: u32) {
        let mut slot = self.slot();
        if !slot.is_attempt(this) {
            return;
        }
        *slot = match result {
            Ok(connection) => Slot::Ready(connection.clone()),
            Err(error) => {
                let pause = BACK_OFF
                    .0
                    .saturating_mul(1 << failures.min(8))
                    .min(BACK_OFF.1);
                Slot::Empty {
                    failed: Some(Failed {
                        error: error.clone(),
                        not_before: clock::now() + pause,
                        failures: failures.saturating_add(1),
                    }),
                }
            }
        };
    }

    /// The attempt's runtime is gone, and the attempt with it.
    fn forget(&self, attempt: &Attempt) {
        let mut slot = self.slot();
        if slot.is_attempt(attempt) {
            *slot = Slot::Empty { failed: None };
        }
    }

    /// The next call connects anew, unless another call has already.
    fn discard(&self, connection: &Arc<Connection>) {
        let mut slot = self.slot();
        if matches!(&*slot, Slot::Ready(ready) if Arc::ptr_eq(ready, connection)) {
            *slot = Slot::Empty { failed: None };
        }
    }

    fn hears(&self, refused: Option<&RedisError>) {
        let was_deaf = self.deaf.swap(refused.is_some(), Ordering::Relaxed);
        if let Some(error) = refused
            && !was_deaf
        {
            tracing::warn!(
                server = &*self.server,
                "Redis does not let us SUBSCRIBE to {} ({}): waiting polls instead",
                self.inbox.as_deref().unwrap_or_default(),
                wire::text(error),
            );
        }
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Connects and subscribes. A refused subscription is no failure: it is handed back.
async fn open(
    target: &Target,
    inbox: Option<&str>,
    events: &Events,
) -> Result<(Arc<Connection>, Option<RedisError>), Error> {
    let server = target.locate().await?;
    let name = server.name();
    // The driver owns the handler, and with it the sender: it is dropped when the driver is.
    let (end, ended) = watch::channel(false);
    let handler = {
        let (inbox, events) = (inbox.unwrap_or_default().to_owned(), events.clone());
        move |push: PushInfo| -> Result<(), ()> {
            match push.kind {
                PushKind::Message => wire::pushed(&push.data, &inbox, |event| events.send(event)),
                PushKind::Disconnection => {
                    end.send_replace(true);
                    events.send(Event::Resync);
                }
                _ => {}
            }
            Ok(())
        }
    };
    // This attempt and the callers have their own timeouts.
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
        .set_push_sender(handler);
    let Stream { mut redis, _driver } = server.connect(&config).await?;
    drop(config);
    let hello = redis::cmd("HELLO").query_async(&mut redis).await;
    let hello = hello.map_err(|error| wire::first_error(&error, &name))?;
    target.confirm(&hello, &name)?;
    let refused = match inbox {
        None => None,
        Some(inbox) => match redis.subscribe(inbox).await {
            Ok(()) => None,
            Err(error) if wire::is_denied(&error) => Some(error),
            Err(error) => return Err(wire::error(&error, &name)),
        },
    };
    let connection = Connection {
        redis,
        in_cluster: wire::field(&hello, "mode").is_some_and(|mode| mode == "cluster"),
        _driver,
        ended,
        answers: AtomicU32::new(0),
    };
    Ok((Arc::new(connection), refused))
}

// === impl Target ===

impl Target {
    fn name(&self) -> String {
        match self {
            Self::Server(server) => server.name(),
            #[cfg(feature = "redis-sentinel")]
            Self::Master(master) => master.name(),
        }
    }

    async fn locate(&self) -> Result<Server, Error> {
        match self {
            Self::Server(server) => Ok(server.clone()),
            #[cfg(feature = "redis-sentinel")]
            Self::Master(master) => master.locate().await,
        }
    }

    /// It is what we looked for, also by the word of this very connection.
    #[cfg_attr(not(feature = "redis-sentinel"), allow(unused_variables))]
    fn confirm(&self, hello: &Value, name: &str) -> Result<(), Error> {
        match self {
            Self::Server(_) => Ok(()),
            #[cfg(feature = "redis-sentinel")]
            Self::Master(_) => Master::confirm(hello, name),
        }
    }
}

// === impl Slot ===

impl Slot {
    fn is_attempt(&self, this: &Attempt) -> bool {
        matches!(self, Self::Connecting { attempt, .. } if attempt.ptr_eq(this))
    }
}

// === impl Connection ===

impl Connection {
    fn is_driven(&self) -> bool {
        self.ended.has_changed().is_ok() && !*self.ended.borrow()
    }

    async fn query(&self, command: &Cmd, manner: Manner) -> Result<Value, RedisError> {
        let (mut redis, mut ended) = (self.redis.clone(), self.ended.clone());
        let query = pin!(manner.query(command, &mut redis));
        let ended = pin!(ended.wait_for(|ended| *ended));
        match future::select(query, ended).await {
            Either::Left((answer, _)) => answer,
            // The answer may just have come.
            Either::Right((_, query)) => query
                .now_or_never()
                .unwrap_or_else(|| Err(io::Error::from(io::ErrorKind::BrokenPipe).into())),
        }
    }
}

// === impl Manner ===

impl Manner {
    async fn query(
        self,
        command: &Cmd,
        redis: &mut MultiplexedConnection,
    ) -> Result<Value, RedisError> {
        match self {
            Self::Plain => command.query_async(redis).await,
            #[cfg(feature = "redis-cluster")]
            Self::Asking => {
                let mut both = redis::pipe();
                both.cmd("ASKING").add_command(command.clone());
                let answers: Vec<Result<Value, RedisError>> =
                    both.ignore_errors().query_async(redis).await?;
                let broken = || io::Error::from(io::ErrorKind::UnexpectedEof).into();
                answers.into_iter().nth(1).unwrap_or_else(|| Err(broken()))
            }
        }
    }
}

// === impl InFlight ===

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if !self.answered
            && self.connection.answers.load(Ordering::Relaxed) == self.answers
            && clock::now().saturating_duration_since(self.sent) >= GIVEN_UP
        {
            self.link.discard(self.connection);
        }
    }
}
