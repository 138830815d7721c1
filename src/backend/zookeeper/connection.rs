//! A connection that serves the session.

use crate::backend::reconnect;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use zookeeper_client::Client;

/// A connection. The client crate reconnects by itself for as long as its runtime is driven and the session lives.
pub(super) struct Connection {
    pub(super) client: Client,
    pub(super) epoch: u64,
    /// The session timeout that was requested. The server may have granted less.
    pub(super) requested_timeout: Duration,
    /// Its runtime or its session has ended.
    ended: Arc<AtomicBool>,
    /// Closes when this connection was replaced, so that its tasks end.
    replaced: watch::Receiver<()>,
    _replaced: watch::Sender<()>,
    /// A call succeeded.
    pub(super) has_answered: AtomicBool,
    /// Counts the answers.
    pub(super) answers: AtomicU32,
    /// Calls that were given up since the last answer.
    pub(super) given_up: AtomicU32,
}

/// Marks a connection as ended when it is dropped, together with the task that holds it.
pub(super) struct EndGuard(Arc<AtomicBool>);

// === impl Connection ===

impl Connection {
    pub(super) fn new(client: Client, epoch: u64, requested_timeout: Duration) -> Arc<Self> {
        let (sender, replaced) = watch::channel(());
        Arc::new(Self {
            client,
            epoch,
            requested_timeout,
            ended: Arc::default(),
            replaced,
            _replaced: sender,
            has_answered: AtomicBool::new(false),
            answers: AtomicU32::new(0),
            given_up: AtomicU32::new(0),
        })
    }

    pub(super) fn replaced(&self) -> watch::Receiver<()> {
        self.replaced.clone()
    }

    pub(super) fn end_guard(&self) -> EndGuard {
        EndGuard(self.ended.clone())
    }
}

impl reconnect::Connection for Connection {
    fn is_driven(&self) -> bool {
        !self.ended.load(Ordering::Relaxed)
    }

    fn has_answered(&self) -> bool {
        self.has_answered.load(Ordering::Relaxed)
    }

    /// Not known: the end of the session looks the same.
    fn ended_with_runtime(&self) -> bool {
        false
    }
}

// === impl EndGuard ===

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
