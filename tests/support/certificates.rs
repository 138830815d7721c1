//! An authority of a test's own, and what it signs.

use super::redis::RedisServer;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Signs certificates for 127.0.0.1 and localhost.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: TempDir,
}

/// A certificate and its key, in PEM form.
pub struct Certificate {
    pub chain: String,
    pub key: String,
}

// === impl Authority ===

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params
            .distinguished_name
            .push(DnType::CommonName, "an authority of a test's own");
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
        let mut params = CertificateParams::new(names.clone()).expect("good names");
        // A chain is followed by these.
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

    /// A server with a plain port, for the test, and a TLS port: `rediss://127.0.0.1:<other_port>`.
    pub fn start_server(&self, certificate: &Certificate, args: &[&str]) -> RedisServer {
        let files = [
            ("ca.pem", &self.pem()),
            ("server.pem", &certificate.chain),
            ("server.key", &certificate.key),
        ];
        let [ca, chain, key] = files.map(|(name, text)| self.write(name, text));
        let mut all = vec!["--tls-port", "{other}"];
        let files = [
            ("--tls-ca-cert-file", &ca),
            ("--tls-cert-file", &chain),
            ("--tls-key-file", &key),
        ];
        for (option, file) in &files {
            all.extend([*option, text(file)]);
        }
        all.extend(args);
        RedisServer::start_with(&all)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let file = self.folder.path().join(name);
        std::fs::write(&file, text).expect("a file");
        file
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}
