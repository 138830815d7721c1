//! The etcd session of one node.

use super::session_state::Shared;
use crate::backend::{Batching, Call, Capabilities, Inspection, Replies, Session, each};
use crate::error::{Error, ErrorKind};
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

/// The session of one node. Its tasks end with it.
pub(super) struct EtcdSession {
    pub(super) shared: Arc<Shared>,
}

// === impl EtcdSession ===

impl Session for EtcdSession {
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
        Box::pin(async move { within(OPERATION_TIMEOUT, self.shared.inspect(&queue)).await })
    }

    fn evict(&self, queue: Queue, ticket: String) -> BoxFuture<'_, Result<bool, Error>> {
        Box::pin(async move { within(OPERATION_TIMEOUT, self.shared.evict(&queue, &ticket)).await })
    }

    fn check(&self, _lease: Duration) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(within(CHECK_TIMEOUT, self.shared.check()))
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

async fn within<T>(
    time: Duration,
    work: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    timeout(time, work).await.unwrap_or_else(|_| {
        Err(Error::new(
            ErrorKind::Unavailable,
            format!("etcd did not answer within {time:?}"),
        ))
    })
}
