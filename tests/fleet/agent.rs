//! A process of the fleet that executes the commands of a test.

use crate::modes;
use crate::support::process::{Process, report, run_child};
use crate::support::process_witness::{Holder, ProcessWitness};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant, SystemTime};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tower_permit::{Permit, Redis, Semaphore};

/// The test's handle of the process.
#[derive(Debug)]
pub(crate) struct Agent(pub Process);

/// What a process did while it worked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    pub(crate) granted: u64,
    pub(crate) refused: u64,
    pub(crate) lost: u64,
}

// === impl Agent ===

impl Agent {
    pub(crate) fn start(url: &str, lease: Duration) -> Self {
        Self::start_with(url, lease, [])
    }

    /// Starts the process with environment variables.
    pub(crate) fn start_with<const N: usize>(
        url: &str,
        lease: Duration,
        env: [(String, String); N],
    ) -> Self {
        let settings = [
            ("FLEET_URL".to_owned(), url.to_owned()),
            ("FLEET_LEASE_MS".to_owned(), lease.as_millis().to_string()),
        ];
        let env = settings.into_iter().chain(env);
        Self(Process::start("agent::agent", env))
    }

    /// Starts to acquire a permit. `key` identifies it in later commands.
    pub(crate) fn acquire(&mut self, key: &str, name: &str, limit: u32) {
        self.0.send(&format!("acquire {key} {name} {limit}"));
    }

    pub(crate) async fn granted(&mut self, key: &str) {
        self.0.receive(&format!("granted {key}.")).await;
    }

    pub(crate) async fn granted_within(&mut self, key: &str, within: Duration) -> bool {
        let line = self
            .0
            .receive_within(&format!("granted {key}."), within)
            .await;
        line.is_some()
    }

    pub(crate) async fn lost_within(&mut self, key: &str, within: Duration) -> bool {
        let line = self.0.receive_within(&format!("lost {key}."), within).await;
        line.is_some()
    }

    pub(crate) async fn is_valid(&mut self, key: &str) -> bool {
        self.0.send(&format!("valid {key}"));
        self.0.receive(&format!("valid {key}.")).await == "true"
    }

    /// Whether the permit is valid within this time: on a busy machine a renewal may be late.
    pub(crate) async fn is_valid_within(&mut self, key: &str, within: Duration) -> bool {
        let end = Instant::now() + within;
        loop {
            let valid = self.is_valid(key).await;
            if valid || Instant::now() > end {
                return valid;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Releases a permit. Returns whether it was held until then.
    pub(crate) async fn release(&mut self, key: &str) -> bool {
        self.0.send(&format!("release {key}"));
        self.0.receive(&format!("released {key}.")).await == "Ok(true)"
    }

    /// Starts tasks that acquire a permit, report to the witness, hold it for a while, and repeat.
    pub(crate) async fn work(
        &mut self,
        witness: &ProcessWitness,
        name: &str,
        limit: u32,
        tasks: u32,
        hold: Duration,
    ) {
        let (socket, hold) = (witness.path(), hold.as_millis());
        let socket = socket.display();
        self.0
            .send(&format!("work {name} {limit} {tasks} {hold} {socket}"));
        self.0.receive("working").await;
    }

    /// Ends the work: waiters give up and holders release.
    pub(crate) async fn stop(&mut self) -> Done {
        self.0.send("stop");
        let numbers = self.0.receive("stopped").await;
        let mut numbers = numbers.split(' ').map(|number| number.parse().unwrap());
        let mut next = || numbers.next().unwrap();
        Done {
            granted: next(),
            refused: next(),
            lost: next(),
        }
    }

    /// Returns the wall clock time of the process.
    pub(crate) async fn wall_clock(&mut self) -> i64 {
        self.0.send("time");
        self.0.receive("time").await.parse().unwrap()
    }
}

// === in the child process ===

struct Work {
    stop: Arc<AtomicBool>,
    granted: Arc<AtomicU64>,
    refused: Arc<AtomicU64>,
    semaphore: Semaphore,
    tasks: JoinSet<()>,
}

#[test]
fn agent() {
    let Ok(url) = std::env::var("FLEET_URL") else {
        return;
    };
    let lease = std::env::var("FLEET_LEASE_MS").expect("a lease");
    let lease = Duration::from_millis(lease.parse().expect("milliseconds"));
    run_child(serve(&url, lease));
}

/// Executes the commands on the standard input until it ends.
async fn serve(url: &str, lease: Duration) {
    let redis = Redis::new(url).unwrap().prefix("fleet").unwrap();
    let permits = modes::builder(redis).lease(lease).build().unwrap();
    let mut commands = BufReader::new(tokio::io::stdin()).lines();
    let mut interrupt =
        tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt()).unwrap();
    let mut holding: HashMap<String, UnboundedSender<Command>> = HashMap::new();
    let mut work = None;
    report("ready");
    loop {
        let command = tokio::select! {
            command = commands.next_line() => command.ok().flatten(),
            _ = interrupt.recv() => {
                let ended = permits.shutdown(Duration::from_millis(300)).await;
                report(format_args!("shut down {:?}", ended.map_err(|error| error.kind())));
                return;
            }
        };
        let Some(command) = command else { return };
        let words: Vec<&str> = command.split(' ').collect();
        match words[..] {
            ["acquire", key, name, limit] => {
                let semaphore = permits.semaphore(name, limit.parse().unwrap()).unwrap();
                let (sender, commands) = unbounded_channel();
                holding.insert(key.to_owned(), sender);
                tokio::spawn(hold(key.to_owned(), semaphore, commands));
            }
            ["valid", key] => holding[key].send(Command::ReportValidity).unwrap(),
            ["release", key] => holding[key].send(Command::Release).unwrap(),
            ["work", name, limit, tasks, hold, socket] => {
                let semaphore = permits.semaphore(name, limit.parse().unwrap()).unwrap();
                let hold = Duration::from_millis(hold.parse().unwrap());
                let tasks = tasks.parse().unwrap();
                work = Some(Work::start(semaphore, tasks, hold, socket.into()).await);
                report("working");
            }
            ["stop"] => {
                let work = work.take().expect("work was started");
                report(format_args!("stopped {}", work.end().await));
            }
            ["time"] => {
                let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
                report(format_args!("time {}", time.unwrap().as_secs()));
            }
            _ => panic!("unknown command: {command}"),
        }
    }
}

enum Command {
    ReportValidity,
    Release,
}

/// Acquires one permit and holds it until it receives the command to release it.
async fn hold(key: String, semaphore: Semaphore, mut commands: UnboundedReceiver<Command>) {
    let permit = tokio::select! {
        permit = semaphore.acquire() => permit,
        _ = commands.recv() => return report(format_args!("released {key}. None")),
    };
    let permit = match permit {
        Ok(permit) => permit,
        Err(error) => {
            return report(format_args!("refused {key}. {}", error.kind().as_str()));
        }
    };
    report(format_args!("granted {key}."));
    let mut lost = false;
    loop {
        let command = tokio::select! {
            // Commands first: the reply must not depend on the loss being noticed before.
            biased;
            command = commands.recv() => command,
            error = permit.lost(), if !lost => {
                lost = true;
                report(format_args!("lost {key}. {}", error.kind().as_str()));
                continue;
            }
        };
        match command {
            Some(Command::ReportValidity) => {
                report(format_args!("valid {key}. {}", permit.is_valid()));
            }
            Some(Command::Release) => {
                let released = permit.release().await;
                let released = released.map_err(|error| error.kind());
                return report(format_args!("released {key}. {released:?}"));
            }
            None => return,
        }
    }
}

// === impl Work ===

impl Work {
    async fn start(semaphore: Semaphore, tasks: u32, hold: Duration, socket: PathBuf) -> Self {
        let mut work = Self {
            stop: Arc::default(),
            granted: Arc::default(),
            refused: Arc::default(),
            semaphore,
            tasks: JoinSet::new(),
        };
        for _ in 0..tasks {
            let mut holder = Holder::connect(&socket).await;
            let (stop, semaphore) = (work.stop.clone(), work.semaphore.clone());
            let (granted, refused) = (work.granted.clone(), work.refused.clone());
            work.tasks.spawn(async move {
                while !stop.load(SeqCst) {
                    let permit: Permit =
                        match semaphore.acquire_timeout(Duration::from_secs(2)).await {
                            Ok(permit) => permit,
                            Err(_) => {
                                refused.fetch_add(1, SeqCst);
                                tokio::time::sleep(Duration::from_millis(10)).await;
                                continue;
                            }
                        };
                    granted.fetch_add(1, SeqCst);
                    holder.enter().await;
                    tokio::time::sleep(hold).await;
                    holder.exit().await;
                    drop(permit);
                }
            });
        }
        work
    }

    async fn end(mut self) -> String {
        self.stop.store(true, SeqCst);
        while let Some(ended) = self.tasks.join_next().await {
            ended.expect("no panic");
        }
        let (granted, refused) = (self.granted.load(SeqCst), self.refused.load(SeqCst));
        format!("{granted} {refused} {}", self.semaphore.stats().lost)
    }
}
