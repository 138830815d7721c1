//! An etcd cluster for one test: on free ports, in temporary folders, killed when dropped.

use super::certificates::Authority;
use super::pause;
use super::server::{self, free_port};
use crate::HANG_GUARD;
use std::fmt;
use std::io::{self, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Running nodes that belong to one test. All methods are synchronous.
pub struct EtcdCluster {
    nodes: Vec<Node>,
    args: Vec<String>,
    /// Clients connect over TLS.
    secure: bool,
    /// In memory if possible: a folder takes about 120 MB, and every write is synced.
    folder: TempDir,
}

struct Node {
    child: Option<Child>,
    /// Kills the server when its input ends. That happens when the test program ends, even by SIGKILL.
    guard: Option<Child>,
    port: u16,
    peer_port: u16,
}

// === impl EtcdCluster ===

impl EtcdCluster {
    /// Starts this many nodes, with short election timeouts.
    pub fn start(nodes: usize) -> Self {
        Self::start_with(nodes, &[])
    }

    /// Starts nodes with additional command line arguments.
    pub fn start_with(nodes: usize, args: &[&str]) -> Self {
        Self::start_as(nodes, args, None)
    }

    /// Starts one node with TLS for clients.
    pub fn start_secure(authority: &Authority) -> Self {
        Self::start_as(1, &[], Some(authority))
    }

    /// Starts one node that also requires a client certificate of this authority.
    pub fn start_strict(authority: &Authority) -> Self {
        Self::start_as(1, &["--client-cert-auth"], Some(authority))
    }

    fn start_as(nodes: usize, args: &[&str], authority: Option<&Authority>) -> Self {
        for attempt in 0..10 {
            let mut cluster = Self {
                nodes: (0..nodes).map(|_| Node::new()).collect(),
                args: args.iter().map(|arg| (*arg).to_owned()).collect(),
                secure: authority.is_some(),
                folder: folder(attempt),
            };
            if let Some(authority) = authority {
                cluster.add_certificates(authority);
            }
            for node in 0..nodes {
                cluster.run(node);
            }
            if cluster.is_ready() {
                return cluster;
            }
        }
        panic!("etcd does not start with {args:?}");
    }

    pub fn endpoint(&self, node: usize) -> String {
        format!("127.0.0.1:{}", self.nodes[node].port)
    }

    pub fn endpoints(&self) -> Vec<String> {
        (0..self.nodes.len())
            .map(|node| self.endpoint(node))
            .collect()
    }

    pub fn port(&self, node: usize) -> u16 {
        self.nodes[node].port
    }

    /// Sends SIGKILL.
    pub fn kill(&mut self, node: usize) {
        self.nodes[node].kill();
    }

    /// Kills a node if it runs and starts it with its data.
    pub fn restart(&mut self, node: usize) {
        self.kill(node);
        self.run(node);
        assert!(self.is_ready(), "etcd does not start again");
    }

    /// Kills all nodes and starts them without data.
    pub fn wipe(&mut self) {
        for node in 0..self.nodes.len() {
            self.kill(node);
            let _ = std::fs::remove_dir_all(self.data(node));
        }
        for node in 0..self.nodes.len() {
            self.run(node);
        }
        assert!(self.is_ready(), "etcd does not start again");
    }

    /// Sends SIGSTOP: connections stay open, no request is answered.
    pub fn pause(&self, node: usize) {
        self.nodes[node].child.iter().for_each(pause::pause);
    }

    /// Sends SIGCONT.
    pub fn resume(&self, node: usize) {
        self.nodes[node].child.iter().for_each(pause::resume);
    }

    /// Returns the leader according to the running nodes.
    pub fn leader(&self) -> usize {
        let end = Instant::now() + HANG_GUARD;
        while Instant::now() < end {
            for node in (0..self.nodes.len()).filter(|node| self.nodes[*node].child.is_some()) {
                let status = self
                    .request(node, "maintenance/status", "{}")
                    .unwrap_or_default();
                let id = |field: &str| {
                    let after = status.split(&format!("\"{field}\":\"")).nth(1)?;
                    after
                        .split('"')
                        .next()
                        .filter(|id| *id != "0")
                        .map(str::to_owned)
                };
                if let (Some(own), Some(leader)) = (id("member_id"), id("leader"))
                    && own == leader
                {
                    return node;
                }
            }
            sleep(Duration::from_millis(20));
        }
        panic!("no node became the leader within {HANG_GUARD:?}");
    }

    /// Whether a node answers a read through the leader.
    pub fn serves(&self, node: usize) -> bool {
        let answer = self.request(node, "kv/range", "{\"key\":\"AA==\"}");
        // With authentication enabled the refusal shows that it answers.
        answer.is_ok_and(|answer| {
            answer.contains("revision") || answer.contains("user name is empty")
        })
    }

    /// Runs `etcdctl` with these arguments. Panics if it fails.
    pub fn ctl(&self, words: &[&str]) -> String {
        let mut command = Command::new("etcdctl");
        if self.secure {
            command
                .arg("--cacert")
                .arg(self.folder.path().join("ca.pem"));
        }
        let output = command
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &self.endpoints().join(",")])
            .args(words)
            .output()
            .expect("etcdctl is not installed: run tests/run");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(
            output.status.success(),
            "{words:?}: {}",
            text(&output.stderr)
        );
        text(&output.stdout)
    }

    /// Sends a request to the HTTP gateway of a node. The response contains a line of JSON.
    fn request(&self, node: usize, path: &str, body: &str) -> io::Result<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.nodes[node].port))?;
        stream.set_read_timeout(Some(Duration::from_millis(500)))?;
        write!(
            stream,
            "POST /v3/{path} HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )?;
        io::read_to_string(stream)
    }

    fn add_certificates(&self, authority: &Authority) {
        let certificate = authority.sign(&["127.0.0.1"]);
        for (name, pem) in [
            ("ca.pem", authority.pem()),
            ("server.pem", certificate.chain),
            ("server.key", certificate.key),
        ] {
            std::fs::write(self.folder.path().join(name), pem).expect("a file");
        }
    }

    fn data(&self, node: usize) -> PathBuf {
        self.folder.path().join(format!("node{node}"))
    }

    fn run(&mut self, node: usize) {
        let peers: Vec<String> = (self.nodes.iter().enumerate())
            .map(|(at, node)| format!("node{at}=http://127.0.0.1:{}", node.peer_port))
            .collect();
        let scheme = if self.secure { "https" } else { "http" };
        let url = format!("{scheme}://127.0.0.1:{}", self.nodes[node].port);
        let peer_url = format!("http://127.0.0.1:{}", self.nodes[node].peer_port);
        let mut command = Command::new("etcd");
        if self.secure {
            let file = |name: &str| self.folder.path().join(name);
            if self.args.iter().any(|arg| arg == "--client-cert-auth") {
                command.arg("--trusted-ca-file").arg(file("ca.pem"));
            }
            command.arg("--cert-file").arg(file("server.pem"));
            command.arg("--key-file").arg(file("server.key"));
        }
        command
            .args(["--name", &format!("node{node}"), "--data-dir"])
            .arg(self.data(node))
            .args([
                "--listen-client-urls",
                &url,
                "--advertise-client-urls",
                &url,
            ])
            .args(["--listen-peer-urls", &peer_url])
            .args(["--initial-advertise-peer-urls", &peer_url])
            .args(["--initial-cluster", &peers.join(",")])
            .args(["--initial-cluster-token", &peers.join(",")])
            .args(["--heartbeat-interval", "50", "--election-timeout", "250"])
            .args(&self.args);
        let child = server::spawn("etcd", &mut command);
        let guard = server::run_at_exit(format_args!("kill -9 {}", child.id()));
        self.nodes[node].child = Some(child);
        self.nodes[node].guard = Some(guard);
    }

    /// Waits until every running node answers a read through the leader.
    fn is_ready(&mut self) -> bool {
        let end = Instant::now() + HANG_GUARD;
        for node in 0..self.nodes.len() {
            while let Some(child) = &mut self.nodes[node].child {
                if Instant::now() > end || !matches!(child.try_wait(), Ok(None)) {
                    return false;
                }
                if self.secure {
                    if TcpStream::connect((Ipv4Addr::LOCALHOST, self.nodes[node].port)).is_ok() {
                        break;
                    }
                    sleep(Duration::from_millis(10));
                    continue;
                }
                if self.serves(node) {
                    break;
                }
                sleep(Duration::from_millis(10));
            }
        }
        true
    }
}

impl fmt::Debug for EtcdCluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EtcdCluster({:?})", self.endpoints())
    }
}

// === impl Node ===

impl Node {
    fn new() -> Self {
        Self {
            child: None,
            guard: None,
            port: free_port(),
            peer_port: free_port(),
        }
    }

    fn kill(&mut self) {
        server::kill(&mut self.guard);
        server::kill(&mut self.child);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Creates a folder: in memory for the first attempts, unless `TMPDIR` names a folder.
fn folder(attempt: u32) -> TempDir {
    let memory = match std::env::var_os("TMPDIR") {
        None if attempt < 3 => tempfile::tempdir_in("/dev/shm").ok(),
        _ => None,
    };
    memory.unwrap_or_else(|| tempfile::tempdir().expect("a folder for etcd"))
}
