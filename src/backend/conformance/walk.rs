//! Nodes that behave as gates do, over everything that can go wrong: lost answers, repeated calls, calls that run
//! late or never, pushes that come late or never, tickets that are cancelled, nodes and whole worlds that stall.
//!
//! A witness outside of it all sees to it that never more permits than the limit are valid at a time, by their nodes'
//! own reckoning; that no valid permit is taken away; and that in the end nobody is stuck.

use super::peer::{Peer, Say};
use super::rig::{Rig, queue};
use crate::backend::{Event, Grant, Outcome, Reply, TicketState};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// What a node has of its own at most.
const MAX_TICKETS: usize = 5;

struct World {
    random: StdRng,
    nodes: Vec<Gate>,
    lease: Duration,
    seed: u64,
    /// What happened lately, for the one who has to find out why.
    story: Vec<String>,
}

/// One node, as a gate would be.
struct Gate {
    peer: Peer,
    next_ticket: u64,
    /// Entered, not granted yet.
    wants: BTreeSet<u64>,
    /// Those of them that the backend may have granted and forgotten unseen, since a lease ran out between two
    /// answers. A push that comes now may tell of that former life, so it proves nothing.
    doubtful: BTreeSet<u64>,
    /// Granted, with the local deadline.
    holds: BTreeMap<u64, Instant>,
    /// To be taken out, until that is answered.
    leaving: BTreeSet<u64>,
    /// When the last call was sent that was answered: a pushed grant counts from then.
    answered: Option<Instant>,
    /// Calls that were given up and are still on their way.
    late: Vec<(u64, Say)>,
    silent_until: Instant,
}

pub(super) async fn whatever_goes_wrong_no_rule_breaks_and_nobody_is_stuck<R: Rig>(rig: &R) {
    walks(rig, 0, |random| {
        let limit = random.random_range(1..=3);
        [(limit, 1), (limit, 1), (limit, 1)]
    })
    .await;
}

pub(super) async fn whatever_goes_wrong_with_mixed_limits_and_leases<R: Rig>(rig: &R) {
    walks(rig, 1_000_000, |random| {
        [(); 3].map(|()| (random.random_range(1..=4), random.random_range(1..=2)))
    })
    .await;
}

pub(super) async fn whatever_goes_wrong_with_a_limit_of_1<R: Rig>(rig: &R) {
    walks(rig, 2_000_000, |_| [(1, 1); 3]).await;
}

/// Many walks from many seeds; where time is real, side by side. `kind` gives each node its limit, and its lease as a
/// multiple.
async fn walks<R: Rig>(rig: &R, base: u64, kind: impl Fn(&mut StdRng) -> [(u32, u32); 3]) {
    let (seeds, steps) = if R::VIRTUAL { (150, 300) } else { (10, 120) };
    let walk = |seed| {
        let mut random = StdRng::seed_from_u64(seed);
        let now = Instant::now();
        let nodes = (kind(&mut random).into_iter())
            .map(|(limit, times)| {
                let peer = rig.peer(limit).about(queue(&format!("walk {seed}")));
                Gate::new(peer.lease(R::LEASE * times), now)
            })
            .collect();
        let mut world = World {
            random,
            nodes,
            lease: R::LEASE,
            seed,
            story: Vec::new(),
        };
        async move {
            for _ in 0..steps {
                world.step().await;
            }
            world.settle().await;
        }
    };
    if R::VIRTUAL {
        for seed in base..base + seeds {
            walk(seed).await;
        }
    } else {
        futures_util::future::join_all((base..base + seeds).map(walk)).await;
    }
}

// === impl World ===

impl World {
    fn chance(&mut self, percent: u32) -> bool {
        self.random.random_range(0..100) < percent
    }

    fn pick(&mut self, below: usize) -> usize {
        self.random.random_range(0..below)
    }

    fn tell(&mut self, node: usize, what: impl FnOnce() -> String) {
        self.story
            .push(format!("{:?} node {node}: {}", Instant::now(), what()));
        if self.story.len() > 60 {
            self.story.remove(0);
        }
    }

    fn fail(&self, what: &str) -> ! {
        let story = self.story.join("\n");
        panic!("seed {}: {what}\n{story}", self.seed);
    }

    async fn step(&mut self) {
        let pause = self.random.random_range(0.0..1.0) * self.lease.as_secs_f64() / 10.0;
        sleep(Duration::from_secs_f64(pause)).await;
        if self.random.random_range(0..400) == 0 {
            self.tell(9, || "everybody stalls".to_owned());
            let times = self.random.random_range(0.3..2.5);
            sleep(self.lease.mul_f64(times)).await;
        }
        let node = self.pick(self.nodes.len());
        if self.nodes[node].silent_until > Instant::now() {
            return;
        }
        if self.chance(1) {
            self.tell(node, || "falls silent".to_owned());
            let times = self.random.random_range(0.3..3.0);
            self.nodes[node].silent_until = Instant::now() + self.lease.mul_f64(times);
            return;
        }
        match self.pick(10) {
            0 | 1 => self.want(node),
            2 => self.release(node),
            3 => self.cancel(node),
            4 => self.hear_pushes(node),
            5 => self.late_call(node).await,
            _ => self.talk(node).await,
        }
        self.witness();
    }

    fn want(&mut self, node: usize) {
        let gate = &mut self.nodes[node];
        if gate.wants.len() + gate.holds.len() < MAX_TICKETS {
            gate.next_ticket += 1;
            gate.wants.insert(gate.next_ticket);
        }
    }

    fn release(&mut self, node: usize) {
        let gate = &mut self.nodes[node];
        if let Some((ticket, _)) = gate.holds.pop_first() {
            gate.leaving.insert(ticket);
        }
    }

    fn cancel(&mut self, node: usize) {
        let last = self.chance(50);
        let gate = &mut self.nodes[node];
        let ticket = if last {
            gate.wants.pop_last()
        } else {
            gate.wants.pop_first()
        };
        gate.leaving.extend(ticket);
    }

    fn hear_pushes(&mut self, node: usize) {
        while let Ok(event) = self.nodes[node].peer.events.try_recv() {
            let lost = self.chance(30);
            if let Event::Granted { grant, .. } = event
                && !lost
            {
                self.tell(node, || format!("is pushed {grant:?}"));
                self.nodes[node].pushed(grant);
            }
        }
    }

    /// A call that was given up long ago is carried out now. Its answer is not heard.
    async fn late_call(&mut self, node: usize) {
        if self.nodes[node].late.is_empty() {
            return;
        }
        let at = self.pick(self.nodes[node].late.len());
        let (number, say) = self.nodes[node].late.swap_remove(at);
        self.tell(node, || format!("late call {number}: {say:?}"));
        let _ = self.nodes[node].peer.send(number, say).await;
    }

    async fn talk(&mut self, node: usize) {
        let fate = self.random.random_range(0..100);
        let gate = &mut self.nodes[node];
        gate.peer.number += 1;
        let (number, say) = (gate.peer.number, gate.everything());
        self.tell(node, || format!("fate {fate}, call {number}: {say:?}"));
        let sent = Instant::now();
        match fate {
            // Given up; it may run late, or never.
            0..10 => self.nodes[node].late.push((number, say)),
            10..15 => {}
            // Carried out, and perhaps once more; the answer is lost.
            15..25 => {
                let _ = self.nodes[node].peer.send(number, say.clone()).await;
                if fate < 18 {
                    self.nodes[node].late.push((number, say));
                }
            }
            // Carried out twice; the second answer is heard, and counts from when it was sent first.
            25..35 => {
                let _ = self.nodes[node].peer.send(number, say.clone()).await;
                let pause = self.random.random_range(0.0..0.2);
                sleep(self.lease.mul_f64(pause)).await;
                self.answer(node, number, say, sent).await;
            }
            _ => self.answer(node, number, say, sent).await,
        }
    }

    /// Makes a call and takes its answer seriously.
    async fn answer(&mut self, node: usize, number: u64, say: Say, sent: Instant) {
        let Reply::Done(outcome) = self.nodes[node].peer.send(number, say.clone()).await else {
            self.fail(&format!(
                "node {node}: call {number} is the newest, yet stale"
            ));
        };
        self.tell(node, || format!("answer {number}: {outcome:?}"));
        if let Err(wrong) = self.nodes[node].hear(&say, &outcome, sent) {
            self.fail(&format!("node {node}: {wrong}"));
        }
    }

    /// Never are more permits valid than the highest limit allows.
    fn witness(&self) {
        let now = Instant::now();
        let valid = |gate: &Gate| gate.holds.values().filter(|until| **until > now).count();
        let all: usize = self.nodes.iter().map(valid).sum();
        let most = self.nodes.iter().map(|gate| gate.peer.limit).max();
        let most = usize::try_from(most.unwrap_or(0)).expect("a small number");
        if all > most {
            let holds: Vec<_> = self.nodes.iter().map(|gate| &gate.holds).collect();
            self.fail(&format!(
                "{all} permits where {most} are allowed: {holds:?}"
            ));
        }
    }

    /// From here on nothing goes wrong: everybody who wants in gets in, and at last nobody is there.
    async fn settle(&mut self) {
        let longest = self.nodes.iter().map(|gate| gate.peer.lease).max();
        let end = Instant::now() + longest.unwrap_or_default() * 8;
        loop {
            let mut idle = true;
            for node in 0..self.nodes.len() {
                let gate = &mut self.nodes[node];
                gate.late.clear();
                while gate.peer.events.try_recv().is_ok() {}
                // Everybody keeps what he has for one round.
                let held = std::mem::take(&mut gate.holds);
                gate.leaving.extend(held.into_keys());
                gate.peer.number += 1;
                let (number, say) = (gate.peer.number, gate.everything());
                self.tell(node, || format!("settles, call {number}: {say:?}"));
                self.answer(node, number, say, Instant::now()).await;
                self.witness();
                let gate = &self.nodes[node];
                idle &= gate.wants.is_empty() && gate.holds.is_empty() && gate.leaving.is_empty();
            }
            let (in_use, waiting) = self.nodes[0].peer.counts().await;
            if idle && (in_use, waiting) == (0, 0) {
                break;
            }
            if Instant::now() > end {
                let wants: Vec<_> = self.nodes.iter().map(|gate| &gate.wants).collect();
                self.fail(&format!(
                    "stuck: {wants:?} want in, {in_use} hold and {waiting} wait at the backend"
                ));
            }
            sleep(self.lease / 10).await;
        }
    }
}

// === impl Gate ===

impl Gate {
    fn new(peer: Peer, now: Instant) -> Self {
        Self {
            peer,
            next_ticket: 0,
            wants: BTreeSet::new(),
            doubtful: BTreeSet::new(),
            holds: BTreeMap::new(),
            leaving: BTreeSet::new(),
            answered: None,
            late: Vec::new(),
            silent_until: now,
        }
    }

    /// All that is to be said.
    fn everything(&self) -> Say {
        Say {
            release: self.leaving.iter().copied().collect(),
            renew: self.holds.keys().copied().collect(),
            acquire: self.wants.iter().copied().collect(),
            try_acquire: Vec::new(),
        }
    }

    /// A grant that was pushed is valid for one lease from the last answered call, which may have passed.
    fn pushed(&mut self, grant: Grant) {
        if self.doubtful.contains(&grant.ticket) {
            return;
        }
        if self.wants.remove(&grant.ticket) {
            let now = Instant::now();
            let until = self.answered.map_or(now, |sent| sent + self.peer.lease);
            self.holds.insert(grant.ticket, until);
        } else if !self.holds.contains_key(&grant.ticket) {
            self.leaving.insert(grant.ticket);
        }
    }

    fn hear(&mut self, say: &Say, outcome: &Outcome, sent: Instant) -> Result<(), String> {
        let now = Instant::now();
        let until = sent + self.peer.lease;
        let last = self.answered.replace(sent);
        self.doubtful.retain(|ticket| self.wants.contains(ticket));
        if last.is_some_and(|last| now - last >= self.peer.lease) {
            self.doubtful.extend(&self.wants);
        }
        for ticket in &say.release {
            self.leaving.remove(ticket);
        }
        for (ticket, state) in say.renew.iter().zip(&outcome.renewed) {
            match state {
                TicketState::Held { .. } => {
                    let held = self.holds.entry(*ticket).or_insert(until);
                    *held = until.max(*held);
                }
                TicketState::Gone => match self.holds.remove(ticket) {
                    Some(valid) if valid > now => {
                        return Err(format!("permit {ticket} is gone, though valid"));
                    }
                    _ => {}
                },
                other => return Err(format!("keep of {ticket} is answered {other:?}")),
            }
        }
        for (ticket, state) in say.acquire.iter().zip(&outcome.acquired) {
            match state {
                TicketState::Held { .. } => {
                    self.wants.remove(ticket);
                    self.holds.insert(*ticket, until);
                }
                TicketState::Queued => {}
                other => return Err(format!("enter of {ticket} is answered {other:?}")),
            }
        }
        for grant in &outcome.granted {
            if !self.holds.contains_key(&grant.ticket) {
                self.leaving.insert(grant.ticket);
            }
        }
        if outcome.renewed.len() != say.renew.len() || outcome.acquired.len() != say.acquire.len() {
            return Err("an answer is missing".to_owned());
        }
        Ok(())
    }
}
