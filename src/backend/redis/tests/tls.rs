//! TLS: trusted authorities, client certificates, and the errors when they do not match.

use super::*;
use crate::backend::support::certificates::{Authority, Certificate};
use crate::backend::support::process::Process;

struct Place {
    authority: Authority,
    me: Certificate,
    server: RedisServer,
}

impl Place {
    fn start(args: &[&str]) -> Self {
        Self::start_as("127.0.0.1", args)
    }

    fn start_as(name: &str, args: &[&str]) -> Self {
        let authority = Authority::new();
        Self {
            me: authority.sign(&["me"]),
            server: authority.start_server(&authority.sign(&[name]), args),
            authority,
        }
    }

    fn redis(&self) -> Redis {
        let url = format!("rediss://127.0.0.1:{}", self.server.tls_port());
        Redis::new(url).unwrap().prefix("shop").unwrap()
    }

    fn trusting(&self) -> Redis {
        self.redis().ca_certificate(self.authority.pem()).unwrap()
    }

    fn whole(&self) -> Redis {
        let redis = self.trusting();
        redis
            .client_certificate(&self.me.chain, &self.me.key)
            .unwrap()
    }
}

/// At a check and in a call the same, and soon.
async fn refused(redis: Redis, kind: ErrorKind, words: &str) {
    let a = Peer::of(redis);
    for error in [
        a.session.check(LEASE).await.unwrap_err(),
        a.try_acquire_tickets(&[1]).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[tokio::test]
async fn client_and_server_certificates_are_verified() {
    let place = Place::start(&[]);
    let (a, mut b) = (Peer::of(place.whole()), Peer::of(place.whole()));
    a.session.check(LEASE).await.unwrap();
    a.acquire(&[1]).await;
    assert_eq!(b.acquire(&[1]).await.acquired, WAITING);
    a.release(&[1]).await;
    assert_eq!(b.granted().await.ticket, 1);

    refused(place.trusting(), ErrorKind::Denied, "client certificate").await;
    let stranger = Authority::new().sign(&["me"]);
    let strange = place
        .trusting()
        .client_certificate(&stranger.chain, &stranger.key)
        .unwrap();
    refused(strange, ErrorKind::Denied, "client certificate").await;
    // The system does not know this authority, and another does not help.
    refused(place.redis(), ErrorKind::Incompatible, "authority").await;
    let other = place
        .redis()
        .ca_certificate(Authority::new().pem())
        .unwrap();
    refused(other, ErrorKind::Incompatible, "authority").await;
    let both = [place.authority.pem(), Authority::new().pem()].concat();
    let two = place.whole().ca_certificate(both).unwrap();
    Peer::of(two).session.check(LEASE).await.unwrap();
}

#[tokio::test]
async fn wrong_names_and_wrong_ports_are_reported() {
    let place = Place::start_as("elsewhere.example", &["--tls-auth-clients", "no"]);
    refused(place.trusting(), ErrorKind::Incompatible, "another name").await;
    let url = format!("rediss://127.0.0.1:{}", place.server.port());
    let plain = Redis::new(url)
        .unwrap()
        .ca_certificate(place.authority.pem())
        .unwrap();
    let a = Peer::of(plain);
    let error = a.session.check(LEASE).await.unwrap_err();
    assert!(
        matches!(
            error.kind(),
            ErrorKind::Incompatible | ErrorKind::Unavailable
        ),
        "{error}"
    );
    let url = format!("redis://127.0.0.1:{}", place.server.tls_port());
    let error = Peer::new(&url).session.check(LEASE).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

#[tokio::test]
async fn a_tls_connection_is_replaced_like_a_plain_one() {
    let mut place = Place::start(&["--tls-auth-clients", "no", "--requirepass", "secret"]);
    let mut a = Peer::of(place.trusting().credentials("", "secret"));
    a.acquire(&[1]).await;
    a.resynced().await;
    place.server.restart();
    a.resynced().await;
    assert_eq!(plain(&a.acquire(&[2]).await.acquired), HELD);
    place.server.pause();
    a.give_up().await;
    a.give_up().await;
    place.server.resume();
    assert_eq!(plain(&a.acquire(&[3]).await.acquired), WAITING);
    place.server.stop();
    let error = a.session.check(LEASE).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    place.server.restart();
    let wrong = place.trusting().credentials("nobody", "wrong");
    let error = Peer::of(wrong).session.check(LEASE).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(!error.to_string().contains("wrong "), "{error}");
}

/// Another provider may be in the program: none is chosen for it, and ours does not depend on its choice. In a process of its own,
/// for other tests may choose.
#[tokio::test]
async fn no_process_wide_crypto_provider_is_installed() {
    const HERE: &str = "backend::redis::tests::tls::no_process_wide_crypto_provider_is_installed";
    const CHILD: &str = "NO_PROVIDER_CHOSEN";
    if std::env::var_os(CHILD).is_none() {
        let mut child = Process::start(HERE, [(CHILD, "1")]);
        assert!(child.ended().await.success());
        return;
    }
    let place = Place::start(&["--tls-auth-clients", "no"]);
    Peer::of(place.trusting())
        .session
        .check(LEASE)
        .await
        .unwrap();
    assert!(rustls::crypto::CryptoProvider::get_default().is_none());
}

#[test]
fn certificates_are_checked_when_given() {
    let authority = Authority::new();
    let (me, you) = (authority.sign(&["me"]), authority.sign(&["you"]));
    let redis = || Redis::new("rediss://user:secret@h").unwrap();
    let pem = authority.pem();
    let torn = &pem[..pem.len() / 2];
    let cut = &me.key[..me.key.len() / 2];
    for wrong in [
        redis().ca_certificate(""),
        redis().ca_certificate("not PEM"),
        redis().ca_certificate(torn),
        redis().ca_certificate(&me.key),
        redis().client_certificate("", &me.key),
        redis().client_certificate(&me.chain, ""),
        redis().client_certificate(&me.chain, cut),
        redis().client_certificate(&me.chain, &you.key),
        redis().client_certificate(&me.key, &me.chain),
        Redis::new("redis://h").unwrap().ca_certificate(&pem),
        Redis::new("redis://h")
            .unwrap()
            .client_certificate(&me.chain, &me.key),
        Redis::new("rediss://h#insecure"),
    ] {
        let error = wrong.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        let shown = format!("{error} {error:?}");
        assert!(!shown.contains("secret") && !shown.contains("PRIVATE"));
        for line in me.key.lines().filter(|line| line.len() > 20) {
            assert!(!shown.contains(line), "{error}");
        }
    }
    let redis = redis().ca_certificate(&pem).unwrap();
    let redis = redis.client_certificate(&me.chain, &me.key).unwrap();
    assert!(!format!("{redis:?}").contains("secret"));
}

#[cfg(feature = "redis-sentinel")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_and_their_master_over_tls() {
    use crate::backend::support::sentinels::{MASTER, SentinelSet};
    let authority = Authority::new();
    let set = tokio::task::block_in_place(|| SentinelSet::start_secure(1, &authority));
    let urls = (set.sentinels.iter()).map(|s| format!("rediss://127.0.0.1:{}", s.tls_port()));
    let redis = Redis::sentinel(urls, MASTER).unwrap();
    let me = authority.sign(&["me"]);
    let trusting = redis.clone().ca_certificate(authority.pem()).unwrap();
    let whole = trusting.client_certificate(&me.chain, &me.key).unwrap();
    let (a, mut b) = (Peer::of(whole.clone()), Peer::of(whole));
    a.session.check(LEASE).await.unwrap();
    a.acquire(&[1]).await;
    assert_eq!(b.acquire(&[1]).await.acquired, WAITING);
    a.release(&[1]).await;
    assert_eq!(b.granted().await.ticket, 1);
    refused(redis, ErrorKind::Incompatible, "authority").await;
}

#[cfg(feature = "redis-cluster")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_over_tls() {
    use crate::backend::support::cluster::RedisCluster;
    let authority = Authority::new();
    let cluster = tokio::task::block_in_place(|| RedisCluster::start_secure(3, &authority));
    let url = format!("rediss://127.0.0.1:{}", cluster.nodes[0].tls_port());
    let redis = Redis::cluster([url]).unwrap();
    let me = authority.sign(&["me"]);
    let trusting = redis.clone().ca_certificate(authority.pem()).unwrap();
    let whole = trusting.client_certificate(&me.chain, &me.key).unwrap();
    let (a, mut b) = (Peer::of(whole.clone()), Peer::of(whole));
    a.session.check(LEASE).await.unwrap(); // at each node
    a.acquire(&[1]).await;
    assert_eq!(b.acquire(&[1]).await.acquired, WAITING);
    a.release(&[1]).await;
    assert_eq!(b.granted().await.ticket, 1);
    refused(redis, ErrorKind::Incompatible, "authority").await;
}
