//! Tokens increase, whichever majority issues them.

use super::*;
use crate::backend::support::clock::WallClock;

#[tokio::test]
async fn tokens_increase_across_majorities_when_a_clock_is_ahead() {
    let clock = WallClock::new();
    let mut servers = servers(4);
    servers.insert(0, RedisServer::start_with_env(&[], clock.env()));
    clock.shift(3600);
    grow_old(&servers[0]);
    let mut last = 0;
    let mut next = async |servers: &[RedisServer], asleep: &[usize]| {
        asleep.iter().for_each(|at| servers[*at].pause());
        // A node of its own each time: no slow connection from before.
        let mut peer = Peer::new(&urls(servers));
        peer.acquires_within(1, LEASE * 2).await;
        let TicketState::Held { token } = peer.renew(1).await.unwrap() else {
            panic!("it does not hold");
        };
        assert!(token > last, "{token} after {last} without {asleep:?}");
        last = token;
        assert!(peer.release(1).await.unwrap());
        asleep.iter().for_each(|at| servers[*at].resume());
        token
    };
    let first = next(&servers, &[3, 4]).await;
    let hour = 3_500 * 1_000_000;
    let time = servers[1].command(&["TIME"]).list()[0]
        .parse::<u64>()
        .unwrap()
        * 1_000_000;
    assert!(first > time + hour, "the one that is ahead was heard");
    next(&servers, &[0]).await;
    next(&servers, &[0, 1]).await;
    // Longer than anything else is remembered.
    sleep(LEASE * 3 / 2).await;
    for asleep in [[0, 1], [0, 4], [0, 2], [1, 3], [0, 3], [2, 4]] {
        next(&servers, &asleep).await;
    }
    // The clock is put right.
    clock.shift(0);
    for asleep in [[1, 2], [0, 4], [3, 4]] {
        next(&servers, &asleep).await;
    }
}

#[tokio::test]
async fn a_token_is_stored_by_a_majority_before_it_is_returned() {
    let servers = servers(5);
    let (mut a, mut b) = (Peer::new(&urls(&servers)), Peer::new(&urls(&servers)));
    let mut last = 0;
    for ticket in 0..20 {
        for peer in [&mut a, &mut b] {
            let token = peer.must_acquire(ticket).await;
            assert!(token > last, "{token} after {last}");
            last = token;
            let stored = servers.iter().filter(|server| {
                let stored = server.command(&["GET", &format!("{LOCK}:token")]);
                stored.text() == token.to_string()
            });
            assert!(stored.count() >= 3);
            assert!(peer.release(ticket).await.unwrap());
        }
    }
}
