//! One of the servers: the scripts that it runs, and what it answers.

use crate::backend::Grant;
use crate::backend::redis::wire::{self, int, millis, text_of, unsigned};
use crate::backend::redis::{Line, Missing, Source, check_version};
use crate::error::Error;
use crate::name::Queue;
use redis::{Cmd, RedisError, Value};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

static VOTE: LazyLock<Source> = LazyLock::new(|| Source::new(include_str!("vote.lua")));
static CONFIRM: LazyLock<Source> = LazyLock::new(|| Source::new(include_str!("confirm.lua")));
static RELEASE: LazyLock<Source> = LazyLock::new(|| Source::new(include_str!("release.lua")));
static LOOK: LazyLock<Source> = LazyLock::new(|| Source::new(include_str!("look.lua")));

/// One server of several.
pub(super) struct Server {
    link: Line,
    /// Calls in a row that it has not answered.
    failures: AtomicU32,
}

/// So many failures in a row are worth a line in the log: a majority goes on without it, and nobody would notice.
const WORTH_A_LINE: u32 = 3;

/// The keys of one name as one node uses them, the same on every server.
#[derive(Debug)]
pub(super) struct Keys {
    lock: String,
    token: String,
    fence: String,
    marker: String,
}

/// What a node has to say about one name, to every server.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) keys: Keys,
    pub(super) node: String,
    pub(super) number: u64,
    /// Even, and never the same twice in one session.
    pub(super) attempt: u64,
    /// How long a server keeps what is taken now: one lease and the drift of its clock.
    pub(super) lease: Duration,
    pub(super) release: Vec<u64>,
    pub(super) renew: Vec<u64>,
    /// Tickets that want in: renewed if they are, and only the candidate is let in anew.
    pub(super) want: Vec<u64>,
    pub(super) candidate: Option<u64>,
}

#[derive(Clone, Debug)]
pub(super) enum Ballot {
    /// A newer word of this node has come before.
    Stale,
    Vote(Vote),
}

/// How things are at one server, after it has done what it was asked.
#[derive(Clone, Debug)]
pub(super) struct Vote {
    /// For how long it has remembered what it was told.
    pub(super) age: Duration,
    /// The longest lease it has heard of.
    pub(super) longest: Duration,
    /// The ticket that left, and whether it held a permit here.
    pub(super) released: Option<(u64, bool)>,
    pub(super) holder: Option<Holder>,
    /// Higher than every token this server remembers.
    pub(super) next_token: u64,
}

/// Whose the lock is at one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Holder {
    pub(super) node: String,
    pub(super) ticket: u64,
    /// 0: taken, but no permit yet.
    pub(super) token: u64,
    pub(super) left: Duration,
}

/// Why there is no answer.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    /// Nothing was sent.
    NotSent(Error),
    /// It may have been carried out.
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

// === impl Ask ===

impl Ask {
    /// The attempt that a roll-back leaves behind: nothing older is let in after it.
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
    pub(super) fn new(link: Line) -> Self {
        Self {
            link,
            failures: AtomicU32::new(0),
        }
    }

    pub(super) fn name(&self) -> &str {
        self.link.server()
    }

    /// One line when it begins to fail, and one when it is back.
    pub(super) fn note(&self, failure: Option<&Failure>) {
        let server = self.name();
        match failure {
            None if self.failures.swap(0, Ordering::Relaxed) >= WORTH_A_LINE => {
                tracing::info!(server, "a server of Redlock answers again");
            }
            None => {}
            Some(failure) => {
                let before = self.failures.load(Ordering::Relaxed);
                let failures = before.saturating_add(1);
                self.failures.store(failures, Ordering::Relaxed);
                if failures == WORTH_A_LINE {
                    let (Failure::NotSent(error) | Failure::Unknown(error)) = failure;
                    tracing::warn!(server, %error, "a server of Redlock does not answer");
                }
            }
        }
    }

    pub(super) async fn vote(&self, ask: &Ask) -> Result<Ballot, Failure> {
        let args = |command: &mut Cmd| {
            command
                .arg(4)
                .arg(&ask.keys.lock)
                .arg(&ask.keys.token)
                .arg(&ask.keys.fence)
                .arg(&ask.keys.marker)
                .arg(&ask.node)
                .arg(ask.number)
                .arg(ask.attempt)
                .arg(millis(ask.lease))
                .arg(ask.candidate.map(|it| it.to_string()).unwrap_or_default())
                .arg(ask.release.len())
                .arg(ask.renew.len() + ask.want.len());
            for ticket in ask.release.iter().chain(&ask.renew).chain(&ask.want) {
                command.arg(*ticket);
            }
        };
        // Whether a ticket held that leaves is answered once only, and the gate has to know of the first time.
        let answer = match ask.release.is_empty() {
            true => self.run_twice(&VOTE, args).await,
            false => self.run(&VOTE, args).await,
        };
        self.read(answer?, ballot)
    }

    /// Whether the lock is this ticket's, and now has the token.
    pub(super) async fn confirm(
        &self,
        ask: &Ask,
        grant: Grant,
        create: bool,
    ) -> Result<bool, Failure> {
        let answer = self.run_twice(&CONFIRM, |command| {
            command
                .arg(3)
                .arg(&ask.keys.lock)
                .arg(&ask.keys.token)
                .arg(&ask.keys.fence)
                .arg(&ask.node)
                .arg(ask.number)
                .arg(ask.attempt)
                .arg(millis(ask.lease))
                .arg(grant.ticket)
                .arg(grant.token)
                .arg(u8::from(create));
        });
        self.read(answer.await?, |value| Some(int(value)? == 1))
    }

    /// Takes back what the attempt has made, if it is given up, and lets go what leaves.
    pub(super) async fn release(&self, ask: &Ask, given_up: bool) -> Result<(), Failure> {
        let answer = self.run_twice(&RELEASE, |command| {
            command
                .arg(2)
                .arg(&ask.keys.lock)
                .arg(&ask.keys.fence)
                .arg(&ask.node)
                .arg(ask.number);
            match given_up {
                true => command.arg(ask.attempt).arg(ask.fenced()),
                false => command.arg(0).arg(ask.attempt),
            };
            command.arg(millis(ask.lease)).arg(&ask.release);
        });
        self.read(answer.await?, |value| int(value).map(|_| ()))
    }

    /// Who holds the lock here.
    pub(super) async fn look(&self, keys: &Keys) -> Result<Option<Holder>, Failure> {
        let answer = self.run_twice(&LOOK, |command| {
            command.arg(1).arg(&keys.lock);
        });
        self.read(answer.await?, seen)
    }

    /// Takes this ticket out. `None` if it was not in.
    pub(super) async fn evict(&self, keys: &Keys, ticket: &str) -> Result<Option<Holder>, Failure> {
        let answer = self.run(&LOOK, |command| {
            command.arg(1).arg(&keys.lock).arg(ticket);
        });
        self.read(answer.await?, seen)
    }

    async fn run(
        &self,
        source: &Source,
        args: impl Fn(&mut Cmd),
    ) -> Result<Result<Value, RedisError>, Failure> {
        self.link.run(source, args).await.map_err(Failure::NotSent)
    }

    /// The same. An idle connection often shows only now that it has ended; this is as good if it is done twice.
    async fn run_twice(
        &self,
        source: &Source,
        args: impl Fn(&mut Cmd),
    ) -> Result<Result<Value, RedisError>, Failure> {
        match self.run(source, &args).await? {
            Err(error) if error.is_connection_dropped() => self.run(source, &args).await,
            answer => Ok(answer),
        }
    }

    fn read<T>(
        &self,
        answer: Result<Value, RedisError>,
        read: impl FnOnce(Value) -> Option<T>,
    ) -> Result<T, Failure> {
        let value =
            answer.map_err(|error| Failure::Unknown(wire::error(&error, self.link.server())))?;
        read(value).ok_or_else(|| Failure::Unknown(wire::nonsense(self.link.server())))
    }

    // --- check ---

    /// Tries everything that will be needed, under a name of its own. Returns for how long the server has remembered.
    pub(super) async fn check(&self, ask: &Ask) -> Result<Vote, Error> {
        self.look_at_version().await?;
        self.look_at_rights(&ask.keys).await?;
        let nonsense = || wire::nonsense(self.link.server());
        let ballot = self.vote(ask).await.map_err(Failure::into_error)?;
        let Ballot::Vote(vote) = ballot else {
            return Err(nonsense());
        };
        let grant = Grant::new(ask.candidate.unwrap_or_default(), vote.next_token);
        let held = self.confirm(ask, grant, false).await;
        let seen = self.look(&ask.keys).await;
        let released = self.release(ask, true).await;
        let after = self.look(&ask.keys).await;
        released.map_err(Failure::into_error)?;
        let held = held.map_err(Failure::into_error)?;
        let seen = seen.map_err(Failure::into_error)?;
        let after = after.map_err(Failure::into_error)?;
        let held = held && seen.is_some_and(|holder| holder.token == grant.token);
        if !held || after.is_some() {
            return Err(nonsense());
        }
        let mut forget = redis::cmd("DEL");
        forget.arg(&ask.keys.token).arg(&ask.keys.fence);
        self.link.send(&forget).await?;
        Ok(vote)
    }

    /// Writes `mark` under a key of its own, unless something is there. Returns what is there then.
    pub(super) async fn mark(&self, ask: &Ask, mark: usize) -> Result<String, Error> {
        let key = format!("{}:twice", ask.keys.fence);
        let mut set = redis::cmd("SET");
        set.arg(&key).arg(mark).arg("NX").arg("PX").arg(3_000);
        self.link.send(&set).await?;
        let there = self.link.send(redis::cmd("GET").arg(&key)).await?;
        text_of(there).ok_or_else(|| wire::nonsense(self.link.server()))
    }

    pub(super) async fn unmark(&self, ask: &Ask) -> Result<(), Error> {
        let key = format!("{}:twice", ask.keys.fence);
        self.link.send(redis::cmd("DEL").arg(key)).await?;
        Ok(())
    }

    async fn look_at_version(&self) -> Result<(), Error> {
        let hello = self.link.send(&redis::cmd("HELLO")).await?;
        check_version(&hello, self.link.server())
    }

    /// Each command on its own: inside a script the server does not say which one it refused.
    async fn look_at_rights(&self, keys: &Keys) -> Result<(), Error> {
        let fence = keys.fence.as_str();
        let words: &[&[&str]] = &[
            &["time"],
            &["set", fence, "x", "px", "1000"],
            &["get", fence],
            &["pttl", fence],
            &["get", &keys.marker],
            &["del", fence],
        ];
        let mut missing = Missing::default();
        for words in words {
            let mut command = Cmd::new();
            for word in *words {
                command.arg(*word);
            }
            let answer = self.link.try_send(&command).await?;
            missing.note(&command, answer, self.link.server())?;
        }
        missing.check(self.link.server(), &keys.marker.replace(":since", ":*"))
    }
}

/// Reads an answer of `vote.lua`. `None` if it makes no sense.
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
    let released = text_of(items.next()?)?;
    let held = int(items.next()?)? == 1;
    let lock = text_of(items.next()?)?;
    let holder = holder(&lock, items.next()?)?;
    let next_token = text_of(items.next()?)?.parse().ok()?;
    Some(Ballot::Vote(Vote {
        age,
        longest,
        released: released.parse().ok().map(|ticket| (ticket, held)),
        holder,
        next_token,
    }))
}

/// Reads an answer of `look.lua`.
fn seen(value: Value) -> Option<Option<Holder>> {
    let Value::Array(items) = value else {
        return None;
    };
    let [lock, left] = <[Value; 2]>::try_from(items).ok()?;
    holder(&text_of(lock)?, left)
}

/// What somebody else has put there belongs to nobody we know.
fn holder(lock: &str, left: Value) -> Option<Option<Holder>> {
    let left = Duration::from_millis(u64::try_from(int(left)?).unwrap_or(0));
    if lock.is_empty() {
        return Some(None);
    }
    let mut words = lock.split(' ');
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
