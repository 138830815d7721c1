//! The link: the one ZooKeeper session of a coordinator, and the connection that serves it.
//!
//! The session is the lease. It outlives a connection, and a runtime: the next call takes it up again. Only when the
//! server has ended it a new one is made, and every ticket is lost.

use super::room::Room;
use super::{Settings, words};
use crate::backend::{Event, Events};
use crate::clock::now;
use crate::error::{Error, ErrorKind};
use crate::name::{Node, Queue};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;
use zookeeper_client::{self as zk, Client, SessionInfo, SessionState};

/// How long an attempt to connect may take.
const CONNECTING: Duration = Duration::from_secs(2);
/// A server of several that is silent for so long is left for another. So an attempt can meet one that is, and succeed.
const SILENT: Duration = Duration::from_millis(800);
/// An attempt that shows no end by then sits in a runtime that nobody drives.
const STUCK: Duration = Duration::from_secs(3);
/// After a failed attempt.
const PAUSE: Duration = Duration::from_millis(50);
/// A connection that looks fine is replaced after one call that was given up, unless it answered others meanwhile; any
/// other after this many in a row.
const GIVEN_UP_FOR_GOOD: u32 = 8;
/// A call that was given up after less time shows nothing about the connection.
const BRIEF: Duration = Duration::from_millis(50);
/// How often one call looks for a connection.
const ROUNDS: u32 = 5;
/// Below so many names nobody looks whether some can be forgotten.
const FEW: usize = 64;
/// For a session that is made before anybody has named a lease.
const USUAL_LEASE: Duration = Duration::from_secs(10);

/// What a coordinator has in ZooKeeper.
pub(super) struct Link {
    pub(super) settings: Settings,
    pub(super) node: Node,
    pub(super) events: Events,
    /// Never held across an await, nor while an event is sent.
    state: Mutex<LinkState>,
}

pub(super) struct LinkState {
    slot: Slot,
    /// To be taken up again when the connection has gone and the session may live.
    session: Option<SessionInfo>,
    /// Counts the connections.
    epoch: u64,
    pub(super) rooms: HashMap<Queue, Room>,
    /// At so many names it is time to forget some.
    many: usize,
}

enum Slot {
    Empty {
        failed: Option<(Error, Instant)>,
    },
    /// A task is at it. It goes on when the calls that wait for it are dropped.
    Connecting {
        attempt: Attempt,
        since: Instant,
    },
    Ready(Arc<Live>),
}

/// Resolves to `None` if the task ended with its runtime.
type Attempt = Shared<BoxFuture<'static, Option<Result<Arc<Live>, Error>>>>;

/// A connection, which the client crate makes anew by itself as long as its runtime is driven and its session lives.
pub(super) struct Live {
    pub(super) client: Client,
    pub(super) epoch: u64,
    /// What was asked for: the server may have granted less.
    asked: Duration,
    /// Its runtime is gone, or its session.
    over: Arc<AtomicBool>,
    /// Closes when this is not used any more, so that nothing goes on with it.
    replaced: watch::Receiver<()>,
    _replaces: watch::Sender<()>,
    /// Counts the answers.
    answers: AtomicU32,
    /// Calls given up since the last answer.
    given_up: AtomicU32,
}

/// Work under way over a connection. Dropped before its end, it was given up.
pub(super) struct UnderWay<'a> {
    link: &'a Link,
    live: Arc<Live>,
    since: Instant,
    /// The answers to other calls before it was sent.
    before: u32,
    answered: bool,
}

/// Tells by its end that the runtime has gone.
struct Over(Arc<AtomicBool>);

// === impl Link ===

impl Link {
    pub(super) fn new(settings: Settings, node: Node, events: Events) -> Arc<Self> {
        Arc::new(Self {
            settings,
            node,
            events,
            state: Mutex::new(LinkState {
                slot: Slot::Empty { failed: None },
                session: None,
                epoch: 0,
                rooms: HashMap::new(),
                many: FEW,
            }),
        })
    }

    pub(super) fn servers(&self) -> &str {
        &self.settings.servers
    }

    #[cfg(test)]
    pub(super) fn session(&self) -> Option<SessionInfo> {
        self.state().session.clone()
    }

    pub(super) fn error(&self, error: &zk::Error, act: &str) -> Error {
        words::error(error, self.servers(), act)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, LinkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection, for work that needs a session as long as this lease. The caller bounds the time by dropping the
    /// future.
    pub(super) async fn live(
        self: &Arc<Self>,
        lease: Option<Duration>,
    ) -> Result<UnderWay<'_>, Error> {
        for _ in 0..ROUNDS {
            let live = match self.ready_or_attempt(lease)? {
                Ok(live) => live,
                Err(attempt) => match attempt.clone().await {
                    Some(Ok(live)) => live,
                    Some(Err(error)) => return Err(error),
                    None => {
                        self.forget(&attempt);
                        continue;
                    }
                },
            };
            let under_way = UnderWay {
                link: self,
                since: now(),
                before: live.answers.load(Ordering::Relaxed),
                live,
                answered: false,
            };
            match under_way.connected().await {
                SessionState::SyncConnected | SessionState::ConnectedReadOnly => {
                    return self.fits(under_way, lease);
                }
                _ => {
                    let live = under_way.done();
                    self.ended(live.epoch);
                }
            }
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            format!(
                "ZooKeeper at {} ends every session as soon as it is made",
                self.servers()
            ),
        ))
    }

    /// The session must not end before the lease does.
    fn fits<'a>(
        &self,
        under_way: UnderWay<'a>,
        lease: Option<Duration>,
    ) -> Result<UnderWay<'a>, Error> {
        let granted = under_way.live.client.session_timeout();
        match lease {
            Some(lease) if granted < lease => {
                under_way.done();
                Err(words::short_session(self.servers(), granted, lease))
            }
            _ => Ok(under_way),
        }
    }

    #[allow(clippy::type_complexity)] // named nowhere else
    fn ready_or_attempt(
        self: &Arc<Self>,
        lease: Option<Duration>,
    ) -> Result<Result<Arc<Live>, Attempt>, Error> {
        let mut lost = None;
        let mut state = self.state();
        let found = match &state.slot {
            Slot::Ready(live) if live.is_over() => None,
            Slot::Ready(live) if lease.is_some_and(|lease| live.asked < lease) => {
                // It was made for a shorter lease.
                lost = Some(live.epoch);
                None
            }
            Slot::Ready(live) => Some(Ok(live.clone())),
            Slot::Connecting { attempt, since } if now() < *since + STUCK => {
                Some(Err(attempt.clone()))
            }
            Slot::Empty {
                failed: Some((error, until)),
            } if now() < *until => return Err(error.clone()),
            Slot::Connecting { .. } | Slot::Empty { .. } => None,
        };
        if let Some(found) = found {
            return Ok(found);
        }
        if let Some(epoch) = lost {
            drop(state);
            self.ended(epoch);
            state = self.state();
        }
        Ok(Err(self.connect(&mut state, lease.unwrap_or(USUAL_LEASE))?))
    }

    /// Starts an attempt of its own task: it survives the calls that wait for it.
    fn connect(self: &Arc<Self>, state: &mut LinkState, lease: Duration) -> Result<Attempt, Error> {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return Err(Error::new(
                ErrorKind::NoRuntime,
                "ZooKeeper needs a tokio runtime",
            ));
        };
        let (done, attempt) = oneshot::channel();
        let attempt = attempt.map(Result::ok).boxed().shared();
        state.slot = Slot::Connecting {
            attempt: attempt.clone(),
            since: now(),
        };
        state.epoch += 1;
        let (epoch, session) = (state.epoch, state.session.clone());
        let (link, settings) = (Arc::downgrade(self), self.settings.clone());
        // A quarter more: what one server heard of us reaches the leader a little later.
        let asked = lease + lease / 4;
        runtime.spawn(async move {
            let made = open(&link, &settings, asked, session, epoch).await;
            let made = made.map(|client| Live::new(client, epoch, asked));
            if let Some(link) = link.upgrade() {
                // The slot first: whoever learns of the end finds it there.
                let resumed = link.settle(epoch, &made);
                let _ = done.send(made);
                if resumed {
                    link.events.send(Event::Resync);
                }
            }
        });
        Ok(attempt)
    }

    /// An attempt has ended. `true` if it was the latest and there is a connection.
    fn settle(self: &Arc<Self>, epoch: u64, made: &Result<Arc<Live>, Error>) -> bool {
        let mut state = self.state();
        if state.epoch != epoch {
            return false;
        }
        match made {
            Ok(live) => {
                state.session = Some(live.client.session().clone());
                state.slot = Slot::Ready(live.clone());
                drop(state);
                tokio::spawn(tend(Arc::downgrade(self), Tended::new(live)));
                true
            }
            Err(error) => {
                state.slot = Slot::Empty {
                    failed: Some((error.clone(), now() + PAUSE)),
                };
                false
            }
        }
    }

    fn forget(&self, attempt: &Attempt) {
        let mut state = self.state();
        if matches!(&state.slot, Slot::Connecting { attempt: this, .. } if this.ptr_eq(attempt)) {
            state.slot = Slot::Empty { failed: None };
        }
    }

    /// The session that this connection served has ended: every ticket is lost.
    pub(super) fn ended(&self, epoch: u64) {
        let mut state = self.state();
        if state.epoch != epoch || state.session.is_none() {
            return;
        }
        state.session = None;
        state.epoch += 1;
        state.slot = Slot::Empty { failed: None };
        for room in state.rooms.values_mut() {
            room.tickets.clear();
            room.watched = false;
            room.kick.notify_one();
        }
        drop(state);
        tracing::warn!(servers = self.servers(), "ZooKeeper has ended our session");
        self.events.send(Event::Lost);
    }

    /// The next call takes the session up by a new connection.
    fn replace(&self, live: &Live) {
        let mut state = self.state();
        if state.epoch == live.epoch && matches!(state.slot, Slot::Ready(_)) {
            state.epoch += 1;
            state.slot = Slot::Empty { failed: None };
            for room in state.rooms.values_mut() {
                room.watched = false;
                room.kick.notify_one();
            }
        }
    }
}

/// Takes the session up again, or makes a new one.
async fn open(
    link: &Weak<Link>,
    settings: &Settings,
    asked: Duration,
    session: Option<SessionInfo>,
    epoch: u64,
) -> Result<Client, Error> {
    let connector = || {
        let connector = Client::connector()
            .with_session_timeout(asked)
            .with_fail_eagerly()
            // Else a connection that was replaced would end the session of the one that replaced it.
            .with_detached();
        let connector = match settings.servers.contains(',') {
            true => connector.with_connection_timeout(SILENT),
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
                    if let Some(link) = link.upgrade() {
                        link.lose_session(epoch);
                    }
                }
                other => return other,
            }
        }
        connector().connect(&settings.servers).await
    };
    match tokio::time::timeout(CONNECTING, work).await {
        Ok(made) => made.map_err(|error| words::error(&error, &settings.servers, "connect")),
        Err(_) => Err(words::silent(&settings.servers)),
    }
}

impl Link {
    /// The attempt to take the session up has found that it has ended. The attempt goes on.
    fn lose_session(&self, epoch: u64) {
        let mut state = self.state();
        if state.epoch != epoch || state.session.take().is_none() {
            return;
        }
        for room in state.rooms.values_mut() {
            room.tickets.clear();
        }
        drop(state);
        tracing::warn!(servers = self.servers(), "ZooKeeper has ended our session");
        self.events.send(Event::Lost);
    }
}

// === impl LinkState ===

impl LinkState {
    /// The room of a name, if this connection still counts.
    pub(super) fn room(&mut self, epoch: u64, queue: &Queue) -> Option<&mut Room> {
        match self.epoch == epoch {
            true => self.rooms.get_mut(queue),
            false => None,
        }
    }

    /// Forgets names of which nothing was ever sent, for there was no connection. Others are forgotten once they are clean.
    pub(super) fn tidy(&mut self, now: Instant) {
        if self.rooms.len() >= self.many {
            self.rooms.retain(|_, room| room.used || !room.is_idle(now));
            self.many = FEW.max(self.rooms.len() * 2);
        }
    }

    /// The client of this connection, if it still counts.
    pub(super) fn client(&self, epoch: u64) -> Option<Client> {
        match &self.slot {
            Slot::Ready(live) if live.epoch == epoch => Some(live.client.clone()),
            _ => None,
        }
    }

    pub(super) fn is_current(&self, epoch: u64) -> bool {
        self.epoch == epoch
    }
}

// === impl Live ===

impl Live {
    fn new(client: Client, epoch: u64, asked: Duration) -> Arc<Self> {
        let (replaces, replaced) = watch::channel(());
        Arc::new(Self {
            client,
            epoch,
            asked,
            over: Arc::default(),
            replaced,
            _replaces: replaces,
            answers: AtomicU32::new(0),
            given_up: AtomicU32::new(0),
        })
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    pub(super) fn replaced(&self) -> watch::Receiver<()> {
        self.replaced.clone()
    }
}

// === impl UnderWay ===

impl UnderWay<'_> {
    pub(super) fn client(&self) -> &Client {
        &self.live.client
    }

    pub(super) fn live(&self) -> &Arc<Live> {
        &self.live
    }

    pub(super) fn epoch(&self) -> u64 {
        self.live.epoch
    }

    /// It was answered.
    pub(super) fn done(mut self) -> Arc<Live> {
        self.answered = true;
        self.live.given_up.store(0, Ordering::Relaxed);
        self.live.answers.fetch_add(1, Ordering::Relaxed);
        self.live.clone()
    }

    /// Waits while the crate connects anew: what is sent now would be carried out at an unknown time.
    async fn connected(&self) -> SessionState {
        let mut watcher = self.live.client.state_watcher();
        let mut state = self.live.client.state();
        while state == SessionState::Disconnected {
            state = watcher.changed().await;
        }
        state
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        if now() < self.since + BRIEF {
            return;
        }
        let given_up = self.live.given_up.fetch_add(1, Ordering::Relaxed) + 1;
        let looks_fine = self.live.client.state() != SessionState::Disconnected;
        let is_silent = self.live.answers.load(Ordering::Relaxed) == self.before;
        if looks_fine && is_silent || given_up >= GIVEN_UP_FOR_GOOD {
            self.link.replace(&self.live);
        }
    }
}

impl Drop for Over {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What the task that looks after a connection has of it: not the client, which would keep the session alive.
struct Tended {
    epoch: u64,
    watcher: zk::StateWatcher,
    over: Over,
    replaced: watch::Receiver<()>,
    tick: Duration,
}

impl Tended {
    fn new(live: &Arc<Live>) -> Self {
        Self {
            epoch: live.epoch,
            watcher: live.client.state_watcher(),
            over: Over(live.over.clone()),
            replaced: live.replaced(),
            tick: (live.asked / 25).min(Duration::from_millis(500)),
        }
    }
}

/// Watches the session, and takes out what nobody names any more.
async fn tend(link: Weak<Link>, mut tended: Tended) {
    let _over = &tended.over;
    let mut state = tended.watcher.peek_state();
    loop {
        if state.is_terminated() {
            if let Some(link) = link.upgrade() {
                link.ended(tended.epoch);
            }
            return;
        }
        tokio::select! {
            next = tended.watcher.changed() => {
                if next == SessionState::SyncConnected && state == SessionState::Disconnected
                    && let Some(link) = link.upgrade()
                {
                    link.events.send(Event::Resync);
                }
                state = next;
            }
            () = tokio::time::sleep(tended.tick) => match link.upgrade() {
                Some(link) => link.tidy(tended.epoch).await,
                None => return,
            },
            _ = tended.replaced.changed() => return,
        }
    }
}
