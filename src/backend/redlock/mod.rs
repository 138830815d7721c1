//! The Redlock backend: a mutex over several Redis servers that do not replicate each other.

mod check;
mod quorum_call;
mod server;
mod session;
mod tally;
#[cfg(test)]
mod tests;
mod waiters;

use crate::backend::redis::keys::{DEFAULT_PREFIX, checked_prefix};
use crate::backend::redis::{Redis, SingleServer};
use crate::backend::{Backend, Events, Open, Session};
use crate::error::Error;
use crate::name::Node;
use redis::ConnectionAddr;
use session::RedlockSession;
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

const MIN_SERVERS: usize = 3;

/// Locks in several independent Redis servers (6.2 or later, or Valkey): three, five, or another odd number. A majority of
/// them grants the lock.
///
/// For a [`Mutex`](crate::Mutex) and a semaphore with a limit of 1. Nothing connects before the first lock is acquired;
/// [`Coordinator::check`](crate::Coordinator::check) connects now, to all servers, and reports those that are wrong.
///
/// ```
/// use tower_permit::{Coordinator, Redlock};
///
/// # fn main() -> Result<(), tower_permit::Error> {
/// let redlock = Redlock::new(["redis://one:6379", "redis://two:6379", "redis://three:6379"])?;
/// let permits = Coordinator::new(redlock.prefix("shop")?);
/// let report = permits.mutex("report")?;
/// assert!(permits.semaphore("export", 4).is_err(), "the limit is 1");
/// # Ok(())
/// # }
/// ```
///
/// The [guide](crate::guide::redlock) describes when to choose it and what it promises. Two limits: there is no queue, so that
/// waiters are not served in order, and the very first lock takes one lease.
///
/// # Keys
///
/// On each server, for a name in use: `prefix:redlock:mutex:{name}` with the lock (`limit` for a semaphore), `…:token`, and
/// `…:<node>` for each process that used it. All expire one lease after their last use (a token stays for as long as it is
/// ahead of the server's clock). `prefix:redlock:since` is the marker, and does not expire. Servers should not evict keys
/// (`maxmemory-policy noeviction`).
///
/// These rights are enough, for the prefix `shop`:
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

// === impl Redlock ===

impl Redlock {
    /// Uses the servers at these URLs, each as in [`Redis::new`](crate::Redis::new): an odd number of them, three at least, all different.
    ///
    /// Parses the URLs only: connections are made at first use.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) for a wrong URL, an even number, fewer than three, and the same server twice. (Two names
    /// of one server are found by [`Coordinator::check`](crate::Coordinator::check).) The message never repeats a URL,
    /// because it may hold a password.
    pub fn new<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> Result<Self, Error> {
        let servers = urls.into_iter().enumerate().map(|(at, url)| {
            let wrong = |error| Error::config(format!("server {} of Redlock: {error}", at + 1));
            Redis::new(url).map_err(wrong)
        });
        Self::from_servers(servers.collect::<Result<Vec<Redis>, Error>>()?)
    }

    /// Uses these servers, with the credentials and the TLS that were set for each. Their prefixes are ignored.
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
    /// As [`new`](Self::new), and for servers behind sentinels and for clusters: a failover there can lose a lock that a
    /// majority has counted.
    pub fn from_servers(servers: impl IntoIterator<Item = Redis>) -> Result<Self, Error> {
        let servers: Vec<Redis> = servers.into_iter().collect();
        let mut known = HashSet::new();
        for (at, redis) in servers.iter().enumerate() {
            let Some(address) = redis.address() else {
                return Err(Error::config(format!(
                    "server {} of Redlock is no single server: behind sentinels and in a cluster a failover can lose a lock",
                    at + 1
                )));
            };
            if !known.insert(identity(address)) {
                return Err(Error::config(format!(
                    "server {} of Redlock, {address}, is listed twice: a server has one vote, whatever its databases",
                    at + 1
                )));
            }
        }
        match servers.len() {
            0 => Err(Error::config(
                "Redlock has no servers: use an odd number of them, 3 or more",
            )),
            few if few < MIN_SERVERS => Err(Error::config(format!(
                "Redlock over {few} servers tolerates no failure: use an odd number of them, 3 or more"
            ))),
            even if even % 2 == 0 => Err(Error::config(format!(
                "Redlock over {even} servers tolerates no more failures than over {}: use an odd number of them",
                even - 1
            ))),
            _ => Ok(Self {
                servers,
                prefix: DEFAULT_PREFIX.into(),
            }),
        }
    }

    /// Sets the prefix of every key, before a colon. The default is `permit`.
    ///
    /// # Errors
    ///
    /// As [`Redis::prefix`](crate::Redis::prefix).
    pub fn prefix(mut self, prefix: impl Into<String>) -> Result<Self, Error> {
        self.prefix = checked_prefix(prefix.into())?;
        Ok(self)
    }
}

/// Equal for two URLs of one server, as far as URLs show.
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
    /// Ignores the events: nothing is pushed.
    fn open(self, node: Node, _: Events) -> Arc<dyn Session> {
        let servers = self.servers.into_iter().filter_map(SingleServer::new);
        Arc::new(RedlockSession::new(servers, self.prefix, node))
    }
}
