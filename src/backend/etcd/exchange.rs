//! Executes one call: deletes the keys of released tickets, creates those of new ones, and reads the queue to see which hold.

use super::errors::{self, Failure};
use super::keys;
use super::name_state::NameState;
use super::plan::Findings;
use super::queue::TicketQueue;
use super::session_state::Shared;
use crate::backend::{Call, Event, Reply};
use crate::clock::now;
use crate::error::Error;
use etcd_client::{Client, GetResponse, ResponseHeader};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long one call creates tickets. The rest follows with the next call. Tests run unoptimised, many at a time.
const WRITE_TIME: Duration = Duration::from_millis(if cfg!(test) { 5000 } else { 300 });
/// The time after which a node with queued tickets calls again while no watch reports changes.
const POLL: Duration = Duration::from_millis(100);

/// A call in progress. If it is dropped before its end, some of its writes may still be executed.
pub(super) struct Run<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) call: &'a Call,
    number: u64,
    /// What the keys of the name start with.
    pub(super) prefix: String,
    /// The newest revision that an earlier call has seen.
    known_revision: i64,
    /// A write was sent twice: the first copy may still be executed.
    pub(super) uncertain: AtomicBool,
    ended: bool,
}

impl Shared {
    pub(super) async fn exchange(self: &Arc<Self>, call: &Call) -> Result<Reply, Error> {
        let Some(run) = Run::begin(self, call) else {
            return Ok(Reply::Stale);
        };
        let mut lease = None;
        match run.execute(&mut lease).await {
            Ok(findings) => run.end(&findings),
            Err(failure) => {
                if let (Failure::LeaseGone, Some(lease)) = (&failure, lease) {
                    self.lose_lease(lease);
                }
                Err(failure.into())
            }
        }
    }

    /// Reads the queue of one name.
    pub(super) async fn list(self: &Arc<Self>, prefix: &str) -> Result<TicketQueue, Failure> {
        let get = |client: Client| async move {
            client.kv_client().get(prefix, keys::with_prefix()).await
        };
        let answer: GetResponse = self.cluster.call(get).await?.value;
        let revision = answer.header().map(ResponseHeader::revision);
        Ok(keys::parse_listing(
            &answer,
            revision.ok_or_else(errors::unexpected_answer)?,
            prefix,
        ))
    }
}

// === impl Run ===

impl<'a> Run<'a> {
    fn begin(shared: &'a Arc<Shared>, call: &'a Call) -> Option<Self> {
        let now = now();
        let mut state = shared.state();
        state.ticket_lease = call.lease;
        state.idle_since = None;
        state.tidy(now);
        let name = state.names.entry(call.queue.clone());
        let name = name.or_insert_with(|| NameState::new(now));
        let number = name.begin(call, now)?;
        let known_revision = name.revision();
        Some(Self {
            shared,
            call,
            number,
            known_revision,
            prefix: keys::queue_prefix(&shared.prefix, &call.queue),
            uncertain: AtomicBool::new(false),
            ended: false,
        })
    }

    /// Reads or changes the state of the name. Fails if a later call has begun.
    pub(super) fn with_name<T>(
        &self,
        change: impl FnOnce(&mut NameState) -> T,
    ) -> Result<T, Failure> {
        let mut state = self.shared.state();
        let name = state.names.get_mut(&self.call.queue);
        let name = name.filter(|name| name.is_current(self.number));
        name.map(change).ok_or_else(|| errors::superseded().into())
    }

    async fn execute(&self, lease: &mut Option<i64>) -> Result<Findings, Failure> {
        if self.with_name(|name| name.needs_lease(self.call))? {
            *lease = Some(self.shared.lease_for(self.call.lease).await?.id);
            self.shared.ensure_maintenance();
        }
        self.fence_off_earlier_writes().await?;
        let plan = self.with_name(|name| name.plan(&self.shared.node, self.call, now()))?;
        let mut findings = Findings::default();
        let mut latest = self.release_and_update(&plan, &mut findings).await?;
        let until = now() + WRITE_TIME;
        if let Some(lease) = *lease {
            latest = self
                .create_all(&plan.create, lease, until)
                .await?
                .or(latest);
            if !self.call.acquire.is_empty() {
                let queue = match latest {
                    Some(queue) => queue,
                    None => self.read().await?,
                };
                // Queue entries that were lost without notice are created again.
                let lost: Vec<u64> = (self.call.acquire.iter())
                    .filter(|ticket| !plan.create.contains(ticket) && !self.is_in(&queue, **ticket))
                    .copied()
                    .collect();
                let after = self.create_all(&lost, lease, until).await?;
                latest = Some(after.unwrap_or(queue));
            }
            if !self.call.try_acquire.is_empty() {
                latest = Some(self.try_all(latest, lease, until, &mut findings).await?);
            }
        }
        findings.after = match latest {
            Some(queue) => queue,
            None => self.read().await?,
        };
        if findings.after.revision() < self.known_revision {
            // Revisions never decrease: this is another cluster, or one that was wiped.
            self.with_name(NameState::clear)?;
            *lease = lease.or(self.shared.held_lease());
            return Err(Failure::LeaseGone);
        }
        if let Some(lease) = *lease {
            self.shared.same_lease(lease)?;
        }
        Ok(findings)
    }

    /// Ensures that no write which an earlier call has left in flight is executed from here on.
    async fn fence_off_earlier_writes(&self) -> Result<(), Failure> {
        if !self.with_name(|name| name.uncertain)? {
            return Ok(());
        }
        // Without an etcd lease no late write can succeed, since it would need that lease.
        if let Some(lease) = self.shared.held_lease() {
            match self.shared.move_fence(lease, false).await {
                Err(Failure::LeaseGone) => self.shared.lose_lease(lease),
                moved => moved?,
            }
        }
        self.with_name(|name| name.uncertain = false)
    }

    pub(super) fn is_in(&self, queue: &TicketQueue, ticket: u64) -> bool {
        queue.created(&self.shared.node.ticket(ticket)).is_some()
    }

    pub(super) async fn read(&self) -> Result<TicketQueue, Failure> {
        self.shared.list(&self.prefix).await
    }

    fn end(mut self, findings: &Findings) -> Result<Reply, Error> {
        let mut state = self.shared.state();
        let name = state.names.get_mut(&self.call.queue);
        let Some(name) = name.filter(|name| name.is_current(self.number)) else {
            return Err(errors::superseded());
        };
        name.running = false;
        name.uncertain = self.uncertain.load(Ordering::Relaxed);
        self.ended = true;
        let (outcome, pushes) = name.outcome(&self.shared.node, self.call, findings, POLL);
        let needs_watch = name.has_queued() && name.watch.is_none();
        drop(state);
        for grant in pushes {
            let queue = self.call.queue.clone();
            self.shared.events.send(Event::Granted { queue, grant });
        }
        if needs_watch {
            self.shared.watch(&self.call.queue);
        }
        Ok(Reply::Done(outcome))
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let _ = self.with_name(|name| {
            name.running = false;
            name.uncertain = true;
        });
    }
}
