//! Servers behind proxies, a load on them, and what strikes them.

use crate::load::Load;
use crate::support::proxy::{Mode, Proxy, Way};
use crate::{NORMAL, SLACK, now};
use std::time::{Duration, Instant};
use tokio::task::block_in_place;
use tokio::time::sleep;

/// How long servers may take to be whole again.
const PATIENCE: Duration = Duration::from_secs(30);

/// One kind of servers. Everything is synchronous.
pub(crate) trait Servers {
    const LIMIT: u32 = 4;
    const NAMES: &[&str] = &["load"];
    /// The servers tell clients and each other where the proxies are, so there is one for each; else each process has
    /// its own.
    const ANNOUNCED: bool = false;
    /// How many may be struck at a time.
    const MOST: usize;
    /// By when newcomers are let in, when the servers are whole again.
    const NORMAL: Duration = NORMAL;
    /// For how long after a [loss](Self::losses) there may be more inside.
    const EXCUSED: Duration = Duration::ZERO;

    fn ports(&self) -> Vec<u16>;
    /// Of servers, or proxies, at these addresses.
    fn url(&self, addresses: &[String]) -> String;
    fn stand_behind(&mut self, _proxies: &[Proxy]) {}
    /// This is going to happen.
    fn expect(&self, _strike: &Strike) {}
    /// The one that it hurts most to lose.
    fn leader(&self) -> usize;
    fn pause(&self, server: usize);
    fn resume(&self, server: usize);
    fn kill(&mut self, server: usize);
    fn restart(&mut self, server: usize);
    /// How many may be struck by this while the others serve for all.
    fn spare(what: &What) -> usize;
    /// Whether all but these serve.
    fn serve_without(&self, gone: &[usize]) -> bool;
    /// A number that changes when what was granted may be forgotten, as those say that are not gone.
    fn losses(&self, _gone: &[usize]) -> u64 {
        0
    }
}

#[derive(Clone, Debug)]
pub(crate) enum What {
    /// SIGSTOP.
    Pause,
    /// SIGKILL.
    Kill,
    /// Nothing passes between the servers and one process, or all. What is held arrives late.
    Cut {
        process: Option<usize>,
        ways: Vec<Way>,
        mode: Mode,
    },
    /// SIGSTOP of one process, and of no server.
    Freeze { process: usize },
}

#[derive(Clone, Debug)]
pub(crate) struct Strike {
    pub(crate) what: What,
    pub(crate) servers: Vec<usize>,
    /// `None`: until newcomers are let in by those that are left.
    pub(crate) time: Option<Duration>,
}

pub(crate) struct Rig<S> {
    pub(crate) servers: S,
    pub(crate) load: Load,
    /// By process, and server.
    proxies: Vec<Vec<Proxy>>,
    /// How many losses there were when somebody last looked, and when that was.
    losses: (u64, u64),
}

// === impl Rig ===

impl<S: Servers> Rig<S> {
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
        block_in_place(|| servers.stand_behind(&proxies[0]));
        until_they_serve(&servers, &[]);
        let urls = [0, 1].map(|process| {
            let row = &proxies[process % proxies.len()];
            let addresses: Vec<String> = row.iter().map(Proxy::address).collect();
            servers.url(&addresses)
        });
        let mut load = Load::start(&urls, S::LIMIT, S::NAMES);
        load.is_normal_within(S::NORMAL + PATIENCE).await;
        let losses = (servers.losses(&[]), now());
        Self {
            servers,
            load,
            proxies,
            losses,
        }
    }

    /// Something goes wrong for a while, and is mended. Then all is as before, within its time.
    pub(crate) async fn strike(&mut self, strike: &Strike) {
        println!("{}: {strike:?}", now());
        let start = Instant::now();
        self.begin(strike);
        match strike.time {
            Some(time) => sleep(time).await,
            None => {
                until_they_serve(&self.servers, &strike.servers);
                self.look_for_losses(&strike.servers);
                self.load.is_normal_within(S::NORMAL + SLACK).await;
            }
        }
        let struck = start.elapsed();
        self.end_of(strike);
        self.look_for_losses(&[]);
        until_they_serve(&self.servers, &[]);
        let whole = start.elapsed();
        self.load.is_normal_within(S::NORMAL + SLACK).await;
        let normal = start.elapsed();
        self.look_for_losses(&[]);
        println!("mended after {struck:?}, whole {whole:?}, normal {normal:?}");
    }

    /// Whatever was let in since the last look is excused, if servers forgot meanwhile.
    fn look_for_losses(&mut self, gone: &[usize]) {
        let losses = block_in_place(|| self.servers.losses(gone));
        let (before, from) = std::mem::replace(&mut self.losses, (losses, now()));
        if losses != before {
            let more = S::EXCUSED + SLACK;
            let more = u64::try_from(more.as_micros()).expect("a short time");
            self.load.excuse(from, now() + more);
        }
    }

    pub(crate) async fn end(mut self) {
        self.look_for_losses(&[]);
        self.load.end().await;
    }

    fn begin(&mut self, strike: &Strike) {
        block_in_place(|| self.servers.expect(strike));
        match &strike.what {
            What::Freeze { process } => self.load.processes[*process].pause(),
            What::Pause => strike.servers.iter().for_each(|at| self.servers.pause(*at)),
            What::Kill => strike.servers.iter().for_each(|at| self.servers.kill(*at)),
            What::Cut {
                process,
                ways,
                mode,
            } => {
                for proxy in self.between(*process, &strike.servers) {
                    ways.iter().for_each(|way| proxy.set(*way, *mode));
                }
            }
        }
    }

    fn end_of(&mut self, strike: &Strike) {
        match &strike.what {
            What::Freeze { process } => self.load.processes[*process].resume(),
            What::Pause => strike
                .servers
                .iter()
                .for_each(|at| self.servers.resume(*at)),
            What::Kill => {
                let servers = &mut self.servers;
                block_in_place(|| strike.servers.iter().for_each(|at| servers.restart(*at)));
            }
            What::Cut {
                process,
                ways,
                mode,
            } => {
                for proxy in self.between(*process, &strike.servers) {
                    ways.iter().for_each(|way| proxy.set(*way, Mode::Pass));
                    // What was lost is missing.
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

fn until_they_serve<S: Servers>(servers: &S, gone: &[usize]) {
    let end = Instant::now() + PATIENCE;
    block_in_place(|| {
        while !servers.serve_without(gone) {
            assert!(Instant::now() < end, "they do not serve without {gone:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    });
}
