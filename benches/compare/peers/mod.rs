//! The implementations that this crate is compared with, except those that are crates.

pub(crate) mod other_languages;
pub(crate) mod plain_redis;
