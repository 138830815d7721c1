//! A certificate authority for one test.

use super::redis::RedisServer;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use std::path::PathBuf;
use tempfile::TempDir;

/// Signs certificates for 127.0.0.1 and localhost.
#[derive(Debug)]
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: TempDir,
}

/// A certificate and its key, in PEM form.
#[derive(Debug)]
pub struct Certificate {
    pub chain: String,
    pub key: String,
}

// === impl Authority ===

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("empty list of names");
        params
            .distinguished_name
            .push(DnType::CommonName, "test authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("an authority");
        let folder = tempfile::tempdir().expect("a folder for certificates");
        Self { issuer, folder }
    }

    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    pub fn sign(&self, names: &[&str]) -> Certificate {
        let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names.clone()).expect("valid names");
        // Chains are built by these names.
        params
            .distinguished_name
            .push(DnType::CommonName, names.join(" "));
        let key = KeyPair::generate().expect("a key");
        let chain = params.signed_by(&key, &self.issuer).expect("a certificate");
        Certificate {
            chain: chain.pem(),
            key: key.serialize_pem(),
        }
    }

    /// Starts a Redis server with a TLS port, and a plain port for the test itself.
    pub fn start_server(&self, certificate: &Certificate, args: &[&str]) -> RedisServer {
        let tls = self.server_args(certificate);
        let all: Vec<_> = tls
            .iter()
            .map(String::as_str)
            .chain(args.iter().copied())
            .collect();
        RedisServer::start_with(&all)
    }

    /// Returns the arguments that enable TLS on a separate port of a server.
    pub fn server_args(&self, certificate: &Certificate) -> Vec<String> {
        let files = [
            ("--tls-ca-cert-file", "ca.pem", &self.pem()),
            ("--tls-cert-file", "server.pem", &certificate.chain),
            ("--tls-key-file", "server.key", &certificate.key),
        ];
        let mut args = vec!["--tls-port".to_owned(), "{tls}".to_owned()];
        for (option, name, text) in files {
            let file = self.write(name, text).display().to_string();
            args.extend([option.to_owned(), file]);
        }
        args
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let file = self.folder.path().join(name);
        std::fs::write(&file, text).expect("a file");
        file
    }
}
