//! One watch for each name that a ticket of ours waits for: it follows the line, and says who is granted.

use super::Inner;
use super::desk::Desk;
use super::wire;
use crate::backend::{Event, Grant};
use crate::error::Error;
use crate::name::Queue;
use etcd_client::{EventType, WatchOptions, WatchResponse, WatchStream};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::timeout;

/// How long a watch may take to begin.
const OPENING: Duration = Duration::from_secs(2);
/// The pause after one that broke.
const PAUSE: Duration = Duration::from_millis(50);

/// Follows one name, until nobody here waits any more.
struct Watcher {
    inner: Weak<Inner>,
    queue: Queue,
    number: u64,
    prefix: String,
    ended: watch::Receiver<()>,
}

/// Why a watch has ended.
enum End {
    /// Nobody waits, or the session is gone.
    Done,
    Broken,
}

impl Inner {
    /// Starts to follow a name.
    pub(super) fn watch(self: &Arc<Self>, queue: &Queue) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let mut book = self.book();
        book.watches += 1;
        let number = book.watches;
        let Some(desk) = book
            .desks
            .get_mut(queue)
            .filter(|desk| desk.watch.is_none())
        else {
            return;
        };
        desk.watch = Some(number);
        drop(book);
        let watcher = Watcher {
            inner: Arc::downgrade(self),
            queue: queue.clone(),
            number,
            prefix: wire::line_prefix(&self.prefix, queue),
            ended: self.alive.subscribe(),
        };
        runtime.spawn(watcher.run());
    }
}

// === impl Watcher ===

impl Watcher {
    async fn run(mut self) {
        let mut ended = self.ended.clone();
        tokio::select! {
            () = self.follow() => {}
            _ = ended.changed() => {}
        }
    }

    async fn follow(&mut self) {
        while let Some(inner) = self.inner.upgrade() {
            let changes = inner.link.changes();
            let stream = self.open(&inner).await;
            drop(inner);
            let end = match stream {
                Ok(stream) => self.hear(stream, changes).await,
                Err(_) => End::Broken,
            };
            if matches!(end, End::Done) || !self.tell(|desk| desk.watched = false) {
                return;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// A listing, and a watch that goes on from there.
    async fn open(&self, inner: &Arc<Inner>) -> Result<WatchStream, Error> {
        let line = inner.list(&self.prefix).await?;
        let from = line.revision() + 1;
        self.tell(|desk| desk.see(&line));
        let connection = inner.link.connection().await?;
        let options = WatchOptions::new().with_prefix().with_start_revision(from);
        let mut client = connection.client().watch_client();
        let opening = client.watch(self.prefix.clone(), Some(options));
        match timeout(OPENING, opening).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err(wire::failure(&error, connection.server()).0.into()),
            Err(_) => {
                inner.link.discard(&connection);
                Err(wire::silent(connection.server()).into())
            }
        }
    }

    async fn hear(&self, mut stream: WatchStream, mut changes: watch::Receiver<u64>) -> End {
        loop {
            let response = tokio::select! {
                response = stream.message() => response,
                // The connection was given up for another one.
                _ = changes.changed() => return End::Broken,
            };
            let Ok(Some(response)) = response else {
                return End::Broken;
            };
            // What it wants to tell was compacted away, or its server has lost the others: look and begin anew.
            if response.canceled() || response.compact_revision() > 0 {
                return End::Broken;
            }
            if !self.tell(|desk| self.apply(desk, &response)) {
                return End::Done;
            }
        }
    }

    fn apply(&self, desk: &mut Desk, response: &WatchResponse) {
        desk.watched = true;
        let line = desk.line();
        let known = line.revision();
        for event in response.events() {
            let Some(kv) = event.kv().filter(|kv| kv.mod_revision() > known) else {
                continue;
            };
            match event.event_type() {
                EventType::Put => {
                    if let Some((created, place)) = wire::place(kv, &self.prefix) {
                        line.put(created, place);
                    }
                }
                EventType::Delete => {
                    if let Some(ticket) = wire::ticket(kv.key(), &self.prefix) {
                        line.remove(ticket);
                    }
                }
            }
        }
        // Not the revision of the response: of a long history more may follow.
        let told = response.events().iter().filter_map(|event| event.kv());
        if let Some(last) = told.map(|kv| kv.mod_revision()).max() {
            line.advance(last);
        }
    }

    /// Changes what is known, and tells of grants. `false`: this watch is not needed any more.
    fn tell(&self, change: impl FnOnce(&mut Desk)) -> bool {
        let Some(inner) = self.inner.upgrade() else {
            return false;
        };
        let mut book = inner.book();
        let desk = book.desks.get_mut(&self.queue);
        let Some(desk) = desk.filter(|desk| desk.watch == Some(self.number)) else {
            return false;
        };
        change(desk);
        // While a call is under way it looks by itself, and tells in its answer.
        let grants: Vec<Grant> = match desk.running {
            true => Vec::new(),
            false => desk.look(&inner.node),
        };
        let goes_on = desk.running || desk.waits();
        if !goes_on {
            desk.watch = None;
            desk.watched = false;
        }
        drop(book);
        for grant in grants {
            let queue = self.queue.clone();
            inner.events.send(Event::Granted { queue, grant });
        }
        goes_on
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let Some(inner) = self.inner.upgrade() else {
            return;
        };
        let mut book = inner.book();
        if let Some(desk) = book.desks.get_mut(&self.queue)
            && desk.watch == Some(self.number)
        {
            desk.watch = None;
            desk.watched = false;
        }
    }
}
