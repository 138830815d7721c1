//! The public builder: which servers, with which settings.

use super::endpoint::Endpoint;
use super::keys::{DEFAULT_PREFIX, checked_prefix};
#[cfg(feature = "redis-sentinel")]
use super::sentinel::Master;
#[cfg(feature = "redis-tls")]
use crate::backend::tls::Tls;
use crate::error::Error;
use redis::Client;
#[cfg(feature = "redis-sentinel")]
use redis::ProtocolVersion;
use std::fmt;
use std::sync::Arc;

/// Permits in a Redis server (6.2 or later, or Valkey), for any number of processes.
///
/// Nothing connects before the first permit is acquired, so a service can start before its Redis server does;
/// [`Coordinator::check`](crate::Coordinator::check) connects now and reports what is wrong.
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
/// A `rediss://` URL connects over TLS (feature `redis-tls`), `Redis::sentinel` through sentinels (feature `redis-sentinel`), and
/// `Redis::cluster` to a cluster (feature `redis-cluster`).
///
/// # Keys
///
/// Three for each name in use: `prefix:limit:{name}` (`mutex` for a mutex) with the permits, `…:queue` and `…:meta`, all in
/// one hash slot; or only `…:single`, as long as one process alone uses the name and has one permit at most (not in a
/// cluster). For one lease after a release, `prefix:guard:<node>` and `prefix:token` prevent that late calls grant again
/// and that tokens decrease. Each process subscribes to one channel, `prefix:push:<node>`. An unused name leaves no keys
/// one lease later; after a crash, an hour later.
///
/// Every record starts with a format version. A call that reads a record with an unknown version fails with
/// [`ErrorKind::Incompatible`](crate::ErrorKind::Incompatible) and changes nothing, so that a rolling upgrade cannot
/// drop queued tickets.
///
/// Applications with the same prefix on one server share their permits.
///
/// # Rights
///
/// With access control lists, these rights are enough (here for the prefix `shop`; a database other than 0 needs
/// `+select` too):
///
/// ```text
/// ACL SETUSER permits on >password resetkeys ~shop:* resetchannels &shop:push:* -@all +eval +evalsha +time
///     +zadd +zrem +zcard +zcount +zrange +zmscore +zremrangebyscore +hmget +hset +hdel +hgetall +get +mget +set
///     +del +exists +pexpire +publish +subscribe
/// ```
///
/// Without the right to the channel, or to `PUBLISH` and `SUBSCRIBE`, queued tickets are polled for ten times a second, and
/// one warning is logged. [`Coordinator::check`](crate::Coordinator::check) reports it as an error.
///
/// A user with the right to publish on such a channel can fake a grant: give that right only to the applications that share
/// the permits.
///
/// The server should not evict keys (`maxmemory-policy noeviction`), or permits are lost under memory pressure. The
/// [guide](crate::guide::redis) describes what is promised, and what can be lost when.
#[derive(Clone)]
pub struct Redis {
    pub(super) deployment: Deployment,
    pub(super) prefix: Arc<str>,
}

/// The servers, and the settings for each.
#[derive(Clone)]
pub(super) enum Deployment {
    Single(Endpoint),
    #[cfg(feature = "redis-sentinel")]
    Sentinel {
        master: String,
        sentinels: Vec<Endpoint>,
        /// The master's settings, with the address of a sentinel.
        settings: Endpoint,
    },
    /// Some of its nodes. The settings of the first one are used for all.
    #[cfg(feature = "redis-cluster")]
    Cluster(Vec<Endpoint>),
}

// === impl Redis ===

impl Redis {
    /// Uses the server at this URL: `redis://[user:password@]host[:port][/db]`, or
    /// `redis+unix:///path/to/socket[?db=0&user=…&pass=…]`. With the feature `redis-tls` also
    /// `rediss://[user:password@]host[:port][/db]`; see `Redis::ca_certificate`.
    ///
    /// Parses the URL only: the connection is made at first use.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) if the URL is malformed. The message never repeats it, because it may hold a password.
    pub fn new(url: impl AsRef<str>) -> Result<Self, Error> {
        Ok(Self::at(Deployment::Single(Endpoint::of_url(
            url.as_ref(),
        )?)))
    }

    /// Uses the server of an existing client, for settings that no URL has.
    ///
    /// Its address, credentials and TLS are used (then enable the features of the `redis` crate for TLS, and install the
    /// provider that `rustls` needs); protocol and TCP settings are chosen by this crate. The type belongs to the `redis`
    /// crate, version 1: no other item of this crate's interface does.
    pub fn from_client(client: Client) -> Self {
        Self::at(Deployment::Single(Endpoint::of_client(client)))
    }

    /// Uses the master that these sentinels watch under this name, also after a failover.
    ///
    /// A sentinel is `host:port`, or a URL (`redis://[user:password@]host:port`) with the sentinel's own credentials. Those for
    /// the master are set by [`credentials`](Self::credentials), its database by [`database`](Self::database). With
    /// `rediss://` all connections to sentinels and servers use TLS.
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
    /// A failover is followed; it can lose the last grants. The [guide](crate::guide::redis#with-sentinel) describes the
    /// settings that stop an old master from granting, and what is promised.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) without sentinels, for a malformed address, and for an empty name.
    #[cfg(feature = "redis-sentinel")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis-sentinel")))]
    pub fn sentinel<S: AsRef<str>>(
        sentinels: impl IntoIterator<Item = S>,
        master: impl Into<String>,
    ) -> Result<Self, Error> {
        let mut sentinels = Endpoint::list(sentinels, "sentinel")?;
        let master = master.into();
        if master.is_empty() {
            return Err(Error::config(
                "the name of the master is empty: use the one in the sentinels' configuration",
            ));
        }
        let mut settings = sentinels[0].clone();
        settings.clear_credentials();
        // Sentinels do not support RESP3.
        for sentinel in &mut sentinels {
            sentinel.set(|settings| settings.set_protocol(ProtocolVersion::RESP2).set_db(0));
        }
        Ok(Self::at(Deployment::Sentinel {
            master,
            sentinels,
            settings,
        }))
    }

    /// Uses the cluster that these nodes belong to. One that answers is enough; it names the others.
    ///
    /// A node is `host:port`, or a URL (`redis://[user:password@]host:port`). The credentials of the first URL are used
    /// for every node, and with `rediss://` all connections use TLS.
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
    /// Moved slots and replaced masters are followed. The [guide](crate::guide::redis#as-a-cluster) describes what is promised
    /// then.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) without nodes, for a malformed address, and for a database other than 0.
    #[cfg(feature = "redis-cluster")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis-cluster")))]
    pub fn cluster<S: AsRef<str>>(nodes: impl IntoIterator<Item = S>) -> Result<Self, Error> {
        let mut nodes = Endpoint::list(nodes, "node of a cluster")?;
        let first = nodes.iter().find(|node| node.has_credentials());
        let settings = first.unwrap_or(&nodes[0]).info().redis_settings().clone();
        for node in &mut nodes {
            if node.info().redis_settings().db() != 0 {
                return Err(Error::config("a cluster has no database other than 0"));
            }
            node.set(|_| settings.clone());
        }
        Ok(Self::at(Deployment::Cluster(nodes)))
    }

    fn at(deployment: Deployment) -> Self {
        Self {
            deployment,
            prefix: DEFAULT_PREFIX.into(),
        }
    }

    /// Sets the user and the password, instead of those in the URL. An empty user is the default one.
    ///
    /// With Sentinel: at the master, not at the sentinels.
    pub fn credentials(mut self, user: impl AsRef<str>, password: impl AsRef<str>) -> Self {
        for endpoint in self.deployment.endpoints() {
            endpoint.set_credentials(user.as_ref(), password.as_ref());
        }
        self
    }

    /// Sets the user and the password for the sentinels.
    #[cfg(feature = "redis-sentinel")]
    pub(super) fn sentinel_credentials(mut self, user: &str, password: &str) -> Self {
        if let Deployment::Sentinel { sentinels, .. } = &mut self.deployment {
            for sentinel in sentinels {
                sentinel.set_credentials(user, password);
            }
        }
        self
    }

    /// Sets the database, instead of the one in the URL.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) for one other than 0 in a cluster.
    pub fn database(mut self, number: u32) -> Result<Self, Error> {
        #[cfg(feature = "redis-cluster")]
        if number != 0 && matches!(self.deployment, Deployment::Cluster(_)) {
            return Err(Error::config("a cluster has no database other than 0"));
        }
        for endpoint in self.deployment.endpoints() {
            endpoint.set(|settings| settings.set_db(number.into()));
        }
        Ok(self)
    }

    /// Sets the certificates (PEM) of the authorities that sign the servers' certificates. Only these are trusted then. Without
    /// this call the authorities of the system are trusted.
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
    /// TLS uses `rustls` with `ring`, independent of the process-wide default provider. A server's certificate and its name are
    /// always checked: with Sentinel and Cluster that is the address that the sentinels or nodes announce
    /// (`replica-announce-ip`, `cluster-announce-hostname`).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) if there is no certificate in it, or the URL is not `rediss://`.
    #[cfg(feature = "redis-tls")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis-tls")))]
    pub fn ca_certificate(mut self, pem: impl AsRef<[u8]>) -> Result<Self, Error> {
        self.deployment.set_tls(|tls| tls.trust(pem.as_ref()))?;
        Ok(self)
    }

    /// Sets the client certificate (PEM, with its intermediate certificates) and its private key (PEM).
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
        self.deployment
            .set_tls(|tls| tls.identify(chain.as_ref(), key.as_ref()))?;
        Ok(self)
    }

    /// Sets the prefix of every key and every channel, before a colon. The default is `permit`.
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

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis")
            .field("server", &self.deployment.name())
            .field("prefix", &self.prefix)
            .finish()
    }
}

// === impl Deployment ===

impl Deployment {
    fn name(&self) -> String {
        match self {
            Self::Single(endpoint) => endpoint.name(),
            #[cfg(feature = "redis-sentinel")]
            Self::Sentinel {
                master,
                sentinels,
                settings,
            } => Master::new(master.clone(), sentinels.clone(), settings.clone()).name(),
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(nodes) => Endpoint::names(nodes),
        }
    }

    /// The servers that store permits.
    fn endpoints(&mut self) -> Vec<&mut Endpoint> {
        match self {
            Self::Single(endpoint) => vec![endpoint],
            #[cfg(feature = "redis-sentinel")]
            Self::Sentinel { settings, .. } => vec![settings],
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(nodes) => nodes.iter_mut().collect(),
        }
    }

    /// The same, and the sentinels.
    #[cfg(feature = "redis-tls")]
    fn all_endpoints(&mut self) -> Vec<&mut Endpoint> {
        match self {
            #[cfg(feature = "redis-sentinel")]
            Self::Sentinel {
                sentinels,
                settings,
                ..
            } => sentinels.iter_mut().chain([settings]).collect(),
            _ => self.endpoints(),
        }
    }

    /// Changes the TLS settings of all servers.
    #[cfg(feature = "redis-tls")]
    fn set_tls(&mut self, set: impl FnOnce(&mut Tls) -> Result<(), Error>) -> Result<(), Error> {
        let plain = || Error::config("certificates need TLS: use a rediss:// URL");
        let mut tls = self.endpoints()[0].tls().ok_or_else(plain)?.clone();
        set(&mut tls)?;
        for endpoint in self.all_endpoints() {
            if let Some(old) = endpoint.tls() {
                *old = tls.clone();
            }
        }
        Ok(())
    }
}
