//! The session of one node: executes calls at all servers and evaluates their votes.

use super::quorum_call::{QuorumCall, needs_runtime};
use super::server::{Failure, Holder, Keys, Request, Server};
use super::tally::{Won, agreed};
use super::waiters::Waiters;
use crate::backend::redis::SingleServer;
use crate::backend::{
    Batching, Call, Capabilities, Grant, Inspection, Outcome, Replies, Reply, Session, TicketInfo,
    TicketState, call_time, each,
};
use crate::clock::now;
use crate::error::{Error, ErrorKind};
use crate::name::{Node, Queue};
use futures_util::future::{BoxFuture, join_all};
use std::future::Future;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long an inspection or an eviction may take.
const ADMIN_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) struct RedlockSession {
    pub(super) servers: Vec<Arc<Server>>,
    prefix: Arc<str>,
    pub(super) node: Node,
    /// The next attempt, an even number.
    attempts: AtomicU64,
    waiters: Mutex<Waiters>,
    /// How many tasks repeat something to servers that do not answer.
    repeating: Arc<AtomicUsize>,
}

// === impl RedlockSession ===

impl RedlockSession {
    pub(super) fn new(
        servers: impl Iterator<Item = SingleServer>,
        prefix: Arc<str>,
        node: Node,
    ) -> Self {
        Self {
            servers: servers
                .map(|server| Arc::new(Server::new(server)))
                .collect(),
            prefix,
            node,
            attempts: AtomicU64::new(2),
            waiters: Mutex::default(),
            repeating: Arc::default(),
        }
    }

    fn majority(&self) -> usize {
        self.servers.len() / 2 + 1
    }

    fn keys(&self, queue: &Queue) -> Keys {
        Keys::new(&self.prefix, queue, self.node.as_str())
    }

    pub(super) fn request(&self, call: &Call) -> Request {
        let mut acquire = call.acquire.clone();
        acquire.extend(&call.try_acquire);
        Request {
            keys: self.keys(&call.queue),
            node: self.node.as_str().to_owned(),
            number: call.number,
            attempt: self.attempts.fetch_add(2, Ordering::Relaxed),
            lease: with_drift(call.lease),
            release: call.release.clone(),
            renew: call.renew.clone(),
            // No ticket is granted beside a held permit.
            candidate: acquire.first().copied().filter(|_| call.renew.is_empty()),
            acquire,
        }
    }

    async fn exchange_one(&self, call: &Call) -> Result<Reply, Error> {
        let start = now();
        // A majority is enough, so this bounds only calls without one.
        let time = call_time(call.lease);
        let request = self.request(call);
        let mut quorum = QuorumCall::start(&self.servers, request, time, &self.repeating)?;
        quorum
            .collect_votes(start + time / 2, start + time * 3 / 4)
            .await;
        let tally = &quorum.tally;
        if tally.stale {
            return Ok(Reply::Stale);
        }
        if tally.answered() < tally.majority() {
            return Err(self.too_few(tally.answered(), tally.errors()));
        }
        let too_young = tally.too_young(quorum.request());
        let mut renewed = Vec::with_capacity(call.renew.len());
        for ticket in &call.renew {
            // Neither held nor gone: nothing is changed, and the client calls again.
            let state = tally.renewed(quorum.request(), *ticket);
            renewed.push(state.ok_or_else(|| self.unclear(too_young))?);
        }
        let released = call.release.iter();
        let released: Vec<bool> = released.map(|it| tally.held_until_now(*it)).collect();
        let won = tally.won(quorum.request());
        let mut in_use = tally.in_use();
        let won = match won {
            None => None,
            Some(Won::Before(grant)) => Some(grant),
            Some(Won::Now(grant)) => {
                if !quorum.confirm(grant, start + time * 9 / 10).await {
                    return Err(self.too_few(quorum.tally.answered(), quorum.tally.errors()));
                }
                Some(grant)
            }
        };
        if won.is_some() && now() >= start + call.lease {
            return Err(Error::new(
                ErrorKind::Unavailable,
                "the lock was granted too late: its lease is over",
            ));
        }
        in_use |= won.is_some();
        let held = renewed.iter().zip(&call.renew).find_map(|(state, ticket)| {
            let TicketState::Held { token } = *state else {
                return None;
            };
            Some(Grant::new(*ticket, token))
        });
        // Without a majority the candidate is rolled back, because the call is dropped.
        if won.is_some() || quorum.request().candidate.is_none() {
            quorum.complete(won.or(held));
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
        self.update_waiters(call, &mut outcome, now() - start);
        Ok(Reply::Done(outcome))
    }

    /// Updates the queued tickets, which only this process stores.
    fn update_waiters(&self, call: &Call, outcome: &mut Outcome, took: Duration) {
        let (queue, now) = (&call.queue, now());
        let states = call.acquire.iter().zip(&outcome.acquired);
        let (queued, held): (Vec<_>, Vec<_>) =
            states.partition(|(_, state)| **state == TicketState::Queued);
        let mut waiters = self.waiters();
        let held = held.into_iter().map(|(ticket, _)| *ticket);
        waiters.done(queue, held.chain(call.release.iter().copied()), now);
        if !queued.is_empty() {
            let tickets = queued.into_iter().map(|(ticket, _)| *ticket);
            waiters.wait(queue, tickets, call.lease, now);
        }
        if !call.release.is_empty() {
            waiters.retry_soon(queue);
        }
        outcome.poll_after = waiters.pause(queue, call.lease, took, rand::random());
        outcome.queued = u64::try_from(waiters.queued(queue, now).len()).unwrap_or(u64::MAX);
    }

    async fn list_tickets(&self, queue: &Queue) -> Result<Inspection, Error> {
        let keys = self.keys(queue);
        let reads = self.servers.iter().map(|server| server.read(&keys));
        let locks = self.by_majority(reads).await?;
        let holder = agreed(locks.iter().flatten(), self.majority());
        let waiters: Vec<TicketInfo> = (self.waiters().queued(queue, now()).into_iter())
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

    async fn evict_ticket(&self, queue: &Queue, ticket: &str) -> Result<bool, Error> {
        let keys = self.keys(queue);
        let evictions = self.servers.iter();
        let evictions = evictions.map(|server| server.evict(&keys, ticket));
        let evicted = self.by_majority(evictions).await?;
        Ok(evicted.iter().flatten().count() >= self.majority())
    }

    /// Returns the answers of the servers, if a majority answers.
    async fn by_majority<T>(
        &self,
        work: impl Iterator<Item = impl Future<Output = Result<T, Failure>>>,
    ) -> Result<Vec<T>, Error> {
        needs_runtime()?;
        let work = work.map(|it| tokio::time::timeout(ADMIN_TIMEOUT, it));
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

    fn too_few<'a>(&self, answered: usize, errors: impl Iterator<Item = &'a Error>) -> Error {
        // A server that refuses access counts as absent. As long as the others are enough, waiting may help.
        let (temporary, lasting): (Vec<&Error>, Vec<&Error>) =
            errors.partition(|error| error.kind() == ErrorKind::Unavailable);
        let waiting_helps = self.servers.len() - lasting.len() >= self.majority();
        let (kind, error) = match lasting.first() {
            Some(error) if !waiting_helps => (error.kind(), Some(error)),
            other => (ErrorKind::Unavailable, temporary.first().or(other)),
        };
        let why = error.map(|error| format!(" ({error})")).unwrap_or_default();
        Error::new(
            kind,
            format!(
                "{answered} of {} servers of Redlock answered in time, and {} are needed{why}",
                self.servers.len(),
                self.majority()
            ),
        )
    }

    fn unclear(&self, too_young: Option<(usize, Duration)>) -> Error {
        let message = match too_young {
            Some((voters, wait)) => format!(
                "{voters} of {} servers of Redlock have a vote: the others are new or restarted empty, and have none for \
                 another {wait:?}",
                self.servers.len()
            ),
            None => {
                "no majority of the servers of Redlock agrees on the holder of the lock".to_owned()
            }
        };
        Error::new(ErrorKind::Unavailable, message)
    }

    fn waiters(&self) -> MutexGuard<'_, Waiters> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session for RedlockSession {
    fn exchange(&self, batch: Vec<Call>) -> Replies<'_> {
        each(batch, |call| async move { self.exchange_one(&call).await })
    }

    fn batching(&self) -> Batching {
        Batching::SINGLE
    }

    fn inspect(&self, queue: Queue) -> BoxFuture<'_, Result<Inspection, Error>> {
        Box::pin(async move { self.list_tickets(&queue).await })
    }

    fn evict(&self, queue: Queue, ticket: String) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(async move { self.evict_ticket(&queue, &ticket).await })
    }

    fn check(&self, _lease: Duration) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(self.check_servers())
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
        ", because 3 servers that each grant 2 permits grant 3 by majority, and so do 5"
    }
}

fn info(holder: Holder) -> TicketInfo {
    TicketInfo {
        ticket: format!("{}-{}", holder.node, holder.ticket),
        lease_left: without_drift(holder.left),
        lingering: false,
        node: holder.node,
    }
}

/// How long servers keep a lock, so that it lasts for a lease by this process's clock, whatever their clocks' drift.
fn with_drift(lease: Duration) -> Duration {
    let millis = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX / 2);
    Duration::from_millis(millis + millis / 100 + 2)
}

fn without_drift(left: Duration) -> Duration {
    left.saturating_sub(Duration::from_millis(2)) * 100 / 101
}
