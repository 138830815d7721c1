//! Simulated clients under random faults: lost replies, repeated calls, calls that are executed late or never, pushes
//! that arrive late or never, cancelled tickets, and stalls of one node or of all.
//!
//! Checked after each step: by the nodes' own deadlines no more permits are valid than the limit allows, and no valid
//! permit is lost. At the end every waiter gets its permit.

use super::fixtures::{Fixture, queue};
use super::peer::{Operations, Peer};
use crate::backend::{Event, Grant, Outcome, Reply, TicketState};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The most tickets of one node.
const MAX_TICKETS: usize = 5;

struct Simulation {
    random: StdRng,
    nodes: Vec<SimulatedClient>,
    lease: Duration,
    seed: u64,
    /// The latest events, printed when a check fails.
    log: Vec<String>,
}

/// One node with the bookkeeping of a queue client.
struct SimulatedClient {
    peer: Peer,
    next_ticket: u64,
    /// Tickets that are to be acquired and not granted yet.
    waiting: BTreeSet<u64>,
    /// Waiting tickets that the backend may have granted and expired unnoticed, because a lease passed between two
    /// replies. A push may be about that expired grant, so it proves nothing.
    uncertain: BTreeSet<u64>,
    /// Granted tickets, with their local deadlines.
    held: BTreeMap<u64, Instant>,
    /// Tickets to release, until a reply acknowledges it.
    releasing: BTreeSet<u64>,
    /// When the last answered call was sent: the deadline of a pushed grant counts from it.
    answered: Option<Instant>,
    /// Calls that were given up and may still be executed.
    late: Vec<(u64, Operations)>,
    silent_until: Instant,
}

pub(super) async fn random_faults_break_no_rule_and_block_no_waiter<F: Fixture>(fixture: &F) {
    simulate(fixture, 0, |random| {
        let limit = random.random_range(1..=3);
        [(limit, 1), (limit, 1), (limit, 1)]
    })
    .await;
}

pub(super) async fn random_faults_with_mixed_limits_and_leases<F: Fixture>(fixture: &F) {
    simulate(fixture, 1_000_000, |random| {
        [(); 3].map(|()| (random.random_range(1..=4), random.random_range(1..=2)))
    })
    .await;
}

pub(super) async fn random_faults_with_a_limit_of_1<F: Fixture>(fixture: &F) {
    simulate(fixture, 2_000_000, |_| [(1, 1); 3]).await;
}

/// Runs simulations from many seeds, concurrently where time is real. `kind` chooses the limit of each node and the
/// factor of its lease.
async fn simulate<F: Fixture>(
    fixture: &F,
    base: u64,
    kind: impl Fn(&mut StdRng) -> [(u32, u32); 3],
) {
    let (seeds, steps) = if F::PAUSED_TIME {
        (150, 300)
    } else {
        (10, 120)
    };
    let run = |seed| {
        let mut random = StdRng::seed_from_u64(seed);
        let now = Instant::now();
        let nodes = (kind(&mut random).into_iter())
            .map(|(limit, times)| {
                let peer = fixture
                    .peer(limit)
                    .about(queue(&format!("simulation {seed}")));
                SimulatedClient::new(peer.lease(F::LEASE * times), now)
            })
            .collect();
        let mut simulation = Simulation {
            random,
            nodes,
            lease: F::LEASE,
            seed,
            log: Vec::new(),
        };
        async move {
            for _ in 0..steps {
                simulation.step().await;
            }
            simulation.settle().await;
        }
    };
    if F::PAUSED_TIME {
        for seed in base..base + seeds {
            run(seed).await;
        }
    } else {
        futures_util::future::join_all((base..base + seeds).map(run)).await;
    }
}

// === impl Simulation ===

impl Simulation {
    fn chance(&mut self, percent: u32) -> bool {
        self.random.random_range(0..100) < percent
    }

    fn pick(&mut self, below: usize) -> usize {
        self.random.random_range(0..below)
    }

    fn record(&mut self, node: usize, what: impl FnOnce() -> String) {
        self.log
            .push(format!("{:?} node {node}: {}", Instant::now(), what()));
        if self.log.len() > 60 {
            self.log.remove(0);
        }
    }

    fn fail(&self, what: &str) -> ! {
        let log = self.log.join("\n");
        panic!("seed {}: {what}\n{log}", self.seed);
    }

    async fn step(&mut self) {
        let pause = self.random.random_range(0.0..1.0) * self.lease.as_secs_f64() / 10.0;
        sleep(Duration::from_secs_f64(pause)).await;
        if self.random.random_range(0..400) == 0 {
            self.record(9, || "all nodes stall".to_owned());
            let times = self.random.random_range(0.3..2.5);
            sleep(self.lease.mul_f64(times)).await;
        }
        let node = self.pick(self.nodes.len());
        if self.nodes[node].silent_until > Instant::now() {
            return;
        }
        if self.chance(1) {
            self.record(node, || "stops sending calls".to_owned());
            let times = self.random.random_range(0.3..3.0);
            self.nodes[node].silent_until = Instant::now() + self.lease.mul_f64(times);
            return;
        }
        match self.pick(10) {
            0 | 1 => self.enqueue(node),
            2 => self.release(node),
            3 => self.cancel(node),
            4 => self.receive_pushes(node),
            5 => self.late_call(node).await,
            _ => self.call(node).await,
        }
        self.check_limit();
    }

    fn enqueue(&mut self, node: usize) {
        let client = &mut self.nodes[node];
        if client.waiting.len() + client.held.len() < MAX_TICKETS {
            client.next_ticket += 1;
            client.waiting.insert(client.next_ticket);
        }
    }

    fn release(&mut self, node: usize) {
        let client = &mut self.nodes[node];
        if let Some((ticket, _)) = client.held.pop_first() {
            client.releasing.insert(ticket);
        }
    }

    fn cancel(&mut self, node: usize) {
        let last = self.chance(50);
        let client = &mut self.nodes[node];
        let ticket = if last {
            client.waiting.pop_last()
        } else {
            client.waiting.pop_first()
        };
        client.releasing.extend(ticket);
    }

    fn receive_pushes(&mut self, node: usize) {
        while let Ok(event) = self.nodes[node].peer.events.try_recv() {
            let lost = self.chance(30);
            if let Event::Granted { grant, .. } = event
                && !lost
            {
                self.record(node, || format!("is pushed {grant:?}"));
                self.nodes[node].pushed(grant);
            }
        }
    }

    /// Executes a call that was given up earlier, and ignores the reply.
    async fn late_call(&mut self, node: usize) {
        if self.nodes[node].late.is_empty() {
            return;
        }
        let at = self.pick(self.nodes[node].late.len());
        let (number, operations) = self.nodes[node].late.swap_remove(at);
        self.record(node, || format!("late call {number}: {operations:?}"));
        let _ = self.nodes[node].peer.send(number, operations).await;
    }

    async fn call(&mut self, node: usize) {
        let fate = self.random.random_range(0..100);
        let client = &mut self.nodes[node];
        client.peer.number += 1;
        let (number, operations) = (client.peer.number, client.operations());
        self.record(node, || {
            format!("fate {fate}, call {number}: {operations:?}")
        });
        let sent = Instant::now();
        match fate {
            // Given up: executed late, or never.
            0..10 => self.nodes[node].late.push((number, operations)),
            10..15 => {}
            // Executed, perhaps twice, and the reply is lost.
            15..25 => {
                let _ = self.nodes[node].peer.send(number, operations.clone()).await;
                if fate < 18 {
                    self.nodes[node].late.push((number, operations));
                }
            }
            // Executed twice. The second reply is used, and counts from when the call was first sent.
            25..35 => {
                let _ = self.nodes[node].peer.send(number, operations.clone()).await;
                let pause = self.random.random_range(0.0..0.2);
                sleep(self.lease.mul_f64(pause)).await;
                self.answer(node, number, operations, sent).await;
            }
            _ => self.answer(node, number, operations, sent).await,
        }
    }

    /// Sends a call and applies its reply.
    async fn answer(&mut self, node: usize, number: u64, operations: Operations, sent: Instant) {
        let Reply::Done(outcome) = self.nodes[node].peer.send(number, operations.clone()).await
        else {
            self.fail(&format!(
                "node {node}: call {number} is the newest, yet stale"
            ));
        };
        self.record(node, || format!("answer {number}: {outcome:?}"));
        if let Err(wrong) = self.nodes[node].apply(&operations, &outcome, sent) {
            self.fail(&format!("node {node}: {wrong}"));
        }
    }

    /// Checks that no more permits are valid than the highest limit allows.
    fn check_limit(&self) {
        let now = Instant::now();
        let valid =
            |client: &SimulatedClient| client.held.values().filter(|until| **until > now).count();
        let all: usize = self.nodes.iter().map(valid).sum();
        let max = self.nodes.iter().map(|client| client.peer.limit).max();
        let max = usize::try_from(max.unwrap_or(0)).expect("a small number");
        if all > max {
            let held: Vec<_> = self.nodes.iter().map(|client| &client.held).collect();
            self.fail(&format!("{all} permits where {max} are allowed: {held:?}"));
        }
    }

    /// Continues without faults until every waiting ticket was granted and all are released.
    async fn settle(&mut self) {
        let longest = self.nodes.iter().map(|client| client.peer.lease).max();
        let end = Instant::now() + longest.unwrap_or_default() * 8;
        loop {
            let mut idle = true;
            for node in 0..self.nodes.len() {
                let client = &mut self.nodes[node];
                client.late.clear();
                while client.peer.events.try_recv().is_ok() {}
                // Each permit is held for one round.
                let held = std::mem::take(&mut client.held);
                client.releasing.extend(held.into_keys());
                client.peer.number += 1;
                let (number, operations) = (client.peer.number, client.operations());
                self.record(node, || format!("settles, call {number}: {operations:?}"));
                self.answer(node, number, operations, Instant::now()).await;
                self.check_limit();
                let client = &self.nodes[node];
                idle &= client.waiting.is_empty()
                    && client.held.is_empty()
                    && client.releasing.is_empty();
            }
            let (in_use, queued) = self.nodes[0].peer.counts().await;
            if idle && (in_use, queued) == (0, 0) {
                break;
            }
            if Instant::now() > end {
                let waiting: Vec<_> = self.nodes.iter().map(|client| &client.waiting).collect();
                self.fail(&format!(
                    "stuck: {waiting:?} wait, the backend has {in_use} permits in use and {queued} tickets queued"
                ));
            }
            sleep(self.lease / 10).await;
        }
    }
}

// === impl SimulatedClient ===

impl SimulatedClient {
    fn new(peer: Peer, now: Instant) -> Self {
        Self {
            peer,
            next_ticket: 0,
            waiting: BTreeSet::new(),
            uncertain: BTreeSet::new(),
            held: BTreeMap::new(),
            releasing: BTreeSet::new(),
            answered: None,
            late: Vec::new(),
            silent_until: now,
        }
    }

    /// Returns the operations for all tickets of this node.
    fn operations(&self) -> Operations {
        Operations {
            release: self.releasing.iter().copied().collect(),
            renew: self.held.keys().copied().collect(),
            acquire: self.waiting.iter().copied().collect(),
            try_acquire: Vec::new(),
        }
    }

    /// Applies a pushed grant. It is valid for one lease from the last answered call, which may be over already.
    fn pushed(&mut self, grant: Grant) {
        if self.uncertain.contains(&grant.ticket) {
            return;
        }
        if self.waiting.remove(&grant.ticket) {
            let now = Instant::now();
            let until = self.answered.map_or(now, |sent| sent + self.peer.lease);
            self.held.insert(grant.ticket, until);
        } else if !self.held.contains_key(&grant.ticket) {
            self.releasing.insert(grant.ticket);
        }
    }

    fn apply(
        &mut self,
        operations: &Operations,
        outcome: &Outcome,
        sent: Instant,
    ) -> Result<(), String> {
        let now = Instant::now();
        let until = sent + self.peer.lease;
        let last = self.answered.replace(sent);
        self.uncertain
            .retain(|ticket| self.waiting.contains(ticket));
        if last.is_some_and(|last| now - last >= self.peer.lease) {
            self.uncertain.extend(&self.waiting);
        }
        for ticket in &operations.release {
            self.releasing.remove(ticket);
        }
        for (ticket, state) in operations.renew.iter().zip(&outcome.renewed) {
            match state {
                TicketState::Held { .. } => {
                    let held = self.held.entry(*ticket).or_insert(until);
                    *held = until.max(*held);
                }
                TicketState::Gone => match self.held.remove(ticket) {
                    Some(valid) if valid > now => {
                        return Err(format!("permit {ticket} is gone before its deadline"));
                    }
                    _ => {}
                },
                other => return Err(format!("reply to renew of {ticket}: {other:?}")),
            }
        }
        for (ticket, state) in operations.acquire.iter().zip(&outcome.acquired) {
            match state {
                TicketState::Held { .. } => {
                    self.waiting.remove(ticket);
                    self.held.insert(*ticket, until);
                }
                TicketState::Queued => {}
                other => return Err(format!("reply to acquire of {ticket}: {other:?}")),
            }
        }
        for grant in &outcome.granted {
            if !self.held.contains_key(&grant.ticket) {
                self.releasing.insert(grant.ticket);
            }
        }
        if outcome.renewed.len() != operations.renew.len()
            || outcome.acquired.len() != operations.acquire.len()
        {
            return Err("the reply lacks a ticket".to_owned());
        }
        Ok(())
    }
}
