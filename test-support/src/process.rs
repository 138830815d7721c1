//! Processes of a test's own: this very test program, started again to do one thing.
//!
//! The two sides speak in lines. What the process says starts with `> `, for the test harness in it prints lines too.

use super::pause;
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// How long a process may take for what it does at once.
const PATIENCE: Duration = Duration::from_secs(20);
const MARK: &str = "> ";

/// Killed when dropped, stopped or not. It also ends when the test program does.
#[derive(Debug)]
pub struct Process {
    child: Child,
    stdin: ChildStdin,
    heard: UnboundedReceiver<String>,
    /// Heard, but nobody has asked for it yet.
    kept: Vec<String>,
}

// === impl Process ===

impl Process {
    /// Runs `test` of this program in a new process. The test does nothing unless it finds these variables.
    pub fn start<K: AsRef<OsStr>, V: AsRef<OsStr>>(
        test: &str,
        env: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        let program = std::env::current_exe().expect("the test program");
        let mut child = Command::new(program)
            .args(["--exact", test, "--nocapture", "--test-threads=1"])
            .envs(env)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the test program runs again");
        let stdin = child.stdin.take().expect("a pipe");
        let stdout = child.stdout.take().expect("a pipe");
        let (sender, heard) = unbounded_channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if let Some(said) = line.strip_prefix(MARK) {
                    let _ = sender.send(said.to_owned());
                }
            }
        });
        Self {
            child,
            stdin,
            heard,
            kept: Vec::new(),
        }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// All that was said and that nobody has heard yet.
    pub fn said(&mut self) -> Vec<String> {
        while let Ok(line) = self.heard.try_recv() {
            self.kept.push(line);
        }
        std::mem::take(&mut self.kept)
    }

    /// Says a line to the process. It may lie there until the process looks.
    pub fn say(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").expect("the process listens");
    }

    /// What follows `start` in the first line that starts with it and was not heard before.
    pub async fn hear(&mut self, start: &str) -> String {
        match self.hear_within(start, PATIENCE).await {
            Some(rest) => rest,
            None => panic!("{start:?} was never said, but {:?}", self.kept),
        }
    }

    /// [`hear`](Self::hear), or `None` after this time.
    pub async fn hear_within(&mut self, start: &str, within: Duration) -> Option<String> {
        let end = Instant::now() + within;
        loop {
            let found = self.kept.iter().position(|line| line.starts_with(start));
            if let Some(found) = found {
                return Some(self.kept.remove(found)[start.len()..].trim().to_owned());
            }
            let left = end.saturating_duration_since(Instant::now());
            let line = tokio::time::timeout(left, self.heard.recv()).await.ok()??;
            self.kept.push(line);
        }
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("a signal for a process");
    }

    /// Stands still: answers nothing, and its clocks go on.
    pub fn pause(&self) {
        pause::pause(&self.child);
    }

    pub fn resume(&self) {
        pause::resume(&self.child);
    }

    /// SIGKILL, and waits for the end.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits for the process to end by itself.
    pub async fn ended(&mut self) -> ExitStatus {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            if let Some(status) = self.child.try_wait().expect("a process of ours") {
                return status;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("the process does not end");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

// --- in the process itself ---

/// The first thing to do: from here on the process ends with the test program, whatever becomes of that.
pub fn begin() {
    println!(); // after what the test harness has begun to say
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
}

/// Says a line to the test.
pub fn tell(line: impl std::fmt::Display) {
    println!("{MARK}{line}");
}
