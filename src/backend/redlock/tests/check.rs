//! A check names every server that is wrong.

use super::*;

const RIGHTS: &str = "+eval +evalsha +time +get +set +del +pttl";

fn user(server: &RedisServer, rights: &str) -> String {
    let mut words = vec!["ACL", "SETUSER", "u", "reset", "on", ">secret"];
    words.extend(["resetkeys", "~shop:redlock:*", "-@all"]);
    words.extend(rights.split_whitespace());
    assert_eq!(server.command(&words).text(), "OK", "{rights}");
    server.url_of("u", "secret")
}

#[tokio::test]
async fn the_documented_rights_are_enough_and_a_check_writes_only_the_marker() {
    let servers = servers(3);
    let urls: Vec<String> = servers.iter().map(|it| user(it, RIGHTS)).collect();
    let mut a = Peer::new(&urls);
    a.session.check(LEASE).await.unwrap();
    for server in &servers {
        assert_eq!(server.command(&["KEYS", "*"]).list(), [MARKER]);
    }
    a.must_acquire(1).await;
    assert!(matches!(a.renew(1).await, Ok(TicketState::Held { .. })));
    assert_eq!(a.session.inspect(queue()).await.unwrap().in_use, 1);
    assert!(a.session.evict(queue(), a.node.ticket(1)).await.unwrap());
    a.must_acquire(2).await;
    assert!(a.release(2).await.unwrap());
}

#[tokio::test]
async fn each_missing_right_is_named() {
    let servers = servers(3);
    for right in RIGHTS.split_whitespace() {
        let mut urls = urls(&servers);
        urls[1] = user(&servers[1], &format!("{RIGHTS} -{}", &right[1..]));
        servers[1].command(&["SCRIPT", "FLUSH"]);
        let error = Peer::new(&urls).session.check(LEASE).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{right}: {error}");
        let message = error.to_string().to_lowercase();
        assert!(message.contains(&right[1..]), "{right}: {error}");
        assert!(message.starts_with("1 of 3 servers"), "{error}");
        assert!(!message.contains("secret"), "{error}");
    }
}

#[tokio::test]
async fn every_bad_server_is_named_and_the_others_are_not() {
    let mut servers = servers(5);
    let mut urls = urls(&servers);
    urls[3] = servers[3].url_of("nobody", "wrong");
    servers[1].kill();
    servers[4].pause();
    let start = Instant::now();
    let error = Peer::new(&urls).session.check(LEASE).await.unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(4));
    let message = error.to_string();
    assert!(message.starts_with("3 of 5 servers"), "{message}");
    for (at, server) in servers.iter().enumerate() {
        let named = message.contains(&format!("127.0.0.1:{}", server.port()));
        assert_eq!(named, [1, 3, 4].contains(&at), "server {at}: {message}");
    }
    assert!(
        !message.contains("wrong@") && !message.contains("nobody"),
        "{message}"
    );
    servers[4].resume();
}

#[tokio::test]
async fn a_wrong_password_is_reported_by_a_check_and_by_a_call() {
    let servers: Vec<RedisServer> = (0..3)
        .map(|_| RedisServer::start_with(&["--requirepass", "secret"]))
        .collect();
    let urls: Vec<String> = servers.iter().map(|it| it.url_of("", "mistaken")).collect();
    let mut a = Peer::new(&urls);
    let start = Instant::now();
    for error in [
        a.session.check(LEASE).await.unwrap_err(),
        a.try_acquire_ticket(1).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(error.to_string().contains("refused access"), "{error}");
        assert!(!format!("{error:?}").contains("mistaken"), "{error:?}");
    }
    assert!(start.elapsed() < CHECK_TIMEOUT, "{:?}", start.elapsed());
}

#[tokio::test]
async fn two_addresses_of_one_server_are_detected() {
    let servers = servers(2);
    let mut urls = urls(&servers);
    urls.push(format!("redis://localhost:{}", servers[0].port()));
    let error = Peer::new(&urls).session.check(LEASE).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    let message = error.to_string();
    assert!(
        message.contains("are the same server") && message.contains("localhost"),
        "{message}"
    );
    for server in &servers {
        assert_eq!(server.command(&["KEYS", "*"]).list(), [MARKER]);
    }
}
