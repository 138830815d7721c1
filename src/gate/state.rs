//! What a gate knows and what it decides: what to say next, and what an answer means ([`answers`]).
//!
//! Pure: time comes as an argument, and nothing is sent from here. What callers are to be told is returned.

mod answers;

use super::hands::{Hands, Here, Shortcuts};
use super::health::Trouble;
use super::held::{Hold, Terms};
use super::leaves::Answer;
use super::stats::Stats;
use super::tickets::Tickets;
use super::tries::Tries;
use super::waiters::{Departed, Waiters};
use crate::backend::MOST_TICKETS;
use crate::error::{Error, ErrorKind};
use std::time::Duration;
use tokio::time::Instant;

/// A wait of this length is worth a line in the log, and then one in each period.
const LONG_WAIT: Duration = Duration::from_secs(2);
const LONG_WAIT_AGAIN: Duration = Duration::from_secs(10);

/// The place of a waiter who went in on another's ticket is given up with whatever is said until then.
const UNHURRIED: Duration = Duration::from_millis(50);

/// Everything a gate knows about its name. `C` is a caller's end.
#[derive(Debug)]
pub(crate) struct State<C> {
    pub(crate) limit: u32,
    pub(crate) tickets: Tickets,
    pub(crate) waiters: Waiters<C>,
    /// Those who do not want to wait.
    tries: Tries<C>,
    /// What the call under way carries.
    said: Option<Batch>,
    lease: Duration,
    hands: Hands,
    /// When everything that waits is said again.
    repeat_at: Instant,
    /// By when the backend wants to be asked.
    look_at: Option<Instant>,
    /// A call has to go out even if there is nothing to say.
    probe: bool,
    /// Calls in a row that were not answered, and when the next may go out.
    failures: u32,
    retry_at: Option<Instant>,
    /// About this name nothing was answered, whatever becomes of others.
    pub(crate) trouble: Option<Trouble>,
    /// No line about a long wait before then.
    quiet_until: Option<Instant>,
    pub(crate) stats: Stats,
}

/// What a call carries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Batch {
    pub(crate) leave: Vec<u64>,
    pub(crate) keep: Vec<u64>,
    pub(crate) enter: Vec<u64>,
    pub(crate) try_enter: Vec<u64>,
}

/// What to do now.
#[derive(Debug)]
pub(crate) enum Step {
    Say(Batch),
    /// There is something to say that nobody waits for: permits are held still. It has its turn, and is looked at again
    /// then at the latest.
    Turn(Instant),
    /// Nothing before then.
    Wait(Instant),
    /// Nothing at all: the gate is idle.
    Idle,
}

/// What follows from something that happened.
#[derive(Debug)]
pub(crate) struct News<C> {
    /// This caller holds a permit now, from hand to hand.
    pub(crate) next: Option<(C, Hold)>,
    /// These callers hold a permit now.
    pub(crate) granted: Vec<(C, Hold)>,
    pub(crate) refused: Vec<(C, Error)>,
    /// These permits are lost.
    pub(crate) lost: Vec<(Hold, ErrorKind)>,
    /// What releases are told.
    pub(crate) answers: Vec<(Answer, bool)>,
    /// Releases that nobody has answered.
    pub(crate) unanswered: Vec<Answer>,
}

// === impl State ===

impl<C: HasTerms> State<C> {
    /// `strict`: a permit whose deadline passes unconfirmed is lost at once.
    pub(crate) fn new(
        limit: u32,
        lease: Duration,
        strict: bool,
        shortcuts: Shortcuts,
        now: Instant,
    ) -> Self {
        Self {
            limit,
            tickets: Tickets::new(lease, strict),
            waiters: Waiters::default(),
            tries: Tries::default(),
            said: None,
            lease,
            hands: Hands::new(shortcuts, now),
            repeat_at: now,
            look_at: None,
            probe: false,
            failures: 0,
            retry_at: None,
            trouble: None,
            quiet_until: None,
            stats: Stats::default(),
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        Stats {
            limit: self.limit,
            in_use: self.tickets.in_use(),
            lingering: self.tickets.lingering(),
            waiting: self.waiters.len() + self.tries.len(),
            ..self.stats
        }
    }

    /// Nobody holds, waits or leaves.
    pub(crate) fn is_quiet(&self) -> bool {
        self.tickets.is_empty() && self.waiters.is_empty() && self.tries.is_empty()
    }

    /// There is nothing to do now or later.
    pub(crate) fn is_idle(&self) -> bool {
        self.is_quiet() && !self.probe
    }

    // --- what callers do ---

    /// A caller joins the line.
    pub(crate) fn join(&mut self, ticket: u64, now: Instant, caller: C) {
        if self.waiters.is_empty() {
            self.repeat_at = now + self.lease / 3;
        }
        if !self.waiters.has_to_ask() {
            self.hands.first_newcomer(now);
        }
        self.waiters.join(ticket, now, caller);
    }

    /// A caller tries, without joining the line.
    pub(crate) fn try_join(&mut self, ticket: u64, caller: C) {
        self.tries.join(ticket, caller);
    }

    /// A caller gives up. `None` if it was served already.
    pub(crate) fn give_up(&mut self, waiter: u64) -> Option<C> {
        if let Some(departed) = self.tries.take(waiter) {
            return Some(self.depart(departed, None));
        }
        let departed = self.waiters.give_up(waiter)?;
        Some(self.depart(departed, None))
    }

    fn depart(&mut self, departed: Departed<C>, by: Option<Instant>) -> C {
        if let Some(ticket) = departed.known_ticket {
            self.tickets
                .leaves
                .leave_line(ticket, departed.standing, by);
        }
        departed.caller
    }

    pub(crate) fn set_limit(&mut self, limit: u32) {
        if self.limit != limit {
            self.limit = limit;
            self.hands.forget_room();
            // It may be in the way now.
            self.tickets.end_all_lingering();
            // Whoever waits here may get in by it: the backend has to be told.
            self.waiters.ask_oldest(1);
        }
    }

    /// Somebody wants to know whether the backend answers.
    pub(crate) fn probe(&mut self) {
        self.probe = true;
    }

    // --- from hand to hand ---

    /// A guard is gone. If it was the last one, the oldest who waits here goes in on its ticket, or the ticket lingers or
    /// leaves. `answer` hears whether the permit was held until then.
    pub(crate) fn drop_guard(
        &mut self,
        hold: Hold,
        now: Instant,
        answer: Option<Answer>,
    ) -> News<C> {
        // What is lost by now is lost, even if nobody has looked yet and the backend still knows it.
        let mut news = self.expire(now);
        let known = match self.hand_on(hold, now) {
            Some(next) => {
                news.next = Some(next);
                answer.map(|answer| (answer, true))
            }
            None => self.tickets.drop_guard(hold, now, answer),
        };
        news.answers.extend(known);
        news
    }

    /// The oldest who waits here goes in on a ticket whose last guard is gone, if he may.
    fn hand_on(&mut self, hold: Hold, now: Instant) -> Option<(C, Hold)> {
        if self.waiters.is_empty() || !self.hands.may_give(self.here()) {
            return None;
        }
        let staying = self.tickets.may_stay(hold, now)?;
        if !self.hands.may_hop(&staying, now) {
            return None;
        }
        let departed = self.waiters.take_oldest()?;
        let next = self.depart(departed, Some(now + UNHURRIED));
        let handed = self.tickets.hand_on(hold.ticket, now, next.terms())?;
        self.stats.granted += 1;
        Some((next, handed))
    }

    /// A guard is gone, without a word: the quick way for what happens most. Until when its permit lingers, if it does.
    #[inline]
    pub(crate) fn linger(&mut self, hold: Hold, now: Instant) -> Option<Instant> {
        let until = self.hands.may_linger(self.here(), now)?;
        if !self.waiters.is_empty() || !self.tickets.linger(hold, now, until) {
            return None;
        }
        self.hands.note_linger(until);
        Some(until)
    }

    #[inline]
    fn here(&self) -> Here {
        Here {
            limit: self.limit,
            in_use: self.tickets.in_use(),
        }
    }

    #[inline]
    pub(crate) fn has_lingering(&self) -> bool {
        self.tickets.lingering() > 0
    }

    /// A permit that lingers, for somebody who comes at this moment.
    // Always inline, as what it calls: a result that goes by memory makes a request through a layer some percent slower.
    #[inline(always)]
    pub(crate) fn take_lingering(&mut self, terms: Terms, now: Instant) -> Option<Hold> {
        self.tickets.end_lingering(now);
        let hold = self.tickets.take_lingering(now, terms)?;
        self.stats.granted += 1;
        Some(hold)
    }

    /// Nothing lingers any more.
    pub(crate) fn stop_lingering(&mut self) {
        self.hands.stop_lingering();
        self.tickets.end_all_lingering();
    }

    /// When to look for what has lingered for long enough. As long as something lingers now and then it is always soon,
    /// so that nobody has to see to it with each permit.
    fn linger_ends(&self) -> Option<Instant> {
        (self.tickets.lingering_ends()).or(self.hands.lingers_until())
    }

    // --- what to say ---

    /// What to do now. What became of a batch that is returned is told by [`hear`](Self::hear) or
    /// [`unheard`](Self::unheard). A pump that asks again without either has taken over from one that has gone: then all
    /// of it is said again.
    ///
    /// `turn`: what nobody waits for may be said.
    pub(crate) fn next_step(&mut self, now: Instant, turn: bool) -> (Step, News<C>) {
        self.say_again();
        let mut news = self.expire(now);
        for hold in self.tickets.end(now) {
            self.count_loss(hold, ErrorKind::HeldTooLong, &mut news);
        }
        self.tickets.end_lingering(now);
        self.hands.end_lingering(now);
        news.unanswered = self.tickets.leaves.forget_old(now);
        (self.decide(now, turn), news)
    }

    /// Loses what is lost by now for want of a confirmation.
    pub(crate) fn expire(&mut self, now: Instant) -> News<C> {
        let mut news = News::default();
        for ticket in self.tickets.expired(now) {
            self.lose(ticket, ErrorKind::Lost, &mut news);
        }
        news
    }

    fn decide(&mut self, now: Instant, turn: bool) -> Step {
        if self.is_idle() {
            return Step::Idle;
        }
        if let Some(retry_at) = self.retry_at
            && now < retry_at
        {
            let ending = self.tickets.next_ending();
            return Step::Wait(ending.map_or(retry_at, |at| at.min(retry_at)));
        }
        if self.waiters.is_empty() {
            self.look_at = None;
        } else {
            if self.repeat_at <= now {
                self.waiters.ask_oldest(usize::MAX);
                self.repeat_at = now + self.lease / 3;
            }
            if self.look_at.is_some_and(|at| at <= now) {
                self.waiters.ask_oldest(MOST_TICKETS);
                self.look_at = None;
            }
        }
        if !self.has_to_speak(now) {
            Step::Wait(self.next_due(now))
        } else if turn || self.has_news(now) {
            Step::Say(self.batch(now))
        } else {
            Step::Turn(self.next_due(now))
        }
    }

    /// When there is something to do next.
    pub(crate) fn due(&self, now: Instant) -> Instant {
        if self.is_idle() || self.has_to_speak(now) {
            now
        } else {
            self.next_due(now)
        }
    }

    fn has_to_speak(&self, now: Instant) -> bool {
        self.has_news(now) || self.tickets.renewal_due(now)
    }

    /// Somebody waits for what there is to say.
    fn has_news(&self, now: Instant) -> bool {
        self.probe
            || self.tickets.renewal_overdue(now)
            || self.tickets.leaves.are_due(now)
            || self.tries.has_to_ask()
            || self.next_ask(now).is_some_and(|at| at <= now)
    }

    /// When those who wait are to be named, if any are.
    fn next_ask(&self, now: Instant) -> Option<Instant> {
        let asks = self.waiters.has_to_ask();
        asks.then(|| self.hands.ask_at(self.here(), now))
    }

    /// Everything there is to say, as far as it fits: what is held before what leaves before what wants in.
    fn batch(&mut self, now: Instant) -> Batch {
        self.probe = false;
        let mut room = MOST_TICKETS;
        let mut take = |tickets: Vec<u64>| {
            room -= tickets.len().min(room);
            (tickets, room)
        };
        let (keep, room) = take(self.tickets.to_keep(now, MOST_TICKETS));
        let (leave, room) = take(self.tickets.leaves.say(now, room));
        let (enter, room) = take(self.waiters.ask(room, now));
        let try_enter = self.tries.ask(room);
        let batch = Batch {
            leave,
            keep,
            enter,
            try_enter,
        };
        self.said = Some(batch.clone());
        batch
    }

    /// What was said and not answered is said again: permits are still due, tickets still leave, and these still want in.
    fn say_again(&mut self) {
        let Some(said) = self.said.take() else {
            return;
        };
        self.tickets.leaves.say_again();
        for ticket in said.enter {
            self.waiters.ask_again(ticket);
        }
        for ticket in said.try_enter {
            self.tries.ask_again(ticket);
        }
    }

    fn next_due(&self, now: Instant) -> Instant {
        let waiting = !self.waiters.is_empty();
        let times = [
            self.tickets.next_due(now),
            self.linger_ends(),
            self.next_ask(now),
            waiting.then_some(self.repeat_at),
            waiting.then_some(self.look_at).flatten(),
            self.long_wait_at(),
        ];
        let next = times.into_iter().flatten().min();
        next.unwrap_or(now + self.lease / 3)
    }

    // --- long waits ---

    /// When the next line about a long wait is due.
    fn long_wait_at(&self) -> Option<Instant> {
        let at = self.waiters.oldest_since()? + LONG_WAIT;
        Some(self.quiet_until.map_or(at, |quiet| at.max(quiet)))
    }

    /// How long the oldest has been waiting, if that is worth a line now.
    pub(crate) fn long_wait(&mut self, now: Instant) -> Option<Duration> {
        if self.long_wait_at()? > now {
            return None;
        }
        self.quiet_until = Some(now + LONG_WAIT_AGAIN);
        let since = self.waiters.oldest_since()?;
        Some(now.saturating_duration_since(since))
    }
}

/// A caller's end knows on which terms the permit is wanted.
pub(crate) trait HasTerms {
    fn terms(&self) -> Terms;
}

// === impl News ===

impl<C> Default for News<C> {
    fn default() -> Self {
        Self {
            next: None,
            granted: Vec::new(),
            refused: Vec::new(),
            lost: Vec::new(),
            answers: Vec::new(),
            unanswered: Vec::new(),
        }
    }
}
