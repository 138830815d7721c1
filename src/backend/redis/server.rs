//! One server: where it is, who we are there, and how a connection to it is made.

use super::wire;
#[cfg(feature = "redis-tls")]
use crate::backend::tls::{self, System, Tls};
use crate::error::Error;
#[cfg(feature = "redis-tls")]
use redis::RedisError;
use redis::aio::MultiplexedConnection;
#[cfg(feature = "redis-tls")]
use redis::io::tcp::socket2::SockRef;
use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{
    AsyncConnectionConfig, Client, ConnectionInfo, IntoConnectionInfo, ProtocolVersion,
    RedisConnectionInfo,
};
use std::time::Duration;
#[cfg(feature = "redis-tls")]
use tokio::net::TcpStream;

const FORM: &str = "this is no URL of a Redis server: redis://[user:password@]host[:port][/db] is one, \
                    and so is redis+unix:///path/to/socket";

#[cfg(feature = "redis-tls")]
const REDIS: System = System {
    name: "Redis",
    builder: "Redis",
    plain: "a redis:// URL",
};

/// Where a server is and who we are there.
#[derive(Clone)]
pub(super) struct Server {
    client: Client,
    /// `None`: plain, or what the client of [`Server::of_client`] does by itself.
    #[cfg(feature = "redis-tls")]
    tls: Option<Tls>,
}

/// A connection, and what drives it.
pub(super) struct Stream {
    pub(super) redis: MultiplexedConnection,
    /// Ends the driver when the connection is not used any more. The `redis` crate has its own for what it dials itself.
    pub(super) _driver: Option<Driver>,
}

pub(super) struct Driver(#[allow(dead_code)] tokio::task::AbortHandle);

// === impl Server ===

impl Server {
    /// Only looks at the URL.
    pub(super) fn of_url(url: &str) -> Result<Self, Error> {
        let mut url = redis::parse_redis_url(url).ok_or_else(|| Error::config(FORM))?;
        let secure = matches!(url.scheme(), "rediss" | "valkeys");
        if secure {
            if cfg!(not(feature = "redis-tls")) {
                return Err(Error::config(
                    "TLS is not built in: a rediss:// URL needs the feature redis-tls of tower-permit",
                ));
            }
            if url.fragment().is_some() {
                return Err(Error::config(
                    "a server's certificate is always checked, so a rediss:// URL has no fragment such as #insecure: \
                     name the authority that signed it by Redis::authority",
                ));
            }
            // The encryption is ours: the client sees a plain connection.
            url.set_scheme("redis").map_err(|()| Error::config(FORM))?;
        }
        let known = match url.scheme() {
            "redis+unix" | "unix" | "valkey+unix" => &["db", "user", "pass", "protocol"][..],
            _ => &["protocol"],
        };
        if (url.query_pairs()).any(|(key, _)| key == "prefix") {
            return Err(Error::config(
                "a prefix is no part of this URL: Redis::prefix is for it, or Coordinator::from_url, which knows URLs with one",
            ));
        }
        // Passed over in silence, a prefix with a slip in it would be none.
        if (url.query_pairs()).any(|(key, _)| !known.contains(&key.as_ref())) {
            return Err(Error::config(FORM));
        }
        let info = url
            .into_connection_info()
            .map_err(|_| Error::config(FORM))?;
        if info.redis_settings().db() < 0 {
            return Err(Error::config(FORM));
        }
        let client = Client::open(info).map_err(|_| Error::config(FORM))?;
        #[cfg_attr(not(feature = "redis-tls"), allow(unused_mut))]
        let mut server = Self::of_client(client);
        #[cfg(feature = "redis-tls")]
        if secure {
            server.tls = Some(Tls::default());
        }
        Ok(server)
    }

    pub(super) fn of_client(client: Client) -> Self {
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
            #[cfg(feature = "redis-tls")]
            tls: None,
        }
    }

    /// For people: never more than host and port.
    pub(super) fn name(&self) -> String {
        self.info().addr().to_string()
    }

    /// The same at another address.
    #[cfg(any(feature = "redis-cluster", feature = "redis-sentinel"))]
    pub(super) fn at(&self, host: &str, port: u16) -> Self {
        let mut server = self.clone();
        let address = redis::ConnectionAddr::Tcp(host.to_owned(), port);
        server.change(|info| info.set_addr(address));
        server
    }

    /// Each is `host:port` or a URL.
    #[cfg(any(feature = "redis-cluster", feature = "redis-sentinel"))]
    pub(super) fn list<S: AsRef<str>>(
        list: impl IntoIterator<Item = S>,
        what: &str,
    ) -> Result<Vec<Self>, Error> {
        let mut servers = Vec::new();
        for server in list {
            let url = match server.as_ref() {
                url if url.contains("://") => Self::of_url(url)?,
                address => Self::of_url(&format!("redis://{address}")).map_err(|_| {
                    Error::config(format!("a {what} is host:port, or a URL with redis://"))
                })?,
            };
            if matches!(url.info().addr(), redis::ConnectionAddr::Unix(_)) {
                return Err(Error::config(format!(
                    "a {what} is reached by host and port, not by a socket"
                )));
            }
            servers.push(url);
        }
        if servers.is_empty() {
            return Err(Error::config(format!(
                "at least one {what} has to be named"
            )));
        }
        if servers
            .iter()
            .any(|server| server.is_secure() != servers[0].is_secure())
        {
            return Err(Error::config(format!(
                "with TLS each {what} is a rediss:// URL, or none is"
            )));
        }
        Ok(servers)
    }

    #[cfg(any(feature = "redis-cluster", feature = "redis-sentinel"))]
    pub(super) fn names(servers: &[Self]) -> String {
        let names: Vec<_> = servers.iter().map(Self::name).collect();
        names.join(", ")
    }

    #[cfg(feature = "redis-cluster")]
    pub(super) fn has_credentials(&self) -> bool {
        self.info().redis_settings().password().is_some()
    }

    #[cfg(feature = "redis-sentinel")]
    pub(super) fn forget_credentials(&mut self) {
        self.set(|settings| {
            RedisConnectionInfo::default()
                .set_protocol(settings.protocol())
                .set_skip_set_lib_name()
        });
    }

    /// Says another name and password. An empty name is the default user's.
    pub(super) fn be(&mut self, user: &str, password: &str) {
        self.set(|settings| {
            let anew = RedisConnectionInfo::default()
                .set_protocol(settings.protocol())
                .set_db(settings.db())
                .set_skip_set_lib_name()
                .set_password(password);
            match user {
                "" => anew,
                user => anew.set_username(user),
            }
        });
    }

    /// Whether a connection to it is encrypted by us.
    #[cfg(any(feature = "redis-cluster", feature = "redis-sentinel"))]
    pub(super) fn is_secure(&self) -> bool {
        #[cfg(feature = "redis-tls")]
        return self.tls.is_some();
        #[cfg(not(feature = "redis-tls"))]
        false
    }

    pub(super) fn info(&self) -> &ConnectionInfo {
        self.client.get_connection_info()
    }

    #[cfg(feature = "redis-cluster")]
    pub(super) fn host(&self) -> String {
        match self.info().addr() {
            redis::ConnectionAddr::Tcp(host, _) => host.clone(),
            _ => String::new(),
        }
    }

    pub(super) fn change(&mut self, how: impl FnOnce(ConnectionInfo) -> ConnectionInfo) {
        if let Ok(client) = Client::open(how(self.info().clone())) {
            self.client = client;
        }
    }

    pub(super) fn set(&mut self, how: impl FnOnce(RedisConnectionInfo) -> RedisConnectionInfo) {
        self.change(|info| {
            let settings = how(info.redis_settings().clone());
            info.set_redis_settings(settings)
        });
    }

    /// One question over a connection of its own. The caller bounds the time.
    #[cfg(any(feature = "redis-cluster", feature = "redis-sentinel"))]
    pub(super) async fn ask(&self, question: &redis::Cmd) -> Result<redis::Value, Error> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None);
        let mut stream = self.connect(&config).await?;
        let answer = question.query_async(&mut stream.redis).await;
        answer.map_err(|error| wire::error(&error, &self.name()))
    }

    #[cfg(feature = "redis-tls")]
    pub(super) fn tls(&mut self) -> Option<&mut Tls> {
        self.tls.as_mut()
    }

    /// Connects and says who we are. The caller bounds the time.
    pub(super) async fn connect(&self, config: &AsyncConnectionConfig) -> Result<Stream, Error> {
        #[cfg(feature = "redis-tls")]
        if let Some(tls) = &self.tls {
            return self.connect_securely(tls, config).await;
        }
        let redis = self
            .client
            .get_multiplexed_async_connection_with_config(config)
            .await
            .map_err(|error| wire::first_error(&error, &self.name()))?;
        Ok(Stream {
            redis,
            _driver: None,
        })
    }

    #[cfg(feature = "redis-tls")]
    async fn connect_securely(
        &self,
        tls: &Tls,
        config: &AsyncConnectionConfig,
    ) -> Result<Stream, Error> {
        let info = self.client.get_connection_info();
        let redis::ConnectionAddr::Tcp(host, port) = info.addr() else {
            return Err(Error::config("TLS needs a host, not a socket"));
        };
        let failed = |error: RedisError| refused(&error, &self.name());
        let stream = connect(host, *port).await;
        let stream = stream.map_err(|error| failed(error.into()))?;
        let stream = tls.shake_hands(stream, host, &REDIS, &self.name()).await?;
        let (redis, driver) =
            MultiplexedConnection::new_with_config(info.redis_settings(), stream, config.clone())
                .await
                .map_err(failed)?;
        let driver = tokio::spawn(driver).abort_handle();
        Ok(Stream {
            redis,
            _driver: Some(Driver(driver)),
        })
    }
}

/// A server may refuse a client's certificate only after the client thinks that all is well.
#[cfg(feature = "redis-tls")]
fn refused(error: &RedisError, server: &str) -> Error {
    match tls::find_cause(error) {
        Some(cause) => tls::describe(cause, &REDIS, server),
        // By then the words are all that is left of it.
        None if error.is_io_error() && wire::text(error).contains("fatal alert") => {
            tls::certificate_refused(&wire::text(error), &REDIS, server)
        }
        None => wire::first_error(error, server),
    }
}

/// As the client crate connects without TLS.
#[cfg(feature = "redis-tls")]
async fn connect(host: &str, port: u16) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    let socket = SockRef::from(&stream);
    socket.set_tcp_keepalive(&keepalive())?;
    #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED))?;
    Ok(stream)
}

/// Small messages go out at once, and a peer that vanished is noticed.
pub(super) fn tcp_settings() -> TcpSettings {
    let settings = TcpSettings::default()
        .set_nodelay(true)
        .set_keepalive(keepalive());
    #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
    let settings = settings.set_user_timeout(UNACKNOWLEDGED);
    settings
}

/// How long what was sent may stay without a sign of its arrival.
#[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
const UNACKNOWLEDGED: Duration = Duration::from_secs(2);

fn keepalive() -> TcpKeepalive {
    TcpKeepalive::new()
        .with_time(Duration::from_secs(5))
        .with_interval(Duration::from_secs(2))
}

// === impl Driver ===

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}
