//! What several test programs share. Each uses a part of it.
#![allow(dead_code, unreachable_pub)]

pub mod certificates;
pub mod clock;
pub mod cluster;
pub mod door;
pub mod etcd;
pub mod logs;
pub mod pause;
pub mod process;
pub mod proxy;
pub mod redis;
pub mod sentinels;
pub mod zookeeper;
