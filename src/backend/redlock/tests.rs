//! What is particular to Redlock. The rules that hold for every backend are in `backend/conformance`.

mod builder;
mod check;
mod faults;
mod format;
mod order;
mod restarts;
#[cfg(feature = "redis-tls")]
mod tls;
mod tokens;

use super::check::CHECK_TIMEOUT;
use super::*;
use crate::backend::support::redis::RedisServer;
use crate::backend::support::witness;
use crate::backend::{Call, Outcome, Reply, TicketState, call_time};
use crate::backend::{Grant, exchange_one};
use crate::error::ErrorKind;
use crate::name::Queue;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

const LEASE: Duration = Duration::from_millis(1200);
const LOCK: &str = "shop:redlock:mutex:{buy}";
const MARKER: &str = "shop:redlock:since";
const WAITING: [TicketState; 1] = [TicketState::Queued];

/// One node, as a queue client would use it.
struct Peer {
    session: Arc<dyn Session>,
    node: Node,
    number: u64,
    lease: Duration,
}

/// Servers that have been up for long.
fn servers(count: usize) -> Vec<RedisServer> {
    let servers: Vec<RedisServer> = (0..count).map(|_| RedisServer::start()).collect();
    servers.iter().for_each(grow_old);
    servers
}

/// From now on it has a vote.
fn grow_old(server: &RedisServer) {
    server.command(&["SET", MARKER, "1 1"]);
}

fn urls(servers: &[RedisServer]) -> Vec<String> {
    servers.iter().map(RedisServer::url).collect()
}

fn redlock(urls: &[String]) -> Redlock {
    Redlock::new(urls).unwrap().prefix("shop").unwrap()
}

fn queue() -> Queue {
    Queue::mutex(b"buy").unwrap()
}

/// The server stores a lock, confirmed or not.
fn is_locked(server: &RedisServer) -> bool {
    server.command(&["EXISTS", LOCK]).int() == 1
}

/// The server stores a lock with its token.
fn is_held(server: &RedisServer) -> bool {
    let lock = server.command(&["GET", LOCK]).text();
    !lock.is_empty() && !lock.ends_with(" 0")
}

/// Waits until it is so.
async fn until(within: Duration, is_so: impl Fn() -> bool) {
    let end = Instant::now() + within;
    while !is_so() {
        assert!(Instant::now() < end, "not within {within:?}");
        sleep(Duration::from_millis(10)).await;
    }
}

// === impl Peer ===

impl Peer {
    fn new(urls: &[String]) -> Self {
        Self::of(redlock(urls))
    }

    fn of(redlock: Redlock) -> Self {
        let node = Node::of_this_process();
        Self {
            session: Open::open(redlock, node.clone(), Events::new(|_| {})),
            node,
            number: 0,
            lease: LEASE,
        }
    }

    fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    fn call(&mut self) -> Call {
        self.number += 1;
        Call {
            queue: queue(),
            number: self.number,
            limit: 1,
            lease: self.lease,
            release: Vec::new(),
            renew: Vec::new(),
            acquire: Vec::new(),
            try_acquire: Vec::new(),
        }
    }

    /// As a queue client: gives up after the time that a call has.
    async fn send(&self, call: Call) -> Result<Outcome, Error> {
        let time = call_time(call.lease);
        match timeout(time, exchange_one(&*self.session, call)).await {
            Ok(Ok(Reply::Done(outcome))) => Ok(outcome),
            Ok(Ok(Reply::Stale)) => panic!("stale"),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(Error::new(ErrorKind::Unavailable, "given up")),
        }
    }

    async fn try_acquire_ticket(&mut self, ticket: u64) -> Result<TicketState, Error> {
        let acquire = vec![ticket];
        let call = Call {
            acquire,
            ..self.call()
        };
        Ok(self.send(call).await?.acquired[0])
    }

    async fn acquire(&mut self, ticket: u64) -> TicketState {
        self.try_acquire_ticket(ticket).await.unwrap()
    }

    /// Acquires the lock at once, and returns the token.
    async fn must_acquire(&mut self, ticket: u64) -> u64 {
        match self.acquire(ticket).await {
            TicketState::Held { token } => token,
            other => panic!("{other:?}"),
        }
    }

    /// Calls as often as `poll_after` requires until the lock is held. Returns the number of calls.
    async fn acquires_within(&mut self, ticket: u64, time: Duration) -> usize {
        let end = Instant::now() + time;
        for tries in 1.. {
            let acquire = vec![ticket];
            let call = Call {
                acquire,
                ..self.call()
            };
            let mut pause = Duration::from_millis(50);
            match self.send(call).await {
                Ok(outcome) if matches!(outcome.acquired[0], TicketState::Held { .. }) => {
                    return tries;
                }
                Ok(outcome) => pause = outcome.poll_after.expect("a time for the next call"),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
            }
            assert!(Instant::now() < end, "still waits after {time:?}");
            sleep(pause).await;
        }
        unreachable!("it asks until it is in");
    }

    async fn renew(&mut self, ticket: u64) -> Result<TicketState, Error> {
        let renew = vec![ticket];
        let call = Call {
            renew,
            ..self.call()
        };
        Ok(self.send(call).await?.renewed[0])
    }

    async fn release(&mut self, ticket: u64) -> Result<bool, Error> {
        let release = vec![ticket];
        let call = Call {
            release,
            ..self.call()
        };
        Ok(self.send(call).await?.released[0])
    }
}
