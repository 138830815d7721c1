use super::rig::Rig;
use crate::backend::Open;
use crate::backend::redis::Redis;
use crate::backend::support::redis::RedisServer;
use crate::backend::{Events, Session};
use crate::name::Node;
use std::sync::Arc;
use std::time::Duration;

/// Where nobody may publish, whoever waits has to ask.
pub(super) struct RedisRig<const MAY_PUBLISH: bool = true> {
    redis: Redis,
    server: RedisServer,
}

impl<const MAY_PUBLISH: bool> Rig for RedisRig<MAY_PUBLISH> {
    const LEASE: Duration = Duration::from_millis(400);
    const VIRTUAL: bool = false;
    const PUSHES: bool = MAY_PUBLISH;

    async fn start() -> Self {
        let server = RedisServer::start();
        let mut url = server.url();
        if !MAY_PUBLISH {
            let rights = ["allkeys", "allchannels", "+@all", "-publish"];
            let user = ["ACL", "SETUSER", "mute", "on", ">secret"];
            server.command(&[&user[..], &rights[..]].concat());
            url = server.url_of("mute", "secret");
        }
        let redis = Redis::new(url).expect("a good URL");
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
