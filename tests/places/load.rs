//! Two processes that want in, and a witness of who was inside.

use crate::now;
use crate::support::process::Process;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// Times are those of the machine's monotonic clock, in microseconds, and so the same in every process.
pub(crate) struct Load {
    pub(crate) processes: Vec<Process>,
    limit: usize,
    /// By queue.
    visits: BTreeMap<String, Vec<Visit>>,
    /// Those queues that one process has for itself, and when somebody last came in.
    alone: BTreeMap<String, u64>,
    /// From when to when the servers may have forgotten whom they let in.
    excused: Vec<(u64, u64)>,
}

/// From when to when somebody surely held, by his own reckoning: whoever was paused or cut off meanwhile, or came late
/// with his word, is not counted for longer than that.
#[derive(Clone, Copy, Debug)]
struct Visit {
    process: usize,
    from: u64,
    to: u64,
    token: u64,
}

// === impl Load ===

impl Load {
    /// A process for each URL.
    pub(crate) fn start(urls: &[String], limit: u32, names: &[&str]) -> Self {
        let mut alone = BTreeMap::new();
        let start = |(number, url): (usize, &String)| {
            let mut process = Process::start("holder::holder", [("PLACES_URL", url)]);
            process.send(&format!("{number} {limit} {}", names.join(" ")));
            let own = names.iter().map(|name| format!("limit:{name}-{number}"));
            alone.extend(own.map(|queue| (queue, 0)));
            process
        };
        Self {
            processes: urls.iter().enumerate().map(start).collect(),
            limit: usize::try_from(limit).expect("a small limit"),
            visits: BTreeMap::new(),
            alone,
            excused: Vec::new(),
        }
    }

    /// From then on newcomers were let in, in every process.
    pub(crate) async fn is_normal_within(&mut self, bound: Duration) {
        let (since, start) = (now(), Instant::now());
        loop {
            self.listen();
            let late = self.alone.iter().find(|(_, last)| **last < since);
            let Some((queue, _)) = late else { return };
            assert!(start.elapsed() < bound, "{queue}: not within {bound:?}");
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// The servers may have forgotten, and as many as the limit more may have come in.
    pub(crate) fn excuse(&mut self, from: u64, to: u64) {
        self.excused.push((from, to));
    }

    /// Ends all, and looks at what was seen. Returns how many permits were lost while they were held.
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
        self.listen();
        for (queue, visits) in &self.visits {
            self.look_at(queue, visits);
        }
        lost
    }

    fn listen(&mut self) {
        for (process, said) in self.processes.iter_mut().enumerate() {
            for line in said.take_lines() {
                let words: Vec<&str> = line.split(' ').collect();
                let ["visit", queue, from, to, token] = words[..] else {
                    panic!("process {process} says {line}");
                };
                let number = |word: &str| word.parse().expect("a number");
                let visit = Visit {
                    process,
                    from: number(from),
                    to: number(to),
                    token: number(token),
                };
                if let Some(last) = self.alone.get_mut(queue) {
                    *last = visit.from.max(*last);
                }
                let visits = self.visits.entry(queue.to_owned()).or_default();
                visits.push(visit);
            }
        }
    }

    /// Never more inside than the limit; the tokens of a lock rise in the order in which they were inside.
    fn look_at(&self, queue: &str, visits: &[Visit]) {
        let (limit, has_tokens) = match queue.split_once(':') {
            Some(("lock", _)) => (1, true),
            _ if self.alone.contains_key(queue) => (1, false),
            _ => (self.limit, false),
        };
        let mut visits = visits.to_vec();
        visits.sort_by_key(|visit| visit.from);
        let (mut inside, mut peak, mut highest): (Vec<Visit>, _, _) = (Vec::new(), [0; 2], 0);
        for visit in &visits {
            // Who goes when another comes has gone.
            inside.retain(|other| other.to > visit.from);
            inside.push(*visit);
            let excused = self.excused.iter();
            let mut excused = excused.map(|(from, to)| *from..*to);
            let excused = excused.any(|time| time.contains(&visit.from));
            let peak = &mut peak[usize::from(excused)];
            *peak = inside.len().max(*peak);
            let most = if excused { 2 * limit } else { limit };
            assert!(
                inside.len() <= most,
                "{queue}: more than {most}: {inside:#?}"
            );
            let rises = !has_tokens || visit.token > highest;
            assert!(rises || excused, "{queue}: {visit:?} after {highest}");
            highest = visit.token.max(highest);
        }
        let [sure, excused] = peak;
        let came = [0, 1].map(|it| visits.iter().filter(|visit| visit.process == it).count());
        println!("{queue}: {came:?} came in, at most {sure} at once, {excused} after a loss");
    }
}
