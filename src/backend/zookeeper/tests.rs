//! Tests that are specific to ZooKeeper. The conformance suite tests the rules of every backend.

mod builder;
mod connection;
mod ensemble;
mod rights;
mod sessions;

use super::session::{CHECK_TIMEOUT, ZooKeeperSession};
use super::session_state::Shared;
use super::*;
use crate::Coordinator;
use crate::backend::support::HANG_GUARD;
use crate::backend::support::zookeeper::{Settings as Servers, ZooKeepers};
use crate::backend::{Call, Event, Grant, Outcome, Reply, TicketState, exchange_one};
use crate::error::ErrorKind;
use crate::name::Queue;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use zookeeper_client::{Acls, Client, CreateMode};

const LEASE: Duration = Duration::from_secs(10);
const SECOND: Duration = Duration::from_secs(1);
const MILLI: Duration = Duration::from_millis(1);

/// One node, with the calls that a client would send.
struct Peer {
    shared: Arc<Shared>,
    session: ZooKeeperSession,
    events: mpsc::UnboundedReceiver<Event>,
    node: Node,
    number: AtomicU64,
    lease: Duration,
}

/// Returns a server that all tests share which do not stop it.
fn server() -> &'static ZooKeepers {
    static SERVER: OnceLock<ZooKeepers> = OnceLock::new();
    SERVER.get_or_init(|| ZooKeepers::start(1))
}

/// Returns a prefix that no other test uses.
fn own_prefix() -> String {
    static PREFIXES: AtomicU64 = AtomicU64::new(0);
    format!("test-{}", PREFIXES.fetch_add(1, Ordering::Relaxed))
}

/// Returns a backend over these servers, with its own prefix.
fn zookeeper(servers: impl AsRef<str>) -> ZooKeeper {
    let zookeeper = ZooKeeper::new(servers).unwrap();
    zookeeper.prefix(own_prefix()).unwrap()
}

/// Creates the container of the name with a node in it, since the server removes an empty one.
async fn anchor(zookeeper: &ZooKeeper, operator: &Client) {
    let anchor = format!("{}/mutex:name/anchor", zookeeper.settings.base());
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    while operator.mkdir(&anchor, &options).await.is_err() {}
}

fn queue() -> Queue {
    Queue::mutex(b"name").unwrap()
}

impl Peer {
    fn new(zookeeper: &ZooKeeper) -> Self {
        let (sender, events) = mpsc::unbounded_channel();
        let node = Node::of_this_process();
        let receiver = Events::new(move |event| {
            let _ = sender.send(event);
        });
        let shared = Shared::new(zookeeper.settings.clone(), node.clone(), receiver);
        Self {
            session: ZooKeeperSession {
                shared: shared.clone(),
            },
            shared,
            events,
            node,
            number: AtomicU64::new(1),
            lease: LEASE,
        }
    }

    fn call(&self) -> Call {
        Call {
            queue: queue(),
            number: self.number.fetch_add(1, Ordering::Relaxed),
            limit: 1,
            lease: self.lease,
            release: Vec::new(),
            renew: Vec::new(),
            acquire: Vec::new(),
            try_acquire: Vec::new(),
        }
    }

    /// Sends a call once.
    async fn try_exchange(&self, call: Call) -> Result<Outcome, Error> {
        match timeout(500 * MILLI, exchange_one(&self.session, call)).await {
            Ok(Ok(Reply::Done(outcome))) => Ok(outcome),
            Ok(Ok(Reply::Stale)) => panic!("stale"),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(Error::new(ErrorKind::Unavailable, "given up")),
        }
    }

    /// Sends a call, under new numbers, until it is answered.
    async fn exchange(&self, call: Call) -> Outcome {
        let end = Instant::now() + 10 * SECOND;
        let mut call = call;
        loop {
            match self.try_exchange(call.clone()).await {
                Ok(outcome) => return outcome,
                Err(error) if Instant::now() > end => panic!("{error:?}"),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}"),
            }
            sleep(20 * MILLI).await;
            call.number = self.number.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn acquire_call(&self, tickets: &[u64]) -> Call {
        Call {
            acquire: tickets.to_vec(),
            ..self.call()
        }
    }

    fn renew_call(&self, tickets: &[u64]) -> Call {
        Call {
            renew: tickets.to_vec(),
            ..self.call()
        }
    }

    fn release_call(&self, tickets: &[u64]) -> Call {
        Call {
            release: tickets.to_vec(),
            ..self.call()
        }
    }

    async fn acquire(&self, tickets: &[u64]) -> Outcome {
        self.exchange(self.acquire_call(tickets)).await
    }

    async fn renew(&self, tickets: &[u64]) -> Outcome {
        self.exchange(self.renew_call(tickets)).await
    }

    async fn release(&self, tickets: &[u64]) -> Outcome {
        self.exchange(self.release_call(tickets)).await
    }

    /// Returns how many tickets are held and queued.
    async fn counts(&self) -> (u64, u64) {
        let inspection = self.session.inspect(queue()).await.unwrap();
        (inspection.in_use, inspection.queued)
    }

    async fn granted(&mut self) -> Grant {
        let next = async {
            loop {
                match self.events.recv().await {
                    Some(Event::Granted { grant, .. }) => return grant,
                    Some(_) => {}
                    None => panic!("no more events"),
                }
            }
        };
        timeout(HANG_GUARD, next).await.expect("a grant")
    }

    async fn lost(&mut self) {
        let next = async { while self.events.recv().await != Some(Event::Lost) {} };
        timeout(HANG_GUARD, next)
            .await
            .expect("the loss of the session");
    }
}

/// Returns the token of a held ticket.
fn held_token(states: &[TicketState]) -> Option<u64> {
    match states {
        [TicketState::Held { token }] => Some(*token),
        _ => None,
    }
}
