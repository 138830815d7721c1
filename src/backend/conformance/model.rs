//! Without faults and without time, a backend does exactly what a plain queue does.

use super::peer::{Peer, Say, letters, tickets};
use super::rig::{Rig, queue};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::VecDeque;

/// The simplest thing that keeps rules 1 and 3. A ticket is a node and a number.
#[derive(Debug, Default)]
struct Model {
    holds: Vec<(usize, u64)>,
    waits: VecDeque<(usize, u64)>,
}

pub(super) async fn rule_03_it_does_what_a_plain_queue_does<R: Rig>(rig: &R) {
    let (seeds, steps) = if R::VIRTUAL { (100, 200) } else { (8, 120) };
    for seed in 0..seeds {
        let mut random = StdRng::seed_from_u64(seed);
        let mut peers: Vec<Peer> = (0..3)
            .map(|_| rig.peer(1).about(queue(&format!("name {seed}"))))
            // Time is of no interest here, nor is how busy the machine is.
            .map(|peer| peer.lease(R::LEASE * 4))
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
            // Everything it has is named, so that nothing runs out.
            let mut say = Say::default();
            for &(_, ticket) in model.holds.iter().filter(|(node, _)| *node == at) {
                let list = match random.random_range(0..4) {
                    0 => &mut say.release,
                    1 => &mut say.acquire,
                    _ => &mut say.renew,
                };
                list.push(ticket);
            }
            for &(_, ticket) in model.waits.iter().filter(|(node, _)| *node == at) {
                let releases = random.random_range(0..8) == 0;
                let list = if releases {
                    &mut say.release
                } else {
                    &mut say.acquire
                };
                list.push(ticket);
            }
            for _ in 0..random.random_range(0..3) {
                next += 1;
                let tries = random.random_range(0..3) == 0;
                let list = if tries {
                    &mut say.try_acquire
                } else {
                    &mut say.acquire
                };
                list.push(next);
            }
            let expected = model.exchange(at, &limits, &say);
            let outcome = peers[at].say(say.clone()).await;
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
                "seed {seed}, step {step}: {say:?}, now {model:?}"
            );
        }
    }
}

type Answer = (Vec<bool>, String, String, String, Vec<u64>, (u64, u64));

impl Model {
    fn exchange(&mut self, node: usize, limits: &[usize], say: &Say) -> Answer {
        let left = (say.release.iter())
            .map(|&ticket| {
                self.waits.retain(|waits| *waits != (node, ticket));
                let before = self.holds.len();
                self.holds.retain(|holds| *holds != (node, ticket));
                self.holds.len() < before
            })
            .collect();
        let renewed = say.renew.iter().map(|&ticket| self.state(node, ticket));
        let renewed = renewed.collect();
        let waited = self.waits.clone();
        for &ticket in &say.acquire {
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
        let acquired = (say.acquire.iter())
            .map(|&ticket| self.state(node, ticket))
            .collect();
        let tried = (say.try_acquire.iter())
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
            'W'
        } else {
            'G'
        }
    }
}
