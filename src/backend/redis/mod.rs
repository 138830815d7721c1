//! The Redis backend: one script does everything a gate has to say about a name.

mod connection;
#[cfg(test)]
mod tests;
mod wire;

use crate::backend::{
    Backend, Call, Events, Inspection, Open, Outcome, Promises, Reply, Session, State,
};
use crate::error::{Error, ErrorKind};
use crate::name::{Node, Queue};
use connection::Link;
use futures_util::future::BoxFuture;
use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{Client, Cmd, IntoConnectionInfo, ProtocolVersion, RedisError, Script, Value};
use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

static EXCHANGE: LazyLock<Source> = LazyLock::new(|| Source::new(include_str!("exchange.lua")));
static INSPECT: LazyLock<Source> = LazyLock::new(|| Source::new(include_str!("inspect.lua")));

const PREFIX: &str = "permit";
const LONGEST_PREFIX: usize = 64;
/// An inspection and an eviction take no longer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Neither does a check.
const CHECKING: Duration = Duration::from_secs(3);
/// How often a waiter asks when nothing can be pushed to it.
const POLL: Duration = Duration::from_millis(100);
/// The oldest server that has every command we use.
const OLDEST: (u32, u32) = (6, 2);

/// Permits in a Redis server (6.2 or later, or Valkey), for any number of processes.
///
/// Nothing connects before the first permit is asked for, so a service can start before its Redis does;
/// [`Coordinator::check`](crate::Coordinator::check) connects now and says what is wrong.
///
/// ```
/// use tower_permit::{Coordinator, Redis};
///
/// # fn main() -> Result<(), tower_permit::Error> {
/// let permits = Coordinator::new(Redis::new("redis://127.0.0.1:6379")?.prefix("shop")?);
/// # Ok(())
/// # }
/// ```
///
/// # Keys
///
/// For each name that is in use, three: `prefix:limit:{name}` with the permits, and beside it `…:queue` and `…:meta`, all in
/// one hash slot. Each process listens on one channel, `prefix:inbox:<node>`. A name that nobody uses any more leaves nothing
/// one lease later; after a crash, an hour later.
///
/// Two applications on one server choose different prefixes, or they share their permits.
///
/// # Rights
///
/// With access control lists, this is all that is needed (here for the prefix `shop`; a database other than 0 needs
/// `+select` too):
///
/// ```text
/// ACL SETUSER permits on >password resetkeys ~shop:* resetchannels &shop:inbox:* -@all +eval +evalsha +time
///     +zadd +zrem +zcard +zcount +zrange +zmscore +zremrangebyscore +hmget +hset +hdel +hgetall +pexpire
///     +publish +subscribe
/// ```
///
/// Without the right to the channel, or to `PUBLISH` and `SUBSCRIBE`, everything still works: those who wait then ask ten
/// times a second instead of being told, and one warning says so.
///
/// Whoever may publish on an inbox channel can tell its process that it was granted what it waits for: keep that right
/// to the applications that share the permits.
///
/// # What it promises
///
/// First in, first out over all processes; fencing tokens that survive a restart and a flush of the server. Only the
/// server's clock counts, and neither a stall nor a step of it takes a permit from a process that is alive. A failover or a
/// flush can lose the last grants: then at most `limit` more come in, until those who held have heard of it, a third of a
/// lease later at most, and end. The server should not evict keys (`maxmemory-policy noeviction`), or permits are lost
/// under memory pressure. More in the [guide](crate::guide::failures).
#[derive(Clone)]
pub struct Redis {
    client: Client,
    prefix: Arc<str>,
}

/// The session of one node.
struct RedisSession {
    link: Arc<Link>,
    prefix: Arc<str>,
    node: Node,
    warned_mute: AtomicBool,
}

/// A script and the name that the server remembers it by.
struct Source {
    code: &'static str,
    hash: String,
}

// === impl Redis ===

impl Redis {
    /// The server at this URL: `redis://[user:password@]host[:port][/db]`, or
    /// `redis+unix:///path/to/socket[?db=0&user=…&pass=…]`.
    ///
    /// Only looks at the URL: the connection is made at first use.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] if the URL cannot work. The message never repeats it, for it may hold a password.
    pub fn new(url: impl AsRef<str>) -> Result<Self, Error> {
        const FORM: &str = "this is no URL of a Redis server: redis://[user:password@]host[:port][/db] is one, \
                            and so is redis+unix:///path/to/socket";
        let url = redis::parse_redis_url(url.as_ref()).ok_or_else(|| Error::config(FORM))?;
        if matches!(url.scheme(), "rediss" | "valkeys") {
            return Err(Error::config(
                "TLS is not built in: a rediss:// URL cannot be used, make the client yourself and give it to Redis::from_client",
            ));
        }
        let info = url
            .into_connection_info()
            .map_err(|_| Error::config(FORM))?;
        let client = Client::open(info).map_err(|_| Error::config(FORM))?;
        Ok(Self::from_client(client))
    }

    /// The server of a client that you made: for TLS, or settings that no URL has.
    ///
    /// Its address and its credentials are used; protocol and TCP settings are chosen by this crate. The type is one of the
    /// `redis` crate, version 1: the only place in this crate's interface where one appears.
    pub fn from_client(client: Client) -> Self {
        let info = client.get_connection_info().clone();
        let settings = info
            .redis_settings()
            .clone()
            .set_protocol(ProtocolVersion::RESP3)
            .set_skip_set_lib_name();
        let info = info
            .set_redis_settings(settings)
            .set_tcp_settings(tcp_settings());
        Self {
            client: Client::open(info).unwrap_or(client),
            prefix: PREFIX.into(),
        }
    }

    /// What every key and every channel starts with, before a colon. `permit` if not set.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for an empty prefix, one above 64 bytes, and one with braces, blanks, control characters or
    /// any of `*?[]\^`.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Result<Self, Error> {
        let prefix: String = prefix.into();
        let fits = |c: char| !c.is_whitespace() && !c.is_control() && !"{}*?[]\\^".contains(c);
        if prefix.is_empty() || prefix.len() > LONGEST_PREFIX || !prefix.chars().all(fits) {
            return Err(Error::config(format!(
                "a prefix has 1 to {LONGEST_PREFIX} bytes and no braces, blanks, control characters or any of *?[]\\^"
            )));
        }
        self.prefix = prefix.into();
        Ok(self)
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let server = self.client.get_connection_info().addr().to_string();
        f.debug_struct("Redis")
            .field("server", &server)
            .field("prefix", &self.prefix)
            .finish()
    }
}

impl Backend for Redis {}

impl Open for Redis {
    fn open(self, node: Node, events: Events) -> Arc<dyn Session> {
        let inbox = wire::inbox(&self.prefix, node.as_str());
        Arc::new(RedisSession {
            link: Link::new(self.client, inbox, events),
            prefix: self.prefix,
            node,
            warned_mute: AtomicBool::new(false),
        })
    }
}

/// Small messages go out at once, and a peer that vanished is noticed.
fn tcp_settings() -> TcpSettings {
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(5))
        .with_interval(Duration::from_secs(2));
    let settings = TcpSettings::default()
        .set_nodelay(true)
        .set_keepalive(keepalive);
    #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
    let settings = settings.set_user_timeout(Duration::from_secs(2));
    settings
}

// === impl RedisSession ===

impl RedisSession {
    /// Runs a script, by its hash if the server knows it.
    async fn run(
        &self,
        source: &Source,
        args: impl Fn(&mut Cmd),
    ) -> Result<Result<Value, RedisError>, Error> {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&source.hash);
        args(&mut command);
        match self.link.try_send(&command).await? {
            Err(error) if wire::is_script_missing(&error) => {}
            answer => return Ok(answer),
        }
        let mut command = redis::cmd("EVAL");
        command.arg(source.code);
        args(&mut command);
        self.link.try_send(&command).await
    }

    fn in_words(&self, answer: Result<Value, RedisError>) -> Result<Value, Error> {
        answer.map_err(|error| wire::error(&error, self.link.server()))
    }

    async fn say(&self, call: &Call) -> Result<Reply, Error> {
        let args = |command: &mut Cmd| wire::add_call(command, &self.prefix, &self.node, call);
        let mut value = self.run(&EXCHANGE, args).await?;
        // An idle connection often shows only now that it has ended. Said twice is as good as once: the number is the same.
        // Except for a ticket that leaves: whether it held is answered once only, and the gate has to know of the first time.
        if call.leave.is_empty() && matches!(&value, Err(error) if error.is_connection_dropped()) {
            value = self.run(&EXCHANGE, args).await?;
        }
        let value = self.in_words(value)?;
        let answer = wire::answer(value).ok_or_else(|| wire::nonsense(self.link.server()))?;
        self.warn_if_mute(answer.mute);
        let mut reply = answer.reply;
        if let Reply::Done(outcome) = &mut reply
            && !fits(outcome, call)
        {
            return Err(wire::nonsense(self.link.server()));
        }
        if let Reply::Done(Outcome { look_again, .. }) = &mut reply
            && self.link.is_deaf()
        {
            *look_again = look_again.map(|time| time.min(POLL));
        }
        Ok(reply)
    }

    async fn look(&self, queue: &Queue) -> Result<Inspection, Error> {
        let value = self
            .run(&INSPECT, |command| {
                wire::add_inspection(command, &self.prefix, queue);
            })
            .await?;
        let value = self.in_words(value)?;
        wire::inspection(value).ok_or_else(|| wire::nonsense(self.link.server()))
    }

    async fn take_out(&self, queue: &Queue, ticket: &str) -> Result<bool, Error> {
        let value = self
            .run(&EXCHANGE, |command| {
                wire::add_eviction(command, &self.prefix, queue, ticket);
            })
            .await?;
        let value = self.in_words(value)?;
        let answer = wire::answer(value).ok_or_else(|| wire::nonsense(self.link.server()))?;
        self.warn_if_mute(answer.mute);
        Ok(answer.was_there.first().copied().unwrap_or(false))
    }

    async fn try_everything(&self) -> Result<(), Error> {
        self.look_at_version().await?;
        let queue = Queue::limit(format!("check:{}", self.node.as_str()).as_bytes())?;
        self.look_at_rights(&queue).await?;
        // Two tickets and one permit: one holds, the other waits, is granted, and goes.
        let call = |number: u64, leave: &[u64], keep: &[u64], enter: &[u64]| Call {
            queue: queue.clone(),
            number,
            limit: 1,
            lease: Duration::from_secs(1),
            leave: leave.to_vec(),
            keep: keep.to_vec(),
            enter: enter.to_vec(),
            try_enter: Vec::new(),
        };
        let number = rand::random_range(1..1 << 30) * 4;
        let (first, second) = (number, number + 1);
        self.say(&call(number, &[], &[], &[first, second])).await?;
        self.look(&queue).await?;
        let answer = self
            .say(&call(number + 1, &[first], &[first], &[second]))
            .await?;
        let granted = matches!(&answer, Reply::Done(outcome)
            if matches!(outcome.entered.as_slice(), [State::Held { .. }]));
        self.say(&call(number + 2, &[second], &[], &[])).await?;
        if !granted {
            return Err(wire::nonsense(self.link.server()));
        }
        let keys = wire::Keys::new(&self.prefix, &queue);
        let forget = redis::cmd("HDEL")
            .arg(keys.meta())
            .arg("state")
            .arg(self.node.as_str())
            .clone();
        self.link.send(&forget).await?;
        self.look_at_channel().await?;
        self.look_at_eviction().await;
        Ok(())
    }

    async fn look_at_version(&self) -> Result<(), Error> {
        let hello = self.link.send(&redis::cmd("HELLO")).await?;
        let Some(version) = wire::field(&hello, "version") else {
            return Ok(());
        };
        let mut numbers = version.split('.').map(str::parse::<u32>);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(major)), Some(Ok(minor))) if (major, minor) < OLDEST => Err(Error::new(
                ErrorKind::Incompatible,
                format!(
                    "Redis at {} is version {version}: {}.{} is the oldest that will do",
                    self.link.server(),
                    OLDEST.0,
                    OLDEST.1
                ),
            )),
            // Others that speak the protocol count their versions as they please.
            _ => Ok(()),
        }
    }

    /// Each command on its own: inside a script the server does not say which one it refused.
    async fn look_at_rights(&self, queue: &Queue) -> Result<(), Error> {
        let mut missing = BTreeSet::new();
        for command in wire::Keys::new(&self.prefix, queue).every_command() {
            match self.link.try_send(&command).await? {
                Err(error) if wire::is_denied(&error) => {
                    missing.insert(format!("+{}", wire::name(&command)));
                }
                Err(error) if error.is_io_error() => {
                    return Err(wire::error(&error, self.link.server()));
                }
                // Anything else will show in the script, or does not matter there.
                _ => {}
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        let missing = Vec::from_iter(missing).join(" ");
        Err(Error::new(
            ErrorKind::Denied,
            format!(
                "Redis at {} does not give us all rights to the keys {}:*, these are missing: {missing}",
                self.link.server(),
                self.prefix
            ),
        ))
    }

    async fn look_at_channel(&self) -> Result<(), Error> {
        let inbox = self.link.inbox();
        let missing = |right: &str| {
            Error::new(
                ErrorKind::Denied,
                format!(
                    "Redis at {} does not let us {right} on the channel {inbox}: permits work, but whoever waits has to poll",
                    self.link.server()
                ),
            )
        };
        if self.link.is_deaf() {
            return Err(missing("SUBSCRIBE"));
        }
        match self
            .link
            .try_send(redis::cmd("PUBLISH").arg(inbox).arg(""))
            .await?
        {
            Ok(_) => Ok(()),
            Err(error) if wire::is_denied(&error) => Err(missing("PUBLISH")),
            Err(error) => Err(wire::error(&error, self.link.server())),
        }
    }

    /// Managed servers often do not let us see the policy: then we say nothing.
    async fn look_at_eviction(&self) {
        let config = redis::cmd("CONFIG")
            .arg("GET")
            .arg("maxmemory-policy")
            .clone();
        let mut policy = None;
        if let Ok(Ok(value)) = self.link.try_send(&config).await {
            policy = wire::field(&value, "maxmemory-policy");
        }
        if policy.is_none()
            && let Ok(Ok(value)) = self.link.try_send(redis::cmd("INFO").arg("memory")).await
        {
            policy = wire::info(&value, "maxmemory_policy");
        }
        if let Some(policy) = policy.filter(|policy| policy != "noeviction") {
            tracing::warn!(
                server = &**self.link.server(),
                "Redis evicts keys when its memory is full (maxmemory-policy {policy}): permits can be lost then. Set it to noeviction",
            );
        }
    }

    fn warn_if_mute(&self, mute: bool) {
        // Who may not listen either has been told already that waiting polls.
        if mute && !self.link.is_deaf() && !self.warned_mute.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                server = &**self.link.server(),
                "Redis does not let us PUBLISH on the channels {}*: whoever waits polls instead",
                wire::inbox(&self.prefix, ""),
            );
        }
    }

    async fn within<T>(
        &self,
        time: Duration,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        match tokio::time::timeout(time, work).await {
            Ok(result) => result,
            Err(_) => Err(Error::new(
                ErrorKind::Unavailable,
                format!("Redis at {} does not answer", self.link.server()),
            )),
        }
    }
}

impl Session for RedisSession {
    fn exchange(&self, call: Call) -> BoxFuture<'_, Result<Reply, Error>> {
        Box::pin(async move { self.say(&call).await })
    }

    fn inspect(&self, queue: Queue) -> BoxFuture<'_, Result<Inspection, Error>> {
        Box::pin(async move { self.within(PATIENCE, self.look(&queue)).await })
    }

    fn evict(&self, queue: Queue, ticket: String) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(async move { self.within(PATIENCE, self.take_out(&queue, &ticket)).await })
    }

    fn check(&self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(self.within(CHECKING, self.try_everything()))
    }

    fn promises(&self) -> Promises {
        Promises {
            fifo: true,
            token: true,
            greatest_limit: u32::MAX,
            least_lease: Duration::from_secs(1),
        }
    }
}

/// An answer has a state for each ticket, or it is none.
fn fits(outcome: &Outcome, call: &Call) -> bool {
    outcome.left.len() == call.leave.len()
        && outcome.kept.len() == call.keep.len()
        && outcome.entered.len() == call.enter.len()
        && outcome.tried.len() == call.try_enter.len()
}

// === impl Source ===

impl Source {
    fn new(code: &'static str) -> Self {
        let hash = Script::new(code).get_hash().to_owned();
        Self { code, hash }
    }
}
