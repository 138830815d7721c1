//! What goes on between calls: the watch of a name that somebody waits for, and the cleaning up.

use super::link::{Link, Live};
use super::path;
use super::recipe::superseded;
use crate::backend::{Event, Grant};
use crate::clock::now;
use crate::error::Error;
use crate::name::Queue;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::timeout;
use zookeeper_client::{self as zk, Client, SessionState};

/// A read that takes longer is asked again.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(50);

/// The watch of one name. Its end, however it comes, lets the next call set a new one.
struct Watch {
    link: Weak<Link>,
    queue: Queue,
    epoch: u64,
    client: Client,
    kick: Arc<Notify>,
    over: bool,
}

impl Link {
    /// Watches a name until nobody here waits any more.
    pub(super) fn watch(self: &Arc<Self>, queue: Queue, live: &Arc<Live>) {
        let kick = self.state().rooms.get(&queue).map(|room| room.kick.clone());
        let watch = Watch {
            link: Arc::downgrade(self),
            queue,
            epoch: live.epoch,
            client: live.client.clone(),
            kick: kick.unwrap_or_default(),
            over: false,
        };
        let mut replaced = live.replaced();
        tokio::spawn(async move {
            tokio::select! {
                () = watch.run() => {}
                _ = replaced.changed() => {}
            }
        });
    }

    /// Takes out what nobody has named for a lease, and looks after names that nobody speaks of any more.
    pub(super) async fn tidy(self: &Arc<Self>, epoch: u64) {
        let (mut paths, mut idle) = (Vec::new(), Vec::new());
        let now = now();
        let client = {
            let mut state = self.state();
            let Some(client) = state.client(epoch) else {
                return;
            };
            for (queue, room) in &mut state.rooms {
                if room.busy {
                    continue;
                }
                let due: Vec<u64> = (room.tickets.iter())
                    .filter(|(_, ticket)| room.lives_until(ticket) <= now)
                    .map(|(number, _)| *number)
                    .collect();
                for number in due {
                    let node = room.tickets.remove(&number).and_then(|t| t.node);
                    let parent = self.parent(queue);
                    paths.extend(node.map(|node| format!("{parent}/{}", node.name)));
                }
                if room.is_idle(now) {
                    idle.push(queue.clone());
                }
            }
            for path in &paths {
                // Sent by this. What fails is swept later.
                drop(client.delete(path, None));
            }
            client
        };
        for queue in idle {
            if let Ok(true) = timeout(PATIENCE, self.sweep(&client, epoch, &queue)).await {
                let mut state = self.state();
                let room = state.rooms.get(&queue);
                if room.is_some_and(|room| room.is_idle(now)) && state.is_current(epoch) {
                    state.rooms.remove(&queue);
                }
            }
        }
    }

    /// Deletes what is ours and nobody knows: what was created late would live as long as the session. `false` if that could
    /// not be done.
    async fn sweep(&self, client: &Client, epoch: u64, queue: &Queue) -> bool {
        let parent = self.parent(queue);
        let Ok(line) = self.list(client, &parent).await else {
            return false;
        };
        let deletes = {
            let mut state = self.state();
            let Some(room) = state.room(epoch, queue).filter(|room| !room.busy) else {
                return false;
            };
            let (_, unknown) = room.compare(&self.node, &line);
            let paths = unknown.iter().map(|name| format!("{parent}/{name}"));
            paths
                .map(|path| client.delete(&path, None))
                .collect::<Vec<_>>()
        };
        let deleted = futures_util::future::join_all(deletes).await;
        deleted
            .iter()
            .all(|deleted| matches!(deleted, Ok(()) | Err(zk::Error::NoNode)))
    }
}

// === impl Watch ===

impl Watch {
    async fn run(mut self) {
        let client = self.client.clone();
        while !self.over {
            let Some(link) = self.link.upgrade() else {
                return;
            };
            let parent = link.parent(&self.queue);
            let list = client.list_and_watch_children(&parent);
            let (names, changed) = match timeout(PATIENCE, list).await {
                Ok(Ok((names, watcher))) => (names, watcher.changed()),
                // The name is gone and we with it: the next call sees to that.
                Ok(Err(zk::Error::NoNode | zk::Error::NoAuth)) => return,
                Ok(Err(_)) if client.state().is_terminated() => return,
                Ok(Err(_)) => {
                    drop(link);
                    tokio::time::sleep(PAUSE).await;
                    self.connected().await;
                    continue;
                }
                Err(_) => continue,
            };
            match self.look(&link, &names).await {
                Ok(grants) => {
                    for grant in grants {
                        let queue = self.queue.clone();
                        link.events.send(Event::Granted { queue, grant });
                    }
                }
                Err(_) if client.state().is_terminated() => return,
                Err(_) => {
                    tokio::time::sleep(PAUSE).await;
                    if !link.state().is_current(self.epoch) {
                        return;
                    }
                    continue;
                }
            }
            drop(link);
            if self.over {
                return;
            }
            let kick = self.kick.clone();
            tokio::select! {
                event = changed => if event.session_state.is_terminated() {
                    return;
                },
                () = kick.notified() => {}
            }
        }
    }

    /// Waits while the crate connects anew.
    async fn connected(&self) {
        let mut watcher = self.client.state_watcher();
        let mut state = self.client.state();
        while state == SessionState::Disconnected {
            state = watcher.changed().await;
        }
    }

    /// What was granted here since we looked last.
    async fn look(&mut self, link: &Link, names: &[String]) -> Result<Vec<Grant>, Error> {
        let line = path::line(names);
        let view = link.judge(&self.client, self.epoch, &self.queue, &line);
        let view = timeout(PATIENCE, view).await.map_err(|_| superseded())??;
        let mut state = link.state();
        let room = (state.room(self.epoch, &self.queue)).ok_or_else(superseded)?;
        if room.busy {
            room.missed = true;
            return Ok(Vec::new());
        }
        let granted = room.grant(&link.node, &view);
        if !room.waits() {
            room.watched = false;
            self.over = true;
        }
        Ok((granted.into_iter())
            .map(|(ticket, token)| Grant { ticket, token })
            .collect())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        if let Some(link) = self.link.upgrade()
            && let Some(room) = link.state().room(self.epoch, &self.queue)
        {
            room.watched = false;
        }
    }
}
