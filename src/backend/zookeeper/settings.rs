//! The settings of a ZooKeeper backend.

use std::sync::Arc;

#[derive(Clone)]
pub(super) struct Settings {
    /// The servers as ZooKeeper's clients accept them: `host[:port][,host[:port]…]`.
    pub(super) servers: Arc<str>,
    /// The path of the node that contains everything, without a slash at its end.
    pub(super) chroot: Arc<str>,
    pub(super) prefix: Arc<str>,
    /// `user:password`.
    pub(super) digest: Option<Arc<str>>,
}

// === impl Settings ===

impl Settings {
    /// Returns the path of the prefix's node.
    pub(super) fn base(&self) -> String {
        format!("{}/{}", self.chroot, self.prefix)
    }
}
