//! The backends under test. Concurrent tests share their servers.

use crate::support::etcd::EtcdCluster;
use crate::support::redis::RedisServer;
use crate::support::zookeeper::ZooKeepers;
use std::any::Any;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::Duration;
use tower_permit::{AnyBackend, Coordinator, CoordinatorBuilder};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Memory,
    Redis,
    /// Mutexes only.
    Redlock,
    Etcd,
    ZooKeeper,
}

/// The backends that support limits above 1.
pub(crate) const WITH_LIMITS: [Kind; 4] = [Kind::Memory, Kind::Redis, Kind::Etcd, Kind::ZooKeeper];

/// All backends.
pub(crate) const ALL: [Kind; 5] = [
    Kind::Memory,
    Kind::Redis,
    Kind::Redlock,
    Kind::Etcd,
    Kind::ZooKeeper,
];

/// One backend with a separate prefix. Its servers run as long as any store uses them.
pub(crate) struct Store {
    pub(crate) kind: Kind,
    backend: AnyBackend,
    _servers: Option<Arc<dyn Any + Send + Sync>>,
}

static REDIS: Shared<RedisServer> = Shared::new();
static REDLOCK: Shared<[RedisServer; 3]> = Shared::new();
static ETCD: Shared<EtcdCluster> = Shared::new();
static ZOOKEEPER: Shared<ZooKeepers> = Shared::new();

/// Servers that start at the first use and stop after the last.
struct Shared<T>(Mutex<Weak<T>>);

// === impl Kind ===

impl Kind {
    pub(crate) fn has_limits(self) -> bool {
        self != Self::Redlock
    }
}

// === impl Store ===

impl Store {
    /// Creates a store over servers that other tests use too.
    pub(crate) fn shared(kind: Kind, prefix: &str) -> Self {
        match kind {
            Kind::Memory => Self::new(kind, "memory:", None),
            Kind::Redis => {
                let server = REDIS.get(RedisServer::start);
                let url = redis_url(server.port(), prefix);
                Self::new(kind, &url, Some(server))
            }
            Kind::Redlock => {
                let servers = REDLOCK.get(|| [(); 3].map(|()| RedisServer::start()));
                trust(&servers, prefix);
                let ports = servers.each_ref().map(RedisServer::port);
                Self::new(kind, &redlock_url(&ports, prefix), Some(servers))
            }
            Kind::Etcd => {
                let cluster = ETCD.get(|| EtcdCluster::start(1));
                let url = etcd_url(cluster.port(0), prefix);
                Self::new(kind, &url, Some(cluster))
            }
            Kind::ZooKeeper => {
                let servers = ZOOKEEPER.get(|| ZooKeepers::start(1));
                let url = zookeeper_url(servers.port(0), prefix);
                Self::new(kind, &url, Some(servers))
            }
        }
    }

    /// Creates a store over servers of the test.
    pub(crate) fn at(kind: Kind, url: &str) -> Self {
        Self::new(kind, url, None)
    }

    fn new(kind: Kind, url: &str, servers: Option<Arc<dyn Any + Send + Sync>>) -> Self {
        Self {
            kind,
            backend: AnyBackend::from_url(url).expect("a valid URL"),
            _servers: servers,
        }
    }

    pub(crate) fn builder(&self) -> CoordinatorBuilder<AnyBackend> {
        Coordinator::builder(self.backend.clone())
    }

    /// Creates a coordinator with the default lease.
    pub(crate) fn coordinator(&self) -> Coordinator {
        self.builder().build().expect("valid settings")
    }

    pub(crate) fn with_lease(&self, lease: Duration) -> Coordinator {
        self.builder().lease(lease).build().expect("valid settings")
    }
}

pub(crate) fn redis_url(port: u16, prefix: &str) -> String {
    format!("redis://127.0.0.1:{port}?prefix={prefix}")
}

pub(crate) fn redlock_url(ports: &[u16; 3], prefix: &str) -> String {
    let urls = ports.map(|port| format!("redis://127.0.0.1:{port}"));
    format!("redlock:{}?prefix={prefix}", urls.join(","))
}

pub(crate) fn etcd_url(port: u16, prefix: &str) -> String {
    format!("etcd://127.0.0.1:{port}?prefix={prefix}")
}

pub(crate) fn zookeeper_url(port: u16, prefix: &str) -> String {
    format!("zookeeper://127.0.0.1:{port}?prefix={prefix}")
}

/// Marks Redlock servers as long running: one that may have lost its data does not vote for one lease.
pub(crate) fn trust(servers: &[RedisServer; 3], prefix: &str) {
    let marker = format!("{prefix}:redlock:since");
    for server in servers {
        server.command(&["SET", &marker, "1 1000"]);
    }
}

/// Runs a test over each of these backends concurrently, each on a separate thread.
pub(crate) fn on_each(kinds: &[Kind], prefix: &str, test: impl Fn(&Store) + Sync) {
    in_parallel(
        kinds,
        |kind| format!("{kind:?}"),
        |kind| {
            test(&Store::shared(*kind, prefix));
        },
    );
}

/// Runs a test for each case concurrently, and panics with the messages of all failed cases.
pub(crate) fn in_parallel<C: Sync>(
    cases: &[C],
    name: impl Fn(&C) -> String,
    test: impl Fn(&C) + Sync,
) {
    let failures: Vec<String> = thread::scope(|scope| {
        let run = |case| {
            let thread = thread::Builder::new().name(name(case));
            let running = thread.spawn_scoped(scope, || test(case));
            (name(case), running.expect("a thread"))
        };
        let running: Vec<_> = cases.iter().map(run).collect();
        let joined = running.into_iter().map(|(name, run)| (name, run.join()));
        let failed = joined.filter_map(|(name, result)| {
            let message = message(result.err()?);
            Some(format!("{name}: {message}"))
        });
        failed.collect()
    });
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}

fn message(panic: Box<dyn Any + Send>) -> String {
    let panic = match panic.downcast::<String>() {
        Ok(text) => return *text,
        Err(panic) => panic,
    };
    match panic.downcast::<&str>() {
        Ok(text) => (*text).to_owned(),
        Err(panic) => resume_unwind(panic),
    }
}

// === impl Shared ===

impl<T> Shared<T> {
    const fn new() -> Self {
        Self(Mutex::new(Weak::new()))
    }

    fn get(&self, start: impl FnOnce() -> T) -> Arc<T> {
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let started = Arc::new(start());
            *shared = Arc::downgrade(&started);
            started
        })
    }
}
