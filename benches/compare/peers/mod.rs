//! What ours is measured beside, as far as it is not a crate.

pub(crate) mod foreign;
pub(crate) mod plain;
