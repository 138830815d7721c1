//! The ends of a coordinator: flush and shutdown.

use super::queue_client::{QueueClient, shutting_down};
use super::registry::Client;
use super::state::State;
use crate::clock::now;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How often progress is checked at least.
const CHECK: Duration = Duration::from_millis(250);

impl Client {
    /// Releases what lingers. Resolves when every release so far is acknowledged.
    pub(crate) async fn flush(self: &Arc<Self>) {
        let release = |name: Arc<QueueClient>| {
            let tickets: Vec<u64> = name.update(|state, _| {
                state.permits.end_all_lingering();
                state.permits.releases.tickets().collect()
            });
            (tickets, name)
        };
        let mut releasing: Vec<_> = self.all().into_iter().map(release).collect();
        self.until(|| {
            releasing.retain_mut(|(tickets, name)| {
                name.read(|state| tickets.retain(|t| state.permits.releases.contains(*t)));
                !tickets.is_empty()
            });
            releasing.is_empty()
        })
        .await;
    }

    /// Refuses new callers, waits for `within` at most until everything is released, then releases what is still held.
    /// Ends when every release is acknowledged, or the backend does not answer. Returns how many permits were still held.
    pub(crate) async fn shut_down(self: &Arc<Self>, within: Duration) -> usize {
        self.closing.store(true, Ordering::Relaxed);
        for name in self.all() {
            name.update(|state, _| state.stop_lingering());
        }
        let _ = tokio::time::timeout(within, self.until(|| self.busy().is_empty())).await;
        let close = |name: &Arc<QueueClient>| name.close(&shutting_down());
        let taken_back = self.all().iter().map(close).sum();
        tokio::select! {
            () = self.until(|| self.busy().is_empty()) => {}
            () = self.without_answers() => {}
        }
        taken_back
    }

    /// Returns the names with a permit, a waiter or a release.
    fn busy(&self) -> Vec<Arc<QueueClient>> {
        let mut names = self.all();
        names.retain(|name| !name.read(State::is_quiet));
        names
    }

    /// Resolves when the condition holds, which only progress can make true.
    async fn until(self: &Arc<Self>, mut holds: impl FnMut() -> bool) {
        loop {
            let progress = self.progress.notified();
            tokio::pin!(progress);
            progress.as_mut().enable();
            // Without the runtime that the driver is bound to, nothing is acknowledged any more.
            if holds() || self.work.pinned.runtime().is_err() {
                return;
            }
            self.ensure_driver();
            let _ = tokio::time::timeout(CHECK, progress).await;
        }
    }

    /// Resolves when no progress is made for `outage_after`, and the backend does not answer or the calls of all busy names
    /// fail during that time.
    async fn without_answers(&self) {
        let (mut since, mut before) = (now(), usize::MAX);
        let outage_after = self.outages.outage_after;
        loop {
            let busy = self.busy();
            let fails =
                self.outages.outage(now()).is_some() || busy.iter().all(|name| name.is_failing());
            if busy.len() < before || !fails {
                since = now();
            } else if now().saturating_duration_since(since) >= outage_after {
                return;
            }
            before = busy.len();
            drop(busy);
            tokio::time::sleep(CHECK.min(outage_after)).await;
        }
    }
}
