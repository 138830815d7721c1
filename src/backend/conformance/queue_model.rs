//! Compares a backend with a model: without faults and expiry it behaves as a plain queue does.

use super::fixtures::{Fixture, queue};
use super::peer::{Operations, Peer, letters, tickets};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::VecDeque;

/// The simplest queue that follows rules 1 and 3. A ticket is a node and a number.
#[derive(Debug, Default)]
struct Model {
    holds: Vec<(usize, u64)>,
    waits: VecDeque<(usize, u64)>,
}

pub(super) async fn rule_03_it_matches_a_plain_queue<F: Fixture>(fixture: &F) {
    let (seeds, steps) = if F::PAUSED_TIME { (100, 200) } else { (8, 120) };
    for seed in 0..seeds {
        let mut random = StdRng::seed_from_u64(seed);
        let mut peers: Vec<Peer> = (0..3)
            .map(|_| fixture.peer(1).about(queue(&format!("name {seed}"))))
            // Long enough that no ticket expires on a busy machine.
            .map(|peer| peer.lease(F::LEASE * 4))
            .collect();
        let mut model = Model::default();
        let mut limits = [0; 3];
        for (limit, peer) in limits.iter_mut().zip(&mut peers) {
            *limit = random.random_range(1..=4);
            peer.limit = u32::try_from(*limit).expect("a small number");
        }
        let mut next = 0;
        for step in 0..steps {
            let at = random.random_range(0..peers.len());
            // The call names all tickets of the node, so that none expires.
            let mut operations = Operations::default();
            for &(_, ticket) in model.holds.iter().filter(|(node, _)| *node == at) {
                let list = match random.random_range(0..4) {
                    0 => &mut operations.release,
                    1 => &mut operations.acquire,
                    _ => &mut operations.renew,
                };
                list.push(ticket);
            }
            for &(_, ticket) in model.waits.iter().filter(|(node, _)| *node == at) {
                let releases = random.random_range(0..8) == 0;
                let list = if releases {
                    &mut operations.release
                } else {
                    &mut operations.acquire
                };
                list.push(ticket);
            }
            for _ in 0..random.random_range(0..3) {
                next += 1;
                let try_acquire = random.random_range(0..3) == 0;
                let list = if try_acquire {
                    &mut operations.try_acquire
                } else {
                    &mut operations.acquire
                };
                list.push(next);
            }
            let expected = model.exchange(at, &limits, &operations);
            let outcome = peers[at].call(operations.clone()).await;
            let got = (
                outcome.released,
                letters(&outcome.renewed),
                letters(&outcome.acquired),
                letters(&outcome.tried),
                tickets(&outcome.granted),
                (outcome.in_use, outcome.queued),
            );
            assert_eq!(
                got, expected,
                "seed {seed}, step {step}: {operations:?}, now {model:?}"
            );
        }
    }
}

type Answer = (Vec<bool>, String, String, String, Vec<u64>, (u64, u64));

impl Model {
    fn exchange(&mut self, node: usize, limits: &[usize], operations: &Operations) -> Answer {
        let left = (operations.release.iter())
            .map(|&ticket| {
                self.waits.retain(|waits| *waits != (node, ticket));
                let before = self.holds.len();
                self.holds.retain(|holds| *holds != (node, ticket));
                self.holds.len() < before
            })
            .collect();
        let renewed = operations
            .renew
            .iter()
            .map(|&ticket| self.state(node, ticket));
        let renewed = renewed.collect();
        let waited = self.waits.clone();
        for &ticket in &operations.acquire {
            if self.state(node, ticket) == 'G' {
                self.waits.push_back((node, ticket));
            }
        }
        let mut granted = Vec::new();
        while let Some(&head) = self.waits.front() {
            if self.holds.len() >= limits[head.0] {
                break;
            }
            self.waits.pop_front();
            self.holds.push(head);
            if head.0 == node && waited.contains(&head) {
                granted.push(head.1);
            }
        }
        let acquired = (operations.acquire.iter())
            .map(|&ticket| self.state(node, ticket))
            .collect();
        let tried = (operations.try_acquire.iter())
            .map(|&ticket| {
                if !self.waits.is_empty() || self.holds.len() >= limits[node] {
                    return 'R';
                }
                self.holds.push((node, ticket));
                'H'
            })
            .collect();
        let count = |length| u64::try_from(length).expect("a number");
        let counts = (count(self.holds.len()), count(self.waits.len()));
        (left, renewed, acquired, tried, granted, counts)
    }

    fn state(&self, node: usize, ticket: u64) -> char {
        if self.holds.contains(&(node, ticket)) {
            'H'
        } else if self.waits.contains(&(node, ticket)) {
            'Q'
        } else {
            'G'
        }
    }
}
