//! The ends of a coordinator: flush and shutdown.

use super::queue_client::{QueueClient, shutting_down};
use super::registry::Client;
use crate::clock::now;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// How often progress is checked at least.
const CHECK: Duration = Duration::from_millis(250);

/// A task that waits for progress.
struct Watcher<'a>(&'a AtomicUsize);

// === impl Client ===

impl Client {
    /// Releases what lingers. Resolves when every release so far is acknowledged.
    pub(crate) async fn flush(self: &Arc<Self>) {
        let _watcher = Watcher::new(&self.watchers);
        let mut releasing: Vec<_> = (self.all().into_iter())
            .map(|name| (name.flush(), name))
            .collect();
        self.until(|| {
            releasing.retain_mut(|(tickets, name)| {
                tickets.retain(|ticket| name.is_releasing(*ticket));
                !tickets.is_empty()
            });
            releasing.is_empty()
        })
        .await;
    }

    /// Refuses new callers, waits for `within` at most until everything is released, then releases what is still held.
    /// Ends when every release is acknowledged, or the backend does not answer. Returns how many permits were still held.
    pub(crate) async fn shut_down(self: &Arc<Self>, within: Duration) -> usize {
        let _watcher = Watcher::new(&self.watchers);
        self.closing.store(true, Ordering::Relaxed);
        self.all().iter().for_each(|name| name.stop_lingering());
        let _ = tokio::time::timeout(within, self.until(|| self.busy().is_empty())).await;
        let names = self.all();
        let cut = names.iter().map(|name| name.close(&shutting_down())).sum();
        drop(names);
        tokio::select! {
            () = self.until(|| self.busy().is_empty()) => {}
            () = self.without_answers() => {}
        }
        cut
    }

    /// The names that hold, wait or release.
    fn busy(&self) -> Vec<Arc<QueueClient>> {
        let mut names = self.all();
        names.retain(|name| !name.is_quiet());
        names
    }

    /// Resolves when the condition holds, which only progress can make true.
    async fn until(self: &Arc<Self>, mut holds: impl FnMut() -> bool) {
        loop {
            let progress = self.progress.notified();
            tokio::pin!(progress);
            progress.as_mut().enable();
            // Without its runtime nothing will be acknowledged any more.
            if holds() || self.work.check_pinned().is_err() {
                return;
            }
            self.ensure_driver();
            let _ = tokio::time::timeout(CHECK, progress).await;
        }
    }

    /// Resolves when the backend is known not to answer, or the calls of all busy names fail, for as long as makes an outage,
    /// without any progress.
    async fn without_answers(&self) {
        let (mut since, mut before) = (now(), usize::MAX);
        loop {
            let busy = self.busy();
            let fails =
                self.outages.outage().is_some() || busy.iter().all(|name| name.is_failing());
            if busy.len() < before || !fails {
                since = now();
            } else if now().saturating_duration_since(since) >= self.outages.outage_after() {
                return;
            }
            before = busy.len();
            drop(busy);
            tokio::time::sleep(CHECK.min(self.outages.outage_after())).await;
        }
    }

    /// A name has become quiet, or a release was acknowledged.
    pub(super) fn note_progress(&self) {
        if self.watchers.load(Ordering::Relaxed) > 0 {
            self.progress.notify_waiters();
        }
    }
}

// === impl Watcher ===

impl<'a> Watcher<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Watcher<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
