use super::rig::Rig;
use crate::backend::Open;
use crate::backend::redlock::Redlock;
use crate::backend::support::redis::RedisServer;
use crate::backend::{Events, Session};
use crate::name::Node;
use std::sync::Arc;
use std::time::Duration;

/// Since when a server remembers: what it leaves behind for ever, on purpose.
const MARKER: &str = "conformance:redlock:since";

/// Over so many servers.
pub(super) struct RedlockRig<const SERVERS: usize> {
    redlock: Redlock,
    servers: Vec<RedisServer>,
}

impl<const SERVERS: usize> RedlockRig<SERVERS> {
    fn keys(server: &RedisServer) -> Vec<String> {
        let mut keys = server.command(&["KEYS", "*"]).list();
        keys.retain(|key| key != MARKER);
        keys
    }
}

impl<const SERVERS: usize> Rig for RedlockRig<SERVERS> {
    const LEASE: Duration = Duration::from_millis(1500);
    const VIRTUAL: bool = false;
    const PUSHES: bool = false;
    const QUEUES: bool = false;

    async fn start() -> Self {
        let servers: Vec<RedisServer> = (0..SERVERS).map(|_| RedisServer::start()).collect();
        for server in &servers {
            // It has been up for long: what has to wait for a vote has tests of its own.
            server.command(&["SET", MARKER, "1 1"]);
        }
        let redlock = Redlock::new(servers.iter().map(RedisServer::url)).expect("good URLs");
        let redlock = redlock.prefix("conformance").expect("a good prefix");
        Self { redlock, servers }
    }

    fn open(&self, node: Node, events: Events) -> Arc<dyn Session> {
        self.redlock.clone().open(node, events)
    }

    /// The servers forget without knowing it. One that knows that it is empty has tests of its own.
    async fn flush(&self) {
        for server in &self.servers {
            let keys = Self::keys(server);
            let words: Vec<&str> = ["DEL"]
                .into_iter()
                .chain(keys.iter().map(String::as_str))
                .collect();
            if words.len() > 1 {
                server.command(&words);
            }
        }
    }

    async fn stored(&self) -> usize {
        self.servers.iter().map(|it| Self::keys(it).len()).sum()
    }

    async fn forgets_within(&self, time: Duration) -> bool {
        let most = i64::try_from(time.as_millis()).expect("a short time");
        self.servers.iter().all(|server| {
            Self::keys(server).iter().all(|key| {
                let left = server.command(&["PTTL", key]).int();
                (0..=most).contains(&left)
            })
        })
    }

    async fn client_clock_jumps(&self, by: Duration) {
        tokio::time::pause();
        tokio::time::advance(by).await;
        tokio::time::resume();
    }
}
