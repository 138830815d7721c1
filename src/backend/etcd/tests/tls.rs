//! TLS: trusted authorities, client certificates, and the errors when they do not match.

use super::*;
use crate::backend::support::certificates::Authority;

/// A check and a call fail with the same error, within the time of a check.
async fn fails_with(etcd: Etcd, kind: ErrorKind, words: &str) {
    let a = Peer::at(etcd);
    let end = Instant::now() + Duration::from_secs(20);
    for check in [true, false] {
        loop {
            let start = Instant::now();
            let error = match check {
                true => a.session.check(LEASE).await.unwrap_err(),
                false => a.try_to_acquire(&[1]).await.unwrap_err(),
            };
            assert!(start.elapsed() < CHECK_TIMEOUT + Duration::from_millis(500));
            if error.kind() == kind && error.to_string().contains(words) {
                break;
            }
            // A busy server may not answer in time.
            assert!(Instant::now() < end, "{error}");
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        }
    }
}

/// One node is granted the permit that the other releases.
async fn works(etcd: &Etcd) {
    let (a, mut b) = (Peer::at(etcd.clone()), Peer::at(etcd.clone()));
    a.session.check(LEASE).await.unwrap();
    assert!(is_held(&a.acquire(&[1]).await));
    assert_eq!(b.acquire(&[1]).await, [TicketState::Queued]);
    assert_eq!(a.release(&[1]).await, [true]);
    assert_eq!(b.granted().await.ticket, 1);
    assert_eq!(b.release(&[1]).await, [true]);
}

fn secure(cluster: &EtcdCluster) -> Etcd {
    Etcd::new([format!("https://{}", cluster.endpoint(0))]).unwrap()
}

#[tokio::test]
async fn a_configured_ca_is_trusted_and_no_other() {
    let authority = Authority::new();
    let cluster = EtcdCluster::start_secure(&authority);
    let etcd = secure(&cluster);
    works(&etcd.clone().ca_certificate(authority.pem()).unwrap()).await;
    // The system does not trust this authority, and trusting another authority does not help.
    fails_with(
        etcd.clone(),
        ErrorKind::Incompatible,
        "Etcd::ca_certificate",
    )
    .await;
    let other = etcd.ca_certificate(Authority::new().pem()).unwrap();
    fails_with(other, ErrorKind::Incompatible, "Etcd::ca_certificate").await;
}

#[tokio::test]
async fn a_client_certificate_is_presented_to_a_server_that_requires_one() {
    let authority = Authority::new();
    let cluster = EtcdCluster::start_strict(&authority);
    let trusting = secure(&cluster).ca_certificate(authority.pem()).unwrap();
    let presenting = |from: &Authority| {
        let me = from.sign(&["me"]);
        let trusting = trusting.clone();
        trusting.client_certificate(me.chain, me.key).unwrap()
    };
    works(&presenting(&authority)).await;
    fails_with(trusting.clone(), ErrorKind::Denied, "client certificate").await;
    let foreign = presenting(&Authority::new());
    fails_with(foreign, ErrorKind::Denied, "client certificate").await;
}

#[tokio::test]
async fn tls_on_one_side_only_is_reported() {
    let authority = Authority::new();
    let cluster = EtcdCluster::start_secure(&authority);
    let plain = Etcd::new(cluster.endpoints()).unwrap();
    fails_with(plain, ErrorKind::Unavailable, "127.0.0.1").await;
    let plain = EtcdCluster::start(1);
    let etcd = secure(&plain).ca_certificate(authority.pem()).unwrap();
    fails_with(etcd, ErrorKind::Unavailable, "does not speak TLS").await;
}

#[test]
fn certificates_are_checked_when_given() {
    let authority = Authority::new();
    let (me, you) = (authority.sign(&["me"]), authority.sign(&["you"]));
    let pem = authority.pem();
    let plain = || Etcd::new(["h:1"]).unwrap();
    let secure = || Etcd::new(["https://h:1"]).unwrap();
    for wrong in [
        plain().ca_certificate(&pem),
        plain().client_certificate(&me.chain, &me.key),
        secure().ca_certificate(""),
        secure().ca_certificate(&pem[..pem.len() / 2]),
        secure().client_certificate(&me.chain, ""),
        secure().client_certificate(&me.chain, &me.key[..me.key.len() / 2]),
        secure().client_certificate(&me.chain, &you.key),
        secure().client_certificate(&me.key, &me.chain),
    ] {
        let error = wrong.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        assert!(!format!("{error} {error:?}").contains("PRIVATE"));
    }
    let etcd = secure().ca_certificate(&pem).unwrap();
    assert!(etcd.client_certificate(&me.chain, &me.key).is_ok());
}
