//! Random runs of the whole protocol in simulated time: a few nodes, each a [`State`] that is driven as the pump does it,
//! over the in-process backend, with everything going wrong that may go wrong. Looked at from outside after each event.
//!
//! Every run follows from its seed. `SIMULATION_SEEDS=100000` makes more of them, `SIMULATION_FIRST=17` starts there,
//! `SIMULATION_STEPS=20000` makes them longer. A run that fails is repeated, and shows its last events.

use super::health::Health;
use super::state::{Batch, HasTerms, News, Shortcuts, State, Step};
use super::tickets::{Hold, Terms};
use crate::backend::memory::room::Room;
use crate::backend::{Call, Events, Grant, MOST_TICKETS, Outcome, Reply, State as Answer};
use crate::error::{Error, ErrorKind};
use crate::name::{Node, Queue};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Microseconds since the run began.
type Time = u64;

const MILLI: Time = 1_000;
/// The wall clock of the backend when a run begins.
const EPOCH: Time = 1_700_000_000_000_000;
const OUTAGE_AFTER: Duration = Duration::from_secs(1);
/// The longest pause before a call that has to go out.
const LONGEST_PAUSE: Duration = Duration::from_millis(125);
/// The trace of a run that failed shows so many events.
const SHOWN: usize = 150;

thread_local! {
    /// `None`: nobody wants to see it.
    static TRACE: RefCell<Option<VecDeque<String>>> = const { RefCell::new(None) };
}

/// Adds to the trace, if there is one.
macro_rules! note {
    ($world:expr, $($what:tt)*) => {
        TRACE.with_borrow_mut(|trace| {
            if let Some(trace) = trace {
                if trace.len() == SHOWN {
                    trace.pop_front();
                }
                trace.push_back(format!("{:>9.3} ms  {}", $world.now as f64 / 1e3, format!($($what)*)));
            }
        })
    };
}

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
    let seen: Vec<Seen> = std::thread::scope(|scope| {
        let work = || {
            let mut seen = Seen::default();
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= last {
                    return seen;
                }
                match catch_unwind(AssertUnwindSafe(|| World::run(seed, steps))) {
                    Ok(run) => seen.add(run),
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
            .map(|w| w.join().expect("see above"))
            .collect()
    });
    let mut all = Seen::default();
    seen.into_iter().for_each(|seen| all.add(seen));
    println!("{all:?}");
    // The runs are worth something only if everything happens in them.
    if last - first >= 300 && steps >= 2_000 {
        let Seen {
            granted,
            refused,
            pushed,
            cancelled,
            lost,
            late,
            lapsed,
            passed_on,
            handed_on,
            lingered,
            no_turn,
            ..
        } = all;
        for often in [
            granted, refused, pushed, cancelled, lost, late, lapsed, passed_on, handed_on,
            lingered, no_turn,
        ] {
            assert!(often > 100, "{all:?}");
        }
    }
}

/// Repeats a run that failed, and prints what happened last.
fn show(seed: u64, steps: u64) -> ! {
    TRACE.set(Some(VecDeque::new()));
    let again = catch_unwind(AssertUnwindSafe(|| World::run(seed, steps)));
    let trace = TRACE.take().unwrap_or_default();
    let lines: Vec<String> = trace.into_iter().collect();
    let repeated = if again.is_err() {
        ""
    } else {
        " (it did not fail again)"
    };
    panic!("seed {seed} failed{repeated}:\n{}", lines.join("\n"));
}

/// What happened in some runs.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    events: u64,
    granted: u64,
    refused: u64,
    pushed: u64,
    cancelled: u64,
    lost: u64,
    late: u64,
    lapsed: u64,
    /// Went in on another's ticket.
    passed_on: u64,
    /// Went in on a ticket that came from hand to hand.
    handed_on: u64,
    /// Went in on a ticket that lingered.
    lingered: u64,
    /// Had only renewals to say, and waited for the turn.
    no_turn: u64,
}

/// How likely each fault is in this run, in thousandths.
#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    request_lost: u64,
    reply_lost: u64,
    slow: u64,
    late: u64,
    twice: u64,
    push_lost: u64,
    push_late: u64,
    push_twice: u64,
    pause: u64,
    kill: u64,
    stall: u64,
    flush: u64,
    evict: u64,
    limits: u64,
    resync: u64,
    close: u64,
    long_holds: u64,
    pump_gone: u64,
    /// Others are renewed first.
    no_turn: u64,
}

struct World {
    rng: Rng,
    now: Time,
    base: Instant,
    /// By time; those of one time in random order.
    events: BTreeMap<(Time, u64, u64), Event>,
    last_event: u64,
    faults: Faults,
    /// As for a mutex.
    strict: bool,
    shortcuts: Shortcuts,
    /// Everything takes a few milliseconds only, and there is room: permits linger.
    brief: bool,
    calm: bool,
    calm_since: Time,
    queue: Queue,
    room: Room,
    stalled_until: Time,
    nodes: Vec<Peer>,
    callers: Vec<Caller>,
    /// The greatest limit that any node ever had.
    greatest_limit: usize,
    longest_lease: Time,
    /// The last call of each node that was carried out.
    words: HashMap<String, Word>,
    tokens: BTreeSet<u64>,
    /// The highest that anybody was given here, with the hops.
    highest: u64,
    /// No over-limit is held against anybody before then: the backend was flushed.
    excused_until: Time,
    /// Thrown out by hand.
    evicted: HashSet<(String, u64)>,
    seen: Seen,
}

/// A node.
struct Peer {
    node: Node,
    events: Arc<Events>,
    state: State<Ends>,
    health: Health,
    limit: u32,
    lease: Duration,
    alive: bool,
    paused: bool,
    /// What came while it was paused.
    inbox: Vec<Happening>,
    last_number: u64,
    call: Option<Flight>,
    wakes_at: Option<Time>,
    /// Which caller stands in the line, by its number there.
    line: BTreeMap<u64, usize>,
    tries: BTreeMap<u64, usize>,
    /// The guards that are out.
    guards: BTreeMap<Hold, u32>,
    /// Those that go back by themselves unless they are claimed.
    reserved: HashSet<Hold>,
    /// What the backend may know of: named in a call, and no leave of it was answered. With the time of its first leave.
    known: BTreeMap<u64, Option<Time>>,
    /// Was said, and not answered.
    unheard: Vec<u64>,
    released: HashSet<u64>,
    releases: Vec<(Time, oneshot::Receiver<bool>)>,
}

#[derive(Clone, Copy, Debug)]
struct Word {
    number: u64,
    limit: u32,
    /// So long the node is alive by it.
    until: Duration,
}

struct Flight {
    call: Call,
    sent: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Caller {
    answers: u32,
    gave_up: bool,
}

/// A caller's end.
#[derive(Debug)]
struct Ends {
    caller: usize,
    terms: Terms,
}

#[derive(Debug)]
enum Event {
    /// Somebody does something.
    Users,
    Execute {
        node: Node,
        events: Arc<Events>,
        call: Call,
    },
    At(usize, Node, Happening),
}

/// What happens to a node.
#[derive(Debug)]
enum Happening {
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
    fn run(seed: u64, steps: u64) -> Seen {
        let mut world = Self::new(seed);
        world.at(0, Event::Users);
        for _ in 0..steps {
            world.step();
        }
        world.calm_down();
        world.seen.events = world.last_event;
        world.seen
    }

    fn new(seed: u64) -> Self {
        let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut level = |most: u64| {
            if rng.chance(400) {
                0
            } else {
                rng.below(most + 1)
            }
        };
        let mut faults = Faults {
            request_lost: level(150),
            reply_lost: level(150),
            slow: level(200),
            late: level(200),
            twice: level(80),
            push_lost: level(300),
            push_late: level(400),
            push_twice: level(200),
            pause: level(20),
            kill: level(4),
            stall: level(6),
            flush: level(4),
            evict: level(10),
            limits: level(10),
            resync: level(10),
            close: level(2),
            long_holds: level(400),
            pump_gone: level(20),
            no_turn: level(900),
        };
        // A flush and an eviction excuse much: most runs go without.
        if !seed.is_multiple_of(4) {
            faults.flush = 0;
        }
        if seed % 4 != 1 {
            faults.evict = 0;
        }
        // The strictest bound holds where everybody has the same limit.
        if !seed.is_multiple_of(2) {
            faults.limits = 0;
        }
        if seed % 8 == 7 {
            faults.push_lost = 1000;
        }
        let brief = seed % 9 >= 7;
        if brief {
            // All the while some are held for so long that they are renewed, and limits change under what lingers.
            faults.long_holds = faults.long_holds.min(20);
            faults.limits *= 10;
        }
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
            queue: Queue::limit(b"simulated").expect("a fine name"),
            room: Room::new(Duration::from_micros(EPOCH), 0),
            stalled_until: 0,
            nodes: Vec::new(),
            callers: Vec::new(),
            greatest_limit: 0,
            longest_lease: 0,
            words: HashMap::new(),
            tokens: BTreeSet::new(),
            highest: 0,
            excused_until: 0,
            evicted: HashSet::new(),
            seen: Seen::default(),
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
            world.greatest_limit = world.greatest_limit.max(limit as usize);
            world.longest_lease = world.longest_lease.max(lease * MILLI);
            let peer = world.peer(limit, Duration::from_millis(lease));
            world.nodes.push(peer);
        }
        world
    }

    fn peer(&mut self, limit: u32, lease: Duration) -> Peer {
        Peer {
            node: Node::of_this_process(),
            events: Arc::new(Events::new(|_| ())),
            state: State::new(limit, lease, self.strict, self.shortcuts, self.instant()),
            health: Health::new(OUTAGE_AFTER),
            limit,
            lease,
            alive: true,
            paused: false,
            inbox: Vec::new(),
            last_number: 0,
            call: None,
            wakes_at: None,
            line: BTreeMap::new(),
            tries: BTreeMap::new(),
            guards: BTreeMap::new(),
            reserved: HashSet::new(),
            known: BTreeMap::new(),
            unheard: Vec::new(),
            released: HashSet::new(),
            releases: Vec::new(),
        }
    }

    // --- time ---

    fn instant(&self) -> Instant {
        self.base + Duration::from_micros(self.now)
    }

    fn server_time(&self) -> Duration {
        Duration::from_micros(EPOCH + self.now)
    }

    fn at(&mut self, time: Time, event: Event) {
        self.last_event += 1;
        let tie = self.rng.next();
        self.events
            .insert((time.max(self.now), tie, self.last_event), event);
    }

    fn at_node(&mut self, time: Time, node: usize, what: Happening) {
        let name = self.nodes[node].node.clone();
        self.at(time, Event::At(node, name, what));
    }

    fn step(&mut self) {
        let Some(((time, _, _), event)) = self.events.pop_first() else {
            return;
        };
        self.now = time;
        match event {
            Event::Users => {
                self.users();
                let pause = match self.rng.below(10) {
                    _ if self.brief => 4 * MILLI,
                    0 => 200 * MILLI,
                    _ => 30 * MILLI,
                };
                let next = self.now + self.rng.below(pause);
                self.at(next, Event::Users);
            }
            Event::Execute { .. } if time < self.stalled_until => {
                self.at(self.stalled_until, event)
            }
            Event::Execute { node, events, call } => self.execute(node, events, call),
            Event::At(node, name, what) => self.reach(node, &name, what),
        }
        self.look();
    }

    // --- nodes ---

    /// Something happens to a node, unless it is another by now.
    fn reach(&mut self, n: usize, name: &Node, what: Happening) {
        let peer = &mut self.nodes[n];
        if peer.node != *name || !peer.alive {
            return;
        }
        if peer.paused {
            if !matches!(what, Happening::Resume) {
                peer.inbox.push(what);
                return;
            }
            note!(self, "{n}: goes on");
            let peer = &mut self.nodes[n];
            peer.paused = false;
            let mut inbox = std::mem::take(&mut peer.inbox);
            // In any order, and with the pump before, after or in between.
            inbox.push(Happening::Wake);
            while !inbox.is_empty() {
                let next = self.rng.below(inbox.len() as u64) as usize;
                let next = inbox.swap_remove(next);
                self.happen(n, next);
                self.look();
            }
            return;
        }
        self.happen(n, what);
    }

    fn happen(&mut self, n: usize, what: Happening) {
        let now = self.instant();
        let peer = &mut self.nodes[n];
        match what {
            Happening::Wake => {
                if peer.wakes_at.is_none_or(|at| at > self.now) {
                    return;
                }
                peer.wakes_at = None;
            }
            Happening::Resume => {}
            Happening::Reply(number, reply) => {
                let Some(flight) = peer.call.take_if(|flight| flight.call.number == number) else {
                    return;
                };
                match reply {
                    Reply::Done(outcome) => self.hear(n, &flight, &outcome),
                    Reply::Stale => self.unheard(n, &flight, "stale"),
                }
            }
            Happening::GiveUp(number) => {
                let Some(flight) = peer.call.take_if(|flight| flight.call.number == number) else {
                    return;
                };
                self.unheard(n, &flight, "given up");
            }
            Happening::Push(grant) => {
                note!(self, "{n}: is told that {} is granted", grant.ticket);
                self.seen.pushed += 1;
                self.nodes[n].known.entry(grant.ticket).or_default();
                let news = self.nodes[n].state.pushed(grant, now);
                self.deliver(n, news);
            }
            Happening::Release(hold) => self.release(n, hold),
            Happening::Claim(hold) => {
                let claimed = peer.state.tickets.claim(hold, now);
                note!(self, "{n}: claims {hold:?}: {claimed}");
                if claimed {
                    self.nodes[n].reserved.remove(&hold);
                }
                self.seen.lapsed += u64::from(!claimed);
            }
            Happening::Rearm(hold) => {
                let rearmed = peer.state.tickets.rearm(hold, now);
                note!(self, "{n}: rearms {hold:?}: {rearmed}");
            }
        }
        self.pump(n);
    }

    /// As the pump goes on after anything that happened.
    fn pump(&mut self, n: usize) {
        loop {
            let now = self.instant();
            let peer = &mut self.nodes[n];
            if !peer.alive || peer.paused || peer.call.is_some() {
                return;
            }
            let _ = peer.state.long_wait(now);
            let turn = !self.rng.chance(self.faults.no_turn);
            let (step, news) = peer.state.next_step(now, turn);
            if let Step::Wait(until) | Step::Turn(until) = step {
                assert!(until > now, "the pump would run in circles");
                let asks = peer.state.waiters.has_to_ask();
                assert!(
                    !asks || until <= now + LONGEST_PAUSE,
                    "nobody knows that one waits"
                );
                let lingers = peer.state.tickets.lingering_ends();
                assert!(
                    lingers.is_none_or(|ends| until <= ends.max(now + LONGEST_PAUSE)),
                    "it lingers for too long"
                );
            }
            let done = match step {
                Step::Say(batch) => {
                    self.say(n, batch);
                    true
                }
                Step::Wait(until) | Step::Turn(until) => {
                    self.seen.no_turn += u64::from(matches!(step, Step::Turn(_)));
                    // A whole microsecond, never before.
                    let micros = until
                        .saturating_duration_since(self.base)
                        .as_nanos()
                        .div_ceil(1000);
                    let mut until = (micros as u64).max(self.now + 1);
                    if matches!(step, Step::Turn(_)) {
                        // Its turn may come before.
                        until = until.min(self.now + 1 + self.rng.below(2 * self.longest_lease));
                    }
                    self.nodes[n].wakes_at = Some(until);
                    self.at_node(until, n, Happening::Wake);
                    news.lost.is_empty()
                }
                Step::Idle => true,
            };
            self.deliver(n, news);
            if done {
                return;
            }
        }
    }

    fn say(&mut self, n: usize, batch: Batch) {
        let peer = &mut self.nodes[n];
        peer.last_number += 1;
        let call = Call {
            queue: self.queue.clone(),
            number: peer.last_number,
            limit: peer.state.limit,
            lease: peer.lease,
            leave: batch.leave,
            keep: batch.keep,
            enter: batch.enter,
            try_enter: batch.try_enter,
        };
        note!(
            self,
            "{n}: says {} leave {:?} keep {:?} enter {:?} try {:?}",
            call.number,
            call.leave,
            call.keep,
            call.enter,
            call.try_enter
        );
        let peer = &self.nodes[n];
        for ticket in call.keep.iter().chain(&call.enter).chain(&call.try_enter) {
            assert!(
                !peer.released.contains(ticket),
                "{ticket} was released, and is said again"
            );
            assert!(
                !call.leave.contains(ticket),
                "{ticket} is to leave, and more"
            );
        }
        for ticket in &call.keep {
            let guarded = peer.guards.keys().any(|hold| hold.ticket == *ticket);
            let lingers = peer.state.tickets.all_lingering().contains(ticket);
            assert!(guarded || lingers, "nobody holds {ticket}");
        }
        let said = call.leave.len() + call.keep.len() + call.enter.len() + call.try_enter.len();
        assert!(said <= MOST_TICKETS);
        // Whatever the backend may know of is held, wanted, or leaves.
        let (time, lease) = (self.now, peer.lease.as_micros() as u64);
        let peer = &mut self.nodes[n];
        for ticket in call.enter.iter().chain(&call.try_enter) {
            peer.known.entry(*ticket).or_default();
        }
        let state = &peer.state;
        for ticket in peer.unheard.drain(..) {
            let again = call.enter.contains(&ticket) || call.try_enter.contains(&ticket);
            let wanted = state.waiters.has_ticket(ticket) || peer.tries.contains_key(&ticket);
            assert!(
                again || !wanted || said == MOST_TICKETS,
                "{ticket} is not said again"
            );
        }
        peer.known.retain(|ticket, left| {
            if call.leave.contains(ticket) {
                left.get_or_insert(time);
                return true;
            }
            let wanted = state.waiters.has_ticket(*ticket) || peer.tries.contains_key(ticket);
            let fine = wanted || state.tickets.counts(*ticket) || said == MOST_TICKETS;
            let old = left.is_some_and(|left| left + lease <= time);
            assert!(fine || old, "nobody takes {ticket} out");
            !old
        });
        let peer = &self.nodes[n];
        let (lease, number) = (peer.lease.as_micros() as u64, call.number);
        let timeout = (500 * MILLI).min(lease / 6);
        let (node, events) = (peer.node.clone(), Arc::clone(&peer.events));
        let flight = Flight {
            call: call.clone(),
            sent: self.instant(),
        };
        self.nodes[n].call = Some(flight);
        self.at_node(self.now + timeout, n, Happening::GiveUp(number));

        let Faults {
            request_lost,
            late,
            slow,
            twice,
            ..
        } = self.faults;
        let takes = self.rng.below(4 * MILLI);
        let takes = if self.rng.chance(late) {
            self.seen.late += 1;
            timeout + self.rng.below(2 * lease)
        } else if self.rng.chance(slow) {
            self.rng.below(timeout * 3 / 2)
        } else {
            takes
        };
        if self.rng.chance(twice) {
            let later = self.now + self.rng.below(lease);
            let (node, events, call) = (node.clone(), Arc::clone(&events), call.clone());
            self.at(later, Event::Execute { node, events, call });
        }
        if !self.rng.chance(request_lost) {
            self.at(self.now + takes, Event::Execute { node, events, call });
        }
    }

    fn hear(&mut self, n: usize, flight: &Flight, outcome: &Outcome) {
        note!(
            self,
            "{n}: hears {} kept {:?} entered {:?} tried {:?} granted {:?}",
            flight.call.number,
            outcome.kept,
            outcome.entered,
            outcome.tried,
            outcome.granted
        );
        let now = self.instant();
        let peer = &mut self.nodes[n];
        peer.health.answered(now);
        let news = peer.state.hear(outcome, flight.sent, now);
        for ticket in &flight.call.leave {
            peer.known.remove(ticket);
        }
        for (ticket, answer) in flight.call.try_enter.iter().zip(&outcome.tried) {
            if !matches!(answer, Answer::Held { .. }) {
                peer.known.remove(ticket);
            }
        }
        for (ticket, answer) in flight.call.keep.iter().zip(&outcome.kept) {
            let held = matches!(answer, Answer::Held { .. });
            assert!(
                held || !peer.state.tickets.counts(*ticket),
                "{ticket} is gone"
            );
        }
        self.deliver(n, news);
    }

    fn unheard(&mut self, n: usize, flight: &Flight, why: &str) {
        note!(self, "{n}: {why}: {}", flight.call.number);
        let now = self.instant();
        let said = flight.call.enter.iter().chain(&flight.call.try_enter);
        self.nodes[n].unheard.extend(said);
        let jitter = self.rng.below(1000) as f64 / 1000.0;
        let peer = &mut self.nodes[n];
        let outage = peer.health.failed(flight.sent, now, &down());
        peer.state.unheard(jitter, Duration::ZERO, now);
        if let Some(error) = outage {
            let news = peer.state.refuse_newcomers(&error);
            self.deliver(n, news);
        }
    }

    fn deliver(&mut self, n: usize, news: News<Ends>) {
        for (ends, hold) in news.next.into_iter().chain(news.granted) {
            let now = self.instant();
            let ticket = hold.ticket;
            let tickets = &self.nodes[n].state.tickets;
            let left = tickets
                .deadline(ticket)
                .map(|until| until.saturating_duration_since(now));
            assert!(
                left >= Some(self.nodes[n].lease / 3),
                "{left:?} is left of {ticket}"
            );
            let peer = &mut self.nodes[n];
            if let Some((waiter, first)) = peer.line.first_key_value().map(|(w, c)| (*w, *c))
                && !peer.tries.values().any(|caller| *caller == ends.caller)
            {
                assert_eq!(first, ends.caller, "the oldest goes first");
                peer.line.remove(&waiter);
                let handed = hold.hop > 0;
                self.seen.handed_on += u64::from(handed);
                self.seen.passed_on += u64::from(!handed && waiter != ticket);
            } else {
                peer.tries.retain(|_, caller| *caller != ends.caller);
            }
            if hold.hop > 0 {
                self.check_limit_here(n);
            }
            self.enter(n, ends, hold);
        }
        for (ends, _) in news.refused {
            note!(self, "{n}: caller {} is refused", ends.caller);
            self.seen.refused += 1;
            let peer = &mut self.nodes[n];
            peer.line.retain(|_, caller| *caller != ends.caller);
            peer.tries.retain(|_, caller| *caller != ends.caller);
            self.answer(ends.caller);
        }
        for (answer, held) in news.answers {
            answer.send(held).expect("we listen");
        }
        for (hold, why) in news.lost {
            note!(self, "{n}: {hold:?} is lost: {why:?}");
            self.seen.lost += 1;
            assert!(!self.nodes[n].state.tickets.is_valid(hold, self.instant()));
        }
    }

    /// What goes from one to the next here fits the limit of this node.
    fn check_limit_here(&self, n: usize) {
        let state = &self.nodes[n].state;
        let in_use = state.tickets.in_use();
        assert!(
            in_use <= state.limit as usize,
            "{n}: {in_use} in use at a limit of {}",
            state.limit
        );
    }

    /// A caller is in.
    fn enter(&mut self, n: usize, ends: Ends, hold: Hold) {
        note!(self, "{n}: caller {} holds {hold:?}", ends.caller);
        self.seen.granted += 1;
        let peer = &mut self.nodes[n];
        let ticket = hold.ticket;
        assert!(!peer.released.contains(&ticket), "{ticket} was released");
        let shared = peer.guards.keys().any(|other| other.ticket == ticket);
        assert!(!shared, "{ticket} has a guard already");
        peer.guards.insert(hold, 1);
        if self.strict {
            let token = peer.state.tickets.token(hold).expect("it is held");
            let id = (peer.node.as_str().to_owned(), ticket);
            let excused = self.now < self.excused_until || self.evicted.contains(&id);
            assert!(token > self.highest || excused, "tokens rise");
            self.highest = self.highest.max(token);
        }
        self.answer(ends.caller);
        self.hold(n, hold, ends.terms);
    }

    fn answer(&mut self, caller: usize) {
        let caller = &mut self.callers[caller];
        caller.answers += 1;
        assert!(caller.answers == 1 && !caller.gave_up, "one answer each");
    }

    /// Somebody got in, and will do one thing or another.
    fn hold(&mut self, n: usize, hold: Hold, terms: Terms) {
        if terms.reserve.is_some() {
            self.nodes[n].reserved.insert(hold);
        }
        if self.rng.chance(30) {
            // The caller had gone at this very moment.
            return self.at_node(self.now, n, Happening::Release(hold));
        }
        let longest = self.longest_lease;
        let time = match self.rng.below(20) {
            _ if self.rng.chance(self.faults.long_holds) => self.rng.below(2 * longest),
            0 if !self.calm && !self.brief => self.rng.below(2 * longest),
            1..5 => 0,
            _ if self.brief => self.rng.below(4 * MILLI),
            _ => self.rng.below(60 * MILLI),
        };
        if terms.reserve.is_some() {
            let claims = self.now + self.rng.below(120 * MILLI);
            let what = match self.rng.below(3) {
                0 => Happening::Rearm(hold),
                _ => Happening::Claim(hold),
            };
            self.at_node(claims, n, what);
        }
        let now = self.instant();
        if self.rng.chance(100) && self.nodes[n].state.tickets.share(hold, now) {
            *self.nodes[n].guards.entry(hold).or_default() += 1;
            let until = self.now + self.rng.below(100 * MILLI);
            self.at_node(until, n, Happening::Release(hold));
        }
        self.at_node(self.now + time, n, Happening::Release(hold));
    }

    fn release(&mut self, n: usize, hold: Hold) {
        note!(self, "{n}: a guard of {hold:?} is dropped");
        let now = self.instant();
        let (answer, answered) = oneshot::channel();
        let answer = self.rng.chance(500).then_some(answer);
        let peer = &mut self.nodes[n];
        if answer.is_some() {
            peer.releases.push((self.now, answered));
        }
        let guards = peer.guards.get_mut(&hold).expect("a guard");
        *guards -= 1;
        if *guards == 0 {
            peer.guards.remove(&hold);
        }
        let lingers = answer.is_none() && peer.state.linger(hold, now).is_some();
        let news = match lingers {
            true => News::default(),
            false => peer.state.drop_guard(hold, now, answer),
        };
        if !peer.state.tickets.is_held(hold.ticket) {
            peer.released.insert(hold.ticket);
        }
        self.deliver(n, news);
    }

    // --- the backend ---

    fn execute(&mut self, node: Node, events: Arc<Events>, call: Call) {
        let time = self.server_time();
        let before = self.room.held().count();
        let last = self.words.get(node.as_str()).copied();
        let (reply, pushes) = self.room.exchange(&node, &events, &call, time);
        note!(
            self,
            "   {} is carried out: {}, {} pushes",
            call.number,
            if matches!(reply, Reply::Stale) {
                "stale"
            } else {
                "done"
            },
            pushes.len()
        );
        if matches!(reply, Reply::Stale) {
            assert_eq!(
                before,
                self.room.held().count(),
                "a late call changes nothing"
            );
        } else {
            let until = time + call.lease;
            let known = last.filter(|last| last.until > time);
            assert!(
                known.is_none_or(|last| last.number <= call.number),
                "late, and carried out"
            );
            let word = Word {
                number: call.number,
                limit: call.limit,
                until,
            };
            self.words.insert(node.as_str().to_owned(), word);
        }
        self.check_grants();
        if let Reply::Done(outcome) = &reply {
            let said = call.keep.iter().chain(&call.enter).chain(&call.try_enter);
            let answers = outcome.kept.iter().chain(&outcome.entered);
            for (ticket, answer) in said.zip(answers.chain(&outcome.tried)) {
                let held = self.room.permit(&node, *ticket).is_some();
                let says_so = matches!(answer, Answer::Held { .. });
                assert!(held || !says_so, "{ticket}: {answer:?}");
            }
        }
        self.push(
            pushes
                .into_iter()
                .map(|push| (push.to, push.grant))
                .collect(),
        );
        let here = self.nodes.iter().position(|peer| peer.node == node);
        if let Some(n) = here
            && !self.rng.chance(self.faults.reply_lost)
        {
            let slow = self.rng.chance(self.faults.slow);
            let takes = self.rng.below(if slow { 300 * MILLI } else { 4 * MILLI });
            self.at_node(self.now + takes, n, Happening::Reply(call.number, reply));
        }
    }

    fn push(&mut self, pushes: Vec<(Arc<Events>, Grant)>) {
        for (to, grant) in pushes {
            let n = self
                .nodes
                .iter()
                .position(|peer| Arc::ptr_eq(&peer.events, &to));
            let Some(n) = n else { continue };
            let Faults {
                push_lost,
                push_late,
                push_twice,
                ..
            } = self.faults;
            for _ in 0..1 + u64::from(self.rng.chance(push_twice)) {
                if self.rng.chance(push_lost) {
                    continue;
                }
                let most = match self.rng.chance(push_late) {
                    true if self.rng.chance(300) => 2 * self.longest_lease,
                    true => 400 * MILLI,
                    false => 4 * MILLI,
                };
                let time = self.now + self.rng.below(most);
                self.at_node(time, n, Happening::Push(grant));
            }
        }
    }

    /// Who has been let in was alive, there was room by his own limit, and his token is above all before.
    fn check_grants(&mut self) {
        let before = self.tokens.last().copied().unwrap_or(0);
        let all = self.room.held().count();
        let mut new: Vec<_> = (self.room.held())
            .filter(|(_, _, _, token)| !self.tokens.contains(token))
            .map(|(node, _, deadline, token)| (token, node.as_str().to_owned(), deadline))
            .collect();
        new.sort_unstable();
        for (n, (token, node, deadline)) in new.iter().enumerate() {
            assert!(*token > before, "tokens rise: {token} after {before}");
            let Word { limit, until, .. } = self.words[node];
            let in_use = all - new.len() + n;
            assert!(
                in_use < limit as usize,
                "{in_use} in use at a limit of {limit}"
            );
            assert!(until > self.server_time(), "granted to the dead");
            assert_eq!(*deadline, until, "a lease from its node's last word");
        }
        self.tokens
            .extend(new.into_iter().map(|(token, _, _)| token));
    }

    // --- what users and fate do ---

    fn users(&mut self) {
        let faults = self.faults;
        for _ in 0..self.rng.below(4) {
            self.come();
        }
        if self.rng.chance(200) {
            self.give_up();
        }
        let n = self.rng.below(self.nodes.len() as u64) as usize;
        if self.rng.chance(faults.pause) {
            self.pause(n);
        }
        if self.rng.chance(faults.kill) {
            self.kill(n);
        }
        if self.rng.chance(faults.stall) {
            self.stalled_until = self.now + self.rng.below(2 * self.longest_lease);
            note!(
                self,
                "   the backend stalls for {} ms",
                (self.stalled_until - self.now) / MILLI
            );
        }
        if self.rng.chance(faults.flush) {
            self.flush();
        }
        if self.rng.chance(faults.evict) {
            self.evict();
        }
        let peer = &mut self.nodes[n];
        if !peer.alive || peer.paused {
            return;
        }
        if self.rng.chance(faults.limits) {
            let most = [4, 64][usize::from(self.brief && self.rng.chance(500))];
            let limit = 1 + self.rng.below(most) as u32;
            note!(self, "{n}: has the limit {limit} now");
            self.greatest_limit = self.greatest_limit.max(limit as usize);
            self.nodes[n].limit = limit;
            self.nodes[n].state.set_limit(limit);
            self.pump(n);
        }
        if self.rng.chance(faults.resync) {
            note!(self, "{n}: listens anew");
            self.nodes[n].state.resync();
            self.pump(n);
        }
        if self.rng.chance(faults.pump_gone) && self.nodes[n].call.is_some() {
            note!(
                self,
                "{n}: the pump goes with its runtime, and another comes"
            );
            if let Some(Flight { call, .. }) = self.nodes[n].call.take() {
                self.nodes[n]
                    .unheard
                    .extend(call.enter.iter().chain(&call.try_enter));
            }
            self.pump(n);
        }
        if self.rng.chance(faults.close) {
            note!(self, "{n}: takes everything back");
            let news = self.nodes[n].state.close(&down());
            self.deliver(n, news);
            self.pump(n);
        }
    }

    fn come(&mut self) {
        let n = self.rng.below(self.nodes.len() as u64) as usize;
        let now = self.instant();
        let peer = &mut self.nodes[n];
        if !peer.alive || peer.paused {
            return;
        }
        if peer.health.outage_at(now).is_some() {
            peer.state.probe();
            return self.pump(n);
        }
        if peer.state.waiters.len() > 15 {
            return;
        }
        let tries = self.rng.chance(150);
        if tries && !peer.state.waiters.is_empty() {
            return;
        }
        let terms = Terms {
            reserve: (self.rng.chance(150))
                .then(|| Duration::from_micros(self.rng.below(200 * MILLI))),
            max_hold: (self.rng.chance(100))
                .then(|| Duration::from_micros(self.rng.below(1500 * MILLI))),
        };
        let caller = self.callers.len();
        self.callers.push(Caller {
            answers: 0,
            gave_up: false,
        });
        note!(
            self,
            "{n}: caller {caller} comes, tries: {tries}, {terms:?}"
        );
        let peer = &mut self.nodes[n];
        if let Some(hold) = peer.state.take_lingering(terms, now) {
            self.seen.lingered += 1;
            self.check_limit_here(n);
            self.enter(n, Ends { caller, terms }, hold);
            return self.pump(n);
        }
        peer.last_number += 1;
        let ticket = peer.last_number;
        if tries {
            peer.tries.insert(ticket, caller);
            peer.state.try_join(ticket, Ends { caller, terms });
        } else {
            peer.line.insert(ticket, caller);
            peer.state.join(ticket, now, Ends { caller, terms });
        }
        self.pump(n);
    }

    fn give_up(&mut self) {
        let n = self.rng.below(self.nodes.len() as u64) as usize;
        let peer = &mut self.nodes[n];
        if !peer.alive || peer.paused {
            return;
        }
        let all: Vec<_> = peer
            .line
            .iter()
            .chain(&peer.tries)
            .map(|(w, c)| (*w, *c))
            .collect();
        if all.is_empty() {
            return;
        }
        // The first ones in the line more often: there it is most delicate.
        let which = self
            .rng
            .below(all.len() as u64)
            .min(self.rng.below(all.len() as u64));
        let (waiter, caller) = all[which as usize];
        note!(self, "{n}: caller {caller} gives up");
        let ends = self.nodes[n].state.give_up(waiter).expect("it waits");
        assert_eq!(ends.caller, caller);
        self.seen.cancelled += 1;
        self.callers[caller].gave_up = true;
        self.nodes[n].line.remove(&waiter);
        self.nodes[n].tries.remove(&waiter);
        self.pump(n);
    }

    fn pause(&mut self, n: usize) {
        let lease = self.nodes[n].lease.as_micros() as u64;
        let peer = &mut self.nodes[n];
        if !peer.alive || peer.paused {
            return;
        }
        peer.paused = true;
        let time = self.rng.below(2 * lease);
        note!(self, "{n}: is paused for {} ms", time / MILLI);
        self.at_node(self.now + time, n, Happening::Resume);
    }

    /// A process dies, and another takes its place.
    fn kill(&mut self, n: usize) {
        note!(self, "{n}: dies");
        let (limit, lease) = (self.nodes[n].limit, self.nodes[n].lease);
        self.nodes[n] = self.peer(limit, lease);
    }

    fn flush(&mut self) {
        note!(self, "   the backend forgets everything");
        let last_token = self.room.last_token();
        self.room = Room::new(self.server_time(), last_token);
        self.words.clear();
        self.excused_until = self.now + 4 * self.longest_lease;
    }

    fn evict(&mut self) {
        let held: Vec<_> = (self.room.held())
            .map(|(node, ticket, _, _)| (node.clone(), ticket))
            .collect();
        if held.is_empty() {
            return;
        }
        let (node, ticket) = &held[self.rng.below(held.len() as u64) as usize];
        note!(self, "   {ticket} of {} is thrown out", self.who(node));
        let (found, pushes) = self.room.evict(&node.ticket(*ticket), self.server_time());
        assert!(found);
        self.evicted.insert((node.as_str().to_owned(), *ticket));
        self.check_grants();
        self.push(
            pushes
                .into_iter()
                .map(|push| (push.to, push.grant))
                .collect(),
        );
    }

    fn who(&self, node: &Node) -> String {
        let n = self.nodes.iter().position(|peer| peer.node == *node);
        n.map_or("a dead node".to_owned(), |n| n.to_string())
    }

    // --- what must hold ---

    /// Looks at everything from outside.
    fn look(&mut self) {
        let now = self.instant();
        let mut valid = 0;
        for (n, peer) in self
            .nodes
            .iter_mut()
            .enumerate()
            .filter(|(_, peer)| peer.alive)
        {
            for hold in peer.guards.keys() {
                let (tickets, ticket) = (&peer.state.tickets, &hold.ticket);
                assert!(
                    tickets.is_held(*ticket) || peer.reserved.contains(hold),
                    "{ticket} has left under its guard"
                );
                if !tickets.is_valid(*hold, now) {
                    let fine = self.now < self.calm_since + 4 * self.longest_lease;
                    assert!(
                        fine || tickets.lost(*hold).is_some(),
                        "{ticket} is not renewed in time"
                    );
                    continue;
                }
                if self.now < self.excused_until
                    || self
                        .evicted
                        .contains(&(peer.node.as_str().to_owned(), *ticket))
                {
                    continue;
                }
                valid += 1;
                let believed = tickets.deadline(*ticket).expect("it is held");
                let believed = believed.saturating_duration_since(self.base);
                let at_backend = self.room.permit(&peer.node, *ticket);
                let until = Duration::from_micros(EPOCH) + believed;
                assert!(
                    at_backend.is_some_and(|(deadline, _)| deadline >= until),
                    "{n} believes that it holds {ticket} until {until:?}, at the backend: {at_backend:?}"
                );
                let token = tickets.token(*hold);
                assert!(
                    !self.strict || token == at_backend.map(|(_, token)| token * 1024 + hold.hop),
                    "{n} holds {ticket} by the token {token:?}, at the backend: {at_backend:?}"
                );
            }
            let lingering = peer.state.tickets.lingering();
            assert!(!self.strict || lingering == 0, "no lock lingers");
            assert!(
                lingering == 0 || peer.line.is_empty(),
                "one lingers, and one waits"
            );
            let late = self.now.saturating_sub(peer.lease.as_micros() as u64);
            peer.releases
                .retain_mut(|(since, answer)| match answer.try_recv() {
                    Ok(_) => false,
                    Err(oneshot::error::TryRecvError::Empty) => true,
                    Err(oneshot::error::TryRecvError::Closed) => {
                        assert!(*since <= late, "a release was never answered");
                        false
                    }
                });
        }
        assert!(
            valid <= self.greatest_limit,
            "{valid} hold at a limit of {}",
            self.greatest_limit
        );
    }

    /// No more faults, and nobody comes any more: everybody is served, and nothing is left.
    fn calm_down(&mut self) {
        note!(self, "   no more faults");
        self.faults = Faults::default();
        self.calm = true;
        self.calm_since = self.now;
        self.stalled_until = self.now;
        self.events
            .retain(|_, event| !matches!(event, Event::Users));
        for n in 0..self.nodes.len() {
            if self.nodes[n].paused {
                self.at_node(self.now, n, Happening::Resume);
            }
        }
        // By then the last late call has run, and what it did has run out. Whoever waits has been served.
        let lease = self.longest_lease;
        self.go_on_until(self.now + 10 * lease);
        for (n, peer) in self.nodes.iter().enumerate() {
            assert!(
                peer.line.is_empty(),
                "{n}: callers wait for ever: {:?}",
                peer.line
            );
            assert!(
                peer.tries.is_empty(),
                "{n}: they try for ever: {:?}",
                peer.tries
            );
        }
        // Somebody comes again and again for two leases: that clears away the dead.
        let end = self.now + 3 * lease;
        while self.now < end {
            let n = self.rng.below(self.nodes.len() as u64) as usize;
            self.nodes[n].last_number += 1;
            let (ticket, caller, now) = (
                self.nodes[n].last_number,
                self.callers.len(),
                self.instant(),
            );
            let terms = Terms::default();
            self.callers.push(Caller {
                answers: 0,
                gave_up: false,
            });
            self.nodes[n].line.insert(ticket, caller);
            self.nodes[n]
                .state
                .join(ticket, now, Ends { caller, terms });
            self.pump(n);
            self.go_on_until(self.now + 200 * MILLI);
        }
        self.go_on_until(self.now + 2 * lease);
        let held: Vec<_> = self
            .room
            .held()
            .map(|(node, ticket, ..)| (self.who(node), ticket))
            .collect();
        assert!(held.is_empty(), "left at the backend: {held:?}");
        assert_eq!(
            self.room.inspect(self.server_time()).waiting,
            0,
            "left at the backend"
        );
        for (n, peer) in self.nodes.iter_mut().enumerate() {
            assert!(peer.state.is_idle(), "{n} is not idle");
            assert!(peer.guards.is_empty() && peer.releases.is_empty());
        }
        assert!(self.callers.iter().all(|caller| caller.answers <= 1));
    }

    fn go_on_until(&mut self, end: Time) {
        while let Some(((time, _, _), _)) = self.events.first_key_value()
            && *time <= end
        {
            self.step();
        }
        self.now = end;
    }
}

impl Seen {
    fn add(&mut self, other: Self) {
        self.events += other.events;
        self.granted += other.granted;
        self.refused += other.refused;
        self.pushed += other.pushed;
        self.cancelled += other.cancelled;
        self.lost += other.lost;
        self.late += other.late;
        self.lapsed += other.lapsed;
        self.passed_on += other.passed_on;
        self.handed_on += other.handed_on;
        self.lingered += other.lingered;
        self.no_turn += other.no_turn;
    }
}

impl HasTerms for Ends {
    fn terms(&self) -> Terms {
        self.terms
    }
}

fn down() -> Error {
    Error::new(ErrorKind::Unavailable, "down")
}

/// SplitMix64: the same everywhere and for ever.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `end`, which may be 0.
    fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    fn chance(&mut self, thousandths: u64) -> bool {
        self.below(1000) < thousandths
    }
}
