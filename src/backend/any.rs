//! A backend chosen by a URL, so that the configuration of a program decides.

use super::url_parameters::check_parameters;
use super::{Backend, Events, Open, Session};
use crate::backend::memory::Memory;
use crate::error::Error;
use crate::name::Node;
use std::fmt;
use std::sync::Arc;

/// A backend chosen by a URL.
///
/// | URL | backend | feature |
/// | --- | --- | --- |
/// | `memory:` | [`Memory`](crate::Memory), a new store for each parsed URL | |
/// | `etcd://[user:password@]host:port[,host:port…]` | [`Etcd`](crate::Etcd) | `etcd` |
/// | `etcds://…`, the same over TLS | [`Etcd`](crate::Etcd) | `etcd` |
/// | `redis://[user:password@]host[:port][/db]` | [`Redis`](crate::Redis) | `redis` |
/// | `rediss://[user:password@]host[:port][/db]` | [`Redis`](crate::Redis) over TLS | `redis-tls` |
/// | `redis+unix:///path/to/socket` | [`Redis`](crate::Redis) | `redis` |
/// | `redis+sentinel://[user:password@]host:port,host:port/master[/db]` | [`Redis`](crate::Redis) behind these sentinels; `?sentinel_user=…&sentinel_password=…` sets the credentials of the sentinels | `redis-sentinel` |
/// | `redis+cluster://[user:password@]host:port,host:port` | [`Redis`](crate::Redis) as a cluster | `redis-cluster` |
/// | `redlock:redis://one,redis://two,redis://three` (a comma in a password is written `%2C`) | [`Redlock`](crate::Redlock) | `redlock` |
/// | `zookeeper://[user:password@]host[:port][,host[:port]…][/chroot]` | [`ZooKeeper`](crate::ZooKeeper) | `zookeeper` |
///
/// `rediss+sentinel://` and `rediss+cluster://` use TLS. `valkey://`, `valkeys://` and `valkey+unix://` are Redis URLs too.
///
/// `?prefix=shop` (or `&prefix=shop`) sets the prefix. With the same prefix, two applications on one server share their permits.
///
/// ```
/// use tower_permit::{AnyBackend, Coordinator};
///
/// let url = std::env::var("PERMIT_URL").unwrap_or("memory:".to_owned());
/// let permits = Coordinator::new(AnyBackend::from_url(url)?);
/// # Ok::<(), tower_permit::Error>(())
/// ```
///
/// [`Coordinator::from_url`](crate::Coordinator::from_url) is a shorthand for this.
#[derive(Clone)]
pub struct AnyBackend {
    /// The text before the colon.
    scheme: Arc<str>,
    open: Arc<dyn Fn(Node, Events) -> Arc<dyn Session> + Send + Sync>,
}

// === impl AnyBackend ===

impl AnyBackend {
    /// Creates the backend of a URL. It connects at first use.
    ///
    /// # Errors
    ///
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for a malformed URL, and for a backend that is not built in: the
    /// message names the feature to enable. It never repeats the URL, which may contain a password.
    pub fn from_url(url: impl AsRef<str>) -> Result<Self, Error> {
        if let Some(urls) = url.as_ref().strip_prefix("redlock:") {
            return Self::redlock(urls);
        }
        #[cfg_attr(
            not(any(feature = "redis", feature = "zookeeper")),
            allow(unused_variables)
        )]
        let (url, prefix) = take_prefix(url.as_ref());
        let scheme = url.split(':').next().unwrap_or_default().to_owned();
        match scheme.as_str() {
            "memory" => {
                check_parameters(url.split_once('?').unwrap_or_default().1, &[])?;
                Ok(Self::of(&scheme, Memory::new()))
            }
            #[cfg(feature = "redis")]
            "redis" | "rediss" | "redis+unix" | "unix" | "valkey" | "valkeys" | "valkey+unix"
            | "redis+sentinel" | "rediss+sentinel" | "redis+cluster" | "rediss+cluster" => {
                let redis = crate::Redis::of_any_url(&url)?;
                Ok(Self::of(
                    &scheme,
                    match prefix {
                        Some(prefix) => redis.prefix(prefix)?,
                        None => redis,
                    },
                ))
            }
            #[cfg(feature = "etcd")]
            "etcd" | "etcds" => {
                let etcd = crate::Etcd::of_url(&url)?;
                Ok(Self::of(
                    &scheme,
                    match prefix {
                        Some(prefix) => etcd.prefix(prefix)?,
                        None => etcd,
                    },
                ))
            }
            #[cfg(not(feature = "etcd"))]
            "etcd" | "etcds" => Err(not_built_in("etcd")),
            #[cfg(not(feature = "redis"))]
            "redis" | "rediss" | "redis+unix" | "unix" | "valkey" | "valkeys" | "valkey+unix" => {
                Err(not_built_in("redis"))
            }
            #[cfg(not(feature = "redis"))]
            "redis+sentinel" | "rediss+sentinel" => Err(not_built_in("redis-sentinel")),
            #[cfg(not(feature = "redis"))]
            "redis+cluster" | "rediss+cluster" => Err(not_built_in("redis-cluster")),
            #[cfg(feature = "zookeeper")]
            "zookeeper" => {
                let zookeeper = crate::ZooKeeper::of_url(&url)?;
                Ok(Self::of(
                    &scheme,
                    match prefix {
                        Some(prefix) => zookeeper.prefix(prefix)?,
                        None => zookeeper,
                    },
                ))
            }
            #[cfg(not(feature = "zookeeper"))]
            "zookeeper" => Err(not_built_in("zookeeper")),
            _ => Err(Error::config(
                "the URL does not name a backend: expected memory:, redis://, rediss://, redis+unix://, redis+sentinel://, redis+cluster://, redlock:, etcd://, etcds:// or zookeeper://",
            )),
        }
    }

    /// Parses several URLs with commas between them. Any of them may have the prefix.
    #[cfg(feature = "redlock")]
    fn redlock(urls: &str) -> Result<Self, Error> {
        let urls = urls.split(',').filter(|url| !url.is_empty());
        let (urls, prefixes): (Vec<_>, Vec<_>) = urls.map(take_prefix).unzip();
        let redlock = crate::Redlock::new(urls)?;
        let redlock = match prefixes.into_iter().flatten().last() {
            Some(prefix) => redlock.prefix(prefix)?,
            None => redlock,
        };
        Ok(Self::of("redlock", redlock))
    }

    #[cfg(not(feature = "redlock"))]
    fn redlock(_: &str) -> Result<Self, Error> {
        Err(not_built_in("redlock"))
    }

    fn of(scheme: &str, backend: impl Open + Clone + Send + Sync + 'static) -> Self {
        Self {
            scheme: scheme.into(),
            open: Arc::new(move |node, events| backend.clone().open(node, events)),
        }
    }
}

impl Backend for AnyBackend {}

impl Open for AnyBackend {
    fn open(self, node: Node, events: Events) -> Arc<dyn Session> {
        (self.open)(node, events)
    }
}

impl fmt::Debug for AnyBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AnyBackend")
            .field("scheme", &self.scheme)
            .finish_non_exhaustive()
    }
}

#[cfg(not(all(
    feature = "etcd",
    feature = "redis",
    feature = "redlock",
    feature = "zookeeper"
)))]
fn not_built_in(feature: &str) -> Error {
    Error::config(format!(
        "the backend of this URL is not built in: enable the feature `{feature}` of tower-permit"
    ))
}

/// Returns the URL without its `prefix=…`, and that prefix.
fn take_prefix(url: &str) -> (String, Option<String>) {
    let Some((base, query)) = url.split_once('?') else {
        return (url.to_owned(), None);
    };
    let mut prefix = None;
    let mut rest = Vec::new();
    for pair in query.split('&') {
        match pair.strip_prefix("prefix=") {
            Some(_) => {
                let mut decoded = form_urlencoded::parse(pair.as_bytes());
                prefix = decoded.next().map(|(_, value)| value.into_owned());
            }
            None => rest.push(pair),
        }
    }
    match rest.is_empty() {
        true => (base.to_owned(), prefix),
        false => (format!("{base}?{}", rest.join("&")), prefix),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn the_prefix_is_removed_from_the_url() {
        for (url, rest, prefix) in [
            ("memory:", "memory:", None),
            ("redis://h/1?prefix=a%3Ab", "redis://h/1", Some("a:b")),
            (
                "redis+unix:///s?db=1&prefix=x&pass=y",
                "redis+unix:///s?db=1&pass=y",
                Some("x"),
            ),
            ("redis://h?prefix=", "redis://h", Some("")),
        ] {
            assert_eq!(
                take_prefix(url),
                (rest.to_owned(), prefix.map(str::to_owned)),
                "{url}"
            );
        }
    }

    #[cfg(feature = "redlock")]
    #[test]
    fn several_urls_configure_a_redlock() {
        for url in [
            "redlock:redis://a,redis://b,redis://c",
            "redlock:redis://a,redis+unix:///s?db=1&prefix=x,redis://c",
            "redlock:redis://a,redis://b,redis://c?prefix=x",
        ] {
            assert!(AnyBackend::from_url(url).is_ok(), "{url}");
        }
        for url in [
            "redlock:",
            "redlock:redis://:secret@a",
            "redlock:redis://a,redis://:secret@a,redis://b",
            "redlock:redis://a,redis://b,http://:secret@c",
            "redlock:redis://a,redis://b,redis://c?prefix=%7B",
        ] {
            let error = AnyBackend::from_url(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{url}");
            assert!(!format!("{error:?}").contains("secret"), "{error}");
        }
    }

    #[cfg(all(
        feature = "etcd",
        feature = "redis-cluster",
        feature = "redis-sentinel",
        feature = "zookeeper"
    ))]
    #[test]
    fn unknown_parameters_are_named() {
        for (url, message) in [
            ("memory:?prefx=shop", "`prefx`: it takes prefix"),
            ("redis://h?protocol=resp2", "`protocol`: it takes prefix"),
            (
                "redis+unix:///s?db=1&x=1",
                "`x`: it takes db, user, pass, prefix",
            ),
            (
                "redis+sentinel://h/m?x=1",
                "`x`: it takes sentinel_user, sentinel_password, prefix",
            ),
            ("redis+cluster://h?x=1&prefix=y", "`x`: it takes prefix"),
            ("etcd://h:1?x=1", "`x`: it takes prefix"),
            ("zookeeper://h/app?x=1", "`x`: it takes prefix"),
        ] {
            let error = AnyBackend::from_url(url).unwrap_err();
            let message = format!("the URL has the unknown parameter {message}");
            assert_eq!(error.to_string(), message, "{url}");
        }
        for url in ["valkey://h", "valkey+unix:///s?db=1", "redis://h?prefix=x"] {
            assert!(AnyBackend::from_url(url).is_ok(), "{url}");
        }
    }

    #[test]
    fn urls_without_a_backend_are_rejected_and_never_repeated() {
        for url in [
            "",
            "http://user:secret@host",
            "secret",
            "redis://user:secret@host?prefix=%7B",
            "redis://:secret@:x",
            "redis://:secret@host?prefx=shop",
            "redis://u:p?secret=x@host",
            "redis://u:p?secret@host",
            "redis://host?db=secret",
            #[cfg(feature = "zookeeper")]
            "zookeeper://u:secret@host/app?prefx=shop",
            #[cfg(feature = "redis-sentinel")]
            "redis+sentinel://:secret@host/m?sentinel_user=me",
        ] {
            let error = AnyBackend::from_url(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{url}");
            assert!(!format!("{error} {error:?}").contains("secret"), "{error}");
        }
    }
}
