//! The Redis backend: one script executes a batch of calls.

mod check;
#[cfg(feature = "redis-cluster")]
mod cluster;
mod codec;
mod connection;
#[cfg(feature = "redlock")]
mod line;
#[cfg(feature = "redis-sentinel")]
mod sentinel;
mod server;
mod servers;
#[cfg(test)]
mod tests;
mod url;
pub(super) mod wire;

#[cfg(feature = "redis-tls")]
use crate::backend::tls::Tls;
use crate::backend::{
    Backend, Batching, Call, Capabilities, Events, Inspection, Open, Outcome, Replies, Reply,
    Session, each, together,
};
use crate::error::Error;
use crate::name::{Node, Queue};
#[cfg(feature = "redlock")]
pub(super) use check::{Missing, check_version};
use codec::{Answer, Forms};
use connection::{Link, Target};
use futures_util::future::{BoxFuture, join_all};
#[cfg(feature = "redlock")]
pub(super) use line::Line;
#[cfg(feature = "redis-sentinel")]
use redis::ProtocolVersion;
use redis::{Client, Cmd, RedisError, Script, Value};
use server::Server;
use servers::{Servers, Spot};
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// The script that executes a batch.
static EXCHANGE: LazyLock<Source> = LazyLock::new(|| Source::new(EXCHANGE_CODE));
/// The script that lists holders and queued tickets.
static INSPECT: LazyLock<Source> = LazyLock::new(|| Source::new(INSPECT_CODE));

/// Joins files of the folder `script` at compile time.
macro_rules! script {
    ($($file:literal)*) => {
        concat!($(include_str!(concat!("script/", $file, ".lua")), "\n"),*)
    };
}
const EXCHANGE_CODE: &str = script!(
    "layout" "arguments" "clock" "call" "read_singles" "fast_path"
    "uncontended" "attempt" "dispatch"
    "record" "single_holder" "convert" "nodes" "release" "renew" "expire" "grant" "admit" "commit" "reply" "exchange"
);
const INSPECT_CODE: &str = script!("layout" "clock" "record" "attempt" "inspect");

pub(super) const PREFIX: &str = "permit";
const LONGEST_PREFIX: usize = 64;
/// Our own tickets are far shorter.
const LONGEST_TICKET: usize = u16::MAX as usize;
/// What a single server handles well. A second batch fills the time that the first one travels; with more of them each one
/// would carry few calls.
const BATCHING: Batching = Batching {
    calls: 128,
    tickets: 512,
    in_flight: 2,
};
/// An inspection and an eviction take no longer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Neither does a check.
const CHECKING: Duration = Duration::from_secs(3);
/// How long a cluster that is being changed is asked again for them.
const ASKED_AGAIN: Duration = Duration::from_secs(1);
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
/// Over TLS by a `rediss://` URL (feature `redis-tls`), behind sentinels by `Redis::sentinel` (feature `redis-sentinel`), as a
/// cluster by `Redis::cluster` (feature `redis-cluster`).
///
/// # Keys
///
/// For each name that is in use, three: `prefix:limit:{name}` with the permits, and beside it `…:queue` and `…:meta`, all in
/// one hash slot; or `…:single` instead of them, as long as one process alone uses the name and has one permit at most (not
/// in a cluster). For one lease after a release, `prefix:guard:<node>` and `prefix:token` keep late calls from granting
/// again and tokens from falling. Each process listens on one channel, `prefix:push:<node>`. An unused name leaves nothing
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
/// ACL SETUSER permits on >password resetkeys ~shop:* resetchannels &shop:push:* -@all +eval +evalsha +time
///     +zadd +zrem +zcard +zcount +zrange +zmscore +zremrangebyscore +hmget +hset +hdel +hgetall +get +mget +set
///     +del +exists +pexpire +publish +subscribe
/// ```
///
/// Without the right to the channel, or to `PUBLISH` and `SUBSCRIBE`, everything still works: queued tickets are then polled
/// for ten times a second, and one warning says so. ([`Coordinator::check`](crate::Coordinator::check) calls
/// it an error.)
///
/// A user with the right to publish on an inbox channel can make its process believe in a grant: keep that right to the
/// applications that share the permits.
///
/// The server should not evict keys (`maxmemory-policy noeviction`), or permits are lost under memory pressure. What it
/// promises, and what it can lose when, is a page of the [guide](crate::guide::redis).
#[derive(Clone)]
pub struct Redis {
    place: Place,
    prefix: Arc<str>,
}

#[derive(Clone)]
enum Place {
    One(Server),
    #[cfg(feature = "redis-sentinel")]
    Sentinel {
        master: String,
        sentinels: Vec<Server>,
        /// Who we are at the master. Its address is another.
        like: Server,
    },
    /// Any nodes of it. The first one says how to talk to all.
    #[cfg(feature = "redis-cluster")]
    Cluster(Vec<Server>),
}

/// The session of one node.
struct RedisSession {
    servers: Servers,
    prefix: Arc<str>,
    node: Node,
    warned_mute: AtomicBool,
}

/// A script and the name that the server remembers it by.
pub(super) struct Source {
    code: &'static str,
    hash: String,
}

// === impl Redis ===

impl Redis {
    /// The server at this URL: `redis://[user:password@]host[:port][/db]`, or
    /// `redis+unix:///path/to/socket[?db=0&user=…&pass=…]`. With the feature `redis-tls` also
    /// `rediss://[user:password@]host[:port][/db]`; see `Redis::authority`.
    ///
    /// Only looks at the URL: the connection is made at first use.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) if the URL cannot work. The message never repeats it, for it may hold a password.
    pub fn new(url: impl AsRef<str>) -> Result<Self, Error> {
        Ok(Self::at(Place::One(Server::of_url(url.as_ref())?)))
    }

    /// The server of a client that you made, for settings that no URL has.
    ///
    /// Its address, its credentials and its TLS are used (the features of the `redis` crate for that, and the provider that
    /// `rustls` needs, are yours to choose then); protocol and TCP settings are chosen by this crate. The type is one of the
    /// `redis` crate, version 1: the only place in this crate's interface where one appears.
    pub fn from_client(client: Client) -> Self {
        Self::at(Place::One(Server::of_client(client)))
    }

    /// The master that these sentinels watch under this name; wherever a failover puts it.
    ///
    /// A sentinel is `host:port`, or a URL (`redis://[user:password@]host:port`) with the sentinel's own credentials. Those for
    /// the master are set by [`credentials`](Self::credentials), its database by [`database`](Self::database). With
    /// `rediss://` sentinels and servers are all spoken to over TLS.
    ///
    /// ```
    /// use tower_permit::{Coordinator, Redis};
    ///
    /// # fn main() -> Result<(), tower_permit::Error> {
    /// let redis = Redis::sentinel(["10.0.0.1:26379", "10.0.0.2:26379", "10.0.0.3:26379"], "mymaster")?;
    /// let permits = Coordinator::new(redis.credentials("permits", "secret").prefix("shop")?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A failover is followed; it can lose the last grants. What to set so that an old master does not go on granting, and what
    /// is promised, says the [guide](crate::guide::redis#with-sentinel).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) for no sentinel at all, one that is no address, or an empty name.
    #[cfg(feature = "redis-sentinel")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis-sentinel")))]
    pub fn sentinel<S: AsRef<str>>(
        sentinels: impl IntoIterator<Item = S>,
        master: impl Into<String>,
    ) -> Result<Self, Error> {
        let mut sentinels = Server::list(sentinels, "sentinel")?;
        let master = master.into();
        if master.is_empty() {
            return Err(Error::config(
                "sentinels know a master by its name, and this one is empty",
            ));
        }
        let mut like = sentinels[0].clone();
        like.forget_credentials();
        // Sentinels do not know the newer protocol.
        for sentinel in &mut sentinels {
            sentinel.set(|settings| settings.set_protocol(ProtocolVersion::RESP2).set_db(0));
        }
        Ok(Self::at(Place::Sentinel {
            master,
            sentinels,
            like,
        }))
    }

    /// The cluster that these nodes belong to. One that answers is enough; it knows the others.
    ///
    /// A node is `host:port`, or a URL (`redis://[user:password@]host:port`). The credentials of the first URL are used
    /// for every node, and with `rediss://` all are spoken to over TLS.
    ///
    /// ```
    /// use tower_permit::{Coordinator, Redis};
    ///
    /// # fn main() -> Result<(), tower_permit::Error> {
    /// let redis = Redis::cluster(["10.0.0.1:6379", "10.0.0.2:6379"])?;
    /// let permits = Coordinator::new(redis.credentials("permits", "secret").prefix("shop")?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A user with [few rights](Redis#rights) needs `+cluster|slots` too (before Redis 7: `+cluster`), on every node: access
    /// control lists are not shared by the nodes.
    ///
    /// Slots that move and masters that are replaced are followed. What is promised then says the
    /// [guide](crate::guide::redis#as-a-cluster).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) for no node at all, one that is no address, or a database other than 0.
    #[cfg(feature = "redis-cluster")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis-cluster")))]
    pub fn cluster<S: AsRef<str>>(nodes: impl IntoIterator<Item = S>) -> Result<Self, Error> {
        let mut nodes = Server::list(nodes, "node of a cluster")?;
        let first = nodes.iter().find(|node| node.has_credentials());
        let settings = first.unwrap_or(&nodes[0]).info().redis_settings().clone();
        for node in &mut nodes {
            if node.info().redis_settings().db() != 0 {
                return Err(Error::config("a cluster has no database other than 0"));
            }
            node.set(|_| settings.clone());
        }
        Ok(Self::at(Place::Cluster(nodes)))
    }

    fn at(place: Place) -> Self {
        Self {
            place,
            prefix: PREFIX.into(),
        }
    }

    /// The user and the password at the server, instead of those in the URL. An empty user is the default one.
    ///
    /// With Sentinel: at the master, not at the sentinels.
    pub fn credentials(mut self, user: impl AsRef<str>, password: impl AsRef<str>) -> Self {
        for server in self.place.servers() {
            server.be(user.as_ref(), password.as_ref());
        }
        self
    }

    /// The user and the password at the sentinels.
    #[cfg(feature = "redis-sentinel")]
    fn at_sentinels(mut self, user: &str, password: &str) -> Self {
        if let Place::Sentinel { sentinels, .. } = &mut self.place {
            for sentinel in sentinels {
                sentinel.be(user, password);
            }
        }
        self
    }

    /// The database, instead of the one in the URL.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) for one other than 0 in a cluster.
    pub fn database(mut self, number: u32) -> Result<Self, Error> {
        #[cfg(feature = "redis-cluster")]
        if number != 0 && matches!(self.place, Place::Cluster(_)) {
            return Err(Error::config("a cluster has no database other than 0"));
        }
        for server in self.place.servers() {
            server.set(|settings| settings.set_db(number.into()));
        }
        Ok(self)
    }

    /// The authorities, as certificates in PEM form, that sign the servers' certificates. No others are trusted then; if this is
    /// not called, those that the system trusts.
    ///
    /// ```no_run
    /// use tower_permit::Redis;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let redis = Redis::new("rediss://redis.example:6380")?
    ///     .ca_certificate(std::fs::read("ca.pem")?)?
    ///     .client_certificate(std::fs::read("me.pem")?, std::fs::read("me.key")?)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// TLS is that of `rustls` with `ring`, whatever other provider is in the program: nothing is chosen for the whole
    /// process. A server's certificate is always checked, its name too: with Sentinel and Cluster that is the address that the
    /// sentinels or nodes tell (`replica-announce-ip`, `cluster-announce-hostname`).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) if there is no certificate in it, or the URL is not `rediss://`.
    #[cfg(feature = "redis-tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis-tls")))]
    pub fn ca_certificate(mut self, pem: impl AsRef<[u8]>) -> Result<Self, Error> {
        self.place.tls(|tls| tls.trust(pem.as_ref()))?;
        Ok(self)
    }

    /// Shows a certificate (PEM, with those between it and its authority) to servers that want one; and its private key (PEM).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) if they cannot be read or do not belong together, or the URL is not `rediss://`. The message
    /// shows nothing of the key.
    #[cfg(feature = "redis-tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis-tls")))]
    pub fn client_certificate(
        mut self,
        chain: impl AsRef<[u8]>,
        key: impl AsRef<[u8]>,
    ) -> Result<Self, Error> {
        self.place
            .tls(|tls| tls.identify(chain.as_ref(), key.as_ref()))?;
        Ok(self)
    }

    /// What every key and every channel starts with, before a colon. `permit` if not set.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) for an empty prefix, one above 64 bytes, and one with braces, blanks, control characters or
    /// any of `*?[]\^`.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Result<Self, Error> {
        self.prefix = checked_prefix(prefix.into())?;
        Ok(self)
    }
}

/// A prefix that can stand before every key.
pub(super) fn checked_prefix(prefix: String) -> Result<Arc<str>, Error> {
    let fits = |c: char| !c.is_whitespace() && !c.is_control() && !"{}*?[]\\^".contains(c);
    if prefix.is_empty() || prefix.len() > LONGEST_PREFIX || !prefix.chars().all(fits) {
        return Err(Error::config(format!(
            "a prefix has 1 to {LONGEST_PREFIX} bytes and no braces, blanks, control characters or any of *?[]\\^"
        )));
    }
    Ok(prefix.into())
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis")
            .field("server", &self.place.name())
            .field("prefix", &self.prefix)
            .finish()
    }
}

impl Backend for Redis {}

impl Open for Redis {
    fn open(self, node: Node, events: Events) -> Arc<dyn Session> {
        let inbox = wire::inbox(&self.prefix, node.as_str());
        let servers = match self.place {
            Place::One(server) => {
                Servers::One(Link::new(Target::Server(server), Some(inbox), events))
            }
            #[cfg(feature = "redis-sentinel")]
            Place::Sentinel {
                master,
                sentinels,
                like,
            } => {
                let master = sentinel::Master::new(master, sentinels, like);
                Servers::One(Link::new(Target::Master(master), Some(inbox), events))
            }
            #[cfg(feature = "redis-cluster")]
            Place::Cluster(nodes) => Servers::Cluster(cluster::Cluster::new(nodes, inbox, events)),
        };
        Arc::new(RedisSession {
            servers,
            prefix: self.prefix,
            node,
            warned_mute: AtomicBool::new(false),
        })
    }
}

// === impl Place ===

impl Place {
    fn name(&self) -> String {
        match self {
            Self::One(server) => server.name(),
            #[cfg(feature = "redis-sentinel")]
            Self::Sentinel {
                master,
                sentinels,
                like,
            } => sentinel::Master::new(master.clone(), sentinels.clone(), like.clone()).name(),
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(nodes) => Server::names(nodes),
        }
    }

    /// The servers that store permits.
    fn servers(&mut self) -> Vec<&mut Server> {
        match self {
            Self::One(server) => vec![server],
            #[cfg(feature = "redis-sentinel")]
            Self::Sentinel { like, .. } => vec![like],
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(nodes) => nodes.iter_mut().collect(),
        }
    }

    /// Sentinels too.
    #[cfg(feature = "redis-tls")]
    fn everybody(&mut self) -> Vec<&mut Server> {
        match self {
            #[cfg(feature = "redis-sentinel")]
            Self::Sentinel {
                sentinels, like, ..
            } => sentinels.iter_mut().chain([like]).collect(),
            _ => self.servers(),
        }
    }

    /// The same TLS for all.
    #[cfg(feature = "redis-tls")]
    fn tls(&mut self, set: impl FnOnce(&mut Tls) -> Result<(), Error>) -> Result<(), Error> {
        let plain = || Error::config("this needs TLS, that is a rediss:// URL");
        let mut tls = self.servers()[0].tls().ok_or_else(plain)?.clone();
        set(&mut tls)?;
        for server in self.everybody() {
            if let Some(old) = server.tls() {
                *old = tls.clone();
            }
        }
        Ok(())
    }
}

// === impl RedisSession ===

impl RedisSession {
    async fn send(&self, spot: Spot, command: &Cmd) -> Result<Value, Error> {
        self.describe(self.servers.try_send(spot, command).await?)
    }

    /// Executes one call, wherever its name is.
    async fn exchange_one(&self, call: Call) -> Result<Reply, Error> {
        let forms = self.servers.forms().await?;
        let mut replies = self.exchange_together(vec![call], forms).await;
        replies.pop().unwrap_or_else(|| Err(self.malformed()))
    }

    /// Executes calls at a single server.
    async fn exchange_at_one(&self, calls: Vec<Call>) -> Vec<Result<Reply, Error>> {
        match self.servers.forms().await {
            Err(error) => vec![Err(error); calls.len()],
            // A node of a cluster rejects a script with keys of several slots.
            Ok(Forms::GeneralOnly) => {
                join_all(calls.into_iter().map(|call| self.exchange_one(call))).await
            }
            Ok(forms) => self.exchange_together(calls, forms).await,
        }
    }

    /// Executes calls in one script.
    ///
    /// An idle connection often shows only now that it has ended. The calls are then sent again: executing the same number
    /// twice changes nothing. Except those that release tickets: whether a ticket was held is answered only once.
    async fn exchange_together(&self, calls: Vec<Call>, forms: Forms) -> Vec<Result<Reply, Error>> {
        let value = self.run_batch(&calls, forms).await;
        let repeats = matches!(&value, Ok(Err(error)) if error.is_connection_dropped());
        let mut replies = self.replies(&calls, value);
        if repeats {
            let may_repeat = |call: &&Call| call.release.is_empty();
            let repeated: Vec<Call> = calls.iter().filter(may_repeat).cloned().collect();
            let value = self.run_batch(&repeated, forms).await;
            let positions = (0..calls.len()).filter(|at| may_repeat(&&calls[*at]));
            for (at, reply) in positions.zip(self.replies(&repeated, value)) {
                replies[at] = reply;
            }
        }
        replies
    }

    async fn run_batch(
        &self,
        calls: &[Call],
        forms: Forms,
    ) -> Result<Result<Value, RedisError>, Error> {
        let Some(first) = calls.first() else {
            return Ok(Ok(Value::Nil));
        };
        let add = |command: &mut Cmd| {
            codec::add_batch(command, &self.prefix, forms, &self.node, calls);
        };
        self.servers.run(Spot::of_call(first), &EXCHANGE, add).await
    }

    /// The replies to calls of one script.
    fn replies(
        &self,
        calls: &[Call],
        value: Result<Result<Value, RedisError>, Error>,
    ) -> Vec<Result<Reply, Error>> {
        let value = match value.and_then(|value| self.describe(value)) {
            Ok(value) => value,
            Err(error) => return vec![Err(error); calls.len()],
        };
        let answers = match &value {
            Value::BulkString(reply) => codec::answers(reply, calls.iter().map(codec::counts)),
            _ => None,
        };
        let Some(answers) = answers else {
            return vec![Err(self.malformed()); calls.len()];
        };
        let replies = calls.iter().zip(answers);
        let reply = |(call, answer)| Ok(self.reply(call, self.describe(answer)?));
        replies.map(reply).collect()
    }

    fn reply(&self, call: &Call, answer: Answer) -> Reply {
        let mut reply = answer.reply;
        if answer.mute {
            self.warn_if_mute(Spot::of_call(call));
        }
        if let Reply::Done(Outcome {
            poll_after: Some(poll_after),
            ..
        }) = &mut reply
            && self.servers.is_deaf(Spot::of_call(call))
        {
            *poll_after = POLL.min(*poll_after);
        }
        reply
    }

    fn describe<T>(&self, answer: Result<T, RedisError>) -> Result<T, Error> {
        answer.map_err(|error| wire::error(&error, self.servers.name()))
    }

    fn malformed(&self) -> Error {
        wire::nonsense(self.servers.name())
    }

    async fn list_tickets(&self, queue: &Queue) -> Result<Inspection, Error> {
        let forms = self.servers.forms().await?;
        let add = |command: &mut Cmd| wire::add_inspection(command, &self.prefix, forms, queue);
        let spot = Spot::of(queue, ASKED_AGAIN);
        let value = self.servers.run(spot, &INSPECT, add).await?;
        wire::inspection(self.describe(value)?).ok_or_else(|| self.malformed())
    }

    async fn evict_ticket(&self, queue: &Queue, ticket: &str) -> Result<bool, Error> {
        if ticket.len() > LONGEST_TICKET {
            return Ok(false);
        }
        let forms = self.servers.forms().await?;
        let add =
            |command: &mut Cmd| codec::add_eviction(command, &self.prefix, forms, queue, ticket);
        let spot = Spot::of(queue, ASKED_AGAIN);
        let value = self.servers.run(spot, &EXCHANGE, add).await?;
        let answers = match self.describe(value)? {
            Value::BulkString(reply) => codec::answers(&reply, [codec::EVICTION].into_iter()),
            _ => None,
        };
        let answer = answers.and_then(|mut answers| answers.pop());
        let answer = self.describe(answer.ok_or_else(|| self.malformed())?)?;
        if answer.mute {
            self.warn_if_mute(spot);
        }
        Ok(answer.existed == [true])
    }

    fn warn_if_mute(&self, spot: Spot) {
        // Without the right to subscribe another warning has said already that queued tickets are polled for.
        if !self.servers.is_deaf(spot) && !self.warned_mute.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                server = &**self.servers.name(),
                "Redis does not let us PUBLISH on the channels {}*: queued tickets are polled for instead",
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
            Err(_) => Err(wire::no_answer(self.servers.name())),
        }
    }
}

impl Session for RedisSession {
    fn exchange(&self, batch: Vec<Call>) -> Replies<'_> {
        match self.servers.are_many() {
            // Each name is sent to its own server, so that one that does not answer delays no others.
            true => each(batch, |call| self.exchange_one(call)),
            false => together(self.exchange_at_one(batch)),
        }
    }

    fn batching(&self) -> Batching {
        match self.servers.are_many() {
            // So many that a shard that does not answer leaves room for the others.
            true => Batching {
                in_flight: 1024,
                ..Batching::SINGLE
            },
            false => BATCHING,
        }
    }

    fn inspect(&self, queue: Queue) -> BoxFuture<'_, Result<Inspection, Error>> {
        Box::pin(async move { self.within(PATIENCE, self.list_tickets(&queue)).await })
    }

    fn evict(&self, queue: Queue, ticket: String) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(async move {
            self.within(PATIENCE, self.evict_ticket(&queue, &ticket))
                .await
        })
    }

    fn check(&self, _lease: Duration) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(self.within(CHECKING, self.try_everything()))
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            fifo: true,
            token: true,
            max_limit: u32::MAX,
            min_lease: Duration::from_secs(1),
        }
    }
}

// === impl Source ===

impl Source {
    pub(super) fn new(code: &'static str) -> Self {
        let hash = Script::new(code).get_hash().to_owned();
        Self { code, hash }
    }

    /// Runs it, by its hash if the server knows it.
    async fn run<F>(
        &self,
        args: impl Fn(&mut Cmd),
        send: impl Fn(Cmd) -> F,
    ) -> Result<Result<Value, RedisError>, Error>
    where
        F: Future<Output = Result<Result<Value, RedisError>, Error>>,
    {
        // Room for a call of few tickets.
        let mut command = Cmd::with_capacity(16, 512);
        command.arg("EVALSHA").arg(&self.hash);
        args(&mut command);
        match send(command).await? {
            Err(error) if wire::is_script_missing(&error) => {}
            answer => return Ok(answer),
        }
        let mut command = redis::cmd("EVAL");
        command.arg(self.code);
        args(&mut command);
        send(command).await
    }
}
