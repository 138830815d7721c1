//! One call: what leaves goes, what enters is written one by one, and then the line shows who holds.

use super::Inner;
use super::desk::{Desk, Found, Plan};
use super::lease::{MOST_OPS, Tenure};
use super::line::Line;
use super::wire::{self, Failure};
use crate::backend::{Call, Event, Reply};
use crate::clock::now;
use crate::error::{Error, ErrorKind};
use etcd_client::{
    Client, Compare, CompareOp, DeleteOptions, GetResponse, PutOptions, ResponseHeader, Txn, TxnOp,
    TxnOpResponse, TxnResponse,
};
use futures_util::future::join_all;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// A call goes on writing new tickets for so long; the rest comes with the next. Tests run unoptimised, many at a time.
const WRITING: Duration = Duration::from_millis(if cfg!(test) { 5000 } else { 300 });
/// So many new tickets are on their way at a time.
const AT_A_TIME: usize = 16;
/// How often a waiter asks while no watch tells it.
const POLL: Duration = Duration::from_millis(100);
/// How often one write is tried under a fence that turns out to have been moved.
const FENCES: u32 = 4;

/// A call under way. Dropped before its end, it leaves a doubt: something of it may still be on its way.
struct Run<'a> {
    inner: &'a Arc<Inner>,
    call: &'a Call,
    number: u64,
    prefix: String,
    /// What it sees is as new as that.
    known: i64,
    /// Something was said twice: the first of it may still be on its way.
    doubt: AtomicBool,
    ended: bool,
}

impl Inner {
    pub(super) async fn say(self: &Arc<Self>, call: &Call) -> Result<Reply, Error> {
        let Some(run) = Run::begin(self, call) else {
            return Ok(Reply::Stale);
        };
        let mut lease = None;
        match run.go(&mut lease).await {
            Ok(found) => run.end(&found),
            Err(failure) => {
                if let (Failure::LeaseGone, Some(lease)) = (&failure, lease) {
                    self.lose(lease);
                }
                Err(failure.into())
            }
        }
    }

    fn with_desk<T>(
        &self,
        call: &Call,
        run: u64,
        change: impl FnOnce(&mut Desk) -> T,
    ) -> Result<T, Failure> {
        let mut book = self.book();
        let desk = book.desks.get_mut(&call.queue);
        let desk = desk.filter(|desk| desk.is_current(run));
        desk.map(change).ok_or_else(|| overtaken().into())
    }
}

// === impl Run ===

impl<'a> Run<'a> {
    fn begin(inner: &'a Arc<Inner>, call: &'a Call) -> Option<Self> {
        let now = now();
        let mut book = inner.book();
        book.pace = call.lease;
        book.idle_since = None;
        book.tidy(now);
        let desk = book.desks.entry(call.queue.clone());
        let desk = desk.or_insert_with(|| Desk::new(now));
        let number = desk.begin(call, now)?;
        let known = desk.revision();
        Some(Self {
            inner,
            call,
            number,
            known,
            prefix: wire::line_prefix(&inner.prefix, &call.queue),
            doubt: AtomicBool::new(false),
            ended: false,
        })
    }

    fn desk<T>(&self, change: impl FnOnce(&mut Desk) -> T) -> Result<T, Failure> {
        self.inner.with_desk(self.call, self.number, change)
    }

    async fn go(&self, lease: &mut Option<i64>) -> Result<Found, Failure> {
        if self.desk(|desk| desk.needs_lease(self.call))? {
            let tenure = self.inner.tenure(self.call.lease).await?;
            *lease = Some(tenure.id);
            self.inner.look_after_keeper();
        }
        self.settle_doubts().await?;
        let plan = self.desk(|desk| desk.plan(&self.inner.node, self.call, now()))?;
        let mut found = Found::default();
        let mut seen = self.change(&plan, &mut found).await?;
        let until = now() + WRITING;
        if let Some(lease) = *lease {
            seen = self.write_all(&plan.acquire, lease, until).await?.or(seen);
            if !self.call.acquire.is_empty() {
                let line = match seen {
                    Some(line) => line,
                    None => self.look().await?,
                };
                // Places that were lost unseen are taken anew.
                let lost: Vec<u64> = (self.call.acquire.iter())
                    .filter(|t| !plan.acquire.contains(t) && !self.is_in(&line, **t))
                    .copied()
                    .collect();
                let after = self.write_all(&lost, lease, until).await?;
                seen = Some(after.unwrap_or(line));
            }
            if !self.call.try_acquire.is_empty() {
                seen = Some(self.try_all(seen, lease, until, &mut found).await?);
            }
        }
        found.after = match seen {
            Some(line) => line,
            None => self.look().await?,
        };
        if found.after.revision() < self.known {
            // Time does not run backwards: it is another etcd, or one that was wiped.
            self.desk(Desk::lose)?;
            *lease = lease.or(self.inner.held_lease());
            return Err(Failure::LeaseGone);
        }
        if let Some(lease) = *lease {
            self.inner.still(lease)?;
        }
        Ok(found)
    }

    /// Nothing that an earlier call has left on its way happens from here on.
    async fn settle_doubts(&self) -> Result<(), Failure> {
        if !self.desk(|desk| desk.doubt)? {
            return Ok(());
        }
        // Without a lease nothing can come late: it would need ours.
        if let Some(lease) = self.inner.held_lease() {
            match self.inner.move_fence(lease, false).await {
                Err(Failure::LeaseGone) => self.inner.lose(lease),
                moved => moved?,
            }
        }
        self.desk(|desk| desk.doubt = false)
    }

    fn key(&self, ticket: u64) -> String {
        format!("{}{}", self.prefix, self.inner.node.ticket(ticket))
    }

    fn is_in(&self, line: &Line, ticket: u64) -> bool {
        line.created(&self.inner.node.ticket(ticket)).is_some()
    }

    // --- writing ---

    /// Takes out what leaves, and gives those that wait their new limit. Returns the line after that.
    async fn change(&self, plan: &Plan, found: &mut Found) -> Result<Option<Line>, Failure> {
        let mut ops: Vec<TxnOp> = Vec::new();
        if plan.look_before {
            ops.push(self.listing());
        }
        let leaving = plan
            .release
            .iter()
            .map(|(ticket, _)| ticket)
            .chain(&plan.clear);
        ops.extend(leaving.map(|ticket| TxnOp::delete(self.key(*ticket), None::<DeleteOptions>)));
        for (ticket, created) in &plan.relimit {
            let Some(lease) = self.inner.held_lease() else {
                break;
            };
            let key = self.key(*ticket);
            let put = self.put_op(&key, lease);
            let same = Compare::create_revision(key, CompareOp::Equal, *created);
            let fence = self.fence(self.inner.still(lease)?);
            ops.push(TxnOp::txn(Txn::new().when([same, fence]).and_then([put])));
        }
        if ops.is_empty() {
            return Ok(None);
        }
        ops.push(self.listing());
        let mut answers = Vec::new();
        let mut revision = 0;
        for some in ops.chunks(MOST_OPS) {
            let answer = self.txn(Txn::new().and_then(some)).await?;
            revision = self.revision(&answer)?;
            answers.extend(answer.op_responses());
        }
        let relimited =
            |answer: &&TxnOpResponse| matches!(answer, TxnOpResponse::Txn(txn) if txn.succeeded());
        let relimited = answers.iter().filter(relimited).count() == plan.relimit.len();
        let mut answers = answers.into_iter();
        if plan.look_before {
            found.before = answers.next().and_then(|a| self.line_of(&a, revision));
        }
        let mut gone = Vec::new();
        for ((ticket, granted), answer) in plan.release.iter().zip(&mut answers) {
            let was_there = matches!(answer, TxnOpResponse::Delete(answer) if answer.deleted() > 0);
            let name = self.inner.node.ticket(*ticket);
            let mut before = found.before.iter().flat_map(Line::holders);
            let held = *granted || before.any(|(_, place)| place.ticket == name);
            found.released.insert(*ticket, was_there && held);
            gone.push(*ticket);
        }
        self.desk(|desk| {
            desk.removed(&gone);
            plan.clear.iter().for_each(|ticket| desk.made(*ticket));
            if relimited {
                desk.relimited(self.call.limit);
            }
        })?;
        let after = answers.last().and_then(|a| self.line_of(&a, revision));
        Ok(Some(after.ok_or_else(wire::nonsense)?))
    }

    /// Writes tickets, each by itself, for each revision is one place. Returns the line after the last.
    ///
    /// Some are on their way at a time. Each but the first wants the one before it to be there, so that the order is that of
    /// `tickets` whatever order they arrive in.
    async fn write_all(
        &self,
        tickets: &[u64],
        lease: i64,
        until: Instant,
    ) -> Result<Option<Line>, Failure> {
        let (mut at, mut seen) = (0, None);
        while at < tickets.len() {
            let end = tickets.len().min(at + AT_A_TIME);
            let tenure = self.inner.still(lease)?;
            let writes = (at..end).map(|at| {
                let after = (at > 0).then(|| tickets[at - 1]);
                let look = at + 1 == tickets.len();
                self.write_once(tickets[at], after, tenure, look)
            });
            let mut written = 0;
            for answer in join_all(writes).await {
                let (there, line) = answer?;
                if !there {
                    break;
                }
                written += 1;
                seen = line;
            }
            if written == 0 {
                // Not the order: the fence, or the one before it was taken out.
                seen = Some(self.write(tickets[at], lease).await?);
                written = 1;
            }
            at += written;
            if now() >= until && at < tickets.len() {
                return Ok(Some(self.look().await?));
            }
        }
        Ok(seen)
    }

    /// Writes one ticket, if it is not there yet: `true` if it is there now. With `look`, or if it was not written,
    /// returns the line after that.
    async fn write_once(
        &self,
        ticket: u64,
        after: Option<u64>,
        tenure: Tenure,
        look: bool,
    ) -> Result<(bool, Option<Line>), Failure> {
        let key = self.key(ticket);
        let absent = Compare::create_revision(key.clone(), CompareOp::Equal, 0);
        let mut when = vec![absent, self.fence(tenure)];
        when.extend(
            after.map(|ticket| Compare::create_revision(self.key(ticket), CompareOp::Greater, 0)),
        );
        let mut then = vec![self.put_op(&key, tenure.id)];
        let mut or_else = vec![TxnOp::get(key, None)];
        if look {
            then.push(self.listing());
            or_else.push(self.listing());
        }
        let txn = Txn::new().when(when).and_then(then).or_else(or_else);
        let answer = self.txn(txn).await?;
        let revision = self.revision(&answer)?;
        let answers = answer.op_responses();
        let mut there = answer.succeeded();
        if there {
            self.desk(|desk| desk.made(ticket))?;
        } else if let Some(TxnOpResponse::Get(own)) = answers.first() {
            there = !own.kvs().is_empty();
        }
        let line = answers.get(1).and_then(|a| self.line_of(a, revision));
        Ok((there, line))
    }

    /// Writes one ticket, if it is not there yet. Returns the line after that.
    async fn write(&self, ticket: u64, lease: i64) -> Result<Line, Failure> {
        for _ in 0..FENCES {
            let tenure = self.inner.still(lease)?;
            let (there, line) = self.write_once(ticket, None, tenure, true).await?;
            if there {
                return Ok(line.ok_or_else(wire::nonsense)?);
            }
            // Not the ticket but the fence: somebody has moved or lost it.
            if self.inner.still(lease)?.fence == tenure.fence {
                self.inner.move_fence(lease, true).await?;
            }
        }
        let error = "the session key in etcd changes all the time";
        Err(Error::new(ErrorKind::Unavailable, error).into())
    }

    /// Writes tickets that do not want to wait: writes, looks, and removes what is not in.
    async fn try_all(
        &self,
        mut seen: Option<Line>,
        lease: i64,
        until: Instant,
        found: &mut Found,
    ) -> Result<Line, Failure> {
        for ticket in &self.call.try_acquire {
            let (known, mere) = self.desk(|desk| (desk.has(*ticket), desk.is_mere_try(*ticket)))?;
            if known && seen.is_none() {
                seen = Some(self.look().await?);
            }
            let written = match &seen {
                Some(line) if known && self.is_in(line, *ticket) => {
                    if !mere {
                        continue;
                    }
                    Some(line.clone())
                }
                Some(line) if !line.has_room(self.call.limit) || now() >= until => {
                    found.refused.push(*ticket);
                    continue;
                }
                _ => None,
            };
            let line = match written {
                Some(line) => line,
                None => {
                    let ends = now() + self.call.lease;
                    self.desk(|desk| desk.add(*ticket, false, ends))?;
                    self.write(*ticket, lease).await?
                }
            };
            let name = self.inner.node.ticket(*ticket);
            let holds = line.holders().any(|(_, place)| place.ticket == name);
            seen = Some(line);
            if holds {
                self.desk(|desk| desk.admit(*ticket))?;
                continue;
            }
            found.refused.push(*ticket);
            let ops = [TxnOp::delete(self.key(*ticket), None), self.listing()];
            let answer = self.txn(Txn::new().and_then(ops)).await?;
            let revision = self.revision(&answer)?;
            let line = answer
                .op_responses()
                .last()
                .and_then(|a| self.line_of(a, revision));
            seen = Some(line.ok_or_else(wire::nonsense)?);
            self.desk(|desk| desk.removed(&[*ticket]))?;
        }
        match seen {
            Some(line) => Ok(line),
            None => self.look().await,
        }
    }

    // --- asking ---

    async fn look(&self) -> Result<Line, Failure> {
        self.inner.list(&self.prefix).await
    }

    async fn txn(&self, txn: Txn) -> Result<TxnResponse, Failure> {
        let ask = |client: Client| {
            let txn = txn.clone();
            async move { client.kv_client().txn(txn).await }
        };
        let answer = self.inner.link.call(ask).await?;
        self.doubt.fetch_or(!answer.once, Ordering::Relaxed);
        Ok(answer.value)
    }

    fn listing(&self) -> TxnOp {
        TxnOp::get(self.prefix.clone(), wire::all())
    }

    fn put_op(&self, key: &str, lease: i64) -> TxnOp {
        let value = wire::value(self.call.limit, self.call.lease);
        TxnOp::put(key, value, Some(PutOptions::new().with_lease(lease)))
    }

    fn fence(&self, tenure: Tenure) -> Compare {
        let key = wire::fence(&self.inner.prefix, &self.inner.node);
        Compare::mod_revision(key, CompareOp::Equal, tenure.fence)
    }

    fn revision(&self, answer: &TxnResponse) -> Result<i64, Failure> {
        let revision = answer.header().map(ResponseHeader::revision);
        Ok(revision.ok_or_else(wire::nonsense)?)
    }

    fn line_of(&self, answer: &TxnOpResponse, revision: i64) -> Option<Line> {
        match answer {
            TxnOpResponse::Get(listing) => Some(wire::line(listing, revision, &self.prefix)),
            _ => None,
        }
    }

    // --- the end ---

    fn end(mut self, found: &Found) -> Result<Reply, Error> {
        let mut book = self.inner.book();
        let desk = book.desks.get_mut(&self.call.queue);
        let Some(desk) = desk.filter(|desk| desk.is_current(self.number)) else {
            return Err(overtaken());
        };
        desk.running = false;
        desk.doubt = self.doubt.load(Ordering::Relaxed);
        self.ended = true;
        let (outcome, pushes) = desk.answer(&self.inner.node, self.call, found, POLL);
        let watch = desk.waits() && desk.watch.is_none();
        drop(book);
        for grant in pushes {
            let queue = self.call.queue.clone();
            self.inner.events.send(Event::Granted { queue, grant });
        }
        if watch {
            self.inner.watch(&self.call.queue);
        }
        Ok(Reply::Done(outcome))
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let _ = self.desk(|desk| {
            desk.running = false;
            desk.doubt = true;
        });
    }
}

impl Inner {
    /// The line of one name as it is now.
    pub(super) async fn list(self: &Arc<Self>, prefix: &str) -> Result<Line, Failure> {
        let ask = |client: Client| async move { client.kv_client().get(prefix, wire::all()).await };
        let answer: GetResponse = self.link.call(ask).await?.value;
        let revision = answer.header().map(ResponseHeader::revision);
        Ok(wire::line(
            &answer,
            revision.ok_or_else(wire::nonsense)?,
            prefix,
        ))
    }
}

fn overtaken() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "a later call of this process overtook this one",
    )
}
