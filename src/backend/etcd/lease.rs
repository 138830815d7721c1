//! The lease of this process: one, under which all its keys stand, and the task that keeps it.
//!
//! It lasts a little longer than the leases of the gates, so that not every call has to renew it; but no call is
//! answered that it would not outlast. A ticket that its gate does not speak of any more is removed by the same task, for
//! this lease goes on for the others.

use super::wire::{self, Failure};
use super::{Book, Inner};
use crate::backend::Event;
use crate::clock::{now, sleep_until};
use crate::error::{Error, ErrorKind};
use crate::name::Queue;
use etcd_client::{Compare, CompareOp, LeaseTimeToLiveOptions, PutOptions, Txn, TxnOp};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, timeout};

/// How long it may take to get a lease.
const GRANTING: Duration = Duration::from_secs(2);
/// An attempt that shows no end by then sits in a runtime that nobody drives.
const STUCK: Duration = Duration::from_secs(3);
/// The task should have done something this long ago: it is on a runtime that nobody drives.
const PATIENCE: Duration = Duration::from_millis(250);
/// How many keys one transaction names at most: etcd allows 128 operations.
pub(super) const MOST_OPS: usize = 100;

/// What a call stands on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tenure {
    pub(super) id: i64,
    /// As it was granted.
    ttl: Duration,
    /// When the last renewal was sent that was answered.
    confirmed: Instant,
    /// The revision of the fence. What is written under an earlier one changes nothing.
    pub(super) fence: i64,
}

#[derive(Default)]
pub(super) enum Slot {
    #[default]
    Empty,
    /// A task is at it, since then.
    Granting(Attempt, Instant),
    Held(Tenure),
}

/// Resolves to `None` if the task ended with its runtime.
type Attempt = Shared<BoxFuture<'static, Option<Result<(), Error>>>>;

/// The moves of the fence.
#[derive(Default)]
pub(super) struct FenceSlot {
    /// Counts them.
    started: u64,
    /// The latest that was answered.
    done: u64,
    moving: Option<Moving>,
}

/// A move under way. It goes on when the calls that wait for it are dropped.
#[derive(Clone)]
struct Moving {
    number: u64,
    lease: i64,
    since: Instant,
    attempt: Shared<BoxFuture<'static, Option<Result<(), Failure>>>>,
}

/// The task that keeps the lease.
#[derive(Debug, Default)]
pub(super) struct KeeperSlot {
    /// Counts them. One whose number this is not any more has been replaced.
    current: u64,
    /// By when it does its next step, if there is one.
    due: Option<Instant>,
}

struct Keeper {
    inner: Weak<Inner>,
    number: u64,
    ended: watch::Receiver<()>,
}

/// What the keeper has to do now.
struct Chores {
    confirm: Option<i64>,
    expired: Vec<(Queue, Vec<(u64, i64)>)>,
    sweep: Option<i64>,
    revoke: Option<i64>,
    next: Instant,
}

// === impl Inner ===

impl Inner {
    /// A lease that lasts for this long from now.
    pub(super) async fn tenure(self: &Arc<Self>, lease: Duration) -> Result<Tenure, Error> {
        let needed = now() + lease;
        for _ in 0..4 {
            let attempt = {
                let mut book = self.book();
                match &book.lease {
                    Slot::Held(tenure) if tenure.confirmed + tenure.ttl >= needed => {
                        return Ok(*tenure);
                    }
                    Slot::Held(tenure) => Err(*tenure),
                    Slot::Granting(attempt, since) if now() < *since + STUCK => Ok(attempt.clone()),
                    Slot::Granting(..) | Slot::Empty => Ok(self.grant(&mut book, lease)?),
                }
            };
            match attempt {
                Ok(attempt) => match attempt.clone().await {
                    Some(Ok(())) => {}
                    Some(Err(error)) => return Err(error),
                    None => self.forget(&attempt),
                },
                // A lease that is shorter than the call wants (never of one coordinator) is at least fresh.
                Err(Tenure { id, ttl, .. }) => {
                    if let Some(tenure) = self.confirm(id).await?
                        && ttl < lease
                    {
                        return Ok(tenure);
                    }
                }
            }
        }
        Err(wire::lease_ended())
    }

    /// Renews the lease. `None`: it has ended.
    async fn confirm(self: &Arc<Self>, id: i64) -> Result<Option<Tenure>, Error> {
        let sent = now();
        let ask = |client: etcd_client::Client| async move {
            client.lease_client().keep_alive(id).await.map(drop)
        };
        match self.link.call(ask).await {
            Ok(_) => {
                let mut book = self.book();
                Ok(match &mut book.lease {
                    Slot::Held(tenure) if tenure.id == id => {
                        tenure.confirmed = tenure.confirmed.max(sent);
                        Some(*tenure)
                    }
                    _ => None,
                })
            }
            Err(Failure::LeaseGone) => {
                self.lose(id);
                Ok(None)
            }
            Err(Failure::Other(error)) => Err(error),
        }
    }

    /// The lease has ended, and everything of this process with it.
    pub(super) fn lose(&self, id: i64) {
        let mut book = self.book();
        if !matches!(&book.lease, Slot::Held(tenure) if tenure.id == id) {
            return;
        }
        book.lease = Slot::Empty;
        book.desks.values_mut().for_each(super::desk::Desk::lose);
        drop(book);
        tracing::warn!("the etcd lease of this process has ended: everything that it held is lost");
        self.events.send(Event::Lost);
    }

    fn grant(self: &Arc<Self>, book: &mut Book, lease: Duration) -> Result<Attempt, Error> {
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| no_runtime())?;
        let (done, attempt) = oneshot::channel();
        let attempt = attempt.map(Result::ok).boxed().shared();
        book.lease = Slot::Granting(attempt.clone(), now());
        let (inner, this) = (self.clone(), attempt.clone());
        runtime.spawn(async move {
            let granted = timeout(GRANTING, inner.ask_for_lease(lease)).await;
            let granted = granted.unwrap_or_else(|_| {
                Err(Error::new(
                    ErrorKind::Unavailable,
                    "etcd does not answer: no lease",
                ))
            });
            let mut book = inner.book();
            if matches!(&book.lease, Slot::Granting(attempt, _) if attempt.ptr_eq(&this)) {
                book.lease = match &granted {
                    Ok(tenure) => Slot::Held(*tenure),
                    Err(_) => Slot::Empty,
                };
            }
            drop(book);
            let _ = done.send(granted.map(drop));
        });
        Ok(attempt)
    }

    async fn ask_for_lease(self: &Arc<Self>, lease: Duration) -> Result<Tenure, Error> {
        let asked = seconds(lease);
        let sent = now();
        let ask = |client: etcd_client::Client| async move {
            client.lease_client().grant(asked, None).await
        };
        let granted = self.link.call(ask).await?.value;
        let (id, ttl) = (granted.id(), granted.ttl());
        let fence = self.put_fence(id).await?;
        Ok(Tenure {
            id,
            ttl: Duration::from_secs(u64::try_from(ttl).unwrap_or(0)),
            confirmed: sent,
            fence,
        })
    }

    async fn put_fence(self: &Arc<Self>, lease: i64) -> Result<i64, Failure> {
        let key = wire::fence(&self.prefix, &self.node);
        let ask = |client: etcd_client::Client| {
            let key = key.clone();
            async move {
                let options = PutOptions::new().with_lease(lease);
                client.kv_client().put(key, "", Some(options)).await
            }
        };
        // Said twice, an earlier one may come late and change the revision: that shows at the next write.
        let answer = self.link.call(ask).await?.value;
        let revision = answer.header().map(etcd_client::ResponseHeader::revision);
        Ok(revision.ok_or_else(wire::nonsense)?)
    }

    /// From here on nothing that was written before and is still on its way changes anything.
    ///
    /// After an outage all names want this at once, and each move lets all writes fail that are under way: so there is one
    /// move at a time, and one for all who came before it began. With `joins` the one that is under way will do.
    pub(super) async fn move_fence(
        self: &Arc<Self>,
        lease: i64,
        joins: bool,
    ) -> Result<(), Failure> {
        let wanted = {
            let fence = &self.book().fence;
            let next = !joins || fence.moving.is_none();
            fence.started + u64::from(next)
        };
        loop {
            let moving = {
                let mut book = self.book();
                match &book.fence.moving {
                    _ if book.fence.done >= wanted => return Ok(()),
                    Some(moving) if now() < moving.since + STUCK => moving.clone(),
                    _ => self.begin_move(&mut book, lease)?,
                }
            };
            match moving.attempt.await {
                Some(moved) if moving.number >= wanted && moving.lease == lease => return moved,
                Some(_) => {}
                None => self.book().fence.end(moving.number),
            }
        }
    }

    fn begin_move(self: &Arc<Self>, book: &mut Book, lease: i64) -> Result<Moving, Error> {
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| no_runtime())?;
        let (done, attempt) = oneshot::channel();
        let fence = &mut book.fence;
        fence.started += 1;
        let moving = Moving {
            number: fence.started,
            lease,
            since: now(),
            attempt: attempt.map(Result::ok).boxed().shared(),
        };
        fence.moving = Some(moving.clone());
        let (inner, number) = (self.clone(), moving.number);
        runtime.spawn(async move {
            let moved = timeout(GRANTING, inner.put_fence(lease)).await;
            let moved = moved.unwrap_or_else(|_| Err(wire::silent("all addresses")));
            let mut book = inner.book();
            book.fence.end(number);
            if let Ok(fence) = moved {
                book.fence.done = book.fence.done.max(number);
                if let Slot::Held(tenure) = &mut book.lease
                    && tenure.id == lease
                {
                    tenure.fence = tenure.fence.max(fence);
                }
            }
            drop(book);
            let _ = done.send(moved.map(drop));
        });
        Ok(moving)
    }

    /// The lease, if it is still this one.
    pub(super) fn still(&self, lease: i64) -> Result<Tenure, Failure> {
        match &self.book().lease {
            Slot::Held(tenure) if tenure.id == lease => Ok(*tenure),
            _ => Err(wire::lease_ended().into()),
        }
    }

    fn forget(&self, attempt: &Attempt) {
        let mut book = self.book();
        if matches!(&book.lease, Slot::Granting(granting, _) if granting.ptr_eq(attempt)) {
            book.lease = Slot::Empty;
        }
    }

    // --- the keeper ---

    /// Sees to it that a keeper runs while there is a lease.
    pub(super) fn look_after_keeper(self: &Arc<Self>) {
        let now = now();
        let mut book = self.book();
        let slot = &mut book.keeper;
        if slot.due.is_some_and(|due| now < due + PATIENCE) {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        slot.current += 1;
        slot.due = Some(now);
        let keeper = Keeper {
            inner: Arc::downgrade(self),
            number: slot.current,
            ended: self.alive.subscribe(),
        };
        drop(book);
        runtime.spawn(keeper.run());
    }

    /// What to do now. `late`: so much later than it meant to be.
    fn chores(&self, number: u64, late: Duration, swept: &mut Instant) -> Option<Chores> {
        let now = now();
        let mut guard = self.book();
        let book = &mut *guard;
        if book.keeper.current != number {
            return None;
        }
        let pace = book.pace / 3;
        if late > pace / 2 {
            // This process was stalled, or its clock jumped: its gates could not speak either. The word is etcd's.
            book.desks.values_mut().for_each(|desk| desk.forgive(late));
        }
        let mut chores = Chores {
            confirm: None,
            expired: Vec::new(),
            sweep: None,
            revoke: None,
            next: now + pace,
        };
        book.desks.retain(|_, desk| !desk.is_over(now));
        for (queue, desk) in &mut book.desks {
            let expired = desk.expire(&self.node, now);
            if !expired.is_empty() {
                chores.expired.push((queue.clone(), expired));
            }
            if let Some(end) = desk.next_end() {
                chores.next = chores.next.min(end);
            }
        }
        let idle = book.desks.values().all(super::desk::Desk::is_idle);
        if !idle {
            book.idle_since = None;
        }
        let idle = idle && *book.idle_since.get_or_insert(now) + pace <= now;
        if let Slot::Held(tenure) = &book.lease {
            if idle {
                chores.revoke = Some(tenure.id);
                book.lease = Slot::Empty;
            } else {
                if tenure.confirmed + pace <= now {
                    chores.confirm = Some(tenure.id);
                }
                if *swept + book.pace <= now {
                    *swept = now;
                    chores.sweep = Some(tenure.id);
                }
            }
        }
        // From here on the next call starts a new one.
        let last = idle && !matches!(book.lease, Slot::Granting(..));
        book.keeper.due = (!last).then_some(chores.next + GRANTING);
        Some(chores)
    }

    async fn do_chores(self: &Arc<Self>, chores: &Chores) {
        if let Some(lease) = chores.revoke {
            self.revoke(lease).await;
        }
        if let Some(lease) = chores.confirm {
            let _ = self.confirm(lease).await;
        }
        for (queue, expired) in &chores.expired {
            for some in expired.chunks(MOST_OPS) {
                self.remove(queue, some).await;
            }
        }
        if let Some(lease) = chores.sweep {
            self.sweep(lease).await;
        }
    }

    pub(super) async fn revoke(self: &Arc<Self>, lease: i64) {
        let ask =
            |client: etcd_client::Client| async move { client.lease_client().revoke(lease).await };
        let _ = self.link.call(ask).await;
    }

    /// Removes keys that have run out, unless they were made anew meanwhile.
    async fn remove(self: &Arc<Self>, queue: &Queue, tickets: &[(u64, i64)]) {
        let prefix = wire::line_prefix(&self.prefix, queue);
        let ops: Vec<TxnOp> = (tickets.iter())
            .map(|(ticket, created)| {
                let key = format!("{prefix}{}", self.node.ticket(*ticket));
                let same = Compare::create_revision(key.clone(), CompareOp::Equal, *created);
                TxnOp::txn(Txn::new().when([same]).and_then([TxnOp::delete(key, None)]))
            })
            .collect();
        let ask = |client: etcd_client::Client| {
            let txn = Txn::new().and_then(ops.clone());
            async move { client.kv_client().txn(txn).await }
        };
        if self.link.call(ask).await.is_ok()
            && let Some(desk) = self.book().desks.get_mut(queue)
        {
            desk.cleared(tickets);
        }
    }

    /// Removes what stands under our lease and that nobody here knows of: a write that came late, or a ticket whose
    /// leave was never answered.
    async fn sweep(self: &Arc<Self>, lease: i64) {
        let ask = |client: etcd_client::Client| async move {
            let options = LeaseTimeToLiveOptions::new().with_keys();
            client
                .lease_client()
                .time_to_live(lease, Some(options))
                .await
        };
        let Ok(answer) = self.link.call(ask).await else {
            return;
        };
        for key in answer.value.keys() {
            let Some((queue, ticket)) = wire::own_key(key, &self.prefix, &self.node) else {
                continue;
            };
            let known = || {
                let book = self.book();
                let desk = book.desks.get(&queue);
                desk.is_some_and(|desk| desk.running || desk.knows(ticket))
            };
            if known() {
                continue;
            }
            // It may be made anew, and be known then.
            if let Some(created) = self.created(key).await
                && !known()
            {
                self.remove(&queue, &[(ticket, created)]).await;
            }
        }
    }

    async fn created(self: &Arc<Self>, key: &[u8]) -> Option<i64> {
        let ask =
            |client: etcd_client::Client| async move { client.kv_client().get(key, None).await };
        let answer = self.link.call(ask).await.ok()?;
        Some(answer.value.kvs().first()?.create_revision())
    }
}

fn no_runtime() -> Error {
    Error::new(ErrorKind::NoRuntime, "etcd needs a tokio runtime")
}

/// A little more than the gates want, in etcd's whole seconds.
fn seconds(lease: Duration) -> i64 {
    let lease = lease + lease / 10;
    let whole = lease.as_secs() + u64::from(lease.subsec_nanos() > 0);
    i64::try_from(whole.max(1)).unwrap_or(i64::MAX)
}

// === impl FenceSlot ===

impl FenceSlot {
    fn end(&mut self, number: u64) {
        self.moving.take_if(|moving| moving.number == number);
    }
}

// === impl Keeper ===

impl Keeper {
    async fn run(mut self) {
        let mut swept = now();
        let mut late = Duration::ZERO;
        loop {
            let chores = {
                let Some(inner) = self.inner.upgrade() else {
                    break;
                };
                let Some(chores) = inner.chores(self.number, late, &mut swept) else {
                    break;
                };
                inner.do_chores(&chores).await;
                chores
            };
            let stopped = {
                let Some(inner) = self.inner.upgrade() else {
                    break;
                };
                let mut book = inner.book();
                let current = book.keeper.current == self.number;
                let stopped = !current || book.keeper.due.is_none();
                if !stopped {
                    book.keeper.due = Some(chores.next.max(now()));
                }
                stopped
            };
            if stopped {
                break;
            }
            let wake = chores.next.max(now());
            tokio::select! {
                () = sleep_until(wake) => {}
                // The session is gone: nobody holds anything any more.
                _ = self.ended.changed() => break,
            }
            late = now().saturating_duration_since(wake);
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.upgrade() {
            let mut book = inner.book();
            if book.keeper.current == self.number {
                book.keeper.due = None;
            }
        }
    }
}
