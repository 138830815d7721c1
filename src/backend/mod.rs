//! The backends, and the contract that they fulfil.

pub(crate) mod any;
#[cfg(any(
    feature = "etcd",
    feature = "redis-cluster",
    feature = "redis-sentinel",
    feature = "zookeeper"
))]
pub(crate) mod authority;
mod contract;
#[cfg(feature = "etcd")]
pub(crate) mod etcd;
pub(crate) mod memory;
#[cfg(any(feature = "etcd", feature = "redis", feature = "zookeeper"))]
pub(crate) mod reconnect;
#[cfg(feature = "redis")]
pub(crate) mod redis;
#[cfg(feature = "redlock")]
pub(crate) mod redlock;
#[cfg(any(feature = "etcd", feature = "redis-tls"))]
mod tls;
mod url_parameters;
#[cfg(feature = "zookeeper")]
pub(crate) mod zookeeper;

#[cfg(test)]
mod conformance;

#[cfg(all(test, any(feature = "etcd", feature = "redis", feature = "zookeeper")))]
use test_support as support;

#[cfg(any(test, feature = "etcd", feature = "redis", feature = "zookeeper"))]
pub(crate) use contract::each;
#[cfg(test)]
pub(crate) use contract::exchange_one;
pub use contract::{Backend, Capabilities, Inspection, TicketInfo};
pub(crate) use contract::{
    Batching, Call, Event, Events, Grant, MAX_TICKETS, Open, Outcome, Replies, Reply, Session,
    TicketState, call_time, together,
};
