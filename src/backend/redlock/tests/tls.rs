//! Servers over TLS.

use super::*;
use crate::backend::support::certificates::{Authority, Certificate};

/// At a check and in a call the same, and soon.
async fn refused(redlock: Redlock, kind: ErrorKind, words: &str) {
    let mut a = Peer::of(redlock);
    let start = Instant::now();
    for error in [
        a.session.check(LEASE).await.unwrap_err(),
        a.try_acquire_ticket(1).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
    assert!(start.elapsed() < CHECK_TIMEOUT, "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_lock_is_acquired_and_wrong_certificates_are_reported() {
    let authority = Authority::new();
    let servers: Vec<RedisServer> = (0..3)
        .map(|_| authority.start_server(&authority.sign(&["127.0.0.1"]), &[]))
        .collect();
    servers.iter().for_each(grow_old);
    let each = |set: &dyn Fn(usize, Redis) -> Redis| {
        let servers = servers.iter().enumerate().map(|(at, server)| {
            let url = format!("rediss://127.0.0.1:{}", server.tls_port());
            set(at, Redis::new(url).unwrap())
        });
        Redlock::from_servers(servers)
            .unwrap()
            .prefix("shop")
            .unwrap()
    };
    let trusting = |redis: Redis| redis.ca_certificate(authority.pem()).unwrap();
    let showing = |redis: Redis, me: &Certificate| {
        let redis = trusting(redis);
        redis.client_certificate(&me.chain, &me.key).unwrap()
    };
    let me = authority.sign(&["me"]);
    let whole = each(&|_, redis| showing(redis, &me));
    let lease = LEASE * 3;
    let mut a = Peer::of(whole.clone()).lease(lease);
    let mut b = Peer::of(whole).lease(lease);
    a.session.check(lease).await.unwrap();
    b.session.check(lease).await.unwrap();
    let token = a.must_acquire(1).await;
    assert_eq!(b.acquire(1).await, TicketState::Queued);
    assert!(a.release(1).await.unwrap());
    b.acquires_within(1, LEASE).await;
    assert!(matches!(b.renew(1).await, Ok(TicketState::Held { token: next }) if next > token));
    assert!(b.release(1).await.unwrap());

    // The system does not know this authority.
    let unknown = each(&|_, redis| redis);
    refused(unknown, ErrorKind::Incompatible, "authority").await;
    let nobody = each(&|_, redis| trusting(redis));
    refused(nobody, ErrorKind::Denied, "client certificate").await;
    // One that is wrong does no harm, and a check names it.
    let one = each(&|at, redis| match at {
        1 => trusting(redis),
        _ => showing(redis, &me),
    });
    let mut c = Peer::of(one).lease(lease);
    let error = c.session.check(LEASE).await.unwrap_err();
    assert!(error.to_string().starts_with("1 of 3"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    c.must_acquire(1).await;
}
