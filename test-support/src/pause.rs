//! Processes of a test's own that stand still for a while: connections stay open, nothing is answered.

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use std::process::Child;

/// SIGSTOP. When this returns, every thread has stopped: until then a server may still answer.
pub fn pause(child: &Child) {
    let pid = Pid::from_child(child);
    kill_process(pid, Signal::STOP).expect("a process of ours");
    // The end of a process is a stop too, and whoever started it still hears of it.
    let stopped = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    waitid(WaitId::Pid(pid), stopped).expect("a process of ours");
}

/// SIGCONT.
pub fn resume(child: &Child) {
    kill_process(Pid::from_child(child), Signal::CONT).expect("a process of ours");
}
