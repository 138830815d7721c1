//! The writes of one call.

use super::errors::{self, Failure};
use super::exchange::Run;
use super::keys;
use super::maintenance::MAX_OPERATIONS;
use super::plan::{Findings, Plan};
use super::queue::TicketQueue;
use super::session_state::HeldLease;
use crate::clock::now;
use crate::error::{Error, ErrorKind};
use etcd_client::{
    Client, Compare, CompareOp, DeleteOptions, PutOptions, ResponseHeader, Txn, TxnOp,
    TxnOpResponse, TxnResponse,
};
use futures_util::future::join_all;
use std::sync::atomic::Ordering;
use tokio::time::Instant;

/// How many new tickets are created at a time.
const IN_FLIGHT: usize = 16;
/// How often one ticket is written under a fence that turns out to have been moved.
const FENCE_ATTEMPTS: u32 = 4;

// === impl Run ===

impl Run<'_> {
    fn key(&self, ticket: u64) -> String {
        format!("{}{}", self.prefix, self.shared.node.ticket(ticket))
    }

    /// Deletes released and expired tickets, and updates the limit of queued ones. Returns the queue after that.
    pub(super) async fn release_and_update(
        &self,
        plan: &Plan,
        findings: &mut Findings,
    ) -> Result<Option<TicketQueue>, Failure> {
        let mut operations: Vec<TxnOp> = Vec::new();
        if plan.read_first {
            operations.push(self.listing());
        }
        let deleted = plan
            .release
            .iter()
            .map(|(ticket, _)| ticket)
            .chain(&plan.remove_expired);
        operations
            .extend(deleted.map(|ticket| TxnOp::delete(self.key(*ticket), None::<DeleteOptions>)));
        for (ticket, created) in &plan.update_limit {
            let Some(lease) = self.shared.held_lease() else {
                break;
            };
            let key = self.key(*ticket);
            let put = self.put_op(&key, lease);
            let same = Compare::create_revision(key, CompareOp::Equal, *created);
            let fence = self.fence(self.shared.same_lease(lease)?);
            operations.push(TxnOp::txn(Txn::new().when([same, fence]).and_then([put])));
        }
        if operations.is_empty() {
            return Ok(None);
        }
        operations.push(self.listing());
        let mut answers = Vec::new();
        let mut revision = 0;
        for some in operations.chunks(MAX_OPERATIONS) {
            let answer = self.txn(Txn::new().and_then(some)).await?;
            revision = self.revision(&answer)?;
            answers.extend(answer.op_responses());
        }
        let is_updated =
            |answer: &&TxnOpResponse| matches!(answer, TxnOpResponse::Txn(txn) if txn.succeeded());
        let all_updated = answers.iter().filter(is_updated).count() == plan.update_limit.len();
        let mut answers = answers.into_iter();
        if plan.read_first {
            findings.before = answers.next().and_then(|a| self.queue_of(&a, revision));
        }
        let mut removed = Vec::new();
        for ((ticket, granted), answer) in plan.release.iter().zip(&mut answers) {
            let existed = matches!(answer, TxnOpResponse::Delete(answer) if answer.deleted() > 0);
            let own = self.shared.node.ticket(*ticket);
            let mut before = findings.before.iter().flat_map(TicketQueue::holders);
            let held = *granted || before.any(|(_, entry)| entry.ticket == own);
            findings.released.insert(*ticket, existed && held);
            removed.push(*ticket);
        }
        self.with_name(|name| {
            name.removed(&removed);
            (plan.remove_expired.iter()).for_each(|ticket| name.created(*ticket));
            if all_updated {
                name.limit_updated(self.call.limit);
            }
        })?;
        let after = answers.last().and_then(|a| self.queue_of(&a, revision));
        Ok(Some(after.ok_or_else(errors::unexpected_answer)?))
    }

    /// Creates tickets, each in a transaction, since the order is that of the revisions. Returns the queue after the last.
    ///
    /// Several transactions are in flight at a time. Each but the first is conditional on the ticket before it, so that the order
    /// is that of `tickets` in whatever order the transactions arrive.
    pub(super) async fn create_all(
        &self,
        tickets: &[u64],
        lease: i64,
        until: Instant,
    ) -> Result<Option<TicketQueue>, Failure> {
        let (mut at, mut latest) = (0, None);
        while at < tickets.len() {
            let end = tickets.len().min(at + IN_FLIGHT);
            let held = self.shared.same_lease(lease)?;
            let writes = (at..end).map(|at| {
                let after = (at > 0).then(|| tickets[at - 1]);
                let read = at + 1 == tickets.len();
                self.create_once(tickets[at], after, held, read)
            });
            let mut created = 0;
            for answer in join_all(writes).await {
                let (exists, queue) = answer?;
                if !exists {
                    break;
                }
                created += 1;
                latest = queue;
            }
            if created == 0 {
                // Not the order failed, but the fence; or the ticket before was deleted.
                latest = Some(self.create(tickets[at], lease).await?);
                created = 1;
            }
            at += created;
            if now() >= until && at < tickets.len() {
                return Ok(Some(self.read().await?));
            }
        }
        Ok(latest)
    }

    /// Creates a ticket unless it exists: `true` if it exists now. With `read`, or if it was not created, returns the queue after
    /// that.
    async fn create_once(
        &self,
        ticket: u64,
        after: Option<u64>,
        held: HeldLease,
        read: bool,
    ) -> Result<(bool, Option<TicketQueue>), Failure> {
        let key = self.key(ticket);
        let absent = Compare::create_revision(key.clone(), CompareOp::Equal, 0);
        let mut when = vec![absent, self.fence(held)];
        when.extend(
            after.map(|ticket| Compare::create_revision(self.key(ticket), CompareOp::Greater, 0)),
        );
        let mut then = vec![self.put_op(&key, held.id)];
        let mut or_else = vec![TxnOp::get(key, None)];
        if read {
            then.push(self.listing());
            or_else.push(self.listing());
        }
        let txn = Txn::new().when(when).and_then(then).or_else(or_else);
        let answer = self.txn(txn).await?;
        let revision = self.revision(&answer)?;
        let answers = answer.op_responses();
        let mut exists = answer.succeeded();
        if exists {
            self.with_name(|name| name.created(ticket))?;
        } else if let Some(TxnOpResponse::Get(own)) = answers.first() {
            exists = !own.kvs().is_empty();
        }
        let queue = answers.get(1).and_then(|a| self.queue_of(a, revision));
        Ok((exists, queue))
    }

    /// Creates a ticket unless it exists, under a fence that another call may move. Returns the queue after that.
    async fn create(&self, ticket: u64, lease: i64) -> Result<TicketQueue, Failure> {
        for _ in 0..FENCE_ATTEMPTS {
            let held = self.shared.same_lease(lease)?;
            let (exists, queue) = self.create_once(ticket, None, held, true).await?;
            if exists {
                return Ok(queue.ok_or_else(errors::unexpected_answer)?);
            }
            // Not the ticket but the fence failed: another call has moved it, or its key is lost.
            if self.shared.same_lease(lease)?.fence == held.fence {
                self.shared.move_fence(lease, true).await?;
            }
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            format!(
                "the session key in etcd changed during each of {FENCE_ATTEMPTS} writes of a ticket"
            ),
        )
        .into())
    }

    /// Creates the tickets of `try_acquire`, and deletes those that do not hold at once. Returns the queue after that.
    pub(super) async fn try_all(
        &self,
        mut latest: Option<TicketQueue>,
        lease: i64,
        until: Instant,
        findings: &mut Findings,
    ) -> Result<TicketQueue, Failure> {
        for ticket in &self.call.try_acquire {
            let (is_known, is_open) =
                self.with_name(|name| (name.is_stored(*ticket), name.is_open_try(*ticket)))?;
            if is_known && latest.is_none() {
                latest = Some(self.read().await?);
            }
            let existing = match &latest {
                Some(queue) if is_known && self.is_in(queue, *ticket) => {
                    if !is_open {
                        continue;
                    }
                    Some(queue.clone())
                }
                Some(queue) if !queue.has_room(self.call.limit) || now() >= until => {
                    findings.refused.push(*ticket);
                    continue;
                }
                _ => None,
            };
            let queue = match existing {
                Some(queue) => queue,
                None => {
                    let until = now() + self.call.lease;
                    self.with_name(|name| name.add(*ticket, false, until))?;
                    self.create(*ticket, lease).await?
                }
            };
            let own = self.shared.node.ticket(*ticket);
            let holds = queue.holders().any(|(_, entry)| entry.ticket == own);
            latest = Some(queue);
            if holds {
                self.with_name(|name| name.grant_try(*ticket))?;
                continue;
            }
            findings.refused.push(*ticket);
            let operations = [TxnOp::delete(self.key(*ticket), None), self.listing()];
            let answer = self.txn(Txn::new().and_then(operations)).await?;
            let revision = self.revision(&answer)?;
            let queue = answer
                .op_responses()
                .last()
                .and_then(|a| self.queue_of(a, revision));
            latest = Some(queue.ok_or_else(errors::unexpected_answer)?);
            self.with_name(|name| name.removed(&[*ticket]))?;
        }
        match latest {
            Some(queue) => Ok(queue),
            None => self.read().await,
        }
    }

    async fn txn(&self, txn: Txn) -> Result<TxnResponse, Failure> {
        let request = |client: Client| {
            let txn = txn.clone();
            async move { client.kv_client().txn(txn).await }
        };
        let answer = self.shared.cluster.call(request).await?;
        self.uncertain
            .fetch_or(!answer.sent_once, Ordering::Relaxed);
        Ok(answer.value)
    }

    fn listing(&self) -> TxnOp {
        TxnOp::get(self.prefix.clone(), keys::with_prefix())
    }

    fn put_op(&self, key: &str, lease: i64) -> TxnOp {
        let value = keys::ticket_value(self.call.limit, self.call.lease);
        TxnOp::put(key, value, Some(PutOptions::new().with_lease(lease)))
    }

    fn fence(&self, held: HeldLease) -> Compare {
        let key = keys::session_key(&self.shared.prefix, &self.shared.node);
        Compare::mod_revision(key, CompareOp::Equal, held.fence)
    }

    fn revision(&self, answer: &TxnResponse) -> Result<i64, Failure> {
        let revision = answer.header().map(ResponseHeader::revision);
        Ok(revision.ok_or_else(errors::unexpected_answer)?)
    }

    fn queue_of(&self, answer: &TxnOpResponse, revision: i64) -> Option<TicketQueue> {
        match answer {
            TxnOpResponse::Get(listing) => {
                Some(keys::parse_listing(listing, revision, &self.prefix))
            }
            _ => None,
        }
    }
}
