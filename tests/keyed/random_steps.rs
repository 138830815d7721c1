//! Requests that are dropped at any time leave no state.

use crate::modes;
use crate::shop::*;
use crate::support::*;
use http::{Request, Response};
use proptest::prelude::*;
use std::pin::Pin;
use tower::{Layer, Service};
use tower_permit::{Key, KeyedMutexLayer, Memory};

const PRODUCTS: usize = 4;

#[derive(Clone, Debug)]
enum Step {
    /// A request for these products, in one of two processes, with an inner layer that acquires one more.
    Call(Vec<usize>, bool, usize),
    Poll(usize),
    Drop(usize),
    Sleep(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let product = 0..PRODUCTS;
    prop_oneof![
        4 => (prop::collection::vec(product.clone(), 1..4), any::<bool>(), product)
            .prop_map(|(products, there, more)| Step::Call(products, there, more)),
        6 => (0..16usize).prop_map(Step::Poll),
        2 => (0..16usize).prop_map(Step::Drop),
        3 => prop_oneof![Just(0), Just(1), Just(20), Just(600), Just(3000)].prop_map(Step::Sleep),
    ]
}

#[derive(Clone)]
struct Products(Vec<usize>);

#[derive(Clone)]
struct More(usize);

fn run(steps: Vec<Step>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let memory = Memory::new();
        let witnesses: [Witness; PRODUCTS] = Default::default();
        let here = modes::coordinator(memory.clone());
        let mut services = [here.clone(), modes::coordinator(memory)].map(|permits| {
            let counters = witnesses.clone();
            let all = |request: &Request<()>| {
                let Products(products) = request.extensions().get()?;
                Some(Key::all(products.iter().copied()))
            };
            let more = |request: &Request<()>| request.extensions().get().map(|More(at)| *at);
            let outer = KeyedMutexLayer::new(&permits, "buy", all).unwrap();
            let inner = KeyedMutexLayer::new(&permits, "buy", more).unwrap();
            // Shorter than a lease: the inner layer acquires out of order, so requests may wait for each other.
            let inner = inner.wait_timeout(secs(2));
            outer.wait_timeout(secs(20)).layer(inner.layer(Strict::new(
                move |request: Request<()>| {
                    let extensions = request.extensions();
                    let mut at = extensions.get::<Products>().unwrap().0.clone();
                    at.push(extensions.get::<More>().unwrap().0);
                    at.sort_unstable();
                    at.dedup();
                    let inside: Vec<_> = at.into_iter().map(|at| counters[at].enter()).collect();
                    async move {
                        tokio::time::sleep(millis(15)).await;
                        drop(inside);
                        Ok(Response::new(()))
                    }
                },
            )))
        });
        let mut futures: Vec<Pin<Box<_>>> = Vec::new();
        for step in steps {
            match step {
                Step::Call(products, there, more) => {
                    let mut request = buy("any");
                    request.extensions_mut().insert(Products(products));
                    request.extensions_mut().insert(More(more));
                    futures.push(Box::pin(services[usize::from(there)].call(request)));
                }
                Step::Poll(at) if !futures.is_empty() => {
                    let at = at % futures.len();
                    if futures_util::poll!(futures[at].as_mut()).is_ready() {
                        drop(futures.swap_remove(at));
                    }
                }
                Step::Drop(at) if !futures.is_empty() => {
                    drop(futures.swap_remove(at % futures.len()));
                }
                Step::Sleep(for_millis) => tokio::time::sleep(millis(for_millis)).await,
                _ => {}
            }
        }
        // All pending requests end.
        let all = futures_util::future::join_all(futures);
        let ends = tokio::time::timeout(secs(120), all).await;
        drop(ends.expect("a request that never ends"));
        // Requests excluded each other, and all keys are free.
        for witness in witnesses {
            assert!(witness.peak() <= 1, "{} inside", witness.peak());
            assert_eq!(witness.inside(), 0);
        }
        settle().await;
        assert!(all_free(&here, &["0", "1", "2", "3"]).await);
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn requests_dropped_at_any_time_leave_no_state(steps in prop::collection::vec(step(), 0..100)) {
        run(steps);
    }
}
