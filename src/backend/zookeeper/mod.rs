//! The ZooKeeper backend: a queue is a container node, and each ticket an ephemeral sequential node in it.

mod check;
mod connect;
mod connection;
mod errors;
mod exchange;
mod inspect;
mod maintenance;
mod name_state;
mod path;
mod queue;
mod read;
mod session;
mod session_state;
mod settings;
#[cfg(test)]
mod tests;
mod watch;

use super::authority::{Authority, Host};
use super::url_parameters::check_parameters;
use super::{Backend, Events, Open, Session};
use crate::error::Error;
use crate::name::Node;
use session::ZooKeeperSession;
use session_state::Shared;
use settings::Settings;
use std::fmt;
use std::sync::Arc;

const DEFAULT_PREFIX: &str = "permit";
const MAX_PREFIX_BYTES: usize = 64;
const DEFAULT_PORT: u16 = 2181;

/// Permits in ZooKeeper (3.5.3 or later), for any number of processes.
///
/// Connects when the first permit is requested; [`Coordinator::check`](crate::Coordinator::check) connects at once and reports
/// what is wrong.
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
/// Each name in use is a container node, `/prefix/limit:<name>` or `/prefix/mutex:<name>`, which ZooKeeper removes once it has been
/// empty for a while. Each ticket is an ephemeral sequential node in it. Nothing else is stored; the node of the prefix remains.
/// Two applications use different prefixes. With the same prefix they share their permits.
///
/// # Rights
///
/// The nodes are open to every user, unless [`auth`](Self::auth) is set: then they are open to that user only. The user needs the
/// rights to create, read and delete below `/prefix`, and to create that node if it does not exist.
///
/// # The lease and the session
///
/// A process has one session. Its timeout is a quarter longer than the coordinator's lease, within the bounds of the server (by
/// default 4 s to 40 s). The permits of a process that dies are free when its session has timed out, rounded up to the server's
/// tick. If the lease is longer than the longest session, a check and every call fail and report it: raise `maxSessionTimeout`.
/// When a session ends, every permit of its process is lost at once.
///
/// The [guide](crate::guide::zookeeper) describes what this backend promises, and how it differs from the others.
#[derive(Clone)]
pub struct ZooKeeper {
    settings: Settings,
}

// === impl ZooKeeper ===

impl ZooKeeper {
    /// Creates a backend for the servers of one ensemble, in the form of ZooKeeper's own clients:
    /// `host[:port][,host[:port]…][/chroot]`. The default port is 2181.
    ///
    /// Only parses the text: the connection is made at first use.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) for a malformed or repeated server, and a malformed chroot.
    pub fn new(connect_string: impl AsRef<str>) -> Result<Self, Error> {
        let text = connect_string.as_ref();
        let (servers, chroot) = match text.find('/') {
            Some(slash) => text.split_at(slash),
            None => (text, ""),
        };
        let malformed = |reason: &dyn fmt::Display| {
            Error::config(format!(
                "the servers of a ZooKeeper ensemble are malformed: {reason}; expected \
                 host1:2181,host2:2181,host3:2181/chroot, where only one host is required"
            ))
        };
        let hosts = Host::parse_list(servers).map_err(|reason| malformed(&reason))?;
        let chroot = chroot.trim_end_matches('/');
        let is_node = |node: &str| {
            !matches!(node, "" | "." | ".." | "zookeeper") && !node.contains(char::is_control)
        };
        if !chroot.split('/').skip(1).all(is_node) {
            return Err(malformed(&"the chroot is not a valid path"));
        }
        if let Some(host) = repeated(&hosts) {
            return Err(Error::config(format!(
                "the ZooKeeper server {host} is given twice"
            )));
        }
        Ok(Self {
            settings: Settings {
                servers: servers.into(),
                chroot: chroot.into(),
                prefix: DEFAULT_PREFIX.into(),
                digest: None,
            },
        })
    }

    /// Parses `zookeeper://[user:password@]host[:port][,host[:port]…][/chroot]`. The user and the password are percent-encoded.
    pub(crate) fn of_url(url: &str) -> Result<Self, Error> {
        let malformed = |reason: &dyn fmt::Display| {
            Error::config(format!(
                "the URL of a ZooKeeper ensemble is malformed: {reason}; expected \
                 zookeeper://[user:password@]host[:port][,host[:port]…][/chroot]"
            ))
        };
        let rest = (url.strip_prefix("zookeeper://"))
            .ok_or_else(|| malformed(&"it does not start with zookeeper://"))?;
        let (authority, chroot) = Authority::parse(rest).map_err(|reason| malformed(&reason))?;
        let (chroot, query) = chroot.split_once('?').unwrap_or((chroot, ""));
        check_parameters(query, &[])?;
        if chroot.contains('#') {
            return Err(malformed(&"it has a fragment"));
        }
        let hosts: Vec<String> = authority.hosts.iter().map(Host::to_string).collect();
        let zookeeper = Self::new(format!("{}{chroot}", hosts.join(",")))?;
        match authority.credentials {
            None => Ok(zookeeper),
            Some(credentials) => {
                zookeeper.auth(credentials.user, credentials.password.unwrap_or_default())
            }
        }
    }

    /// Sets the user and the password, for ZooKeeper's `digest` scheme. Every node that is created is then for this user only.
    ///
    /// ZooKeeper does not report a wrong password, only that a right is missing.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) for an empty user, and one with a colon.
    pub fn auth(mut self, user: impl AsRef<str>, password: impl AsRef<str>) -> Result<Self, Error> {
        let (user, password) = (user.as_ref(), password.as_ref());
        if user.is_empty() || user.contains(':') {
            return Err(Error::config(
                "the user for ZooKeeper is empty or contains a colon: give a name without a colon",
            ));
        }
        self.settings.digest = Some(format!("{user}:{password}").into());
        Ok(self)
    }

    /// Sets the node below which everything is stored. The default is `permit`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) for an empty prefix, one above 64 bytes, `.`, `..`, `zookeeper`, and one
    /// with slashes, braces, blanks, control characters or any of `*?[]\^`.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Result<Self, Error> {
        let prefix: String = prefix.into();
        let is_allowed =
            |c: char| !c.is_whitespace() && !c.is_control() && !"/{}*?[]\\^".contains(c);
        let is_reserved = matches!(prefix.as_str(), "" | "." | ".." | "zookeeper");
        if is_reserved || prefix.len() > MAX_PREFIX_BYTES || !prefix.chars().all(is_allowed) {
            return Err(Error::config(format!(
                "the prefix {prefix:?} is invalid: expected 1 to {MAX_PREFIX_BYTES} bytes without slashes, braces, blanks, \
                 control characters and any of *?[]\\^, and none of . .. zookeeper"
            )));
        }
        self.settings.prefix = prefix.into();
        Ok(self)
    }
}

/// Returns the first server that is given twice.
fn repeated(hosts: &[Host]) -> Option<&Host> {
    let address = |host: &Host| (host.name.clone(), host.port.unwrap_or(DEFAULT_PORT));
    let is_repeated = |at: usize| {
        hosts[..at]
            .iter()
            .any(|host| address(host) == address(&hosts[at]))
    };
    (0..hosts.len())
        .find(|at| is_repeated(*at))
        .map(|at| &hosts[at])
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
            shared: Shared::new(self.settings, node, events),
        })
    }
}
