//! One connection at a time to a server of the cluster. When it fails, the next server is used.

use super::errors::{self, Failure, Remedy};
use crate::backend::reconnect::{self, Attempt, Next, Reconnecting};
use crate::backend::tls::Tls;
use crate::clock;
use crate::error::{Error, ErrorKind};
use etcd_client::{Client, ConnectOptions};
use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

/// The longest time for connecting and logging in. etcd checks passwords slowly on purpose.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long one server of several may take to answer before the next one is used.
const CALL_TIMEOUT: Duration = Duration::from_millis(200);
/// How long the only server may take.
const CALL_TIMEOUT_ONLY_SERVER: Duration = Duration::from_secs(2);
/// The pause of a call that has tried every server before it tries them again.
const PAUSE_BETWEEN_ROUNDS: Duration = Duration::from_millis(20);
/// A call that was given up sooner than this shows nothing about its connection.
const GIVEN_UP_TOO_SOON: Duration = Duration::from_millis(50);

/// The connection of one session to its cluster, made at first use.
pub(super) struct ClusterConnection {
    options: ConnectOptions,
    tls: Option<Tls>,
    servers: Mutex<Servers>,
    server_count: usize,
    /// Counts the connections. Streams over an earlier one have to be opened again.
    changes: watch::Sender<u64>,
}

struct Servers {
    all: Vec<Server>,
    /// The server that is used now.
    current: usize,
}

struct Server {
    url: String,
    connection: Reconnecting<Connection>,
}

pub(super) struct Connection {
    client: Client,
    /// Host and port.
    server: Arc<str>,
    /// Counts the answered calls.
    answers: AtomicU32,
    /// Closed when the runtime that drives the connection has ended.
    driven: watch::Receiver<()>,
}

/// The answer to a call.
pub(super) struct Answer<T> {
    pub(super) value: T,
    /// The call was sent once only, so that no copy of it can be executed later.
    pub(super) sent_once: bool,
}

/// A call in flight. If it is dropped before its answer, it was given up.
struct InFlight<'a> {
    cluster: &'a ClusterConnection,
    connection: &'a Arc<Connection>,
    sent: Instant,
    /// The connection's answers when the call was sent.
    answers: u32,
    answered: bool,
}

// === impl ClusterConnection ===

impl ClusterConnection {
    pub(super) fn new(
        servers: Vec<String>,
        options: ConnectOptions,
        tls: Option<Tls>,
    ) -> Arc<Self> {
        let servers: Vec<Server> = (servers.into_iter())
            .map(|url| Server {
                connection: Reconnecting::new(format!("etcd at {}", host_and_port(&url))),
                url,
            })
            .collect();
        Arc::new(Self {
            options,
            tls,
            server_count: servers.len(),
            servers: Mutex::new(Servers {
                all: servers,
                current: 0,
            }),
            changes: watch::Sender::new(0),
        })
    }

    /// Notifies of each new connection.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Sends a request until a server answers, at most twice to each.
    pub(super) async fn call<T, F>(
        self: &Arc<Self>,
        request: impl Fn(Client) -> F,
    ) -> Result<Answer<T>, Failure>
    where
        F: Future<Output = Result<T, etcd_client::Error>>,
    {
        let call_timeout = match self.server_count {
            1 => CALL_TIMEOUT_ONLY_SERVER,
            _ => CALL_TIMEOUT,
        };
        let mut sent = 0;
        let mut last = None;
        for attempt in 0..self.server_count * 2 {
            if attempt >= self.server_count {
                tokio::time::sleep(PAUSE_BETWEEN_ROUNDS).await;
            }
            let connection = match self.connection().await {
                Ok(connection) => connection,
                Err(error) if error.kind() == ErrorKind::Unavailable => {
                    last = Some(Failure::Other(error));
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let mut in_flight = InFlight {
                cluster: self,
                connection: &connection,
                sent: clock::now(),
                answers: connection.answers.load(Ordering::Relaxed),
                answered: false,
            };
            sent += 1;
            let answer = timeout(call_timeout, request(connection.client.clone())).await;
            in_flight.answered = true;
            match answer {
                Ok(Ok(value)) => {
                    connection.answers.fetch_add(1, Ordering::Relaxed);
                    return Ok(Answer {
                        value,
                        sent_once: sent == 1,
                    });
                }
                Ok(Err(error)) => match errors::classify(&error, &connection.server) {
                    (failure, Remedy::None) => return Err(failure),
                    (failure, Remedy::OtherConnection) => {
                        last = Some(match errors::was_closed(&error) {
                            true => self
                                .tls_refusal(&connection.server)
                                .await
                                .unwrap_or(failure),
                            false => failure,
                        });
                    }
                },
                Err(_) => last = Some(errors::no_answer(&connection.server)),
            }
            self.discard(&connection, last.as_ref());
        }
        Err(last.unwrap_or_else(|| errors::no_answer("any address")))
    }

    /// Returns why a server closed a TLS connection. It refuses a client's certificate only after the client has finished its
    /// handshake, and by then the client crate may not read the reason.
    async fn tls_refusal(&self, server: &str) -> Option<Failure> {
        let tls = self.tls.as_ref()?;
        let handshake = async {
            let host = server.rsplit_once(':')?.0.trim_matches(['[', ']']);
            let stream = TcpStream::connect(server).await.ok()?;
            match tls.shake_hands(stream, host, &errors::ETCD, server).await {
                Ok(mut stream) => errors::tls_error(&stream.read_u8().await.err()?, server),
                Err(error) => Some(error),
            }
        };
        (timeout(CALL_TIMEOUT, handshake).await.ok()?).map(Failure::Other)
    }

    /// Returns the connection, for requests that [`call`](Self::call) does not fit. Connects if there is none.
    pub(super) async fn connection(self: &Arc<Self>) -> Result<Arc<Connection>, Error> {
        for _ in 0..3 {
            let attempt = {
                let mut servers = self.servers();
                match servers.next(clock::now()) {
                    Next::Use(connection) => return Ok(connection),
                    Next::Await(attempt) => attempt,
                    Next::Fail(error) => return Err(error),
                    Next::Connect => self.connect(&mut servers)?,
                }
            };
            match attempt.clone().await {
                Some(Ok(connection)) if reconnect::Connection::is_driven(&*connection) => {
                    return Ok(connection);
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error),
                None => self.servers().abandon(&attempt),
            }
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            "each new connection to etcd was lost at once: the runtimes that made them have ended",
        ))
    }

    /// Starts to connect to the current server, in a task: the attempt continues when the calls that await it are dropped.
    fn connect(self: &Arc<Self>, servers: &mut Servers) -> Result<Attempt<Connection>, Error> {
        let runtime = errors::runtime()?;
        let at = servers.current;
        let server = &mut servers.all[at];
        let url = server.url.clone();
        let (result, attempt) = server.connection.start(clock::now());
        let (cluster, this, options) =
            (Arc::downgrade(self), attempt.clone(), self.options.clone());
        runtime.spawn(async move {
            let connection = open(&url, options).await;
            if let Some(cluster) = cluster.upgrade() {
                cluster.finish(at, &this, &connection);
            }
            let _ = result.send(connection);
        });
        Ok(attempt)
    }

    fn finish(
        &self,
        at: usize,
        attempt: &Attempt<Connection>,
        result: &Result<Arc<Connection>, Error>,
    ) {
        let mut servers = self.servers();
        if !servers.all[at].connection.finish(attempt, result) {
            return;
        }
        match result {
            Ok(_) => {
                drop(servers);
                self.changes.send_modify(|count| *count += 1);
            }
            Err(_) => servers.use_next_after(at),
        }
    }

    /// Discards a connection after a call failed. The next call uses the next server, unless the connection was discarded
    /// already.
    pub(super) fn discard(&self, connection: &Arc<Connection>, failure: Option<&Failure>) {
        let error = || match failure {
            Some(failure) => failure.clone().into(),
            None => errors::no_answer(&connection.server).into(),
        };
        let mut servers = self.servers();
        let lost = (servers.all.iter_mut())
            .position(|server| server.connection.discard_after(connection, error));
        if let Some(at) = lost {
            servers.use_next_after(at);
        }
    }

    fn servers(&self) -> MutexGuard<'_, Servers> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn open(url: &str, options: ConnectOptions) -> Result<Arc<Connection>, Error> {
    let (end, driven) = watch::channel(());
    // Ends with the connection, or with the runtime, as do the tasks that drive the connection.
    tokio::spawn(async move { end.closed().await });
    let server: Arc<str> = host_and_port(url).into();
    match timeout(CONNECT_TIMEOUT, Client::connect([url], Some(options))).await {
        Ok(Ok(client)) => Ok(Arc::new(Connection {
            client,
            server,
            answers: AtomicU32::new(0),
            driven,
        })),
        Ok(Err(error)) => Err(errors::classify(&error, &server).0.into()),
        Err(_) => Err(errors::no_answer(&server).into()),
    }
}

/// Returns a URL without its scheme, for messages.
pub(super) fn host_and_port(url: &str) -> &str {
    url.split_once("://").map_or(url, |(_, host)| host)
}

// === impl Servers ===

impl Servers {
    /// Returns what a call has to do. Skips servers in the pause after a failed attempt, unless all are.
    fn next(&mut self, now: Instant) -> Next<Connection> {
        let first = self.current;
        loop {
            let next = self.all[self.current].connection.next(now);
            if !matches!(next, Next::Fail(_)) {
                return next;
            }
            self.use_next_after(self.current);
            if self.current == first {
                return next;
            }
        }
    }

    fn use_next_after(&mut self, at: usize) {
        if self.current == at {
            self.current = (at + 1) % self.all.len();
        }
    }

    fn abandon(&mut self, attempt: &Attempt<Connection>) {
        for server in &mut self.all {
            server.connection.abandon(attempt);
        }
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
}

impl reconnect::Connection for Connection {
    fn is_driven(&self) -> bool {
        self.driven.has_changed().is_ok()
    }

    fn has_answered(&self) -> bool {
        self.answers.load(Ordering::Relaxed) > 0
    }

    fn ended_with_runtime(&self) -> bool {
        !self.is_driven()
    }
}

// === impl InFlight ===

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        // A server that answers other calls meanwhile is slow, not gone: a new connection would only add to its load.
        let answers_others = self.connection.answers.load(Ordering::Relaxed) != self.answers;
        if !answers_others && clock::now() >= self.sent + GIVEN_UP_TOO_SOON {
            self.cluster.discard(self.connection, None);
        }
    }
}
