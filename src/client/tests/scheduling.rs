//! Random runs of the driver's scheduling in simulated time: many names in a few groups, one of which is flooded, over the
//! in-process backend. Calls are late, fail or get lost. Checked after each event: no name is forgotten, no name waits for
//! more turns than the names before it allow, and no permit is lost as long as calls are answered.

use crate::backend::memory::queue::TicketQueue;
use crate::backend::{Call, Events, Reply};
use crate::client::schedule::{Position, Schedule};
use crate::client::state::{Effects, Hold, Plan, Shortcuts, State, Terms, Tickets};
use crate::name::{Node, Queue};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

const MILLI: Duration = Duration::from_millis(1);
const LEASE: Duration = Duration::from_secs(1);
const GROUPS: u64 = 4;
const NAMES: usize = 60;
const CALLS: usize = 8;
const IN_FLIGHT: usize = 2;

struct Name {
    queue: Queue,
    group: u64,
    tickets: TicketQueue,
    state: State<()>,
    position: Position,
    in_flight: Option<u64>,
    holds: Vec<Hold>,
    /// How many names may get their turn before this one does.
    turns_left: Option<usize>,
}

/// A call: its name, its number, when it was sent, and its reply unless it fails.
type Sent = (usize, u64, Instant, Option<Reply>);

struct World {
    rng: SmallRng,
    base: Instant,
    now: Duration,
    node: Node,
    events: Arc<Events>,
    schedule: Schedule<usize>,
    names: Vec<Name>,
    last: u64,
    /// By the time at which they end.
    batches: BTreeMap<(Duration, u64), Vec<Sent>>,
    /// No call fails: then no permit may be lost.
    reliable: bool,
    served: usize,
    renewed: usize,
}

#[test]
fn no_name_is_starved_or_forgotten() {
    let (mut served, mut renewed) = (0, 0);
    for seed in 0..40 {
        let mut world = World::new(seed);
        for _ in 0..1500 {
            world.step();
        }
        served += world.served;
        renewed += world.renewed;
    }
    assert!(served > 10_000 && renewed > 100, "{served} {renewed}");
}

impl World {
    fn new(seed: u64) -> Self {
        let (base, mut rng) = (Instant::now(), SmallRng::seed_from_u64(seed));
        let shortcuts = Shortcuts {
            hand_off: rng.random(),
            linger: Duration::ZERO,
            sees_others: true,
        };
        let names = (0..NAMES).map(|n| Name {
            queue: Queue::mutex(n.to_string().as_bytes()).expect("a name"),
            // The first group is crowded.
            group: if n < 45 { 0 } else { n as u64 % GROUPS },
            tickets: TicketQueue::new(Duration::ZERO, 0),
            state: State::new(1, LEASE, true, shortcuts, base),
            position: Position::default(),
            in_flight: None,
            holds: Vec::new(),
            turns_left: None,
        });
        Self {
            base,
            now: Duration::ZERO,
            node: Node::of_this_process(),
            events: Arc::new(Events::new(|_| ())),
            schedule: Schedule::default(),
            names: names.collect(),
            last: 0,
            batches: BTreeMap::new(),
            reliable: !seed.is_multiple_of(3),
            served: 0,
            renewed: 0,
            rng,
        }
    }

    fn instant(&self) -> Instant {
        self.base + self.now
    }

    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn step(&mut self) {
        let n = self.rng.random_range(0..NAMES);
        match self.rng.random_range(0..10) {
            0..=3 => {
                let (ticket, now) = (self.number(), self.instant());
                (self.names[n].state).join(ticket, now, Terms::default(), usize::MAX, ());
                self.follow_up(n);
            }
            4..=5 => {
                if let Some(hold) = self.names[n].holds.pop() {
                    let now = self.instant();
                    let effects = self.names[n].state.drop_guard(hold, now, None);
                    self.follow_up(n);
                    self.deliver(n, effects);
                }
            }
            6 => {
                let waiting = !self.names[n].state.waiters.is_empty();
                let ticket = self.rng.random_range(0..=self.last);
                if waiting && self.names[n].state.give_up(ticket).is_some() {
                    self.follow_up(n);
                }
            }
            _ => self.pass_time(),
        }
        self.drive();
        self.check();
    }

    /// Does what the driver does.
    fn drive(&mut self) {
        let now = self.instant();
        while let Some((key, n)) = self.schedule.pop_due(now) {
            self.names[n].position.on_timer(key);
            let effects = self.names[n].state.tick(now);
            self.follow_up(n);
            self.deliver(n, effects);
        }
        while self.batches.len() < IN_FLIGHT {
            let ready = || self.schedule.pop_ready(|| true);
            let ready: Vec<_> = std::iter::from_fn(ready).take(CALLS).collect();
            if ready.is_empty() {
                return;
            }
            let mut calls = Vec::new();
            for (n, renewal) in ready {
                if !renewal {
                    self.count_turn(n);
                }
                self.names[n].position.on_turn(renewal);
                if self.names[n].in_flight.is_none() {
                    let (tickets, effects) = self.names[n].state.next_call(now, renewal);
                    if let Some(tickets) = tickets {
                        calls.push(self.send(n, tickets));
                    }
                    self.deliver(n, effects);
                }
                self.follow_up(n);
            }
            if !calls.is_empty() {
                let end = self.now + MILLI * self.rng.random_range(1..20);
                let id = self.number();
                self.batches.insert((end, id), calls);
            }
        }
    }

    fn send(&mut self, n: usize, tickets: Tickets) -> Sent {
        let number = self.number();
        let (sent, now) = (self.instant(), self.now);
        let name = &mut self.names[n];
        name.in_flight = Some(number);
        self.renewed += tickets.renew.len();
        let call = Call {
            queue: name.queue.clone(),
            number,
            limit: 1,
            lease: LEASE,
            release: tickets.release,
            renew: tickets.renew,
            acquire: tickets.acquire,
            try_acquire: tickets.try_acquire,
        };
        let fails = !self.reliable && self.rng.random_ratio(1, 8);
        let executed = !fails || self.rng.random();
        let reply = executed.then(|| {
            name.tickets
                .exchange(&self.node, &self.events, &call, now)
                .0
        });
        (n, number, sent, reply.filter(|_| !fails))
    }

    /// Advances to the end of the next batch or to the next timer, by 30 ms at most.
    fn pass_time(&mut self) {
        let timer = self.schedule.next_timer().map(|at| at - self.base);
        let batch = self.batches.keys().next().map(|(end, _)| *end);
        let next = timer.into_iter().chain(batch).min();
        let soon = self.now + MILLI * 30;
        self.now = next.map_or(soon, |next| next.clamp(self.now, soon));
        while let Some(first) = self.batches.first_entry()
            && first.key().0 <= self.now
        {
            for (n, number, sent, reply) in first.remove() {
                self.on_end(n, number, sent, reply);
            }
        }
    }

    fn on_end(&mut self, n: usize, number: u64, sent: Instant, reply: Option<Reply>) {
        let now = self.instant();
        let name = &mut self.names[n];
        assert_eq!(name.in_flight.take(), Some(number), "one call at a time");
        let effects = match reply {
            Some(Reply::Done(outcome)) => name.state.on_reply(&outcome, sent, now),
            Some(Reply::Stale) => panic!("calls are executed in order here"),
            None => {
                name.state.on_failure(0.5, Duration::ZERO, now);
                Effects::default()
            }
        };
        self.follow_up(n);
        self.deliver(n, effects);
    }

    fn deliver(&mut self, n: usize, effects: Effects<()>) {
        assert!(
            !self.reliable || effects.lost.is_empty(),
            "a renewal was late"
        );
        let granted = effects.next.into_iter().chain(effects.granted);
        for (_, hold) in granted {
            self.served += 1;
            self.names[n].holds.push(hold);
        }
        for (hold, _) in effects.lost {
            self.names[n].holds.retain(|held| *held != hold);
            let _ = self.names[n]
                .state
                .drop_guard(hold, self.base + self.now, None);
            self.follow_up(n);
        }
    }

    fn follow_up(&mut self, n: usize) {
        let now = self.instant();
        let ahead = self.names.iter().filter(|name| name.turns_left.is_some());
        let group = self.names[n].group;
        let before = ahead.filter(|name| name.group == group).count();
        let name = &mut self.names[n];
        let plan = match name.in_flight {
            None => name.state.plan(now),
            Some(_) => return,
        };
        if plan == Plan::Urgent && name.turns_left.is_none() {
            // Each name of its own group before it, and one of each other group before each of those and itself.
            name.turns_left = Some((before + 1) * GROUPS as usize);
        }
        if !name.position.covers(plan) {
            self.schedule
                .enter(&n, name.group, &mut name.position, plan);
        }
    }

    /// Counts the turn of an urgent name for the others.
    fn count_turn(&mut self, n: usize) {
        self.names[n].turns_left = None;
        for (other, name) in self.names.iter_mut().enumerate() {
            if let Some(left) = &mut name.turns_left {
                *left = left
                    .checked_sub(1)
                    .unwrap_or_else(|| panic!("{other} starves"));
            }
        }
    }

    fn check(&self) {
        let now = self.instant();
        for (n, name) in self.names.iter().enumerate() {
            let plan = name.state.plan(now);
            let covered = name.in_flight.is_some() || name.position.covers(plan);
            assert!(covered || plan == Plan::Idle, "{n} is forgotten: {plan:?}");
        }
    }
}
