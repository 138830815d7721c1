//! What an operator has: inspect, evict, check.

use super::Inner;
use super::desk::count;
use super::line::Place;
use super::wire::{self, Failure};
use crate::backend::{Inspection, TicketInfo};
use crate::clock::now;
use crate::error::{Error, ErrorKind};
use crate::name::Queue;
use etcd_client::{Client, PutOptions};
use futures_util::StreamExt;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// The most tickets of each kind that an inspection lists.
const MOST_LISTED: usize = 1000;
/// So many leases are asked after at a time.
const AT_A_TIME: usize = 16;
/// How long the lease of a check lasts, in seconds, should its end be lost.
const CHECK_LEASE: i64 = 5;
/// The oldest server that was tried.
const OLDEST: (u32, u32) = (3, 4);

impl Inner {
    pub(super) async fn inspect(self: &Arc<Self>, queue: &Queue) -> Result<Inspection, Error> {
        let line = self.list(&wire::line_prefix(&self.prefix, queue)).await?;
        let holders: Vec<&Place> = line.holders().take(MOST_LISTED).map(|(_, p)| p).collect();
        let waiters: Vec<&Place> = line.waiters().take(MOST_LISTED).map(|(_, p)| p).collect();
        let foreign = (holders.iter().chain(&waiters))
            .filter(|place| wire::own_number(&place.ticket, &self.node).is_none())
            .map(|place| place.bound_to)
            .collect();
        let left = self.leases_left(foreign).await?;
        let info = |place: &&Place| TicketInfo {
            ticket: place.ticket.clone(),
            node: (place.ticket.rsplit_once('-'))
                .map_or_else(String::new, |(node, _)| node.to_owned()),
            lease_left: self.lease_left(queue, place, &left),
            lingering: false,
        };
        let mut holders: Vec<TicketInfo> = holders.iter().map(info).collect();
        holders.sort_by_key(|info| info.lease_left);
        Ok(Inspection {
            holders,
            queue: waiters.iter().map(info).collect(),
            in_use: count(line.in_use()),
            queued: count(line.len() - line.in_use()),
        })
    }

    /// Exact for our own tickets; of others etcd knows whole seconds, and adds what is ours to spare.
    fn lease_left(&self, queue: &Queue, place: &Place, left: &HashMap<i64, Duration>) -> Duration {
        let own = wire::own_number(&place.ticket, &self.node).and_then(|number| {
            let book = self.book();
            book.desks.get(queue)?.lease_left(number, now())
        });
        own.unwrap_or_else(|| {
            let left = left.get(&place.bound_to).copied().unwrap_or_default();
            left.min(Duration::from_millis(place.lease))
        })
    }

    async fn leases_left(
        self: &Arc<Self>,
        leases: BTreeSet<i64>,
    ) -> Result<HashMap<i64, Duration>, Error> {
        let asked = leases.into_iter().map(|lease| async move {
            let ask = |client: Client| async move {
                client.lease_client().time_to_live(lease, None).await
            };
            let left = self.link.call(ask).await?.value.ttl();
            let left = Duration::from_secs(u64::try_from(left).unwrap_or(0));
            Ok::<_, Failure>((lease, left))
        });
        let answers: Vec<_> = futures_util::stream::iter(asked)
            .buffer_unordered(AT_A_TIME)
            .collect()
            .await;
        Ok(answers.into_iter().collect::<Result<_, _>>()?)
    }

    pub(super) async fn evict(
        self: &Arc<Self>,
        queue: &Queue,
        ticket: &str,
    ) -> Result<bool, Error> {
        let prefix = wire::line_prefix(&self.prefix, queue);
        let key = format!("{prefix}{ticket}");
        if wire::ticket(key.as_bytes(), &prefix).is_none() {
            return Ok(false);
        }
        let ask = |client: Client| {
            let key = key.clone();
            async move { client.kv_client().delete(key, None).await }
        };
        Ok(self.link.call(ask).await?.value.deleted() > 0)
    }

    pub(super) async fn check(self: &Arc<Self>) -> Result<(), Error> {
        self.check_version().await?;
        let ask =
            |client: Client| async move { client.lease_client().grant(CHECK_LEASE, None).await };
        let lease = self.link.call(ask).await?.value.id();
        let checked = self.check_rights(lease).await;
        self.revoke(lease).await;
        checked
    }

    async fn check_version(self: &Arc<Self>) -> Result<(), Error> {
        let ask = |client: Client| async move { client.maintenance_client().status().await };
        let status = match self.link.call(ask).await {
            Ok(answer) => answer.value,
            // Some let only administrators ask that.
            Err(Failure::Other(error)) if error.kind() == ErrorKind::Denied => {
                self.link.connection().await?;
                return Ok(());
            }
            Err(failure) => return Err(failure.into()),
        };
        let mut numbers = status.version().split('.').map(str::parse::<u32>);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(major)), Some(Ok(minor))) if (major, minor) < OLDEST => Err(Error::new(
                ErrorKind::Incompatible,
                format!(
                    "etcd is version {}: {}.{} is the oldest that will do",
                    status.version(),
                    OLDEST.0,
                    OLDEST.1
                ),
            )),
            _ => Ok(()),
        }
    }

    /// Writes, reads and removes below each folder that we use.
    async fn check_rights(self: &Arc<Self>, lease: i64) -> Result<(), Error> {
        for folder in ["limit", "mutex", "session"] {
            let key = format!("{}/{folder}/check~{}", self.prefix, self.node.as_str());
            let ask = |client: Client| {
                let key = key.clone();
                async move {
                    let mut kv = client.kv_client();
                    let bound = PutOptions::new().with_lease(lease);
                    kv.put(key.clone(), "", Some(bound)).await?;
                    kv.get(format!("{key}/"), wire::all()).await?;
                    kv.delete(key, None).await
                }
            };
            let asked = self.link.call(ask).await;
            if let Err(Failure::Other(error)) = &asked
                && error.kind() == ErrorKind::Denied
            {
                return Err(Error::new(
                    ErrorKind::Denied,
                    format!("{error}: {}/", self.prefix),
                ));
            }
            asked?;
        }
        Ok(())
    }
}
