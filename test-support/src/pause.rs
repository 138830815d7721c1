//! Pauses child processes: connections stay open, no request is answered.

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use std::process::Child;

/// Sends SIGSTOP and waits until every thread has stopped: until then a server may still answer.
pub fn pause(child: &Child) {
    let pid = Pid::from_child(child);
    kill_process(pid, Signal::STOP).expect("a child process");
    // A process that has ended counts as stopped. Its status stays available to its parent.
    let stopped = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    waitid(WaitId::Pid(pid), stopped).expect("a child process");
}

/// Sends SIGCONT.
pub fn resume(child: &Child) {
    kill_process(Pid::from_child(child), Signal::CONT).expect("a child process");
}
