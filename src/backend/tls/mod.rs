//! TLS by rustls.
//!
//! Every configuration names the `ring` provider. It neither depends on the process-wide default provider nor sets one.

mod settings;

use crate::error::{Error, ErrorKind};
use rustls::{AlertDescription, CertificateError};
pub(super) use settings::Tls;
use std::error::Error as StdError;
use std::io;

/// The system that a connection leads to, for error messages.
#[derive(Debug)]
pub(super) struct System {
    pub(super) name: &'static str,
    /// The public type with the methods for certificates.
    pub(super) builder: &'static str,
    /// What to give for a server without TLS.
    pub(super) plain: &'static str,
}

/// Returns the TLS error among the causes of an error.
pub(super) fn find_cause<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a rustls::Error> {
    let mut cause = Some(error);
    while let Some(at) = cause {
        let inner = (at.downcast_ref::<io::Error>()).and_then(|error| error.get_ref());
        let inner = inner.and_then(|inner| inner.downcast_ref::<rustls::Error>());
        if let Some(found) = inner.or_else(|| at.downcast_ref()) {
            return Some(found);
        }
        cause = at.source();
    }
    None
}

/// Returns the error for a failed handshake: what is wrong with which server, and what to do.
pub(super) fn describe(error: &rustls::Error, system: &System, server: &str) -> Error {
    let System {
        name,
        builder,
        plain,
    } = system;
    let incompatible = |message| Error::new(ErrorKind::Incompatible, message);
    match error {
        // A bad signature: the issuer has the name of a trusted authority, and another key.
        rustls::Error::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        ) => incompatible(format!(
            "the certificate of {name} at {server} is signed by an authority that is not trusted here: \
                 add it with {builder}::ca_certificate"
        )),
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => incompatible(format!(
            "the certificate of {name} at {server} is for another name: connect by a name that it contains"
        )),
        rustls::Error::InvalidCertificate(
            CertificateError::Expired | CertificateError::ExpiredContext { .. },
        ) => incompatible(format!(
            "the certificate of {name} at {server} has expired: renew it, or correct the clock of this machine"
        )),
        rustls::Error::InvalidCertificate(why) => incompatible(format!(
            "the certificate of {name} at {server} is invalid: {why}"
        )),
        rustls::Error::InvalidMessage(_) => incompatible(format!(
            "{name} at {server} does not speak TLS on this port: use another port, or {plain}"
        )),
        rustls::Error::AlertReceived(
            alert @ (AlertDescription::CertificateRequired
            | AlertDescription::BadCertificate
            | AlertDescription::UnknownCA
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateRevoked
            | AlertDescription::AccessDenied),
        ) => certificate_refused(&format!("{alert:?}"), system, server),
        other => failed(other, system, server),
    }
}

fn failed(error: &dyn StdError, system: &System, server: &str) -> Error {
    let System { name, plain, .. } = system;
    Error::new(
        ErrorKind::Unavailable,
        format!(
            "the TLS connection to {name} at {server} failed ({error}): if the server does not speak TLS on this port, use {plain}"
        ),
    )
}

/// Returns the error for a server that refused the client certificate, or requires one.
pub(super) fn certificate_refused(why: &str, system: &System, server: &str) -> Error {
    let System { name, builder, .. } = system;
    Error::new(
        ErrorKind::Denied,
        format!(
            "{name} at {server} requires a client certificate that it trusts ({why}): set {builder}::client_certificate"
        ),
    )
}
