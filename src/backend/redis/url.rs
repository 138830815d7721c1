//! URLs of several servers: `redis+sentinel://` and `redis+cluster://`.

use super::builder::Redis;
#[cfg(any(feature = "redis-cluster", feature = "redis-sentinel"))]
use crate::backend::{
    authority::{Authority, Credentials},
    url_parameters::check_parameters,
};
use crate::error::Error;

/// The parts of such a URL, decoded.
#[cfg(any(feature = "redis-cluster", feature = "redis-sentinel"))]
#[derive(Debug, PartialEq)]
struct Parts {
    credentials: Option<Credentials>,
    /// Each a URL.
    servers: Vec<String>,
    path: Vec<String>,
    /// As in the URL.
    query: String,
}

impl Redis {
    /// Parses a URL of any kind.
    pub(crate) fn of_any_url(url: &str) -> Result<Self, Error> {
        let kind = url.split("://").next().unwrap_or_default();
        match kind.split_once('+') {
            Some((scheme, "sentinel")) => Self::of_sentinel_url(scheme, url),
            Some((scheme, "cluster")) => Self::of_cluster_url(scheme, url),
            _ => Self::new(url),
        }
    }

    #[cfg(not(feature = "redis-sentinel"))]
    fn of_sentinel_url(_: &str, _: &str) -> Result<Self, Error> {
        Err(Error::config(
            "Sentinel is not built in: enable the feature `redis-sentinel` of tower-permit",
        ))
    }

    #[cfg(not(feature = "redis-cluster"))]
    fn of_cluster_url(_: &str, _: &str) -> Result<Self, Error> {
        Err(Error::config(
            "Redis Cluster is not built in: enable the feature `redis-cluster` of tower-permit",
        ))
    }

    #[cfg(feature = "redis-sentinel")]
    fn of_sentinel_url(scheme: &str, url: &str) -> Result<Self, Error> {
        let form = || {
            Error::config(
                "this is no URL of sentinels: use redis+sentinel://[user:password@]host:port,host:port/master[/db], \
                 with ?sentinel_user=…&sentinel_password=… if the sentinels have a password",
            )
        };
        let parts = Parts::of(scheme, url).ok_or_else(form)?;
        check_parameters(&parts.query, &["sentinel_user", "sentinel_password"])?;
        let (mut user, mut password) = ("", "");
        let pairs: Vec<_> = form_urlencoded::parse(parts.query.as_bytes()).collect();
        for (key, value) in &pairs {
            match &**key {
                "sentinel_user" => user = value,
                "sentinel_password" => password = value,
                _ => {}
            }
        }
        let (master, db) = match parts.path.as_slice() {
            [master] => (master, 0),
            [master, db] => (master, db.parse().map_err(|_| form())?),
            _ => return Err(form()),
        };
        let redis = Self::sentinel(&parts.servers, master)?;
        let redis = match password {
            "" if !user.is_empty() => return Err(form()),
            "" => redis,
            password => redis.sentinel_credentials(user, password),
        };
        parts.set_credentials(redis).database(db)
    }

    #[cfg(feature = "redis-cluster")]
    fn of_cluster_url(scheme: &str, url: &str) -> Result<Self, Error> {
        let form = || {
            Error::config(
                "this is no URL of a cluster: use redis+cluster://[user:password@]host:port,host:port",
            )
        };
        let parts = Parts::of(scheme, url).ok_or_else(form)?;
        check_parameters(&parts.query, &[])?;
        if !parts.path.is_empty() {
            return Err(form());
        }
        Ok(parts.set_credentials(Self::cluster(&parts.servers)?))
    }
}

// === impl Parts ===

#[cfg(any(feature = "redis-cluster", feature = "redis-sentinel"))]
impl Parts {
    fn of(scheme: &str, url: &str) -> Option<Self> {
        let (_, rest) = url.split_once("://")?;
        let (authority, tail) = Authority::parse(rest).ok()?;
        let (path, query) = tail.split_once('?').unwrap_or((tail, ""));
        let path = path.strip_prefix('/').unwrap_or(path);
        let path = match path {
            "" => Vec::new(),
            path => path.split('/').map(decoded).collect::<Option<_>>()?,
        };
        let url = |host| format!("{scheme}://{host}");
        Some(Self {
            credentials: authority.credentials,
            servers: authority.hosts.iter().map(url).collect(),
            path,
            query: query.to_owned(),
        })
    }

    fn set_credentials(&self, redis: Redis) -> Redis {
        match &self.credentials {
            Some(Credentials { user, password }) => {
                let password = password.as_deref().unwrap_or_default();
                match user.is_empty() && password.is_empty() {
                    true => redis,
                    false => redis.credentials(user, password),
                }
            }
            None => redis,
        }
    }
}

#[cfg(any(feature = "redis-cluster", feature = "redis-sentinel"))]
fn decoded(text: &str) -> Option<String> {
    let text = percent_encoding::percent_decode_str(text).decode_utf8();
    Some(text.ok()?.into_owned())
}
