//! TLS: whom we trust, who we are, and what is said when that does not fit.

use super::*;
use crate::backend::support::certificates::Authority;
use crate::backend::support::proxy::Proxy;
use crate::backend::zookeeper::way::Way;
use std::os::unix::process::CommandExt;
use std::process::Command;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

struct Place {
    authority: Authority,
    servers: ZooKeepers,
}

impl Place {
    async fn start(servers: usize, strict: bool) -> Self {
        let start = move || {
            let authority = Authority::new();
            Self {
                servers: ZooKeepers::start_secure(servers, &authority, strict),
                authority,
            }
        };
        let place = tokio::task::spawn_blocking(start).await.unwrap();
        // The first time takes it long.
        let warm = Peer::new(&place.showing(&place.authority));
        let end = Instant::now() + 30 * SECOND;
        while let Err(error) = warm.session.check(LEASE).await {
            assert!(Instant::now() < end, "{error}");
        }
        place
    }

    fn zookeeper(&self) -> ZooKeeper {
        let url = format!("zookeepers://{}", self.servers.secure_connect_string());
        let zookeeper = ZooKeeper::of_url(&url).unwrap();
        zookeeper.prefix(own_prefix()).unwrap()
    }

    fn trusting(&self) -> ZooKeeper {
        self.zookeeper().authority(self.authority.pem()).unwrap()
    }

    fn showing(&self, authority: &Authority) -> ZooKeeper {
        let me = authority.sign(&["me"]);
        self.trusting()
            .client_certificate(me.chain, me.key)
            .unwrap()
    }
}

/// One takes it over from the other.
async fn works(zookeeper: &ZooKeeper) {
    let (a, mut b) = (Peer::new(zookeeper), Peer::new(zookeeper));
    a.session.check(LEASE).await.unwrap();
    assert!(holds(&a.enter(&[1]).await.entered).is_some());
    assert_eq!(b.enter(&[1]).await.entered, [State::Waiting]);
    a.leave(&[1]).await;
    assert_eq!(b.granted().await.ticket, 1);
    b.leave(&[1]).await;
}

/// At a check and in a call the same, within the time of a check.
async fn refused(zookeeper: ZooKeeper, kind: ErrorKind, words: &str) {
    let a = Peer::new(&zookeeper);
    let end = Instant::now() + 20 * SECOND;
    for check in [true, false] {
        loop {
            let start = Instant::now();
            let error = match check {
                true => a.session.check(LEASE).await.unwrap_err(),
                false => a.session.exchange(a.enters(&[1])).await.unwrap_err(),
            };
            assert!(start.elapsed() < CHECKING + SECOND / 2);
            if error.kind() == kind && error.to_string().contains(words) {
                break;
            }
            // A busy server may not even answer in time.
            assert!(Instant::now() < end, "{error}");
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        }
    }
}

#[tokio::test]
async fn an_authority_of_its_own_is_trusted_and_no_other() {
    let place = Place::start(1, false).await;
    works(&place.trusting()).await;
    works(&place.trusting().auth("shop", "secret").unwrap()).await;
    // The system does not know this authority, and another does not help.
    let stranger = place.zookeeper();
    refused(stranger, ErrorKind::Incompatible, "ZooKeeper::authority").await;
    let other = place.zookeeper().authority(Authority::new().pem()).unwrap();
    refused(other, ErrorKind::Incompatible, "ZooKeeper::authority").await;
    let port = place.servers.secure_port(0);
    let named = ZooKeeper::new(format!("localhost:{port}")).unwrap();
    let named = named.tls().unwrap().authority(place.authority.pem());
    refused(named.unwrap(), ErrorKind::Incompatible, "another name").await;
}

#[tokio::test]
async fn a_certificate_is_shown_to_servers_that_demand_one() {
    let place = Place::start(1, true).await;
    works(&place.showing(&place.authority)).await;
    let nobody = place.trusting();
    refused(nobody, ErrorKind::Denied, "client certificate").await;
    let stranger = place.showing(&Authority::new());
    refused(stranger, ErrorKind::Denied, "client certificate").await;
}

#[tokio::test]
async fn tls_on_one_side_only_is_said() {
    let place = Place::start(1, false).await;
    let plain = zookeeper(place.servers.secure_connect_string());
    refused(plain, ErrorKind::Unavailable, "a port for TLS").await;
    let secure = ZooKeeper::new(server().connect_string()).unwrap();
    let secure = secure.tls().unwrap().authority(place.authority.pem());
    refused(
        secure.unwrap(),
        ErrorKind::Unavailable,
        "does not speak TLS",
    )
    .await;
    let nobody = ZooKeeper::new("127.0.0.1:1").unwrap().tls().unwrap();
    refused(nobody, ErrorKind::Unavailable, "cannot be reached").await;
}

#[tokio::test]
async fn a_session_outlives_its_connection() {
    let place = Place::start(1, false).await;
    let proxy = Proxy::start(place.servers.secure_port(0)).await;
    let mut zookeeper = place.trusting();
    zookeeper.settings.servers = proxy.address().into();
    let mut peer = Peer::new(&zookeeper);
    let token = holds(&peer.enter(&[1]).await.entered);
    assert!(token.is_some());
    proxy.cut();
    assert_eq!(holds(&peer.keep(&[1]).await.kept), token);
    while let Ok(event) = peer.events.try_recv() {
        assert_ne!(event, Event::Lost);
    }
}

#[tokio::test]
async fn one_of_three_is_killed() {
    let mut place = Place::start(3, false).await;
    let peer = Peer::new(&place.trusting());
    let token = holds(&peer.enter(&[1]).await.entered);
    assert!(token.is_some());
    for server in 0..3 {
        place.servers.kill(server);
        assert_eq!(
            holds(&peer.keep(&[1]).await.kept),
            token,
            "without {server}"
        );
        place.servers.restart(server);
        assert!(place.servers.wait_until_ready());
    }
}

/// Whoever gets into the tunnel is taken for us.
#[tokio::test]
async fn nobody_else_gets_in() {
    let place = Place::start(1, true).await;
    let zookeeper = place.showing(&place.authority);
    let way = Way::open(&zookeeper.settings).await.unwrap();
    let mut ours = TcpStream::connect(&*way.servers).await.unwrap();
    ours.write_all(b"srvr").await.unwrap();
    let mut answer = String::new();
    ours.read_to_string(&mut answer).await.unwrap();
    assert!(answer.contains("Mode: "), "{answer}");
    if !rustix::process::geteuid().is_root() {
        return; // who cannot become another user cannot try it
    }
    let (host, port) = way.servers.rsplit_once(':').unwrap();
    let script = format!("exec 3<>/dev/tcp/{host}/{port}; printf srvr >&3; cat <&3");
    let ask = move |user| {
        let mut asks = Command::new("bash");
        asks.args(["-c", &script]).uid(user).output().unwrap()
    };
    let answers = tokio::task::spawn_blocking(move || [ask(0), ask(65_534)]);
    let [root, nobody] = answers.await.unwrap().map(|answer| answer.stdout);
    assert_eq!(String::from_utf8_lossy(&root).matches("Mode: ").count(), 1);
    assert!(nobody.is_empty(), "{nobody:?}");
}

#[test]
fn certificates_are_checked_when_given() {
    let authority = Authority::new();
    let (me, you) = (authority.sign(&["me"]), authority.sign(&["you"]));
    let pem = authority.pem();
    let plain = || ZooKeeper::new("h").unwrap();
    let secure = || ZooKeeper::of_url("zookeepers://u:secret@h").unwrap();
    for wrong in [
        plain().authority(&pem),
        plain().client_certificate(&me.chain, &me.key),
        secure().authority(""),
        secure().authority(&pem[..pem.len() / 2]),
        secure().client_certificate(&me.chain, ""),
        secure().client_certificate(&me.chain, &you.key),
        secure().client_certificate(&me.key, &me.chain),
    ] {
        let error = wrong.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidConfig, "{error}");
        let shown = format!("{error} {error:?}");
        assert!(!shown.contains("PRIVATE") && !shown.contains("secret"));
    }
    let zookeeper = secure().authority(&pem).unwrap();
    assert!(zookeeper.client_certificate(&me.chain, &me.key).is_ok());
}
