//! The Redlock backend: a mutex over several Redis servers that know nothing of each other.

mod count;
mod round;
mod server;
#[cfg(test)]
mod tests;
mod waits;

use crate::backend::redis::{Line, PREFIX, Redis, checked_prefix};
use crate::backend::{
    Backend, Batching, Call, Capabilities, Events, Inspection, Open, Outcome, Replies, Reply,
    Session, TicketInfo, TicketState, call_time, each,
};
use crate::clock::now;
use crate::error::{Error, ErrorKind};
use crate::name::{Node, Queue};
use count::{Won, agreed};
use futures_util::future::{BoxFuture, join_all};
use redis::ConnectionAddr;
use round::Round;
use server::{Ask, Failure, Holder, Keys, Server};
use std::collections::HashSet;
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use waits::Waits;

/// An inspection and an eviction take no longer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Neither does a check.
const CHECKING: Duration = Duration::from_secs(3);
const FEWEST: usize = 3;

/// Locks in several Redis servers (6.2 or later, or Valkey) that know nothing of each other: three, five, or another odd
/// number. Whoever has a majority of them holds the lock.
///
/// For a [`Mutex`](crate::Mutex) and a semaphore with a limit of 1. Nothing connects before the first lock is asked for;
/// [`Coordinator::check`](crate::Coordinator::check) connects now, to all of them, and names those that are wrong.
///
/// ```
/// use tower_permit::{Coordinator, Redlock};
///
/// # fn main() -> Result<(), tower_permit::Error> {
/// let redlock = Redlock::new(["redis://one:6379", "redis://two:6379", "redis://three:6379"])?;
/// let permits = Coordinator::new(redlock.prefix("shop")?);
/// let report = permits.mutex("report")?;
/// assert!(permits.semaphore("export", 4).is_err(), "more than one cannot be kept");
/// # Ok(())
/// # }
/// ```
///
/// When to choose it, what it promises and what it cannot is a page of the [guide](crate::guide::redlock). Two things to know:
/// none of those who wait is next, and the very first lock waits for one lease.
///
/// # Keys
///
/// On each server, for a name that is in use: `prefix:redlock:mutex:{name}` with the lock (`limit` for a semaphore), `…:token`, and `…:<node>` for
/// each process that spoke of it; all go by themselves one lease after they were last used (a token stays for as long as
/// it is ahead of the server's clock). `prefix:redlock:since` is the marker, and stays. Servers should not evict keys
/// (`maxmemory-policy noeviction`).
///
/// These are the rights that it needs, for the prefix `shop`:
///
/// ```text
/// ACL SETUSER permits on >password resetkeys ~shop:redlock:* -@all +eval +evalsha +time +get +set +del +pttl
/// ```
///
/// [`Redis`]: crate::Redis
#[derive(Clone)]
pub struct Redlock {
    servers: Vec<Redis>,
    prefix: Arc<str>,
}

/// The session of one node.
struct RedlockSession {
    servers: Vec<Arc<Server>>,
    prefix: Arc<str>,
    node: Node,
    /// The next attempt, an even number.
    attempts: AtomicU64,
    waits: Mutex<Waits>,
    /// How many tasks repeat something to servers that do not answer.
    repeating: Arc<AtomicUsize>,
}

// === impl Redlock ===

impl Redlock {
    /// The servers at these URLs, each as in [`Redis::new`](crate::Redis::new): an odd number of them, three at least, all different.
    ///
    /// Only looks at the URLs: connections are made at first use.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for a wrong URL, an even number, fewer than three, and the same server twice. (Two names
    /// of one server are found by [`Coordinator::check`](crate::Coordinator::check).) The message never repeats a URL,
    /// for it may hold a password.
    pub fn new<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> Result<Self, Error> {
        let servers = urls.into_iter().enumerate().map(|(at, url)| {
            let wrong = |error| Error::config(format!("server {} of Redlock: {error}", at + 1));
            Redis::new(url).map_err(wrong)
        });
        Self::from_servers(servers.collect::<Result<Vec<Redis>, Error>>()?)
    }

    /// These servers, with the credentials and the TLS that were set for each. Their prefixes do not count.
    ///
    /// ```
    /// use tower_permit::{Redis, Redlock};
    ///
    /// # fn main() -> Result<(), tower_permit::Error> {
    /// let server = |host| Ok(Redis::new(format!("redis://{host}"))?.credentials("permits", "secret"));
    /// let servers = ["one", "two", "three"].map(server);
    /// let redlock = Redlock::from_servers(servers.into_iter().collect::<Result<Vec<_>, tower_permit::Error>>()?)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), and for servers found by Sentinel and for clusters: those have replicas, which a majority
    /// must not count.
    pub fn from_servers(servers: impl IntoIterator<Item = Redis>) -> Result<Self, Error> {
        let servers: Vec<Redis> = servers.into_iter().collect();
        let mut known = HashSet::new();
        for (at, redis) in servers.iter().enumerate() {
            let Some(address) = redis.address() else {
                return Err(Error::config(format!(
                    "server {} of Redlock is no server of its own: behind sentinels and in a cluster a failover forgets",
                    at + 1
                )));
            };
            if !known.insert(identity(address)) {
                return Err(Error::config(format!(
                    "server {} of Redlock, {address}, is there twice: a server has one vote (its databases are no servers)",
                    at + 1
                )));
            }
        }
        match servers.len() {
            0 => Err(Error::config(
                "Redlock needs servers: an odd number of them, 3 or more",
            )),
            few if few < FEWEST => Err(Error::config(format!(
                "Redlock over {few} servers bears the loss of none: it needs an odd number of them, 3 or more"
            ))),
            even if even % 2 == 0 => Err(Error::config(format!(
                "Redlock over {even} servers bears the loss of no more than over {}: it needs an odd number of them",
                even - 1
            ))),
            _ => Ok(Self {
                servers,
                prefix: PREFIX.into(),
            }),
        }
    }

    /// What every key starts with, before a colon. `permit` if not set.
    ///
    /// # Errors
    ///
    /// As [`Redis::prefix`](crate::Redis::prefix).
    pub fn prefix(mut self, prefix: impl Into<String>) -> Result<Self, Error> {
        self.prefix = checked_prefix(prefix.into())?;
        Ok(self)
    }
}

/// The same for two URLs of one server, as far as URLs tell.
fn identity(address: &ConnectionAddr) -> String {
    match address {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            format!("{}:{port}", host.trim_end_matches('.').to_lowercase())
        }
        other => other.to_string(),
    }
}

impl fmt::Debug for Redlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let servers = self.servers.iter().filter_map(Redis::address);
        let servers: Vec<String> = servers.map(ToString::to_string).collect();
        f.debug_struct("Redlock")
            .field("servers", &servers)
            .field("prefix", &self.prefix)
            .finish()
    }
}

impl Backend for Redlock {}

impl Open for Redlock {
    /// Nothing is ever pushed.
    fn open(self, node: Node, _: Events) -> Arc<dyn Session> {
        let servers = self.servers.into_iter().filter_map(Line::new);
        Arc::new(RedlockSession {
            servers: servers.map(|line| Arc::new(Server::new(line))).collect(),
            prefix: self.prefix,
            node,
            attempts: AtomicU64::new(2),
            waits: Mutex::default(),
            repeating: Arc::default(),
        })
    }
}

// === impl RedlockSession ===

impl RedlockSession {
    fn majority(&self) -> usize {
        self.servers.len() / 2 + 1
    }

    fn keys(&self, queue: &Queue) -> Keys {
        Keys::new(&self.prefix, queue, self.node.as_str())
    }

    fn ask(&self, call: &Call) -> Ask {
        let mut want = call.acquire.clone();
        want.extend(&call.try_acquire);
        Ask {
            keys: self.keys(&call.queue),
            node: self.node.as_str().to_owned(),
            number: call.number,
            attempt: self.attempts.fetch_add(2, Ordering::Relaxed),
            lease: with_drift(call.lease),
            release: call.release.clone(),
            renew: call.renew.clone(),
            // Nobody is let in beside a permit that is held.
            candidate: want.first().copied().filter(|_| call.renew.is_empty()),
            want,
        }
    }

    async fn say(&self, call: &Call) -> Result<Reply, Error> {
        let start = now();
        // A majority is enough, so this bounds a call only where there is none.
        let time = call_time(call.lease);
        let ask = self.ask(call);
        let mut round = Round::start(&self.servers, ask, time, &self.repeating)?;
        round.votes(start + time / 2, start + time * 3 / 4).await;
        let count = &round.count;
        if count.stale {
            return Ok(Reply::Stale);
        }
        if count.answered() < count.majority() {
            return Err(self.too_few(count.answered(), count.errors()));
        }
        let too_young = count.too_young(round.ask());
        let mut renewed = Vec::with_capacity(call.renew.len());
        for ticket in &call.renew {
            // Neither held nor gone: what is good stays as it is, and the gate asks again.
            let state = count.renewed(round.ask(), *ticket);
            renewed.push(state.ok_or_else(|| self.unclear(too_young))?);
        }
        let released = call.release.iter();
        let released: Vec<bool> = released.map(|it| count.held_until_now(*it)).collect();
        let won = count.won(round.ask());
        let mut in_use = count.in_use();
        let won = match won {
            None => None,
            Some(Won::Before(grant)) => Some(grant),
            Some(Won::Now(grant)) => {
                if !round.confirm(grant, start + time * 9 / 10).await {
                    return Err(self.too_few(round.count.answered(), round.count.errors()));
                }
                Some(grant)
            }
        };
        if won.is_some() && now() >= start + call.lease {
            return Err(Error::new(
                ErrorKind::Unavailable,
                "the lock was there too late: its lease is over",
            ));
        }
        in_use |= won.is_some();
        let held = renewed.iter().zip(&call.renew).find_map(|(state, ticket)| {
            let TicketState::Held { token } = *state else {
                return None;
            };
            Some(crate::backend::Grant::new(*ticket, token))
        });
        // What was taken for a ticket that has not won is rolled back: the round is dropped without a word.
        if won.is_some() || round.ask().candidate.is_none() {
            round.renew(won.or(held));
        }
        let state = |ticket: &u64, otherwise| match won {
            Some(grant) if grant.ticket == *ticket => TicketState::Held { token: grant.token },
            _ => otherwise,
        };
        let acquired = call.acquire.iter().map(|it| state(it, TicketState::Queued));
        let tried = call
            .try_acquire
            .iter()
            .map(|it| state(it, TicketState::Refused));
        let mut outcome = Outcome {
            released,
            renewed,
            acquired: acquired.collect(),
            tried: tried.collect(),
            granted: Vec::new(),
            in_use: u64::from(in_use),
            queued: 0,
            poll_after: None,
        };
        self.remember(call, &mut outcome, now() - start);
        Ok(Reply::Done(outcome))
    }

    /// Who waits is known here only.
    fn remember(&self, call: &Call, outcome: &mut Outcome, took: Duration) {
        let (queue, now) = (&call.queue, now());
        let states = call.acquire.iter().zip(&outcome.acquired);
        let (waiting, held): (Vec<_>, Vec<_>) =
            states.partition(|(_, state)| **state == TicketState::Queued);
        let mut waits = self.waits();
        let held = held.into_iter().map(|(ticket, _)| *ticket);
        waits.done(queue, held.chain(call.release.iter().copied()), now);
        if !waiting.is_empty() {
            let tickets = waiting.into_iter().map(|(ticket, _)| *ticket);
            waits.wait(queue, tickets, call.lease, now);
        }
        if !call.release.is_empty() {
            waits.hurry(queue);
        }
        outcome.poll_after = waits.pause(queue, call.lease, took, rand::random());
        outcome.queued = u64::try_from(waits.waiting(queue, now).len()).unwrap_or(u64::MAX);
    }

    async fn look(&self, queue: &Queue) -> Result<Inspection, Error> {
        let keys = self.keys(queue);
        let looks = self.servers.iter().map(|server| server.look(&keys));
        let seen = self.by_majority(looks).await?;
        let holder = agreed(seen.iter().flatten(), self.majority());
        let waiters: Vec<TicketInfo> = (self.waits().waiting(queue, now()).into_iter())
            .map(|(ticket, lease_left)| TicketInfo {
                ticket: self.node.ticket(ticket),
                node: self.node.as_str().to_owned(),
                lease_left,
                lingering: false,
            })
            .collect();
        Ok(Inspection {
            in_use: u64::from(holder.is_some()),
            queued: u64::try_from(waiters.len()).unwrap_or(u64::MAX),
            holders: holder.into_iter().map(info).collect(),
            queue: waiters.into_iter().take(1_000).collect(),
        })
    }

    async fn take_out(&self, queue: &Queue, ticket: &str) -> Result<bool, Error> {
        let keys = self.keys(queue);
        let evictions = self.servers.iter();
        let evictions = evictions.map(|server| server.evict(&keys, ticket));
        let taken = self.by_majority(evictions).await?;
        Ok(taken.iter().flatten().count() >= self.majority())
    }

    /// What the servers answer, if a majority does.
    async fn by_majority<T>(
        &self,
        work: impl Iterator<Item = impl Future<Output = Result<T, Failure>>>,
    ) -> Result<Vec<T>, Error> {
        needs_runtime()?;
        let work = work.map(|it| tokio::time::timeout(PATIENCE, it));
        let (mut answers, mut failed) = (Vec::new(), Vec::new());
        for answer in join_all(work).await {
            match answer {
                Ok(Ok(answer)) => answers.push(answer),
                Ok(Err(error)) => failed.push(error.into_error()),
                Err(_) => {}
            }
        }
        match answers.len() {
            few if few < self.majority() => Err(self.too_few(few, failed.iter())),
            _ => Ok(answers),
        }
    }

    async fn try_everything(&self) -> Result<(), Error> {
        needs_runtime()?;
        // A name for each, for two of them may be one.
        let ask = |at: usize| {
            let name = format!("check:{}:{at}", self.node.as_str());
            let call = Call {
                queue: Queue::mutex(name.as_bytes())?,
                number: 1,
                limit: 1,
                lease: Duration::from_secs(1),
                release: Vec::new(),
                renew: Vec::new(),
                acquire: vec![1],
                try_acquire: Vec::new(),
            };
            Ok(self.ask(&call))
        };
        let asks = (0..self.servers.len()).map(ask);
        let asks = asks.collect::<Result<Vec<Ask>, Error>>()?;
        let checks = self
            .servers
            .iter()
            .zip(&asks)
            .map(|(server, ask)| async move {
                let check = tokio::time::timeout(CHECKING, server.check(ask));
                check.await.unwrap_or_else(|_| {
                    Err(Error::new(
                        ErrorKind::Unavailable,
                        format!("Redis at {} does not answer", server.name()),
                    ))
                })
            });
        let mut wrong = Vec::new();
        let mut young = 0;
        for answer in join_all(checks).await {
            match answer {
                Ok(vote) => young += usize::from(vote.age < vote.longest),
                Err(error) => wrong.push(error),
            }
        }
        if let Some(first) = wrong.first() {
            let words: Vec<String> = wrong.iter().map(Error::to_string).collect();
            let message = format!(
                "{} of {} servers of Redlock are wrong: {}",
                wrong.len(),
                self.servers.len(),
                words.join("; ")
            );
            return Err(Error::new(first.kind(), message));
        }
        if young > 0 {
            tracing::info!(
                "{young} of {} servers of Redlock are new or came back empty: they have no vote for one lease",
                self.servers.len(),
            );
        }
        match asks.first() {
            Some(ask) => self.look_for_twins(ask).await,
            None => Ok(()),
        }
    }

    /// Two names of one server are one server.
    async fn look_for_twins(&self, ask: &Ask) -> Result<(), Error> {
        let mut result = Ok(());
        for (at, server) in self.servers.iter().enumerate() {
            let there = server.mark(ask, at).await?;
            let first = there.parse().ok().filter(|first| *first != at);
            if let Some(first) = first.and_then(|first: usize| self.servers.get(first)) {
                result = Err(Error::config(format!(
                    "{} and {} are one server: it has one vote",
                    first.name(),
                    server.name()
                )));
                break;
            }
        }
        for server in &self.servers {
            server.unmark(ask).await?;
        }
        result
    }

    fn too_few<'a>(&self, answered: usize, errors: impl Iterator<Item = &'a Error>) -> Error {
        // Servers that refuse us are as good as none. As long as the others would do, waiting may mend it.
        let (passing, lasting): (Vec<&Error>, Vec<&Error>) =
            errors.partition(|error| error.kind() == ErrorKind::Unavailable);
        let waiting_helps = self.servers.len() - lasting.len() >= self.majority();
        let (kind, error) = match lasting.first() {
            Some(error) if !waiting_helps => (error.kind(), Some(error)),
            other => (ErrorKind::Unavailable, passing.first().or(other)),
        };
        let why = error.map(|error| format!(" ({error})")).unwrap_or_default();
        Error::new(
            kind,
            format!(
                "{answered} of {} servers of Redlock answer in time, and {} are needed{why}",
                self.servers.len(),
                self.majority()
            ),
        )
    }

    fn unclear(&self, too_young: Option<(usize, Duration)>) -> Error {
        let message = match too_young {
            Some((voters, wait)) => format!(
                "{voters} of {} servers of Redlock have a vote: the others are new or came back empty, and have none for \
                 another {wait:?}",
                self.servers.len()
            ),
            None => "no majority of the servers of Redlock says who holds the lock".to_owned(),
        };
        Error::new(ErrorKind::Unavailable, message)
    }

    fn waits(&self) -> MutexGuard<'_, Waits> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session for RedlockSession {
    fn exchange(&self, batch: Vec<Call>) -> Replies<'_> {
        each(batch, |call| async move { self.say(&call).await })
    }

    fn batching(&self) -> Batching {
        Batching::SINGLE
    }

    fn inspect(&self, queue: Queue) -> BoxFuture<'_, Result<Inspection, Error>> {
        Box::pin(async move { self.look(&queue).await })
    }

    fn evict(&self, queue: Queue, ticket: String) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(async move { self.take_out(&queue, &ticket).await })
    }

    fn check(&self, _lease: Duration) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(self.try_everything())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            fifo: false,
            token: true,
            max_limit: 1,
            min_lease: Duration::from_secs(1),
        }
    }

    fn max_limit_reason(&self) -> &'static str {
        ", for servers that each let in 2 let in 3 by majority when there are 3 of them, and 3 when there are 5"
    }
}

fn needs_runtime() -> Result<tokio::runtime::Handle, Error> {
    tokio::runtime::Handle::try_current()
        .map_err(|_| Error::new(ErrorKind::NoRuntime, "Redlock needs a tokio runtime"))
}

fn info(holder: Holder) -> TicketInfo {
    TicketInfo {
        ticket: format!("{}-{}", holder.node, holder.ticket),
        lease_left: without_drift(holder.left),
        lingering: false,
        node: holder.node,
    }
}

/// How long servers keep a lock: a lease by the slowest clock here is still one by the fastest there.
fn with_drift(lease: Duration) -> Duration {
    let millis = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX / 2);
    Duration::from_millis(millis + millis / 100 + 2)
}

fn without_drift(left: Duration) -> Duration {
    left.saturating_sub(Duration::from_millis(2)) * 100 / 101
}
