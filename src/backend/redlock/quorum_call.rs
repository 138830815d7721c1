//! One call to all servers at once. Each server has its own task, which outlives the call if the server is slow: what the
//! server executes late is rolled back or completed, and then the task ends.

use super::server::{Ballot, Failure, Holder, Request, Server};
use super::tally::Tally;
use crate::backend::Grant;
use crate::clock::{now, sleep_until};
use crate::error::{Error, ErrorKind};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout};

/// How often a rollback or a release is repeated to a server that did not answer, and the first pause before it.
const REPEATS: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// How many tasks may repeat something at the same time.
const MAX_REPEATING: usize = 1_024;

/// A call in flight. If it is dropped before it was [completed](Self::complete), it is given up, and every server rolls it back.
#[derive(Debug)]
pub(super) struct QuorumCall {
    request: Arc<Request>,
    verdict: watch::Sender<Verdict>,
    results: mpsc::UnboundedReceiver<(usize, ServerResult)>,
    pub(super) tally: Tally,
    confirmed: Vec<Option<bool>>,
}

/// The state of the call, as its tasks see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Open,
    /// A majority has granted this ticket: write its token.
    Confirm(Grant),
    /// The call is complete; with a permit that every server should store.
    Complete(Option<Grant>),
}

#[derive(Debug)]
enum ServerResult {
    Ballot(Result<Ballot, Error>),
    Confirmed(bool),
}

/// The call to one server.
struct ServerCall {
    server: Arc<Server>,
    request: Arc<Request>,
    at: usize,
    /// How long one script may take.
    timeout: Duration,
    started: Instant,
    verdict: watch::Receiver<Verdict>,
    results: mpsc::UnboundedSender<(usize, ServerResult)>,
    repeating: Arc<AtomicUsize>,
}

/// Counts one repeating task, until dropped.
struct Repeating(Arc<AtomicUsize>);

pub(super) fn needs_runtime() -> Result<tokio::runtime::Handle, Error> {
    tokio::runtime::Handle::try_current()
        .map_err(|_| Error::new(ErrorKind::NoRuntime, "Redlock needs a tokio runtime"))
}

// === impl QuorumCall ===

impl QuorumCall {
    pub(super) fn start(
        servers: &[Arc<Server>],
        request: Request,
        timeout: Duration,
        repeating: &Arc<AtomicUsize>,
    ) -> Result<Self, Error> {
        let runtime = needs_runtime()?;
        let (request, started) = (Arc::new(request), now());
        let (verdict, watching) = watch::channel(Verdict::Open);
        let (sender, results) = mpsc::unbounded_channel();
        for (at, server) in servers.iter().enumerate() {
            let call = ServerCall {
                server: Arc::clone(server),
                request: Arc::clone(&request),
                at,
                timeout,
                started,
                verdict: watching.clone(),
                results: sender.clone(),
                repeating: Arc::clone(repeating),
            };
            runtime.spawn(call.run());
        }
        Ok(Self {
            request,
            verdict,
            results,
            tally: Tally::new(servers.len()),
            confirmed: vec![None; servers.len()],
        })
    }

    pub(super) fn request(&self) -> &Request {
        &self.request
    }

    /// Receives votes until they decide: from a majority until `last`, from the others until `soon`.
    pub(super) async fn collect_votes(&mut self, soon: Instant, last: Instant) {
        while !self.tally.is_decided(&self.request) {
            let is_majority = self.tally.answered() >= self.tally.majority();
            if !self.receive(if is_majority { soon } else { last }).await {
                break;
            }
        }
    }

    /// Writes the token at every server. `true` if a majority of those that have a vote stores it in time.
    pub(super) async fn confirm(&mut self, grant: Grant, until: Instant) -> bool {
        self.verdict.send_replace(Verdict::Confirm(grant));
        loop {
            let stored = |at: &usize| self.confirmed[*at] == Some(true);
            let open = |at: &usize| self.confirmed[*at].is_none();
            let voters: Vec<usize> = (0..self.confirmed.len())
                .filter(|at| open(at) || self.tally.has_vote(&self.request, *at))
                .collect();
            let yes = voters.iter().copied().filter(stored).count();
            let open = voters.iter().copied().filter(open).count();
            let majority = self.tally.majority();
            if yes >= majority {
                return true;
            }
            if yes + open < majority || !self.receive(until).await {
                return false;
            }
        }
    }

    /// Completes the call. The permit is written at late servers, too.
    pub(super) fn complete(&self, grant: Option<Grant>) {
        self.verdict.send_replace(Verdict::Complete(grant));
    }

    /// Receives one result. `false` if there are no more, or not in time.
    async fn receive(&mut self, until: Instant) -> bool {
        let result = tokio::select! {
            biased;
            result = self.results.recv() => result,
            () = sleep_until(until) => None,
        };
        match result {
            Some((at, ServerResult::Ballot(ballot))) => self.tally.add(at, ballot),
            Some((at, ServerResult::Confirmed(is_confirmed))) => {
                if let Some(confirmed) = self.confirmed.get_mut(at) {
                    *confirmed = Some(is_confirmed);
                }
            }
            None => return false,
        }
        true
    }
}

// === impl ServerCall ===

impl ServerCall {
    async fn run(mut self) {
        let vote = in_time(self.timeout, self.server.vote(&self.request)).await;
        self.server.note_result(vote.as_ref().err());
        // Whether the lock may be held by this attempt; whether the release may not have been executed.
        let (taken, late, holder) = match &vote {
            Ok(Ballot::Vote(vote)) => {
                let candidate = self.request.candidate;
                let taken = candidate.is_some_and(|ticket| vote.is_held_by(&self.request, ticket));
                (taken, false, Some(vote.holder.clone()))
            }
            Ok(Ballot::Stale) => (false, false, None),
            Err(Failure::NotSent(_)) => (false, true, None),
            Err(Failure::Unknown(_)) => (self.request.candidate.is_some(), true, None),
        };
        let late = late && !self.request.release.is_empty();
        let vote = vote.map_err(Failure::into_error);
        let _ = self.results.send((self.at, ServerResult::Ballot(vote)));
        let is_complete = self.follow(holder).await;
        if late || (taken && !is_complete) {
            self.release(!is_complete).await;
        }
    }

    /// Executes the verdict. `holder` is the holder of the lock here, if known. `false` if the call was given up.
    async fn follow(&mut self, holder: Option<Option<Holder>>) -> bool {
        let mut confirmed = false;
        if holder.is_none() {
            let _ = self.results.send((self.at, ServerResult::Confirmed(false)));
        }
        loop {
            let verdict = *self.verdict.borrow_and_update();
            match verdict {
                Verdict::Confirm(grant) if !confirmed && holder.is_some() => {
                    confirmed = true;
                    let stored = self.confirm(grant, false).await;
                    let _ = self
                        .results
                        .send((self.at, ServerResult::Confirmed(stored)));
                    continue; // the verdict may have changed meanwhile
                }
                Verdict::Complete(grant) => {
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
            // Dropped: the last verdict counts.
            if self.verdict.changed().await.is_err()
                && !matches!(*self.verdict.borrow(), Verdict::Complete(_))
            {
                return false;
            }
        }
    }

    /// The lock is free here, or held by this ticket without its token.
    fn lacks(&self, holder: &Option<Option<Holder>>, grant: Grant) -> bool {
        match holder {
            None => false,
            Some(None) => true,
            Some(Some(holder)) => {
                holder.node == self.request.node
                    && holder.ticket == grant.ticket
                    && holder.token != grant.token
            }
        }
    }

    async fn confirm(&self, grant: Grant, create: bool) -> bool {
        let confirm = self.server.confirm(&self.request, grant, create);
        matches!(in_time(self.timeout, confirm).await, Ok(true))
    }

    /// Repeats a rollback until it is answered, or until the lock has expired at the server.
    async fn release(&self, given_up: bool) {
        let mut repeating = None;
        for repeat in 0..REPEATS {
            let release = self.server.release(&self.request, given_up);
            if in_time(self.timeout, release).await.is_ok() {
                return;
            }
            if repeating.is_none() {
                repeating = Repeating::new(&self.repeating);
            }
            if repeating.is_none() || now() >= self.started + self.request.lease {
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
        let error = Error::new(ErrorKind::Unavailable, "the server does not answer in time");
        Err(Failure::Unknown(error))
    })
}

// === impl Repeating ===

impl Repeating {
    fn new(count: &Arc<AtomicUsize>) -> Option<Self> {
        let guard = Self(Arc::clone(count));
        (count.fetch_add(1, Ordering::Relaxed) < MAX_REPEATING).then_some(guard)
    }
}

impl Drop for Repeating {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
