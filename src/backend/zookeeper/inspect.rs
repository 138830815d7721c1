//! Inspecting a name and evicting a ticket.

use super::name_state::NameState;
use super::path::Entry;
use super::read::SYNC;
use super::session_state::Shared;
use crate::backend::{Inspection, TicketInfo};
use crate::clock::now;
use crate::error::{Error, ErrorKind};
use crate::name::Queue;
use std::sync::Arc;
use std::time::Duration;
use zookeeper_client::{self as zk, Client};

/// The most tickets of each kind that an inspection lists.
const MAX_LISTED: usize = 1000;
/// How many nodes are read at a time.
const MAX_READ: usize = 128;

// === impl Shared ===

impl Shared {
    /// Inspects a name. Repeats it once if the connection is lost, since it changes nothing.
    pub(super) async fn inspect(self: &Arc<Self>, queue: &Queue) -> Result<Inspection, Error> {
        match self.inspect_once(queue).await {
            Err(error) if error.kind() == ErrorKind::Unavailable => self.inspect_once(queue).await,
            inspection => inspection,
        }
    }

    async fn inspect_once(self: &Arc<Self>, queue: &Queue) -> Result<Inspection, Error> {
        let work = self.connection(None).await?;
        let client = work.client();
        let parent = self.parent(queue);
        (client.sync("/").await).map_err(|error| self.error(&error, SYNC))?;
        let entries = self.list(client, &parent).await?;
        let now = now();
        let mut name = match self.state().names.get(queue) {
            Some(name) => name.clone(),
            None => NameState::new(now),
        };
        let tickets = loop {
            match name.evaluate(&entries) {
                Ok(tickets) => break tickets,
                Err(missing) => name
                    .other_terms
                    .extend(self.read_terms(client, &parent, &missing).await?),
            }
        };
        // The lease of a ticket behind the head of the queue is known only if it was read before.
        let listed = tickets.in_use + MAX_LISTED;
        let unread: Vec<String> = (tickets.entries.iter().take(listed))
            .filter(|entry| entry.number_of(&self.node).is_none())
            .filter(|entry| !name.other_terms.contains_key(&entry.name))
            .map(|entry| entry.name.clone())
            .collect();
        for names in unread.chunks(MAX_READ) {
            (name.other_terms).extend(self.read_terms(client, &parent, names).await?);
        }
        work.end_with(&Ok(()));
        let info = |entry: &Entry| {
            let own = entry.number_of(&self.node);
            let own = own.and_then(|number| name.tickets.get(&number));
            let other = name.other_terms.get(&entry.name).copied().flatten();
            TicketInfo {
                ticket: entry.ticket().to_owned(),
                node: entry.node().to_owned(),
                lease_left: match own {
                    Some(ticket) => name.expiry(ticket).saturating_duration_since(now),
                    None => other.map_or(Duration::ZERO, |terms| terms.lease),
                },
                lingering: false,
            }
        };
        let (holders, queued) =
            (tickets.entries).split_at(tickets.in_use.min(tickets.entries.len()));
        let mut inspection = Inspection {
            in_use: count(holders.len()),
            queued: count(queued.len()),
            holders: holders.iter().map(info).collect(),
            queue: queued.iter().take(MAX_LISTED).map(info).collect(),
        };
        inspection.holders.sort_by_key(|info| info.lease_left);
        inspection.holders.truncate(MAX_LISTED);
        Ok(inspection)
    }

    pub(super) async fn evict(
        self: &Arc<Self>,
        queue: &Queue,
        ticket: &str,
    ) -> Result<bool, Error> {
        let work = self.connection(None).await?;
        let found = self.delete_ticket(work.client(), queue, ticket).await?;
        work.end_with(&Ok(()));
        Ok(found)
    }

    async fn delete_ticket(
        &self,
        client: &Client,
        queue: &Queue,
        ticket: &str,
    ) -> Result<bool, Error> {
        let parent = self.parent(queue);
        (client.sync("/").await).map_err(|error| self.error(&error, SYNC))?;
        let entries = self.list(client, &parent).await?;
        let mut found = false;
        for entry in entries.iter().filter(|entry| entry.ticket() == ticket) {
            let path = format!("{parent}/{}", entry.name);
            match client.delete(&path, None).await {
                Ok(()) => found = true,
                Err(zk::Error::NoNode) => {}
                Err(error) => return Err(self.error(&error, "delete a ticket")),
            }
        }
        Ok(found)
    }
}

pub(super) fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}
