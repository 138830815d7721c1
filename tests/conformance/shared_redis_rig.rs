//! Servers that take a while to start: one set for all tests of a backend, and a prefix for each test.

use super::rig::Rig;
use crate::backend::Open;
use crate::backend::redis::Redis;
use crate::backend::support::redis::{Answer, RedisServer};
use crate::backend::{Events, Session};
use crate::name::Node;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Servers that all tests of this program share.
pub(super) trait Place {
    /// For the test with this prefix.
    fn redis(prefix: &str) -> Redis;

    /// Where keys are.
    fn masters() -> Vec<&'static RedisServer>;
}

pub(super) struct SharedRig<P> {
    redis: Redis,
    prefix: String,
    place: PhantomData<fn() -> P>,
}

impl<P: Place> SharedRig<P> {
    /// The keys of this test, with the server that has them.
    fn keys(&self) -> Vec<(&'static RedisServer, String)> {
        let pattern = format!("{}:*", self.prefix);
        let keys = |server: &'static RedisServer| {
            let keys = server.command(&["KEYS", &pattern]).list();
            keys.into_iter().map(move |key| (server, key))
        };
        P::masters().into_iter().flat_map(keys).collect()
    }
}

impl<P: Place> Rig for SharedRig<P> {
    const LEASE: Duration = Duration::from_millis(400);
    const VIRTUAL: bool = false;
    const PUSHES: bool = true;

    async fn start() -> Self {
        static TESTS: AtomicU32 = AtomicU32::new(0);
        let prefix = format!("test-{}", TESTS.fetch_add(1, Ordering::Relaxed));
        let redis = P::redis(&prefix);
        Self {
            redis: redis.prefix(prefix.clone()).expect("a good prefix"),
            prefix,
            place: PhantomData,
        }
    }

    fn open(&self, node: Node, events: Events) -> Arc<dyn Session> {
        self.redis.clone().open(node, events)
    }

    async fn flush(&self) {
        for (server, key) in self.keys() {
            assert!(server.command(&["DEL", &key]) != Answer::Nil);
        }
    }

    async fn stored(&self) -> usize {
        self.keys().len()
    }

    async fn forgets_within(&self, time: Duration) -> bool {
        let most = i64::try_from(time.as_millis()).expect("a short time");
        self.keys().iter().all(|(server, key)| {
            let left = server.command(&["PTTL", key]).int();
            (0..=most).contains(&left)
        })
    }

    async fn client_clock_jumps(&self, by: Duration) {
        tokio::time::pause();
        tokio::time::advance(by).await;
        tokio::time::resume();
    }
}

/// A user with no more rights than are needed, over TLS.
#[cfg(feature = "redis-tls")]
pub(super) struct Tls;

#[cfg(feature = "redis-tls")]
mod tls {
    use super::*;
    use crate::backend::support::certificates::{Authority, Certificate};
    use std::sync::LazyLock;

    /// As the documentation of `Redis` names them.
    const RIGHTS: &str = "+eval +evalsha +time +zadd +zrem +zcard +zcount +zrange +zmscore +zremrangebyscore +hmget \
                          +hset +hdel +hgetall +get +mget +set +del +exists +pexpire +publish +subscribe";

    static SET: LazyLock<(Authority, Certificate, RedisServer)> = LazyLock::new(|| {
        let authority = Authority::new();
        let server = authority.start_server(&authority.sign(&["127.0.0.1"]), &[]);
        let me = authority.sign(&["me"]);
        (authority, me, server)
    });

    impl Place for Tls {
        fn redis(prefix: &str) -> Redis {
            let (authority, me, server) = &*SET;
            let (keys, channels) = (format!("~{prefix}:*"), format!("&{prefix}:push:*"));
            let user = [
                "ACL",
                "SETUSER",
                prefix,
                "on",
                ">secret",
                "resetkeys",
                &keys,
            ];
            let rights = ["resetchannels", &channels, "-@all"];
            let rights = rights.into_iter().chain(RIGHTS.split_whitespace());
            let words: Vec<_> = user.into_iter().chain(rights).collect();
            assert_eq!(server.command(&words).text(), "OK");
            let url = format!("rediss://{prefix}:secret@127.0.0.1:{}", server.tls_port());
            let redis = Redis::new(url).expect("a good URL");
            let redis = redis.ca_certificate(authority.pem()).expect("an authority");
            let redis = redis.client_certificate(&me.chain, &me.key);
            redis.expect("a certificate")
        }

        fn masters() -> Vec<&'static RedisServer> {
            vec![&SET.2]
        }
    }
}

/// A master with a replica, found through three sentinels.
#[cfg(feature = "redis-sentinel")]
pub(super) struct Sentinel;

#[cfg(feature = "redis-sentinel")]
mod sentinel {
    use super::*;
    use crate::backend::support::sentinels::{MASTER, SentinelSet};
    use std::sync::LazyLock;

    static SET: LazyLock<SentinelSet> = LazyLock::new(|| SentinelSet::start(1));

    impl Place for Sentinel {
        fn redis(_: &str) -> Redis {
            Redis::sentinel(SET.addresses(), MASTER).expect("good addresses")
        }

        fn masters() -> Vec<&'static RedisServer> {
            vec![SET.master()]
        }
    }
}

/// Three masters.
#[cfg(feature = "redis-cluster")]
pub(super) struct Cluster;

#[cfg(feature = "redis-cluster")]
mod cluster {
    use super::*;
    use crate::backend::support::cluster::RedisCluster;
    use std::sync::LazyLock;

    static SET: LazyLock<RedisCluster> = LazyLock::new(|| RedisCluster::start(3, false));

    impl Place for Cluster {
        fn redis(_: &str) -> Redis {
            // The others are found.
            Redis::cluster(&SET.addresses()[..1]).expect("a good address")
        }

        fn masters() -> Vec<&'static RedisServer> {
            SET.nodes.iter().collect()
        }
    }
}
