//! Inspecting a name and evicting a ticket.

use super::errors::Failure;
use super::keys;
use super::name_state::count;
use super::queue::Entry;
use super::session_state::Shared;
use crate::backend::{Inspection, TicketInfo};
use crate::clock::now;
use crate::error::Error;
use crate::name::Queue;
use etcd_client::Client;
use futures_util::StreamExt;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// The most tickets of each kind that an inspection lists.
const MAX_LISTED: usize = 1000;
/// How many leases are read at a time.
const IN_FLIGHT: usize = 16;

impl Shared {
    pub(super) async fn inspect(self: &Arc<Self>, queue: &Queue) -> Result<Inspection, Error> {
        let tickets = self.list(&keys::queue_prefix(&self.prefix, queue)).await?;
        let holders: Vec<&Entry> = (tickets.holders().take(MAX_LISTED))
            .map(|(_, entry)| entry)
            .collect();
        let queued: Vec<&Entry> = (tickets.queued().take(MAX_LISTED))
            .map(|(_, entry)| entry)
            .collect();
        let foreign = (holders.iter().chain(&queued))
            .filter(|entry| keys::own_number(&entry.ticket, &self.node).is_none())
            .map(|entry| entry.etcd_lease)
            .collect();
        let left = self.etcd_leases_left(foreign).await?;
        let info = |entry: &&Entry| TicketInfo {
            ticket: entry.ticket.clone(),
            node: (entry.ticket.rsplit_once('-'))
                .map_or_else(String::new, |(node, _)| node.to_owned()),
            lease_left: self.lease_left(queue, entry, &left),
            lingering: false,
        };
        let mut holders: Vec<TicketInfo> = holders.iter().map(info).collect();
        holders.sort_by_key(|info| info.lease_left);
        Ok(Inspection {
            holders,
            queue: queued.iter().map(info).collect(),
            in_use: count(tickets.in_use()),
            queued: count(tickets.len() - tickets.in_use()),
        })
    }

    /// Exact for tickets of this node. For others it is derived from what etcd reports: whole seconds of an etcd lease that is
    /// longer than the ticket's.
    fn lease_left(&self, queue: &Queue, entry: &Entry, left: &HashMap<i64, Duration>) -> Duration {
        let own = keys::own_number(&entry.ticket, &self.node).and_then(|number| {
            let state = self.state();
            state.names.get(queue)?.lease_left(number, now())
        });
        own.unwrap_or_else(|| {
            let left = left.get(&entry.etcd_lease).copied().unwrap_or_default();
            left.min(Duration::from_millis(entry.lease))
        })
    }

    async fn etcd_leases_left(
        self: &Arc<Self>,
        leases: BTreeSet<i64>,
    ) -> Result<HashMap<i64, Duration>, Error> {
        let requests = leases.into_iter().map(|lease| async move {
            let time_to_live = |client: Client| async move {
                client.lease_client().time_to_live(lease, None).await
            };
            let left = self.cluster.call(time_to_live).await?.value.ttl();
            let left = Duration::from_secs(u64::try_from(left).unwrap_or(0));
            Ok::<_, Failure>((lease, left))
        });
        let answers: Vec<_> = futures_util::stream::iter(requests)
            .buffer_unordered(IN_FLIGHT)
            .collect()
            .await;
        Ok(answers.into_iter().collect::<Result<_, _>>()?)
    }

    pub(super) async fn evict(
        self: &Arc<Self>,
        queue: &Queue,
        ticket: &str,
    ) -> Result<bool, Error> {
        let prefix = keys::queue_prefix(&self.prefix, queue);
        let key = format!("{prefix}{ticket}");
        if keys::parse_ticket(key.as_bytes(), &prefix).is_none() {
            return Ok(false);
        }
        let delete = |client: Client| {
            let key = key.clone();
            async move { client.kv_client().delete(key, None).await }
        };
        Ok(self.cluster.call(delete).await?.value.deleted() > 0)
    }
}
