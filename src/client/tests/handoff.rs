//! Permits that go from hand to hand in one process, and permits that linger there.

use super::driver::{Door, MILLI, Manner, SECOND, timed};
use super::{Step, next_step};
use crate::backend::{Outcome, TicketState};
use crate::client::state::{Effects, HasTerms, Hold, Shortcuts, State, Terms};
use crate::error::ErrorKind;
use crate::{Coordinator, Memory};
use std::time::Duration;
use tokio::time::{Instant, advance, sleep};

const LEASE: Duration = Duration::from_secs(3);
const FRESH: Duration = Duration::from_millis(10);
const ALL: Shortcuts = Shortcuts {
    hand_off: true,
    linger: FRESH,
    sees_others: true,
};

/// A caller, by his number.
#[derive(Debug, PartialEq)]
struct Who(u64);

impl HasTerms for Who {
    fn terms(&self) -> Terms {
        Terms::default()
    }
}

/// A gate without its pump: the test answers for the backend.
struct NumberMap {
    state: State<Who>,
    now: Instant,
    last: u64,
}

impl NumberMap {
    fn new(limit: u32, strict: bool, shortcuts: Shortcuts) -> Self {
        let now = Instant::now();
        Self {
            state: State::new(limit, LEASE, strict, shortcuts, now),
            now,
            last: 0,
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    /// So many more come and wait.
    fn come(&mut self, many: u64) {
        for _ in 0..many {
            self.last += 1;
            self.state.join(self.last, self.now, Who(self.last));
        }
    }

    /// Says what there is to say, now. The first `held` of those who enter get in, and `elsewhere` wait in other processes.
    fn talk(&mut self, held: usize, in_use: u64, elsewhere: u64) -> Effects<Who> {
        self.state.probe = true;
        let (Step::Send(batch), _) = next_step(&mut self.state, self.now, true) else {
            panic!("it is said now");
        };
        let answer = |n| match n < held {
            true => TicketState::Held { token: 7 },
            false => TicketState::Queued,
        };
        let acquired: Vec<_> = (0..batch.acquire.len()).map(answer).collect();
        let waiting = self.state.waiters.len().saturating_sub(held) as u64 + elsewhere;
        let outcome = Outcome {
            released: vec![true; batch.release.len()],
            renewed: vec![TicketState::Held { token: 7 }; batch.renew.len()],
            acquired,
            in_use,
            queued: waiting,
            ..Outcome::default()
        };
        self.state.on_reply(&outcome, self.now, self.now)
    }

    /// One comes and gets in, alone.
    fn first(&mut self) -> Hold {
        self.come(1);
        self.talk(1, 1, 0).granted.remove(0).1
    }

    /// Who goes in when this guard is dropped.
    fn drop(&mut self, hold: Hold) -> Option<(Who, Hold)> {
        if self.state.linger(hold, self.now).is_some() {
            return None;
        }
        self.state.drop_guard(hold, self.now, None).next
    }

    /// How many go in one after the other, each after `hold`, until the permit leaves.
    fn chain(&mut self, mut hold: Hold, time: Duration) -> usize {
        for handoffs in 0.. {
            self.pass(time);
            match self.drop(hold) {
                Some((_, next)) => hold = next,
                None => return handoffs,
            }
        }
        0
    }

    /// The tickets that leave with the next call.
    fn releases(&mut self) -> Vec<u64> {
        match next_step(&mut self.state, self.now, true).0 {
            Step::Send(batch) => batch.release,
            _ => Vec::new(),
        }
    }
}

#[test]
fn alone_a_permit_goes_from_hand_to_hand_for_as_long_as_the_answer_is_fresh() {
    let mut line = NumberMap::new(1, false, ALL);
    let hold = line.first();
    line.come(100);
    line.talk(0, 1, 0);
    assert_eq!(line.chain(hold, MILLI / 4), 39, "for 10 ms");
    assert_eq!(line.releases()[0], hold.ticket, "then it goes back");
}

#[test]
fn the_oldest_goes_first_and_his_own_ticket_leaves() {
    let mut line = NumberMap::new(1, false, ALL);
    let hold = line.first();
    line.come(2);
    line.talk(0, 1, 0);
    let (who, next) = line.drop(hold).expect("one goes in");
    assert_eq!(who, Who(2));
    assert_eq!(next.ticket, hold.ticket);
    assert!(line.releases().is_empty(), "there is no hurry");
    line.pass(50 * MILLI);
    assert_eq!(line.releases(), [2]);
}

#[test]
fn while_others_wait_it_goes_back_after_four_hops_however_many_answers_come() {
    let mut line = NumberMap::new(1, false, ALL);
    let mut hold = line.first();
    line.come(100);
    for handoffs in 0.. {
        line.come(1);
        line.talk(0, 1, 1);
        line.pass(MILLI);
        match line.drop(hold) {
            Some((_, next)) => hold = next,
            None => return assert_eq!(handoffs, 4),
        }
    }
}

#[test]
fn hops_that_were_free_count_when_somebody_comes_to_wait_elsewhere() {
    let mut line = NumberMap::new(1, false, ALL);
    let mut hold = line.first();
    line.come(100);
    line.talk(0, 1, 0);
    for _ in 0..10 {
        hold = line.drop(hold).expect("alone").1;
    }
    line.come(1);
    line.talk(0, 1, 1);
    assert!(line.drop(hold).is_none(), "it has had its hops");
}

#[test]
fn while_others_may_wait_it_goes_back_after_a_while_however_few_hops_it_made() {
    let mut line = NumberMap::new(1, false, ALL);
    let hold = line.first();
    line.come(100);
    line.talk(0, 1, 1);
    assert_eq!(line.chain(hold, 110 * MILLI), 1);
}

#[test]
fn where_the_backend_does_not_tell_who_waits_nobody_is_thought_to_be_alone() {
    let blind = Shortcuts {
        sees_others: false,
        ..ALL
    };
    let mut line = NumberMap::new(1, false, blind);
    let hold = line.first();
    line.come(100);
    line.talk(0, 1, 0);
    assert_eq!(line.chain(hold, MILLI / 4), 4);
}

#[test]
fn those_who_left_the_line_during_the_call_are_no_others() {
    let mut line = NumberMap::new(1, false, ALL);
    let mut hold = line.first();
    line.come(20);
    line.state.probe = true;
    let (Step::Send(batch), _) = next_step(&mut line.state, line.now, true) else {
        panic!("there is something to say");
    };
    // Some are served while the call is under way, before the backend answers that all of them wait.
    for _ in 0..4 {
        hold = line.drop(hold).expect("a few").1;
    }
    let outcome = Outcome {
        acquired: vec![TicketState::Queued; batch.acquire.len()],
        in_use: 1,
        queued: 20,
        ..Outcome::default()
    };
    line.state.on_reply(&outcome, line.now, line.now);
    assert!(line.drop(hold).is_some(), "nobody waits elsewhere");
}

#[test]
fn alone_with_every_permit_nobody_asks_for_what_comes_from_hand_to_hand() {
    let mut line = NumberMap::new(2, false, ALL);
    line.come(2);
    let mut holds = line.talk(2, 2, 0).granted;
    line.come(5);
    let Step::Wait(until) = next_step(&mut line.state, line.now, true).0 else {
        panic!("that can wait");
    };
    assert_eq!(until, line.now + FRESH, "until the answer is old");
    // A permit that goes back leaves room: somebody asks for it at once.
    line.state.set_limit(1);
    let (_, hold) = holds.remove(0);
    assert!(line.drop(hold).is_none());
    let Step::Send(batch) = next_step(&mut line.state, line.now, true).0 else {
        panic!("there is something to say");
    };
    assert_eq!(batch.acquire.len(), 5);
    // Where others have permits too, one of theirs may come free.
    let mut line = NumberMap::new(2, false, ALL);
    line.come(1);
    line.talk(1, 2, 0);
    line.come(5);
    assert!(matches!(
        next_step(&mut line.state, line.now, true).0,
        Step::Send(_)
    ));
}

#[test]
fn behind_a_queue_newcomers_are_named_together() {
    let mut line = NumberMap::new(1, false, ALL);
    line.come(1);
    // Others hold and wait.
    line.talk(0, 1, 3);
    line.come(1);
    line.pass(MILLI);
    line.come(1);
    let Step::Wait(until) = next_step(&mut line.state, line.now, true).0 else {
        panic!("that can wait");
    };
    assert_eq!(until, line.now + MILLI, "two from the first of them");
    line.pass(MILLI);
    let Step::Send(batch) = next_step(&mut line.state, line.now, true).0 else {
        panic!("there is something to say");
    };
    assert_eq!(batch.acquire.len(), 2);
    // Whatever else is said takes them along; and at once where the answer is old, nobody waits, or order is strict.
    let at_once = |limit, shortcuts, elsewhere, passes| {
        let mut line = NumberMap::new(limit, false, shortcuts);
        line.come(1);
        line.talk(1, 1, elsewhere);
        line.pass(passes);
        line.come(1);
        matches!(next_step(&mut line.state, line.now, true).0, Step::Send(_))
    };
    assert!(!at_once(1, ALL, 3, MILLI * 9));
    assert!(at_once(1, ALL, 3, FRESH));
    assert!(at_once(2, ALL, 3, MILLI));
    assert!(at_once(2, ALL, 0, MILLI));
    let strict = Shortcuts {
        hand_off: false,
        ..ALL
    };
    assert!(at_once(1, strict, 3, MILLI));
}

#[test]
fn a_permit_in_doubt_is_handed_to_nobody() {
    let mut line = NumberMap::new(1, false, ALL);
    let hold = line.first();
    line.come(1);
    line.pass(LEASE * 2 / 3 + MILLI);
    assert!(line.drop(hold).is_none(), "less than a third is left");
    assert_eq!(line.releases(), [hold.ticket]);
}

#[test]
fn strict_fifo_hands_nothing_on() {
    let strict = Shortcuts {
        hand_off: false,
        linger: Duration::ZERO,
        ..ALL
    };
    let mut line = NumberMap::new(1, false, strict);
    let hold = line.first();
    line.come(1);
    assert!(line.drop(hold).is_none());
}

#[test]
fn over_the_limit_nothing_is_handed_on() {
    let mut line = NumberMap::new(2, false, ALL);
    line.come(2);
    let mut holds = line.talk(2, 2, 0).granted;
    line.come(2);
    line.talk(0, 2, 0);
    line.state.set_limit(1);
    let (_, hold) = holds.remove(0);
    assert!(line.drop(hold).is_none(), "one is enough now");
    line.talk(0, 1, 0);
    let (_, hold) = holds.remove(0);
    assert!(line.drop(hold).is_some(), "it fits");
    // Others may have a higher limit.
    let mut line = NumberMap::new(1, false, ALL);
    let hold = line.first();
    line.come(1);
    line.talk(0, 2, 0);
    assert!(line.drop(hold).is_none());
}

#[test]
fn a_token_rises_with_every_hop_and_the_last_hop_is_1023() {
    let mut line = NumberMap::new(1, true, ALL);
    let mut hold = line.first();
    line.come(10);
    let mut token = line.state.permits.token(hold).expect("a token");
    assert_eq!(token, 7 * 1024);
    let mut handoffs = 0;
    loop {
        line.come(1);
        line.talk(0, 1, 0);
        match line.drop(hold) {
            Some((_, next)) => hold = next,
            None => break,
        }
        handoffs += 1;
        assert_eq!(line.state.permits.token(hold), Some(token + 1));
        token += 1;
    }
    assert_eq!(handoffs, 1023);
    assert!(token < 8 * 1024, "below the next one of the backend");
}

#[test]
fn who_had_it_before_has_no_part_in_it_any_more() {
    let mut line = NumberMap::new(1, false, ALL);
    let before = line.first();
    line.come(1);
    let (_, hold) = line.drop(before).expect("one goes in");
    let (tickets, now) = (&mut line.state.permits, line.now);
    assert!(!tickets.is_valid(before, now) && tickets.is_valid(hold, now));
    assert!(!tickets.share(before, now) && !tickets.claim(before, now));
    assert!(tickets.lost(before).is_some() && tickets.lost(hold).is_none());
    // A guard that is dropped twice, as it were, takes nothing from the next one.
    assert!(line.drop(before).is_none());
    assert!(line.state.permits.is_valid(hold, line.now));
}

// --- lingering ---

fn take(line: &mut NumberMap) -> Option<Hold> {
    line.state.acquire_lingering(Terms::default(), line.now)
}

#[test]
fn a_permit_lingers_for_the_next_one_and_leaves_after_ten_milliseconds() {
    let mut line = NumberMap::new(2, false, ALL);
    let hold = line.first();
    line.drop(hold);
    let stats = line.state.stats();
    assert_eq!((stats.in_use, stats.lingering), (0, 1));
    line.pass(FRESH - MILLI);
    let again = take(&mut line).expect("it lingers");
    assert_eq!((again.ticket, again.handoffs), (hold.ticket, 1));
    line.talk(0, 1, 0);
    line.talk(0, 1, 0);
    line.drop(again);
    line.pass(FRESH);
    assert!(take(&mut line).is_none(), "for no longer");
    assert_eq!(line.releases(), [hold.ticket]);
}

#[test]
fn the_pump_comes_back_in_time_to_let_it_leave() {
    let mut line = NumberMap::new(2, false, ALL);
    let hold = line.first();
    line.drop(hold);
    let Step::Wait(until) = next_step(&mut line.state, line.now, true).0 else {
        panic!("there is nothing to say yet");
    };
    assert_eq!(until, line.now + FRESH);
    line.now = until;
    assert_eq!(line.releases(), [hold.ticket]);
}

#[test]
fn nothing_lingers_where_it_could_be_in_the_way() {
    let lingers = |limit, strict, shortcuts, in_use, elsewhere, age| {
        let mut line = NumberMap::new(limit, strict, shortcuts);
        line.come(1);
        let hold = line.talk(1, in_use, elsewhere).granted.remove(0).1;
        line.pass(age);
        line.drop(hold);
        line.state.stats().lingering > 0
    };
    let none = Duration::ZERO;
    assert!(lingers(4, false, ALL, 2, 0, none));
    assert!(
        !lingers(4, false, ALL, 3, 0, none),
        "half the limit is free"
    );
    assert!(!lingers(4, false, ALL, 2, 1, none), "nobody waits");
    assert!(!lingers(4, false, ALL, 2, 0, FRESH), "by a fresh answer");
    assert!(!lingers(1, true, ALL, 1, 0, none), "no mutex");
    let off = Shortcuts {
        linger: none,
        ..ALL
    };
    assert!(!lingers(4, false, off, 1, 0, none), "turned off");
}

#[test]
fn it_goes_back_at_once_when_somebody_waits_and_at_a_shutdown() {
    let linger = || {
        let mut line = NumberMap::new(2, false, ALL);
        let hold = line.first();
        line.drop(hold);
        (line, hold.ticket)
    };
    let (mut line, ticket) = linger();
    line.talk(0, 1, 1);
    assert_eq!(line.releases(), [ticket], "a caller waits");
    let (mut line, ticket) = linger();
    line.state.stop_lingering();
    assert_eq!(line.releases(), [ticket], "a shutdown");
    let (mut line, _) = linger();
    let effects = line.state.lose_all();
    assert!(
        effects.lost.is_empty(),
        "a permit without a guard is not lost"
    );
    assert!(!line.state.stats().lingering > 0);
}

#[test]
fn a_permit_that_lingers_in_doubt_is_given_to_nobody() {
    let forever = Shortcuts {
        linger: LEASE,
        ..ALL
    };
    let mut line = NumberMap::new(2, false, forever);
    let hold = line.first();
    line.drop(hold);
    line.pass(LEASE * 2 / 3 + MILLI);
    assert!(take(&mut line).is_none());
    assert_eq!(line.releases(), [hold.ticket]);
}

#[test]
fn reservations_and_long_holds_count_anew_for_the_next_one() {
    let mut line = NumberMap::new(2, false, ALL);
    let hold = line.first();
    line.drop(hold);
    let terms = |reserve: u32, most: u32| Terms {
        reserve: Some(reserve * MILLI),
        max_hold: Some(most * MILLI),
    };
    let hold = line.state.acquire_lingering(terms(50, 100), line.now);
    let hold = hold.expect("it lingers");
    assert!(line.state.permits.claim(hold, line.now));
    line.pass(5 * MILLI);
    line.drop(hold);
    line.pass(4 * MILLI);
    let hold = line.state.acquire_lingering(terms(50, 100), line.now);
    let hold = hold.expect("it lingers");
    line.pass(49 * MILLI);
    assert!(next_step(&mut line.state, line.now, true).1.lost.is_empty());
    assert!(line.state.permits.claim(hold, line.now), "within its time");
    line.pass(50 * MILLI);
    assert!(
        next_step(&mut line.state, line.now, true).1.lost.is_empty(),
        "99 ms"
    );
    line.pass(MILLI);
    let lost = next_step(&mut line.state, line.now, true).1.lost;
    assert_eq!(lost, [(hold, ErrorKind::HeldTooLong)]);
}

// --- with all the rest round it ---

#[tokio::test(start_paused = true)]
async fn handed_on_without_a_word_to_the_backend() {
    let door = Door::new(Manner::After(MILLI));
    let (_permits, semaphore) = door.semaphore(10 * SECOND);
    let held = semaphore.acquire().await.unwrap();
    door.set(Manner::Silent);
    let handle = held.handle();
    let waiting = tokio::spawn({
        let semaphore = semaphore.clone();
        async move { timed(semaphore.acquire()).await }
    });
    sleep(20 * MILLI).await;
    drop(held);
    let (took, permit) = waiting.await.unwrap();
    assert_eq!(took, 20 * MILLI);
    assert!(permit.expect("a permit").is_valid());
    assert!(handle.keep().is_none(), "it is another one's now");
}

#[tokio::test(start_paused = true)]
async fn a_release_that_waits_for_its_answer_is_heard_and_a_lock_goes_on() {
    let permits = Coordinator::new(Memory::new());
    let mutex = permits.mutex("test").unwrap();
    let first = mutex.lock().await.unwrap();
    let waiting = tokio::spawn({
        let mutex = mutex.clone();
        async move { mutex.lock().await }
    });
    sleep(MILLI).await;
    let token = first.token();
    assert!(first.unlock().await.unwrap(), "it was held until then");
    let second = waiting.await.unwrap().unwrap();
    assert_eq!(second.token(), token + 1);
}

#[tokio::test(start_paused = true)]
async fn one_after_the_other_needs_no_word_to_the_backend() {
    let door = Door::new(Manner::After(MILLI));
    let permits = Coordinator::new(door.clone());
    let semaphore = permits.semaphore("test", 2).unwrap();
    drop(semaphore.acquire().await.unwrap());
    door.set(Manner::Silent);
    let (took, permit) = timed(semaphore.acquire()).await;
    assert_eq!(took, Duration::ZERO);
    let permit = permit.unwrap();
    assert_eq!(semaphore.stats().granted, 2);
    drop(permit);
    // The next moment it is still here, and seen to be; later it is not.
    let seen = permits.inspect("test").await.unwrap();
    assert!(seen.in_use == 1 && seen.holders[0].lingering, "{seen:?}");
    assert_eq!(semaphore.stats().lingering, 1);
    door.set(Manner::After(MILLI));
    advance(30 * MILLI).await;
    sleep(30 * MILLI).await;
    assert_eq!(permits.inspect("test").await.unwrap().in_use, 0);
    assert_eq!(semaphore.stats().lingering, 0);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_does_not_wait_for_what_lingers() {
    let permits = Coordinator::new(Memory::new());
    let semaphore = permits.semaphore("test", 2).unwrap();
    drop(semaphore.acquire().await.unwrap());
    assert_eq!(semaphore.stats().lingering, 1);
    let (took, done) = timed(permits.shutdown(SECOND)).await;
    assert!(done.is_ok() && took < 5 * MILLI, "{done:?} after {took:?}");
    assert_eq!(permits.inspect("test").await.unwrap().in_use, 0);
}

#[test]
fn a_linger_of_more_than_ten_milliseconds_is_refused() {
    let builder = Coordinator::builder(Memory::new());
    let error = builder.clone().linger(11 * MILLI).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(builder.linger(10 * MILLI).build().is_ok());
}

#[test]
fn a_permit_that_lingers_does_not_pass_a_limit_that_was_lowered() {
    let mut line = NumberMap::new(8, false, ALL);
    line.come(4);
    let mut granted = line.talk(4, 4, 0).granted;
    let (_, first) = granted.remove(0);
    assert!(line.drop(first).is_none());
    assert_eq!(line.state.stats().lingering, 1);
    line.state.set_limit(3);
    assert_eq!(take(&mut line), None, "three are in use");
    assert_eq!(line.releases(), [first.ticket]);
}

#[test]
fn a_renewal_that_waits_for_its_turn_keeps_nothing_else_waiting() {
    let mut line = NumberMap::new(4, false, ALL);
    let hold = line.first();
    line.pass(LEASE / 3 - 5 * MILLI);
    line.come(1);
    let (_, other) = line.talk(1, 2, 0).granted.remove(0);
    line.pass(5 * MILLI);
    assert!(line.drop(other).is_none(), "it lingers");
    let Step::Renewal(until) = next_step(&mut line.state, line.now, false).0 else {
        panic!("a renewal waits for its turn");
    };
    assert_eq!(until, line.now + FRESH, "then it leaves");
    assert!(line.state.permits.is_held(hold.ticket));
}

#[test]
fn a_renewal_that_had_no_turn_for_long_goes_without() {
    let mut line = NumberMap::new(4, false, ALL);
    let hold = line.first();
    line.pass(LEASE / 3);
    let Step::Renewal(until) = next_step(&mut line.state, line.now, false).0 else {
        panic!("a renewal waits for its turn");
    };
    assert!(until <= line.now + LEASE / 6, "half a lease is left");
    line.now = until;
    let (Step::Send(batch), _) = next_step(&mut line.state, line.now, false) else {
        panic!("it waits no longer");
    };
    assert_eq!(batch.renew, [hold.ticket]);
}

#[test]
fn however_many_names_try_again_a_permit_is_not_lost_by_a_single_call() {
    let mut line = NumberMap::new(1, true, ALL);
    let hold = line.first();
    line.pass(LEASE / 3);
    assert!(matches!(
        next_step(&mut line.state, line.now, true).0,
        Step::Send(_)
    ));
    line.pass(LEASE / 6);
    line.state.on_failure(1.0, 10 * SECOND, line.now);
    let Step::Wait(until) = next_step(&mut line.state, line.now, true).0 else {
        panic!("it pauses");
    };
    assert!(until + LEASE / 6 < line.state.permits.expiry(hold).unwrap());
}

#[test]
fn what_comes_free_after_a_shutdown_has_begun_does_not_linger() {
    let mut line = NumberMap::new(2, false, ALL);
    let hold = line.first();
    line.state.stop_lingering();
    line.drop(hold);
    assert!(!line.state.stats().lingering > 0);
    assert_eq!(line.releases(), [hold.ticket]);
}

#[test]
fn what_was_seen_by_another_limit_lets_nothing_linger() {
    let mut line = NumberMap::new(4, false, ALL);
    let hold = line.first();
    line.state.set_limit(1);
    line.drop(hold);
    assert!(
        !line.state.stats().lingering > 0,
        "half the limit is not free"
    );
    assert_eq!(line.releases(), [hold.ticket]);
}
