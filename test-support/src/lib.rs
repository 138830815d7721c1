//! Servers, proxies, clocks and processes for the tests of `tower-permit`. Independent of that crate, so that its unit
//! tests can use them too.
#![allow(clippy::new_without_default)] // a test states what it starts

pub mod certificates;
pub mod clock;
pub mod cluster;
pub mod etcd;
pub mod logs;
pub mod pause;
pub mod process;
pub mod process_witness;
pub mod proxy;
pub mod redis;
pub mod sentinels;
mod server;
pub mod witness;
pub mod zookeeper;

use std::time::Duration;

/// How long a test waits for what must happen, before it fails. It ends a test that hangs and is no bound of any rule, so it is
/// far longer than a busy machine needs.
pub const HANG_GUARD: Duration = Duration::from_secs(60);
