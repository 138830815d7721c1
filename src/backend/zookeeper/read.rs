//! Reading the queue of a name, and creating its container.

use super::errors;
use super::path::{Entry, Terms};
use super::queue::{self, TicketQueue};
use super::session_state::Shared;
use crate::error::Error;
use crate::name::Queue;
use futures_util::future::join_all;
use std::time::Duration;
use zookeeper_client::{self as zk, Client, CreateMode};

/// What an error of [`Client::sync`] is reported with.
pub(super) const SYNC: &str = "sync with the leader";

// === impl Shared ===

impl Shared {
    /// Returns the tickets of a name, oldest first.
    pub(super) async fn list(&self, client: &Client, parent: &str) -> Result<Vec<Entry>, Error> {
        self.entries(client.list_children(parent).await)
    }

    /// Returns the tickets of a listing, oldest first. Without its container a name has none.
    pub(super) fn entries(
        &self,
        names: Result<Vec<String>, zk::Error>,
    ) -> Result<Vec<Entry>, Error> {
        match names {
            Ok(names) => Ok(queue::sorted_entries(&names)),
            Err(zk::Error::NoNode) => Ok(Vec::new()),
            Err(error) => Err(self.error(&error, "list the tickets of a name")),
        }
    }

    /// Reads the terms of other processes' nodes. A node that is gone counts as a ticket until the next listing.
    pub(super) async fn read_terms(
        &self,
        client: &Client,
        parent: &str,
        names: &[String],
    ) -> Result<Vec<(String, Option<Terms>)>, Error> {
        let paths: Vec<String> = (names.iter())
            .map(|name| format!("{parent}/{name}"))
            .collect();
        let data = join_all(paths.iter().map(|path| client.get_data(path))).await;
        let gone = Terms {
            limit: u32::MAX,
            lease: Duration::ZERO,
        };
        (names.iter().zip(data))
            .map(|(name, data)| match data {
                Ok((data, _)) => Ok((name.clone(), Terms::parse(&data))),
                Err(zk::Error::NoNode) => Ok((name.clone(), Some(gone))),
                Err(error) => Err(self.error(&error, "read a ticket")),
            })
            .collect()
    }

    /// Determines which tickets hold. Reads the terms that it needs and does not know.
    pub(super) async fn evaluate(
        &self,
        client: &Client,
        epoch: u64,
        queue: &Queue,
        entries: &[Entry],
    ) -> Result<TicketQueue, Error> {
        let parent = self.parent(queue);
        let mut has_read_again = false;
        loop {
            let missing = {
                let mut state = self.state();
                let name = state.name(epoch, queue).ok_or_else(errors::superseded)?;
                match name.evaluate(entries) {
                    Ok(tickets) => match name.blocking_node(&tickets) {
                        Some(node) if !has_read_again => {
                            has_read_again = true;
                            vec![node]
                        }
                        _ => return Ok(tickets),
                    },
                    Err(missing) => missing,
                }
            };
            let terms = self.read_terms(client, &parent, &missing).await?;
            let mut state = self.state();
            let name = state.name(epoch, queue).ok_or_else(errors::superseded)?;
            name.other_terms.extend(terms);
        }
    }

    /// Creates the container of a name, and the nodes above it where they are missing.
    pub(super) async fn create_parent(&self, client: &Client, parent: &str) -> Result<(), Error> {
        let act = "create a node below the prefix";
        let container = self.create_options(CreateMode::Container);
        match client.create(parent, &[], &container).await {
            Ok(_) | Err(zk::Error::NodeExists) => return Ok(()),
            Err(zk::Error::NoNode) => {}
            Err(error) => return Err(self.error(&error, act)),
        }
        let base = self.settings.base();
        let persistent = self.create_options(CreateMode::Persistent);
        (client.mkdir(&base, &persistent).await)
            .map_err(|error| self.error(&error, "create the node of the prefix"))?;
        match client.create(parent, &[], &container).await {
            Ok(_) | Err(zk::Error::NodeExists) => Ok(()),
            Err(error) => Err(self.error(&error, act)),
        }
    }
}
