//! Servers behind proxies, the load on them, and the faults that are injected.

use crate::load::Load;
use crate::support::proxy::{Mode, Proxy, Way};
use crate::{NORMAL, SLACK, now};
use std::time::{Duration, Instant};
use tokio::task::block_in_place;
use tokio::time::sleep;

/// How long servers may take to be complete again.
const PATIENCE: Duration = Duration::from_secs(30);

/// One kind of deployment. All methods are synchronous.
pub(crate) trait Servers {
    const LIMIT: u32 = 4;
    const NAMES: &[&str] = &["load"];
    /// Whether the servers announce the addresses of their proxies. Then each server has one proxy, else one for each
    /// process.
    const ANNOUNCED: bool = false;
    /// How many servers may fail at a time.
    const MAX_FAILED: usize;
    /// By when new callers are granted, once the servers are complete again.
    const NORMAL: Duration = NORMAL;
    /// For how long after a [loss](Self::losses) more permits than the limit may be held.
    const EXCUSED: Duration = Duration::ZERO;

    fn ports(&self) -> Vec<u16>;
    /// Returns the URL of servers, or proxies, at these addresses.
    fn url(&self, addresses: &[String]) -> String;
    fn announce_proxies(&mut self, _proxies: &[Proxy]) {}
    /// Called before a fault is injected.
    fn before_fault(&self, _fault: &Fault) {}
    /// Returns the server with the greatest effect if it fails.
    fn leader(&self) -> usize;
    fn pause(&self, server: usize);
    fn resume(&self, server: usize);
    fn kill(&mut self, server: usize);
    fn restart(&mut self, server: usize);
    /// Returns how many servers may have this fault while the others still serve all names.
    fn spare_servers(kind: &FaultKind) -> usize;
    /// Whether the servers other than these serve all names.
    fn serves_without(&self, gone: &[usize]) -> bool;
    /// Returns a number that changes when granted permits may have been lost, according to the servers not in `gone`.
    fn losses(&self, _gone: &[usize]) -> u64 {
        0
    }
}

#[derive(Clone, Debug)]
pub(crate) enum FaultKind {
    /// SIGSTOP of servers.
    Pause,
    /// SIGKILL of servers.
    Kill,
    /// No data passes between the servers and one process, or all. Held data arrives late.
    Cut {
        process: Option<usize>,
        ways: Vec<Way>,
        mode: Mode,
    },
    /// SIGSTOP of one load process.
    Freeze { process: usize },
}

#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) kind: FaultKind,
    pub(crate) servers: Vec<usize>,
    /// How long it lasts. `None`: until the remaining servers grant new callers.
    pub(crate) time: Option<Duration>,
}

pub(crate) struct Scenario<S> {
    pub(crate) servers: S,
    pub(crate) load: Load,
    /// Indexed by process and server.
    proxies: Vec<Vec<Proxy>>,
    /// The [losses](Servers::losses) at the last check, and the time of that check.
    losses: (u64, u64),
}

// === impl Scenario ===

impl<S: Servers> Scenario<S> {
    pub(crate) async fn start(start: impl FnOnce() -> S) -> Self {
        let mut servers = block_in_place(start);
        let mut proxies = Vec::new();
        for _ in 0..if S::ANNOUNCED { 1 } else { 2 } {
            let mut row = Vec::new();
            for port in servers.ports() {
                row.push(Proxy::start(port).await);
            }
            proxies.push(row);
        }
        block_in_place(|| servers.announce_proxies(&proxies[0]));
        wait_until_served(&servers, &[]);
        let urls = [0, 1].map(|process| {
            let row = &proxies[process % proxies.len()];
            let addresses: Vec<String> = row.iter().map(Proxy::address).collect();
            servers.url(&addresses)
        });
        let mut load = Load::start(&urls, S::LIMIT, S::NAMES);
        load.resumes_within(S::NORMAL + PATIENCE).await;
        let losses = (servers.losses(&[]), now());
        Self {
            servers,
            load,
            proxies,
            losses,
        }
    }

    /// Injects a fault, ends it, and waits until service has resumed within its bound.
    pub(crate) async fn inject(&mut self, fault: &Fault) {
        println!("{}: {fault:?}", now());
        let start = Instant::now();
        self.begin_fault(fault);
        match fault.time {
            Some(time) => sleep(time).await,
            None => {
                wait_until_served(&self.servers, &fault.servers);
                self.check_losses(&fault.servers);
                self.load.resumes_within(S::NORMAL + SLACK).await;
            }
        }
        let ended = start.elapsed();
        self.end_fault(fault);
        self.check_losses(&[]);
        wait_until_served(&self.servers, &[]);
        let complete = start.elapsed();
        self.load.resumes_within(S::NORMAL + SLACK).await;
        let resumed = start.elapsed();
        self.check_losses(&[]);
        println!("ended after {ended:?}, complete after {complete:?}, resumed after {resumed:?}");
    }

    /// Excuses the grants since the last check if servers may have lost permits meanwhile.
    fn check_losses(&mut self, gone: &[usize]) {
        let losses = block_in_place(|| self.servers.losses(gone));
        let (before, from) = std::mem::replace(&mut self.losses, (losses, now()));
        if losses != before {
            let length = S::EXCUSED + SLACK;
            let length = u64::try_from(length.as_micros()).expect("a short time");
            self.load.excuse(from, now() + length);
        }
    }

    pub(crate) async fn end(mut self) {
        self.check_losses(&[]);
        self.load.end().await;
    }

    fn begin_fault(&mut self, fault: &Fault) {
        block_in_place(|| self.servers.before_fault(fault));
        match &fault.kind {
            FaultKind::Freeze { process } => self.load.processes[*process].pause(),
            FaultKind::Pause => fault.servers.iter().for_each(|at| self.servers.pause(*at)),
            FaultKind::Kill => fault.servers.iter().for_each(|at| self.servers.kill(*at)),
            FaultKind::Cut {
                process,
                ways,
                mode,
            } => {
                for proxy in self.between(*process, &fault.servers) {
                    ways.iter().for_each(|way| proxy.set(*way, *mode));
                }
            }
        }
    }

    fn end_fault(&mut self, fault: &Fault) {
        match &fault.kind {
            FaultKind::Freeze { process } => self.load.processes[*process].resume(),
            FaultKind::Pause => fault.servers.iter().for_each(|at| self.servers.resume(*at)),
            FaultKind::Kill => {
                let servers = &mut self.servers;
                block_in_place(|| fault.servers.iter().for_each(|at| servers.restart(*at)));
            }
            FaultKind::Cut {
                process,
                ways,
                mode,
            } => {
                for proxy in self.between(*process, &fault.servers) {
                    ways.iter().for_each(|way| proxy.set(*way, Mode::Pass));
                    // The stream lacks the lost data.
                    if *mode == Mode::Lose {
                        proxy.cut();
                    }
                }
            }
        }
    }

    fn between<'a>(
        &'a self,
        process: Option<usize>,
        servers: &'a [usize],
    ) -> impl Iterator<Item = &'a Proxy> {
        let rows = self.proxies.iter().enumerate();
        let rows = rows.filter(move |(at, _)| process.is_none_or(|process| process == *at));
        rows.flat_map(|(_, row)| servers.iter().map(|server| &row[*server]))
    }
}

fn wait_until_served<S: Servers>(servers: &S, gone: &[usize]) {
    let end = Instant::now() + PATIENCE;
    block_in_place(|| {
        while !servers.serves_without(gone) {
            assert!(
                Instant::now() < end,
                "the servers do not serve without {gone:?} within {PATIENCE:?}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    });
}
