//! The servers of one session: a single one, or the nodes of a cluster.

use super::Source;
#[cfg(feature = "redis-cluster")]
use super::cluster::{self, Cluster};
use super::codec::Forms;
use super::connection::{Link, Manner};
use crate::backend::{Call, call_time};
use crate::error::Error;
use crate::name::{Node, Queue};
use redis::{Cmd, RedisError, Value};
use std::sync::Arc;
use std::time::Duration;

pub(super) enum Servers {
    One(Arc<Link>),
    #[cfg(feature = "redis-cluster")]
    Cluster(Arc<Cluster>),
}

/// What a command is about: a cluster has a server for it.
#[derive(Clone, Copy)]
pub(super) struct Spot {
    #[cfg(feature = "redis-cluster")]
    pub(super) slot: u16,
    /// How long a cluster may be asked again while it is being changed.
    #[cfg(feature = "redis-cluster")]
    pub(super) patience: Duration,
}

// === impl Spot ===

impl Spot {
    pub(super) fn of_call(call: &Call) -> Self {
        // What is to be said is said before.
        Self::of(&call.queue, call_time(call.lease) * 3 / 4)
    }

    #[cfg_attr(not(feature = "redis-cluster"), allow(unused_variables))]
    pub(super) fn of(queue: &Queue, patience: Duration) -> Self {
        Self {
            #[cfg(feature = "redis-cluster")]
            slot: cluster::slot(queue),
            #[cfg(feature = "redis-cluster")]
            patience,
        }
    }
}

// === impl Servers ===

impl Servers {
    /// Where they are, for people.
    pub(super) fn name(&self) -> &Arc<str> {
        match self {
            Self::One(link) => link.server(),
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(cluster) => cluster.name(),
        }
    }

    /// There are several, each with names of its own.
    pub(super) fn are_many(&self) -> bool {
        match self {
            Self::One(_) => false,
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(_) => true,
        }
    }

    /// The forms that a name may have there.
    pub(super) async fn forms(&self) -> Result<Forms, Error> {
        let in_cluster = match self {
            Self::One(link) => link.is_in_cluster().await?,
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(_) => true,
        };
        Ok(match in_cluster {
            true => Forms::GeneralOnly,
            false => Forms::WithSingleHolder,
        })
    }

    /// Nothing is pushed to us from where that is: ask often.
    #[cfg_attr(not(feature = "redis-cluster"), allow(unused_variables))]
    pub(super) fn is_deaf(&self, spot: Spot) -> bool {
        match self {
            Self::One(link) => link.is_deaf(),
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(cluster) => cluster.is_deaf(spot.slot),
        }
    }

    /// Sends one command and awaits its answer. The inner error is the server's own, or the connection's after it was sent;
    /// the outer one: it was not carried out. The caller bounds the time by dropping the future.
    #[cfg_attr(not(feature = "redis-cluster"), allow(unused_variables))]
    pub(super) async fn try_send(
        &self,
        spot: Spot,
        command: &Cmd,
    ) -> Result<Result<Value, RedisError>, Error> {
        match self {
            Self::One(link) => link.try_send(command, Manner::Plain).await,
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(cluster) => cluster.try_send(spot, command).await,
        }
    }

    /// Runs a script, by its hash if the server knows it.
    pub(super) async fn run(
        &self,
        spot: Spot,
        source: &Source,
        args: impl Fn(&mut Cmd),
    ) -> Result<Result<Value, RedisError>, Error> {
        source
            .run(args, |command| async move {
                self.try_send(spot, &command).await
            })
            .await
    }

    /// Unused queues, one at each server, for a check.
    pub(super) async fn queues_to_check(&self, node: &Node) -> Result<Vec<Queue>, Error> {
        match self {
            Self::One(_) => {
                let name = format!("check:{}", node.as_str());
                Ok(vec![Queue::limit(name.as_bytes())?])
            }
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(cluster) => cluster.queues_to_check(node).await,
        }
    }
}
