//! Trusted authorities and the client's own certificate.

use super::System;
use crate::error::Error;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::sync::{Arc, OnceLock};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Trusted authorities and the client's own certificate.
#[derive(Clone, Default)]
pub(in crate::backend) struct Tls {
    /// `None`: those that the system trusts.
    roots: Option<Arc<RootCertStore>>,
    identity: Option<Arc<Identity>>,
    /// Made at first use, since the system's list is read from files.
    config: Arc<OnceLock<Arc<ClientConfig>>>,
}

struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

// === impl Tls ===

impl Tls {
    /// Trusts these authorities and no others.
    pub(in crate::backend) fn trust(&mut self, pem: &[u8]) -> Result<(), Error> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(pem, "the CA certificate")? {
            roots.add(certificate).map_err(|error| {
                Error::config(format!("the CA certificate is unusable: {error}"))
            })?;
        }
        self.roots = Some(Arc::new(roots));
        self.config = Arc::default();
        Ok(())
    }

    /// Presents this certificate to a server that requests one.
    pub(in crate::backend) fn identify(&mut self, chain: &[u8], key: &[u8]) -> Result<(), Error> {
        let chain = certificates(chain, "the client certificate")?;
        // The text of the error could show a part of the key.
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| {
            Error::config("the key of the client certificate is not a private key in PEM form")
        })?;
        let identity = Arc::new(Identity { chain, key });
        make(RootCertStore::empty(), Some(&identity))?;
        self.identity = Some(identity);
        self.config = Arc::default();
        Ok(())
    }

    fn config(&self, system: &System) -> Result<Arc<ClientConfig>, Error> {
        if let Some(config) = self.config.get() {
            return Ok(config.clone());
        }
        let roots = match &self.roots {
            Some(roots) => RootCertStore::clone(roots),
            None => system_roots(system)?,
        };
        let config = Arc::new(make(roots, self.identity.as_ref())?);
        Ok(self.config.get_or_init(|| config).clone())
    }

    /// Performs the handshake over a connection. `server` is the address for error messages.
    pub(in crate::backend) async fn shake_hands(
        &self,
        stream: TcpStream,
        host: &str,
        system: &System,
        server: &str,
    ) -> Result<TlsStream<TcpStream>, Error> {
        let name = ServerName::try_from(host.to_owned()).map_err(|_| {
            Error::config(format!(
                "{server} is not a host name or an address that a certificate can contain"
            ))
        })?;
        let config = self.config(system)?;
        let done = TlsConnector::from(config).connect(name, stream).await;
        done.map_err(|error| match super::find_cause(&error) {
            Some(cause) => super::describe(cause, system, server),
            None => super::failed(&error, system, server),
        })
    }
}

fn make(roots: RootCertStore, identity: Option<&Arc<Identity>>) -> Result<ClientConfig, Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::config(format!("TLS is unusable: {error}")))?
        .with_root_certificates(roots);
    match identity {
        None => Ok(config.with_no_client_auth()),
        Some(identity) => config
            .with_client_auth_cert(identity.chain.clone(), identity.key.clone_key())
            .map_err(|error| {
                Error::config(format!(
                    "the client certificate and its key are unusable: {error}"
                ))
            }),
    }
}

/// Parses one or more certificates.
fn certificates(pem: &[u8], what: &str) -> Result<Vec<CertificateDer<'static>>, Error> {
    let list: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match list {
        Ok(list) if !list.is_empty() => Ok(list),
        _ => Err(Error::config(format!(
            "{what} is not a certificate in PEM form"
        ))),
    }
}

fn system_roots(system: &System) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    // Certificates that rustls cannot parse are skipped, as is usual.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err(Error::config(format!(
            "this system has no certificate authorities: install its ca-certificates package, or set {}::ca_certificate",
            system.builder
        )));
    }
    Ok(roots)
}
