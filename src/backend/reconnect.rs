//! Replacing lost connections: one state machine and one back-off for every backend with servers.
//!
//! A [`Reconnecting`] holds at most one connection or one attempt to make one. It performs no I/O and has no lock: the backend
//! keeps it under its own mutex, runs the attempt in a task and reports the result.
//!
//! # Pace of the attempts
//!
//! The first attempt after the loss of a connection starts at once. After each failure in a row the pause between the *starts* of
//! two attempts doubles, from 25 ms to 1.5 s, less a random part of up to one half. An attempt that itself took longer, since
//! the server did not answer, is therefore followed by the next one at once. A refused login counts as a failure, and so does a
//! connection that was lost before a call was answered over it: only an answered call resets the pause. A connection that ended
//! with its runtime does not count, since the server did not fail.
//!
//! The longest pause is 1.5 s because waiters have to be served within 2 s of the server's return.
//!
//! Nothing connects without a call. During a pause a call fails at once, with the error of the last attempt.

use crate::error::{Error, ErrorKind};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// The pause after the first failure.
const FIRST_PAUSE: Duration = Duration::from_millis(25);
/// The pause after many failures in a row.
const LONGEST_PAUSE: Duration = Duration::from_millis(1_500);
/// An attempt without a result after this time belongs to a runtime that is not driven: another one starts.
const ATTEMPT_STUCK: Duration = Duration::from_secs(3);

/// A connection as [`Reconnecting`] sees it.
pub(crate) trait Connection {
    /// `false` once it is closed, or the runtime that drives it has ended.
    fn is_driven(&self) -> bool;

    /// A call was answered over this connection.
    fn has_answered(&self) -> bool;

    /// The connection is closed only because the runtime that drove it has ended. `false` if that is not known.
    fn ended_with_runtime(&self) -> bool;
}

/// A connection that is made again after its loss.
#[derive(Debug)]
pub(crate) struct Reconnecting<C> {
    /// The system and the address, for error messages: `Redis at 10.0.0.1:6379`.
    server: Arc<str>,
    slot: Slot<C>,
    backoff: Backoff,
}

#[derive(Debug)]
enum Slot<C> {
    Empty,
    Connecting { attempt: Attempt<C>, since: Instant },
    Ready(Arc<C>),
}

/// A running attempt to connect, shared by all calls that need the connection. It resolves to `None` if its task ended
/// without a result, together with its runtime.
pub(crate) type Attempt<C> = Shared<BoxFuture<'static, Option<Result<Arc<C>, Error>>>>;

/// What a call does to get a connection.
#[derive(Debug)]
pub(crate) enum Next<C> {
    /// Use this connection.
    Use(Arc<C>),
    /// Await this attempt.
    Await(Attempt<C>),
    /// Fail: the last attempt failed with this error, and the pause after it is not over.
    Fail(Error),
    /// [Start](Reconnecting::start) an attempt.
    Connect,
}

/// How many attempts failed in a row, and when the next one may start.
#[derive(Debug, Default)]
struct Backoff {
    failures: u32,
    /// When the latest attempt started.
    started: Option<Instant>,
    /// Until then calls fail with the error.
    pause: Option<(Instant, Error)>,
}

// === impl Reconnecting ===

impl<C: Connection> Reconnecting<C> {
    /// `server` is the system and its address, for error messages: `Redis at 10.0.0.1:6379`.
    pub(crate) fn new(server: impl Into<Arc<str>>) -> Self {
        Self {
            server: server.into(),
            slot: Slot::Empty,
            backoff: Backoff::default(),
        }
    }

    /// Returns what a call at `now` has to do. Removes a connection that is not driven any more.
    pub(crate) fn next(&mut self, now: Instant) -> Next<C> {
        match &self.slot {
            Slot::Ready(connection) if connection.is_driven() => {
                return Next::Use(connection.clone());
            }
            Slot::Ready(connection) => {
                let lost = connection.clone();
                self.discard(&lost);
            }
            Slot::Connecting { attempt, since } if now < *since + ATTEMPT_STUCK => {
                return Next::Await(attempt.clone());
            }
            Slot::Connecting { .. } => self.slot = Slot::Empty,
            Slot::Empty => {}
        }
        match self.backoff.error(now) {
            Some(error) => Next::Fail(error.clone()),
            None => Next::Connect,
        }
    }

    /// Returns the connection if there is one that is driven.
    #[cfg(any(test, feature = "redis-cluster", feature = "zookeeper"))]
    pub(crate) fn ready(&self) -> Option<&Arc<C>> {
        match &self.slot {
            Slot::Ready(connection) if connection.is_driven() => Some(connection),
            _ => None,
        }
    }

    /// Returns the connection if there is one, also one that is not driven any more.
    #[cfg(feature = "zookeeper")]
    pub(crate) fn current(&self) -> Option<&Arc<C>> {
        match &self.slot {
            Slot::Ready(connection) => Some(connection),
            _ => None,
        }
    }

    /// Starts an attempt. The task that connects calls [`finish`](Self::finish) and *then* sends the same result: a call that
    /// receives it finds the connection in its place.
    pub(crate) fn start(
        &mut self,
        now: Instant,
    ) -> (oneshot::Sender<Result<Arc<C>, Error>>, Attempt<C>)
    where
        C: Send + Sync + 'static,
    {
        let (result, attempt) = oneshot::channel();
        let attempt: Attempt<C> = attempt.map(Result::ok).boxed().shared();
        self.slot = Slot::Connecting {
            attempt: attempt.clone(),
            since: now,
        };
        self.backoff.started = Some(now);
        (result, attempt)
    }

    /// Stores the result of an attempt. Returns `false`, and changes nothing, if the attempt was replaced or abandoned
    /// meanwhile.
    pub(crate) fn finish(&mut self, attempt: &Attempt<C>, result: &Result<Arc<C>, Error>) -> bool {
        if !self.is_attempt(attempt) {
            return false;
        }
        self.slot = match result {
            Ok(connection) => Slot::Ready(connection.clone()),
            Err(error) => {
                self.backoff.failed(error.clone());
                Slot::Empty
            }
        };
        true
    }

    /// Removes an attempt that ended with its runtime. The server did not fail: the next attempt may start at once.
    pub(crate) fn abandon(&mut self, attempt: &Attempt<C>) {
        if self.is_attempt(attempt) {
            self.slot = Slot::Empty;
        }
    }

    /// Removes a lost connection. Returns `false`, and changes nothing, if it was removed already.
    pub(crate) fn discard(&mut self, lost: &Arc<C>) -> bool {
        let server = self.server.clone();
        self.discard_after(lost, || {
            Error::new(
                ErrorKind::Unavailable,
                format!("the connection to {server} was lost before a call was answered"),
            )
        })
    }

    /// Removes a lost connection like [`discard`](Self::discard), after a call failed with an error that gives the reason. Calls
    /// during the pause fail with that error.
    pub(crate) fn discard_after(&mut self, lost: &Arc<C>, error: impl FnOnce() -> Error) -> bool {
        if !matches!(&self.slot, Slot::Ready(ready) if Arc::ptr_eq(ready, lost)) {
            return false;
        }
        self.slot = Slot::Empty;
        if lost.has_answered() {
            self.backoff.reset();
        } else if !lost.ended_with_runtime() {
            self.backoff.failed(error());
        }
        true
    }

    fn is_attempt(&self, this: &Attempt<C>) -> bool {
        matches!(&self.slot, Slot::Connecting { attempt, .. } if attempt.ptr_eq(this))
    }
}

// === impl Backoff ===

impl Backoff {
    fn failed(&mut self, error: Error) {
        let doubled = FIRST_PAUSE.saturating_mul(1 << self.failures.min(16));
        let pause = doubled
            .min(LONGEST_PAUSE)
            .mul_f64(1.0 - rand::random::<f64>() / 2.0);
        self.failures = self.failures.saturating_add(1);
        self.pause = self.started.map(|started| (started + pause, error));
    }

    fn reset(&mut self) {
        self.failures = 0;
        self.pause = None;
    }

    /// Returns the last error while the pause after it lasts.
    fn error(&self, now: Instant) -> Option<&Error> {
        let (until, error) = self.pause.as_ref()?;
        (now < *until).then_some(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use tokio::time::{advance, sleep};

    #[derive(Debug, Default)]
    struct Peer {
        closed: AtomicBool,
        answered: AtomicBool,
        runtime_ended: AtomicBool,
    }

    impl Connection for Peer {
        fn is_driven(&self) -> bool {
            !self.closed.load(Ordering::Relaxed) && !self.ended_with_runtime()
        }

        fn has_answered(&self) -> bool {
            self.answered.load(Ordering::Relaxed)
        }

        fn ended_with_runtime(&self) -> bool {
            self.runtime_ended.load(Ordering::Relaxed)
        }
    }

    fn reconnecting() -> Reconnecting<Peer> {
        Reconnecting::new("Redis at 10.0.0.1:6379")
    }

    fn refused() -> Error {
        Error::new(ErrorKind::Unavailable, "connection refused")
    }

    fn connects(connection: &mut Reconnecting<Peer>) -> bool {
        matches!(connection.next(Instant::now()), Next::Connect)
    }

    /// Starts an attempt and ends it with this result.
    fn attempt(connection: &mut Reconnecting<Peer>, result: &Result<Arc<Peer>, Error>) {
        assert!(connects(connection));
        let (_, attempt) = connection.start(Instant::now());
        assert!(connection.finish(&attempt, result));
    }

    /// Lets calls arrive every millisecond, and returns when each attempt of this time started.
    async fn attempts_within(
        connection: &mut Reconnecting<Peer>,
        time: Duration,
        result: impl Fn() -> Result<Arc<Peer>, Error>,
    ) -> Vec<Duration> {
        let (start, mut attempts) = (Instant::now(), Vec::new());
        while start.elapsed() < time {
            if connects(connection) {
                attempts.push(start.elapsed());
                attempt(connection, &result());
            }
            sleep(Duration::from_millis(1)).await;
        }
        attempts
    }

    fn gaps(attempts: &[Duration]) -> impl Iterator<Item = Duration> {
        attempts.windows(2).map(|pair| pair[1] - pair[0])
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_ended_with_its_runtime_is_replaced_at_once() {
        let mut connection = reconnecting();
        for _ in 0..3 {
            let peer = Arc::new(Peer::default());
            attempt(&mut connection, &Ok(peer.clone()));
            peer.runtime_ended.store(true, Ordering::Relaxed);
        }
        // The same connection, closed by the server.
        let peer = Arc::new(Peer::default());
        attempt(&mut connection, &Ok(peer.clone()));
        peer.closed.store(true, Ordering::Relaxed);
        assert!(matches!(connection.next(Instant::now()), Next::Fail(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_double_up_to_the_longest_and_stay_below_the_promised_two_seconds() {
        let mut connection = reconnecting();
        let attempts =
            attempts_within(&mut connection, Duration::from_secs(30), || Err(refused())).await;
        assert_eq!(attempts[0], Duration::ZERO);
        let tick = Duration::from_millis(1);
        for (failures, gap) in gaps(&attempts).enumerate() {
            let longest = (FIRST_PAUSE * (1 << failures.min(10))).min(LONGEST_PAUSE);
            assert!(
                longest / 2 <= gap && gap <= longest + tick,
                "{failures}: {gap:?}"
            );
        }
        let early = attempts.iter().filter(|at| **at < Duration::from_secs(5));
        assert!(early.count() <= 14, "{attempts:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn pauses_of_different_processes_differ() {
        let mut firsts = Vec::new();
        for _ in 0..20 {
            let mut connection = reconnecting();
            let time = Duration::from_secs(1);
            firsts.push(attempts_within(&mut connection, time, || Err(refused())).await);
        }
        firsts.dedup();
        assert!(firsts.len() > 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_during_a_pause_fails_with_the_last_error() {
        let mut connection = reconnecting();
        attempt(&mut connection, &Err(refused()));
        match connection.next(Instant::now()) {
            Next::Fail(error) => assert_eq!(error.to_string(), refused().to_string()),
            next => panic!("{next:?}"),
        }
        advance(FIRST_PAUSE).await;
        assert!(connects(&mut connection));
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_attempt_counts_as_part_of_the_pause() {
        let mut connection = reconnecting();
        for _ in 0..10 {
            let (_, attempt) = connection.start(Instant::now());
            advance(Duration::from_secs(2)).await;
            assert!(connection.finish(&attempt, &Err(refused())));
            assert!(connects(&mut connection));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_worked_is_replaced_at_once() {
        let mut connection = reconnecting();
        attempts_within(&mut connection, Duration::from_secs(10), || Err(refused())).await;
        advance(LONGEST_PAUSE).await;
        let peer = Arc::<Peer>::default();
        attempt(&mut connection, &Ok(peer.clone()));
        peer.answered.store(true, Ordering::Relaxed);
        assert!(connection.discard(&peer));
        assert!(!connection.discard(&peer), "it was removed already");
        assert!(connects(&mut connection));
        attempt(&mut connection, &Err(refused()));
        advance(FIRST_PAUSE).await;
        assert!(connects(&mut connection), "the pause was reset");
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_accepts_and_then_closes_does_not_reset_the_pause() {
        let mut connection = reconnecting();
        let closed = || {
            let peer = Peer::default();
            peer.closed.store(true, Ordering::Relaxed);
            Ok(Arc::new(peer))
        };
        let attempts = attempts_within(&mut connection, Duration::from_secs(30), closed).await;
        assert!(gaps(&attempts).max() >= Some(LONGEST_PAUSE / 2));
        match connection.next(Instant::now()) {
            Next::Fail(error) => assert!(error.to_string().contains("10.0.0.1:6379"), "{error}"),
            Next::Connect => {}
            next => panic!("{next:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_during_a_pause_fails_as_the_call_that_lost_the_connection_did() {
        let mut connection = reconnecting();
        let peer = Arc::<Peer>::default();
        attempt(&mut connection, &Ok(peer.clone()));
        let denied = || Error::new(ErrorKind::Denied, "the certificate was refused");
        assert!(connection.discard_after(&peer, denied));
        match connection.next(Instant::now()) {
            Next::Fail(error) => assert_eq!(error.kind(), ErrorKind::Denied),
            next => panic!("{next:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn calls_share_one_attempt_until_it_is_stuck() {
        let mut connection = reconnecting();
        let (result, first) = connection.start(Instant::now());
        assert!(
            matches!(connection.next(Instant::now()), Next::Await(attempt) if attempt.ptr_eq(&first))
        );
        advance(ATTEMPT_STUCK).await;
        assert!(connects(&mut connection));
        let (_, second) = connection.start(Instant::now());
        let peer = Ok(Arc::default());
        assert!(!connection.finish(&first, &peer), "it was replaced");
        assert!(connection.finish(&second, &peer));
        assert!(connection.ready().is_some());
        let _ = result.send(peer);
        assert!(matches!(first.await, Some(Ok(_))));
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_that_ended_with_its_runtime_is_repeated_at_once() {
        let mut connection = reconnecting();
        let (result, attempt) = connection.start(Instant::now());
        drop(result);
        assert!(attempt.clone().await.is_none());
        connection.abandon(&attempt);
        assert!(connects(&mut connection));
    }
}
