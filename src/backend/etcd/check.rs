//! The check of a cluster: its version, and the rights that calls need.

use super::errors::Failure;
use super::keys;
use super::session_state::Shared;
use crate::error::{Error, ErrorKind};
use etcd_client::{Client, PutOptions};
use std::sync::Arc;

/// How long the etcd lease of a check lasts, in seconds, if its revocation is lost.
const CHECK_LEASE_SECONDS: i64 = 5;
/// The oldest version that is supported.
const OLDEST_VERSION: (u32, u32) = (3, 4);

impl Shared {
    pub(super) async fn check(self: &Arc<Self>) -> Result<(), Error> {
        self.check_version().await?;
        let grant = |client: Client| async move {
            client.lease_client().grant(CHECK_LEASE_SECONDS, None).await
        };
        let lease = self.cluster.call(grant).await?.value.id();
        let checked = self.check_rights(lease).await;
        self.revoke_lease(lease).await;
        checked
    }

    async fn check_version(self: &Arc<Self>) -> Result<(), Error> {
        let status = |client: Client| async move { client.maintenance_client().status().await };
        let status = match self.cluster.call(status).await {
            Ok(answer) => answer.value,
            // Some versions reserve the status for administrators.
            Err(Failure::Other(error)) if error.kind() == ErrorKind::Denied => {
                self.cluster.connection().await?;
                return Ok(());
            }
            Err(failure) => return Err(failure.into()),
        };
        let mut numbers = status.version().split('.').map(str::parse::<u32>);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(major)), Some(Ok(minor))) if (major, minor) < OLDEST_VERSION => {
                Err(Error::new(
                    ErrorKind::Incompatible,
                    format!(
                        "etcd has version {}: at least {}.{} is required",
                        status.version(),
                        OLDEST_VERSION.0,
                        OLDEST_VERSION.1
                    ),
                ))
            }
            _ => Ok(()),
        }
    }

    /// Writes, reads and deletes a key in each folder below the prefix.
    async fn check_rights(self: &Arc<Self>, lease: i64) -> Result<(), Error> {
        for folder in ["limit", "mutex", "session"] {
            let key = format!("{}/{folder}/check~{}", self.prefix, self.node.as_str());
            let write_read_delete = |client: Client| {
                let key = key.clone();
                async move {
                    let mut kv = client.kv_client();
                    let attached = PutOptions::new().with_lease(lease);
                    kv.put(key.clone(), "", Some(attached)).await?;
                    kv.get(format!("{key}/"), keys::with_prefix()).await?;
                    kv.delete(key, None).await
                }
            };
            let answer = self.cluster.call(write_read_delete).await;
            if let Err(Failure::Other(error)) = &answer
                && error.kind() == ErrorKind::Denied
            {
                return Err(Error::new(
                    ErrorKind::Denied,
                    format!("{error} (prefix {}/)", self.prefix),
                ));
            }
            answer?;
        }
        Ok(())
    }
}
