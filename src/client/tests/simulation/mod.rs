//! Random runs of the whole protocol in simulated time: a few nodes, each a [`State`] that is driven as the driver does it,
//! over the in-process backend, with every kind of fault. The invariants are checked after each event.
//!
//! Every run follows from its seed. `SIMULATION_SEEDS=100000` makes more of them, `SIMULATION_FIRST=17` starts there,
//! `SIMULATION_STEPS=20000` makes them longer. A run that fails is repeated, and shows its last events.

mod backend;
mod callers;
mod coverage;
mod faults;
mod incidents;
mod invariants;
mod network;
mod node;
mod trace;

use crate::backend::{Call, Events, Grant, Reply};
use crate::client::state::{Hold, Shortcuts};
use crate::name::{Node, Queue};
use backend::Backend;
use callers::Caller;
use coverage::Coverage;
use faults::{Faults, Rng};
use node::SimNode;
use std::collections::{BTreeMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Microseconds since the run began.
type Time = u64;

const MILLI: Time = 1_000;

#[test]
fn random_runs_with_all_faults_break_no_rule() {
    let setting = |name: &str, default| {
        let value = std::env::var(name).ok();
        value.map_or(default, |value| value.parse().expect("a number"))
    };
    let first = setting("SIMULATION_FIRST", 0);
    let last = first + setting("SIMULATION_SEEDS", 300);
    let steps = setting("SIMULATION_STEPS", 2_000);
    let next = AtomicU64::new(first);
    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get());
    let coverage: Vec<Coverage> = std::thread::scope(|scope| {
        let work = || {
            let mut coverage = Coverage::default();
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= last {
                    return coverage;
                }
                match catch_unwind(AssertUnwindSafe(|| World::run(seed, steps))) {
                    Ok(run) => coverage.add(run),
                    Err(_) => {
                        next.store(last, Ordering::Relaxed);
                        show(seed, steps);
                    }
                }
            }
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .map(|w| w.join().expect("a failed run was shown"))
            .collect()
    });
    let mut all = Coverage::default();
    coverage.into_iter().for_each(|coverage| all.add(coverage));
    println!("{all:?}");
    // Fewer or shorter runs may miss some kinds of events.
    if last - first >= 300 && steps >= 2_000 {
        all.check();
    }
}

/// Repeats a run that failed, and prints what happened last.
fn show(seed: u64, steps: u64) -> ! {
    let mut repeated = "";
    let trace = trace::of(|| {
        if catch_unwind(AssertUnwindSafe(|| World::run(seed, steps))).is_ok() {
            repeated = " (it did not fail again)";
        }
    });
    panic!("seed {seed} failed{repeated}:\n{trace}");
}

struct World {
    rng: Rng,
    now: Time,
    base: Instant,
    /// By time; events of the same time are in random order.
    events: BTreeMap<(Time, u64, u64), Event>,
    last_event: u64,
    faults: Faults,
    /// As for a mutex.
    strict: bool,
    shortcuts: Shortcuts,
    /// Everything takes a few milliseconds only, and half the limit is free: permits linger.
    brief: bool,
    calm: bool,
    calm_since: Time,
    queue: Queue,
    backend: Backend,
    nodes: Vec<SimNode>,
    callers: Vec<Caller>,
    /// The greatest limit that any node ever had.
    max_limit: usize,
    longest_lease: Time,
    /// The highest token of all grants and hand-offs.
    highest: u64,
    /// Until then the limit may be exceeded, since the backend was flushed.
    excused_until: Time,
    /// Evicted by an operator.
    evicted: HashSet<(String, u64)>,
    coverage: Coverage,
}

#[derive(Debug)]
enum Event {
    /// Something happens from outside.
    Actions,
    Execute {
        node: Node,
        events: Arc<Events>,
        call: Call,
    },
    At(usize, Node, NodeEvent),
}

/// What happens to a node.
#[derive(Debug)]
enum NodeEvent {
    Wake,
    Resume,
    Reply(u64, Reply),
    GiveUp(u64),
    Push(Grant),
    Release(Hold),
    Claim(Hold),
    Rearm(Hold),
}

impl World {
    fn run(seed: u64, steps: u64) -> Coverage {
        let mut world = Self::new(seed);
        world.at(0, Event::Actions);
        for _ in 0..steps {
            world.step();
        }
        world.settle();
        world.coverage.events = world.last_event;
        world.coverage
    }

    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let brief = seed % 9 >= 7;
        let faults = Faults::of(seed, brief, &mut rng);
        let mut world = Self {
            now: 0,
            base: Instant::now(),
            events: BTreeMap::new(),
            last_event: 0,
            faults,
            strict: false,
            shortcuts: Shortcuts {
                hand_off: !seed.is_multiple_of(5),
                linger: Duration::from_millis([0, 10][usize::from(seed % 7 > 2)]),
                sees_others: !seed.is_multiple_of(11),
            },
            brief,
            calm: false,
            calm_since: Time::MAX / 2,
            queue: Queue::limit(b"simulated").expect("a valid name"),
            backend: Backend::new(),
            nodes: Vec::new(),
            callers: Vec::new(),
            max_limit: 0,
            longest_lease: 0,
            highest: 0,
            excused_until: 0,
            evicted: HashSet::new(),
            coverage: Coverage::default(),
            rng,
        };
        let nodes = 2 + world.rng.below(3) as usize;
        world.strict = world.faults.limits == 0 && seed.is_multiple_of(3);
        let limit = match world.strict {
            true => 1,
            false => 1 + world.rng.below(3) as u32 + if brief { 60 } else { 0 },
        };
        for _ in 0..nodes {
            let lease = [1000, 1000, 1600, 3000][world.rng.below(4) as usize];
            let limit = match world.faults.limits {
                0 => limit,
                _ => 1 + world.rng.below(4) as u32 + if brief { 60 } else { 0 },
            };
            world.max_limit = world.max_limit.max(limit as usize);
            world.longest_lease = world.longest_lease.max(lease * MILLI);
            let node = world.node(limit, Duration::from_millis(lease));
            world.nodes.push(node);
        }
        world
    }

    // --- time ---

    fn instant(&self) -> Instant {
        self.base + Duration::from_micros(self.now)
    }

    fn at(&mut self, time: Time, event: Event) {
        self.last_event += 1;
        let tie = self.rng.next();
        self.events
            .insert((time.max(self.now), tie, self.last_event), event);
    }

    fn at_node(&mut self, time: Time, node: usize, what: NodeEvent) {
        let name = self.nodes[node].id.clone();
        self.at(time, Event::At(node, name, what));
    }

    fn step(&mut self) {
        let Some(((time, _, _), event)) = self.events.pop_first() else {
            return;
        };
        self.now = time;
        match event {
            Event::Actions => {
                self.act();
                let pause = match self.rng.below(10) {
                    _ if self.brief => 4 * MILLI,
                    0 => 200 * MILLI,
                    _ => 30 * MILLI,
                };
                let next = self.now + self.rng.below(pause);
                self.at(next, Event::Actions);
            }
            Event::Execute { .. } if time < self.backend.stalled_until => {
                self.at(self.backend.stalled_until, event)
            }
            Event::Execute { node, events, call } => self.execute(node, events, call),
            Event::At(node, name, what) => self.on_node_event(node, &name, what),
        }
        self.check_invariants();
    }

    fn run_until(&mut self, end: Time) {
        while let Some(((time, _, _), _)) = self.events.first_key_value()
            && *time <= end
        {
            self.step();
        }
        self.now = end;
    }

    fn node_name(&self, node: &Node) -> String {
        let n = self.nodes.iter().position(|other| other.id == *node);
        n.map_or("a dead node".to_owned(), |n| n.to_string())
    }
}
