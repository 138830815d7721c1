//! What the suite needs of a backend.

use super::peer::Peer;
use crate::backend::{Event, Events, Session};
use crate::name::{Node, Queue};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// A store of a test's own, and what a test has to do to it.
pub(super) trait Rig: Sized {
    /// The lease of most nodes in these tests: short where time is real.
    const LEASE: Duration;
    /// Whether time is tokio's, paused, so that many steps cost nothing.
    const VIRTUAL: bool;
    /// Whether the backend may push.
    const PUSHES: bool;
    /// Whether it keeps one queue for all nodes: then it keeps any limit, and everybody sees who waits.
    const QUEUES: bool = true;
    /// Whether those who could say nothing for a while, since everything stood still, get a grace. Where a session decides
    /// who is alive they do not.
    const FORGIVES: bool = true;
    /// Whether what a node has said last outlives the loss of everything that is stored, since the node itself keeps it.
    const REMEMBERS: bool = false;
    /// Whether what runs out is gone by the clock alone, before anybody does something about it.
    const TO_THE_POINT: bool = true;

    async fn start() -> Self;

    fn open(&self, node: Node, events: Events) -> Arc<dyn Session>;

    /// Loses everything that is stored.
    async fn flush(&self);

    /// How many things are stored: keys, or names.
    async fn stored(&self) -> usize;

    /// Whether, if nobody says anything more, everything that is stored goes within this time.
    async fn forgets_within(&self, time: Duration) -> bool;

    /// Moves the client's clock ahead, where it is another than the backend's.
    async fn client_clock_jumps(&self, by: Duration);

    /// A node that speaks about the name that most tests are about.
    fn peer(&self, limit: u32) -> Peer {
        let (sender, events) = mpsc::unbounded_channel();
        let node = Node::of_this_process();
        let sink = Events::new(move |event: Event| {
            let _ = sender.send(event);
        });
        let session = self.open(node.clone(), sink);
        Peer::new(session, node, events, queue("name"), limit, Self::LEASE)
    }
}

pub(super) fn queue(name: &str) -> Queue {
    Queue::limit(name.as_bytes()).expect("a good name")
}

/// The greatest limit that a test may use, up to this.
pub(super) fn limit<R: Rig>(limit: u32) -> u32 {
    if R::QUEUES { limit } else { 1 }
}

/// How many of so many tickets that wait elsewhere are seen here.
pub(super) fn elsewhere<R: Rig>(waiting: u64) -> u64 {
    if R::QUEUES { waiting } else { 0 }
}

/// Lets time pass in steps that are no gaps, while these nodes repeat what they have to say.
pub(super) async fn pass<R: Rig>(_: &R, time: Duration, peers: &mut [&mut Peer]) {
    let end = Instant::now() + time;
    loop {
        for peer in &mut *peers {
            peer.repeat().await;
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        tokio::time::sleep(left.min(R::LEASE / 5)).await;
    }
}

/// Nobody says anything for this long: a gap if it is long enough.
pub(super) async fn silence(time: Duration) {
    tokio::time::sleep(time).await;
}
