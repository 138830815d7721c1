use super::rig::Rig;
use crate::backend::Open;
use crate::backend::support::zookeeper::ZooKeepers;
use crate::backend::zookeeper::ZooKeeper;
use crate::backend::{Events, Session};
use crate::name::Node;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::time::Instant;
use zookeeper_client::{Client, Error};

/// One set of servers for all tests; each has a prefix of its own.
pub(super) struct ZooKeeperRig<const SERVERS: usize> {
    zookeeper: ZooKeeper,
    /// What all the nodes of this test are below.
    base: String,
    operator: Client,
}

impl<const SERVERS: usize> ZooKeeperRig<SERVERS> {
    fn servers() -> &'static ZooKeepers {
        static ONE: OnceLock<ZooKeepers> = OnceLock::new();
        static MORE: OnceLock<ZooKeepers> = OnceLock::new();
        let servers = if SERVERS == 1 { &ONE } else { &MORE };
        servers.get_or_init(|| {
            ZooKeepers::start_with(crate::backend::support::zookeeper::Settings {
                servers: SERVERS,
                // Here nodes die by their silence, never by what else goes on on this machine.
                shortest_session: Duration::from_secs(10),
                ..Default::default()
            })
        })
    }

    /// What is stored, the deepest last.
    async fn nodes(&self) -> Vec<String> {
        let mut nodes = Vec::new();
        for queue in self.children(&self.base).await {
            for ticket in self.children(&queue).await {
                nodes.push(ticket);
            }
            nodes.insert(0, queue);
        }
        nodes
    }

    async fn children(&self, node: &str) -> Vec<String> {
        self.operator.sync("/").await.expect("an answer");
        match self.operator.list_children(node).await {
            Ok(names) => (names.into_iter())
                .map(|name| format!("{node}/{name}"))
                .collect(),
            Err(Error::NoNode) => Vec::new(),
            Err(error) => panic!("{error}"),
        }
    }
}

impl<const SERVERS: usize> Rig for ZooKeeperRig<SERVERS> {
    /// Three servers have more to do for each answer.
    const LEASE: Duration = Duration::from_millis(if SERVERS == 1 { 500 } else { 700 });
    const VIRTUAL: bool = false;
    const PUSHES: bool = true;
    const FORGIVES: bool = false;
    const REMEMBERS: bool = true;

    async fn start() -> Self {
        static TESTS: AtomicU64 = AtomicU64::new(0);
        let servers = tokio::task::spawn_blocking(Self::servers).await;
        let servers = servers.expect("servers").connect_string();
        let prefix = format!("conformance-{}", TESTS.fetch_add(1, Ordering::Relaxed));
        let zookeeper = ZooKeeper::new(&servers).expect("servers");
        Self {
            zookeeper: zookeeper.prefix(prefix.clone()).expect("a good prefix"),
            base: format!("/{prefix}"),
            operator: Client::connect(&servers).await.expect("a connection"),
        }
    }

    fn open(&self, node: Node, events: Events) -> Arc<dyn Session> {
        self.zookeeper.clone().open(node, events)
    }

    async fn flush(&self) {
        for node in self.nodes().await.iter().rev() {
            match self.operator.delete(node, None).await {
                Ok(()) | Err(Error::NoNode) => {}
                Err(error) => panic!("{error}"),
            }
        }
        // So that every server knows.
        self.nodes().await;
    }

    async fn stored(&self) -> usize {
        self.nodes().await.len()
    }

    /// Nobody can look ahead here. A dead process is one whose session has ended, so that it leaves no more than these do.
    async fn forgets_within(&self, _: Duration) -> bool {
        let end = Instant::now() + Self::LEASE * 10;
        while Instant::now() < end {
            if self.stored().await == 0 {
                return true;
            }
            tokio::time::sleep(Self::LEASE / 10).await;
        }
        false
    }

    /// Only a monotonic clock is ever read.
    async fn client_clock_jumps(&self, _: Duration) {}
}
