//! The etcd lease of this process. All its keys are attached to it.
//!
//! It lasts a little longer than the coordinator's lease, so that not every call has to renew it. No call is answered that the
//! etcd lease would not outlast.

use super::errors::{self, Failure};
use super::name_state::NameState;
use super::session_state::{Granting, HeldLease, LeaseSlot, SessionState, Shared};
use crate::backend::Event;
use crate::clock::now;
use crate::error::{Error, ErrorKind};
use etcd_client::Client;
use futures_util::FutureExt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// The longest time that the grant of a lease, or a move of the fence, takes.
pub(super) const GRANT_TIMEOUT: Duration = Duration::from_secs(2);
/// A task without a result after this time belongs to a runtime that is not driven: another one starts.
pub(super) const TASK_STUCK: Duration = Duration::from_secs(3);

// === impl Shared ===

impl Shared {
    /// Returns an etcd lease that lasts for this long from now. Renews or creates it where necessary.
    pub(super) async fn lease_for(self: &Arc<Self>, lease: Duration) -> Result<HeldLease, Error> {
        let needed = now() + lease;
        for _ in 0..4 {
            let granting = {
                let mut state = self.state();
                match &state.lease {
                    LeaseSlot::Held(held) if held.confirmed + held.ttl >= needed => {
                        return Ok(*held);
                    }
                    LeaseSlot::Held(held) => Err(*held),
                    LeaseSlot::Granting(granting, since) if now() < *since + TASK_STUCK => {
                        Ok(granting.clone())
                    }
                    LeaseSlot::Granting(..) | LeaseSlot::Empty => {
                        Ok(self.start_grant(&mut state, lease)?)
                    }
                }
            };
            match granting {
                Ok(granting) => match granting.clone().await {
                    Some(Ok(())) => {}
                    Some(Err(error)) => return Err(error),
                    None => self.abandon_grant(&granting),
                },
                // A lease shorter than the call's is fresh at least. It does not occur within one coordinator.
                Err(HeldLease { id, ttl, .. }) => {
                    if let Some(held) = self.renew_lease(id).await?
                        && ttl < lease
                    {
                        return Ok(held);
                    }
                }
            }
        }
        Err(errors::lease_ended())
    }

    /// Renews the etcd lease. Returns `None` if it has ended.
    pub(super) async fn renew_lease(self: &Arc<Self>, id: i64) -> Result<Option<HeldLease>, Error> {
        let sent = now();
        let keep_alive =
            |client: Client| async move { client.lease_client().keep_alive(id).await.map(drop) };
        match self.cluster.call(keep_alive).await {
            Ok(_) => {
                let mut state = self.state();
                Ok(match &mut state.lease {
                    LeaseSlot::Held(held) if held.id == id => {
                        held.confirmed = held.confirmed.max(sent);
                        Some(*held)
                    }
                    _ => None,
                })
            }
            Err(Failure::LeaseGone) => {
                self.lose_lease(id);
                Ok(None)
            }
            Err(Failure::Other(error)) => Err(error),
        }
    }

    /// Forgets all tickets of this process: the etcd lease has ended, and its keys are removed.
    pub(super) fn lose_lease(&self, id: i64) {
        let mut state = self.state();
        if !matches!(&state.lease, LeaseSlot::Held(held) if held.id == id) {
            return;
        }
        state.lease = LeaseSlot::Empty;
        state.names.values_mut().for_each(NameState::clear);
        drop(state);
        tracing::warn!(
            "the etcd lease of this process has ended: all its permits and queue entries are lost"
        );
        self.events.send(Event::Lost);
    }

    pub(super) async fn revoke_lease(self: &Arc<Self>, id: i64) {
        let revoke = |client: Client| async move { client.lease_client().revoke(id).await };
        let _ = self.cluster.call(revoke).await;
    }

    fn start_grant(
        self: &Arc<Self>,
        state: &mut SessionState,
        lease: Duration,
    ) -> Result<Granting, Error> {
        let runtime = errors::runtime()?;
        let (result, granting) = oneshot::channel();
        let granting = granting.map(Result::ok).boxed().shared();
        state.lease = LeaseSlot::Granting(granting.clone(), now());
        let (shared, this) = (self.clone(), granting.clone());
        runtime.spawn(async move {
            let granted = timeout(GRANT_TIMEOUT, shared.grant_lease(lease)).await;
            let granted = granted.unwrap_or_else(|_| {
                Err(Error::new(
                    ErrorKind::Unavailable,
                    format!("etcd did not grant a lease within {GRANT_TIMEOUT:?}"),
                ))
            });
            let mut state = shared.state();
            if matches!(&state.lease, LeaseSlot::Granting(granting, _) if granting.ptr_eq(&this)) {
                state.lease = match &granted {
                    Ok(held) => LeaseSlot::Held(*held),
                    Err(_) => LeaseSlot::Empty,
                };
            }
            drop(state);
            let _ = result.send(granted.map(drop));
        });
        Ok(granting)
    }

    async fn grant_lease(self: &Arc<Self>, lease: Duration) -> Result<HeldLease, Error> {
        let ttl = ttl_seconds(lease);
        let sent = now();
        let grant = |client: Client| async move { client.lease_client().grant(ttl, None).await };
        let granted = self.cluster.call(grant).await?.value;
        let (id, ttl) = (granted.id(), granted.ttl());
        let fence = self.write_session_key(id).await?;
        Ok(HeldLease {
            id,
            ttl: Duration::from_secs(u64::try_from(ttl).unwrap_or(0)),
            confirmed: sent,
            fence,
        })
    }

    /// The runtime of a grant has ended, and the grant with it.
    fn abandon_grant(&self, this: &Granting) {
        let mut state = self.state();
        if matches!(&state.lease, LeaseSlot::Granting(granting, _) if granting.ptr_eq(this)) {
            state.lease = LeaseSlot::Empty;
        }
    }
}

/// Returns a little more than the coordinator's lease, in etcd's whole seconds.
fn ttl_seconds(lease: Duration) -> i64 {
    let lease = lease + lease / 10;
    let seconds = lease.as_secs() + u64::from(lease.subsec_nanos() > 0);
    i64::try_from(seconds.max(1)).unwrap_or(i64::MAX)
}
