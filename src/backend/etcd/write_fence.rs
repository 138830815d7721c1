//! The fence: late writes of this process change nothing.
//!
//! Each session has a key, and each write of a ticket is conditional on that key's revision. A call that was given up may still
//! be executed later. Writing the session's key again changes its revision, and every write before that fails.

use super::errors::{self, Failure};
use super::keys;
use super::lease::{GRANT_TIMEOUT, TASK_STUCK};
use super::session_state::{FenceMove, LeaseSlot, SessionState, Shared};
use crate::clock::now;
use crate::error::Error;
use etcd_client::{Client, PutOptions, ResponseHeader};
use futures_util::FutureExt;
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::time::timeout;

// === impl Shared ===

impl Shared {
    /// Writes the session's key. Returns its revision.
    pub(super) async fn write_session_key(self: &Arc<Self>, lease: i64) -> Result<i64, Failure> {
        let key = keys::session_key(&self.prefix, &self.node);
        let put = |client: Client| {
            let key = key.clone();
            async move {
                let options = PutOptions::new().with_lease(lease);
                client.kv_client().put(key, "", Some(options)).await
            }
        };
        // If it was sent twice, the first copy may be executed later and change the revision. The next write detects that.
        let answer = self.cluster.call(put).await?.value;
        let revision = answer.header().map(ResponseHeader::revision);
        Ok(revision.ok_or_else(errors::unexpected_answer)?)
    }

    /// Moves the fence: no write that was sent before this call changes anything after it.
    ///
    /// Each move makes all writes in flight fail, and after an outage every name needs one at once. So there is one move at a
    /// time, and it serves all calls that began before it. With `joins`, a move that is in flight already suffices.
    pub(super) async fn move_fence(
        self: &Arc<Self>,
        lease: i64,
        joins: bool,
    ) -> Result<(), Failure> {
        let needed = {
            let fence = &self.state().fence;
            let next = !joins || fence.moving.is_none();
            fence.started + u64::from(next)
        };
        loop {
            let moving = {
                let mut state = self.state();
                match &state.fence.moving {
                    _ if state.fence.done >= needed => return Ok(()),
                    Some(moving) if now() < moving.since + TASK_STUCK => moving.clone(),
                    _ => self.start_fence_move(&mut state, lease)?,
                }
            };
            match moving.done.await {
                Some(result) if moving.number >= needed && moving.lease == lease => return result,
                Some(_) => {}
                // Its runtime has ended.
                None => self.state().fence.end(moving.number),
            }
        }
    }

    fn start_fence_move(
        self: &Arc<Self>,
        state: &mut SessionState,
        lease: i64,
    ) -> Result<FenceMove, Error> {
        let runtime = errors::runtime()?;
        let (result, done) = oneshot::channel();
        let fence = &mut state.fence;
        fence.started += 1;
        let moving = FenceMove {
            number: fence.started,
            lease,
            since: now(),
            done: done.map(Result::ok).boxed().shared(),
        };
        fence.moving = Some(moving.clone());
        let (shared, number) = (self.clone(), moving.number);
        runtime.spawn(async move {
            let moved = timeout(GRANT_TIMEOUT, shared.write_session_key(lease)).await;
            let moved = moved.unwrap_or_else(|_| Err(errors::no_answer("all addresses")));
            let mut state = shared.state();
            state.fence.end(number);
            if let Ok(revision) = moved {
                state.fence.done = state.fence.done.max(number);
                if let LeaseSlot::Held(held) = &mut state.lease
                    && held.id == lease
                {
                    held.fence = held.fence.max(revision);
                }
            }
            drop(state);
            let _ = result.send(moved.map(drop));
        });
        Ok(moving)
    }
}
