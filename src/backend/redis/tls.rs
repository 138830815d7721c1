//! TLS by rustls with one provider, ring, that is named whenever a setting is made: whatever other providers a program has, and
//! whether or not it has chosen one for the process, does not matter here, and nothing is chosen for the process.

use super::{server, wire};
use crate::error::{Error, ErrorKind};
use redis::RedisError;
use redis::io::tcp::socket2::SockRef;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{AlertDescription, CertificateError, ClientConfig, RootCertStore};
use std::error::Error as StdError;
use std::io;
use std::sync::{Arc, OnceLock};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Whom we trust and who we are.
#[derive(Clone, Default)]
pub(super) struct Tls {
    /// `None`: whom the system trusts.
    roots: Option<Arc<RootCertStore>>,
    identity: Option<Arc<Identity>>,
    /// Made at first use: the system's list is read from files.
    config: Arc<OnceLock<Arc<ClientConfig>>>,
}

struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

// === impl Tls ===

impl Tls {
    /// Trusts these authorities and no others.
    pub(super) fn trust(&mut self, pem: &[u8]) -> Result<(), Error> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(pem, "the authority's certificate")? {
            roots.add(certificate).map_err(|error| {
                Error::config(format!(
                    "the authority's certificate cannot be used: {error}"
                ))
            })?;
        }
        self.roots = Some(Arc::new(roots));
        self.config = Arc::default();
        Ok(())
    }

    /// Shows this certificate to a server that asks for one.
    pub(super) fn identify(&mut self, chain: &[u8], key: &[u8]) -> Result<(), Error> {
        let chain = certificates(chain, "the client certificate")?;
        // The words of the error could show a part of the key.
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| {
            Error::config("the client certificate's key is no private key in PEM form")
        })?;
        let identity = Arc::new(Identity { chain, key });
        make(RootCertStore::empty(), Some(&identity))?;
        self.identity = Some(identity);
        self.config = Arc::default();
        Ok(())
    }

    fn config(&self) -> Result<Arc<ClientConfig>, Error> {
        if let Some(config) = self.config.get() {
            return Ok(config.clone());
        }
        let roots = match &self.roots {
            Some(roots) => RootCertStore::clone(roots),
            None => of_the_system()?,
        };
        let config = Arc::new(make(roots, self.identity.as_ref())?);
        Ok(self.config.get_or_init(|| config).clone())
    }

    /// Connects and shakes hands. `server` is its name for people.
    pub(super) async fn connect(
        &self,
        host: &str,
        port: u16,
        server: &str,
    ) -> Result<TlsStream<TcpStream>, Error> {
        let name = ServerName::try_from(host.to_owned()).map_err(|_| {
            Error::config(format!("{server} is no name that a certificate can have"))
        })?;
        let config = self.config()?;
        let failed = |error: io::Error| failed(error, server);
        let stream = TcpStream::connect((host, port)).await.map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        let socket = SockRef::from(&stream);
        socket
            .set_tcp_keepalive(&server::keepalive())
            .map_err(failed)?;
        #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
        socket
            .set_tcp_user_timeout(Some(server::UNACKNOWLEDGED))
            .map_err(failed)?;
        TlsConnector::from(config)
            .connect(name, stream)
            .await
            .map_err(failed)
    }

    /// A server may refuse a client's certificate only after the client thinks that all is well.
    pub(super) fn refused(&self, error: &RedisError, server: &str) -> Error {
        let mut cause: Option<&dyn StdError> = Some(error);
        while let Some(at) = cause {
            if let Some(said) = at
                .downcast_ref::<io::Error>()
                .and_then(|error| error.get_ref())
                .and_then(|inner| inner.downcast_ref::<rustls::Error>())
                .or_else(|| at.downcast_ref::<rustls::Error>())
            {
                return in_words(said, server);
            }
            cause = at.source();
        }
        // By then the words are all that is left of it.
        if error.is_io_error() && wire::text(error).contains("fatal alert") {
            return not_let_in(&wire::text(error), server);
        }
        wire::error(error, server)
    }
}

fn make(roots: RootCertStore, identity: Option<&Arc<Identity>>) -> Result<ClientConfig, Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::config(format!("TLS cannot be used: {error}")))?
        .with_root_certificates(roots);
    match identity {
        None => Ok(config.with_no_client_auth()),
        Some(identity) => config
            .with_client_auth_cert(identity.chain.clone(), identity.key.clone_key())
            .map_err(|error| {
                Error::config(format!(
                    "the client certificate and its key cannot be used: {error}"
                ))
            }),
    }
}

/// At least one, or it is none.
fn certificates(pem: &[u8], what: &str) -> Result<Vec<CertificateDer<'static>>, Error> {
    let list: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match list {
        Ok(list) if !list.is_empty() => Ok(list),
        _ => Err(Error::config(format!(
            "{what} is no certificate in PEM form"
        ))),
    }
}

fn of_the_system() -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    // Old and odd ones are passed over, as everybody does.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err(Error::config(
            "this system knows no certificate authorities: install its ca-certificates, or name one by Redis::authority",
        ));
    }
    Ok(roots)
}

fn failed(error: io::Error, server: &str) -> Error {
    match error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<rustls::Error>())
    {
        Some(said) => in_words(said, server),
        None => wire::error(&error.into(), server),
    }
}

fn in_words(error: &rustls::Error, server: &str) -> Error {
    let incompatible = |message| Error::new(ErrorKind::Incompatible, message);
    match error {
        // A bad signature: its authority has the name of one that we trust, and another key.
        rustls::Error::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        ) => incompatible(format!(
            "the certificate of Redis at {server} is of an authority that is not trusted here: \
                 name its authority by Redis::authority"
        )),
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => incompatible(format!(
            "the certificate of Redis at {server} is for another name"
        )),
        rustls::Error::InvalidCertificate(
            CertificateError::Expired | CertificateError::ExpiredContext { .. },
        ) => incompatible(format!(
            "the certificate of Redis at {server} has expired, or the clock here is wrong"
        )),
        rustls::Error::InvalidCertificate(why) => incompatible(format!(
            "the certificate of Redis at {server} is not good: {why}"
        )),
        rustls::Error::InvalidMessage(_) => incompatible(format!(
            "Redis at {server} does not speak TLS on this port: a redis:// URL may be meant"
        )),
        rustls::Error::AlertReceived(
            alert @ (AlertDescription::CertificateRequired
            | AlertDescription::BadCertificate
            | AlertDescription::UnknownCA
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateRevoked
            | AlertDescription::AccessDenied),
        ) => not_let_in(&format!("{alert:?}"), server),
        other => Error::new(
            ErrorKind::Unavailable,
            format!("the TLS connection to Redis at {server} failed: {other}"),
        ),
    }
}

fn not_let_in(why: &str, server: &str) -> Error {
    Error::new(
        ErrorKind::Denied,
        format!(
            "Redis at {server} wants a client certificate that it trusts ({why}): give one by Redis::client_certificate"
        ),
    )
}
