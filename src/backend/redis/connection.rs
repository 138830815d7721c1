//! The connection to one server: it carries calls and receives pushes, is made at first use, and is replaced after a loss.

use super::endpoint::{Driver, Endpoint, Stream};
#[cfg(feature = "redis-sentinel")]
use super::sentinel::Master;
use super::{errors, push, value};
use crate::backend::reconnect::{self, Attempt, Next, Reconnecting};
use crate::backend::{Event, Events};
use crate::clock;
use crate::error::{Error, ErrorKind};
use futures_util::FutureExt;
use futures_util::future::{self, Either};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, PushInfo, PushKind, RedisError, Value};
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// How long an attempt to connect may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// A call that is dropped sooner proves nothing about its connection.
const STUCK_AFTER: Duration = Duration::from_millis(50);
/// How many connections one call tries: each may end together with its runtime.
const MAX_CONNECTIONS: u32 = 5;

/// A connection that is replaced after its loss.
pub(super) struct Connection {
    target: Arc<Target>,
    /// Where the server is, for messages: never more than host and port.
    server: Arc<str>,
    /// The channel to subscribe to, if grants are pushed.
    channel: Option<String>,
    events: Events,
    state: Mutex<Reconnecting<Established>>,
    /// The subscription was refused: nothing is pushed.
    push_refused: AtomicBool,
}

/// The server that a connection leads to.
pub(super) enum Target {
    Server(Endpoint),
    /// Each attempt locates it again.
    #[cfg(feature = "redis-sentinel")]
    Master(Master),
}

/// What precedes a command.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Preamble {
    None,
    /// `ASKING`: the slot is being moved to this server.
    #[cfg(feature = "redis-cluster")]
    Asking,
}

/// One established connection.
struct Established {
    redis: MultiplexedConnection,
    /// The server reports that it is a node of a cluster.
    in_cluster: bool,
    _driver: Option<Driver>,
    /// True or closed: nothing drives the connection any more, and what is sent now will not arrive. A message sent at that
    /// moment can be lost without an error, so that a call that awaits its answer watches this too.
    ended: watch::Receiver<bool>,
    /// How many calls were answered.
    answers: AtomicU32,
}

/// A call in flight. If it is dropped before its answer, it was given up.
///
/// Answers arrive in the order of the calls. So if nothing was answered since the call was sent, the connection is stuck: its
/// peer may have vanished without a sign. It is discarded, and the next call is sent over a new one.
struct InFlight<'a> {
    connection: &'a Connection,
    established: &'a Arc<Established>,
    sent: Instant,
    /// How many calls had been answered by then.
    answers: u32,
    answered: bool,
}

// === impl Connection ===

impl Connection {
    pub(super) fn new(target: Target, channel: Option<String>, events: Events) -> Arc<Self> {
        let server: Arc<str> = target.name().into();
        Arc::new(Self {
            state: Mutex::new(Reconnecting::new(format!("Redis at {server}"))),
            server,
            target: Arc::new(target),
            channel,
            events,
            push_refused: AtomicBool::new(false),
        })
    }

    pub(super) fn server(&self) -> &Arc<str> {
        &self.server
    }

    /// Nothing is pushed: queued tickets have to be polled for.
    pub(super) fn is_push_refused(&self) -> bool {
        self.push_refused.load(Ordering::Relaxed)
    }

    /// The server is a node of a cluster, even if it was configured as a single server.
    pub(super) async fn is_in_cluster(self: &Arc<Self>) -> Result<bool, Error> {
        Ok(self.established().await?.in_cluster)
    }

    /// There is a connection, and it is driven.
    #[cfg(feature = "redis-cluster")]
    pub(super) fn is_ready(&self) -> bool {
        self.state().ready().is_some()
    }

    /// Sends one command and awaits its answer. The inner error is the server's own, or the connection's after it was sent;
    /// the outer one: it was not sent. The caller bounds the time by dropping the future.
    pub(super) async fn try_send(
        self: &Arc<Self>,
        command: &Cmd,
        preamble: Preamble,
    ) -> Result<Result<Value, RedisError>, Error> {
        let established = self.established().await?;
        let mut in_flight = InFlight {
            connection: self,
            established: &established,
            sent: clock::now(),
            answers: established.answers.load(Ordering::Relaxed),
            answered: false,
        };
        let answer = established.query(command, preamble).await;
        in_flight.answered = true;
        match &answer {
            Err(error) if error.is_io_error() => {}
            _ => {
                established.answers.fetch_add(1, Ordering::Relaxed);
            }
        }
        if let Err(error) = &answer
            && errors::needs_new_connection(error)
        {
            let described = || errors::describe(error, &self.server);
            self.state().discard_after(&established, described);
        }
        Ok(answer)
    }

    /// Returns the connection, and makes one if there is none.
    async fn established(self: &Arc<Self>) -> Result<Arc<Established>, Error> {
        for _ in 0..MAX_CONNECTIONS {
            let attempt = {
                let mut state = self.state();
                match state.next(clock::now()) {
                    Next::Use(established) => return Ok(established),
                    Next::Await(attempt) => attempt,
                    Next::Fail(error) => return Err(error),
                    Next::Connect => self.connect(&mut state)?,
                }
            };
            match attempt.clone().await {
                Some(Ok(established)) if reconnect::Connection::is_driven(&*established) => {
                    return Ok(established);
                }
                Some(Ok(established)) => {
                    self.state().discard(&established);
                }
                Some(Err(error)) => return Err(error),
                None => self.state().abandon(&attempt),
            }
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            format!(
                "the connection to Redis at {} was lost {MAX_CONNECTIONS} times as soon as it was made",
                self.server
            ),
        ))
    }

    /// Starts an attempt in its own task: it outlives the calls that wait for it.
    fn connect(
        self: &Arc<Self>,
        state: &mut Reconnecting<Established>,
    ) -> Result<Attempt<Established>, Error> {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return Err(Error::new(
                ErrorKind::NoRuntime,
                "Redis needs a tokio runtime",
            ));
        };
        let (done, attempt) = state.start(clock::now());
        let (connection, this) = (Arc::downgrade(self), attempt.clone());
        let (target, channel, server, events) = (
            self.target.clone(),
            self.channel.clone(),
            self.server.clone(),
            self.events.clone(),
        );
        runtime.spawn(async move {
            let opened = open(&target, channel.as_deref(), &events);
            let opened = tokio::time::timeout(CONNECT_TIMEOUT, opened).await;
            let opened = opened.unwrap_or_else(|_| Err(errors::no_answer(&server)));
            let result = opened.map(|(established, refused)| {
                if let Some(connection) = connection.upgrade() {
                    connection.note_subscription(refused.as_ref());
                }
                established
            });
            // Stored before it is sent: a call that receives the result reads what is stored.
            if let Some(connection) = connection.upgrade() {
                connection.state().finish(&this, &result);
            }
            let succeeded = result.is_ok();
            let _ = done.send(result);
            let is_subscribed = |connection: Arc<Self>| !connection.is_push_refused();
            if succeeded && connection.upgrade().is_some_and(is_subscribed) {
                events.send(Event::Resync);
            }
        });
        Ok(attempt)
    }

    fn note_subscription(&self, refused: Option<&RedisError>) {
        let was_refused = self.push_refused.swap(refused.is_some(), Ordering::Relaxed);
        if let Some(error) = refused
            && !was_refused
        {
            tracing::warn!(
                server = &*self.server,
                "Redis refuses SUBSCRIBE to the channel {} ({}): queued tickets are polled for; grant +subscribe and the channel",
                self.channel.as_deref().unwrap_or_default(),
                errors::text(error),
            );
        }
    }

    fn state(&self) -> MutexGuard<'_, Reconnecting<Established>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Connects and subscribes. A refused subscription is no failure: it is returned beside the connection.
async fn open(
    target: &Target,
    channel: Option<&str>,
    events: &Events,
) -> Result<(Arc<Established>, Option<RedisError>), Error> {
    let endpoint = target.locate().await?;
    let name = endpoint.name();
    // The driver owns the handler, and with it the sender: it is dropped when the driver is.
    let (end, ended) = watch::channel(false);
    let handler = {
        let (channel, events) = (channel.unwrap_or_default().to_owned(), events.clone());
        move |message: PushInfo| -> Result<(), ()> {
            match message.kind {
                PushKind::Message => {
                    for grant in push::grants(&message.data, &channel) {
                        events.send(grant);
                    }
                }
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
    let Stream { mut redis, _driver } = endpoint.connect(&config).await?;
    drop(config);
    let hello = redis::cmd("HELLO").query_async(&mut redis).await;
    let hello = hello.map_err(|error| errors::describe_first(&error, &name))?;
    target.confirm(&hello, &name)?;
    let refused = match channel {
        None => None,
        Some(channel) => match redis.subscribe(channel).await {
            Ok(()) => None,
            Err(error) if errors::is_denied(&error) => Some(error),
            Err(error) => return Err(errors::describe(&error, &name)),
        },
    };
    let established = Established {
        redis,
        in_cluster: value::field(&hello, "mode").is_some_and(|mode| mode == "cluster"),
        _driver,
        ended,
        answers: AtomicU32::new(0),
    };
    Ok((Arc::new(established), refused))
}

// === impl Target ===

impl Target {
    fn name(&self) -> String {
        match self {
            Self::Server(endpoint) => endpoint.name(),
            #[cfg(feature = "redis-sentinel")]
            Self::Master(master) => master.name(),
        }
    }

    async fn locate(&self) -> Result<Endpoint, Error> {
        match self {
            Self::Server(endpoint) => Ok(endpoint.clone()),
            #[cfg(feature = "redis-sentinel")]
            Self::Master(master) => master.locate().await,
        }
    }

    /// Checks that this very connection leads to the wanted server.
    #[cfg_attr(not(feature = "redis-sentinel"), allow(unused_variables))]
    fn confirm(&self, hello: &Value, name: &str) -> Result<(), Error> {
        match self {
            Self::Server(_) => Ok(()),
            #[cfg(feature = "redis-sentinel")]
            Self::Master(_) => Master::confirm(hello, name),
        }
    }
}

// === impl Established ===

impl Established {
    async fn query(&self, command: &Cmd, preamble: Preamble) -> Result<Value, RedisError> {
        let (mut redis, mut ended) = (self.redis.clone(), self.ended.clone());
        let query = pin!(preamble.query(command, &mut redis));
        let ended = pin!(ended.wait_for(|ended| *ended));
        match future::select(query, ended).await {
            Either::Left((answer, _)) => answer,
            // The answer may have arrived just now.
            Either::Right((_, query)) => query
                .now_or_never()
                .unwrap_or_else(|| Err(io::Error::from(io::ErrorKind::BrokenPipe).into())),
        }
    }
}

impl reconnect::Connection for Established {
    fn is_driven(&self) -> bool {
        self.ended.has_changed().is_ok() && !*self.ended.borrow()
    }

    fn has_answered(&self) -> bool {
        self.answers.load(Ordering::Relaxed) > 0
    }

    fn ended_with_runtime(&self) -> bool {
        self.ended.has_changed().is_err() && !*self.ended.borrow()
    }
}

// === impl Preamble ===

impl Preamble {
    async fn query(
        self,
        command: &Cmd,
        redis: &mut MultiplexedConnection,
    ) -> Result<Value, RedisError> {
        match self {
            Self::None => command.query_async(redis).await,
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
            && self.established.answers.load(Ordering::Relaxed) == self.answers
            && clock::now().saturating_duration_since(self.sent) >= STUCK_AFTER
        {
            self.connection.state().discard(self.established);
        }
    }
}
