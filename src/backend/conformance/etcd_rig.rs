use super::rig::Rig;
use crate::backend::Open;
use crate::backend::etcd::Etcd;
use crate::backend::support::etcd::EtcdCluster;
use crate::backend::{Events, Session};
use crate::name::Node;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// One cluster for all tests of a kind that run at a time, and a prefix for each.
pub(super) struct EtcdRig<const NODES: usize> {
    etcd: Etcd,
    prefix: String,
    cluster: Arc<EtcdCluster>,
}

static CLUSTERS: Mutex<[Weak<EtcdCluster>; 4]> = Mutex::new([const { Weak::new() }; 4]);
static RIGS: AtomicUsize = AtomicUsize::new(0);

impl<const NODES: usize> Rig for EtcdRig<NODES> {
    // Three of them on a busy machine need longer for an answer.
    const LEASE: Duration = Duration::from_millis(if NODES == 1 { 500 } else { 1000 });
    const VIRTUAL: bool = false;
    const PUSHES: bool = true;
    const FORGIVES: bool = false;
    const REMEMBERS: bool = true;
    const TO_THE_POINT: bool = false;

    async fn start() -> Self {
        let cluster = {
            let mut clusters = CLUSTERS.lock().unwrap_or_else(|e| e.into_inner());
            clusters[NODES].upgrade().unwrap_or_else(|| {
                let cluster = Arc::new(EtcdCluster::start(NODES));
                clusters[NODES] = Arc::downgrade(&cluster);
                cluster
            })
        };
        let prefix = format!("rig{}", RIGS.fetch_add(1, Ordering::Relaxed));
        let etcd = Etcd::new(cluster.endpoints()).expect("good addresses");
        let etcd = etcd.prefix(&prefix).expect("a good prefix");
        Self {
            etcd,
            prefix,
            cluster,
        }
    }

    fn open(&self, node: Node, events: Events) -> Arc<dyn Session> {
        self.etcd.clone().open(node, events)
    }

    async fn flush(&self) {
        let folder = format!("{}/", self.prefix);
        self.cluster.ctl(&["del", "--prefix", &folder]);
    }

    async fn stored(&self) -> usize {
        let folder = format!("{}/", self.prefix);
        let keys = self
            .cluster
            .ctl(&["get", "--prefix", "--keys-only", &folder]);
        keys.lines().filter(|line| !line.is_empty()).count()
    }

    /// Every key stands under a lease, and no lease is longer.
    async fn forgets_within(&self, time: Duration) -> bool {
        let folder = format!("{}/", self.prefix);
        let keys = self
            .cluster
            .ctl(&["get", "--prefix", &folder, "-w", "json"]);
        let keys: serde_json::Value = serde_json::from_str(&keys).expect("JSON");
        let keys = keys["kvs"].as_array().expect("some keys");
        keys.iter().all(|key| {
            let lease = key["lease"].as_i64().unwrap_or(0);
            let left =
                self.cluster
                    .ctl(&["lease", "timetolive", &format!("{lease:x}"), "-w", "json"]);
            let left: serde_json::Value = serde_json::from_str(&left).expect("JSON");
            let left = left["ttl"].as_u64();
            lease != 0 && left.is_some_and(|left| left <= time.as_secs())
        })
    }

    async fn client_clock_jumps(&self, by: Duration) {
        tokio::time::pause();
        tokio::time::advance(by).await;
        tokio::time::resume();
    }
}
