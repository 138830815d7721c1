//! Mutexes over Redis: several processes, frozen processes, hung servers, unusual names, many names.

use crate::modes;
use crate::support::process::{Process, report, run_child};
use crate::support::redis::RedisServer;
use crate::{EXCLUSIVE, LEASE, SLACK, backend, coordinator, millis};
use common::names::UNUSUAL_NAMES;
use common::redis::expect_empty;
use futures_util::StreamExt;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::task::JoinSet;
use tower_permit::{ErrorKind, Mutex, MutexGuard};

#[tokio::test]
async fn an_external_counter_loses_no_increment() {
    let server = RedisServer::start();
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("counter"), "0").expect("a counter");
    let mut processes = [start(&server), start(&server)];
    for process in &mut processes {
        process.send(&format!("count 50 {}", folder.path().display()));
    }
    for process in &mut processes {
        process.receive("counted").await;
    }
    let counter = std::fs::read_to_string(folder.path().join("counter")).expect("a counter");
    assert_eq!(counter, "100");
    // One line for each holder: process, number of the request, token.
    let log = std::fs::read_to_string(folder.path().join("log")).expect("a log");
    let lines: Vec<Vec<u64>> = log
        .lines()
        .map(|line| {
            line.split(' ')
                .map(|n| n.parse().expect("a number"))
                .collect()
        })
        .collect();
    assert!(
        lines.is_sorted_by(|a, b| a[2] < b[2]),
        "tokens must increase: {log}"
    );
    for process in &processes {
        let own = lines
            .iter()
            .filter(|line| line[0] == u64::from(process.id()));
        assert!(
            own.map(|line| line[1]).eq(0..50),
            "not in order of arrival: {log}"
        );
    }
}

#[tokio::test]
async fn a_frozen_holder_loses_the_mutex_and_the_next_token_is_higher() {
    let server = RedisServer::start();
    let (mut first, mut second) = (start(&server), start(&server));
    first.send("lock");
    let old: u64 = first.receive("locked").await.parse().expect("a token");
    // Still held after ten leases.
    tokio::time::sleep(10 * LEASE).await;
    first.send("valid");
    assert_eq!(first.receive("valid").await, "true");

    first.pause();
    second.send("lock");
    let new: u64 = second.receive("locked").await.parse().expect("a token");
    assert!(new > old, "{new} after {old}");
    tokio::time::sleep(LEASE).await;
    first.send("valid");
    first.resume();
    assert_eq!(first.receive("valid").await, "false");
    assert_eq!(first.receive("lost").await, "lost");
    first.send("unlock");
    assert_eq!(first.receive("unlocked").await, "Ok(false)");
    second.send("valid");
    assert_eq!(
        second.receive("valid").await,
        "true",
        "a late unlock releases no other holder"
    );
}

#[tokio::test]
async fn a_mutex_is_lost_at_its_deadline_even_while_a_renewal_hangs() {
    let server = RedisServer::start();
    let permits = coordinator(&server.url());
    let guard = permits.mutex("hangs").unwrap().lock().await.unwrap();
    let frozen = Instant::now();
    server.pause();
    let lost = tokio::time::timeout(LEASE + SLACK, guard.lost()).await;
    assert_eq!(
        lost.expect("the loss is reported by a timer").kind(),
        ErrorKind::Lost
    );
    assert!(frozen.elapsed() > LEASE / 2, "lost too early");
    server.resume();
    tokio::time::sleep(LEASE / 2).await;
    assert!(!guard.is_valid(), "a lost mutex stays lost");
}

#[tokio::test]
async fn a_flush_loses_the_mutex_and_the_next_token_is_higher() {
    let server = RedisServer::start();
    let permits = [coordinator(&server.url()), coordinator(&server.url())];
    let mutexes = permits.map(|permits| permits.mutex("flushed").unwrap());
    let old = mutexes[0].lock().await.unwrap();
    let (other, token) = (old.reenter().unwrap(), old.token());
    server.command(&["FLUSHALL"]);
    let new = mutexes[1].lock().await.unwrap();
    assert!(new.token() > token);
    let lost = tokio::time::timeout(LEASE / 3 + SLACK, old.lost()).await;
    assert_eq!(lost.expect("at a renewal").kind(), ErrorKind::Lost);
    assert!(!old.is_valid() && !other.is_valid());
    assert_eq!(old.reenter().unwrap_err().kind(), ErrorKind::Lost);
    assert!(!old.unlock().await.unwrap() && !other.unlock().await.unwrap());
    assert!(new.is_valid() && new.unlock().await.unwrap());
}

#[tokio::test]
async fn an_unanswered_unlock_ends_after_a_lease() {
    let server = RedisServer::start();
    let permits = coordinator(&server.url());
    let guard = permits.mutex("hangs").unwrap().lock().await.unwrap();
    server.pause();
    let unlocked = tokio::time::timeout(LEASE + SLACK, guard.unlock()).await;
    let error = unlocked.expect("the unlock ends").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    server.resume();
    let again = lock(&permits.mutex("hangs").unwrap()).await;
    assert!(again.unlock().await.unwrap());
}

#[tokio::test]
async fn overlapping_sets_of_two_processes_exclude_each_other_without_deadlock() {
    let server = RedisServer::start();
    let permits = [coordinator(&server.url()), coordinator(&server.url())];
    let inside = std::sync::Arc::new([(); 5].map(|()| std::sync::atomic::AtomicBool::new(false)));
    let mut tasks = JoinSet::new();
    for n in 0..300usize {
        let (permits, inside) = (permits[n % 2].clone(), inside.clone());
        let set = [n * 7 % 5, n * 3 % 5, n * n % 5];
        tasks.spawn(async move {
            let patience = millis(if n % 3 == 0 { n as u64 % 23 } else { 60_000 });
            let locked = permits.lock_all(set.map(|name| format!("{name}")));
            let Ok(guards) = tokio::time::timeout(patience, locked).await else {
                return assert_eq!(n % 3, 0, "deadlock");
            };
            let guards = guards.unwrap();
            let set = std::collections::BTreeSet::from(set);
            let order = std::sync::atomic::Ordering::SeqCst;
            assert!(set.iter().all(|name| !inside[*name].swap(true, order)));
            tokio::time::sleep(millis(1)).await;
            assert!(set.iter().all(|name| inside[*name].swap(false, order)));
            drop(guards);
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no panic");
    }
    expect_empty(&server, LEASE + SLACK).await;
}

#[tokio::test]
async fn tokens_increase_over_a_flush_and_a_restart() {
    let mut server = RedisServer::start();
    let permits = coordinator(&server.url());
    let mutex = permits.mutex("tokens").unwrap();
    let mut last = 0;
    for round in 0..6 {
        let guard = lock(&mutex).await;
        assert!(guard.token() > last, "round {round}");
        last = guard.token();
        let _ = guard.unlock().await;
        match round % 3 {
            0 => drop(server.command(&["FLUSHALL"])),
            1 => server.restart(),
            _ => {}
        }
    }
}

#[tokio::test]
async fn ten_thousand_rounds_with_cancellation_leave_nothing() {
    let server = RedisServer::start();
    let permits = coordinator(&server.url());
    let mutex = permits.mutex("rounds").unwrap();
    let mut tasks = JoinSet::new();
    for task in 0..8u64 {
        let mutex = mutex.clone();
        tasks.spawn(async move {
            for round in 0..1_250 {
                let patience = Duration::from_micros((task * 7919 + round * 104_729) % 3_000);
                tokio::select! {
                    guard = mutex.lock() => {
                        let guard = guard.unwrap();
                        match round % 3 {
                            0 => drop(guard.unlock().await.unwrap()),
                            1 => drop(tokio::time::timeout(patience / 10, guard.unlock()).await),
                            _ => drop(guard),
                        }
                    }
                    () = tokio::time::sleep(patience) => {}
                }
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no panic");
    }
    let end = Instant::now() + LEASE / 2;
    loop {
        let inspection = mutex.inspect().await.unwrap();
        if (inspection.in_use, inspection.queued) == (0, 0) {
            break;
        }
        assert!(Instant::now() < end, "not released in time: {inspection:?}");
    }
    // No permit is renewed, so nothing is stored one lease later.
    expect_empty(&server, LEASE + SLACK).await;
}

#[tokio::test]
async fn each_name_excludes_only_itself_and_no_key_is_raw() {
    let server = RedisServer::start();
    let permits = coordinator(&server.url());
    let mut guards = Vec::new();
    for name in UNUSUAL_NAMES {
        let mutex = permits.mutex(name).unwrap();
        guards.push(mutex.try_lock().await.expect("each name is independent"));
        let error = mutex.try_lock().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::LimitReached);
    }
    let keys = server.command(&["KEYS", "fleet:mutex:{*}"]).list();
    assert_eq!(keys.len(), UNUSUAL_NAMES.len());
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:%~+{}".contains(c);
    assert!(
        keys.iter()
            .all(|key| key.chars().all(plain) && key.len() < 200),
        "{keys:?}"
    );
}

/// 100,000 names, each used once.
#[tokio::test]
async fn many_names_leave_memory_and_redis_as_they_were() {
    let _exclusive = EXCLUSIVE.lock().await;
    let server = RedisServer::start();
    // Long, because releases that are not answered within a lease would leave their tickets until they expire.
    let lease = 5 * LEASE;
    let builder = modes::builder(backend(&server.url()));
    let permits = builder.lease(lease).build().unwrap();
    let once = |n: u32| {
        let permits = permits.clone();
        async move {
            let mutex = permits.mutex(format!("product:{n}")).unwrap();
            let guard = lock(&mutex).await;
            drop(guard);
        }
    };
    let all = |numbers: std::ops::Range<u32>| {
        futures_util::stream::iter(numbers)
            .map(once)
            .buffer_unordered(256)
            .count()
    };
    // By then the process has allocated what it keeps.
    all(0..20_000).await;
    let before = resident();
    all(20_000..100_000).await;
    let grown = resident().saturating_sub(before);
    assert!(grown < 8_000, "{grown} KiB for 80,000 unused names");
    expect_empty(&server, lease + SLACK).await;
}

/// Returns the resident memory of this process in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .expect("a size");
    let digits: String = line.chars().filter(char::is_ascii_digit).collect();
    digits.parse().expect("a number")
}

/// Locks, and retries while the server is unavailable.
async fn lock(mutex: &Mutex) -> MutexGuard {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        match mutex.lock().await {
            Ok(guard) => return guard,
            Err(error) if error.kind() == ErrorKind::Unavailable && Instant::now() < end => {
                tokio::time::sleep(millis(20)).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

// === in the child process ===

fn start(server: &RedisServer) -> Process {
    Process::start("mutexes::locker", [("FLEET_LOCKS_AT", server.url())])
}

#[test]
fn locker() {
    let Ok(url) = std::env::var("FLEET_LOCKS_AT") else {
        return;
    };
    run_child(serve(&url));
}

async fn serve(url: &str) {
    let permits = modes::builder(backend(url)).lease(LEASE).build().unwrap();
    let mutex = permits.mutex("shared").unwrap();
    let mut commands = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(command)) = commands.next_line().await {
        match command.split(' ').collect::<Vec<_>>()[..] {
            ["count", times, folder] => {
                count(&mutex, times.parse().unwrap(), folder.into()).await;
                report("counted");
            }
            ["lock"] => {
                let guard = mutex.lock().await.unwrap();
                report(format_args!("locked {}", guard.token()));
                hold(guard, &mut commands).await;
            }
            _ => panic!("unknown command: {command}"),
        }
    }
}

/// Holds until it receives the command to unlock.
async fn hold(guard: MutexGuard, commands: &mut tokio::io::Lines<BufReader<tokio::io::Stdin>>) {
    let mut lost = false;
    loop {
        let command = tokio::select! {
            // Commands first: the reply must not depend on the loss being noticed before.
            biased;
            command = commands.next_line() => command.ok().flatten(),
            error = guard.lost(), if !lost => {
                lost = true;
                report(format_args!("lost {}", error.kind().as_str()));
                continue;
            }
        };
        match command.as_deref() {
            Some("valid") => report(format_args!("valid {}", guard.is_valid())),
            _ => {
                let unlocked = guard.unlock().await.map_err(|error| error.kind());
                return report(format_args!("unlocked {unlocked:?}"));
            }
        }
    }
}

/// Runs concurrent requests that each read the counter, wait, and write it back plus one.
async fn count(mutex: &Mutex, times: usize, folder: PathBuf) {
    let mut requests = JoinSet::new();
    for number in 0..times {
        let (mutex, folder) = (mutex.clone(), folder.clone());
        requests.spawn(async move {
            let guard = mutex.lock().await.unwrap();
            count_once(&folder, number, guard.token()).await;
            drop(guard);
        });
    }
    while let Some(ended) = requests.join_next().await {
        ended.expect("no panic");
    }
}

async fn count_once(folder: &Path, number: usize, token: u64) {
    let (counter, log) = (folder.join("counter"), folder.join("log"));
    let count: u64 = std::fs::read_to_string(&counter).unwrap().parse().unwrap();
    let mut lines = std::fs::read_to_string(&log).unwrap_or_default();
    tokio::time::sleep(millis(20)).await;
    writeln!(lines, "{} {number} {token}", std::process::id()).unwrap();
    std::fs::write(&log, lines).unwrap();
    std::fs::write(&counter, (count + 1).to_string()).unwrap();
}
