//! Random faults for `SOAK_SECONDS`.

use crate::fault_injection::{Fault, FaultKind, Scenario, Servers};
use crate::support::proxy::{Mode, Way};
use crate::{EXCLUSIVE, LONGEST};
use rand::rngs::SmallRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{RngExt, SeedableRng};
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// Reads a number from the environment.
fn setting(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().expect("a number"))
}

/// Injects faults one after another, with pauses between them.
pub(crate) async fn soak<S: Servers>(start: impl FnOnce() -> S) {
    let _exclusive = EXCLUSIVE.lock().await;
    let time = Duration::from_secs(setting("SOAK_SECONDS").unwrap_or(20));
    let seed = setting("SOAK_SEED").unwrap_or_else(|| u64::from(rand::random::<u32>()));
    println!("SOAK_SEED={seed}");
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut scenario = Scenario::start(start).await;
    let end = Instant::now() + time;
    let mut kinds = Vec::new();
    while Instant::now() < end {
        sleep(Duration::from_millis(rng.random_range(200..1000))).await;
        // Each kind once before any is repeated.
        if kinds.is_empty() {
            kinds = (0..4).collect();
            kinds.shuffle(&mut rng);
        }
        let fault = fault(&scenario.servers, kinds.pop().expect("one"), &mut rng);
        scenario.inject(&fault).await;
    }
    sleep(Duration::from_secs(1)).await;
    scenario.end().await;
}

fn fault<S: Servers>(of: &S, number: u32, rng: &mut SmallRng) -> Fault {
    let process = rng.random_range(0..2);
    let kind = match number {
        0 => FaultKind::Pause,
        1 => FaultKind::Kill,
        2 => FaultKind::Cut {
            process: (!S::ANNOUNCED && rng.random_bool(0.5)).then_some(process),
            ways: [&[Way::Up][..], &[Way::Down], &[Way::Up, Way::Down]]
                .choose(rng)
                .expect("one")
                .to_vec(),
            mode: *[Mode::Hold, Mode::Lose].choose(rng).expect("one"),
        },
        _ => FaultKind::Freeze { process },
    };
    let mut servers: Vec<usize> = (0..of.ports().len()).collect();
    servers.shuffle(rng);
    if rng.random_bool(0.5) {
        let leader = of.leader();
        servers.retain(|at| *at != leader);
        servers.insert(0, leader);
    }
    servers.truncate(match kind {
        FaultKind::Freeze { .. } => 0,
        _ => rng.random_range(1..=S::MAX_FAILED),
    });
    let survive = (1..=S::spare_servers(&kind)).contains(&servers.len()) && rng.random_bool(0.5);
    // Some end before any node could notice.
    let shortest = Duration::from_millis(20);
    let longest = *[shortest * 15, LONGEST].choose(rng).expect("one");
    let time = rng.random_range(shortest..longest);
    Fault {
        kind,
        servers,
        time: (!survive).then_some(time),
    }
}
