//! Child processes of a test: the same test program, started again to run one test.
//!
//! Parent and child exchange lines. Those of the child start with `> `, because its test harness prints lines too.

use super::pause;
use crate::HANG_GUARD;
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

const MARK: &str = "> ";

/// A child process. Killed when dropped, even if it is paused, and when the test program ends.
#[derive(Debug)]
pub struct Process {
    child: Child,
    stdin: ChildStdin,
    lines: UnboundedReceiver<String>,
    /// Lines that no call has returned yet.
    pending: Vec<String>,
}

// === impl Process ===

impl Process {
    /// Runs `test` of this program in a new process. The test must return at once unless these variables are set.
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
        let (sender, lines) = unbounded_channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if let Some(line) = line.strip_prefix(MARK) {
                    let _ = sender.send(line.to_owned());
                }
            }
        });
        Self {
            child,
            stdin,
            lines,
            pending: Vec::new(),
        }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns all received lines that no call has returned yet.
    pub fn take_lines(&mut self) -> Vec<String> {
        while let Ok(line) = self.lines.try_recv() {
            self.pending.push(line);
        }
        std::mem::take(&mut self.pending)
    }

    /// Sends a line to the process.
    pub fn send(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").expect("the process reads its input");
    }

    /// Receives the first line that starts with `start`, and returns the rest of it.
    pub async fn receive(&mut self, start: &str) -> String {
        match self.receive_within(start, HANG_GUARD).await {
            Some(rest) => rest,
            None => panic!(
                "no line starts with {start:?} within {HANG_GUARD:?}: {:?}",
                self.pending
            ),
        }
    }

    /// The same as [`receive`](Self::receive), with `None` after this time.
    pub async fn receive_within(&mut self, start: &str, within: Duration) -> Option<String> {
        let end = Instant::now() + within;
        loop {
            let found = self.pending.iter().position(|line| line.starts_with(start));
            if let Some(found) = found {
                return Some(self.pending.remove(found)[start.len()..].trim().to_owned());
            }
            let left = end.saturating_duration_since(Instant::now());
            let line = tokio::time::timeout(left, self.lines.recv()).await.ok()??;
            self.pending.push(line);
        }
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("a signal for a process");
    }

    /// Pauses the process. Its clocks continue.
    pub fn pause(&self) {
        pause::pause(&self.child);
    }

    pub fn resume(&self) {
        pause::resume(&self.child);
    }

    /// Sends SIGKILL and waits until the process has ended.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits for the process to end by itself.
    pub async fn ended(&mut self) -> ExitStatus {
        let end = Instant::now() + HANG_GUARD;
        while Instant::now() < end {
            if let Some(status) = self.child.try_wait().expect("a child process") {
                return status;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("the process has not ended within {HANG_GUARD:?}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

// === in the child process ===

/// Runs the child's part of a test on a current-thread runtime, and ends the process with it. The process also ends with its
/// parent.
pub fn run_child(part: impl Future<Output = ()>) -> ! {
    println!(); // ends the line that the test harness has begun
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(part);
    // Dropping the runtime would wait for the next line of the standard input.
    std::process::exit(0);
}

/// Sends a line to the parent.
pub fn report(line: impl std::fmt::Display) {
    println!("{MARK}{line}");
}
