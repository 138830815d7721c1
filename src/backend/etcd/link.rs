//! The link: a connection to one of the servers, made anew, to the next one, whenever it fails.

use super::wire::{self, Failure, Remedy};
use crate::backend::tls::Tls;
use crate::clock;
use crate::error::{Error, ErrorKind};
use etcd_client::{Client, ConnectOptions};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, timeout};

/// How long an attempt to connect and to log in may take: etcd makes that slow on purpose.
const CONNECTING: Duration = Duration::from_secs(2);
/// An attempt that shows no end by then sits in a runtime that nobody drives.
const STUCK: Duration = Duration::from_secs(3);
/// How long one server of several may take to answer before another is asked.
const TRY: Duration = Duration::from_millis(200);
/// How long the only one may take.
const ONLY_TRY: Duration = Duration::from_secs(2);
/// Pauses after a failed attempt to connect, and between two rounds over all servers.
const BACK_OFF: Duration = Duration::from_millis(20);
/// What was given up after less says nothing about the connection.
const BRIEF: Duration = Duration::from_millis(50);

/// The connection of one session, made at first use.
pub(super) struct Link {
    servers: Vec<String>,
    options: ConnectOptions,
    tls: Option<Tls>,
    slot: Mutex<Slot>,
    /// Counts the connections: long streams over a former one are to be made anew.
    changes: watch::Sender<u64>,
}

struct Slot {
    /// The server that is asked now.
    at: usize,
    state: SlotState,
}

enum SlotState {
    /// Until then the last failure is the answer.
    Empty(Option<(Error, Instant)>),
    /// A task is at it. It goes on when the calls that wait for it are dropped.
    Connecting {
        attempt: Attempt,
        since: Instant,
    },
    Ready(Arc<Connection>),
}

/// Resolves to `None` if the task ended with its runtime.
type Attempt = Shared<BoxFuture<'static, Option<Result<Arc<Connection>, Error>>>>;

pub(super) struct Connection {
    client: Client,
    server: Arc<str>,
    /// Counts the answers.
    answers: AtomicU32,
    /// Closed when the runtime that drives the connection has ended.
    driven: watch::Receiver<()>,
}

/// An answer.
pub(super) struct Answer<T> {
    pub(super) value: T,
    /// It was the only time this was said: nothing of it is still on its way.
    pub(super) once: bool,
}

/// A call on its way. Dropped before its answer, it was given up.
struct UnderWay<'a> {
    link: &'a Link,
    connection: &'a Arc<Connection>,
    since: Instant,
    /// The answers to others before it was sent.
    before: u32,
    answered: bool,
}

// === impl Link ===

impl Link {
    pub(super) fn new(
        servers: Vec<String>,
        options: ConnectOptions,
        tls: Option<Tls>,
    ) -> Arc<Self> {
        Arc::new(Self {
            servers,
            options,
            tls,
            slot: Mutex::new(Slot {
                at: 0,
                state: SlotState::Empty(None),
            }),
            changes: watch::Sender::new(0),
        })
    }

    /// Says when the connection is another one.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Asks until a server answers, each at most twice.
    pub(super) async fn call<T, F>(
        self: &Arc<Self>,
        ask: impl Fn(Client) -> F,
    ) -> Result<Answer<T>, Failure>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        let rounds = self.servers.len() * 2;
        let patience = if self.servers.len() > 1 {
            TRY
        } else {
            ONLY_TRY
        };
        let mut said = 0;
        let mut last = None;
        for round in 0..rounds {
            if round >= self.servers.len() {
                tokio::time::sleep(BACK_OFF).await;
            }
            let connection = match self.connection().await {
                Ok(connection) => connection,
                Err(error) if error.kind() == ErrorKind::Unavailable => {
                    last = Some(Failure::Other(error));
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let mut under_way = UnderWay {
                link: self,
                connection: &connection,
                since: clock::now(),
                before: connection.answers.load(Ordering::Relaxed),
                answered: false,
            };
            said += 1;
            let answer = timeout(patience, ask(connection.client.clone())).await;
            under_way.answered = true;
            match answer {
                Ok(Ok(value)) => {
                    connection.answers.fetch_add(1, Ordering::Relaxed);
                    return Ok(Answer {
                        value,
                        once: said == 1,
                    });
                }
                Ok(Err(error)) => match wire::failure(&error, &connection.server) {
                    (failure, Remedy::None) => return Err(failure),
                    (failure, Remedy::Elsewhere) => {
                        last = Some(match wire::hung_up(&error) {
                            true => self.refused(&connection.server).await.unwrap_or(failure),
                            false => failure,
                        });
                    }
                },
                Err(_) => last = Some(wire::silent(&connection.server)),
            }
            self.discard(&connection);
        }
        Err(last.unwrap_or_else(|| wire::silent("no address")))
    }

    /// What a server that hung up has against us. It refuses a client's certificate only after the client thinks that all is
    /// well, and the client crate may be at other things by then.
    async fn refused(&self, server: &str) -> Option<Failure> {
        let tls = self.tls.as_ref()?;
        let listens = async {
            let host = server.rsplit_once(':')?.0.trim_matches(['[', ']']);
            let stream = TcpStream::connect(server).await.ok()?;
            match tls.shake_hands(stream, host, &wire::ETCD, server).await {
                Ok(mut stream) => wire::of_tls(&stream.read_u8().await.err()?, server),
                Err(error) => Some(error),
            }
        };
        timeout(TRY, listens).await.ok()?.map(Failure::Other)
    }

    /// A connection, for what is no single question.
    pub(super) async fn connection(self: &Arc<Self>) -> Result<Arc<Connection>, Error> {
        for _ in 0..3 {
            let attempt = {
                let mut slot = self.slot();
                match &slot.state {
                    SlotState::Ready(connection) if connection.is_driven() => {
                        return Ok(connection.clone());
                    }
                    SlotState::Connecting { attempt, since }
                        if clock::now().saturating_duration_since(*since) < STUCK =>
                    {
                        attempt.clone()
                    }
                    SlotState::Empty(Some((error, until))) if clock::now() < *until => {
                        return Err(error.clone());
                    }
                    _ => self.connect(&mut slot)?,
                }
            };
            match attempt.clone().await {
                Some(Ok(connection)) if connection.is_driven() => return Ok(connection),
                Some(Err(error)) => return Err(error),
                // Its runtime is gone, and the attempt or the connection with it.
                Some(Ok(_)) | None => {
                    let mut slot = self.slot();
                    if slot.is_attempt(&attempt) {
                        slot.state = SlotState::Empty(None);
                    }
                }
            }
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            "the connection to etcd breaks as soon as it is made",
        ))
    }

    /// Starts an attempt in a task of its own.
    fn connect(self: &Arc<Self>, slot: &mut Slot) -> Result<Attempt, Error> {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return Err(Error::new(
                ErrorKind::NoRuntime,
                "etcd needs a tokio runtime",
            ));
        };
        let server = self.servers[slot.at % self.servers.len()].clone();
        let (done, attempt) = oneshot::channel();
        let attempt = attempt.map(Result::ok).boxed().shared();
        slot.state = SlotState::Connecting {
            attempt: attempt.clone(),
            since: clock::now(),
        };
        let (link, this, options) = (Arc::downgrade(self), attempt.clone(), self.options.clone());
        runtime.spawn(async move {
            let result = open(&server, options).await;
            // The slot first: whoever learns of the end finds it there.
            if let Some(link) = link.upgrade() {
                link.settle(&this, &result);
            }
            let _ = done.send(result);
        });
        Ok(attempt)
    }

    fn settle(&self, this: &Attempt, result: &Result<Arc<Connection>, Error>) {
        let mut slot = self.slot();
        if !slot.is_attempt(this) {
            return;
        }
        match result {
            Ok(connection) => {
                slot.state = SlotState::Ready(connection.clone());
                drop(slot);
                self.changes.send_modify(|count| *count += 1);
            }
            Err(error) => {
                let retry =
                    (self.servers.len() == 1).then(|| (error.clone(), clock::now() + BACK_OFF));
                slot.state = SlotState::Empty(retry);
                slot.at += 1;
            }
        }
    }

    /// The next call goes to the next server, unless somebody has seen to it already.
    pub(super) fn discard(&self, connection: &Arc<Connection>) {
        let mut slot = self.slot();
        if matches!(&slot.state, SlotState::Ready(ready) if Arc::ptr_eq(ready, connection)) {
            slot.state = SlotState::Empty(None);
            slot.at += 1;
        }
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn open(server: &str, options: ConnectOptions) -> Result<Arc<Connection>, Error> {
    let (end, driven) = watch::channel(());
    // Ends with the runtime, as the tasks do that drive the connection; or with the connection.
    tokio::spawn(async move { end.closed().await });
    let shown: Arc<str> = shown(server).into();
    let client = timeout(CONNECTING, Client::connect([server], Some(options))).await;
    match client {
        Ok(Ok(client)) => Ok(Arc::new(Connection {
            client,
            server: shown,
            answers: AtomicU32::new(0),
            driven,
        })),
        Ok(Err(error)) => Err(wire::failure(&error, &shown).0.into()),
        Err(_) => Err(wire::silent(&shown).into()),
    }
}

/// An address without its scheme, for people.
pub(super) fn shown(server: &str) -> &str {
    server.split_once("://").map_or(server, |(_, host)| host)
}

// === impl Slot ===

impl Slot {
    fn is_attempt(&self, this: &Attempt) -> bool {
        matches!(&self.state, SlotState::Connecting { attempt, .. } if attempt.ptr_eq(this))
    }
}

// === impl Connection ===

impl Connection {
    pub(super) fn client(&self) -> Client {
        self.client.clone()
    }

    pub(super) fn server(&self) -> &str {
        &self.server
    }

    fn is_driven(&self) -> bool {
        self.driven.has_changed().is_ok()
    }
}

// === impl UnderWay ===

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        // Who answers others meanwhile, or was asked only now, has much to do: a new connection would only add to it.
        let others = self.connection.answers.load(Ordering::Relaxed) != self.before;
        if !others && clock::now() >= self.since + BRIEF {
            self.link.discard(self.connection);
        }
    }
}
