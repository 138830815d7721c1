//! The maintenance task: it renews the etcd lease, removes expired tickets, and revokes the lease of an idle session.
//!
//! The one etcd lease is renewed for all tickets, so a ticket that no call has named for a lease is removed by this task.

use super::keys;
use super::lease::GRANT_TIMEOUT;
use super::name_state::NameState;
use super::session_state::{LeaseSlot, Shared};
use crate::clock::{now, sleep_until};
use crate::name::Queue;
use etcd_client::{Client, Compare, CompareOp, LeaseTimeToLiveOptions, Txn, TxnOp};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// A task that is this late is on a runtime that is not driven: another one starts.
const TASK_LATE: Duration = Duration::from_millis(250);
/// How many keys one transaction names at most. etcd allows 128 operations.
pub(super) const MAX_OPERATIONS: usize = 100;

struct MaintenanceTask {
    shared: Weak<Shared>,
    number: u64,
    session_ended: watch::Receiver<()>,
}

/// What the task has to do now.
struct Chores {
    renew: Option<i64>,
    /// Tickets with the revisions that created them.
    expired: Vec<(Queue, Vec<(u64, i64)>)>,
    sweep: Option<i64>,
    revoke: Option<i64>,
    next: Instant,
}

// === impl Shared ===

impl Shared {
    /// Starts the maintenance task unless it runs.
    pub(super) fn ensure_maintenance(self: &Arc<Self>) {
        let now = now();
        let mut state = self.state();
        let slot = &mut state.maintenance;
        if slot.due.is_some_and(|due| now < due + TASK_LATE) {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        slot.current += 1;
        slot.due = Some(now);
        let task = MaintenanceTask {
            shared: Arc::downgrade(self),
            number: slot.current,
            session_ended: self.alive.subscribe(),
        };
        drop(state);
        runtime.spawn(task.run());
    }

    /// Returns what to do now. `late`: how much later than planned the task woke up.
    fn chores(&self, number: u64, late: Duration, swept: &mut Instant) -> Option<Chores> {
        let now = now();
        let mut guard = self.state();
        let state = &mut *guard;
        if state.maintenance.current != number {
            return None;
        }
        let pace = state.ticket_lease / 3;
        if late > pace / 2 {
            // The process was stalled, or its clock jumped. It could not send heartbeats either, so whether its tickets have
            // expired is decided by etcd.
            (state.names.values_mut()).for_each(|name| name.extend(late));
        }
        let mut chores = Chores {
            renew: None,
            expired: Vec::new(),
            sweep: None,
            revoke: None,
            next: now + pace,
        };
        state.names.retain(|_, name| !name.is_over(now));
        for (queue, name) in &mut state.names {
            let expired = name.expire(&self.node, now);
            if !expired.is_empty() {
                chores.expired.push((queue.clone(), expired));
            }
            if let Some(expiry) = name.next_expiry() {
                chores.next = chores.next.min(expiry);
            }
        }
        let idle = state.names.values().all(NameState::is_idle);
        if !idle {
            state.idle_since = None;
        }
        let idle = idle && *state.idle_since.get_or_insert(now) + pace <= now;
        if let LeaseSlot::Held(held) = &state.lease {
            if idle {
                chores.revoke = Some(held.id);
                state.lease = LeaseSlot::Empty;
            } else {
                if held.confirmed + pace <= now {
                    chores.renew = Some(held.id);
                }
                if *swept + state.ticket_lease <= now {
                    *swept = now;
                    chores.sweep = Some(held.id);
                }
            }
        }
        // After the last step, the next call starts a new task.
        let last = idle && !matches!(state.lease, LeaseSlot::Granting(..));
        state.maintenance.due = (!last).then_some(chores.next + GRANT_TIMEOUT);
        Some(chores)
    }

    async fn do_chores(self: &Arc<Self>, chores: &Chores) {
        if let Some(lease) = chores.revoke {
            self.revoke_lease(lease).await;
        }
        if let Some(lease) = chores.renew {
            let _ = self.renew_lease(lease).await;
        }
        for (queue, expired) in &chores.expired {
            for some in expired.chunks(MAX_OPERATIONS) {
                self.remove(queue, some).await;
            }
        }
        if let Some(lease) = chores.sweep {
            self.sweep(lease).await;
        }
    }

    /// Removes the keys of expired tickets, unless they were created again meanwhile.
    async fn remove(self: &Arc<Self>, queue: &Queue, tickets: &[(u64, i64)]) {
        let prefix = keys::queue_prefix(&self.prefix, queue);
        let operations: Vec<TxnOp> = (tickets.iter())
            .map(|(ticket, created)| {
                let key = format!("{prefix}{}", self.node.ticket(*ticket));
                let same = Compare::create_revision(key.clone(), CompareOp::Equal, *created);
                TxnOp::txn(Txn::new().when([same]).and_then([TxnOp::delete(key, None)]))
            })
            .collect();
        let delete = |client: Client| {
            let txn = Txn::new().and_then(operations.clone());
            async move { client.kv_client().txn(txn).await }
        };
        if self.cluster.call(delete).await.is_ok()
            && let Some(name) = self.state().names.get_mut(queue)
        {
            name.expired_removed(tickets);
        }
    }

    /// Removes keys under the etcd lease that no ticket here accounts for: writes that were executed late, and tickets with
    /// an unanswered release.
    async fn sweep(self: &Arc<Self>, lease: i64) {
        let list_keys = |client: Client| async move {
            let options = LeaseTimeToLiveOptions::new().with_keys();
            client
                .lease_client()
                .time_to_live(lease, Some(options))
                .await
        };
        let Ok(answer) = self.cluster.call(list_keys).await else {
            return;
        };
        for key in answer.value.keys() {
            let Some((queue, ticket)) = keys::own_ticket(key, &self.prefix, &self.node) else {
                continue;
            };
            let is_known = || {
                let state = self.state();
                let name = state.names.get(&queue);
                name.is_some_and(|name| name.running || name.knows(ticket))
            };
            if is_known() {
                continue;
            }
            // It may be created again meanwhile, and is known then.
            if let Some(created) = self.created(key).await
                && !is_known()
            {
                self.remove(&queue, &[(ticket, created)]).await;
            }
        }
    }

    async fn created(self: &Arc<Self>, key: &[u8]) -> Option<i64> {
        let get = |client: Client| async move { client.kv_client().get(key, None).await };
        let answer = self.cluster.call(get).await.ok()?;
        Some(answer.value.kvs().first()?.create_revision())
    }
}

// === impl MaintenanceTask ===

impl MaintenanceTask {
    async fn run(mut self) {
        let mut swept = now();
        let mut late = Duration::ZERO;
        loop {
            let chores = {
                let Some(shared) = self.shared.upgrade() else {
                    break;
                };
                let Some(chores) = shared.chores(self.number, late, &mut swept) else {
                    break;
                };
                shared.do_chores(&chores).await;
                chores
            };
            let stopped = {
                let Some(shared) = self.shared.upgrade() else {
                    break;
                };
                let mut state = shared.state();
                let current = state.maintenance.current == self.number;
                let stopped = !current || state.maintenance.due.is_none();
                if !stopped {
                    state.maintenance.due = Some(chores.next.max(now()));
                }
                stopped
            };
            if stopped {
                break;
            }
            let wake = chores.next.max(now());
            tokio::select! {
                () = sleep_until(wake) => {}
                _ = self.session_ended.changed() => break,
            }
            late = now().saturating_duration_since(wake);
        }
    }
}

impl Drop for MaintenanceTask {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            let mut state = shared.state();
            if state.maintenance.current == self.number {
                state.maintenance.due = None;
            }
        }
    }
}
