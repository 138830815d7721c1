//! What is particular to Redis. The rules that hold for every backend are in `backend/conformance`.

mod batch;
mod builder;
mod clock;
#[cfg(feature = "redis-cluster")]
mod cluster;
mod connection;
mod format;
mod rights;
mod script;
#[cfg(feature = "redis-sentinel")]
mod sentinel;
#[cfg(feature = "redis-tls")]
mod tls;

use super::session::{CHECK_TIMEOUT, POLL};
use super::*;
use crate::backend::Event;
use crate::backend::support::HANG_GUARD;
use crate::backend::support::redis::{Answer, RedisServer};
use crate::backend::{Call, Grant, Inspection, Outcome, Reply, TicketState, exchange_one};
use crate::error::Error;
use crate::error::ErrorKind;
use crate::name::Queue;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

const LEASE: Duration = Duration::from_secs(10);
const HELD: &[TicketState] = &[TicketState::Held { token: 0 }];
const WAITING: &[TicketState] = &[TicketState::Queued];
const RIGHTS: &str = "+eval +evalsha +time +zadd +zrem +zcard +zcount +zrange +zmscore +zremrangebyscore +hmget \
                      +hset +hdel +hgetall +get +mget +set +del +exists +pexpire +publish +subscribe";

/// One node, as a queue client would use it.
struct Peer {
    session: Arc<dyn Session>,
    events: mpsc::UnboundedReceiver<Event>,
    node: Node,
    number: AtomicU64,
    lease: Duration,
    limit: u32,
}

impl Peer {
    fn new(url: &str) -> Self {
        Self::of(Redis::new(url).unwrap().prefix("shop").unwrap())
    }

    fn of(backend: Redis) -> Self {
        let (sender, events) = mpsc::unbounded_channel();
        let node = Node::of_this_process();
        let sink = Events::new(move |event| {
            let _ = sender.send(event);
        });
        Self {
            session: Open::open(backend, node.clone(), sink),
            events,
            node,
            number: AtomicU64::new(1),
            lease: LEASE,
            limit: 1,
        }
    }

    fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    fn limit(mut self, limit: u32) -> Self {
        self.limit = limit;
        self
    }

    fn call(&self) -> Call {
        Call {
            queue: queue(),
            number: self.number.fetch_add(1, Ordering::Relaxed),
            limit: self.limit,
            lease: self.lease,
            release: Vec::new(),
            renew: Vec::new(),
            acquire: Vec::new(),
            try_acquire: Vec::new(),
        }
    }

    async fn send(&self, call: Call) -> Result<Outcome, Error> {
        match timeout(HANG_GUARD, exchange_one(&*self.session, call)).await {
            Ok(Ok(Reply::Done(outcome))) => Ok(outcome),
            Ok(Ok(Reply::Stale)) => panic!("stale"),
            Ok(Err(error)) => Err(error),
            Err(_) => panic!("no answer"),
        }
    }

    async fn acquire(&self, tickets: &[u64]) -> Outcome {
        self.try_acquire_tickets(tickets).await.unwrap()
    }

    async fn try_acquire_tickets(&self, tickets: &[u64]) -> Result<Outcome, Error> {
        self.send(Call {
            acquire: tickets.to_vec(),
            ..self.call()
        })
        .await
    }

    async fn renew(&self, tickets: &[u64]) -> Outcome {
        let renew = tickets.to_vec();
        self.send(Call {
            renew,
            ..self.call()
        })
        .await
        .unwrap()
    }

    async fn release(&self, tickets: &[u64]) -> Outcome {
        let release = tickets.to_vec();
        self.send(Call {
            release,
            ..self.call()
        })
        .await
        .unwrap()
    }

    /// Abandons a call at once, as a queue client does after a timeout.
    async fn give_up(&self) {
        let call = exchange_one(&*self.session, self.call());
        assert!(timeout(Duration::from_millis(50), call).await.is_err());
    }

    async fn granted(&mut self) -> Grant {
        let next = async {
            loop {
                match self.events.recv().await {
                    Some(Event::Granted { grant, .. }) => return grant,
                    Some(Event::Lost | Event::Resync) => {}
                    None => panic!("no more events"),
                }
            }
        };
        timeout(HANG_GUARD, next).await.expect("a grant")
    }

    async fn resynced(&mut self) {
        let next = async { while self.events.recv().await != Some(Event::Resync) {} };
        timeout(HANG_GUARD, next).await.expect("a resync");
    }
}

fn queue() -> Queue {
    Queue::limit(b"llm").unwrap()
}

fn keys() -> [&'static str; 4] {
    [
        "shop:limit:{llm}",
        "shop:limit:{llm}:queue",
        "shop:limit:{llm}:meta",
        "shop:limit:{llm}:single",
    ]
}

/// States with their tokens set to 0.
fn plain(states: &[TicketState]) -> Vec<TicketState> {
    let plain = |state: &TicketState| match state {
        TicketState::Held { .. } => TicketState::Held { token: 0 },
        other => *other,
    };
    states.iter().map(plain).collect()
}

fn token(states: &[TicketState]) -> u64 {
    match states {
        [TicketState::Held { token }] => *token,
        other => panic!("{other:?} holds nothing"),
    }
}
