//! Limits, waits, renewal, loss and shutdown.

use crate::modes;
use crate::{alone, counts, settle};
use futures_util::future::join_all;
use std::time::Duration;
use test_support::witness::Witness;
use tokio::time::{Instant, sleep, timeout};
use tower_permit::{ErrorKind, Memory};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn never_more_permits_than_the_limit_are_held() {
    let (_permits, semaphore) = alone(3);
    let witness = Witness::default();
    let tasks = (0..50).map(|n| {
        let (semaphore, witness) = (semaphore.clone(), witness.clone());
        tokio::spawn(async move {
            let permit = semaphore.acquire().await.expect("a permit");
            let inside = witness.enter();
            sleep(Duration::from_millis(5 + n % 7)).await;
            drop(inside);
            drop(permit);
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("no panic");
    }
    assert_eq!(witness.peak(), 3, "full, and never above the limit");
    assert_eq!(semaphore.stats().granted, 50);
}

#[tokio::test(start_paused = true)]
async fn waiters_are_served_in_order() {
    let (_permits, semaphore) = alone(1);
    let (order, mut grants) = tokio::sync::mpsc::unbounded_channel();
    let held = semaphore.acquire().await.expect("a permit");
    for n in 0..20 {
        let (semaphore, order) = (semaphore.clone(), order.clone());
        tokio::spawn(async move {
            let _permit = semaphore.acquire().await.expect("a permit");
            order.send(n).expect("the receiver exists");
        });
        settle().await;
    }
    drop((held, order));
    let mut served = Vec::new();
    while let Some(n) = grants.recv().await {
        served.push(n);
    }
    assert_eq!(served, (0..20).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn two_processes_share_the_limit() {
    let memory = Memory::new();
    let (here, there) = (
        modes::coordinator(memory.clone()),
        modes::coordinator(memory),
    );
    let held = here.semaphore("test", 1).unwrap().acquire().await.unwrap();
    let other = there.semaphore("test", 1).unwrap();
    assert_eq!(
        other.try_acquire().await.unwrap_err().kind(),
        ErrorKind::LimitReached
    );
    let waiting = tokio::spawn(async move { other.acquire().await });
    settle().await;
    assert_eq!(counts(&here).await, (1, 1));
    drop(held);
    // Notified by a push: no time passes.
    let permit = timeout(Duration::from_millis(1), waiting).await;
    assert!(permit.expect("at once").expect("no panic").is_ok());
}

#[tokio::test(start_paused = true)]
async fn names_are_independent() {
    let permits = modes::coordinator(Memory::new());
    let _a = permits.semaphore("a", 1).unwrap().acquire().await.unwrap();
    let _b = permits
        .semaphore("b", 1)
        .unwrap()
        .try_acquire()
        .await
        .unwrap();
    assert!(
        permits
            .semaphore("a", 1)
            .unwrap()
            .try_acquire()
            .await
            .is_err()
    );
}

#[tokio::test(start_paused = true)]
async fn a_wait_times_out_and_leaves_no_ticket() {
    let (permits, semaphore) = alone(1);
    let held = semaphore.acquire().await.unwrap();
    let before = Instant::now();
    let error = semaphore.acquire_timeout(3 * SECOND).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WaitTimeout);
    assert!(before.elapsed() < 4 * SECOND);
    settle().await;
    assert_eq!(counts(&permits).await, (1, 0));
    assert_eq!(semaphore.stats().timed_out, 1);
    drop(held);
    assert!(semaphore.try_acquire().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn callers_above_max_waiting_are_refused_at_once() {
    let (_permits, semaphore) = alone(1);
    let semaphore = semaphore.max_waiting(2);
    let held = semaphore.acquire().await.unwrap();
    let waiting: Vec<_> = (0..2)
        .map(|_| {
            let semaphore = semaphore.clone();
            tokio::spawn(async move { semaphore.acquire().await.map(drop) })
        })
        .collect();
    settle().await;
    let error = semaphore.acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooManyWaiting);
    drop(held);
    for task in waiting {
        task.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn no_caller_is_refused_while_a_permit_is_free() {
    let (_permits, semaphore) = alone(5000);
    let acquired = join_all((0..3000).map(|_| semaphore.acquire())).await;
    assert_eq!(acquired.iter().filter(|permit| permit.is_err()).count(), 0);
}

#[tokio::test(start_paused = true)]
async fn callers_behind_the_permits_of_other_processes_are_refused_above_max_waiting() {
    let memory = Memory::new();
    let (here, there) = (
        modes::coordinator(memory.clone()),
        modes::coordinator(memory),
    );
    let others = there.semaphore("test", 100).unwrap();
    let held = join_all((0..95).map(|_| others.acquire())).await;
    let semaphore = here.semaphore("test", 100).unwrap().max_waiting(10);
    let tasks: Vec<_> = (0..50)
        .map(|_| {
            let semaphore = semaphore.clone();
            tokio::spawn(async move { semaphore.acquire().await })
        })
        .collect();
    sleep(SECOND).await;
    assert_eq!(semaphore.stats().waiting, 10);
    assert_eq!(semaphore.stats().too_many_waiting, 35);
    drop(held);
    let (mut granted, mut refused) = (Vec::new(), Vec::new());
    for (caller, task) in tasks.into_iter().enumerate() {
        match task.await.unwrap() {
            Ok(permit) => granted.push(permit),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::TooManyWaiting);
                refused.push(caller);
            }
        }
    }
    assert_eq!(
        (granted.len(), refused[0]),
        (15, 15),
        "the newest are refused"
    );
    drop(granted);
    sleep(SECOND).await;
    assert_eq!(counts(&here).await, (0, 0));
}

#[tokio::test(start_paused = true)]
async fn names_in_use_are_listed_without_a_change_of_their_limits() {
    use tower::{Layer, ServiceExt, service_fn};
    use tower_permit::layers::keyed::key_fn;
    use tower_permit::{KeyedMutexLayer, NameKind};

    let (permits, semaphore) = alone(7);
    let held = semaphore.acquire().await.unwrap();
    let guard = permits.mutex("m").unwrap().lock().await.unwrap();
    let layer = KeyedMutexLayer::new(&permits, "buy", key_fn(|id: &u32| *id)).unwrap();
    let inner = service_fn(|_: u32| std::future::pending::<Result<(), std::convert::Infallible>>());
    let request = tokio::spawn(layer.layer(inner).oneshot(3));
    settle().await;
    let names = permits.names();
    let found: Vec<_> = names
        .iter()
        .map(|name| {
            (
                name.kind,
                name.name.as_str(),
                name.stats.limit,
                name.stats.in_use,
            )
        })
        .collect();
    let expected = [
        (NameKind::Semaphore, "test", 7, 1),
        (NameKind::Mutex, "buy+3", 1, 1),
        (NameKind::Mutex, "m", 1, 1),
    ];
    assert_eq!(found, expected);
    assert_eq!(permits.stats("test").unwrap().unwrap().in_use, 1);
    assert_eq!(permits.stats("other").unwrap(), None);
    assert_eq!(semaphore.limit(), 7);
    request.abort();
    drop((held, guard, semaphore));
    sleep(SECOND).await;
    assert!(permits.names().is_empty(), "{:?}", permits.names());
}

#[tokio::test(start_paused = true)]
async fn without_waiting_acquire_is_a_try() {
    let (_permits, semaphore) = alone(1);
    let semaphore = semaphore.max_waiting(0);
    let held = semaphore.acquire().await.unwrap();
    let error = semaphore.acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitReached);
    drop(held);
    drop(semaphore.acquire().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_permit_is_renewed_for_as_long_as_it_is_held() {
    let (permits, semaphore) = alone(1);
    let permit = semaphore.acquire().await.unwrap();
    for _ in 0..100 {
        sleep(SECOND).await;
        assert!(permit.is_valid());
    }
    assert_eq!(counts(&permits).await, (1, 0));
    assert!(
        permit.release().await.unwrap(),
        "still held after ten leases"
    );
    assert_eq!(counts(&permits).await, (0, 0));
}

#[tokio::test(start_paused = true)]
async fn an_evicted_permit_is_lost_and_its_release_returns_false() {
    let (permits, semaphore) = alone(1);
    let permit = semaphore.acquire().await.unwrap();
    assert!(permits.evict("test", &permit.ticket()).await.unwrap());
    assert!(!permits.evict("test", &permit.ticket()).await.unwrap());
    // The permit is granted to another caller already.
    let next = semaphore.try_acquire().await.unwrap();
    let lost = timeout(4 * SECOND, permit.lost()).await;
    assert_eq!(lost.expect("at the next renewal").kind(), ErrorKind::Lost);
    assert!(!permit.is_valid());
    assert!(!permit.release().await.unwrap());
    assert!(
        next.is_valid(),
        "a late release does not affect the next holder"
    );
    assert_eq!(semaphore.stats().lost, 1);
    assert_eq!(counts(&permits).await, (1, 0));
}

#[tokio::test(start_paused = true)]
async fn release_returns_false_right_after_an_eviction() {
    let (permits, semaphore) = alone(1);
    let permit = semaphore.acquire().await.unwrap();
    permits.evict("test", &permit.ticket()).await.unwrap();
    assert!(!permit.release().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn max_hold_releases_a_permit() {
    let (permits, semaphore) = alone(1);
    let semaphore = semaphore.max_hold(60 * SECOND);
    let permit = semaphore.acquire().await.unwrap();
    let waiting = tokio::spawn({
        let semaphore = semaphore.clone();
        async move { semaphore.acquire().await.map(drop) }
    });
    let before = Instant::now();
    assert_eq!(permit.lost().await.kind(), ErrorKind::HeldTooLong);
    let took = before.elapsed();
    assert!(took >= 59 * SECOND && took <= 61 * SECOND, "{took:?}");
    waiting.await.unwrap().unwrap();
    drop(permit);
    settle().await;
    assert_eq!(counts(&permits).await, (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_lowered_limit_evicts_no_holder_and_grants_nothing_until_it_fits() {
    let (permits, semaphore) = alone(3);
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(semaphore.acquire().await.unwrap());
    }
    semaphore.set_limit(1).unwrap();
    sleep(30 * SECOND).await;
    assert!(held.iter().all(|permit| permit.is_valid()));
    held.truncate(1);
    settle().await;
    assert!(semaphore.try_acquire().await.is_err());
    held.clear();
    settle().await;
    assert!(semaphore.try_acquire().await.is_ok());
    let error = semaphore.set_limit(0).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert_eq!(permits.semaphore("test", 5).unwrap().limit(), 5);
    assert_eq!(semaphore.limit(), 5, "one limit per name");
}

#[tokio::test(start_paused = true)]
async fn a_raised_limit_grants_to_waiters() {
    let (_permits, semaphore) = alone(1);
    let _held = semaphore.acquire().await.unwrap();
    let waiting = tokio::spawn({
        let semaphore = semaphore.clone();
        async move { semaphore.acquire().await.map(drop) }
    });
    settle().await;
    semaphore.set_limit(2).unwrap();
    let soon = timeout(Duration::from_millis(1), waiting).await;
    soon.expect("at once").unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_second_guard_holds_the_permit() {
    let (permits, semaphore) = alone(1);
    let permit = semaphore.acquire().await.unwrap();
    let handle = permit.handle();
    let guard = handle.upgrade().expect("held");
    drop(permit);
    settle().await;
    assert_eq!(counts(&permits).await, (1, 0));
    drop(guard);
    settle().await;
    assert_eq!(counts(&permits).await, (0, 0));
    assert!(handle.upgrade().is_none(), "the permit is released");
}

#[tokio::test(start_paused = true)]
async fn an_unconfirmed_permit_can_still_be_shared() {
    let (permits, semaphore) = alone(1);
    let permit = semaphore.acquire().await.expect("a permit");
    // No task runs for two leases, as if the process had been stopped.
    tokio::time::advance(20 * SECOND).await;
    assert!(!permit.is_valid(), "not confirmed");
    let guard = permit
        .handle()
        .upgrade()
        .expect("neither released nor lost");
    drop(permit);
    settle().await;
    assert!(guard.is_valid(), "confirmed again");
    assert_eq!(counts(&permits).await, (1, 0));
}

#[tokio::test(start_paused = true)]
async fn more_waiters_than_fit_into_one_call_are_served() {
    let (_permits, semaphore) = alone(300);
    let witness = Witness::default();
    let tasks: Vec<_> = (0..1_000)
        .map(|_| {
            let (semaphore, witness) = (semaphore.clone(), witness.clone());
            tokio::spawn(async move {
                let _permit = semaphore.acquire().await.unwrap();
                let _inside = witness.enter();
                sleep(15 * SECOND).await;
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(witness.peak(), 300);
    assert_eq!(semaphore.stats().lost, 0, "all were renewed");
}

#[tokio::test(start_paused = true)]
async fn the_longest_durations_are_accepted() {
    let (permits, semaphore) = alone(1);
    for time in [Duration::MAX, Duration::MAX / 2, Duration::ZERO] {
        let semaphore = semaphore.clone().max_hold(time);
        let permit = semaphore.acquire_timeout(Duration::MAX).await.unwrap();
        let waiting = tokio::spawn({
            let semaphore = semaphore.clone();
            async move { semaphore.acquire_timeout(time).await.map(drop) }
        });
        sleep(SECOND).await;
        drop(permit);
        let served = waiting.await.unwrap();
        assert!(served.is_ok() || time.is_zero(), "{served:?}");
    }
    permits.shutdown(Duration::MAX).await.unwrap();
}

#[test]
fn invalid_settings_are_errors() {
    let permits = modes::coordinator(Memory::new());
    let kind = |e: tower_permit::Error| e.kind();
    let invalid = Err(ErrorKind::InvalidConfig);
    assert_eq!(permits.semaphore("x", 0).map(drop).map_err(kind), invalid);
    let enormous = vec![b'x'; 1 << 20];
    assert_eq!(
        permits.semaphore(enormous, 1).map(drop).map_err(kind),
        invalid
    );
    for name in [&b""[..], b"{}", b"\xff\0\n", b"*", &[b'a'; 10_000]] {
        assert!(permits.semaphore(name, 1).is_ok());
    }
    for lease in [Duration::ZERO, Duration::from_millis(999), Duration::MAX] {
        let built = modes::builder(Memory::new()).lease(lease).build();
        assert_eq!(built.map(drop).map_err(kind), invalid, "{lease:?}");
    }
    for outage in [Duration::ZERO, Duration::MAX] {
        let built = modes::builder(Memory::new()).outage_after(outage).build();
        assert_eq!(built.map(drop).map_err(kind), invalid, "{outage:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn shutdown_waits_for_permits_and_refuses_new_callers() {
    let (permits, semaphore) = alone(1);
    let permit = semaphore.acquire().await.unwrap();
    let shutdown = tokio::spawn({
        let permits = permits.clone();
        async move { permits.shutdown(30 * SECOND).await }
    });
    settle().await;
    let error = semaphore.acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ShuttingDown);
    sleep(SECOND).await;
    assert!(!shutdown.is_finished());
    drop(permit);
    let ended = timeout(SECOND, shutdown).await.expect("soon").unwrap();
    assert!(ended.is_ok());
    assert_eq!(counts(&permits).await, (0, 0));
}

#[tokio::test(start_paused = true)]
async fn shutdown_revokes_permits_held_for_too_long() {
    let (permits, semaphore) = alone(1);
    let permit = semaphore.acquire().await.unwrap();
    let waiting = tokio::spawn({
        let semaphore = semaphore.clone();
        async move { semaphore.acquire().await.map(drop) }
    });
    settle().await;
    let error = permits.shutdown(SECOND).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::HeldTooLong);
    assert_eq!(permit.lost().await.kind(), ErrorKind::ShuttingDown);
    let refused = waiting.await.unwrap().unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ShuttingDown);
    assert_eq!(counts(&permits).await, (0, 0));
}
