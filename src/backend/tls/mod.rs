//! TLS by rustls with one provider, ring, that is named whenever a setting is made: whatever other providers a program has, and
//! whether or not it has chosen one for the process, does not matter here, and nothing is chosen for the process.

mod settings;

use crate::error::{Error, ErrorKind};
use rustls::{AlertDescription, CertificateError};
pub(super) use settings::Tls;
use std::error::Error as StdError;
use std::io;

/// Whose servers they are, for people.
#[derive(Debug)]
pub(super) struct System {
    pub(super) name: &'static str,
    /// The type that takes certificates.
    pub(super) builder: &'static str,
    /// What is meant when there is no TLS.
    pub(super) plain: &'static str,
}

/// What TLS has to say about this error, if it is one of TLS.
pub(super) fn said<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a rustls::Error> {
    let mut cause = Some(error);
    while let Some(at) = cause {
        let inner = (at.downcast_ref::<io::Error>()).and_then(|error| error.get_ref());
        let inner = inner.and_then(|inner| inner.downcast_ref::<rustls::Error>());
        if let Some(said) = inner.or_else(|| at.downcast_ref()) {
            return Some(said);
        }
        cause = at.source();
    }
    None
}

pub(super) fn in_words(error: &rustls::Error, system: &System, server: &str) -> Error {
    let System {
        name,
        builder,
        plain,
    } = system;
    let incompatible = |message| Error::new(ErrorKind::Incompatible, message);
    match error {
        // A bad signature: its authority has the name of one that we trust, and another key.
        rustls::Error::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        ) => incompatible(format!(
            "the certificate of {name} at {server} is of an authority that is not trusted here: \
                 name its authority by {builder}::authority"
        )),
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => incompatible(format!(
            "the certificate of {name} at {server} is for another name"
        )),
        rustls::Error::InvalidCertificate(
            CertificateError::Expired | CertificateError::ExpiredContext { .. },
        ) => incompatible(format!(
            "the certificate of {name} at {server} has expired, or the clock here is wrong"
        )),
        rustls::Error::InvalidCertificate(why) => incompatible(format!(
            "the certificate of {name} at {server} is not good: {why}"
        )),
        rustls::Error::InvalidMessage(_) => incompatible(format!(
            "{name} at {server} does not speak TLS on this port: {plain} may be meant"
        )),
        rustls::Error::AlertReceived(
            alert @ (AlertDescription::CertificateRequired
            | AlertDescription::BadCertificate
            | AlertDescription::UnknownCA
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateRevoked
            | AlertDescription::AccessDenied),
        ) => not_let_in(&format!("{alert:?}"), system, server),
        other => failed(other, system, server),
    }
}

fn failed(error: &dyn StdError, system: &System, server: &str) -> Error {
    let System { name, plain, .. } = system;
    Error::new(
        ErrorKind::Unavailable,
        format!(
            "the TLS connection to {name} at {server} failed ({error}): if it does not speak TLS on this port, {plain} is meant"
        ),
    )
}

/// Our certificate, or its absence, was not accepted.
pub(super) fn not_let_in(why: &str, system: &System, server: &str) -> Error {
    let System { name, builder, .. } = system;
    Error::new(
        ErrorKind::Denied,
        format!(
            "{name} at {server} wants a client certificate that it trusts ({why}): give one by {builder}::client_certificate"
        ),
    )
}
