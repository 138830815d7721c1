//! The ZooKeeper backend: a queue is a container node, a ticket an ephemeral sequential node in it.

mod link;
mod path;
mod recipe;
mod room;
#[cfg(test)]
mod tests;
mod watch;
mod words;

use super::{
    Backend, Batching, Call, Capabilities, Events, Inspection, Open, Replies, Session, each,
};
use crate::error::Error;
use crate::name::{Node, Queue};
use futures_util::future::BoxFuture;
use link::Link;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

const PREFIX: &str = "permit";
const LONGEST_PREFIX: usize = 64;
/// An inspection and an eviction take no longer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Neither does a check.
const CHECKING: Duration = Duration::from_secs(3);

/// Permits in ZooKeeper (3.5.3 or later), for any number of processes.
///
/// Nothing connects before the first permit is asked for; [`Coordinator::check`](crate::Coordinator::check) connects now and
/// says what is wrong.
///
/// ```
/// use tower_permit::{Coordinator, ZooKeeper};
///
/// # fn main() -> Result<(), tower_permit::Error> {
/// let zookeeper = ZooKeeper::new("zk1:2181,zk2:2181,zk3:2181")?.prefix("shop")?;
/// let permits = Coordinator::new(zookeeper);
/// # Ok(())
/// # }
/// ```
///
/// # Nodes
///
/// Each name in use is a container node, `/prefix/limit:<name>` or `/prefix/mutex:<name>`, which ZooKeeper removes by itself
/// when it has been empty for a while. Each ticket is an ephemeral sequential node in it. Nothing else is stored; the node
/// of the prefix stays. Two applications choose different prefixes, or they share their permits.
///
/// # Rights
///
/// Our nodes are open to everybody, unless [`auth`](Self::auth) is used: then only to that user. The user has to be allowed to
/// create, read and delete below `/prefix`, and to create that node unless it is there.
///
/// # The lease and the session
///
/// A process has one session, whose timeout is a quarter longer than the coordinator's lease and within the bounds of the
/// server (by default 4 s to 40 s). A process that dies is out when its session is: after that time, rounded up to the
/// server's tick. With a lease that is longer than the longest session a check and every call fail and say so: raise
/// `maxSessionTimeout`. When a session ends, every permit of its process is lost at once.
///
/// What it promises, and what differs from other backends, is a page of the [guide](crate::guide::zookeeper).
#[derive(Clone)]
pub struct ZooKeeper {
    settings: Settings,
}

#[derive(Clone)]
struct Settings {
    servers: Arc<str>,
    /// The node that everything is below, without a slash at its end.
    chroot: Arc<str>,
    prefix: Arc<str>,
    /// `user:password`.
    digest: Option<Arc<str>>,
}

/// The session of one node.
struct ZooKeeperSession {
    link: Arc<Link>,
}

// === impl ZooKeeper ===

impl ZooKeeper {
    /// The servers of one ensemble, as ZooKeeper's own clients take them: `host[:port][,host[:port]…][/chroot]`. The port
    /// is 2181 if not given.
    ///
    /// Only looks at it: the connection is made at first use.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) if it cannot work.
    pub fn new(connect_string: impl AsRef<str>) -> Result<Self, Error> {
        let text = connect_string.as_ref();
        let (servers, chroot) = match text.find('/') {
            Some(slash) => text.split_at(slash),
            None => (text, ""),
        };
        let chroot = chroot.trim_end_matches('/');
        let fine_node = |node: &str| {
            !matches!(node, "" | "." | ".." | "zookeeper") && !node.contains(char::is_control)
        };
        let known: Option<Vec<_>> = servers.split(',').map(host_and_port).collect();
        let Some(known) = known.filter(|_| chroot.split('/').skip(1).all(fine_node)) else {
            return Err(Error::config(
                "these are no servers of a ZooKeeper ensemble: host1:2181,host2:2181,host3:2181/chroot is how they are written, \
                 where all but one host may be left out",
            ));
        };
        if let Some((host, port)) = twice(&known) {
            return Err(Error::config(format!(
                "the ZooKeeper server {host}:{port} is given twice"
            )));
        }
        Ok(Self {
            settings: Settings {
                servers: servers.into(),
                chroot: chroot.into(),
                prefix: PREFIX.into(),
                digest: None,
            },
        })
    }

    /// `zookeeper://[user:password@]servers[/chroot]`, user and password percent-encoded.
    pub(crate) fn of_url(url: &str) -> Result<Self, Error> {
        let rest = url.strip_prefix("zookeeper://").unwrap_or_default();
        if rest.contains('?') {
            return Err(Error::config(
                "the URL of a ZooKeeper ensemble has no parameter but prefix",
            ));
        }
        let Some((user, servers)) = rest.rsplit_once('@') else {
            return Self::new(rest);
        };
        let (user, password) = user.split_once(':').unwrap_or((user, ""));
        let decode = |text| percent_encoding::percent_decode_str(text).decode_utf8_lossy();
        Self::new(servers)?.auth(decode(user), decode(password))
    }

    /// Who we are, by ZooKeeper's `digest` scheme. Every node that we create is then for this user only.
    ///
    /// ZooKeeper does not say that a password is wrong: it only finds that a right is missing.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) for an empty user, and one with a colon.
    pub fn auth(mut self, user: impl AsRef<str>, password: impl AsRef<str>) -> Result<Self, Error> {
        let (user, password) = (user.as_ref(), password.as_ref());
        if user.is_empty() || user.contains(':') {
            return Err(Error::config("a user has a name, without a colon"));
        }
        self.settings.digest = Some(format!("{user}:{password}").into());
        Ok(self)
    }

    /// The node below which everything is stored. `permit` if not set.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) for an empty prefix, one above 64 bytes, `.`, `..`, `zookeeper`, and one
    /// with slashes, braces, blanks, control characters or any of `*?[]\^`.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Result<Self, Error> {
        let prefix: String = prefix.into();
        let fits = |c: char| !c.is_whitespace() && !c.is_control() && !"/{}*?[]\\^".contains(c);
        let taken = matches!(prefix.as_str(), "" | "." | ".." | "zookeeper");
        if taken || prefix.len() > LONGEST_PREFIX || !prefix.chars().all(fits) {
            return Err(Error::config(format!(
                "a prefix has 1 to {LONGEST_PREFIX} bytes and no slashes, braces, blanks, control characters or any of *?[]\\^, \
                 and is none of . .. zookeeper"
            )));
        }
        self.settings.prefix = prefix.into();
        Ok(self)
    }
}

fn twice<'a>(servers: &[(&'a str, u16)]) -> Option<(&'a str, u16)> {
    let again = |(at, server)| servers[..at].contains(&server);
    let mut all = servers.iter().copied().enumerate();
    all.find(|it| again(*it)).map(|(_, server)| server)
}

/// The port is 2181 if not given. `None` if it is no server.
fn host_and_port(server: &str) -> Option<(&str, u16)> {
    let (host, port) = match server.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, port),
        Some(_) if server.ends_with(']') => (server, "2181"),
        Some(_) => return None,
        None => (server, "2181"),
    };
    let host = match host.strip_prefix('[') {
        Some(host) => host.strip_suffix(']')?,
        None => host,
    };
    let fits = |c: char| c.is_alphanumeric() || ".-_:%".contains(c);
    let port = port.parse().ok().filter(|port| *port > 0)?;
    (!host.is_empty() && host.chars().all(fits)).then_some((host, port))
}

impl fmt::Debug for ZooKeeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZooKeeper")
            .field("servers", &self.settings.servers)
            .field("base", &self.settings.base())
            .finish_non_exhaustive()
    }
}

impl Backend for ZooKeeper {}

impl Open for ZooKeeper {
    fn open(self, node: Node, events: Events) -> Arc<dyn Session> {
        Arc::new(ZooKeeperSession {
            link: Link::new(self.settings, node, events),
        })
    }
}

// === impl Settings ===

impl Settings {
    fn base(&self) -> String {
        format!("{}/{}", self.chroot, self.prefix)
    }
}

// === impl ZooKeeperSession ===

impl ZooKeeperSession {
    async fn within<T>(
        &self,
        time: Duration,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let done = tokio::time::timeout(time, work).await;
        done.unwrap_or_else(|_| Err(words::silent(self.link.servers())))
    }
}

impl Session for ZooKeeperSession {
    fn exchange(&self, batch: Vec<Call>) -> Replies<'_> {
        each(batch, |call| async move { self.link.exchange(&call).await })
    }

    fn batching(&self) -> Batching {
        Batching::SINGLE
    }

    fn inspect(&self, queue: Queue) -> BoxFuture<'_, Result<Inspection, Error>> {
        Box::pin(async move { self.within(PATIENCE, self.link.inspect(&queue)).await })
    }

    fn evict(&self, queue: Queue, ticket: String) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(async move {
            self.within(PATIENCE, self.link.evict(&queue, &ticket))
                .await
        })
    }

    fn check(&self, lease: Duration) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(self.within(CHECKING, self.link.check(lease)))
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
