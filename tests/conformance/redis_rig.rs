use super::rig::Rig;
use crate::backend::Open;
use crate::backend::redis::Redis;
use crate::backend::support::redis::RedisServer;
use crate::backend::{Events, Session};
use crate::name::Node;
use std::sync::Arc;
use std::time::Duration;

pub(super) struct RedisRig {
    redis: Redis,
    server: RedisServer,
}

impl Rig for RedisRig {
    const LEASE: Duration = Duration::from_millis(400);
    const VIRTUAL: bool = false;

    async fn start() -> Self {
        let server = RedisServer::start();
        let redis = Redis::new(server.url()).expect("a good URL");
        let redis = redis.prefix("conformance").expect("a good prefix");
        Self { redis, server }
    }

    fn open(&self, node: Node, events: Events) -> Arc<dyn Session> {
        self.redis.clone().open(node, events)
    }

    async fn flush(&self) {
        self.server.command(&["FLUSHALL"]);
    }

    async fn stored(&self) -> usize {
        let size = self.server.command(&["DBSIZE"]).int();
        usize::try_from(size).expect("a size")
    }

    async fn forgets_within(&self, time: Duration) -> bool {
        let keys = self.server.command(&["KEYS", "*"]).list();
        let most = i64::try_from(time.as_millis()).expect("a short time");
        keys.iter().all(|key| {
            let left = self.server.command(&["PTTL", key]).int();
            (0..=most).contains(&left)
        })
    }

    async fn client_clock_jumps(&self, by: Duration) {
        tokio::time::pause();
        tokio::time::advance(by).await;
        tokio::time::resume();
    }
}
