//! The backend of a run: the one in process, and what must hold whenever it has carried something out.

use super::Time;
use super::trace::note;
use crate::backend::memory::queue::TicketQueue;
use crate::backend::{Call, Events, Grant, Reply, TicketState};
use crate::name::Node;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// What it shows when a run begins, since 1970.
const EPOCH: Duration = Duration::from_secs(1_700_000_000);

pub(super) struct Backend {
    pub(super) room: TicketQueue,
    /// Nothing is carried out before then.
    pub(super) stalled_until: Time,
    /// The last call of each node that was carried out.
    words: HashMap<String, Word>,
    tokens: BTreeSet<u64>,
}

/// Who is told of which grants.
pub(super) type Pushes = Vec<(Arc<Events>, Grant)>;

#[derive(Clone, Copy, Debug)]
struct Word {
    number: u64,
    limit: u32,
    /// So long the node is alive by it.
    until: Duration,
}

/// What the wall clock of the backend shows so long after the run began.
pub(super) fn wall_clock(since: Duration) -> Duration {
    EPOCH + since
}

fn server_time(now: Time) -> Duration {
    wall_clock(Duration::from_micros(now))
}

impl Backend {
    pub(super) fn new() -> Self {
        Self {
            room: TicketQueue::new(server_time(0), 0),
            stalled_until: 0,
            words: HashMap::new(),
            tokens: BTreeSet::new(),
        }
    }

    /// Carries a call out.
    pub(super) fn exchange(
        &mut self,
        node: &Node,
        events: &Arc<Events>,
        call: &Call,
        now: Time,
    ) -> (Reply, Pushes) {
        let time = server_time(now);
        let before = self.room.held().count();
        let last = self.words.get(node.as_str()).copied();
        let (reply, pushes) = self.room.exchange(node, events, call, time);
        note!(
            now,
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
        self.check_grants(now);
        if let Reply::Done(outcome) = &reply {
            let sent = call
                .renew
                .iter()
                .chain(&call.acquire)
                .chain(&call.try_acquire);
            let answers = outcome.renewed.iter().chain(&outcome.acquired);
            for (ticket, answer) in sent.zip(answers.chain(&outcome.tried)) {
                let held = self.room.permit(node, *ticket).is_some();
                let says_so = matches!(answer, TicketState::Held { .. });
                assert!(held || !says_so, "{ticket}: {answer:?}");
            }
        }
        let pushes = pushes.into_iter().map(|push| (push.to, push.grant));
        (reply, pushes.collect())
    }

    /// Throws a ticket out.
    pub(super) fn evict(&mut self, ticket: &str, now: Time) -> Pushes {
        let (found, pushes) = self.room.evict(ticket, server_time(now));
        assert!(found);
        self.check_grants(now);
        let pushes = pushes.into_iter().map(|push| (push.to, push.grant));
        pushes.collect()
    }

    /// Forgets everything but its last token.
    pub(super) fn flush(&mut self, now: Time) {
        let last_token = self.room.last_token();
        self.room = TicketQueue::new(server_time(now), last_token);
        self.words.clear();
    }

    pub(super) fn waiting(&mut self, now: Time) -> u64 {
        self.room.inspect(server_time(now)).queued
    }

    /// Who has been let in was alive, there was room by his own limit, and his token is above all before.
    fn check_grants(&mut self, now: Time) {
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
            assert!(until > server_time(now), "granted to the dead");
            assert_eq!(*deadline, until, "a lease from its node's last word");
        }
        self.tokens
            .extend(new.into_iter().map(|(token, _, _)| token));
    }
}
