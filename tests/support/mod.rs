//! What several test programs share. Each uses a part of it.
#![allow(dead_code, unreachable_pub)]

pub mod redis;
