//! Permits that are handed off within one process, and permits that linger there.

use super::driver::{Behavior, MILLI, Proxy, SECOND, timed};
use super::{Step, next_step};
use crate::backend::{Outcome, TicketState};
use crate::client::state::{Effects, Hold, Shortcuts, State, Terms};
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

/// A waiter, by its number.
#[derive(Debug, PartialEq)]
struct Waiter(u64);

/// A name without the driver: the test replies for the backend.
struct Name {
    state: State<Waiter>,
    now: Instant,
    last: u64,
}

impl Name {
    fn new(limit: u32, strict: bool, shortcuts: Shortcuts) -> Self {
        let now = Instant::now();
        Self {
            state: State::new(limit, LEASE, strict, shortcuts, now),
            now,
            last: 0,
        }
    }

    fn advance(&mut self, time: Duration) {
        self.now += time;
    }

    /// Adds waiters.
    fn join(&mut self, waiters: u64) {
        for _ in 0..waiters {
            self.last += 1;
            let (ticket, terms) = (self.last, Terms::default());
            (self.state).join(ticket, self.now, terms, usize::MAX, Waiter(ticket));
        }
    }

    /// Sends a call now and replies to it. The first `held` tickets of `acquire` are granted, and `elsewhere` tickets are
    /// queued by other processes.
    fn exchange(&mut self, held: usize, in_use: u64, elsewhere: u64) -> Effects<Waiter> {
        self.state.probe = true;
        let (Step::Send(batch), _) = next_step(&mut self.state, self.now, true) else {
            panic!("it is sent now");
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

    /// Adds one waiter, which is granted a permit. No other permit is in use.
    fn acquire(&mut self) -> Hold {
        self.join(1);
        self.exchange(1, 1, 0).granted.remove(0).1
    }

    /// Drops a guard. Returns the waiter that the permit is handed off to.
    fn drop_guard(&mut self, hold: Hold) -> Option<(Waiter, Hold)> {
        if self.state.linger(hold, self.now).is_some() {
            return None;
        }
        self.state.drop_guard(hold, self.now, None).next
    }

    /// Returns how often the permit is handed off, each time after `hold`, before it is released.
    fn hand_offs(&mut self, mut hold: Hold, time: Duration) -> usize {
        for handoffs in 0.. {
            self.advance(time);
            match self.drop_guard(hold) {
                Some((_, next)) => hold = next,
                None => return handoffs,
            }
        }
        0
    }

    /// Returns the tickets that the next call releases.
    fn releases(&mut self) -> Vec<u64> {
        match next_step(&mut self.state, self.now, true).0 {
            Step::Send(batch) => batch.release,
            _ => Vec::new(),
        }
    }
}

#[test]
fn without_tickets_elsewhere_a_permit_is_handed_off_while_the_reply_is_fresh() {
    let mut name = Name::new(1, false, ALL);
    let hold = name.acquire();
    name.join(100);
    name.exchange(0, 1, 0);
    assert_eq!(name.hand_offs(hold, MILLI / 4), 39, "for 10 ms");
    assert_eq!(name.releases()[0], hold.ticket, "then it is released");
}

#[test]
fn a_hand_off_serves_the_oldest_waiter_and_releases_its_own_ticket() {
    let mut name = Name::new(1, false, ALL);
    let hold = name.acquire();
    name.join(2);
    name.exchange(0, 1, 0);
    let (waiter, next) = name.drop_guard(hold).expect("it is handed off");
    assert_eq!(waiter, Waiter(2));
    assert_eq!(next.ticket, hold.ticket);
    assert!(name.releases().is_empty(), "not at once");
    name.advance(50 * MILLI);
    assert_eq!(name.releases(), [2]);
}

#[test]
fn with_tickets_elsewhere_a_permit_is_released_after_four_hand_offs_however_many_replies_arrive() {
    let mut name = Name::new(1, false, ALL);
    let mut hold = name.acquire();
    name.join(100);
    for handoffs in 0.. {
        name.join(1);
        name.exchange(0, 1, 1);
        name.advance(MILLI);
        match name.drop_guard(hold) {
            Some((_, next)) => hold = next,
            None => return assert_eq!(handoffs, 4),
        }
    }
}

#[test]
fn earlier_hand_offs_count_when_a_ticket_is_queued_elsewhere() {
    let mut name = Name::new(1, false, ALL);
    let mut hold = name.acquire();
    name.join(100);
    name.exchange(0, 1, 0);
    for _ in 0..10 {
        hold = name
            .drop_guard(hold)
            .expect("no ticket is queued elsewhere")
            .1;
    }
    name.join(1);
    name.exchange(0, 1, 1);
    assert!(
        name.drop_guard(hold).is_none(),
        "it was handed off often enough"
    );
}

#[test]
fn with_tickets_elsewhere_a_permit_is_released_after_200_ms_however_few_its_hand_offs() {
    let mut name = Name::new(1, false, ALL);
    let hold = name.acquire();
    name.join(100);
    name.exchange(0, 1, 1);
    assert_eq!(name.hand_offs(hold, 110 * MILLI), 1);
}

#[test]
fn a_backend_that_does_not_report_queued_tickets_allows_four_hand_offs() {
    let blind = Shortcuts {
        sees_others: false,
        ..ALL
    };
    let mut name = Name::new(1, false, blind);
    let hold = name.acquire();
    name.join(100);
    name.exchange(0, 1, 0);
    assert_eq!(name.hand_offs(hold, MILLI / 4), 4);
}

#[test]
fn waiters_that_were_served_during_the_call_do_not_count_as_tickets_elsewhere() {
    let mut name = Name::new(1, false, ALL);
    let mut hold = name.acquire();
    name.join(20);
    name.state.probe = true;
    let (Step::Send(batch), _) = next_step(&mut name.state, name.now, true) else {
        panic!("there is something to send");
    };
    // Some are served while the call is in flight, before the reply arrives that all of them are queued.
    for _ in 0..4 {
        hold = name.drop_guard(hold).expect("it is handed off").1;
    }
    let outcome = Outcome {
        acquired: vec![TicketState::Queued; batch.acquire.len()],
        in_use: 1,
        queued: 20,
        ..Outcome::default()
    };
    name.state.on_reply(&outcome, name.now, name.now);
    assert!(
        name.drop_guard(hold).is_some(),
        "no ticket is queued elsewhere"
    );
}

#[test]
fn a_process_with_every_permit_does_not_send_the_tickets_of_new_waiters_at_once() {
    let mut name = Name::new(2, false, ALL);
    name.join(2);
    let mut holds = name.exchange(2, 2, 0).granted;
    name.join(5);
    let Step::Wait(until) = next_step(&mut name.state, name.now, true).0 else {
        panic!("it is not urgent");
    };
    assert_eq!(until, name.now + FRESH, "until the reply is old");
    // A released permit is free for the waiters here: their tickets are sent at once.
    name.state.set_limit(1);
    let (_, hold) = holds.remove(0);
    assert!(name.drop_guard(hold).is_none());
    let Step::Send(batch) = next_step(&mut name.state, name.now, true).0 else {
        panic!("there is something to send");
    };
    assert_eq!(batch.acquire.len(), 5);
    // If other processes have permits too, one of those may become free.
    let mut name = Name::new(2, false, ALL);
    name.join(1);
    name.exchange(1, 2, 0);
    name.join(5);
    assert!(matches!(
        next_step(&mut name.state, name.now, true).0,
        Step::Send(_)
    ));
}

#[test]
fn behind_a_queue_the_tickets_of_new_waiters_are_sent_together() {
    let mut name = Name::new(1, false, ALL);
    name.join(1);
    // Other processes hold the permit and have queued tickets.
    name.exchange(0, 1, 3);
    name.join(1);
    name.advance(MILLI);
    name.join(1);
    let Step::Wait(until) = next_step(&mut name.state, name.now, true).0 else {
        panic!("it is not urgent");
    };
    assert_eq!(until, name.now + MILLI, "2 ms after the first of them");
    name.advance(MILLI);
    let Step::Send(batch) = next_step(&mut name.state, name.now, true).0 else {
        panic!("there is something to send");
    };
    assert_eq!(batch.acquire.len(), 2);
    // At once if the reply is old, a permit is free, or order is strict.
    let at_once = |limit, shortcuts, elsewhere, passes| {
        let mut name = Name::new(limit, false, shortcuts);
        name.join(1);
        name.exchange(1, 1, elsewhere);
        name.advance(passes);
        name.join(1);
        matches!(next_step(&mut name.state, name.now, true).0, Step::Send(_))
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
fn a_permit_in_doubt_is_not_handed_off() {
    let mut name = Name::new(1, false, ALL);
    let hold = name.acquire();
    name.join(1);
    name.advance(LEASE * 2 / 3 + MILLI);
    assert!(
        name.drop_guard(hold).is_none(),
        "less than a third of the lease is left"
    );
    assert_eq!(name.releases(), [hold.ticket]);
}

#[test]
fn strict_fifo_hands_nothing_off() {
    let strict = Shortcuts {
        hand_off: false,
        linger: Duration::ZERO,
        ..ALL
    };
    let mut name = Name::new(1, false, strict);
    let hold = name.acquire();
    name.join(1);
    assert!(name.drop_guard(hold).is_none());
}

/// The ticket of a cancelled waiter or try is granted before its release is sent, while a new waiter has no ticket at the
/// backend. Returns the grant to the new waiter, if any, and the tickets that the next call releases.
fn granted_after_cancel(tries: bool, shortcuts: Shortcuts) -> (Option<(u64, u64)>, Vec<u64>) {
    let mut name = Name::new(1, true, shortcuts);
    match tries {
        true => (name.state).join_try(1, name.now, Terms::default(), Waiter(1)),
        false => (name.state).join(1, name.now, Terms::default(), usize::MAX, Waiter(1)),
    }
    name.last = 1;
    let (Step::Send(sent), _) = next_step(&mut name.state, name.now, true) else {
        panic!("it is sent at once");
    };
    assert_eq!(name.state.give_up(1), Some(Waiter(1)));
    name.join(1);
    let held = |tickets: Vec<u64>| vec![TicketState::Held { token: 7 }; tickets.len()];
    let outcome = Outcome {
        acquired: held(sent.acquire),
        tried: held(sent.try_acquire),
        in_use: 1,
        ..Outcome::default()
    };
    let effects = name.state.on_reply(&outcome, name.now, name.now);
    assert!(effects.refused.is_empty() && effects.lost.is_empty());
    let granted = effects.granted.into_iter().map(|(waiter, hold)| {
        assert_eq!((waiter, hold.handoffs), (Waiter(2), 0));
        (hold.ticket, name.state.permits.token(hold).expect("held"))
    });
    let granted: Vec<_> = granted.collect();
    assert!(granted.len() <= 1);
    assert_eq!(name.state.stats().in_use, granted.len(), "not held twice");
    (granted.first().copied(), name.releases())
}

#[test]
fn a_grant_to_a_cancelled_waiter_or_try_passes_to_the_oldest_waiter() {
    for tries in [false, true] {
        let (granted, releases) = granted_after_cancel(tries, ALL);
        assert_eq!(granted, Some((1, 7 * 1024)), "with the token of the grant");
        assert!(
            releases.is_empty(),
            "its release is withdrawn: {releases:?}"
        );
    }
}

#[test]
fn strict_fifo_releases_a_grant_to_a_cancelled_waiter_or_try() {
    // A ticket may have been enqueued elsewhere since the grant, and before the new waiter's.
    let strict = Shortcuts {
        hand_off: false,
        linger: Duration::ZERO,
        ..ALL
    };
    for tries in [false, true] {
        let (granted, releases) = granted_after_cancel(tries, strict);
        assert_eq!((granted, releases), (None, vec![1]));
    }
}

#[test]
fn over_the_limit_nothing_is_handed_off() {
    let mut name = Name::new(2, false, ALL);
    name.join(2);
    let mut holds = name.exchange(2, 2, 0).granted;
    name.join(2);
    name.exchange(0, 2, 0);
    name.state.set_limit(1);
    let (_, hold) = holds.remove(0);
    assert!(name.drop_guard(hold).is_none(), "the limit is 1 now");
    name.exchange(0, 1, 0);
    let (_, hold) = holds.remove(0);
    assert!(name.drop_guard(hold).is_some(), "within the limit");
    // Other processes may have a higher limit.
    let mut name = Name::new(1, false, ALL);
    let hold = name.acquire();
    name.join(1);
    name.exchange(0, 2, 0);
    assert!(name.drop_guard(hold).is_none());
}

#[test]
fn a_token_increases_with_every_hand_off_and_the_last_one_is_1023() {
    let mut name = Name::new(1, true, ALL);
    let mut hold = name.acquire();
    name.join(10);
    let mut token = name.state.permits.token(hold).expect("a token");
    assert_eq!(token, 7 * 1024);
    let mut handoffs = 0;
    loop {
        name.join(1);
        name.exchange(0, 1, 0);
        match name.drop_guard(hold) {
            Some((_, next)) => hold = next,
            None => break,
        }
        handoffs += 1;
        assert_eq!(name.state.permits.token(hold), Some(token + 1));
        token += 1;
    }
    assert_eq!(handoffs, 1023);
    assert!(token < 8 * 1024, "below the next token of the backend");
}

#[test]
fn the_hold_of_the_previous_holder_is_void() {
    let mut name = Name::new(1, false, ALL);
    let before = name.acquire();
    name.join(1);
    let (_, hold) = name.drop_guard(before).expect("it is handed off");
    let (tickets, now) = (&mut name.state.permits, name.now);
    assert!(!tickets.is_valid(before, now) && tickets.is_valid(hold, now));
    assert!(!tickets.share(before, now) && !tickets.claim(before, now));
    assert!(tickets.expiry(before).is_err() && tickets.expiry(hold).is_ok());
    // Dropping its guard again does not release the permit of the next holder.
    assert!(name.drop_guard(before).is_none());
    assert!(name.state.permits.is_valid(hold, name.now));
}

// --- lingering ---

fn acquire_lingering(name: &mut Name) -> Option<Hold> {
    name.state.acquire_lingering(Terms::default(), name.now)
}

#[test]
fn a_permit_lingers_for_the_next_caller_and_is_released_after_ten_milliseconds() {
    let mut name = Name::new(2, false, ALL);
    let hold = name.acquire();
    name.drop_guard(hold);
    let stats = name.state.stats();
    assert_eq!((stats.in_use, stats.lingering), (0, 1));
    name.advance(FRESH - MILLI);
    let again = acquire_lingering(&mut name).expect("it lingers");
    assert_eq!((again.ticket, again.handoffs), (hold.ticket, 1));
    name.exchange(0, 1, 0);
    name.exchange(0, 1, 0);
    name.drop_guard(again);
    name.advance(FRESH);
    assert!(acquire_lingering(&mut name).is_none(), "no longer");
    assert_eq!(name.releases(), [hold.ticket]);
}

#[test]
fn the_driver_is_due_in_time_to_release_a_lingering_permit() {
    let mut name = Name::new(2, false, ALL);
    let hold = name.acquire();
    name.drop_guard(hold);
    let Step::Wait(until) = next_step(&mut name.state, name.now, true).0 else {
        panic!("there is nothing to send yet");
    };
    assert_eq!(until, name.now + FRESH);
    name.now = until;
    assert_eq!(name.releases(), [hold.ticket]);
}

#[test]
fn nothing_lingers_that_another_caller_might_need() {
    let lingers = |limit, strict, shortcuts, in_use, elsewhere, age| {
        let mut name = Name::new(limit, strict, shortcuts);
        name.join(1);
        let hold = name.exchange(1, in_use, elsewhere).granted.remove(0).1;
        name.advance(age);
        name.drop_guard(hold);
        name.state.stats().lingering > 0
    };
    let none = Duration::ZERO;
    assert!(lingers(4, false, ALL, 2, 0, none));
    assert!(
        !lingers(4, false, ALL, 3, 0, none),
        "half the limit has to be free"
    );
    assert!(
        !lingers(4, false, ALL, 2, 1, none),
        "no ticket may be queued"
    );
    assert!(
        !lingers(4, false, ALL, 2, 0, FRESH),
        "the reply has to be fresh"
    );
    assert!(!lingers(1, true, ALL, 1, 0, none), "not for a mutex");
    let off = Shortcuts {
        linger: none,
        ..ALL
    };
    assert!(!lingers(4, false, off, 1, 0, none), "turned off");
}

#[test]
fn a_lingering_permit_is_released_at_once_when_a_ticket_is_queued_and_at_a_shutdown() {
    let linger = || {
        let mut name = Name::new(2, false, ALL);
        let hold = name.acquire();
        name.drop_guard(hold);
        (name, hold.ticket)
    };
    let (mut name, ticket) = linger();
    name.exchange(0, 1, 1);
    assert_eq!(name.releases(), [ticket], "a ticket is queued");
    let (mut name, ticket) = linger();
    name.state.stop_lingering();
    assert_eq!(name.releases(), [ticket], "a shutdown");
    let (mut name, _) = linger();
    let effects = name.state.lose_all();
    assert!(
        effects.lost.is_empty(),
        "a permit without a guard is not lost"
    );
    assert!(name.state.stats().lingering == 0);
}

#[test]
fn a_lingering_permit_in_doubt_is_not_reused() {
    let forever = Shortcuts {
        linger: LEASE,
        ..ALL
    };
    let mut name = Name::new(2, false, forever);
    let hold = name.acquire();
    name.drop_guard(hold);
    name.advance(LEASE * 2 / 3 + MILLI);
    assert!(acquire_lingering(&mut name).is_none());
    assert_eq!(name.releases(), [hold.ticket]);
}

#[test]
fn reservations_and_max_hold_start_again_for_the_next_holder() {
    let mut name = Name::new(2, false, ALL);
    let hold = name.acquire();
    name.drop_guard(hold);
    let terms = |reserve: u32, most: u32| Terms {
        reserve: Some(reserve * MILLI),
        max_hold: Some(most * MILLI),
        stall_timeout: None,
    };
    let hold = name.state.acquire_lingering(terms(50, 100), name.now);
    let hold = hold.expect("it lingers");
    assert!(name.state.permits.claim(hold, name.now));
    name.advance(5 * MILLI);
    name.drop_guard(hold);
    name.advance(4 * MILLI);
    let hold = name.state.acquire_lingering(terms(50, 100), name.now);
    let hold = hold.expect("it lingers");
    name.advance(49 * MILLI);
    assert!(next_step(&mut name.state, name.now, true).1.lost.is_empty());
    assert!(name.state.permits.claim(hold, name.now), "within its time");
    name.advance(50 * MILLI);
    assert!(
        next_step(&mut name.state, name.now, true).1.lost.is_empty(),
        "99 ms"
    );
    name.advance(MILLI);
    let lost = next_step(&mut name.state, name.now, true).1.lost;
    assert_eq!(lost, [(hold, ErrorKind::HeldTooLong)]);
}

// --- through the public interface ---

#[tokio::test(start_paused = true)]
async fn a_hand_off_needs_no_call() {
    let backend = Proxy::new(Behavior::After(MILLI));
    let (_permits, semaphore) = backend.semaphore(10 * SECOND);
    let held = semaphore.acquire().await.unwrap();
    backend.set(Behavior::Silent);
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
    assert!(handle.upgrade().is_none(), "another caller holds it");
}

#[tokio::test(start_paused = true)]
async fn an_awaited_unlock_is_answered_and_hands_the_lock_off() {
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
async fn a_caller_after_another_needs_no_call() {
    let backend = Proxy::new(Behavior::After(MILLI));
    let permits = Coordinator::new(backend.clone());
    let semaphore = permits.semaphore("test", 2).unwrap();
    drop(semaphore.acquire().await.unwrap());
    backend.set(Behavior::Silent);
    let (took, permit) = timed(semaphore.acquire()).await;
    assert_eq!(took, Duration::ZERO);
    let permit = permit.unwrap();
    assert_eq!(semaphore.stats().granted, 2);
    drop(permit);
    // Right afterwards it still lingers, and `inspect` shows it; later it does not.
    let seen = permits.inspect("test").await.unwrap();
    assert!(seen.in_use == 1 && seen.holders[0].lingering, "{seen:?}");
    assert_eq!(semaphore.stats().lingering, 1);
    backend.set(Behavior::After(MILLI));
    advance(30 * MILLI).await;
    sleep(30 * MILLI).await;
    assert_eq!(permits.inspect("test").await.unwrap().in_use, 0);
    assert_eq!(semaphore.stats().lingering, 0);
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_does_not_wait_for_lingering_permits() {
    let permits = Coordinator::new(Memory::new());
    let semaphore = permits.semaphore("test", 2).unwrap();
    drop(semaphore.acquire().await.unwrap());
    assert_eq!(semaphore.stats().lingering, 1);
    let (took, done) = timed(permits.shutdown(SECOND)).await;
    assert!(done.is_ok() && took < 5 * MILLI, "{done:?} after {took:?}");
    assert_eq!(permits.inspect("test").await.unwrap().in_use, 0);
}

#[test]
fn a_linger_of_more_than_ten_milliseconds_is_an_error() {
    let builder = Coordinator::builder(Memory::new());
    let error = builder.clone().linger(11 * MILLI).build().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert!(builder.linger(10 * MILLI).build().is_ok());
}

#[test]
fn a_lingering_permit_does_not_exceed_a_lowered_limit() {
    let mut name = Name::new(8, false, ALL);
    name.join(4);
    let mut granted = name.exchange(4, 4, 0).granted;
    let (_, first) = granted.remove(0);
    assert!(name.drop_guard(first).is_none());
    assert_eq!(name.state.stats().lingering, 1);
    name.state.set_limit(3);
    assert_eq!(acquire_lingering(&mut name), None, "three are in use");
    assert_eq!(name.releases(), [first.ticket]);
}

#[test]
fn a_renewal_that_waits_for_its_turn_delays_nothing_else() {
    let mut name = Name::new(4, false, ALL);
    let hold = name.acquire();
    name.advance(LEASE / 3 - 5 * MILLI);
    name.join(1);
    let (_, other) = name.exchange(1, 2, 0).granted.remove(0);
    name.advance(5 * MILLI);
    assert!(name.drop_guard(other).is_none(), "it lingers");
    let Step::Renewal(until) = next_step(&mut name.state, name.now, false).0 else {
        panic!("a renewal waits for its turn");
    };
    assert_eq!(
        until,
        name.now + FRESH,
        "then the lingering permit is released"
    );
    assert!(name.state.permits.is_held(hold.ticket));
}

#[test]
fn a_renewal_without_a_turn_becomes_urgent() {
    let mut name = Name::new(4, false, ALL);
    let hold = name.acquire();
    name.advance(LEASE / 3);
    let Step::Renewal(until) = next_step(&mut name.state, name.now, false).0 else {
        panic!("a renewal waits for its turn");
    };
    assert!(until <= name.now + LEASE / 6, "half a lease is left");
    name.now = until;
    let (Step::Send(batch), _) = next_step(&mut name.state, name.now, false) else {
        panic!("it is urgent now");
    };
    assert_eq!(batch.renew, [hold.ticket]);
}

#[test]
fn a_single_failed_call_loses_no_permit_however_many_names_retry() {
    let mut name = Name::new(1, true, ALL);
    let hold = name.acquire();
    name.advance(LEASE / 3);
    assert!(matches!(
        next_step(&mut name.state, name.now, true).0,
        Step::Send(_)
    ));
    name.advance(LEASE / 6);
    name.state.on_failure(1.0, 10 * SECOND, name.now);
    let Step::Wait(until) = next_step(&mut name.state, name.now, true).0 else {
        panic!("it pauses");
    };
    assert!(until + LEASE / 6 < name.state.permits.expiry(hold).unwrap().unwrap());
}

#[test]
fn a_permit_released_after_the_start_of_a_shutdown_does_not_linger() {
    let mut name = Name::new(2, false, ALL);
    let hold = name.acquire();
    name.state.stop_lingering();
    name.drop_guard(hold);
    assert!(name.state.stats().lingering == 0);
    assert_eq!(name.releases(), [hold.ticket]);
}

#[test]
fn nothing_lingers_by_a_reply_about_another_limit() {
    let mut name = Name::new(4, false, ALL);
    let hold = name.acquire();
    name.state.set_limit(1);
    name.drop_guard(hold);
    assert!(
        name.state.stats().lingering == 0,
        "half the limit is not free"
    );
    assert_eq!(name.releases(), [hold.ticket]);
}
