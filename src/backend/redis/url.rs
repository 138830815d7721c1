//! URLs of several servers: `redis+sentinel://` and `redis+cluster://`.

use super::Redis;
use crate::error::Error;

/// The parts of such a URL, decoded.
#[cfg(any(feature = "redis-cluster", feature = "redis-sentinel"))]
#[derive(Debug, Default, PartialEq)]
struct Parts {
    user: String,
    password: String,
    /// Each a URL.
    servers: Vec<String>,
    path: Vec<String>,
    query: Vec<(String, String)>,
}

impl Redis {
    /// What a URL of any kind means.
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
            "Sentinel is not built in: turn on the feature `redis-sentinel` of tower-permit",
        ))
    }

    #[cfg(not(feature = "redis-cluster"))]
    fn of_cluster_url(_: &str, _: &str) -> Result<Self, Error> {
        Err(Error::config(
            "Redis Cluster is not built in: turn on the feature `redis-cluster` of tower-permit",
        ))
    }

    #[cfg(feature = "redis-sentinel")]
    fn of_sentinel_url(scheme: &str, url: &str) -> Result<Self, Error> {
        let form = || {
            Error::config(
                "this is no URL of sentinels: redis+sentinel://[user:password@]host:port,host:port/master[/db] is one, \
                 and ?sentinel_user=…&sentinel_password=… may follow",
            )
        };
        let parts = Parts::of(scheme, url).ok_or_else(form)?;
        let (mut user, mut password) = ("", "");
        for (key, value) in &parts.query {
            match key.as_str() {
                "sentinel_user" => user = value,
                "sentinel_password" => password = value,
                _ => return Err(form()),
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
            password => redis.at_sentinels(user, password),
        };
        parts.identify(redis).database(db)
    }

    #[cfg(feature = "redis-cluster")]
    fn of_cluster_url(scheme: &str, url: &str) -> Result<Self, Error> {
        let form = || {
            Error::config(
                "this is no URL of a cluster: redis+cluster://[user:password@]host:port,host:port is one",
            )
        };
        let parts = Parts::of(scheme, url).ok_or_else(form)?;
        if !parts.path.is_empty() || !parts.query.is_empty() {
            return Err(form());
        }
        Ok(parts.identify(Self::cluster(&parts.servers)?))
    }
}

// === impl Parts ===

#[cfg(any(feature = "redis-cluster", feature = "redis-sentinel"))]
impl Parts {
    fn of(scheme: &str, url: &str) -> Option<Self> {
        let mut parts = Self::default();
        let (_, rest) = url.split_once("://")?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        parts.query = form_urlencoded::parse(query.as_bytes())
            .into_owned()
            .collect();
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if !path.is_empty() {
            parts.path = path.split('/').map(decoded).collect::<Option<_>>()?;
        }
        let (who, servers) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (user, password) = who.split_once(':').unwrap_or((who, ""));
        (parts.user, parts.password) = (decoded(user)?, decoded(password)?);
        let url = |address: &str| format!("{scheme}://{address}");
        parts.servers = servers.split(',').map(url).collect();
        Some(parts)
    }

    fn identify(&self, redis: Redis) -> Redis {
        match self.user.is_empty() && self.password.is_empty() {
            true => redis,
            false => redis.credentials(&self.user, &self.password),
        }
    }
}

#[cfg(any(feature = "redis-cluster", feature = "redis-sentinel"))]
fn decoded(text: &str) -> Option<String> {
    let text = percent_encoding::percent_decode_str(text).decode_utf8();
    Some(text.ok()?.into_owned())
}
