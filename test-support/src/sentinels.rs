//! A Redis master, its replicas and three sentinels for one test.

use super::certificates::Authority;
use super::redis::{Answer, RedisServer};
use super::server::wait_until;
use crate::HANG_GUARD;
use std::thread::scope;

/// The name of the master in the sentinels' configuration.
pub const MASTER: &str = "mymaster";

#[derive(Debug)]
pub struct SentinelSet {
    /// The first one is the master until a failover.
    pub servers: Vec<RedisServer>,
    pub sentinels: Vec<RedisServer>,
    password: String,
}

// === impl SentinelSet ===

impl SentinelSet {
    pub fn start(replicas: usize) -> Self {
        Self::start_with(replicas, &[], "", "")
    }

    /// Starts the set with TLS for clients and replication.
    pub fn start_secure(replicas: usize, authority: &Authority) -> Self {
        let certificate = authority.sign(&["127.0.0.1"]);
        let args = authority.server_args(&certificate);
        let mut args: Vec<_> = args.iter().map(String::as_str).collect();
        args.extend(["--tls-replication", "yes"]);
        Self::start_all(replicas, &args, "", "", Some(&args))
    }

    /// Starts the set with arguments for the servers, and passwords of the servers and of the sentinels. An empty password
    /// means none.
    pub fn start_with(replicas: usize, args: &[&str], password: &str, of_sentinels: &str) -> Self {
        Self::start_all(replicas, args, password, of_sentinels, None)
    }

    fn start_all(
        replicas: usize,
        args: &[&str],
        password: &str,
        of_sentinels: &str,
        tls: Option<&[&str]>,
    ) -> Self {
        let mut all = args.to_vec();
        all.extend(["--repl-diskless-sync-delay", "0", "--repl-timeout", "5"]);
        if !password.is_empty() {
            all.extend(["--requirepass", password, "--masterauth", password]);
        }
        let master = RedisServer::start_with(&all);
        let port = match tls {
            None => master.port(),
            Some(_) => master.tls_port(),
        };
        let number = port.to_string();
        let (mut servers, sentinels) = scope(|scope| {
            let replicas: Vec<_> = (0..replicas)
                .map(|_| {
                    scope.spawn(|| {
                        let of = ["--replicaof", "127.0.0.1", &number];
                        RedisServer::start_with(&[&all[..], &of].concat())
                    })
                })
                .collect();
            let sentinels: Vec<_> = (0..3)
                .map(|_| scope.spawn(move || start_sentinel(port, password, of_sentinels, tls)))
                .collect();
            let joined = |threads: Vec<std::thread::ScopedJoinHandle<'_, RedisServer>>| {
                let servers = threads
                    .into_iter()
                    .map(|thread| thread.join().expect("a server"));
                servers.collect::<Vec<_>>()
            };
            (joined(replicas), joined(sentinels))
        });
        servers.insert(0, master);
        let set = Self {
            servers,
            sentinels,
            password: of_sentinels.to_owned(),
        };
        wait_until("the sentinels know all servers", HANG_GUARD, || {
            set.sentinels.iter().all(|sentinel| {
                let seen = set.seen_by(sentinel);
                let count = |name: &str| seen(name).parse::<usize>().unwrap_or(0);
                count("num-other-sentinels") == 2 && count("num-slaves") == replicas
            })
        });
        set
    }

    /// `host:port` of each sentinel.
    pub fn addresses(&self) -> Vec<String> {
        self.sentinels.iter().map(RedisServer::address).collect()
    }

    /// Returns the master's port according to most sentinels.
    pub fn master_port(&self) -> u16 {
        let mut ports: Vec<u16> = (self.sentinels.iter())
            .filter_map(|sentinel| self.seen_by(sentinel)("port").parse().ok())
            .collect();
        ports.sort_unstable();
        ports.get(ports.len() / 2).copied().unwrap_or(0)
    }

    pub fn master(&self) -> &RedisServer {
        let port = self.master_port();
        let server = self.servers.iter().find(|server| server.port() == port);
        server.expect("a server of this set is the master")
    }

    /// Waits until a server other than the one on port `old` reports itself as master.
    pub fn wait_for_promotion(&self, old: u16) {
        wait_until("a promotion", HANG_GUARD, || {
            let mut others = self.servers.iter().filter(|server| server.port() != old);
            others.any(RedisServer::is_master)
        });
    }

    /// Returns a function that looks up a field of a sentinel's view of the master.
    pub fn seen_by(&self, sentinel: &RedisServer) -> impl Fn(&str) -> String {
        let query = ["SENTINEL", "MASTER", MASTER];
        let answer = match self.password.as_str() {
            "" => sentinel.try_command(&query).ok(),
            password => (sentinel.try_commands(&[&["AUTH", password], &query]).ok())
                .and_then(|mut answers| answers.pop()),
        };
        let list = match answer {
            Some(Answer::List(list)) => list.iter().map(Answer::text).collect(),
            _ => Vec::new(),
        };
        move |name| {
            let (pairs, _) = list.as_chunks();
            let found = pairs.iter().find(|[key, _]: &&[String; 2]| key == name);
            found.map_or(String::new(), |[_, value]| value.clone())
        }
    }
}

fn start_sentinel(
    master: u16,
    password: &str,
    own_password: &str,
    tls: Option<&[&str]>,
) -> RedisServer {
    let mut config = format!(
        "sentinel monitor {MASTER} 127.0.0.1 {master} 2\n\
         sentinel down-after-milliseconds {MASTER} 500\n\
         sentinel failover-timeout {MASTER} 1000\n\
         sentinel parallel-syncs {MASTER} 2\n"
    );
    if !password.is_empty() {
        config.push_str(&format!("sentinel auth-pass {MASTER} {password}\n"));
    }
    if !own_password.is_empty() {
        config.push_str(&format!("requirepass {own_password}\n"));
    }
    let tls = tls.unwrap_or_default();
    RedisServer::start_with_config(&[&["--sentinel"], tls].concat(), config)
}
