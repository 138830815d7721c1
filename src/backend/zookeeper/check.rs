//! The check of an ensemble: the rights that calls need, and the longest session.

use super::path::{self, Terms};
use super::session_state::Shared;
use crate::error::Error;
use crate::name::Queue;
use std::sync::Arc;
use std::time::Duration;
use zookeeper_client::CreateMode;

// === impl Shared ===

impl Shared {
    /// Executes every kind of request once, on a name that nothing else uses.
    pub(super) async fn check(self: &Arc<Self>, lease: Duration) -> Result<(), Error> {
        let work = self.connection(Some(lease)).await?;
        let client = work.client();
        let queue = Queue::limit(format!("check:{}", self.node.as_str()).as_bytes())?;
        let parent = self.parent(&queue);
        self.create_parent(client, &parent).await?;
        let terms = Terms {
            limit: 1,
            lease: Duration::ZERO,
        };
        let stem = path::stem(&parent, &self.node, 0);
        let mode = self.create_options(CreateMode::EphemeralSequential);
        let created = client.create(&stem, &terms.to_data(), &mode).await;
        let (_, sequence) = created.map_err(|error| self.error(&error, "create a ticket"))?;
        let node = format!("{stem}{sequence}");
        let read = client.get_data(&node).await;
        let listed = client.list_children(&parent).await;
        let written = client.set_data(&node, &terms.to_data(), None).await;
        let deleted = client.delete(&node, None).await;
        let _ = client.delete(&parent, None).await;
        work.end_with(&Ok(()));
        for (result, act) in [
            (read.map(drop), "read a ticket"),
            (listed.map(drop), "list the tickets of a name"),
            (written.map(drop), "write to a ticket"),
            (deleted, "delete a ticket"),
        ] {
            result.map_err(|error| self.error(&error, act))?;
        }
        Ok(())
    }
}
