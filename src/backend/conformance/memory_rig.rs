use super::rig::{Rig, queue};
use crate::backend::Open;
use crate::backend::memory::Memory;
use crate::backend::{Events, Session};
use crate::name::Node;
use std::sync::Arc;
use std::time::Duration;

pub(super) struct MemoryRig {
    memory: Memory,
}

impl Rig for MemoryRig {
    const LEASE: Duration = Duration::from_secs(10);
    const VIRTUAL: bool = true;
    const PUSHES: bool = true;

    async fn start() -> Self {
        tokio::time::pause();
        let memory = Memory::new();
        Self { memory }
    }

    fn open(&self, node: Node, events: Events) -> Arc<dyn Session> {
        self.memory.clone().open(node, events)
    }

    async fn flush(&self) {
        self.memory.lose_everything();
    }

    /// Cleaning up is done by those who call, so somebody calls first, about something else.
    async fn stored(&self) -> usize {
        let mut somebody = self.peer(1).about(queue("another name"));
        for _ in 0..10 {
            somebody.say(super::peer::nothing()).await;
        }
        self.memory.names() - 1
    }

    async fn forgets_within(&self, time: Duration) -> bool {
        tokio::time::sleep(time - Self::LEASE).await;
        self.stored().await; // somebody is the first to call
        tokio::time::sleep(Self::LEASE).await;
        self.stored().await == 0
    }

    async fn client_clock_jumps(&self, _: Duration) {}
}
