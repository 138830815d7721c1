//! A Redis Cluster for one test.

use super::certificates::Authority;
use super::redis::{Answer, RedisServer};
use super::server::wait_until;
use crate::HANG_GUARD;
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

const SLOTS: u16 = 16_384;

#[derive(Debug)]
pub struct RedisCluster {
    /// First the masters, then, in the same order, their replicas.
    pub nodes: Vec<RedisServer>,
    pub masters: usize,
}

// === impl RedisCluster ===

impl RedisCluster {
    /// Starts the masters, each with one replica if `with_replicas`.
    pub fn start(masters: usize, with_replicas: bool) -> Self {
        Self::start_with(masters, with_replicas, None)
    }

    /// Starts the masters with TLS for clients, replication and the cluster bus.
    pub fn start_secure(masters: usize, authority: &Authority) -> Self {
        let certificate = authority.sign(&["127.0.0.1"]);
        Self::start_with(masters, false, Some(authority.server_args(&certificate)))
    }

    fn start_with(masters: usize, with_replicas: bool, tls: Option<Vec<String>>) -> Self {
        let count = if with_replicas { masters * 2 } else { masters };
        let mut args = vec![
            "--cluster-enabled",
            "yes",
            "--cluster-port",
            "{bus}",
            "--cluster-node-timeout",
            "1000",
            "--repl-diskless-sync-delay",
            "0",
        ];
        if let Some(tls) = &tls {
            args.extend(["--tls-cluster", "yes", "--tls-replication", "yes"]);
            args.extend(tls.iter().map(String::as_str));
        }
        let nodes: Vec<_> = scope(|scope| {
            let starting: Vec<_> = (0..count)
                .map(|_| scope.spawn(|| RedisServer::start_with(&args)))
                .collect();
            let started = starting
                .into_iter()
                .map(|node| node.join().expect("a node"));
            started.collect()
        });
        let cluster = Self { nodes, masters };
        let share = SLOTS / u16::try_from(masters).expect("a small number");
        for (number, node) in (0..).zip(&cluster.nodes) {
            ok(
                node,
                &["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()],
            );
            if usize::from(number) < masters {
                let last = match usize::from(number) + 1 == masters {
                    true => SLOTS - 1,
                    false => (number + 1) * share - 1,
                };
                let range = [(number * share).to_string(), last.to_string()];
                ok(node, &["CLUSTER", "ADDSLOTSRANGE", &range[0], &range[1]]);
            }
            let (port, bus) = match &tls {
                None => (node.port().to_string(), node.bus_port().to_string()),
                Some(_) => (node.tls_port().to_string(), node.bus_port().to_string()),
            };
            ok(
                &cluster.nodes[0],
                &["CLUSTER", "MEET", "127.0.0.1", &port, &bus],
            );
        }
        wait_until("all nodes know each other", HANG_GUARD, || {
            cluster
                .nodes
                .iter()
                .all(|node| info(node, "cluster_known_nodes") == count.to_string())
        });
        for (replica, master) in cluster.nodes.iter().skip(masters).zip(&cluster.nodes) {
            ok(replica, &["CLUSTER", "REPLICATE", &id(master)]);
        }
        wait_until("the cluster is complete", HANG_GUARD, || {
            cluster.nodes.iter().all(|node| {
                info(node, "cluster_state") == "ok"
                    && cluster.replicas_seen_by(node) == count - masters
            }) && cluster.nodes[masters..].iter().all(follows)
        });
        cluster
    }

    /// `host:port` of each node.
    pub fn addresses(&self) -> Vec<String> {
        self.nodes.iter().map(RedisServer::address).collect()
    }

    /// Returns the nodes that answer and are masters now.
    pub fn masters_now(&self) -> Vec<&RedisServer> {
        self.nodes.iter().filter(|node| node.is_master()).collect()
    }

    /// Returns the master that reports the slot of this key as its own.
    pub fn master_of(&self, key: &str) -> &RedisServer {
        let slot = self.slot(key);
        let owns =
            |node: &&&RedisServer| ranges(node).iter().any(|(a, b)| (*a..=*b).contains(&slot));
        let masters = self.masters_now();
        masters.iter().find(owns).expect("a master of this slot")
    }

    pub fn slot(&self, key: &str) -> u16 {
        let node = self
            .nodes
            .iter()
            .find_map(|n| n.try_command(&["CLUSTER", "KEYSLOT", key]).ok());
        u16::try_from(node.expect("a node that answers").int()).expect("a slot")
    }

    /// Moves a slot with its keys, as `redis-cli --cluster reshard` does, and stays in the migrating state for `half_way`.
    pub fn move_slot(&self, slot: u16, from: &RedisServer, to: &RedisServer, half_way: Duration) {
        let number = slot.to_string();
        let set = |node: &RedisServer, how: &str, id: &str| {
            ok(node, &["CLUSTER", "SETSLOT", &number, how, id]);
        };
        set(to, "IMPORTING", &id(from));
        set(from, "MIGRATING", &id(to));
        let port = to.port().to_string();
        let half = Instant::now() + half_way;
        loop {
            let keys = from
                .command(&["CLUSTER", "GETKEYSINSLOT", &number, "10"])
                .list();
            for key in &keys {
                let _ = from.command(&["MIGRATE", "127.0.0.1", &port, key, "0", "1000"]);
            }
            if keys.is_empty() && Instant::now() >= half {
                break;
            }
            sleep(Duration::from_millis(5));
        }
        set(to, "NODE", &id(to));
        set(from, "NODE", &id(to));
        for node in self.masters_now() {
            let _ = node.command(&["CLUSTER", "SETSLOT", &number, "NODE", &id(to)]);
        }
    }

    /// Waits until a node other than the one at this port has the slot.
    pub fn wait_for_owner(&self, slot: u16, other_than: u16) {
        wait_until("another node has the slot", HANG_GUARD, || {
            let mut others = self.nodes.iter().filter(|node| node.port() != other_than);
            let owns = |(a, b): &(u16, u16)| (*a..=*b).contains(&slot);
            others.any(|node| ranges(node).iter().any(owns))
        });
    }

    /// Waits until all nodes but the one at this port report a complete cluster.
    pub fn wait_until_whole(&self, without: u16) {
        wait_until("the cluster is complete again", HANG_GUARD, || {
            let mut others = self.nodes.iter().filter(|node| node.port() != without);
            others.all(|node| info(node, "cluster_state") == "ok")
        });
    }

    /// Whether the nodes not in `gone` serve all slots. If `gone` is empty, all replicas must follow their masters too.
    pub fn serves_without(&self, gone: &[usize]) -> bool {
        let left: Vec<&RedisServer> = self.without(gone).collect();
        let masters = left.iter().filter(|node| node.is_master());
        let slots = masters.flat_map(|node| ranges(node));
        let slots: usize = slots.map(|(a, b)| usize::from(b - a) + 1).sum();
        let follow = |node: &&&RedisServer| follows(node);
        slots == usize::from(SLOTS)
            && left.iter().all(|node| info(node, "cluster_state") == "ok")
            && (!gone.is_empty()
                || left.iter().filter(follow).count() == self.nodes.len() - self.masters)
    }

    /// Returns the cluster epoch that the nodes not in `gone` report. Each failover increases it.
    pub fn epoch(&self, gone: &[usize]) -> u64 {
        let epochs = self
            .without(gone)
            .map(|node| info(node, "cluster_current_epoch"));
        let epochs = epochs.filter_map(|epoch| epoch.parse().ok());
        epochs.max().unwrap_or(0)
    }

    fn without(&self, gone: &[usize]) -> impl Iterator<Item = &RedisServer> {
        let left = self.nodes.iter().enumerate();
        left.filter(|(at, _)| !gone.contains(at))
            .map(|(_, node)| node)
    }

    fn replicas_seen_by(&self, node: &RedisServer) -> usize {
        let nodes = node.command(&["CLUSTER", "NODES"]).text();
        nodes.lines().filter(|line| line.contains("slave")).count()
    }
}

fn ok(node: &RedisServer, words: &[&str]) {
    let answer = node.command(words);
    assert_eq!(answer, Answer::Text("OK".to_owned()), "{words:?}");
}

fn id(node: &RedisServer) -> String {
    node.command(&["CLUSTER", "MYID"]).text()
}

/// Whether the node is a replica that is connected to its master.
fn follows(node: &RedisServer) -> bool {
    let replication = node.try_command(&["INFO", "replication"]);
    replication.is_ok_and(|answer| answer.text().contains("master_link_status:up"))
}

fn info(node: &RedisServer, name: &str) -> String {
    let Ok(info) = node.try_command(&["CLUSTER", "INFO"]) else {
        return String::new();
    };
    let info = info.text();
    let line = |line: &str| {
        Some(
            line.strip_prefix(name)?
                .strip_prefix(':')?
                .trim()
                .to_owned(),
        )
    };
    info.lines().find_map(line).unwrap_or_default()
}

fn ranges(node: &RedisServer) -> Vec<(u16, u16)> {
    let Ok(nodes) = node.try_command(&["CLUSTER", "NODES"]) else {
        return Vec::new();
    };
    let nodes = nodes.text();
    let myself = nodes
        .lines()
        .find(|line| line.contains("myself"))
        .unwrap_or("");
    let range = |word: &str| {
        let (first, last) = word.split_once('-').unwrap_or((word, word));
        Some((first.parse().ok()?, last.parse().ok()?))
    };
    myself.split(' ').skip(8).filter_map(range).collect()
}
