//! The ZooKeeper session of one node.

use super::errors;
use super::session_state::Shared;
use crate::backend::{Batching, Call, Capabilities, Inspection, Replies, Session, each};
use crate::error::Error;
use crate::name::Queue;
use futures_util::future::BoxFuture;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// The longest time that an inspection or an eviction takes.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest time that a check takes.
pub(super) const CHECK_TIMEOUT: Duration = Duration::from_secs(3);

/// The session of one node.
pub(super) struct ZooKeeperSession {
    pub(super) shared: Arc<Shared>,
}

// === impl ZooKeeperSession ===

impl ZooKeeperSession {
    async fn within<T>(
        &self,
        time: Duration,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let result = timeout(time, work).await;
        result.unwrap_or_else(|_| Err(errors::no_answer(self.shared.servers())))
    }
}

impl Session for ZooKeeperSession {
    fn exchange(&self, batch: Vec<Call>) -> Replies<'_> {
        each(
            batch,
            |call| async move { self.shared.exchange(&call).await },
        )
    }

    fn batching(&self) -> Batching {
        Batching::SINGLE
    }

    fn inspect(&self, queue: Queue) -> BoxFuture<'_, Result<Inspection, Error>> {
        Box::pin(async move {
            let work = self.shared.inspect(&queue);
            self.within(OPERATION_TIMEOUT, work).await
        })
    }

    fn evict(&self, queue: Queue, ticket: String) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(async move {
            let work = self.shared.evict(&queue, &ticket);
            self.within(OPERATION_TIMEOUT, work).await
        })
    }

    fn check(&self, lease: Duration) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(self.within(CHECK_TIMEOUT, self.shared.check(lease)))
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            fifo: true,
            token: true,
            max_limit: u32::MAX,
            min_lease: Duration::from_secs(1),
        }
    }
}
