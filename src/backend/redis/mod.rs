//! The Redis backend: one script executes a batch of calls.

mod builder;
mod check;
#[cfg(feature = "redis-cluster")]
mod cluster;
mod codec;
mod connection;
mod endpoint;
pub(super) mod errors;
mod inspection;
pub(super) mod keys;
mod push;
mod route;
pub(super) mod script;
#[cfg(feature = "redis-sentinel")]
mod sentinel;
mod session;
#[cfg(feature = "redlock")]
mod single_server;
#[cfg(feature = "redis-cluster")]
mod slot_map;
#[cfg(test)]
mod tests;
mod topology;
mod url;
pub(super) mod value;

use crate::backend::{Backend, Events, Open, Session};
use crate::name::Node;
use builder::Deployment;
pub use builder::Redis;
#[cfg(feature = "redlock")]
pub(super) use check::{MissingRights, check_version};
#[cfg(feature = "redis-cluster")]
use cluster::Cluster;
use connection::{Connection, Target};
#[cfg(feature = "redis-sentinel")]
use sentinel::Master;
use session::RedisSession;
#[cfg(feature = "redlock")]
pub(super) use single_server::SingleServer;
use std::sync::Arc;
use topology::Topology;

impl Backend for Redis {}

impl Open for Redis {
    fn open(self, node: Node, events: Events) -> Arc<dyn Session> {
        let channel = keys::push_channel(&self.prefix, node.as_str());
        let topology = match self.deployment {
            Deployment::Single(endpoint) => {
                let target = Target::Server(endpoint);
                Topology::Single(Connection::new(target, Some(channel), events))
            }
            #[cfg(feature = "redis-sentinel")]
            Deployment::Sentinel {
                master,
                sentinels,
                settings,
            } => {
                let target = Target::Master(Master::new(master, sentinels, settings));
                Topology::Single(Connection::new(target, Some(channel), events))
            }
            #[cfg(feature = "redis-cluster")]
            Deployment::Cluster(nodes) => Topology::Cluster(Cluster::new(nodes, channel, events)),
        };
        Arc::new(RedisSession::new(topology, self.prefix, node))
    }
}
