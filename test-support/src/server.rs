//! Starting and awaiting the servers of a test: free ports, child processes that never outlive the test program, conditions.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Returns a port that no process uses now. Another process may bind it before the server does.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("a free port").port()
}

/// Starts a server without standard input and output.
pub(crate) fn spawn(name: &str, command: &mut Command) -> Child {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => panic!("{name} is not installed: run tests/run"),
            _ => panic!("{name} does not start: {error}"),
        })
}

/// Starts a process that runs a shell script when its input ends. That happens when the test program ends, even by SIGKILL.
pub(crate) fn run_at_exit(script: impl fmt::Display) -> Child {
    Command::new("sh")
        .args(["-c", &format!("read _; {script}")])
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("a shell")
}

/// Sends SIGKILL, and waits until the process has ended.
pub(crate) fn kill(child: &mut Option<Child>) {
    if let Some(mut child) = child.take() {
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Waits until the condition holds. Panics with `what` after `patience`.
pub(crate) fn wait_until(what: &str, patience: Duration, holds: impl Fn() -> bool) {
    let end = Instant::now() + patience;
    while !holds() {
        assert!(Instant::now() < end, "timed out after {patience:?}: {what}");
        sleep(Duration::from_millis(10));
    }
}
