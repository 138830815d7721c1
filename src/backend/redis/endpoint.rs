//! The address, credentials and TLS settings of one server, and how to connect to it.

use super::errors;
#[cfg(feature = "redis-tls")]
use crate::backend::tls::{self, System, Tls};
use crate::backend::url_parameters::check_parameters;
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

const FORM: &str = "this is no URL of a Redis server: use redis://[user:password@]host[:port][/db], \
                    or redis+unix:///path/to/socket";

#[cfg(feature = "redis-tls")]
const REDIS: System = System {
    name: "Redis",
    builder: "Redis",
    plain: "a redis:// URL",
};

/// Address, credentials and TLS settings of a server.
#[derive(Clone)]
pub(super) struct Endpoint {
    client: Client,
    /// `None`: plain, or what the client of [`Endpoint::of_client`] does itself.
    #[cfg(feature = "redis-tls")]
    tls: Option<Tls>,
}

/// A connection and its driver.
pub(super) struct Stream {
    pub(super) redis: MultiplexedConnection,
    /// Ends the driver when the connection is dropped. `None`: the `redis` crate drives it.
    pub(super) _driver: Option<Driver>,
}

pub(super) struct Driver(#[allow(dead_code)] tokio::task::AbortHandle);

// === impl Endpoint ===

impl Endpoint {
    /// Parses a URL. Does not connect.
    pub(super) fn of_url(url: &str) -> Result<Self, Error> {
        let has_fragment = url.contains('#');
        let malformed = || match has_fragment {
            true => Error::config(
                "the URL of a Redis server contains `#`: in a user or password it is written %23",
            ),
            false => Error::config(FORM),
        };
        let mut url = redis::parse_redis_url(url).ok_or_else(malformed)?;
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
                     set the authority that signed it with Redis::ca_certificate",
                ));
            }
            // This crate encrypts: the client gets a plain connection.
            url.set_scheme("redis").map_err(|()| Error::config(FORM))?;
        }
        if has_fragment {
            return Err(malformed());
        }
        let known = match url.scheme() {
            "redis+unix" | "unix" | "valkey+unix" => &["db", "user", "pass"][..],
            _ => &[],
        };
        if (url.query_pairs()).any(|(key, _)| key == "prefix") {
            return Err(Error::config(
                "this URL has a prefix, which only Coordinator::from_url reads: set it with Redis::prefix",
            ));
        }
        check_parameters(url.query().unwrap_or_default(), known)?;
        // The parser of the redis crate and not `authority.rs`: it also reads paths of Unix sockets and their parameters, and returns
        // the settings that its client needs.
        let info = url
            .into_connection_info()
            .map_err(|_| Error::config(FORM))?;
        if info.redis_settings().db() < 0 {
            return Err(Error::config(FORM));
        }
        let client = Client::open(info).map_err(|_| Error::config(FORM))?;
        #[cfg_attr(not(feature = "redis-tls"), allow(unused_mut))]
        let mut endpoint = Self::of_client(client);
        #[cfg(feature = "redis-tls")]
        if secure {
            endpoint.tls = Some(Tls::default());
        }
        Ok(endpoint)
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

    /// Host and port, for messages.
    pub(super) fn name(&self) -> String {
        self.info().addr().to_string()
    }

    /// Returns the same settings at another address.
    #[cfg(any(feature = "redis-cluster", feature = "redis-sentinel"))]
    pub(super) fn at(&self, host: &str, port: u16) -> Self {
        let mut endpoint = self.clone();
        let address = redis::ConnectionAddr::Tcp(host.to_owned(), port);
        endpoint.change(|info| info.set_addr(address));
        endpoint
    }

    /// Parses a list of `host:port` or URLs.
    #[cfg(any(feature = "redis-cluster", feature = "redis-sentinel"))]
    pub(super) fn list<S: AsRef<str>>(
        list: impl IntoIterator<Item = S>,
        what: &str,
    ) -> Result<Vec<Self>, Error> {
        let mut endpoints = Vec::new();
        for text in list {
            let endpoint = match text.as_ref() {
                url if url.contains("://") => Self::of_url(url)?,
                address => Self::of_url(&format!("redis://{address}")).map_err(|_| {
                    Error::config(format!("a {what} is host:port, or a URL with redis://"))
                })?,
            };
            if matches!(endpoint.info().addr(), redis::ConnectionAddr::Unix(_)) {
                return Err(Error::config(format!(
                    "a {what} has a host and a port, not a socket"
                )));
            }
            endpoints.push(endpoint);
        }
        if endpoints.is_empty() {
            return Err(Error::config(format!("at least one {what} is needed")));
        }
        let secure = endpoints.iter().filter(|it| it.is_secure()).count();
        if secure > 0 && secure < endpoints.len() {
            return Err(Error::config(format!(
                "some, but not each {what} is a rediss:// URL: use TLS for all or for none"
            )));
        }
        Ok(endpoints)
    }

    #[cfg(any(feature = "redis-cluster", feature = "redis-sentinel"))]
    pub(super) fn names(endpoints: &[Self]) -> String {
        let names: Vec<_> = endpoints.iter().map(Self::name).collect();
        names.join(", ")
    }

    #[cfg(feature = "redis-cluster")]
    pub(super) fn has_credentials(&self) -> bool {
        self.info().redis_settings().password().is_some()
    }

    #[cfg(feature = "redis-sentinel")]
    pub(super) fn clear_credentials(&mut self) {
        self.set(|settings| {
            RedisConnectionInfo::default()
                .set_protocol(settings.protocol())
                .set_skip_set_lib_name()
        });
    }

    /// Sets the credentials. An empty user is the default one.
    pub(super) fn set_credentials(&mut self, user: &str, password: &str) {
        self.set(|settings| {
            let settings = RedisConnectionInfo::default()
                .set_protocol(settings.protocol())
                .set_db(settings.db())
                .set_skip_set_lib_name()
                .set_password(password);
            match user {
                "" => settings,
                user => settings.set_username(user),
            }
        });
    }

    /// This crate encrypts the connection.
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

    /// Sends one command over a connection made for it. The caller bounds the time.
    #[cfg(any(feature = "redis-cluster", feature = "redis-sentinel"))]
    pub(super) async fn query(&self, command: &redis::Cmd) -> Result<redis::Value, Error> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None);
        let mut stream = self.connect(&config).await?;
        let answer = command.query_async(&mut stream.redis).await;
        answer.map_err(|error| errors::describe(&error, &self.name()))
    }

    #[cfg(feature = "redis-tls")]
    pub(super) fn tls(&mut self) -> Option<&mut Tls> {
        self.tls.as_mut()
    }

    /// Connects and authenticates. The caller bounds the time.
    pub(super) async fn connect(&self, config: &AsyncConnectionConfig) -> Result<Stream, Error> {
        #[cfg(feature = "redis-tls")]
        if let Some(tls) = &self.tls {
            return self.connect_securely(tls, config).await;
        }
        let redis = self
            .client
            .get_multiplexed_async_connection_with_config(config)
            .await
            .map_err(|error| errors::describe_first(&error, &self.name()))?;
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

/// Describes the error of a TLS connection. A server may refuse the client's certificate only after the handshake.
#[cfg(feature = "redis-tls")]
fn refused(error: &RedisError, server: &str) -> Error {
    match tls::find_cause(error) {
        Some(cause) => tls::describe(cause, &REDIS, server),
        // By then only the text of the alert is left.
        None if error.is_io_error() && errors::text(error).contains("fatal alert") => {
            tls::certificate_refused(&errors::text(error), &REDIS, server)
        }
        None => errors::describe_first(error, server),
    }
}

/// Connects like the client crate does without TLS.
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

/// Small messages are sent at once, and a vanished peer is detected.
pub(super) fn tcp_settings() -> TcpSettings {
    let settings = TcpSettings::default()
        .set_nodelay(true)
        .set_keepalive(keepalive());
    #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
    let settings = settings.set_user_timeout(UNACKNOWLEDGED);
    settings
}

/// How long sent bytes may stay unacknowledged.
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
