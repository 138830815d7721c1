//! The etcd backend: a ticket is a key under the etcd lease of its process, and the oldest keys hold.

mod check;
mod connection;
mod errors;
mod exchange;
mod inspect;
mod keys;
mod lease;
mod maintenance;
mod name_state;
mod plan;
mod queue;
mod session;
mod session_state;
#[cfg(test)]
mod tests;
mod watch;
mod write;
mod write_fence;

use crate::backend::authority::{Authority, Host};
use crate::backend::tls::Tls;
use crate::backend::url_parameters::check_parameters;
use crate::backend::{Backend, Events, Open, Session};
use crate::error::Error;
use crate::name::Node;
use connection::{ClusterConnection, host_and_port};
use etcd_client::{Certificate, ConnectOptions, Identity, TlsOptions};
use session::EtcdSession;
use session_state::Shared;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

const DEFAULT_PREFIX: &str = "permit";
const MAX_PREFIX_BYTES: usize = 64;

/// Permits in an etcd cluster (3.4 or later), for any number of processes.
///
/// Connects when the first permit is requested; [`Coordinator::check`](crate::Coordinator::check) connects at once and
/// reports what is wrong.
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
/// A ticket is a key, `prefix/limit/<name>/<ticket>` or `prefix/mutex/<name>/<ticket>`. The tickets of a name are ordered by the
/// revisions that created them, and the oldest `limit` hold. Each process has one more key, `prefix/session/<node>`, which fences
/// off its own late writes. All keys of a process are attached to one etcd lease, which a background task renews: when the
/// process dies, etcd removes them. When the process has no tickets any more, the lease is revoked and nothing is left.
///
/// Two applications on one cluster use different prefixes. With the same prefix they share their permits.
///
/// # Rights
///
/// With authentication enabled, a role that may read and write everything below the prefix is sufficient:
///
/// ```text
/// etcdctl role grant-permission permits readwrite --prefix=true shop/
/// ```
///
/// The [guide](crate::guide::etcd) describes what this backend promises, and how it differs from the others.
///
/// Building this crate with etcd requires the protocol buffers compiler (`protobuf-compiler` and `libprotobuf-dev`).
#[derive(Clone)]
pub struct Etcd {
    /// Each a URL with `http` or `https`.
    servers: Vec<String>,
    prefix: Arc<str>,
    /// User and password.
    credentials: Option<(String, String)>,
    /// For the client crate.
    ca_certificate: Option<Certificate>,
    identity: Option<Identity>,
    /// The same settings for handshakes of this crate. `None` without TLS.
    tls: Option<Tls>,
}

// === impl Etcd ===

impl Etcd {
    /// Creates a backend for the cluster with these servers: `host:port`, `http://host:port`, or `https://host:port`. One is
    /// sufficient; with several, the next one is used when one does not answer.
    ///
    /// Only parses the addresses: the connection is made at first use.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) without any address, for a malformed or repeated one, for one with a user
    /// or a password (see [`credentials`](Self::credentials)), and for a mixture of `http` and `https`.
    pub fn new<E: AsRef<str>>(endpoints: impl IntoIterator<Item = E>) -> Result<Self, Error> {
        let mut servers: Vec<String> = Vec::new();
        for endpoint in endpoints {
            let server = server_url(endpoint.as_ref())?;
            if servers.contains(&server) {
                return Err(Error::config(format!(
                    "the etcd server {} is given twice",
                    host_and_port(&server)
                )));
            }
            servers.push(server);
        }
        let secure = servers.iter().filter(|server| is_secure(server)).count();
        if servers.is_empty() {
            return Err(Error::config(
                "no etcd server is given: at least one is required",
            ));
        }
        if secure != 0 && secure != servers.len() {
            return Err(Error::config(
                "etcd servers with http and with https are mixed: use one of them for all",
            ));
        }
        Ok(Self {
            tls: (secure != 0).then(Tls::default),
            servers,
            prefix: DEFAULT_PREFIX.into(),
            credentials: None,
            ca_certificate: None,
            identity: None,
        })
    }

    /// Parses `etcd://[user:password@]host:port[,host:port…]`, or `etcds://…` for TLS.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for a malformed URL. The message never repeats it, since it may contain a
    /// password.
    pub(crate) fn of_url(url: impl AsRef<str>) -> Result<Self, Error> {
        let malformed = |reason: &dyn fmt::Display| {
            Error::config(format!(
                "the URL of an etcd cluster is malformed: {reason}; expected \
                 etcd://[user:password@]host:port[,host:port…], or etcds://… for TLS"
            ))
        };
        let (scheme, rest) = url.as_ref().split_once("://").unwrap_or_default();
        let scheme = match scheme {
            "etcd" => "http",
            "etcds" => "https",
            _ => return Err(malformed(&"it does not start with etcd:// or etcds://")),
        };
        let (authority, tail) = Authority::parse(rest).map_err(|reason| malformed(&reason))?;
        let (path, query) = tail.split_once('?').unwrap_or((tail, ""));
        check_parameters(query, &[])?;
        if !matches!(path, "" | "/") {
            return Err(malformed(&"text follows the servers"));
        }
        if authority.hosts.iter().any(|host| host.port.is_none()) {
            return Err(malformed(&"a server has no port"));
        }
        let servers = authority.hosts.iter();
        let etcd = Self::new(servers.map(|host| format!("{scheme}://{host}")))?;
        let Some(credentials) = authority.credentials else {
            return Ok(etcd);
        };
        match credentials.password {
            Some(password) => Ok(etcd.credentials(credentials.user, password)),
            None => Err(malformed(&"the user has no password")),
        }
    }

    /// Sets what every key starts with, before a slash. The default is `permit`.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for an empty prefix, one above 64 bytes, one with blanks or control
    /// characters, and one that begins or ends with a slash or has two in a row.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Result<Self, Error> {
        let prefix: String = prefix.into();
        let is_allowed = |c: char| !c.is_whitespace() && !c.is_control();
        let empty_part = prefix.split('/').any(str::is_empty);
        if prefix.len() > MAX_PREFIX_BYTES || !prefix.chars().all(is_allowed) || empty_part {
            return Err(Error::config(format!(
                "the prefix {prefix:?} is invalid: expected 1 to {MAX_PREFIX_BYTES} bytes without blanks and control \
                 characters, and no slash at an end or after another"
            )));
        }
        self.prefix = prefix.into();
        Ok(self)
    }

    /// Sets the user and the password. They replace those of the URL.
    pub fn credentials(mut self, user: impl AsRef<str>, password: impl AsRef<str>) -> Self {
        self.credentials = Some((user.as_ref().to_owned(), password.as_ref().to_owned()));
        self
    }

    /// Trusts this certificate authority (in PEM) instead of those that the system trusts. Requires `https`.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) if it contains no certificate, or the servers are given without `https`.
    pub fn ca_certificate(mut self, pem: impl AsRef<[u8]>) -> Result<Self, Error> {
        self.tls()?.trust(pem.as_ref())?;
        self.ca_certificate = Some(Certificate::from_pem(pem));
        Ok(self)
    }

    /// Presents this certificate (in PEM, with its key) to the servers. Requires `https`.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) if they cannot be read or do not match, or the servers are given without
    /// `https`. The message shows nothing of the key.
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
        self.tls.as_mut().ok_or_else(|| {
            Error::config("certificates require https: give the etcd servers as https://host:port")
        })
    }

    fn options(&self) -> ConnectOptions {
        // Keep-alive detects a server that vanished while a stream is idle. A server without a leader ends its streams.
        let mut options = ConnectOptions::new()
            .with_connect_timeout(Duration::from_secs(1))
            .with_keep_alive(Duration::from_secs(3), Duration::from_secs(2))
            .with_keep_alive_while_idle(false)
            .with_require_leader(true);
        if let Some((user, password)) = &self.credentials {
            options = options.with_user(user, password);
        }
        if self.tls.is_some() {
            let tls = match &self.ca_certificate {
                Some(certificate) => TlsOptions::new().ca_certificate(certificate.clone()),
                None => TlsOptions::new().with_native_roots(),
            };
            options = options.with_tls(match &self.identity {
                Some(identity) => tls.identity(identity.clone()),
                None => tls,
            });
        }
        options
    }

    fn session(self, node: Node, events: Events) -> Arc<EtcdSession> {
        let options = self.options();
        let cluster = ClusterConnection::new(self.servers, options, self.tls);
        Arc::new(EtcdSession {
            shared: Shared::new(cluster, self.prefix, node, events),
        })
    }
}

impl fmt::Debug for Etcd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Etcd")
            .field("servers", &self.servers)
            .field("prefix", &self.prefix)
            .field("user", &self.credentials.as_ref().map(|(user, _)| user))
            .finish_non_exhaustive()
    }
}

impl Backend for Etcd {}

impl Open for Etcd {
    fn open(self, node: Node, events: Events) -> Arc<dyn Session> {
        self.session(node, events)
    }
}

/// Returns the URL of a server in one form. The message of an error never repeats the address, since it may contain a password.
fn server_url(endpoint: &str) -> Result<String, Error> {
    let malformed = |reason: &dyn fmt::Display| {
        Error::config(format!(
            "the address of an etcd server is malformed: {reason}; expected host:port, http://host:port or https://host:port"
        ))
    };
    let (scheme, address) = endpoint.split_once("://").unwrap_or(("http", endpoint));
    if !["http", "https"].contains(&scheme) {
        return Err(malformed(&"the scheme is neither http nor https"));
    }
    if address.contains('@') {
        return Err(Error::config(
            "the address of an etcd server contains a user or a password: set Etcd::credentials instead",
        ));
    }
    let address = address.strip_suffix('/').unwrap_or(address);
    let host = Host::parse(address).map_err(|reason| malformed(&reason))?;
    if !host.name.is_ascii() {
        return Err(malformed(&"the host is not ASCII"));
    }
    if host.port.is_none() {
        return Err(malformed(&"the port is missing"));
    }
    Ok(format!("{scheme}://{host}"))
}

fn is_secure(server: &str) -> bool {
    server.starts_with("https://")
}
