//! Connecting, resuming the ZooKeeper session, and replacing stuck connections.
//!
//! The ZooKeeper session is the lease of this process. It outlives a connection, and the runtime of a connection: the next call
//! resumes it. Only when the server has ended it a new session is created, and every ticket is lost.

use super::connection::Connection;
use super::errors;
use super::maintenance::Supervisor;
use super::session_state::{SessionState, Shared};
use super::settings::Settings;
use crate::backend::Event;
use crate::backend::reconnect::{Attempt, Next};
use crate::clock::now;
use crate::error::{Error, ErrorKind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::Instant;
use zookeeper_client::{self as zk, Client, SessionInfo, SessionState as ClientState};

/// The longest time that an attempt to connect takes.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long one server of several may take before the client crate uses another. An attempt can meet one that is stuck, and
/// still succeed.
const SERVER_TIMEOUT: Duration = Duration::from_millis(800);
/// A connection that is not known to be broken is replaced after one call that was given up, unless it answered other calls meanwhile. Any
/// connection is replaced after this many in a row.
const MAX_GIVEN_UP: u32 = 8;
/// A call that was given up sooner than this shows nothing about its connection.
const GIVEN_UP_TOO_SOON: Duration = Duration::from_millis(50);
/// How often one call tries to get a connection.
const ROUNDS: u32 = 5;
/// For a session that is created by an operation without a lease, such as an inspection.
const DEFAULT_LEASE: Duration = Duration::from_secs(10);

/// Work in progress over a connection. If it is dropped before its end, it was given up.
pub(super) struct InFlight<'a> {
    shared: &'a Shared,
    connection: Arc<Connection>,
    since: Instant,
    /// The connection's answers when the work began.
    answers: u32,
    ended: bool,
}

// === impl Shared ===

impl Shared {
    /// Returns the connection, for work that needs a session as long as this lease. The caller bounds the time by dropping the
    /// future.
    pub(super) async fn connection(
        self: &Arc<Self>,
        lease: Option<Duration>,
    ) -> Result<InFlight<'_>, Error> {
        for _ in 0..ROUNDS {
            let connection = match self.connection_or_attempt(lease)? {
                Ok(connection) => connection,
                Err(attempt) => match attempt.clone().await {
                    Some(Ok(connection)) => connection,
                    Some(Err(error)) => return Err(error),
                    None => {
                        self.state().connection.abandon(&attempt);
                        continue;
                    }
                },
            };
            let in_flight = InFlight {
                shared: self,
                since: now(),
                answers: connection.answers.load(Ordering::Relaxed),
                connection,
                ended: false,
            };
            match in_flight.connected().await {
                ClientState::SyncConnected | ClientState::ConnectedReadOnly => {
                    return self.require_session_timeout(in_flight, lease);
                }
                _ => {
                    let connection = in_flight.end();
                    self.end_session(connection.epoch);
                }
            }
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            format!(
                "ZooKeeper at {} ends every session as soon as it is created",
                self.servers()
            ),
        ))
    }

    /// Fails if the session can end before the lease does.
    fn require_session_timeout<'a>(
        &self,
        in_flight: InFlight<'a>,
        lease: Option<Duration>,
    ) -> Result<InFlight<'a>, Error> {
        let granted = in_flight.connection.client.session_timeout();
        match lease {
            Some(lease) if granted < lease => {
                in_flight.end();
                Err(errors::session_too_short(self.servers(), granted, lease))
            }
            _ => Ok(in_flight),
        }
    }

    #[allow(clippy::type_complexity)] // used in one place
    fn connection_or_attempt(
        self: &Arc<Self>,
        lease: Option<Duration>,
    ) -> Result<Result<Arc<Connection>, Attempt<Connection>>, Error> {
        let mut state = self.state();
        if let Some(connection) = state.connection.ready()
            && lease.is_some_and(|lease| connection.requested_timeout < lease)
        {
            // The session was created for a shorter lease.
            let epoch = connection.epoch;
            drop(state);
            self.end_session(epoch);
            state = self.state();
        }
        match state.connection.next(now()) {
            Next::Use(connection) => Ok(Ok(connection)),
            Next::Await(attempt) => Ok(Err(attempt)),
            Next::Fail(error) => Err(error),
            Next::Connect => Ok(Err(
                self.connect(&mut state, lease.unwrap_or(DEFAULT_LEASE))?
            )),
        }
    }

    /// Starts to connect, in a task: the attempt continues when the calls that await it are dropped.
    fn connect(
        self: &Arc<Self>,
        state: &mut SessionState,
        lease: Duration,
    ) -> Result<Attempt<Connection>, Error> {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return Err(Error::new(
                ErrorKind::NoRuntime,
                "the ZooKeeper backend was called outside a tokio runtime: call it within one",
            ));
        };
        let (result, attempt) = state.connection.start(now());
        state.epoch += 1;
        let (epoch, session) = (state.epoch, state.session.clone());
        let (shared, settings, this) =
            (Arc::downgrade(self), self.settings.clone(), attempt.clone());
        // A quarter longer, since a heartbeat reaches the leader a little after the server that received it.
        let session_timeout = lease + lease / 4;
        runtime.spawn(async move {
            let client = open(&shared, &settings, session_timeout, session, epoch).await;
            let connection = client.map(|client| Connection::new(client, epoch, session_timeout));
            if let Some(shared) = shared.upgrade() {
                let is_resumed = shared.finish(&this, epoch, &connection);
                let _ = result.send(connection);
                if is_resumed {
                    shared.events.send(Event::Resync);
                }
            }
        });
        Ok(attempt)
    }

    /// Stores the result of an attempt. Returns `true` if it was the latest and there is a connection now.
    fn finish(
        self: &Arc<Self>,
        attempt: &Attempt<Connection>,
        epoch: u64,
        result: &Result<Arc<Connection>, Error>,
    ) -> bool {
        let mut state = self.state();
        if state.epoch != epoch || !state.connection.finish(attempt, result) {
            return false;
        }
        let Ok(connection) = result else {
            return false;
        };
        state.session = Some(connection.client.session().clone());
        drop(state);
        tokio::spawn(Supervisor::new(self, connection).run());
        true
    }

    /// Forgets every ticket: the session that this connection served has ended.
    pub(super) fn end_session(&self, epoch: u64) {
        let mut state = self.state();
        if state.epoch != epoch || state.session.is_none() {
            return;
        }
        state.session = None;
        state.epoch += 1;
        self.discard(&mut state, || errors::session_ended(self.servers()));
        for name in state.names.values_mut() {
            name.tickets.clear();
            name.is_watched = false;
            name.wake_watch.notify_one();
        }
        drop(state);
        self.report_lost_session();
    }

    /// Replaces a stuck connection: the next call resumes the session over a new one.
    fn replace(&self, stuck: &Connection) {
        let mut state = self.state();
        if state.epoch == stuck.epoch && state.connection.current().is_some() {
            state.epoch += 1;
            self.discard(&mut state, || errors::no_answer(self.servers()));
            for name in state.names.values_mut() {
                name.is_watched = false;
                name.wake_watch.notify_one();
            }
        }
    }

    fn discard(&self, state: &mut SessionState, error: impl FnOnce() -> Error) {
        if let Some(connection) = state.connection.current().cloned() {
            state.connection.discard_after(&connection, error);
        }
    }

    /// Forgets every ticket: the attempt with this epoch has found that the session has expired. The attempt continues.
    fn lose_session(&self, epoch: u64) {
        let mut state = self.state();
        if state.epoch != epoch || state.session.take().is_none() {
            return;
        }
        for name in state.names.values_mut() {
            name.tickets.clear();
        }
        drop(state);
        self.report_lost_session();
    }

    fn report_lost_session(&self) {
        tracing::warn!(
            servers = self.servers(),
            "ZooKeeper has ended the session of this process: all its permits and queue entries are lost"
        );
        self.events.send(Event::Lost);
    }

    #[cfg(test)]
    pub(super) fn session(&self) -> Option<SessionInfo> {
        self.state().session.clone()
    }
}

/// Resumes the session, or creates a new one.
async fn open(
    shared: &Weak<Shared>,
    settings: &Settings,
    session_timeout: Duration,
    session: Option<SessionInfo>,
    epoch: u64,
) -> Result<Client, Error> {
    let connector = || {
        let connector = Client::connector()
            .with_session_timeout(session_timeout)
            .with_fail_eagerly()
            // Otherwise a connection that was replaced would close the session of its successor.
            .with_detached();
        let connector = match settings.servers.contains(',') {
            true => connector.with_connection_timeout(SERVER_TIMEOUT),
            false => connector,
        };
        match &settings.digest {
            Some(digest) => connector.with_auth("digest", digest.as_bytes()),
            None => connector,
        }
    };
    let work = async {
        if let Some(session) = session {
            match connector()
                .with_session(session)
                .connect(&settings.servers)
                .await
            {
                Err(zk::Error::SessionExpired) => {
                    if let Some(shared) = shared.upgrade() {
                        shared.lose_session(epoch);
                    }
                }
                other => return other,
            }
        }
        connector().connect(&settings.servers).await
    };
    match tokio::time::timeout(CONNECT_TIMEOUT, work).await {
        Ok(client) => {
            client.map_err(|error| errors::translate(&error, &settings.servers, "connect"))
        }
        Err(_) => Err(errors::no_answer(&settings.servers)),
    }
}

// === impl InFlight ===

impl InFlight<'_> {
    pub(super) fn client(&self) -> &Client {
        &self.connection.client
    }

    pub(super) fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    pub(super) fn epoch(&self) -> u64 {
        self.connection.epoch
    }

    /// Ends the work with its result. A success shows that the connection works.
    pub(super) fn end_with<T>(self, result: &Result<T, Error>) {
        if result.is_ok() {
            (self.connection.has_answered).store(true, Ordering::Relaxed);
        }
        self.end();
    }

    /// Ends the work: it was not given up.
    fn end(mut self) -> Arc<Connection> {
        self.ended = true;
        self.connection.given_up.store(0, Ordering::Relaxed);
        self.connection.answers.fetch_add(1, Ordering::Relaxed);
        self.connection.clone()
    }

    /// Waits while the client crate reconnects: a request sent meanwhile would be executed at an unknown time.
    async fn connected(&self) -> ClientState {
        let mut watcher = self.connection.client.state_watcher();
        let mut state = self.connection.client.state();
        while state == ClientState::Disconnected {
            state = watcher.changed().await;
        }
        state
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if self.ended || now() < self.since + GIVEN_UP_TOO_SOON {
            return;
        }
        let connection = &self.connection;
        let given_up = connection.given_up.fetch_add(1, Ordering::Relaxed) + 1;
        let looks_intact = connection.client.state() != ClientState::Disconnected;
        let answers_none = connection.answers.load(Ordering::Relaxed) == self.answers;
        if looks_intact && answers_none || given_up >= MAX_GIVEN_UP {
            self.shared.replace(connection);
        }
    }
}
