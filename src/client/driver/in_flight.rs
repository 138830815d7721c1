//! The batches in flight, and the judgement about those that are not answered.

use super::no_answer;
use crate::backend::{Call, Reply};
use crate::client::outage::OutageDetector;
use crate::client::queue_client::QueueClient;
use crate::client::registry::{Client, lock};
use crate::clock::now;
use crate::error::Error;
use futures_util::StreamExt;
use futures_util::future::{AbortHandle, Abortable, FutureExt};
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A time that passes unnoticed for this long tells of a process that stood still, and not of the backend.
const LATE: Duration = Duration::from_millis(100);
/// The least time of a call before waiters without an answer are refused because of it.
const LEAST_CHANCE: Duration = Duration::from_millis(100);

/// The names of a batch, each with the number of its call.
type Names = Arc<[(Arc<QueueClient>, u64)]>;

/// The batches in flight, in the order in which they were sent.
#[derive(Debug)]
pub(super) struct InFlight {
    call_timeout: Duration,
    batches: BTreeMap<u64, Record>,
    last: u64,
    calls: usize,
    /// Calls of batches that carry renewals only.
    renewals: usize,
}

#[derive(Debug)]
struct Record {
    names: Names,
    renewals: bool,
    sent: Instant,
    deadline: Instant,
    /// It got more time, since this process stood still.
    is_extended: bool,
    /// Its waiters without an answer were refused, since an outage began.
    is_overdue: bool,
    abort: AbortHandle,
}

/// A batch that is to be sent.
pub(super) struct Batch {
    id: u64,
    names: Names,
    sent: Instant,
    abortable: futures_util::future::AbortRegistration,
}

/// A batch that was not answered in time.
#[derive(Debug)]
pub(super) enum Judgement {
    /// Its calls are given up.
    GivenUp(Vec<Given>),
    /// An outage has begun while it is in flight.
    Overdue { names: Vec<Names>, sent: Instant },
}

#[derive(Debug)]
pub(super) struct Given {
    names: Names,
    sent: Instant,
    abort: AbortHandle,
}

/// Removes a batch when its future ends or is dropped. Calls without a reply are sent again.
struct Guard {
    client: Arc<Client>,
    id: u64,
}

// === impl InFlight ===

impl InFlight {
    pub(super) fn new(call_timeout: Duration) -> Self {
        Self {
            call_timeout,
            batches: BTreeMap::new(),
            last: 0,
            calls: 0,
            renewals: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.batches.is_empty()
    }

    pub(super) fn batches(&self) -> usize {
        self.batches.len()
    }

    pub(super) fn calls(&self) -> usize {
        self.calls
    }

    pub(super) fn renewals(&self) -> usize {
        self.renewals
    }

    pub(super) fn add(
        &mut self,
        names: Vec<(Arc<QueueClient>, u64)>,
        renewals: bool,
        now: Instant,
    ) -> Batch {
        let names = Names::from(names);
        self.last += 1;
        self.calls += names.len();
        self.renewals += if renewals { names.len() } else { 0 };
        let (abort, abortable) = AbortHandle::new_pair();
        let record = Record {
            names: Arc::clone(&names),
            renewals,
            sent: now,
            deadline: now + self.call_timeout,
            is_extended: false,
            is_overdue: false,
            abort,
        };
        self.batches.insert(self.last, record);
        Batch {
            id: self.last,
            names,
            sent: now,
            abortable,
        }
    }

    fn remove(&mut self, id: u64) -> Option<Record> {
        let record = self.batches.remove(&id)?;
        self.calls -= record.names.len();
        self.renewals -= if record.renewals {
            record.names.len()
        } else {
            0
        };
        Some(record)
    }

    /// Everything that is in flight: another driver takes over.
    pub(super) fn take_all(&mut self) -> Vec<Names> {
        (self.calls, self.renewals) = (0, 0);
        let batches = std::mem::take(&mut self.batches).into_values();
        batches.map(|record| record.names).collect()
    }

    /// When [`judge`](Self::judge) has something to do, unless replies arrive before.
    pub(super) fn next_judgement(&self, outages: &OutageDetector, now: Instant) -> Option<Instant> {
        let (_, first) = self.batches.first_key_value()?;
        let overdue = match first.is_overdue {
            true => None,
            false => overdue_at(first.sent, outages).filter(|at| now <= *at + LATE),
        };
        Some(overdue.map_or(first.deadline, |at| at.min(first.deadline)))
    }

    /// Judges the batches that are not answered in time.
    pub(super) fn judge(&mut self, now: Instant, outages: &OutageDetector) -> Option<Judgement> {
        let (_, first) = self.batches.first_key_value()?;
        if first.deadline <= now {
            if first.deadline + LATE < now && !first.is_extended {
                // This process stood still: the replies may be here already. They get more time, once.
                for record in self.batches.values_mut() {
                    record.deadline = record.deadline.max(now + self.call_timeout / 2);
                    record.is_extended = true;
                }
                return None;
            }
            let due = self.batches.iter().take_while(|(_, r)| r.deadline <= now);
            let due: Vec<u64> = due.map(|(id, _)| *id).collect();
            let given = due.into_iter().filter_map(|id| self.remove(id));
            let given = given.map(|record| Given {
                names: record.names,
                sent: record.sent,
                abort: record.abort,
            });
            return Some(Judgement::GivenUp(given.collect()));
        }
        if first.is_overdue {
            return None;
        }
        let (at, sent) = (overdue_at(first.sent, outages)?, first.sent);
        if now < at || now > at + LATE {
            return None;
        }
        let least = now - LEAST_CHANCE;
        let overdue = self.batches.values_mut().filter(|r| r.sent <= least);
        let names = overdue.map(|record| {
            record.is_overdue = true;
            Arc::clone(&record.names)
        });
        Some(Judgement::Overdue {
            names: names.collect(),
            sent,
        })
    }
}

/// When the waiters of a call are refused that is sent at `sent` and not answered: when the outage begins. `None` if there
/// is no sign of one.
fn overdue_at(sent: Instant, outages: &OutageDetector) -> Option<Instant> {
    let begins = outages.outage_begins(sent)?;
    Some(begins.max(sent + LEAST_CHANCE))
}

// === impl Judgement ===

impl Judgement {
    pub(super) fn apply(self, client: &Arc<Client>, now: Instant) {
        match self {
            Self::GivenUp(given) => {
                for Given { names, sent, abort } in given {
                    abort.abort();
                    client.batch_failed(&names, &no_answer(client.call_timeout), sent, now);
                }
            }
            Self::Overdue { names, sent } => {
                let Some(error) = client.outages.overdue(sent, now) else {
                    return;
                };
                for (name, number) in names.iter().flat_map(|names| names.iter()) {
                    name.refuse_newcomers(*number, &error);
                }
            }
        }
    }
}

impl Client {
    /// Calls of one batch failed, all in the same way.
    fn batch_failed(
        &self,
        names: &[(Arc<QueueClient>, u64)],
        error: &Error,
        sent: Instant,
        now: Instant,
    ) {
        let refusal = self.outages.failed(sent, now, error);
        for (name, number) in names {
            name.on_failure(*number, error, refusal.as_ref(), sent, now);
        }
    }
}

/// Sends a batch, and passes each reply to its name.
pub(super) fn exchange(
    client: Arc<Client>,
    calls: Vec<Call>,
    batch: Batch,
) -> impl Future<Output = ()> + Send {
    let Batch {
        id,
        names,
        sent,
        abortable,
    } = batch;
    // Made before the first poll, which may never happen.
    let guard = Guard { client, id };
    let replies = async move {
        let client = &guard.client;
        let mut replies = client.session().exchange(calls).ready_chunks(names.len());
        while let Some(arrived) = replies.next().await {
            let now = now();
            for (at, reply) in arrived {
                if let Some((name, number)) = names.get(at) {
                    client.on_reply(name, *number, reply, sent, now);
                }
            }
        }
    };
    Abortable::new(replies, abortable).map(drop)
}

impl Client {
    fn on_reply(
        &self,
        name: &Arc<QueueClient>,
        number: u64,
        reply: Result<Reply, Error>,
        sent: Instant,
        now: Instant,
    ) {
        match reply {
            Ok(Reply::Done(outcome)) => {
                self.outages.answered(now);
                name.on_reply(number, &outcome, sent, now);
            }
            // An answer as well, though not to this call: it is sent again.
            Ok(Reply::Stale) => {
                self.outages.answered(now);
                name.on_stale(number, now);
            }
            // Waiting would not help.
            Err(error) if error.kind() != crate::ErrorKind::Unavailable => {
                self.outages.answered(now);
                name.on_failure(number, &error, Some(&error), sent, now);
            }
            Err(error) => {
                let refusal = self.outages.failed(sent, now, &error);
                name.on_failure(number, &error, refusal.as_ref(), sent, now);
            }
        }
    }
}

// === impl Guard ===

impl Drop for Guard {
    fn drop(&mut self) {
        let record = self.client.take_in_flight(self.id);
        let unanswered = record.iter().flat_map(|record| record.names.iter());
        for (name, number) in unanswered {
            name.on_dropped(*number);
        }
    }
}

impl Client {
    fn take_in_flight(&self, id: u64) -> Option<Record> {
        lock(&self.work.shared).in_flight.remove(id)
    }
}
