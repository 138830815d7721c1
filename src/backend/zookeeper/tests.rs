//! The ZooKeeper backend against real servers, as a gate sees it and as a user does.

mod builder;
mod connection;
mod ensemble;
mod rights;
mod rig;
