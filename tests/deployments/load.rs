//! The load of two processes, and the check of the holds that they report.

use crate::now;
use crate::support::process::Process;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// The running load. Times are microseconds of the machine's monotonic clock, which all processes share.
pub(crate) struct Load {
    pub(crate) processes: Vec<Process>,
    limit: usize,
    /// By queue.
    holds: BTreeMap<String, Vec<Hold>>,
    /// The queues that only one process uses, with the time of the last grant.
    exclusive: BTreeMap<String, u64>,
    /// Intervals in which the servers may have lost the permits that they had granted.
    excused: Vec<(u64, u64)>,
}

/// An interval in which a task certainly held, by its own deadline. Time in which the process was paused or cut off does
/// not count beyond that deadline.
#[derive(Clone, Copy, Debug)]
struct Hold {
    process: usize,
    from: u64,
    to: u64,
    token: u64,
}

// === impl Load ===

impl Load {
    /// Starts a process for each URL.
    pub(crate) fn start(urls: &[String], limit: u32, names: &[&str]) -> Self {
        let mut exclusive = BTreeMap::new();
        let start = |(number, url): (usize, &String)| {
            let mut process = Process::start("load_process::load_process", [("LOAD_URL", url)]);
            process.send(&format!("{number} {limit} {}", names.join(" ")));
            let own = names.iter().map(|name| format!("limit:{name}-{number}"));
            exclusive.extend(own.map(|queue| (queue, 0)));
            process
        };
        Self {
            processes: urls.iter().enumerate().map(start).collect(),
            limit: usize::try_from(limit).expect("a small limit"),
            holds: BTreeMap::new(),
            exclusive,
            excused: Vec::new(),
        }
    }

    /// Waits until each process was granted a permit that it acquired after this call.
    pub(crate) async fn resumes_within(&mut self, bound: Duration) {
        let (since, start) = (now(), Instant::now());
        loop {
            self.receive();
            let late = self.exclusive.iter().find(|(_, last)| **last < since);
            let Some((queue, _)) = late else { return };
            assert!(
                start.elapsed() < bound,
                "{queue}: no grant within {bound:?}"
            );
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Allows as many additional permits as the limit in this interval, because the servers may have lost data.
    pub(crate) fn excuse(&mut self, from: u64, to: u64) {
        self.excused.push((from, to));
    }

    /// Ends the processes and checks all holds. Returns how many permits were lost while they were held.
    pub(crate) async fn end(mut self) -> u64 {
        let mut lost = 0;
        for process in &mut self.processes {
            process.send("stop");
        }
        for number in 0..self.processes.len() {
            let ended = self.processes[number].receive("ended").await;
            println!("process {number}: {ended}");
            let own = ended.split(' ').nth_back(1).map(str::parse::<u64>);
            lost += own.expect("a number").expect("a number");
        }
        self.receive();
        for (queue, holds) in &self.holds {
            self.check(queue, holds);
        }
        lost
    }

    fn receive(&mut self) {
        for (number, process) in self.processes.iter_mut().enumerate() {
            for line in process.take_lines() {
                let words: Vec<&str> = line.split(' ').collect();
                let ["hold", queue, from, to, token] = words[..] else {
                    panic!("process {number} reports {line}");
                };
                let parse = |word: &str| word.parse().expect("a number");
                let hold = Hold {
                    process: number,
                    from: parse(from),
                    to: parse(to),
                    token: parse(token),
                };
                if let Some(last) = self.exclusive.get_mut(queue) {
                    *last = hold.from.max(*last);
                }
                let holds = self.holds.entry(queue.to_owned()).or_default();
                holds.push(hold);
            }
        }
    }

    /// Checks that no more permits were held than the limit, and that the tokens of a lock increase from holder to holder.
    fn check(&self, queue: &str, holds: &[Hold]) {
        let (limit, has_tokens) = match queue.split_once(':') {
            Some(("lock", _)) => (1, true),
            _ if self.exclusive.contains_key(queue) => (1, false),
            _ => (self.limit, false),
        };
        let mut holds = holds.to_vec();
        holds.sort_by_key(|hold| hold.from);
        let (mut inside, mut peak, mut highest): (Vec<Hold>, _, _) = (Vec::new(), [0; 2], 0);
        for hold in &holds {
            // A hold that ends when another begins does not overlap it.
            inside.retain(|other| other.to > hold.from);
            inside.push(*hold);
            let excused = self.excused.iter();
            let mut excused = excused.map(|(from, to)| *from..*to);
            let excused = excused.any(|time| time.contains(&hold.from));
            let peak = &mut peak[usize::from(excused)];
            *peak = inside.len().max(*peak);
            let allowed = if excused { 2 * limit } else { limit };
            assert!(
                inside.len() <= allowed,
                "{queue}: more than {allowed}: {inside:#?}"
            );
            let rises = !has_tokens || hold.token > highest;
            assert!(rises || excused, "{queue}: {hold:?} after {highest}");
            highest = hold.token.max(highest);
        }
        let [peak, excused] = peak;
        let counts = [0, 1].map(|it| holds.iter().filter(|hold| hold.process == it).count());
        println!(
            "{queue}: {counts:?} holds, at most {peak} at once, {excused} after a loss of data"
        );
    }
}
