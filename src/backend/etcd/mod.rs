//! The etcd backend: a ticket is a key under the lease of its process, and the oldest keys hold.

mod desk;
mod exchange;
mod lease;
mod line;
mod link;
mod operator;
#[cfg(test)]
mod tests;
mod watch;
mod wire;

use crate::backend::tls::Tls;
use crate::backend::{
    Backend, Batching, Call, Capabilities, Events, Inspection, Open, Replies, Session, each,
};
use crate::error::{Error, ErrorKind};
use crate::name::{Node, Queue};
use desk::Desk;
use etcd_client::{Certificate, ConnectOptions, Identity, TlsOptions};
use futures_util::future::BoxFuture;
use lease::{FenceSlot, KeeperSlot, Slot};
use link::Link;
use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch as alive;
use tokio::time::{Instant, timeout};

const PREFIX: &str = "permit";
const LONGEST_PREFIX: usize = 64;
/// An inspection and an eviction take no longer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Neither does a check.
const CHECKING: Duration = Duration::from_secs(3);
/// Below so many names nobody looks whether some can be forgotten.
const FEW: usize = 64;

/// Permits in an etcd cluster (3.4 or later), for any number of processes.
///
/// Nothing connects before the first permit is asked for; [`Coordinator::check`](crate::Coordinator::check) connects now
/// and says what is wrong.
///
/// ```
/// use tower_permit::{Coordinator, Etcd};
///
/// # fn main() -> Result<(), tower_permit::Error> {
/// let etcd = Etcd::new(["10.0.0.1:2379", "10.0.0.2:2379", "10.0.0.3:2379"])?.prefix("shop")?;
/// let permits = Coordinator::new(etcd);
/// # Ok(())
/// # }
/// ```
///
/// # Keys
///
/// A ticket is a key, `prefix/limit/<name>/<ticket>` or `prefix/mutex/<name>/<ticket>`; its place in line is the revision that
/// created it, and the oldest `limit` of a name hold. Each process has one more key, `prefix/session/<node>`, by which it
/// fences off its own writes that might come late. All keys of a process stand under one lease that a task of ours renews:
/// when the process dies, etcd removes them. When nobody uses it any more, it is given back, and nothing is left.
///
/// Two applications on one cluster choose different prefixes, or they share their permits.
///
/// # Rights
///
/// With authentication enabled, a role that may read and write everything below the prefix is all that is needed:
///
/// ```text
/// etcdctl role grant-permission permits readwrite --prefix=true shop/
/// ```
///
/// What it promises, and what differs from other backends, is a page of the [guide](crate::guide::etcd).
///
/// To build it takes the protocol buffers compiler (`protobuf-compiler` and `libprotobuf-dev`).
#[derive(Clone)]
pub struct Etcd {
    servers: Vec<String>,
    prefix: Arc<str>,
    user: Option<(String, String)>,
    /// What the client crate takes.
    authority: Option<Certificate>,
    identity: Option<Identity>,
    /// The same, `None` without TLS.
    tls: Option<Tls>,
}

/// The session of one node. Its tasks end with it.
struct EtcdSession {
    inner: Arc<Inner>,
}

struct Inner {
    link: Arc<Link>,
    prefix: Arc<str>,
    node: Node,
    events: Events,
    book: Mutex<Book>,
    /// Closed when the session is gone.
    alive: alive::Sender<()>,
}

/// Everything that a session knows. Never locked across an await, nor while an event is sent.
struct Book {
    desks: HashMap<Queue, Desk>,
    lease: Slot,
    fence: FenceSlot,
    keeper: KeeperSlot,
    /// The lease of the gates.
    pace: Duration,
    /// Since when nobody holds, waits or speaks.
    idle_since: Option<Instant>,
    /// Counts the watches.
    watches: u64,
    /// At so many names it is time to forget some.
    many: usize,
}

// === impl Etcd ===

impl Etcd {
    /// The cluster with these nodes: `host:port`, `http://host:port`, or `https://host:port`. One is enough; with several, the
    /// next is asked when one does not answer.
    ///
    /// Only looks at the addresses: the connection is made at first use.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for no address at all, for one that is none, one given twice, one with a user or a
    /// password in it (see [`credentials`](Self::credentials)), and for a mixture of `http` and `https`.
    pub fn new<E: AsRef<str>>(endpoints: impl IntoIterator<Item = E>) -> Result<Self, Error> {
        let mut servers: Vec<String> = Vec::new();
        for endpoint in endpoints {
            let server = address(endpoint.as_ref())?;
            if servers.contains(&server) {
                return Err(Error::config(format!(
                    "the etcd node {} is given twice",
                    link::shown(&server)
                )));
            }
            servers.push(server);
        }
        let secure = servers.iter().filter(|server| is_secure(server)).count();
        if servers.is_empty() {
            return Err(Error::config("an etcd cluster has at least one node"));
        }
        if secure != 0 && secure != servers.len() {
            return Err(Error::config(
                "either all nodes of an etcd cluster are asked over https, or none",
            ));
        }
        Ok(Self {
            tls: (secure != 0).then(Tls::default),
            servers,
            prefix: PREFIX.into(),
            user: None,
            authority: None,
            identity: None,
        })
    }

    /// The cluster of a URL: `etcd://[user:password@]host:port[,host:port…]`, or `etcds://…` over TLS.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] if the URL cannot work. The message never repeats it, for it may hold a password.
    pub(crate) fn of_url(url: impl AsRef<str>) -> Result<Self, Error> {
        const FORM: &str = "this is no URL of an etcd cluster: etcd://[user:password@]host:port[,host:port…] is one, and so \
                            is etcds://… over TLS";
        let (scheme, rest) = url.as_ref().split_once("://").unwrap_or_default();
        let scheme = match scheme {
            "etcd" => "http",
            "etcds" => "https",
            _ => return Err(Error::config(FORM)),
        };
        let (user, hosts) = match rest.rsplit_once('@') {
            Some((user, hosts)) => (Some(user), hosts),
            None => (None, rest),
        };
        let hosts = hosts.strip_suffix('/').unwrap_or(hosts).split(',');
        let etcd = Self::new(hosts.map(|host| format!("{scheme}://{host}")))?;
        let Some(user) = user else {
            return Ok(etcd);
        };
        let (name, password) = user.split_once(':').ok_or_else(|| Error::config(FORM))?;
        let plain = |text: &str| {
            let text = percent_encoding::percent_decode_str(text).decode_utf8();
            text.map(|text| text.into_owned())
                .map_err(|_| Error::config(FORM))
        };
        Ok(etcd.credentials(plain(name)?, plain(password)?))
    }

    /// What every key starts with, before a slash. `permit` if not set.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for an empty prefix, one above 64 bytes, one with blanks or control characters, and one that
    /// begins or ends with a slash or has two in a row.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Result<Self, Error> {
        let prefix: String = prefix.into();
        let fits = |c: char| !c.is_whitespace() && !c.is_control();
        let empty_part = prefix.split('/').any(str::is_empty);
        if prefix.len() > LONGEST_PREFIX || !prefix.chars().all(fits) || empty_part {
            return Err(Error::config(format!(
                "a prefix has 1 to {LONGEST_PREFIX} bytes, no blanks or control characters, and no slash at an end or after another"
            )));
        }
        self.prefix = prefix.into();
        Ok(self)
    }

    /// The user and the password, instead of those in the URL.
    pub fn credentials(mut self, user: impl AsRef<str>, password: impl AsRef<str>) -> Self {
        self.user = Some((user.as_ref().to_owned(), password.as_ref().to_owned()));
        self
    }

    /// Trusts this authority (a certificate in PEM) instead of those that the system trusts. Only over `https`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] if there is no certificate in it, or the nodes are not asked over `https`.
    pub fn ca_certificate(mut self, pem: impl AsRef<[u8]>) -> Result<Self, Error> {
        self.tls()?.trust(pem.as_ref())?;
        self.authority = Some(Certificate::from_pem(pem));
        Ok(self)
    }

    /// Shows this certificate (in PEM, with its key) to the nodes. Only over `https`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] if they cannot be read or do not belong together, or the nodes are not asked over `https`.
    /// The message shows nothing of the key.
    pub fn client_certificate(
        mut self,
        chain: impl AsRef<[u8]>,
        key: impl AsRef<[u8]>,
    ) -> Result<Self, Error> {
        self.tls()?.identify(chain.as_ref(), key.as_ref())?;
        self.identity = Some(Identity::from_pem(chain, key));
        Ok(self)
    }

    fn tls(&mut self) -> Result<&mut Tls, Error> {
        const PLAIN: &str = "certificates need https: give the etcd nodes as https://host:port";
        self.tls.as_mut().ok_or_else(|| Error::config(PLAIN))
    }

    fn options(&self) -> ConnectOptions {
        // A node that vanished is noticed on idle streams too; one without a leader ends them.
        let mut options = ConnectOptions::new()
            .with_connect_timeout(Duration::from_secs(1))
            .with_keep_alive(Duration::from_secs(3), Duration::from_secs(2))
            .with_keep_alive_while_idle(false)
            .with_require_leader(true);
        if let Some((name, password)) = &self.user {
            options = options.with_user(name, password);
        }
        if self.tls.is_some() {
            let tls = match &self.authority {
                Some(authority) => TlsOptions::new().ca_certificate(authority.clone()),
                None => TlsOptions::new().with_native_roots(),
            };
            options = options.with_tls(match &self.identity {
                Some(identity) => tls.identity(identity.clone()),
                None => tls,
            });
        }
        options
    }
}

impl fmt::Debug for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Etcd")
            .field("servers", &self.servers)
            .field("prefix", &self.prefix)
            .field("user", &self.user.as_ref().map(|(name, _)| name))
            .finish_non_exhaustive()
    }
}

impl Backend for Etcd {}

impl Open for Etcd {
    fn open(self, node: Node, events: Events) -> Arc<dyn Session> {
        self.session(node, events)
    }
}

impl Etcd {
    fn session(self, node: Node, events: Events) -> Arc<EtcdSession> {
        let options = self.options();
        Arc::new(EtcdSession {
            inner: Arc::new(Inner {
                link: Link::new(self.servers, options, self.tls),
                prefix: self.prefix,
                node,
                events,
                book: Mutex::new(Book::new()),
                alive: alive::Sender::new(()),
            }),
        })
    }
}

/// An address in one form. The message never repeats it, for it may hold a password.
fn address(endpoint: &str) -> Result<String, Error> {
    const FORM: &str =
        "this is no address of an etcd node: host:port, http://host:port and https://host:port are";
    let full = match endpoint.contains("://") {
        true => endpoint.to_owned(),
        false => format!("http://{endpoint}"),
    };
    let uri: http::Uri = full.parse().map_err(|_| Error::config(FORM))?;
    let authority = uri.authority().ok_or_else(|| Error::config(FORM))?;
    if authority.as_str().contains('@') {
        return Err(Error::config(
            "a user and a password are no part of an etcd node's address: give them to Etcd::credentials",
        ));
    }
    let scheme = uri.scheme_str().filter(|s| ["http", "https"].contains(s));
    let (Some(scheme), Some(port)) = (scheme, authority.port_u16()) else {
        return Err(Error::config(FORM));
    };
    if !matches!(uri.path(), "" | "/") || uri.query().is_some() || authority.host().is_empty() {
        return Err(Error::config(FORM));
    }
    Ok(format!("{scheme}://{}:{port}", authority.host()))
}

fn is_secure(server: &str) -> bool {
    server.starts_with("https://")
}

// === impl Inner ===

impl Inner {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn held_lease(&self) -> Option<i64> {
        match &self.book().lease {
            Slot::Held(tenure) => Some(tenure.id),
            _ => None,
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // Whatever is still out goes with the lease; if nothing is, it is given back now.
        let idle = self.book().desks.values().all(Desk::is_empty);
        if idle
            && let (Some(lease), Ok(runtime)) =
                (self.held_lease(), tokio::runtime::Handle::try_current())
        {
            let link = self.link.clone();
            runtime.spawn(async move {
                let ask = |client: etcd_client::Client| async move {
                    client.lease_client().revoke(lease).await
                };
                let _ = timeout(PATIENCE, link.call(ask)).await;
            });
        }
    }
}

// === impl Book ===

impl Book {
    fn new() -> Self {
        Self {
            desks: HashMap::new(),
            lease: Slot::default(),
            fence: FenceSlot::default(),
            keeper: KeeperSlot::default(),
            pace: Duration::from_secs(1),
            idle_since: None,
            watches: 0,
            many: FEW,
        }
    }

    /// Forgets names that nobody has spoken of for a lease. The keeper does so too, while there is one.
    fn tidy(&mut self, now: Instant) {
        if self.desks.len() >= self.many {
            self.desks.retain(|_, desk| !desk.is_over(now));
            self.many = FEW.max(self.desks.len() * 2);
        }
    }
}

// === impl EtcdSession ===

impl EtcdSession {
    async fn within<T>(
        &self,
        time: Duration,
        asked: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        timeout(time, asked).await.unwrap_or_else(|_| {
            Err(Error::new(
                ErrorKind::Unavailable,
                format!("etcd did not answer within {time:?}"),
            ))
        })
    }
}

impl Session for EtcdSession {
    fn exchange(&self, batch: Vec<Call>) -> Replies<'_> {
        each(batch, |call| async move { self.inner.say(&call).await })
    }

    fn batching(&self) -> Batching {
        Batching::SINGLE
    }

    fn inspect(&self, queue: Queue) -> BoxFuture<'_, Result<Inspection, Error>> {
        Box::pin(async move { self.within(PATIENCE, self.inner.inspect(&queue)).await })
    }

    fn evict(&self, queue: Queue, ticket: String) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(async move {
            self.within(PATIENCE, self.inner.evict(&queue, &ticket))
                .await
        })
    }

    fn check(&self, _lease: Duration) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move { self.within(CHECKING, self.inner.check()).await })
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
