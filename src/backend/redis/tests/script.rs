//! What is particular to the script.

use super::*;

#[tokio::test]
async fn a_release_grants_the_next_queued_ticket() {
    let server = RedisServer::start();
    let (a, mut b) = (Peer::new(&server.url()), Peer::new(&server.url()));
    let first = a.acquire(&[1]).await;
    assert_eq!(plain(&first.acquired), HELD);
    assert_eq!((first.in_use, first.queued, first.poll_after), (1, 0, None));

    let second = b.acquire(&[7]).await;
    assert_eq!(second.acquired, WAITING);
    assert_eq!((second.in_use, second.queued), (1, 1));
    let poll_after = second.poll_after.unwrap();
    assert!(
        poll_after > Duration::ZERO && poll_after < LEASE / 2,
        "{poll_after:?}"
    );
    // Only nodes with queued tickets have to poll, and no ticket overtakes the queue.
    let tried = a
        .send(Call {
            try_acquire: vec![2],
            ..a.call()
        })
        .await
        .unwrap();
    assert_eq!(
        (tried.tried, tried.poll_after),
        (vec![TicketState::Refused], None)
    );

    let left = a.release(&[1, 99]).await;
    assert_eq!(
        (left.released, left.in_use, left.queued),
        (vec![true, false], 1, 0)
    );
    let grant = b.granted().await;
    assert_eq!(grant.ticket, 7);
    assert!(grant.token > token(&first.acquired));
    let renewed = b.renew(&[7]).await;
    assert_eq!(
        renewed.renewed,
        vec![TicketState::Held { token: grant.token }]
    );
    assert_eq!(renewed.poll_after, None);
}

#[tokio::test]
async fn own_grants_are_in_the_reply() {
    let server = RedisServer::start();
    let a = Peer::new(&server.url()).limit(2);
    let acquired = a.acquire(&[1, 2, 3, 4, 5]).await.acquired;
    assert_eq!(
        plain(&acquired),
        [HELD, HELD, WAITING, WAITING, WAITING].concat()
    );
    // A queue entry is not a permit and cannot be renewed.
    assert_eq!(a.renew(&[3]).await.renewed, vec![TicketState::Gone]);
    let left = a.release(&[4, 2, 1]).await;
    let tickets: Vec<u64> = left.granted.iter().map(|grant| grant.ticket).collect();
    assert_eq!(
        (tickets, left.released),
        (vec![3, 5], vec![false, true, true])
    );
    assert!(left.granted[0].token < left.granted[1].token);
    assert_eq!((left.in_use, left.queued), (2, 0));
    // Named or not.
    a.acquire(&[6]).await;
    let call = Call {
        release: vec![3],
        acquire: vec![6],
        ..a.call()
    };
    let both = a.send(call).await.unwrap();
    assert_eq!(plain(&both.acquired), HELD);
    assert_eq!(both.granted.len(), 1);
}

#[tokio::test]
async fn a_late_call_changes_nothing() {
    let server = RedisServer::start();
    let a = Peer::new(&server.url());
    let late = Call {
        acquire: vec![1],
        ..a.call()
    };
    a.release(&[1]).await;
    assert_eq!(exchange_one(&*a.session, late).await.unwrap(), Reply::Stale);
    let same = Call {
        acquire: vec![2],
        ..a.call()
    };
    let first = a.send(same.clone()).await.unwrap();
    let again = a.send(same).await.unwrap();
    assert_eq!(first.acquired, again.acquired);
    assert_eq!(again.in_use, 1);
}

#[tokio::test]
async fn a_call_with_all_operations_is_executed() {
    let server = RedisServer::start();
    let a = Peer::new(&server.url()).limit(100);
    let tickets: Vec<u64> = (1..=256).collect();
    let acquired = a.acquire(&tickets).await;
    assert_eq!((acquired.in_use, acquired.queued), (100, 156));
    assert_eq!(
        a.renew(&tickets)
            .await
            .renewed
            .iter()
            .filter(|s| **s == TicketState::Gone)
            .count(),
        156
    );
    let left = a.release(&tickets).await;
    assert_eq!((left.in_use, left.queued, left.granted.len()), (0, 0, 0));
    // As many are granted by one call as fit into one, and the next follows at once.
    let b = Peer::new(&server.url());
    b.acquire(&[1]).await;
    for start in [1000, 2000] {
        b.acquire(&(start..start + 256).collect::<Vec<_>>()).await;
    }
    let b = b.limit(1000);
    let first = b.release(&[1]).await;
    assert_eq!((first.granted.len(), first.queued), (256, 256));
    assert_eq!(first.poll_after, Some(Duration::from_millis(1)));
    assert_eq!(b.renew(&[]).await.granted.len(), 256);
}

#[tokio::test]
async fn survives_script_flush() {
    let server = RedisServer::start();
    let a = Peer::new(&server.url());
    for ticket in 1..20 {
        server.command(&["SCRIPT", "FLUSH"]);
        assert_eq!(plain(&a.acquire(&[ticket]).await.acquired), HELD);
        server.command(&["SCRIPT", "FLUSH"]);
        a.release(&[ticket]).await;
    }
}

#[tokio::test]
async fn a_foreign_value_under_a_key_is_refused_and_unchanged() {
    for key in keys() {
        let server = RedisServer::start();
        server.command(&["SET", key, "mine"]);
        let a = Peer::new(&server.url());
        let error = a.try_acquire_tickets(&[1, 2]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Incompatible, "{key}: {error}");
        let hint = if key.ends_with("single") {
            "version"
        } else {
            "prefix"
        };
        assert!(error.to_string().contains(hint), "{error}");
        assert_eq!(server.command(&["DBSIZE"]).int(), 1, "{key}");
        assert_eq!(server.command(&["GET", key]).text(), "mine");
    }
    // Also if it arrives later.
    let server = RedisServer::start();
    let a = Peer::new(&server.url());
    a.acquire(&[1]).await;
    server.command(&["SET", keys()[1], "mine"]);
    let error = a.try_acquire_tickets(&[2]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
    assert_eq!(server.command(&["EXISTS", keys()[3]]).int(), 1);
    assert_eq!(plain(&a.renew(&[1]).await.renewed), HELD);
    // What is no state of ours.
    server.command(&["DEL", keys()[1], keys()[3]]);
    server.command(&["HSET", keys()[2], "state", "x"]);
    let error = a.try_acquire_tickets(&[2]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
}

#[tokio::test]
async fn full_memory_permits_renewals_and_releases() {
    let server = RedisServer::start();
    let (a, mut b) = (Peer::new(&server.url()), Peer::new(&server.url()));
    a.acquire(&[1]).await;
    b.acquire(&[2]).await;
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    assert!(server.command(&["SET", "x", "y"]).text().starts_with("OOM"));
    assert_eq!(plain(&a.renew(&[1]).await.renewed), HELD);
    assert_eq!(a.release(&[1]).await.released, vec![true]);
    assert_eq!(b.granted().await.ticket, 2);
    assert_eq!(b.release(&[2]).await.released, vec![true]);
    server.command(&["SCRIPT", "FLUSH"]);
    assert_eq!(plain(&a.acquire(&[3]).await.acquired), HELD);
}

#[tokio::test]
async fn an_idle_name_leaves_nothing() {
    let server = RedisServer::start();
    let lease = Duration::from_secs(1);
    let (a, b) = (
        Peer::new(&server.url()).lease(lease),
        Peer::new(&server.url()).lease(lease),
    );
    let left = |key: &str| server.command(&["PTTL", key]).int();
    let [permits, queue, meta, single] = keys();
    a.acquire(&[1]).await;
    assert!(left(single) > 3_600_000);
    b.acquire(&[2]).await;
    assert_eq!(left(single), -2);
    for key in [permits, queue, meta] {
        assert!(left(key) > 3_600_000, "{key}");
    }
    a.release(&[1]).await;
    assert_eq!(left(queue), -2);
    assert!(left(permits) > 3_600_000, "made anew, with its expiry");
    server.command(&["PEXPIRE", permits, "5000000"]);
    b.renew(&[2]).await;
    assert!(left(permits) > 4_900_000, "never shrinks");
    b.release(&[2]).await;
    assert_eq!(left(permits), -2);
    assert!((1..=1000).contains(&left(meta)), "{}", left(meta));
    a.acquire(&[3]).await;
    assert!(left(permits) > 3_600_000 && left(meta) > 3_600_000);
    a.release(&[3]).await;
    sleep(Duration::from_millis(1100)).await;
    assert_eq!(server.command(&["DBSIZE"]).int(), 0);
    // The same in the single-holder form.
    a.acquire(&[4]).await;
    a.renew(&[4]).await;
    assert!(left(single) > 3_600_000);
    a.release(&[4]).await;
    assert!((1..=1000).contains(&left(single)), "{}", left(single));
    sleep(Duration::from_millis(1100)).await;
    assert_eq!(server.command(&["DBSIZE"]).int(), 0);
}

#[tokio::test]
async fn tokens_increase_across_a_flush() {
    let mut server = RedisServer::start();
    let a = Peer::new(&server.url());
    let mut last = 0;
    for ticket in 1..30 {
        match ticket {
            10 => drop(server.command(&["FLUSHALL"])),
            20 => server.restart(),
            _ => {}
        }
        let token = token(&a.acquire(&[ticket]).await.acquired);
        assert!(token > last && token < 1 << 53, "{token} after {last}");
        last = token;
        a.release(&[ticket]).await;
    }
}

#[tokio::test]
async fn a_stall_evicts_no_live_ticket() {
    let server = RedisServer::start();
    let lease = Duration::from_millis(600);
    let (a, b) = (
        Peer::new(&server.url()).lease(lease),
        Peer::new(&server.url()).lease(lease),
    );
    let dead = Peer::new(&server.url()).lease(lease).limit(2);
    a.acquire(&[1]).await;
    dead.acquire(&[5]).await;
    assert_eq!(b.acquire(&[2]).await.acquired, WAITING);
    server.pause();
    sleep(lease * 2).await;
    server.resume();
    // The first node that calls is not the holder: it must neither acquire nor lose its queue entry.
    assert_eq!(b.acquire(&[2]).await.acquired, WAITING);
    assert_eq!(plain(&a.renew(&[1]).await.renewed), HELD);
    for _ in 0..4 {
        sleep(lease / 6).await;
        assert_eq!(b.acquire(&[2]).await.acquired, WAITING);
        assert_eq!(plain(&a.renew(&[1]).await.renewed), HELD);
    }
    // The ticket of the dead node was removed meanwhile.
    let seen = b.session.inspect(queue()).await.unwrap();
    assert_eq!((seen.in_use, seen.queued), (1, 1));
    assert_eq!(server.command(&["ZCARD", keys()[0]]).int(), 1);
}

#[tokio::test]
async fn silent_nodes_are_forgotten_after_one_lease() {
    let server = RedisServer::start();
    let lease = Duration::from_millis(500);
    let holder = Peer::new(&server.url()).lease(lease);
    let waiter = Peer::new(&server.url()).lease(lease);
    let mut b = Peer::new(&server.url()).lease(lease);
    holder.acquire(&[1]).await;
    waiter.acquire(&[1, 2, 3]).await;
    let start = Instant::now();
    let mut outcome = b.acquire(&[9]).await;
    while outcome.acquired == WAITING {
        sleep(outcome.poll_after.unwrap()).await;
        outcome = b.acquire(&[9]).await;
    }
    let took = start.elapsed();
    assert!(
        took > lease - Duration::from_millis(50) && took < lease * 2,
        "{took:?}"
    );
    assert_eq!((outcome.in_use, outcome.queued), (1, 0));
    // A forgotten node has no field in meta either.
    for _ in 0..12 {
        sleep(lease / 5).await;
        b.renew(&[9]).await;
    }
    assert_eq!(server.command(&["HLEN", keys()[2]]).int(), 2);
    assert!(b.events.try_recv().is_ok());
}

/// A gap that endangers only short leases does not keep expired permits for half of a long lease.
#[tokio::test]
async fn a_long_lease_beside_a_short_one() {
    let server = RedisServer::start();
    let short = Duration::from_millis(300);
    let long = Peer::new(&server.url())
        .limit(2)
        .lease(Duration::from_secs(60));
    long.acquire(&[1]).await;
    let dead = Peer::new(&server.url()).limit(2).lease(short);
    dead.acquire(&[1]).await;
    // So rarely that each call follows a gap.
    for _ in 0..4 {
        sleep(short).await;
        long.acquire(&[2]).await;
    }
    let renewed = long.renew(&[1, 2]).await;
    assert_eq!(plain(&renewed.renewed), [HELD, HELD].concat());
}

/// Random calls in random order have the same result as on a model queue.
#[tokio::test]
async fn random_calls_match_a_model_queue() {
    let server = RedisServer::start();
    let mut peers: Vec<Peer> = (0..3).map(|_| Peer::new(&server.url())).collect();
    for peer in &peers {
        peer.renew(&[]).await;
    }
    let (mut holders, mut waiting) = (Vec::<(usize, u64)>::new(), Vec::<(usize, u64)>::new());
    let mut limits = [1; 3];
    let mut expected = vec![Vec::new(); 3];
    let mut last_token = 0;
    for step in 0..3000 {
        let peer = rand::random_range(0..3);
        if rand::random_ratio(1, 8) {
            limits[peer] = rand::random_range(1..5);
        }
        peers[peer].limit = limits[peer];
        let pick = |most: usize| -> Vec<u64> {
            let count = rand::random_range(0..=most);
            (0..count)
                .map(|_| rand::random_range(0..12))
                .collect::<std::collections::BTreeSet<_>>()
                .into_iter()
                .collect()
        };
        let (release, renew) = (pick(3), pick(3));
        let mut wanted = pick(4);
        let try_acquire = wanted.split_off(rand::random_range(0..=wanted.len()));
        let call = Call {
            release,
            renew,
            acquire: wanted,
            try_acquire,
            ..peers[peer].call()
        };

        let mut outcome = Outcome::default();
        for ticket in &call.release {
            outcome.released.push(holders.contains(&(peer, *ticket)));
            holders.retain(|held| *held != (peer, *ticket));
            waiting.retain(|entry| *entry != (peer, *ticket));
        }
        for ticket in &call.renew {
            let held = holders.contains(&(peer, *ticket));
            outcome
                .renewed
                .push(if held { HELD[0] } else { TicketState::Gone });
        }
        let mut own = Vec::new();
        while let Some(head) = waiting.first().copied() {
            if holders.len() >= limits[head.0] as usize {
                break;
            }
            waiting.remove(0);
            holders.push(head);
            if head.0 == peer {
                own.push(head.1)
            } else {
                expected[head.0].push(head.1)
            }
        }
        let tried = call.try_acquire.iter().map(|ticket| (ticket, false));
        for (ticket, queues) in call
            .acquire
            .iter()
            .map(|ticket| (ticket, true))
            .chain(tried)
        {
            let ticket = (peer, *ticket);
            let state = if holders.contains(&ticket) {
                HELD[0]
            } else if waiting.contains(&ticket) {
                TicketState::Queued
            } else if waiting.is_empty() && holders.len() < limits[peer] as usize {
                holders.push(ticket);
                HELD[0]
            } else if queues {
                waiting.push(ticket);
                TicketState::Queued
            } else {
                TicketState::Refused
            };
            if queues {
                outcome.acquired.push(state)
            } else {
                outcome.tried.push(state)
            }
        }
        let message = format!("step {step}: {call:?}");
        let answer = peers[peer].send(call).await.unwrap();
        assert_eq!(answer.released, outcome.released, "{message}");
        assert_eq!(plain(&answer.renewed), outcome.renewed, "{message}");
        assert_eq!(plain(&answer.acquired), outcome.acquired, "{message}");
        assert_eq!(plain(&answer.tried), outcome.tried, "{message}");
        assert_eq!(
            (answer.in_use, answer.queued),
            (holders.len() as u64, waiting.len() as u64),
            "{message}"
        );
        assert_eq!(
            answer
                .granted
                .iter()
                .map(|grant| grant.ticket)
                .collect::<Vec<_>>(),
            own,
            "{message}"
        );
        assert_eq!(
            answer.poll_after.is_some(),
            waiting.iter().any(|entry| entry.0 == peer),
            "{message}"
        );
        for grant in &answer.granted {
            assert!(grant.token > last_token, "{message}");
            last_token = grant.token;
        }
        for (peer, expected) in peers.iter_mut().zip(&mut expected) {
            for ticket in expected.drain(..) {
                assert_eq!(peer.granted().await.ticket, ticket, "{message}");
            }
        }
        if rand::random_ratio(1, 20) && !(holders.is_empty() && waiting.is_empty()) {
            let (node, ticket) = *holders.iter().chain(&waiting).next_back().unwrap();
            let name = peers[node].node.ticket(ticket);
            assert!(
                peers[peer].session.evict(queue(), name).await.unwrap(),
                "{message}"
            );
            holders.retain(|held| *held != (node, ticket));
            waiting.retain(|entry| *entry != (node, ticket));
            while let Some(head) = waiting.first().copied() {
                if holders.len() >= limits[head.0] as usize {
                    break;
                }
                waiting.remove(0);
                holders.push(head);
                assert_eq!(peers[head.0].granted().await.ticket, head.1, "{message}");
            }
        }
    }
}

#[tokio::test]
async fn inspect_and_evict() {
    let server = RedisServer::start();
    let (a, mut b) = (Peer::new(&server.url()), Peer::new(&server.url()));
    assert_eq!(
        a.session.inspect(queue()).await.unwrap(),
        Inspection::default()
    );
    assert!(!a.session.evict(queue(), "nobody-1".into()).await.unwrap());
    assert_eq!(server.command(&["DBSIZE"]).int(), 0);
    a.acquire(&[1]).await;
    b.acquire(&[2, 3]).await;
    let seen = a.session.inspect(queue()).await.unwrap();
    assert_eq!((seen.in_use, seen.queued), (1, 2));
    assert_eq!(seen.holders[0].ticket, a.node.ticket(1));
    assert_eq!(seen.holders[0].node, a.node.as_str());
    assert!(seen.holders[0].lease_left > LEASE / 2 && seen.holders[0].lease_left <= LEASE);
    assert_eq!(seen.queue[1].ticket, b.node.ticket(3));
    assert!(a.session.evict(queue(), b.node.ticket(3)).await.unwrap());
    assert!(a.session.evict(queue(), a.node.ticket(1)).await.unwrap());
    assert!(!a.session.evict(queue(), a.node.ticket(1)).await.unwrap());
    assert_eq!(b.granted().await.ticket, 2);
    assert_eq!(a.renew(&[1]).await.renewed, vec![TicketState::Gone]);
    let renewed = b.renew(&[2]).await;
    assert_eq!(
        (plain(&renewed.renewed), renewed.queued, renewed.poll_after),
        (HELD.to_vec(), 0, None)
    );
}

/// Counts the commands of an acquire and a release in the single-holder form.
#[tokio::test]
async fn a_single_holder_pair_executes_few_commands() {
    let server = RedisServer::start();
    let a = Peer::new(&server.url());
    let [.., single] = keys();
    a.acquire(&[1]).await;
    a.release(&[1]).await;
    let stats = stats_of_pairs(&server, &a).await;
    let calls = |command: &str| calls(&stats, command);
    assert_eq!(calls("evalsha"), 200);
    for command in ["time", "mget", "set"] {
        assert_eq!(calls(command), 200, "{command}");
    }
    let others = [
        "get", "pexpire", "hmget", "hset", "zcard", "zadd", "zrem", "zrange",
    ];
    assert_eq!(others.map(calls), [0; 8]);
    // In one key.
    a.acquire(&[200]).await;
    assert_eq!(server.command(&["EXISTS", single]).int(), 1);
    assert_eq!(server.command(&["DBSIZE"]).int(), 1);
}

/// The same with several holders and no queue.
#[tokio::test]
async fn a_general_form_pair_executes_few_commands() {
    let server = RedisServer::start();
    let a = Peer::new(&server.url()).limit(8);
    let [permits, _, meta, _] = keys();
    a.acquire(&[0, 1]).await;
    let stats = stats_of_pairs(&server, &a).await;
    let calls = |command: &str| calls(&stats, command);
    let inside = [
        ("time", 200),
        ("get", 0),
        ("mget", 200),
        ("hmget", 200),
        ("zcard", 200),
        ("zadd", 100),
        ("zrem", 200),
        ("hset", 200),
        ("pexpire", 0),
    ];
    for (command, expected) in inside {
        assert_eq!(calls(command), expected, "{command}");
    }
    assert_eq!(calls("zrange") + calls("zmscore") + calls("hgetall"), 0);
    // Stored compactly, in two keys.
    let encoding = server.command(&["OBJECT", "ENCODING", meta]).text();
    assert!(["listpack", "ziplist"].contains(&&*encoding), "{encoding}");
    assert_eq!(server.command(&["EXISTS", permits, meta]).int(), 2);
    assert_eq!(server.command(&["DBSIZE"]).int(), 2);
}

/// Returns the command statistics of a hundred pairs.
async fn stats_of_pairs(server: &RedisServer, a: &Peer) -> String {
    server.command(&["CONFIG", "RESETSTAT"]);
    for ticket in 2..102 {
        assert_eq!(plain(&a.acquire(&[ticket]).await.acquired), HELD);
        assert_eq!(a.release(&[ticket]).await.released, vec![true]);
    }
    server.command(&["INFO", "commandstats"]).text()
}

/// Returns how often the server executed a command.
pub(super) fn calls(stats: &str, command: &str) -> u64 {
    let prefix = format!("cmdstat_{command}:calls=");
    let stat = stats.lines().find_map(|stat| stat.strip_prefix(&prefix));
    stat.map_or(0, |stat| stat.split(',').next().unwrap().parse().unwrap())
}

#[tokio::test]
async fn no_ticket_overtakes_a_queue_whose_meta_was_lost() {
    let server = RedisServer::start();
    let (a, b, c) = (
        Peer::new(&server.url()),
        Peer::new(&server.url()),
        Peer::new(&server.url()),
    );
    let [_, queue, meta, _] = keys();
    a.acquire(&[1]).await;
    b.acquire(&[1, 2, 3]).await;
    server.command(&["DEL", meta]);
    assert_eq!(c.acquire(&[1]).await.acquired, WAITING);
    b.acquire(&[1, 2, 3]).await;
    let waiting = server.command(&["ZRANGE", queue, "0", "-1"]).list();
    assert_eq!(waiting.last(), Some(&c.node.ticket(1)), "{waiting:?}");
}

/// A single-holder permit that cannot be converted leaves no state.
#[tokio::test]
async fn a_foreign_value_beside_a_single_holder_permit_creates_no_permit() {
    for key in &keys()[..3] {
        let server = RedisServer::start();
        let (a, b) = (Peer::new(&server.url()), Peer::new(&server.url()));
        a.acquire(&[1]).await;
        server.command(&["SET", key, "mine"]);
        let error = b.try_acquire_tickets(&[2, 3]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Incompatible, "{key}: {error}");
        assert_eq!(server.command(&["GET", key]).text(), "mine");
        server.command(&["DEL", key]);
        assert_eq!(a.release(&[1]).await.released, vec![true], "{key}");
        assert_eq!(server.command(&["ZCARD", keys()[0]]).int(), 0, "{key}");
        assert_eq!(plain(&b.acquire(&[2]).await.acquired), HELD, "{key}");
    }
}

#[tokio::test]
async fn a_permit_whose_meta_was_lost_is_released_as_a_permit() {
    let server = RedisServer::start();
    let (a, b) = (Peer::new(&server.url()), Peer::new(&server.url()));
    a.acquire(&[1]).await;
    b.renew(&[]).await;
    server.command(&["DEL", keys()[2]]);
    assert_eq!(server.command(&["ZCARD", keys()[0]]).int(), 1);
    assert_eq!(a.release(&[1]).await.released, vec![true]);
}

#[tokio::test]
async fn a_single_holder_permit_is_inspected_and_evicted() {
    let server = RedisServer::start();
    let (a, b) = (Peer::new(&server.url()), Peer::new(&server.url()));
    a.acquire(&[1]).await;
    let seen = b.session.inspect(queue()).await.unwrap();
    assert_eq!((seen.in_use, seen.queued, seen.queue.len()), (1, 0, 0));
    assert_eq!(seen.holders[0].ticket, a.node.ticket(1));
    assert!(seen.holders[0].lease_left > LEASE / 2 && seen.holders[0].lease_left <= LEASE);
    assert!(!b.session.evict(queue(), a.node.ticket(2)).await.unwrap());
    assert_eq!(plain(&a.renew(&[1]).await.renewed), HELD);
    server.command(&["FLUSHALL"]);
    a.acquire(&[2]).await;
    assert!(b.session.evict(queue(), a.node.ticket(2)).await.unwrap());
    assert!(!b.session.evict(queue(), a.node.ticket(2)).await.unwrap());
    assert_eq!(a.renew(&[2]).await.renewed, vec![TicketState::Gone]);
    // A released permit is not listed.
    server.command(&["FLUSHALL"]);
    a.acquire(&[3]).await;
    a.release(&[3]).await;
    let seen = b.session.inspect(queue()).await.unwrap();
    assert_eq!(seen, Inspection::default());
    assert_eq!(server.command(&["EXISTS", keys()[3]]).int(), 1);
}

#[tokio::test]
async fn full_memory_permits_single_holder_renewal_release_and_conversion() {
    let server = RedisServer::start();
    let (a, mut b) = (Peer::new(&server.url()), Peer::new(&server.url()));
    a.acquire(&[1]).await;
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    assert!(server.command(&["SET", "x", "y"]).text().starts_with("OOM"));
    let single = || server.command(&["EXISTS", keys()[3]]).int() == 1;
    assert_eq!(plain(&a.renew(&[1]).await.renewed), HELD);
    let both = a
        .send(Call {
            release: vec![1],
            acquire: vec![2],
            ..a.call()
        })
        .await
        .unwrap();
    assert_eq!(
        (both.released, plain(&both.acquired)),
        (vec![true], HELD.to_vec())
    );
    assert_eq!(a.release(&[2]).await.released, vec![true]);
    assert_eq!(plain(&a.acquire(&[3]).await.acquired), HELD);
    assert!(single());
    assert_eq!(b.acquire(&[1]).await.acquired, WAITING);
    assert!(!single());
    assert_eq!(a.release(&[3]).await.released, vec![true]);
    assert_eq!(b.granted().await.ticket, 1);
    // From nothing.
    server.command(&["FLUSHALL"]);
    assert_eq!(plain(&a.acquire(&[4]).await.acquired), HELD);
    assert!(single() && server.command(&["PTTL", keys()[3]]).int() > 3_600_000);
}
