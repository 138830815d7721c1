//! The usual first implementations of a semaphore and a mutex, over the `redis` crate with `nodelay`.

use futures_util::StreamExt;
use redis::aio::MultiplexedConnection;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;

const LEASE_MILLIS: u64 = 10_000;
/// The polling interval.
const POLL: Duration = Duration::from_millis(10);
/// How long a subscriber waits before it retries without a message, since a message may be lost.
const FALLBACK: Duration = Duration::from_millis(150);

/// The members are the holders, the score is the deadline.
const ACQUIRE: &str = "
    local now = redis.call('TIME')
    now = now[1] * 1000 + math.floor(now[2] / 1000)
    redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
    if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[2]) then return 0 end
    redis.call('ZADD', KEYS[1], now + ARGV[3], ARGV[1])
    redis.call('PEXPIRE', KEYS[1], 2 * ARGV[3])
    return 1";
const RELEASE: &str = "return redis.call('ZREM', KEYS[1], ARGV[1])";
/// The same, and publishes the release to all waiters.
const RELEASE_AND_TELL: &str = "
    redis.call('ZREM', KEYS[1], ARGV[1])
    return redis.call('PUBLISH', KEYS[1], '')";
const COMPARE_AND_DELETE: &str = "
    if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
    return 0";

/// A semaphore without queue, renewal or wake-up.
#[derive(Clone)]
pub(crate) struct PlainSet {
    connection: MultiplexedConnection,
    key: Arc<str>,
    limit: u32,
    next: Arc<AtomicU64>,
    acquire: Arc<redis::Script>,
    release: Arc<redis::Script>,
}

/// A [`PlainSet`] with waiters that poll.
#[derive(Clone)]
pub(crate) struct Polling(PlainSet);

/// A [`PlainSet`] with waiters that retry at each release of any process, by one subscription for each process.
#[derive(Clone)]
pub(crate) struct Broadcast {
    set: PlainSet,
    freed: Arc<Notify>,
}

/// A mutex: `SET NX PX`, and compare-and-delete.
#[derive(Clone)]
pub(crate) struct SetNx {
    connection: MultiplexedConnection,
    next: Arc<AtomicU64>,
    unlock: Arc<redis::Script>,
}

pub(crate) fn client(url: &str) -> redis::Client {
    let client = redis::Client::open(url).expect("a URL");
    let tcp = redis::io::tcp::TcpSettings::default().set_nodelay(true);
    let info = client.get_connection_info().clone().set_tcp_settings(tcp);
    redis::Client::open(info).expect("a client")
}

pub(crate) async fn connect(url: &str) -> MultiplexedConnection {
    // Long enough for a slow machine.
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    let client = client(url);
    let connection = client.get_multiplexed_async_connection_with_config(&config);
    connection.await.expect("a connection")
}

/// Returns a member that no process has used before.
fn unique(next: &AtomicU64) -> String {
    let number = next.fetch_add(1, Ordering::Relaxed);
    format!("{}-{number}", std::process::id())
}

// === impl PlainSet ===

impl PlainSet {
    pub(crate) async fn connect(url: &str, key: &str, limit: u32) -> Self {
        Self {
            connection: connect(url).await,
            key: key.into(),
            limit,
            next: Arc::default(),
            acquire: Arc::new(redis::Script::new(ACQUIRE)),
            release: Arc::new(redis::Script::new(RELEASE)),
        }
    }

    pub(crate) fn member(&self) -> String {
        unique(&self.next)
    }

    pub(crate) async fn try_acquire(&mut self, member: &str) -> bool {
        let mut call = self.acquire.key(&*self.key);
        let call = call.arg(member).arg(self.limit).arg(LEASE_MILLIS);
        let answer = call.invoke_async(&mut self.connection).await;
        answer.expect("a reply")
    }

    pub(crate) async fn release(&mut self, member: &str) {
        let mut call = self.release.key(&*self.key);
        let answer = call.arg(member).invoke_async(&mut self.connection).await;
        let _: i64 = answer.expect("a reply");
    }
}

// === impl Polling ===

impl Polling {
    pub(crate) async fn connect(url: &str, key: &str, limit: u32) -> Self {
        Self(PlainSet::connect(url, key, limit).await)
    }

    pub(crate) async fn acquire(&mut self) -> String {
        let member = self.0.member();
        while !self.0.try_acquire(&member).await {
            tokio::time::sleep(POLL).await;
        }
        member
    }

    pub(crate) async fn release(&mut self, member: &str) {
        self.0.release(member).await;
    }
}

// === impl Broadcast ===

impl Broadcast {
    pub(crate) async fn connect(url: &str, key: &str, limit: u32) -> Self {
        let mut set = PlainSet::connect(url, key, limit).await;
        set.release = Arc::new(redis::Script::new(RELEASE_AND_TELL));
        let freed = Arc::new(Notify::new());
        let pubsub = client(url).get_async_pubsub().await;
        let mut pubsub = pubsub.expect("a connection");
        pubsub.subscribe(key).await.expect("a reply");
        let told = Arc::clone(&freed);
        tokio::spawn(async move {
            let mut messages = pubsub.into_on_message();
            while messages.next().await.is_some() {
                told.notify_waiters();
            }
        });
        Self { set, freed }
    }

    pub(crate) async fn acquire(&mut self) -> String {
        let member = self.set.member();
        loop {
            // Before the attempt, so that a release in between is received.
            let freed = self.freed.notified();
            if self.set.try_acquire(&member).await {
                return member;
            }
            let _ = tokio::time::timeout(FALLBACK, freed).await;
        }
    }

    pub(crate) async fn release(&mut self, member: &str) {
        self.set.release(member).await;
    }
}

// === impl SetNx ===

impl SetNx {
    pub(crate) async fn connect(url: &str) -> Self {
        Self {
            connection: connect(url).await,
            next: Arc::default(),
            unlock: Arc::new(redis::Script::new(COMPARE_AND_DELETE)),
        }
    }

    /// Locks a key that no other task uses, so it never waits.
    pub(crate) async fn lock(&mut self, key: &str) -> String {
        let id = unique(&self.next);
        let mut set = redis::cmd("SET");
        let set = set.arg(key).arg(&id).arg("NX").arg("PX").arg(LEASE_MILLIS);
        let answer = set.query_async(&mut self.connection).await;
        let set: bool = answer.expect("a reply");
        assert!(set, "{key} is not contended");
        id
    }

    pub(crate) async fn unlock(&mut self, key: &str, id: &str) {
        let mut call = self.unlock.key(key);
        let answer = call.arg(id).invoke_async(&mut self.connection).await;
        let _: i64 = answer.expect("a reply");
    }
}
