//! Tests that are specific to etcd. The conformance suite tests the rules of every backend.

mod builder;
mod faults;
mod leases;
mod rights;
mod tls;

use super::session::CHECK_TIMEOUT;
use super::*;
use crate::backend::support::HANG_GUARD;
use crate::backend::support::etcd::EtcdCluster;
use crate::backend::{Call, Event, Grant, Outcome, Reply, TicketState, exchange_one};
use crate::error::ErrorKind;
use crate::name::Queue;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

const LEASE: Duration = Duration::from_secs(3);

/// One node, with the calls that a client would send.
struct Peer {
    session: Arc<EtcdSession>,
    events: mpsc::UnboundedReceiver<Event>,
    node: Node,
    number: AtomicU64,
    lease: Duration,
}

impl Peer {
    fn of(cluster: &EtcdCluster) -> Self {
        Self::at(Etcd::new(cluster.endpoints()).unwrap())
    }

    fn at(etcd: Etcd) -> Self {
        let (sender, events) = mpsc::unbounded_channel();
        let node = Node::of_this_process();
        let receiver = Events::new(move |event| {
            let _ = sender.send(event);
        });
        Self {
            session: etcd.session(node.clone(), receiver),
            events,
            node,
            number: AtomicU64::new(1),
            lease: LEASE,
        }
    }

    fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
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

    async fn exchange(&self, call: Call) -> Result<Outcome, Error> {
        match timeout(HANG_GUARD, exchange_one(&*self.session, call)).await {
            Ok(Ok(Reply::Done(outcome))) => Ok(outcome),
            Ok(Ok(Reply::Stale)) => panic!("stale"),
            Ok(Err(error)) => Err(error),
            Err(_) => panic!("no answer"),
        }
    }

    async fn try_to_acquire(&self, tickets: &[u64]) -> Result<Outcome, Error> {
        let acquire = tickets.to_vec();
        self.exchange(Call {
            acquire,
            ..self.call()
        })
        .await
    }

    async fn acquire(&self, tickets: &[u64]) -> Vec<TicketState> {
        self.try_to_acquire(tickets).await.unwrap().acquired
    }

    async fn renew(&self, tickets: &[u64]) -> Result<Vec<TicketState>, Error> {
        let renew = tickets.to_vec();
        let outcome = self
            .exchange(Call {
                renew,
                ..self.call()
            })
            .await?;
        Ok(outcome.renewed)
    }

    async fn release(&self, tickets: &[u64]) -> Vec<bool> {
        let release = tickets.to_vec();
        self.exchange(Call {
            release,
            ..self.call()
        })
        .await
        .unwrap()
        .released
    }

    /// Gives a call up after this time, as the client does when an answer takes too long.
    async fn give_up(&self, call: Call, after: Duration) {
        let call = exchange_one(&*self.session, call);
        assert!(timeout(after, call).await.is_err(), "it was answered");
    }

    async fn event(&mut self) -> Event {
        timeout(HANG_GUARD, self.events.recv())
            .await
            .expect("an event in time")
            .expect("an event")
    }

    async fn granted(&mut self) -> Grant {
        match self.event().await {
            Event::Granted { grant, .. } => grant,
            other => panic!("{other:?}"),
        }
    }

    fn lease_id(&self) -> i64 {
        self.session.shared.held_lease().expect("a lease")
    }

    fn revoke(&self, cluster: &EtcdCluster) {
        cluster.ctl(&["lease", "revoke", &format!("{:x}", self.lease_id())]);
    }
}

fn queue() -> Queue {
    Queue::mutex(b"name").unwrap()
}

fn is_held(states: &[TicketState]) -> bool {
    matches!(states, [TicketState::Held { .. }])
}

/// Returns the token of a held ticket.
fn token(states: &[TicketState]) -> u64 {
    match states {
        [TicketState::Held { token }] => *token,
        other => panic!("{other:?}"),
    }
}

/// Calls until the ticket is held. Returns how long that took.
async fn until_held(peer: &Peer, ticket: u64, within: Duration) -> Duration {
    let start = std::time::Instant::now();
    until_token(peer, ticket, within).await;
    start.elapsed()
}

/// Calls until the ticket is held. Returns the token.
async fn until_token(peer: &Peer, ticket: u64, within: Duration) -> u64 {
    let start = std::time::Instant::now();
    loop {
        let answer = timeout(
            Duration::from_millis(500),
            exchange_one(
                &*peer.session,
                Call {
                    acquire: vec![ticket],
                    ..peer.call()
                },
            ),
        );
        if let Ok(Ok(Reply::Done(outcome))) = answer.await
            && is_held(&outcome.acquired)
        {
            return token(&outcome.acquired);
        }
        assert!(start.elapsed() < within, "still queued after {within:?}");
        sleep(Duration::from_millis(20)).await;
    }
}
