//! The script under a clock of our own: leases, gaps, stalls and steps of the server's clock, without waiting for any.

use crate::backend::redis::codec;
use crate::backend::redis::keys::Forms;
use crate::backend::support::redis::RedisServer;
use crate::backend::{Call, Outcome, Reply, TicketState};
use crate::name::{Node, Queue};
use redis::{Client, Cmd, Connection};
use std::collections::BTreeSet;
use std::time::Duration;

/// A server with a clock that the test sets.
struct Stage {
    _server: RedisServer,
    redis: Connection,
    hash: String,
    /// The server's clock, ms.
    time: i64,
}

struct Actor {
    node: Node,
    lease: i64,
    limit: u32,
    number: u64,
}

impl Stage {
    fn new() -> Self {
        let server = RedisServer::start();
        let client = Client::open(server.url()).unwrap();
        let mut redis = client.get_connection().unwrap();
        let code = crate::backend::redis::script::EXCHANGE.code();
        let ours = code.replace("call('TIME')", "call('HMGET', 'clock', 's', 'us')");
        assert_ne!(code, ours);
        let hash = redis::cmd("SCRIPT")
            .arg("LOAD")
            .arg(ours)
            .query(&mut redis)
            .unwrap();
        Self {
            _server: server,
            redis,
            hash,
            time: 1_790_000_000_000,
        }
    }

    fn send(
        &mut self,
        actor: &mut Actor,
        release: &[u64],
        renew: &[u64],
        acquire: &[u64],
    ) -> Outcome {
        let call = actor.call(release, renew, acquire);
        match self.exchange(actor, &call) {
            Reply::Done(outcome) => outcome,
            Reply::Stale => panic!("stale"),
        }
    }

    fn exchange(&mut self, actor: &Actor, call: &Call) -> Reply {
        self.exchange_under("p", Forms::WithSingleHolder, actor, call)
    }

    fn exchange_under(&mut self, prefix: &str, forms: Forms, actor: &Actor, call: &Call) -> Reply {
        self.exchange_all(prefix, forms, actor, std::slice::from_ref(call))
    }

    /// Between calls about two other names.
    fn exchange_in_batch(&mut self, prefix: &str, actor: &Actor, call: &Call) -> Reply {
        let other = |name| Call {
            queue: Queue::limit(name).unwrap(),
            release: vec![1],
            renew: vec![2],
            acquire: vec![3],
            ..call.clone()
        };
        let calls = [call.clone(), other(b"second"), other(b"third")];
        self.exchange_all(prefix, Forms::WithSingleHolder, actor, &calls)
    }

    /// The reply to the first call.
    fn exchange_all(&mut self, prefix: &str, forms: Forms, actor: &Actor, calls: &[Call]) -> Reply {
        let (seconds, micros) = (self.time / 1000, self.time % 1000 * 1000);
        let () = redis::cmd("HSET")
            .arg("clock")
            .arg("s")
            .arg(seconds)
            .arg("us")
            .arg(micros)
            .query(&mut self.redis)
            .unwrap();
        let mut command: Cmd = redis::cmd("EVALSHA");
        command.arg(&self.hash);
        codec::add_batch(&mut command, prefix, forms, &actor.node, calls);
        let value: Vec<u8> = command.query(&mut self.redis).unwrap();
        let answers = codec::answers(&value, calls.iter().map(codec::counts));
        answers.unwrap().remove(0).unwrap().reply
    }

    /// Returns the tickets in the set of permits, expired or not.
    fn permits(&mut self) -> Vec<String> {
        redis::cmd("ZRANGE")
            .arg("p:limit:{q}")
            .arg(0)
            .arg(-1)
            .query(&mut self.redis)
            .unwrap()
    }

    /// As long as ticket 1 of `a` is held and renewed in time, `b` is not granted.
    fn waits_in_vain(&mut self, a: &mut Actor, b: &mut Actor, step: i64) {
        for _ in 0..12 {
            let waits = self.send(b, &[], &[], &[1]);
            assert!(!holds(&waits.acquired), "{step}: {waits:?}");
            assert!(!self.is_single());
            self.time += 1_600;
            assert!(holds(&self.send(a, &[], &[1], &[]).renewed), "{step}");
            self.time += 1_600;
        }
    }

    fn is_single(&mut self) -> bool {
        let key = "p:limit:{q}:single";
        redis::cmd("EXISTS")
            .arg(key)
            .query(&mut self.redis)
            .unwrap()
    }

    fn nodes_in_meta(&mut self) -> i64 {
        let fields: Vec<String> = redis::cmd("HKEYS")
            .arg("p:limit:{q}:meta")
            .query(&mut self.redis)
            .unwrap();
        let nodes = fields.iter().filter(|field| field.contains('-'));
        nodes.count() as i64
    }
}

impl Actor {
    fn new(lease: i64, limit: u32) -> Self {
        Self {
            node: Node::of_this_process(),
            lease,
            limit,
            number: 0,
        }
    }

    fn call(&mut self, release: &[u64], renew: &[u64], acquire: &[u64]) -> Call {
        self.number += 1;
        Call {
            queue: Queue::limit(b"q").unwrap(),
            number: self.number,
            limit: self.limit,
            lease: Duration::from_millis(self.lease as u64),
            release: release.to_vec(),
            renew: renew.to_vec(),
            acquire: acquire.to_vec(),
            try_acquire: Vec::new(),
        }
    }
}

fn holds(states: &[TicketState]) -> bool {
    matches!(states, [TicketState::Held { .. }])
}

#[test]
fn a_permit_lives_exactly_one_lease() {
    let mut stage = Stage::new();
    let (mut a, mut b) = (Actor::new(10_000, 1), Actor::new(10_000, 1));
    assert!(holds(&stage.send(&mut a, &[], &[], &[1]).acquired));
    for _ in 0..3 {
        stage.time += 3_333;
        assert!(!holds(&stage.send(&mut b, &[], &[], &[1]).acquired));
    }
    let last = stage.send(&mut b, &[], &[], &[1]);
    assert_eq!(last.poll_after, Some(Duration::from_millis(2)));
    stage.time += 1;
    let last = stage.send(&mut b, &[], &[], &[1]);
    assert!(holds(&last.acquired), "{last:?}");
    assert!(!holds(&stage.send(&mut a, &[], &[1], &[]).renewed));
}

#[test]
fn a_queue_grant_counts_from_the_last_heartbeat_of_its_own_node() {
    let mut stage = Stage::new();
    let (mut a, mut b, mut c) = (
        Actor::new(9_000, 1),
        Actor::new(6_000, 1),
        Actor::new(9_000, 1),
    );
    stage.send(&mut a, &[], &[], &[1]);
    stage.send(&mut b, &[], &[], &[1]);
    stage.send(&mut c, &[], &[], &[1]);
    stage.time += 2_900;
    stage.send(&mut c, &[], &[], &[1]);
    stage.time += 2_900;
    // b has 200 ms left when a releases, not the lease of a.
    assert_eq!(stage.send(&mut a, &[1], &[], &[]).in_use, 1);
    stage.time += 200;
    let next = stage.send(&mut c, &[], &[], &[1]);
    assert!(holds(&next.acquired), "{next:?}");
    assert_eq!(stage.permits(), vec![c.node.ticket(1)]);
}

#[test]
fn expired_heads_are_skipped_and_forgotten() {
    let mut stage = Stage::new();
    let (mut a, mut b) = (Actor::new(9_000, 1), Actor::new(9_000, 1));
    let mut dead = Actor::new(9_000, 1);
    stage.send(&mut a, &[], &[], &[1]);
    stage.send(&mut dead, &[], &[], &(1..100).collect::<Vec<_>>());
    stage.send(&mut b, &[], &[], &[1]);
    stage.send(&mut dead, &[], &[], &(100..200).collect::<Vec<_>>());
    for _ in 0..4 {
        stage.time += 3_000;
        stage.send(&mut a, &[], &[1], &[]);
        assert!(!holds(&stage.send(&mut b, &[], &[], &[1]).acquired));
    }
    // The entries before b were dropped, those behind it wait for the sweep.
    assert_eq!(stage.send(&mut b, &[], &[], &[1]).queued, 101);
    for _ in 0..4 {
        stage.time += 3_000;
        stage.send(&mut a, &[], &[1], &[]);
        assert!(!holds(&stage.send(&mut b, &[], &[], &[1]).acquired));
    }
    assert_eq!(stage.send(&mut b, &[], &[], &[1]).queued, 1);
    assert_eq!(stage.nodes_in_meta(), 2);
    stage.send(&mut a, &[1], &[], &[]);
    assert!(holds(&stage.send(&mut b, &[], &[1], &[]).renewed));
}

#[test]
fn a_clock_step_evicts_no_live_holder() {
    for step in [-3_600_000, 3_600_000, 5_100, -20] {
        let mut stage = Stage::new();
        let (mut a, mut b) = (Actor::new(10_000, 1), Actor::new(10_000, 1));
        let mut dead = Actor::new(10_000, 2);
        stage.send(&mut a, &[], &[], &[1]);
        stage.send(&mut dead, &[], &[], &[1]);
        let before = stage.send(&mut b, &[], &[], &[1]);
        assert_eq!(before.queued, 1, "{before:?}");
        stage.time += 2_000;
        stage.send(&mut a, &[], &[1], &[]);
        stage.time += step;
        stage.waits_in_vain(&mut a, &mut b, step);
        assert_eq!(stage.permits(), vec![a.node.ticket(1)], "{step}");
    }
}

#[test]
fn tokens_increase_across_a_clock_step() {
    let mut stage = Stage::new();
    let mut a = Actor::new(10_000, 1);
    let mut last = 0;
    for (ticket, step) in (1..).zip([0, -3_600_000, 1, 7_200_000, -3_600_000, 0]) {
        stage.time += step;
        let acquired = stage.send(&mut a, &[], &[], &[ticket]).acquired;
        let [TicketState::Held { token }] = acquired[..] else {
            panic!("{step}: {acquired:?}");
        };
        assert!(token > last, "{step}: {token} after {last}");
        last = token;
        stage.send(&mut a, &[ticket], &[], &[]);
    }
}

#[test]
fn repeated_gaps_keep_no_expired_holder() {
    let mut stage = Stage::new();
    let mut dead = Actor::new(10_000, 1);
    stage.send(&mut dead, &[], &[], &[1]);
    let mut b = Actor::new(10_000, 1);
    let start = stage.time;
    let mut ticket = 0;
    // Comes seldom, and does not wait.
    loop {
        stage.time += 6_000;
        ticket += 1;
        let call = Call {
            try_acquire: vec![ticket],
            ..b.call(&[], &[], &[])
        };
        let Reply::Done(outcome) = stage.exchange(&b, &call) else {
            panic!("stale")
        };
        if holds(&outcome.tried) {
            break;
        }
        assert!(stage.time - start < 24_000);
    }
    assert!(stage.time - start >= 10_000);
}

#[test]
fn a_second_stall_gets_its_own_grace() {
    let mut stage = Stage::new();
    let (mut a, mut b) = (Actor::new(10_000, 1), Actor::new(1_000, 1));
    stage.send(&mut a, &[], &[], &[1]);
    stage.send(&mut b, &[], &[], &[1]);
    for (stall, spoken) in [(6_000, false), (4_500, false), (500, true)] {
        stage.time += stall;
        assert!(!holds(&stage.send(&mut b, &[], &[], &[1]).acquired));
        if spoken {
            assert!(holds(&stage.send(&mut a, &[], &[1], &[]).renewed));
        }
    }
    // Without that call it would have expired at the end of that grace.
    for _ in 0..45 {
        stage.time += 400;
        if holds(&stage.send(&mut b, &[], &[], &[1]).acquired) {
            return;
        }
    }
    panic!("a dead holder stays");
}

#[test]
fn a_stall_removes_no_queue_entry() {
    let mut stage = Stage::new();
    let mut actors: Vec<Actor> = (0..3).map(|_| Actor::new(9_000, 1)).collect();
    for actor in &mut actors {
        stage.send(actor, &[], &[], &[1]);
    }
    stage.time += 20_000;
    let [a, b, c] = &mut actors[..] else {
        unreachable!()
    };
    assert_eq!(stage.send(c, &[], &[], &[1]).queued, 2);
    stage.time += 100;
    assert_eq!(stage.send(b, &[], &[], &[1]).queued, 2);
    stage.send(a, &[1], &[], &[]);
    assert!(holds(&stage.send(b, &[], &[1], &[]).renewed));
    // The ticket of a silent node is skipped during the grace, and keeps its position.
    stage.time += 20_000;
    assert!(holds(&stage.send(b, &[], &[1], &[]).renewed));
    stage.send(a, &[], &[], &[2]);
    let next = stage.send(b, &[1], &[], &[]);
    assert_eq!((next.in_use, next.queued), (1, 1));
    assert_eq!(stage.send(a, &[2], &[], &[]).released, vec![true]);
    assert!(holds(&stage.send(c, &[], &[], &[1]).acquired));
}

/// Nodes start, hold, wait, stall together with the server, and die, over hours of a clock that steps.
#[test]
fn a_live_node_keeps_its_tickets_in_the_general_form() {
    struct Life {
        actor: Actor,
        /// When it calls next, on a clock without steps.
        next_call: i64,
        held: BTreeSet<u64>,
        waits: BTreeSet<u64>,
        next: u64,
        dies: bool,
    }
    let mut stage = Stage::new();
    let mut now = 0;
    let born = |now: i64| {
        let lease = [1_000, 3_000, 10_000][rand::random_range(0..3)];
        Life {
            actor: Actor::new(lease, 2),
            next_call: now + rand::random_range(0..1_000),
            held: BTreeSet::new(),
            waits: BTreeSet::new(),
            next: 0,
            dies: false,
        }
    };
    let mut lives: Vec<Life> = (0..5).map(|_| born(0)).collect();
    let mut calm = 20_000;
    let (mut grants, mut last_grant, mut longest) = (0, 0, 0);
    for step in 0..8_000 {
        lives.sort_by_key(|life| life.next_call);
        let mut advance = lives[0].next_call - now;
        if now > calm && rand::random_ratio(1, 30) {
            calm = now + 40_000;
            match rand::random_range(0..3) {
                // The server stalls; live nodes make their due calls at its end.
                0 => {
                    advance = rand::random_range(100..30_000);
                    for life in &mut lives {
                        if life.next_call < now + advance {
                            life.next_call =
                                now + advance + rand::random_range(0..life.actor.lease / 7);
                        }
                    }
                }
                1 => stage.time += rand::random_range(0..100_000),
                _ => stage.time -= rand::random_range(0..100_000),
            }
        }
        now += advance;
        stage.time += advance;
        if lives[0].next_call > now {
            continue;
        }
        let life = &mut lives[0];
        let release: Vec<u64> = life
            .held
            .iter()
            .copied()
            .filter(|_| rand::random_ratio(1, 3))
            .collect();
        for ticket in &release {
            life.held.remove(ticket);
        }
        if life.waits.len() < 3 {
            life.next += 1;
            life.waits.insert(life.next);
        }
        let renew: Vec<u64> = life.held.iter().copied().collect();
        let acquire: Vec<u64> = life.waits.iter().copied().collect();
        let outcome = stage.send(&mut life.actor, &release, &renew, &acquire);
        let message = format!("step {step}, lease {}", life.actor.lease);
        assert!(
            outcome
                .renewed
                .iter()
                .all(|state| matches!(state, TicketState::Held { .. })),
            "{message}: lost one"
        );
        for (ticket, state) in acquire.iter().zip(&outcome.acquired) {
            if matches!(state, TicketState::Held { .. }) {
                life.waits.remove(ticket);
                life.held.insert(*ticket);
                grants += 1;
                longest = longest.max(now - last_grant);
                last_grant = now;
            }
        }
        life.next_call = now + life.actor.lease * rand::random_range(70..100) / 300;
        life.dies = rand::random_ratio(1, 200);
        // At most two permits, including those of dead nodes.
        let permits = stage.permits();
        assert!(permits.len() <= 2, "{message}: {permits:?}");
        if lives[0].dies {
            lives[0] = born(now);
        }
    }
    // Dead nodes block live ones for a lease, half a lease after a gap, and a stall of 30 s at most. Besides, live nodes
    // hold for a while.
    assert!(
        grants > 400 && longest < 120_000,
        "{grants} grants in {now} ms, {longest} ms without"
    );
    assert!(stage.nodes_in_meta() <= 12, "{}", stage.nodes_in_meta());
}

#[test]
fn a_live_node_keeps_its_ticket_in_the_single_holder_form() {
    for step in [-3_600_000, 3_600_000, 5_100, 30_000, -20] {
        let mut stage = Stage::new();
        let (mut a, mut b) = (Actor::new(10_000, 1), Actor::new(10_000, 1));
        stage.send(&mut a, &[], &[], &[1]);
        // Also if the clock steps or stops without another node.
        stage.time += step;
        assert!(holds(&stage.send(&mut a, &[], &[1], &[]).renewed), "{step}");
        stage.time += 2_000;
        assert!(holds(&stage.send(&mut a, &[], &[1], &[]).renewed), "{step}");
        assert!(stage.is_single());
        // and when another node makes the first call after that.
        stage.time += step;
        stage.waits_in_vain(&mut a, &mut b, step);
        assert_eq!(stage.permits(), vec![a.node.ticket(1)], "{step}");
    }
}

#[test]
fn a_single_holder_permit_expires_one_lease_after_its_last_heartbeat() {
    for (lease, step) in [(10_000, 0), (10_000, -3_600_000), (3_000, 0)] {
        let mut stage = Stage::new();
        let (mut dead, mut b) = (Actor::new(lease, 1), Actor::new(6_000, 1));
        stage.send(&mut dead, &[], &[], &[1]);
        stage.time += lease / 3;
        stage.send(&mut dead, &[], &[1], &[]);
        stage.time += step;
        let mut left = lease;
        while left > 0 {
            let message = format!("lease {lease}, step {step}, {left} ms left");
            assert!(
                !holds(&stage.send(&mut b, &[], &[], &[1]).acquired),
                "{message}"
            );
            stage.time += left.min(500);
            left -= left.min(500);
        }
        assert!(
            holds(&stage.send(&mut b, &[], &[], &[1]).acquired),
            "{lease}"
        );
        assert_eq!(stage.permits(), vec![b.node.ticket(1)]);
    }
}

#[test]
fn a_conversion_preserves_the_single_holder_record() {
    let mut stage = Stage::new();
    let (mut a, mut b) = (Actor::new(10_000, 1), Actor::new(10_000, 1));
    let late = a.call(&[], &[], &[7]);
    let [TicketState::Held { token: first }] = stage.send(&mut a, &[], &[], &[1]).acquired[..]
    else {
        panic!("it was alone");
    };
    let again = a.call(&[1], &[], &[2]);
    let Reply::Done(answer) = stage.exchange(&a, &again) else {
        panic!("stale");
    };
    assert_eq!(stage.exchange(&a, &late), Reply::Stale);
    let Reply::Done(same) = stage.exchange(&a, &again) else {
        panic!("stale");
    };
    assert_eq!((answer.released, same.released), (vec![true], vec![false]));
    assert_eq!(answer.acquired, same.acquired);
    assert!(stage.is_single());

    // The clock has stepped back.
    stage.time -= 3_600_000;
    assert!(!holds(&stage.send(&mut b, &[], &[], &[1]).acquired));
    assert_eq!(stage.exchange(&a, &late), Reply::Stale);
    let Reply::Done(same) = stage.exchange(&a, &again) else {
        panic!("stale");
    };
    assert_eq!((same.in_use, same.queued), (1, 1));
    assert_eq!(answer.acquired, same.acquired);
    let [TicketState::Held { token: second }] = same.acquired[..] else {
        panic!("{same:?}");
    };
    assert_eq!(stage.send(&mut a, &[2], &[], &[]).in_use, 1);
    let [TicketState::Held { token: third }] = stage.send(&mut b, &[], &[1], &[]).renewed[..]
    else {
        panic!("it was granted");
    };
    assert!(first < second && second < third, "{first} {second} {third}");
}

/// Calls of one node, and later of others, get the same replies as in the general form.
#[test]
fn the_single_holder_form_answers_like_the_general_form() {
    let mut stage = Stage::new();
    let (mut alone, mut after) = (0, 0);
    for round in 0..200 {
        let () = redis::cmd("FLUSHALL").query(&mut stage.redis).unwrap();
        let mut actors: Vec<Actor> = (0..3).map(|_| Actor::new(10_000, 1)).collect();
        let mut calls: Vec<(usize, Call)> = Vec::new();
        let mut others = 0;
        let most_alone = rand::random_range(1..20);
        while others < 8 {
            let gone_on = calls.len() > most_alone || (!calls.is_empty() && !stage.is_single());
            let sender = if gone_on { rand::random_range(0..3) } else { 0 };
            others += usize::from(gone_on);
            stage.time += rand::random_range(0..if gone_on { 200 } else { 2_000 });
            let pick = |odds: u32| -> Vec<u64> {
                let picked = |_: &u64| rand::random_ratio(odds, 10);
                (1..=2).filter(picked).collect()
            };
            let actor = &mut actors[sender];
            actor.limit = rand::random_range(1..4);
            let mut call = actor.call(&pick(5), &pick(1), &pick(3));
            call.try_acquire = call
                .acquire
                .split_off(rand::random_range(0..=call.acquire.len()));
            // Some calls are executed late, or twice.
            let recent = &calls[calls.len().saturating_sub(3)..];
            if let Some((_, earlier)) = recent.iter().find(|(other, _)| *other == sender)
                && rand::random_ratio(1, 5)
            {
                call = earlier.clone();
            }
            calls.push((sender, call.clone()));
            let actor = &actors[sender];
            let one = stage.exchange(actor, &call);
            let three = stage.exchange_under("three", Forms::GeneralOnly, actor, &call);
            assert_eq!(one, three, "round {round}: {calls:#?}");
            let batched = stage.exchange_in_batch("batched", actor, &call);
            assert_eq!(one, batched, "round {round}: {calls:#?}");
            let count = if stage.is_single() {
                &mut alone
            } else {
                &mut after
            };
            *count += 1;
        }
    }
    assert!(alone > 300 && after > 1_000, "{alone}, {after}");
}

/// Else its late call about a released ticket would create a permit without an owner.
#[test]
fn a_short_lease_does_not_shorten_the_memory_of_other_nodes() {
    for forms in [Forms::WithSingleHolder, Forms::GeneralOnly] {
        let mut stage = Stage::new();
        let (mut a, mut b) = (Actor::new(10_000, 1), Actor::new(1_000, 1));
        let left = a.call(&[1], &[], &[]);
        stage.exchange_under("p", forms, &a, &left);
        let heartbeat = b.call(&[], &[], &[]);
        stage.exchange_under("p", forms, &b, &heartbeat);
        let known: i64 = redis::cmd("PTTL")
            .arg("p:limit:{q}:meta")
            .query(&mut stage.redis)
            .unwrap();
        assert!(known > 9_000, "{forms:?}: {known} ms");
    }
}

#[test]
fn tokens_increase_after_a_deleted_record_while_the_clock_steps_back() {
    let mut stage = Stage::new();
    let (mut a, mut b) = (Actor::new(10_000, 1), Actor::new(10_000, 1));
    let mut last = 0;
    let mut token = |reply: Reply| {
        let Reply::Done(outcome) = reply else {
            panic!("stale");
        };
        let [TicketState::Held { token }] = outcome.acquired[..] else {
            panic!("{outcome:?}");
        };
        assert!(token > last, "{token} after {last}");
        last = token;
    };
    for round in 0..6 {
        // By a batch, by a single call, and by two tickets at once, of two nodes in turn.
        let actor = if round % 2 == 0 { &mut a } else { &mut b };
        let call = actor.call(&[], &[], &[1]);
        token(match round {
            2 => stage.exchange(actor, &call),
            _ => stage.exchange_in_batch("p", actor, &call),
        });
        let call = actor.call(&[1], &[], &[]);
        stage.exchange_in_batch("p", actor, &call);
        assert!(!stage.is_single(), "the record is deleted");
        stage.time -= 1_000;
    }
}

#[test]
fn a_late_call_about_a_deleted_record_changes_nothing() {
    let mut stage = Stage::new();
    let mut a = Actor::new(10_000, 1);
    let late = a.call(&[], &[], &[1]);
    let again = a.call(&[], &[], &[1]);
    assert!(matches!(
        stage.exchange_in_batch("p", &a, &again),
        Reply::Done(_)
    ));
    let release = a.call(&[1], &[], &[]);
    assert!(matches!(
        stage.exchange_in_batch("p", &a, &release),
        Reply::Done(_)
    ));
    for call in [&late, &again] {
        assert_eq!(stage.exchange_in_batch("p", &a, call), Reply::Stale);
        assert_eq!(stage.exchange(&a, call), Reply::Stale);
        assert!(!stage.is_single());
    }
    let later = a.call(&[], &[], &[2]);
    assert!(matches!(stage.exchange(&a, &later), Reply::Done(_)));
}

#[test]
fn a_late_call_changes_nothing_when_another_node_owns_the_record() {
    for in_batch in [false, true] {
        let mut stage = Stage::new();
        let (mut a, mut b) = (Actor::new(10_000, 2), Actor::new(10_000, 2));
        let late = a.call(&[], &[], &[1]);
        let again = a.call(&[], &[], &[1]);
        stage.exchange_in_batch("p", &a, &again);
        let release = a.call(&[1], &[], &[]);
        stage.exchange_in_batch("p", &a, &release);
        let other = b.call(&[], &[], &[1]);
        assert!(matches!(stage.exchange(&b, &other), Reply::Done(_)));
        let reply = match in_batch {
            true => stage.exchange_in_batch("p", &a, &late),
            false => stage.exchange(&a, &late),
        };
        assert_eq!(reply, Reply::Stale);
        assert!(stage.is_single(), "only the other node has a permit");
    }
}

#[test]
fn a_short_lease_does_not_shorten_the_memory_of_the_highest_token() {
    let mut stage = Stage::new();
    for lease in [60_000, 1_000] {
        let mut actor = Actor::new(lease, 1);
        let acquire = actor.call(&[], &[], &[1]);
        stage.exchange_in_batch("p", &actor, &acquire);
        let release = actor.call(&[1], &[], &[]);
        stage.exchange_in_batch("p", &actor, &release);
        let left: i64 = redis::cmd("PTTL")
            .arg("p:token")
            .query(&mut stage.redis)
            .unwrap();
        assert!((55_000..=60_000).contains(&left), "{left}");
    }
}
