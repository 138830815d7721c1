//! A ZooKeeper server or ensemble for one test: on free ports, in a temporary folder, killed when dropped or when the test
//! program ends.

use super::{pause, server};
use crate::HANG_GUARD;
use std::fmt::Write as _;
use std::fs;
use std::io::{Read, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const JARS: &str = "/usr/share/java/zookeeper.jar";
/// The longest session. Some tests have leases of an hour.
const LONGEST_SESSION: Duration = Duration::from_secs(100_000);

/// One server, or an ensemble.
#[derive(Debug)]
pub struct ZooKeepers {
    servers: Vec<Server>,
    folder: TempDir,
    /// Environment of servers started from now on.
    pub env: Vec<(String, String)>,
    /// Kills the servers and removes the folder when its input ends. That happens when the test program ends, even by SIGKILL.
    guard: Option<Child>,
}

#[derive(Debug)]
struct Server {
    child: Option<Child>,
    port: u16,
}

/// Settings of the servers.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub servers: usize,
    pub shortest_session: Duration,
    pub longest_session: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            servers: 1,
            shortest_session: Duration::from_millis(200),
            longest_session: LONGEST_SESSION,
        }
    }
}

// === impl ZooKeepers ===

impl ZooKeepers {
    pub fn start(servers: usize) -> Self {
        Self::start_with(Settings {
            servers,
            ..Settings::default()
        })
    }

    pub fn start_with(settings: Settings) -> Self {
        // Another process may bind a free port before the server does. Then other ports are tried.
        for _ in 0..5 {
            let mut servers = Self::prepare(settings);
            for at in 0..settings.servers {
                servers.run(at);
            }
            servers.start_guard();
            if servers.wait_until_ready() {
                return servers;
            }
        }
        panic!("ZooKeeper does not start with {settings:?}");
    }

    /// Returns the connect string for clients.
    pub fn connect_string(&self) -> String {
        let servers = self.servers.iter();
        let servers: Vec<String> = servers.map(|s| format!("127.0.0.1:{}", s.port)).collect();
        servers.join(",")
    }

    pub fn port(&self, server: usize) -> u16 {
        self.servers[server].port
    }

    /// Sends SIGKILL.
    pub fn kill(&mut self, server: usize) {
        server::kill(&mut self.servers[server].child);
    }

    /// Kills a server if it runs and starts it with its data. Does not wait until it is ready.
    pub fn restart(&mut self, server: usize) {
        self.kill(server);
        self.run(server);
        self.start_guard();
    }

    /// Kills a server and starts it without data. Does not wait until it is ready.
    pub fn wipe(&mut self, server: usize) {
        self.kill(server);
        let data = self.folder.path().join(server.to_string());
        fs::remove_dir_all(data.join("version-2")).expect("a data folder");
        self.restart(server);
    }

    /// Sends SIGSTOP: connections stay open, no request is answered.
    pub fn pause(&self, server: usize) {
        self.servers[server].child.iter().for_each(pause::pause);
    }

    /// Sends SIGCONT.
    pub fn resume(&self, server: usize) {
        self.servers[server].child.iter().for_each(pause::resume);
    }

    /// Returns the leader of an ensemble.
    pub fn leader(&self) -> usize {
        let leads = |at: &usize| self.leads(*at);
        let end = Instant::now() + HANG_GUARD;
        while Instant::now() < end {
            if let Some(leader) = (0..self.servers.len()).find(leads) {
                return leader;
            }
            sleep(Duration::from_millis(20));
        }
        panic!("no server became the leader within {HANG_GUARD:?}");
    }

    pub fn leads(&self, server: usize) -> bool {
        self.mode(server).is_some_and(|mode| mode == "leader")
    }

    /// Whether a server is part of the ensemble.
    pub fn serves(&self, server: usize) -> bool {
        self.mode(server).is_some()
    }

    /// Waits until every running server is part of the ensemble. Returns `false` if one ends or time runs out.
    pub fn wait_until_ready(&mut self) -> bool {
        let end = Instant::now() + HANG_GUARD;
        while Instant::now() < end {
            let mut ready = true;
            for at in 0..self.servers.len() {
                if let Some(child) = &mut self.servers[at].child {
                    if !matches!(child.try_wait(), Ok(None)) {
                        return false;
                    }
                    ready &= self.serves(at);
                }
            }
            if ready {
                return true;
            }
            sleep(Duration::from_millis(20));
        }
        false
    }

    fn prepare(settings: Settings) -> Self {
        let folder = tempfile::tempdir().expect("a folder for ZooKeeper");
        let ports: Vec<[u16; 3]> = free_ports(settings.servers);
        for (at, [port, ..]) in ports.iter().enumerate() {
            let data = folder.path().join(at.to_string());
            fs::create_dir(&data).expect("a folder");
            fs::write(data.join("myid"), (at + 1).to_string()).expect("a file");
            let mut config = format!(
                "tickTime=100\ninitLimit=100\nsyncLimit=30\nmaxClientCnxns=0\n4lw.commands.whitelist=*\n\
                 admin.enableServer=false\nclientPort={port}\nclientPortAddress=127.0.0.1\n\
                 minSessionTimeout={}\nmaxSessionTimeout={}\ndataDir={}\n",
                settings.shortest_session.as_millis(),
                settings.longest_session.as_millis(),
                data.display(),
            );
            if settings.servers > 1 {
                for (other, [_, quorum, election]) in ports.iter().enumerate() {
                    let _ = writeln!(config, "server.{}=127.0.0.1:{quorum}:{election}", other + 1);
                }
            }
            fs::write(data.join("zoo.cfg"), config).expect("a file");
        }
        let servers = ports.iter().map(|[port, ..]| Server {
            child: None,
            port: *port,
        });
        Self {
            servers: servers.collect(),
            folder,
            env: Vec::new(),
            guard: None,
        }
    }

    fn run(&mut self, server: usize) {
        let config = self.folder.path().join(server.to_string()).join("zoo.cfg");
        let child = server::spawn(
            "java",
            Command::new("java")
                .args(["-Xms32m", "-Xmx192m", "-XX:+UseSerialGC"])
                .args(["-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"])
                .args([
                    "-Dzookeeper.forceSync=no",
                    "-Dzookeeper.preAllocSize=1024",
                    "-Dzookeeper.jmx.log4j.disable=true",
                    "-Dznode.container.checkIntervalMs=100",
                    "-Dznode.container.maxPerMinute=1000000",
                    "-Djava.net.preferIPv4Stack=true",
                ])
                .args(["-cp", JARS])
                .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
                .arg(config)
                .envs(self.env.iter().cloned()),
        );
        assert!(
            fs::exists(JARS).unwrap_or(false),
            "ZooKeeper is not installed: run tests/run"
        );
        self.servers[server].child = Some(child);
    }

    fn start_guard(&mut self) {
        server::kill(&mut self.guard);
        let children = self.servers.iter().filter_map(|s| s.child.as_ref());
        let pids: Vec<String> = children.map(|child| child.id().to_string()).collect();
        let script = format!(
            "kill -9 {}; rm -rf '{}'",
            pids.join(" "),
            self.folder.path().display()
        );
        self.guard = Some(server::run_at_exit(script));
    }

    /// Returns `standalone`, `leader` or `follower`, or `None` while the server does not serve.
    fn mode(&self, server: usize) -> Option<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port(server))).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(1))).ok()?;
        stream.write_all(b"srvr").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let mode = answer.lines().find_map(|line| line.strip_prefix("Mode: "));
        mode.map(str::to_owned)
    }
}

impl Drop for ZooKeepers {
    fn drop(&mut self) {
        server::kill(&mut self.guard);
        for at in 0..self.servers.len() {
            self.kill(at);
        }
    }
}

fn free_ports(servers: usize) -> Vec<[u16; 3]> {
    let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let listeners: Vec<[TcpListener; 3]> = (0..servers).map(|_| [bind(), bind(), bind()]).collect();
    let port = |l: &TcpListener| l.local_addr().expect("a free port").port();
    listeners
        .iter()
        .map(|three| three.each_ref().map(port))
        .collect()
}
