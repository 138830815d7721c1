//! Tests that are specific to the in-process backend. The conformance suite tests the rules of every backend.

use super::*;
use crate::backend::{Call, Outcome, Reply, TicketState, exchange_one};
use crate::name::Queue;
use futures_util::FutureExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

fn call(number: u64, release: &[u64], acquire: &[u64]) -> Call {
    Call {
        queue: Queue::limit(b"name").unwrap(),
        number,
        limit: 1,
        lease: Duration::from_secs(10),
        release: release.to_vec(),
        renew: Vec::new(),
        acquire: acquire.to_vec(),
        try_acquire: Vec::new(),
    }
}

#[test]
fn an_event_receiver_may_call_the_session() {
    let memory = Memory::new();
    let session = Arc::new(OnceLock::<Arc<dyn Session>>::new());
    let received = Arc::new(AtomicU64::new(0));
    let captured = (session.clone(), received.clone());
    let receiver = Events::new(move |_| {
        let session = captured.0.get().unwrap();
        let reply = exchange_one(&**session, call(2, &[], &[7])).now_or_never();
        assert!(matches!(reply, Some(Ok(Reply::Done(_)))));
        captured.1.fetch_add(1, Ordering::Relaxed);
    });
    let waiter = memory.clone().open(Node::of_this_process(), receiver);
    assert!(session.set(waiter.clone()).is_ok());

    let holder = memory.open(Node::of_this_process(), Events::new(|_| ()));
    let exchange = |session: &Arc<dyn Session>, call| exchange_one(&**session, call).now_or_never();
    exchange(&holder, call(1, &[], &[1]));
    exchange(&waiter, call(1, &[], &[7]));
    exchange(&holder, call(2, &[1], &[]));
    assert_eq!(received.load(Ordering::Relaxed), 1);
}

#[test]
fn tokens_increase_from_one_run_to_the_next() {
    let token = || {
        let session = Memory::new().open(Node::of_this_process(), Events::new(|_| ()));
        let reply = exchange_one(&*session, call(1, &[], &[1])).now_or_never();
        let Some(Ok(Reply::Done(outcome))) = reply else {
            panic!("no answer: {reply:?}");
        };
        match outcome.acquired[..] {
            [TicketState::Held { token }] => token,
            ref other => panic!("not granted: {other:?}"),
        }
    };
    let before = token();
    std::thread::sleep(Duration::from_millis(2));
    assert!(token() > before);
}

#[test]
fn a_call_that_is_never_polled_is_not_executed() {
    let memory = Memory::new();
    let session = memory
        .clone()
        .open(Node::of_this_process(), Events::new(|_| ()));
    drop(exchange_one(&*session, call(1, &[], &[1])));
    assert_eq!(memory.names(), 0);
}

#[test]
fn a_dropped_session_receives_no_events_and_keeps_nothing_alive() {
    let memory = Memory::new();
    let captured = Arc::new(());
    let receiver = captured.clone();
    let dropped = (memory.clone()).open(
        Node::of_this_process(),
        Events::new(move |_| {
            let _ = &receiver;
        }),
    );
    let other = memory.open(Node::of_this_process(), Events::new(|_| ()));
    let exchange = |session: &Arc<dyn Session>, call| exchange_one(&**session, call).now_or_never();
    exchange(&other, call(1, &[], &[1]));
    exchange(&dropped, call(1, &[], &[1]));
    drop(dropped);
    assert_eq!(Arc::strong_count(&captured), 1);
    let granted = exchange(&other, call(2, &[1], &[]));
    let Some(Ok(Reply::Done(Outcome { in_use: 1, .. }))) = granted else {
        panic!("the ticket of the dropped session was not granted: {granted:?}");
    };
}
