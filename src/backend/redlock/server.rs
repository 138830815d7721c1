//! One of the servers: the scripts that it executes, and their replies.

use crate::backend::Grant;
use crate::backend::redis::errors;
use crate::backend::redis::script::Script;
use crate::backend::redis::value::{int, millis, text, unsigned};
use crate::backend::redis::{MissingRights, SingleServer, check_version};
use crate::error::Error;
use crate::name::Queue;
use redis::{Cmd, RedisError, Value};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Puts the common files of the folder `script` before this one, at compile time.
macro_rules! script {
    ($file:literal) => {
        LazyLock::new(|| {
            Script::new(concat!(
                include_str!("script/layout.lua"),
                include_str!("script/value.lua"),
                include_str!(concat!("script/", $file, ".lua")),
            ))
        })
    };
}

static VOTE: LazyLock<Script> = script!("vote");
static CONFIRM: LazyLock<Script> = script!("confirm");
static RELEASE: LazyLock<Script> = script!("release");
static READ: LazyLock<Script> = script!("read");
static EVICT: LazyLock<Script> = script!("evict");

/// One server of several.
pub(super) struct Server {
    connection: SingleServer,
    /// How many calls in a row it has not answered.
    failures: AtomicU32,
}

/// So many failures in a row are logged: a majority works without the server, so that nothing else shows them.
const LOGGED_FAILURES: u32 = 3;

/// The keys of one name as one node uses them, the same on every server.
#[derive(Debug)]
pub(super) struct Keys {
    lock: String,
    token: String,
    fence: String,
    marker: String,
}

/// One call of a node about one name, the same for every server.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) keys: Keys,
    pub(super) node: String,
    pub(super) number: u64,
    /// Even, and never the same twice in one session.
    pub(super) attempt: u64,
    /// How long a server keeps a lock that is written now: one lease and the drift of its clock.
    pub(super) lease: Duration,
    pub(super) release: Vec<u64>,
    pub(super) renew: Vec<u64>,
    /// Tickets to acquire: a held one is renewed, and of the others only the candidate is granted.
    pub(super) acquire: Vec<u64>,
    pub(super) candidate: Option<u64>,
}

#[derive(Clone, Debug)]
pub(super) enum Ballot {
    /// A later call of this node was executed before.
    Stale,
    Vote(Vote),
}

/// The state of one server after the call.
#[derive(Clone, Debug)]
pub(super) struct Vote {
    /// For how long the server has remembered its calls.
    pub(super) age: Duration,
    /// The longest lease that it has received.
    pub(super) longest: Duration,
    /// The ticket that was released here, and whether it was held.
    pub(super) released: Option<(u64, bool)>,
    pub(super) holder: Option<Holder>,
    /// Higher than every token this server remembers.
    pub(super) next_token: u64,
}

/// The holder of the lock at one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Holder {
    pub(super) node: String,
    pub(super) ticket: u64,
    /// 0: not confirmed, no permit yet.
    pub(super) token: u64,
    pub(super) left: Duration,
}

/// Why there is no answer.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    /// Nothing was sent.
    NotSent(Error),
    /// It may have been executed.
    Unknown(Error),
}

// === impl Keys ===

impl Keys {
    pub(super) fn new(prefix: &str, queue: &Queue, node: &str) -> Self {
        let lock = format!(
            "{prefix}:redlock:{}:{{{}}}",
            queue.kind().as_str(),
            queue.name()
        );
        Self {
            token: format!("{lock}:token"),
            fence: format!("{lock}:{node}"),
            marker: format!("{prefix}:redlock:since"),
            lock,
        }
    }
}

// === impl Request ===

impl Request {
    /// The attempt that a rollback writes: no older one is granted after it.
    fn fenced(&self) -> u64 {
        self.attempt + 1
    }
}

// === impl Failure ===

impl Failure {
    pub(super) fn into_error(self) -> Error {
        match self {
            Self::NotSent(error) | Self::Unknown(error) => error,
        }
    }
}

// === impl Server ===

impl Server {
    pub(super) fn new(connection: SingleServer) -> Self {
        Self {
            connection,
            failures: AtomicU32::new(0),
        }
    }

    pub(super) fn name(&self) -> &str {
        self.connection.name()
    }

    /// Logs when the server begins to fail, and when it answers again.
    pub(super) fn note_result(&self, failure: Option<&Failure>) {
        let server = self.name();
        match failure {
            None if self.failures.swap(0, Ordering::Relaxed) >= LOGGED_FAILURES => {
                tracing::info!(server, "a server of Redlock answers again");
            }
            None => {}
            Some(failure) => {
                let before = self.failures.load(Ordering::Relaxed);
                let failures = before.saturating_add(1);
                self.failures.store(failures, Ordering::Relaxed);
                if failures == LOGGED_FAILURES {
                    let (Failure::NotSent(error) | Failure::Unknown(error)) = failure;
                    tracing::warn!(server, %error, "a server of Redlock does not answer");
                }
            }
        }
    }

    pub(super) async fn vote(&self, request: &Request) -> Result<Ballot, Failure> {
        let args = |command: &mut Cmd| {
            command
                .arg(4)
                .arg(&request.keys.lock)
                .arg(&request.keys.token)
                .arg(&request.keys.fence)
                .arg(&request.keys.marker)
                .arg(&request.node)
                .arg(request.number)
                .arg(request.attempt)
                .arg(millis(request.lease))
                .arg(
                    request
                        .candidate
                        .map(|it| it.to_string())
                        .unwrap_or_default(),
                )
                .arg(request.release.len())
                .arg(request.renew.len() + request.acquire.len());
            for ticket in request
                .release
                .iter()
                .chain(&request.renew)
                .chain(&request.acquire)
            {
                command.arg(*ticket);
            }
        };
        // Whether a released ticket was held is answered only once, and the queue client needs that answer.
        let answer = match request.release.is_empty() {
            true => self.run_twice(&VOTE, args).await,
            false => self.run(&VOTE, args).await,
        };
        self.decode(answer?, ballot)
    }

    /// Writes the token of a grant. Returns whether the lock is this ticket's.
    pub(super) async fn confirm(
        &self,
        request: &Request,
        grant: Grant,
        create: bool,
    ) -> Result<bool, Failure> {
        let answer = self.run_twice(&CONFIRM, |command| {
            command
                .arg(3)
                .arg(&request.keys.lock)
                .arg(&request.keys.token)
                .arg(&request.keys.fence)
                .arg(&request.node)
                .arg(request.number)
                .arg(request.attempt)
                .arg(millis(request.lease))
                .arg(grant.ticket)
                .arg(grant.token)
                .arg(u8::from(create));
        });
        self.decode(answer.await?, |value| Some(int(value)? == 1))
    }

    /// Rolls back the attempt if it was given up, and releases tickets.
    pub(super) async fn release(&self, request: &Request, given_up: bool) -> Result<(), Failure> {
        let answer = self.run_twice(&RELEASE, |command| {
            command
                .arg(2)
                .arg(&request.keys.lock)
                .arg(&request.keys.fence)
                .arg(&request.node)
                .arg(request.number);
            match given_up {
                true => command.arg(request.attempt).arg(request.fenced()),
                false => command.arg(0).arg(request.attempt),
            };
            command.arg(millis(request.lease)).arg(&request.release);
        });
        self.decode(answer.await?, |value| int(value).map(|_| ()))
    }

    /// Returns the holder of the lock here.
    pub(super) async fn read(&self, keys: &Keys) -> Result<Option<Holder>, Failure> {
        let answer = self.run_twice(&READ, |command| {
            command.arg(1).arg(&keys.lock);
        });
        self.decode(answer.await?, lock_reply)
    }

    /// Evicts this ticket. `None` if it did not hold the lock.
    pub(super) async fn evict(&self, keys: &Keys, ticket: &str) -> Result<Option<Holder>, Failure> {
        let answer = self.run(&EVICT, |command| {
            command.arg(1).arg(&keys.lock).arg(ticket);
        });
        self.decode(answer.await?, lock_reply)
    }

    async fn run(
        &self,
        script: &Script,
        args: impl Fn(&mut Cmd),
    ) -> Result<Result<Value, RedisError>, Failure> {
        self.connection
            .run(script, args)
            .await
            .map_err(Failure::NotSent)
    }

    /// The same, for a script that may be executed twice: the end of an idle connection is often noticed only now.
    async fn run_twice(
        &self,
        script: &Script,
        args: impl Fn(&mut Cmd),
    ) -> Result<Result<Value, RedisError>, Failure> {
        match self.run(script, &args).await? {
            Err(error) if error.is_connection_dropped() => self.run(script, &args).await,
            answer => Ok(answer),
        }
    }

    fn decode<T>(
        &self,
        answer: Result<Value, RedisError>,
        decode: impl FnOnce(Value) -> Option<T>,
    ) -> Result<T, Failure> {
        let value = answer
            .map_err(|error| Failure::Unknown(errors::describe(&error, self.connection.name())))?;
        decode(value).ok_or_else(|| Failure::Unknown(errors::malformed(self.connection.name())))
    }

    // --- check ---

    /// Tries every script, with a name made for it. Returns the vote.
    pub(super) async fn check(&self, request: &Request) -> Result<Vote, Error> {
        self.check_version().await?;
        self.check_rights(&request.keys).await?;
        let malformed = || errors::malformed(self.connection.name());
        let ballot = self.vote(request).await.map_err(Failure::into_error)?;
        let Ballot::Vote(vote) = ballot else {
            return Err(malformed());
        };
        let grant = Grant::new(request.candidate.unwrap_or_default(), vote.next_token);
        let held = self.confirm(request, grant, false).await;
        let during = self.read(&request.keys).await;
        let released = self.release(request, true).await;
        let after = self.read(&request.keys).await;
        released.map_err(Failure::into_error)?;
        let held = held.map_err(Failure::into_error)?;
        let during = during.map_err(Failure::into_error)?;
        let after = after.map_err(Failure::into_error)?;
        let held = held && during.is_some_and(|holder| holder.token == grant.token);
        if !held || after.is_some() {
            return Err(malformed());
        }
        let mut delete = redis::cmd("DEL");
        delete.arg(&request.keys.token).arg(&request.keys.fence);
        self.connection.send(&delete).await?;
        Ok(vote)
    }

    /// Writes `mark` to a key made for it, unless there is a value. Returns the value.
    pub(super) async fn mark(&self, request: &Request, mark: usize) -> Result<String, Error> {
        let key = format!("{}:twice", request.keys.fence);
        let mut set = redis::cmd("SET");
        set.arg(&key).arg(mark).arg("NX").arg("PX").arg(3_000);
        self.connection.send(&set).await?;
        let value = self.connection.send(redis::cmd("GET").arg(&key)).await?;
        text(value).ok_or_else(|| errors::malformed(self.connection.name()))
    }

    pub(super) async fn unmark(&self, request: &Request) -> Result<(), Error> {
        let key = format!("{}:twice", request.keys.fence);
        self.connection.send(redis::cmd("DEL").arg(key)).await?;
        Ok(())
    }

    async fn check_version(&self) -> Result<(), Error> {
        let hello = self.connection.send(&redis::cmd("HELLO")).await?;
        check_version(&hello, self.connection.name())
    }

    /// Sends each command for itself: inside a script the server does not name the command that it refused.
    async fn check_rights(&self, keys: &Keys) -> Result<(), Error> {
        let fence = keys.fence.as_str();
        let words: &[&[&str]] = &[
            &["time"],
            &["set", fence, "x", "px", "1000"],
            &["get", fence],
            &["pttl", fence],
            &["get", &keys.marker],
            &["del", fence],
        ];
        let mut missing = MissingRights::default();
        for words in words {
            let mut command = Cmd::new();
            for word in *words {
                command.arg(*word);
            }
            let answer = self.connection.try_send(&command).await?;
            missing.note(&command, answer, self.connection.name())?;
        }
        missing.check(self.connection.name(), &keys.marker.replace(":since", ":*"))
    }
}

/// Decodes a reply of `vote.lua`. `None` if it is malformed.
fn ballot(value: Value) -> Option<Ballot> {
    let Value::Array(items) = value else {
        return None;
    };
    let mut items = items.into_iter();
    if int(items.next()?)? == 0 {
        return Some(Ballot::Stale);
    }
    let age = Duration::from_millis(unsigned(items.next()?)?);
    let longest = Duration::from_millis(unsigned(items.next()?)?);
    let released = text(items.next()?)?;
    let held = int(items.next()?)? == 1;
    let lock = text(items.next()?)?;
    let holder = holder(&lock, items.next()?)?;
    let next_token = text(items.next()?)?.parse().ok()?;
    Some(Ballot::Vote(Vote {
        age,
        longest,
        released: released.parse().ok().map(|ticket| (ticket, held)),
        holder,
        next_token,
    }))
}

/// Decodes a reply of `read.lua` or `evict.lua`.
fn lock_reply(value: Value) -> Option<Option<Holder>> {
    let Value::Array(items) = value else {
        return None;
    };
    let [lock, left] = <[Value; 2]>::try_from(items).ok()?;
    holder(&text(lock)?, left)
}

/// Decodes a lock: `version node ticket attempt token`. The script has checked the version.
fn holder(lock: &str, left: Value) -> Option<Option<Holder>> {
    let left = Duration::from_millis(u64::try_from(int(left)?).unwrap_or(0));
    if lock.is_empty() {
        return Some(None);
    }
    let mut words = lock.split(' ').skip(1);
    let number = |word: Option<&str>| word.and_then(|word| word.parse().ok()).unwrap_or(0);
    let node = words.next().unwrap_or_default().to_owned();
    let (ticket, _attempt, token) = (
        number(words.next()),
        number(words.next()),
        number(words.next()),
    );
    Some(Some(Holder {
        node,
        ticket,
        token,
        left,
    }))
}
