//! The servers of each kind of deployment.

use crate::fault_injection::{Fault, FaultKind, Servers};
use crate::support::cluster::RedisCluster;
use crate::support::etcd::EtcdCluster;
use crate::support::proxy::Proxy;
use crate::support::redis::{Answer, RedisServer};
use crate::support::sentinels::{MASTER, SentinelSet};
use crate::support::zookeeper::ZooKeepers;
use crate::{LEASE, NORMAL};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// By when a renewal is due.
const THIRD: Duration = Duration::from_millis(LEASE.as_millis() as u64 / 3);

/// One server, which loses all data when it is killed.
pub(crate) struct SingleRedis {
    server: RedisServer,
    killed: u64,
}

/// A master and two replicas behind three sentinels. All reach each other through the proxies.
pub(crate) struct Sentinels {
    set: SentinelSet,
    /// Indexed by server.
    proxies: Vec<u16>,
    killed: u64,
}

/// Masters, with or without a replica each. Clients and replicas reach them through the proxies, the cluster bus does not.
pub(crate) struct Cluster {
    pub(crate) cluster: RedisCluster,
    killed: u64,
}

/// Three independent servers, for Redlock.
pub(crate) struct ThreeRedis([RedisServer; 3]);

pub(crate) struct ThreeEtcds {
    cluster: EtcdCluster,
    /// When the leader was paused, if it is.
    stopped: Cell<Option<Instant>>,
    /// How many pauses of the leader were longer than a lease.
    stalled: Cell<u64>,
}

// === impl SingleRedis ===

impl SingleRedis {
    pub(crate) fn start() -> Self {
        Self {
            server: RedisServer::start(),
            killed: 0,
        }
    }
}

impl Servers for SingleRedis {
    const MAX_FAILED: usize = 1;
    /// Holders notice a loss at their next renewal.
    const EXCUSED: Duration = THIRD;

    fn ports(&self) -> Vec<u16> {
        vec![self.server.port()]
    }

    fn url(&self, addresses: &[String]) -> String {
        format!("redis://{}?prefix=deployments", addresses[0])
    }

    fn spare_servers(_: &FaultKind) -> usize {
        0
    }

    fn leader(&self) -> usize {
        0
    }

    fn pause(&self, _: usize) {
        self.server.pause();
    }

    fn resume(&self, _: usize) {
        self.server.resume();
    }

    fn kill(&mut self, _: usize) {
        self.server.kill();
        self.killed += 1;
    }

    fn restart(&mut self, _: usize) {
        self.server.restart();
    }

    fn serves_without(&self, gone: &[usize]) -> bool {
        gone.contains(&0) || answers(&self.server)
    }

    fn losses(&self, _: &[usize]) -> u64 {
        self.killed
    }
}

// === impl Sentinels ===

impl Sentinels {
    /// Starts the servers. A master without replicas does not write.
    pub(crate) fn start() -> Self {
        let args = [
            "--min-replicas-to-write",
            "1",
            "--min-replicas-max-lag",
            "1",
        ];
        Self {
            set: SentinelSet::start_with(2, &args, "", ""),
            proxies: Vec::new(),
            killed: 0,
        }
    }

    fn field(&self, name: &str) -> Vec<String> {
        let sentinels = self.set.sentinels.iter();
        sentinels.map(|it| self.set.seen_by(it)(name)).collect()
    }

    /// Whether the set is ready for another failover.
    fn are_complete(&self) -> bool {
        let all =
            |name: &str, expected: &str| self.field(name).iter().all(|value| value == expected);
        let master = &self.set.servers[self.leader()];
        let follow = |server: &&RedisServer| match server.try_command(&["ROLE"]) {
            Ok(Answer::List(role)) => role.get(3).is_some_and(|state| state.text() == "connected"),
            _ => false,
        };
        all("port", &self.proxies[self.leader()].to_string())
            && all("flags", "master")
            && all("num-other-sentinels", "2")
            && all("num-slaves", "2")
            && master.is_master()
            && self.set.servers.iter().filter(follow).count() == 2
    }
}

impl Servers for Sentinels {
    const ANNOUNCED: bool = true;
    const MAX_FAILED: usize = 1;
    const EXCUSED: Duration = LEASE;

    fn ports(&self) -> Vec<u16> {
        self.set.servers.iter().map(RedisServer::port).collect()
    }

    fn url(&self, _: &[String]) -> String {
        let sentinels = self.set.addresses().join(",");
        format!("redis+sentinel://{sentinels}/{MASTER}?prefix=deployments")
    }

    fn announce_proxies(&mut self, proxies: &[Proxy]) {
        self.proxies = proxies.iter().map(Proxy::port).collect();
        let master = self.proxies[0].to_string();
        for (at, (server, port)) in self.set.servers.iter_mut().zip(&self.proxies).enumerate() {
            let port = port.to_string();
            server.command(&["CONFIG", "SET", "replica-announce-port", &port]);
            server.add_args(&["--replica-announce-port", &port]);
            if at > 0 {
                server.command(&["REPLICAOF", "127.0.0.1", &master]);
            }
        }
        for sentinel in &self.set.sentinels {
            sentinel.command(&["SENTINEL", "REMOVE", MASTER]);
            sentinel.command(&["SENTINEL", "MONITOR", MASTER, "127.0.0.1", &master, "2"]);
            let set = ["SENTINEL", "SET", MASTER, "down-after-milliseconds", "500"];
            sentinel.command(&set);
            sentinel.command(&["SENTINEL", "SET", MASTER, "failover-timeout", "1000"]);
        }
    }

    fn spare_servers(_: &FaultKind) -> usize {
        1
    }

    fn leader(&self) -> usize {
        let port = self.set.master_port();
        let found = self.proxies.iter().position(|proxy| *proxy == port);
        found.unwrap_or(0)
    }

    fn pause(&self, server: usize) {
        self.set.servers[server].pause();
    }

    fn resume(&self, server: usize) {
        self.set.servers[server].resume();
    }

    fn kill(&mut self, server: usize) {
        self.killed += u64::from(self.set.servers[server].is_master());
        self.set.servers[server].kill();
    }

    /// Starts it as a replica, if another server was promoted meanwhile.
    fn restart(&mut self, server: usize) {
        let leader = self.leader();
        let restarted = &mut self.set.servers[server];
        restarted.restart();
        if leader != server {
            let port = self.proxies[leader].to_string();
            restarted.command(&["REPLICAOF", "127.0.0.1", &port]);
        }
    }

    fn serves_without(&self, gone: &[usize]) -> bool {
        let left = self.set.servers.iter().enumerate();
        let mut left = left.filter(|(at, _)| !gone.contains(at));
        match gone.is_empty() {
            true => self.are_complete(),
            false => left.any(|(_, server)| server.is_master()),
        }
    }

    fn losses(&self, _: &[usize]) -> u64 {
        let epochs = self.field("config-epoch");
        let epochs = epochs.iter().filter_map(|epoch| epoch.parse::<u64>().ok());
        epochs.max().unwrap_or(0) + self.killed
    }
}

// === impl Cluster ===

impl Cluster {
    pub(crate) fn start(masters: usize, with_replicas: bool) -> Self {
        Self {
            cluster: RedisCluster::start(masters, with_replicas),
            killed: 0,
        }
    }

    /// Returns the master of a name.
    pub(crate) fn master_of(&self, name: &str) -> usize {
        let master = self.cluster.master_of(&key(name)).port();
        let mut ports = self.ports().into_iter();
        ports
            .position(|port| port == master)
            .expect("a server of this cluster")
    }
}

impl Servers for Cluster {
    /// Names with different masters.
    const NAMES: &[&str] = &["a", "b", "c"];
    const ANNOUNCED: bool = true;
    const MAX_FAILED: usize = 1;
    const EXCUSED: Duration = LEASE;

    fn ports(&self) -> Vec<u16> {
        self.cluster.nodes.iter().map(RedisServer::port).collect()
    }

    fn url(&self, addresses: &[String]) -> String {
        format!("redis+cluster://{}?prefix=deployments", addresses.join(","))
    }

    fn announce_proxies(&mut self, proxies: &[Proxy]) {
        for (node, proxy) in self.cluster.nodes.iter_mut().zip(proxies) {
            let port = proxy.port().to_string();
            node.command(&["CONFIG", "SET", "cluster-announce-port", &port]);
            node.add_args(&["--cluster-announce-port", &port]);
        }
    }

    /// A master that is cut off from clients remains a master for the other servers.
    fn spare_servers(kind: &FaultKind) -> usize {
        match kind {
            FaultKind::Cut { .. } => 0,
            _ => 1,
        }
    }

    fn leader(&self) -> usize {
        self.master_of("a")
    }

    fn pause(&self, server: usize) {
        self.cluster.nodes[server].pause();
    }

    fn resume(&self, server: usize) {
        self.cluster.nodes[server].resume();
    }

    fn kill(&mut self, server: usize) {
        self.killed += u64::from(self.cluster.nodes[server].is_master());
        self.cluster.nodes[server].kill();
    }

    fn restart(&mut self, server: usize) {
        self.cluster.nodes[server].restart();
    }

    fn serves_without(&self, gone: &[usize]) -> bool {
        self.cluster.serves_without(gone)
    }

    fn losses(&self, gone: &[usize]) -> u64 {
        self.cluster.epoch(gone) + self.killed
    }
}

/// Returns the key of the permits of a name.
pub(crate) fn key(name: &str) -> String {
    format!("deployments:limit:{{{name}}}")
}

// === impl ThreeRedis ===

impl ThreeRedis {
    pub(crate) fn start() -> Self {
        Self([(); 3].map(|()| RedisServer::start()))
    }
}

impl Servers for ThreeRedis {
    const LIMIT: u32 = 1;
    const MAX_FAILED: usize = 3;
    /// Servers that restarted without data do not vote for one longest lease.
    const NORMAL: Duration = NORMAL.saturating_add(LEASE);

    fn ports(&self) -> Vec<u16> {
        self.0.iter().map(RedisServer::port).collect()
    }

    fn url(&self, addresses: &[String]) -> String {
        let urls = addresses.iter().map(|address| format!("redis://{address}"));
        let urls: Vec<String> = urls.collect();
        format!("redlock:{}?prefix=deployments", urls.join(","))
    }

    fn spare_servers(_: &FaultKind) -> usize {
        1
    }

    fn leader(&self) -> usize {
        0
    }

    fn pause(&self, server: usize) {
        self.0[server].pause();
    }

    fn resume(&self, server: usize) {
        self.0[server].resume();
    }

    fn kill(&mut self, server: usize) {
        self.0[server].kill();
    }

    fn restart(&mut self, server: usize) {
        self.0[server].restart();
    }

    fn serves_without(&self, gone: &[usize]) -> bool {
        let left = self.0.iter().enumerate();
        let mut left = left.filter(|(at, _)| !gone.contains(at));
        left.all(|(_, server)| answers(server))
    }
}

// === impl ThreeEtcds ===

impl ThreeEtcds {
    pub(crate) fn start() -> Self {
        Self {
            cluster: EtcdCluster::start(3),
            stopped: Cell::default(),
            stalled: Cell::default(),
        }
    }
}

impl Servers for ThreeEtcds {
    const MAX_FAILED: usize = 2;
    /// Holders notice the end of their lease at the next renewal.
    const EXCUSED: Duration = THIRD;

    fn ports(&self) -> Vec<u16> {
        (0..3).map(|node| self.cluster.port(node)).collect()
    }

    fn url(&self, addresses: &[String]) -> String {
        format!("etcd://{}?prefix=deployments", addresses.join(","))
    }

    fn before_fault(&self, fault: &Fault) {
        let stops =
            matches!(fault.kind, FaultKind::Pause) && fault.servers.contains(&self.leader());
        self.stopped.set(stops.then(Instant::now));
    }

    fn spare_servers(_: &FaultKind) -> usize {
        1
    }

    fn leader(&self) -> usize {
        self.cluster.leader()
    }

    fn pause(&self, server: usize) {
        self.cluster.pause(server);
    }

    fn resume(&self, server: usize) {
        let stopped = self.stopped.take();
        let stalled = stopped.is_some_and(|since| since.elapsed() > LEASE);
        self.stalled.update(|stalls| stalls + u64::from(stalled));
        self.cluster.resume(server);
    }

    fn kill(&mut self, server: usize) {
        self.cluster.kill(server);
    }

    fn restart(&mut self, server: usize) {
        self.cluster.restart(server);
    }

    fn serves_without(&self, gone: &[usize]) -> bool {
        let mut left = (0..3).filter(|node| !gone.contains(node));
        left.all(|node| self.cluster.serves(node))
    }

    /// A leader that resumes after a pause may expire live leases.
    fn losses(&self, _: &[usize]) -> u64 {
        self.stalled.get()
    }
}

// === impl ZooKeepers ===

impl Servers for ZooKeepers {
    const MAX_FAILED: usize = 3;

    fn ports(&self) -> Vec<u16> {
        (0..3).map(|server| self.port(server)).collect()
    }

    fn url(&self, addresses: &[String]) -> String {
        format!("zookeeper://{}?prefix=deployments", addresses.join(","))
    }

    fn spare_servers(_: &FaultKind) -> usize {
        1
    }

    fn leader(&self) -> usize {
        self.leader()
    }

    fn pause(&self, server: usize) {
        self.pause(server);
    }

    fn resume(&self, server: usize) {
        self.resume(server);
    }

    fn kill(&mut self, server: usize) {
        self.kill(server);
    }

    fn restart(&mut self, server: usize) {
        self.restart(server);
    }

    fn serves_without(&self, gone: &[usize]) -> bool {
        let mut left = (0..3).filter(|server| !gone.contains(server));
        // The servers need a while to notice the loss of their leader. A leader cut off only from clients keeps leading.
        left.all(|server| self.serves(server)) && (0..3).any(|server| self.leads(server))
    }
}

fn answers(server: &RedisServer) -> bool {
    server.try_command(&["PING"]).is_ok()
}
