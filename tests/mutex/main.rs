//! Mutexes over the in-process backend: exclusion, increasing tokens, loss, re-entrancy, several locks together.

use common::modes;
use common::names::UNUSUAL_NAMES;
use common::tasks::run_ready_tasks as settle;
use std::time::Duration;
use test_support::witness::Witness;
use tokio::time::{Instant, advance, sleep, timeout};
use tower_permit::{Coordinator, ErrorKind, Memory};

const SECOND: Duration = Duration::from_secs(1);

fn alone() -> Coordinator {
    modes::coordinator(Memory::new())
}

/// Does not compile if a guard can be cloned: a lock has one owner.
const _: fn() = || {
    trait NotClone<Is> {
        fn check() {}
    }
    struct Clonable;
    impl<T> NotClone<()> for T {}
    impl<T: Clone> NotClone<Clonable> for T {}
    let _ = <tower_permit::MutexGuard as NotClone<_>>::check;
};

#[tokio::test(start_paused = true)]
async fn one_holder_at_a_time_in_order_with_increasing_tokens() {
    let memory = Memory::new();
    let processes = [(), ()].map(|()| {
        let builder = Coordinator::builder(memory.clone()).strict_fifo(true);
        builder.build().expect("valid settings")
    });
    let witness = Witness::default();
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    for n in 0..40 {
        let mutex = processes[n % 2].mutex("counter").unwrap();
        let (witness, sender) = (witness.clone(), sender.clone());
        tokio::spawn(async move {
            let guard = mutex.lock().await.unwrap();
            let inside = witness.enter();
            sleep(Duration::from_millis(20)).await;
            sender.send((n, guard.token())).unwrap();
            drop(inside);
            assert!(guard.unlock().await.unwrap());
        });
        settle().await;
    }
    drop(sender);
    let mut served = Vec::new();
    while let Some(one) = receiver.recv().await {
        served.push(one);
    }
    assert_eq!(witness.peak(), 1);
    assert!(served.iter().map(|(n, _)| *n).eq(0..40), "{served:?}");
    assert!(served.is_sorted_by(|a, b| a.1 < b.1), "{served:?}");
}

#[tokio::test(start_paused = true)]
async fn a_mutex_and_a_semaphore_with_one_name_are_independent() {
    let permits = alone();
    let _permit = permits.semaphore("x", 1).unwrap().acquire().await.unwrap();
    let _guard = permits.mutex("x").unwrap().try_lock().await.unwrap();
    let error = permits.mutex("x").unwrap().try_lock().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitReached);
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_held_for_ten_leases() {
    let permits = alone();
    let mutex = permits.mutex("x").unwrap();
    let guard = mutex.lock().await.unwrap();
    for _ in 0..100 {
        sleep(SECOND).await;
        assert!(guard.is_valid());
        assert!(mutex.try_lock().await.is_err());
    }
    assert!(guard.unlock().await.unwrap());
    assert_eq!(mutex.inspect().await.unwrap().in_use, 0);
}

#[tokio::test(start_paused = true)]
async fn a_pause_longer_than_the_lease_loses_the_lock_and_the_next_token_is_higher() {
    let permits = alone();
    let mutex = permits.mutex("x").unwrap();
    let guard = mutex.lock().await.unwrap();
    // No task runs for two leases, as if the process had been stopped.
    advance(20 * SECOND).await;
    assert!(!guard.is_valid());
    let lost = timeout(Duration::ZERO, guard.lost()).await;
    assert_eq!(lost.expect("at once").kind(), ErrorKind::Lost);
    assert_eq!(guard.reenter().unwrap_err().kind(), ErrorKind::Lost);
    let next = mutex.lock().await.unwrap();
    assert!(next.token() > guard.token());
    sleep(SECOND).await;
    assert!(!guard.is_valid(), "a lost lock stays lost");
    assert!(!guard.unlock().await.unwrap());
    assert!(
        next.is_valid(),
        "a late unlock does not affect the next holder"
    );
}

#[tokio::test(start_paused = true)]
async fn an_unlock_past_the_deadline_returns_false() {
    let permits = alone();
    let mutex = permits.mutex("x").unwrap();
    let guard = mutex.lock().await.unwrap();
    advance(20 * SECOND).await;
    // The store may still hold the ticket, but `is_valid` would return `false`.
    assert!(!guard.unlock().await.unwrap());
    assert!(mutex.try_lock().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_lock_lost_before_its_caller_runs_is_acquired_again() {
    let permits = alone();
    let mutex = permits.mutex("x").unwrap();
    let mut lock = Box::pin(mutex.lock());
    assert!(futures_util::poll!(lock.as_mut()).is_pending());
    settle().await;
    assert_eq!(mutex.inspect().await.unwrap().in_use, 1);
    advance(20 * SECOND).await;
    let guard = lock.await.unwrap();
    assert!(guard.is_valid(), "a new lock, from the end of the queue");
    assert!(guard.unlock().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_shutdown_revokes_a_lock_and_reports_it() {
    let permits = alone();
    let guard = permits.mutex("x").unwrap().lock().await.unwrap();
    permits.shutdown(SECOND).await.unwrap_err();
    assert!(!guard.is_valid());
    assert_eq!(guard.lost().await.kind(), ErrorKind::ShuttingDown);
    assert_eq!(guard.reenter().unwrap_err().kind(), ErrorKind::Lost);
    assert!(!guard.unlock().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn an_evicted_guard_is_lost() {
    let permits = alone();
    let mutex = permits.mutex("x").unwrap();
    let guard = mutex.lock().await.unwrap();
    assert!(mutex.evict(&guard.ticket()).await.unwrap());
    let lost = timeout(4 * SECOND, guard.lost()).await;
    assert_eq!(lost.expect("at the next renewal").kind(), ErrorKind::Lost);
    assert!(!guard.is_valid());
    assert_eq!(guard.reenter().unwrap_err().kind(), ErrorKind::Lost);
    assert!(!guard.unlock().await.unwrap());
    // An unlock before the loss is noticed does not return `true` either.
    let guard = mutex.lock().await.unwrap();
    assert!(mutex.evict(&guard.ticket()).await.unwrap());
    assert!(!guard.unlock().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn dropping_the_last_guard_unlocks() {
    let permits = alone();
    let mutex = permits.mutex("x").unwrap();
    let outer = mutex.lock().await.unwrap();
    let inner = outer.reenter().unwrap();
    let innermost = inner.reenter().unwrap();
    assert_eq!(outer.token(), innermost.token());
    drop(outer);
    assert!(inner.unlock().await.unwrap(), "held until now");
    settle().await;
    assert!(mutex.try_lock().await.is_err());
    drop(innermost);
    settle().await;
    assert!(mutex.try_lock().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn two_tasks_of_one_process_are_two_holders() {
    let permits = alone();
    let _guard = permits.mutex("x").unwrap().lock().await.unwrap();
    let other = tokio::spawn({
        let permits = permits.clone();
        async move { permits.mutex("x").unwrap().try_lock().await.map(drop) }
    });
    let error = other.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitReached);
}

#[tokio::test(start_paused = true)]
async fn a_nested_lock_times_out_and_names_the_cause() {
    let permits = alone();
    let mutex = permits.mutex("x").unwrap();
    let _guard = mutex.lock().await.unwrap();
    let before = Instant::now();
    let error = mutex.lock_timeout(3 * SECOND).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WaitTimeout);
    assert!(before.elapsed() < 4 * SECOND);
    assert!(error.to_string().contains("reenter"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn locks_cancelled_at_random_leave_no_state() {
    let permits = alone();
    let witness = Witness::default();
    let tasks: Vec<_> = (0..2_000u64)
        .map(|n| {
            let (mutex, witness) = (
                permits.mutex(format!("{}", n % 7)).unwrap(),
                witness.clone(),
            );
            tokio::spawn(async move {
                tokio::select! {
                    guard = mutex.lock() => {
                        let _guard = guard.unwrap();
                        let _inside = witness.enter();
                        sleep(Duration::from_millis(n % 3)).await;
                    }
                    () = sleep(Duration::from_millis(n * 7919 % 101)) => {}
                }
            })
        })
        .collect();
    for task in tasks {
        // Many are refused with `TooManyWaiting`.
        let _ = task.await;
    }
    settle().await;
    assert!(witness.peak() <= 7);
    for n in 0..7 {
        let inspection = permits
            .mutex(format!("{n}"))
            .unwrap()
            .inspect()
            .await
            .unwrap();
        assert_eq!((inspection.in_use, inspection.queued), (0, 0));
    }
}

// --- several locks together ---

#[tokio::test(start_paused = true)]
async fn lock_all_does_not_deadlock() {
    let permits = alone();
    let (a, b) = (Witness::default(), Witness::default());
    let orders: [&[&str]; 4] = [&["a", "b"], &["b", "a"], &["a", "a", "b"], &["b"]];
    let tasks: Vec<_> = (0..200)
        .map(|n| {
            let (permits, a, b) = (permits.clone(), a.clone(), b.clone());
            let names = orders[n % 4];
            tokio::spawn(async move {
                let guards = permits.lock_all(names).await.unwrap();
                assert!(guards.is_valid());
                let _a = names.contains(&"a").then(|| a.enter());
                let _b = names.contains(&"b").then(|| b.enter());
                sleep(Duration::from_millis(3)).await;
            })
        })
        .collect();
    for task in tasks {
        timeout(60 * SECOND, task)
            .await
            .expect("no deadlock")
            .unwrap();
    }
    assert_eq!((a.peak(), b.peak()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn lock_all_locks_all_or_none() {
    let permits = alone();
    let b = permits.mutex("b").unwrap();
    let held = b.lock().await.unwrap();
    let error = permits
        .lock_all_timeout(["c", "a", "b"], SECOND)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WaitTimeout);
    settle().await;
    for name in ["a", "c"] {
        let free = permits.mutex(name).unwrap().try_lock().await;
        assert!(free.is_ok(), "{name} was released");
    }
    drop(held);
    settle().await;
    let all = permits.lock_all(["c", "a", "b"]).await.unwrap();
    let names: Vec<_> = all.guards().iter().map(|guard| guard.name()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    assert!(all.unlock().await.unwrap());
    assert!(b.try_lock().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn lock_all_fails_when_a_lock_is_lost_during_the_wait() {
    let permits = alone();
    let last = permits.mutex("c").unwrap();
    let held = last.lock().await.unwrap();
    let set = tokio::spawn({
        let permits = permits.clone();
        async move { permits.lock_all(["a", "b", "c"]).await.map(drop) }
    });
    settle().await;
    let a = permits.mutex("a").unwrap();
    let ticket = a.inspect().await.unwrap().holders[0].ticket.clone();
    assert!(a.evict(&ticket).await.unwrap());
    let error = timeout(4 * SECOND, set).await.expect("at the next renewal");
    assert_eq!(error.unwrap().unwrap_err().kind(), ErrorKind::Lost);
    settle().await;
    assert_eq!(last.inspect().await.unwrap().queued, 0);
    drop(held);
    settle().await;
    assert!(permits.lock_all(["a", "b", "c"]).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_dropped_lock_all_releases_everything() {
    let permits = alone();
    let held = permits.mutex("c").unwrap().lock().await.unwrap();
    for polls in 0..20 {
        let mut set = Box::pin(permits.lock_all(["a", "b", "c"]));
        for _ in 0..polls {
            let _ = futures_util::poll!(set.as_mut());
            tokio::task::yield_now().await;
        }
        drop(set);
        settle().await;
        for name in ["a", "b"] {
            let inspection = permits.mutex(name).unwrap().inspect().await.unwrap();
            assert_eq!(
                (inspection.in_use, inspection.queued),
                (0, 0),
                "{name} after {polls}"
            );
        }
        let inspection = permits.mutex("c").unwrap().inspect().await.unwrap();
        assert_eq!(
            (inspection.in_use, inspection.queued),
            (1, 0),
            "after {polls}"
        );
    }
    assert!(held.unlock().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn guards_are_lost_when_one_of_them_is_lost() {
    let permits = alone();
    let all = permits.lock_all(["a", "b"]).await.unwrap();
    let b = permits.mutex("b").unwrap();
    assert!(b.evict(&all.guards()[1].ticket()).await.unwrap());
    let lost = timeout(4 * SECOND, all.lost()).await;
    assert_eq!(lost.expect("at the next renewal").kind(), ErrorKind::Lost);
    assert!(!all.is_valid());
    assert!(!all.unlock().await.unwrap());
    settle().await;
    assert!(permits.mutex("a").unwrap().try_lock().await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn invalid_sets_of_names_are_errors() {
    let permits = alone();
    let none: [&str; 0] = [];
    for result in [
        permits.lock_all(none).await,
        permits.lock_all((0..65).map(|n| n.to_string())).await,
        permits.lock_all([vec![b'x'; 1 << 20]]).await,
    ] {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidConfig);
    }
    assert!(
        permits
            .lock_all((0..64).map(|n| n.to_string()))
            .await
            .is_ok()
    );
}

#[tokio::test(start_paused = true)]
async fn each_name_excludes_only_itself() {
    let permits = alone();
    let mut guards = Vec::new();
    for name in UNUSUAL_NAMES {
        let mutex = permits.mutex(name).unwrap();
        guards.push(
            mutex
                .try_lock()
                .await
                .expect("independent of the other names"),
        );
        assert!(mutex.try_lock().await.is_err());
    }
}
