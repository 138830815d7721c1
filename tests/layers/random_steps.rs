//! Random sequences of poll, call, clone, drop and wait.

use crate::support::*;
use proptest::prelude::*;
use std::pin::Pin;
use std::time::Duration;
use tower::{Layer, Service};
use tower_permit::DistributedConcurrencyLimitLayer as LimitLayer;

const LIMIT: usize = 2;

#[derive(Clone, Debug)]
enum Step {
    /// `poll_ready` of one service.
    Poll(usize),
    /// `call`, ready or not.
    Call(usize),
    Clone(usize),
    DropService(usize),
    PollFuture(usize),
    DropFuture(usize),
    InnerBusy(bool),
    Sleep(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let index = 0..8usize;
    prop_oneof![
        4 => index.clone().prop_map(Step::Poll),
        3 => index.clone().prop_map(Step::Call),
        1 => index.clone().prop_map(Step::Clone),
        1 => index.clone().prop_map(Step::DropService),
        5 => index.clone().prop_map(Step::PollFuture),
        1 => index.prop_map(Step::DropFuture),
        1 => any::<bool>().prop_map(Step::InnerBusy),
        3 => prop_oneof![Just(0), Just(1), Just(20), Just(600), Just(3000)].prop_map(Step::Sleep),
    ]
}

fn run(steps: Vec<Step>, queue: bool) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let semaphore = semaphore(LIMIT as u32);
        let witness = Witness::default();
        let counter = witness.clone();
        let inner = Strict::new(move |()| {
            let witness = counter.clone();
            async move {
                let _inside = witness.enter();
                tokio::time::sleep(millis(15)).await;
                Ok::<_, Boom>(())
            }
        });
        let control = inner.control.clone();
        let layer = LimitLayer::new(semaphore.clone())
            .wait_timeout(secs(2))
            .release_at_response();
        let layer = if queue {
            layer
        } else {
            layer.reject_when_full()
        };
        let mut services = vec![layer.layer(inner)];
        let mut futures: Vec<Pin<Box<_>>> = Vec::new();

        for step in steps {
            let count = services.len();
            match step {
                Step::Poll(at) => drop(poll_ready(&mut services[at % count])),
                Step::Call(at) => futures.push(Box::pin(services[at % count].call(()))),
                Step::Clone(at) => services.push(services[at % count].clone()),
                Step::DropService(at) if count > 1 => drop(services.swap_remove(at % count)),
                Step::PollFuture(at) if !futures.is_empty() => {
                    let at = at % futures.len();
                    if futures_util::poll!(futures[at].as_mut()).is_ready() {
                        drop(futures.swap_remove(at));
                    }
                }
                Step::DropFuture(at) if !futures.is_empty() => {
                    drop(futures.swap_remove(at % futures.len()));
                }
                Step::InnerBusy(busy) => control.busy(busy),
                Step::Sleep(for_millis) => tokio::time::sleep(millis(for_millis)).await,
                _ => {}
            }
        }

        // All pending requests end.
        control.busy(false);
        for future in futures {
            let end = tokio::time::timeout(Duration::from_secs(60), future).await;
            drop(end.expect("a request that never ends"));
        }
        // The limit was kept, and all permits are free once the services are dropped.
        assert!(witness.peak() <= LIMIT, "{} inside", witness.peak());
        assert_eq!(witness.inside(), 0);
        drop(services);
        for _ in 0..2 {
            let all = (semaphore.acquire(), semaphore.acquire());
            let all = tokio::time::timeout(millis(5), futures_util::future::join(all.0, all.1));
            let (one, two) = all.await.expect("a permit was never released");
            drop((one.unwrap(), two.unwrap()));
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_limit_is_kept_and_restored(
        steps in prop::collection::vec(step(), 0..120),
        queue in prop::bool::weighted(0.8),
    ) {
        run(steps, queue);
    }
}
