//! The backend of a run: the one in process, and what must hold whenever it has executed a call.

use super::Time;
use super::trace::note;
use crate::backend::memory::queue::TicketQueue;
use crate::backend::{Call, Events, Grant, Reply, TicketState};
use crate::name::Node;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// Its wall clock at the start of a run, since 1970.
const EPOCH: Duration = Duration::from_secs(1_700_000_000);

pub(super) struct Backend {
    pub(super) tickets: TicketQueue,
    /// Nothing is executed before then.
    pub(super) stalled_until: Time,
    /// The last heartbeat of each node.
    heartbeats: HashMap<String, Heartbeat>,
    tokens: BTreeSet<u64>,
}

/// The grants to push, each with the receiver.
pub(super) type Pushes = Vec<(Arc<Events>, Grant)>;

#[derive(Clone, Copy, Debug)]
struct Heartbeat {
    number: u64,
    limit: u32,
    /// The node is alive until then.
    until: Duration,
}

/// Returns the wall clock of the backend at this time after the start of the run.
pub(super) fn wall_clock(since: Duration) -> Duration {
    EPOCH + since
}

fn server_time(now: Time) -> Duration {
    wall_clock(Duration::from_micros(now))
}

impl Backend {
    pub(super) fn new() -> Self {
        Self {
            tickets: TicketQueue::new(server_time(0), 0),
            stalled_until: 0,
            heartbeats: HashMap::new(),
            tokens: BTreeSet::new(),
        }
    }

    /// Executes a call.
    pub(super) fn exchange(
        &mut self,
        node: &Node,
        events: &Arc<Events>,
        call: &Call,
        now: Time,
    ) -> (Reply, Pushes) {
        let time = server_time(now);
        let before = self.tickets.held().count();
        let last = self.heartbeats.get(node.as_str()).copied();
        let (reply, pushes) = self.tickets.exchange(node, events, call, time);
        note!(
            now,
            "   {} is executed: {}, {} pushes",
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
                self.tickets.held().count(),
                "a late call changes nothing"
            );
        } else {
            let until = time + call.lease;
            let known = last.filter(|last| last.until > time);
            assert!(
                known.is_none_or(|last| last.number <= call.number),
                "a late call is executed"
            );
            let heartbeat = Heartbeat {
                number: call.number,
                limit: call.limit,
                until,
            };
            self.heartbeats.insert(node.as_str().to_owned(), heartbeat);
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
                let held = self.tickets.permit(node, *ticket).is_some();
                let is_reported = matches!(answer, TicketState::Held { .. });
                assert!(held || !is_reported, "{ticket}: {answer:?}");
            }
        }
        let pushes = pushes.into_iter().map(|push| (push.to, push.grant));
        (reply, pushes.collect())
    }

    /// Evicts a ticket.
    pub(super) fn evict(&mut self, ticket: &str, now: Time) -> Pushes {
        let (found, pushes) = self.tickets.evict(ticket, server_time(now));
        assert!(found);
        self.check_grants(now);
        let pushes = pushes.into_iter().map(|push| (push.to, push.grant));
        pushes.collect()
    }

    /// Forgets everything but its last token.
    pub(super) fn flush(&mut self, now: Time) {
        let last_token = self.tickets.last_token();
        self.tickets = TicketQueue::new(server_time(now), last_token);
        self.heartbeats.clear();
    }

    pub(super) fn waiting(&mut self, now: Time) -> u64 {
        self.tickets.inspect(server_time(now)).queued
    }

    /// Checks the new grants: each node was alive, a permit was free by its own limit, and the token is above all earlier ones.
    fn check_grants(&mut self, now: Time) {
        let before = self.tokens.last().copied().unwrap_or(0);
        let all = self.tickets.held().count();
        let mut new: Vec<_> = (self.tickets.held())
            .filter(|(_, _, _, token)| !self.tokens.contains(token))
            .map(|(node, _, deadline, token)| (token, node.as_str().to_owned(), deadline))
            .collect();
        new.sort_unstable();
        for (n, (token, node, deadline)) in new.iter().enumerate() {
            assert!(*token > before, "tokens increase: {token} after {before}");
            let Heartbeat { limit, until, .. } = self.heartbeats[node];
            let in_use = all - new.len() + n;
            assert!(
                in_use < limit as usize,
                "{in_use} in use at a limit of {limit}"
            );
            assert!(
                until > server_time(now),
                "granted to a node with an expired lease"
            );
            assert_eq!(*deadline, until, "a lease from its node's last heartbeat");
        }
        self.tokens
            .extend(new.into_iter().map(|(token, _, _)| token));
    }
}
