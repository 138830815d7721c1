//! The servers of one session: a single one (or the master of sentinels), or the nodes of a cluster.

#[cfg(feature = "redis-cluster")]
use super::cluster::Cluster;
use super::connection::{Connection, Preamble};
use super::keys::Forms;
use super::route::Route;
use super::script::Script;
use crate::error::Error;
use crate::name::{Node, Queue};
use redis::{Cmd, RedisError, Value};
use std::sync::Arc;

pub(super) enum Topology {
    Single(Arc<Connection>),
    #[cfg(feature = "redis-cluster")]
    Cluster(Arc<Cluster>),
}

// === impl Topology ===

impl Topology {
    /// Where the servers are, for messages.
    pub(super) fn name(&self) -> &Arc<str> {
        match self {
            Self::Single(connection) => connection.server(),
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(cluster) => cluster.name(),
        }
    }

    /// Each name has its own server.
    pub(super) fn is_cluster(&self) -> bool {
        match self {
            Self::Single(_) => false,
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(_) => true,
        }
    }

    /// Returns the forms that a name may have.
    pub(super) async fn forms(&self) -> Result<Forms, Error> {
        let in_cluster = match self {
            Self::Single(connection) => connection.is_in_cluster().await?,
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(_) => true,
        };
        Ok(match in_cluster {
            true => Forms::GeneralOnly,
            false => Forms::WithSingleHolder,
        })
    }

    /// The server of this route pushes nothing: queued tickets have to be polled for.
    #[cfg_attr(not(feature = "redis-cluster"), allow(unused_variables))]
    pub(super) fn is_push_refused(&self, route: Route) -> bool {
        match self {
            Self::Single(connection) => connection.is_push_refused(),
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(cluster) => cluster.is_push_refused(route.slot),
        }
    }

    /// Sends one command and awaits its answer. Outer error: the command was not executed. Inner error: the server returned an
    /// error, or the connection failed after sending. The caller bounds the time by dropping the future.
    #[cfg_attr(not(feature = "redis-cluster"), allow(unused_variables))]
    pub(super) async fn try_send(
        &self,
        route: Route,
        command: &Cmd,
    ) -> Result<Result<Value, RedisError>, Error> {
        match self {
            Self::Single(connection) => connection.try_send(command, Preamble::None).await,
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(cluster) => cluster.try_send(route, command).await,
        }
    }

    /// Executes a script.
    pub(super) async fn run(
        &self,
        route: Route,
        script: &Script,
        args: impl Fn(&mut Cmd),
    ) -> Result<Result<Value, RedisError>, Error> {
        script
            .run(args, |command| async move {
                self.try_send(route, &command).await
            })
            .await
    }

    /// Returns one unused queue at each server, for a check.
    pub(super) async fn queues_to_check(&self, node: &Node) -> Result<Vec<Queue>, Error> {
        match self {
            Self::Single(_) => {
                let name = format!("check:{}", node.as_str());
                Ok(vec![Queue::limit(name.as_bytes())?])
            }
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(cluster) => cluster.queues_to_check(node).await,
        }
    }
}
