//! One call to all servers at once. Each server has a task of its own, which outlives the call where it is slow: what
//! it does late is taken back, or brought up to date, and then the task ends.

use super::count::Count;
use super::needs_runtime;
use super::server::{Ask, Ballot, Failure, Holder, Server};
use crate::backend::Grant;
use crate::clock::{now, sleep_until};
use crate::error::{Error, ErrorKind};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout};

/// How often a roll-back or a leave is said again to a server that did not answer, and after which pause.
const REPEATS: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// No more tasks than these say something again.
const MOST_REPEATING: usize = 1_024;

/// A call on its way. Dropped before it was [kept](Self::keep), it is given up, and every server rolls it back.
#[derive(Debug)]
pub(super) struct Round {
    ask: Arc<Ask>,
    verdict: watch::Sender<Verdict>,
    said: mpsc::UnboundedReceiver<(usize, Said)>,
    pub(super) count: Count,
    confirmed: Vec<Option<bool>>,
}

/// What the call has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Open,
    /// A majority has let this ticket in, and learns its token now.
    Confirm(Grant),
    /// It stands; with a permit that every server should know of.
    Kept(Option<Grant>),
}

#[derive(Debug)]
enum Said {
    Ballot(Result<Ballot, Error>),
    Confirmed(bool),
}

/// One server's part of the call.
struct Part {
    server: Arc<Server>,
    ask: Arc<Ask>,
    at: usize,
    /// How long one message may take.
    patience: Duration,
    started: Instant,
    verdict: watch::Receiver<Verdict>,
    tell: mpsc::UnboundedSender<(usize, Said)>,
    repeating: Arc<AtomicUsize>,
}

/// Counts one task that says something again, until dropped.
struct Repeating(Arc<AtomicUsize>);

// === impl Round ===

impl Round {
    pub(super) fn start(
        servers: &[Arc<Server>],
        ask: Ask,
        patience: Duration,
        repeating: &Arc<AtomicUsize>,
    ) -> Result<Self, Error> {
        let runtime = needs_runtime()?;
        let (ask, started) = (Arc::new(ask), now());
        let (verdict, watching) = watch::channel(Verdict::Open);
        let (tell, said) = mpsc::unbounded_channel();
        for (at, server) in servers.iter().enumerate() {
            let part = Part {
                server: Arc::clone(server),
                ask: Arc::clone(&ask),
                at,
                patience,
                started,
                verdict: watching.clone(),
                tell: tell.clone(),
                repeating: Arc::clone(repeating),
            };
            runtime.spawn(part.run());
        }
        Ok(Self {
            ask,
            verdict,
            said,
            count: Count::new(servers.len()),
            confirmed: vec![None; servers.len()],
        })
    }

    pub(super) fn ask(&self) -> &Ask {
        &self.ask
    }

    /// Waits for the votes until they say enough: for a majority to answer until `last`, for the others until `soon`.
    pub(super) async fn votes(&mut self, soon: Instant, last: Instant) {
        while !self.count.is_decided(&self.ask) {
            let is_majority = self.count.answered() >= self.count.majority();
            if !self.hear(if is_majority { soon } else { last }).await {
                break;
            }
        }
    }

    /// Lets every server know the token. `true` if a majority of those that have a vote does in time.
    pub(super) async fn confirm(&mut self, grant: Grant, until: Instant) -> bool {
        self.verdict.send_replace(Verdict::Confirm(grant));
        loop {
            let known = |at: &usize| self.confirmed[*at] == Some(true);
            let open = |at: &usize| self.confirmed[*at].is_none();
            let voters: Vec<usize> = (0..self.confirmed.len())
                .filter(|at| open(at) || self.count.has_vote(&self.ask, *at))
                .collect();
            let yes = voters.iter().copied().filter(known).count();
            let open = voters.iter().copied().filter(open).count();
            let majority = self.count.majority();
            if yes >= majority {
                return true;
            }
            if yes + open < majority || !self.hear(until).await {
                return false;
            }
        }
    }

    /// It stands. Servers that are late are told of the permit, too.
    pub(super) fn renew(&self, grant: Option<Grant>) {
        self.verdict.send_replace(Verdict::Kept(grant));
    }

    /// `false` if nothing comes any more, or not in time.
    async fn hear(&mut self, until: Instant) -> bool {
        let said = tokio::select! {
            biased;
            said = self.said.recv() => said,
            () = sleep_until(until) => None,
        };
        match said {
            Some((at, Said::Ballot(said))) => self.count.hear(at, said),
            Some((at, Said::Confirmed(is_it))) => {
                if let Some(confirmed) = self.confirmed.get_mut(at) {
                    *confirmed = Some(is_it);
                }
            }
            None => return false,
        }
        true
    }
}

// === impl Part ===

impl Part {
    async fn run(mut self) {
        let vote = in_time(self.patience, self.server.vote(&self.ask)).await;
        self.server.note(vote.as_ref().err());
        // Whether the lock may be ours by this attempt; whether what leaves may not have left.
        let (taken, late, holder) = match &vote {
            Ok(Ballot::Vote(vote)) => {
                let candidate = self.ask.candidate;
                let taken = candidate.is_some_and(|ticket| vote.is_held_by(&self.ask, ticket));
                (taken, false, Some(vote.holder.clone()))
            }
            Ok(Ballot::Stale) => (false, false, None),
            Err(Failure::NotSent(_)) => (false, true, None),
            Err(Failure::Unknown(_)) => (self.ask.candidate.is_some(), true, None),
        };
        let late = late && !self.ask.release.is_empty();
        let vote = vote.map_err(Failure::into_error);
        let _ = self.tell.send((self.at, Said::Ballot(vote)));
        let stands = self.follow(holder).await;
        if late || (taken && !stands) {
            self.release(!stands).await;
        }
    }

    /// Does what the verdict asks for. `holder` is who holds the lock here, if that is known. `false` if the call was
    /// given up.
    async fn follow(&mut self, holder: Option<Option<Holder>>) -> bool {
        let mut confirmed = false;
        if holder.is_none() {
            let _ = self.tell.send((self.at, Said::Confirmed(false)));
        }
        loop {
            let verdict = *self.verdict.borrow_and_update();
            match verdict {
                Verdict::Confirm(grant) if !confirmed && holder.is_some() => {
                    confirmed = true;
                    let known = self.confirm(grant, false).await;
                    let _ = self.tell.send((self.at, Said::Confirmed(known)));
                    continue; // the verdict may have changed meanwhile
                }
                Verdict::Kept(grant) => {
                    if let Some(grant) = grant
                        && !confirmed
                        && self.lacks(&holder, grant)
                    {
                        self.confirm(grant, true).await;
                    }
                    return true;
                }
                Verdict::Open | Verdict::Confirm(_) => {}
            }
            // Dropped: what it came to last counts.
            if self.verdict.changed().await.is_err()
                && !matches!(*self.verdict.borrow(), Verdict::Kept(_))
            {
                return false;
            }
        }
    }

    /// The lock is free here, or ours without its token.
    fn lacks(&self, holder: &Option<Option<Holder>>, grant: Grant) -> bool {
        match holder {
            None => false,
            Some(None) => true,
            Some(Some(holder)) => {
                holder.node == self.ask.node
                    && holder.ticket == grant.ticket
                    && holder.token != grant.token
            }
        }
    }

    async fn confirm(&self, grant: Grant, create: bool) -> bool {
        let confirm = self.server.confirm(&self.ask, grant, create);
        matches!(in_time(self.patience, confirm).await, Ok(true))
    }

    /// Repeats a roll-back until it is answered. A server that does not answer for so long forgets by itself.
    async fn release(&self, given_up: bool) {
        let mut repeating = None;
        for repeat in 0..REPEATS {
            let release = self.server.release(&self.ask, given_up);
            if in_time(self.patience, release).await.is_ok() {
                return;
            }
            if repeating.is_none() {
                repeating = Repeating::new(&self.repeating);
            }
            if repeating.is_none() || now() >= self.started + self.ask.lease {
                return;
            }
            sleep(FIRST_PAUSE * (1 << repeat)).await;
        }
    }
}

async fn in_time<T>(
    time: Duration,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    timeout(time, work).await.unwrap_or_else(|_| {
        let error = Error::new(ErrorKind::Unavailable, "it does not answer in time");
        Err(Failure::Unknown(error))
    })
}

// === impl Repeating ===

impl Repeating {
    fn new(count: &Arc<AtomicUsize>) -> Option<Self> {
        let guard = Self(Arc::clone(count));
        (count.fetch_add(1, Ordering::Relaxed) < MOST_REPEATING).then_some(guard)
    }
}

impl Drop for Repeating {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
