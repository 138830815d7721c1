//! Faults at random, for as long as `SOAK_SECONDS` says.

use crate::rig::{Rig, Servers, Strike, What};
use crate::support::proxy::{Mode, Way};
use crate::{ALONE, LONGEST};
use rand::rngs::SmallRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{RngExt, SeedableRng};
use std::time::{Duration, Instant};
use tokio::time::sleep;

/// A number from the environment.
fn setting(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().expect("a number"))
}

/// Faults one after the other, with quiet times between.
pub(crate) async fn soak<S: Servers>(start: impl FnOnce() -> S) {
    let _alone = ALONE.lock().await;
    let time = Duration::from_secs(setting("SOAK_SECONDS").unwrap_or(20));
    let seed = setting("SOAK_SEED").unwrap_or_else(|| u64::from(rand::random::<u32>()));
    println!("SOAK_SEED={seed}");
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut rig = Rig::start(start).await;
    let end = Instant::now() + time;
    let mut kinds = Vec::new();
    while Instant::now() < end {
        sleep(Duration::from_millis(rng.random_range(200..1000))).await;
        // Each kind once before any comes again.
        if kinds.is_empty() {
            kinds = (0..4).collect();
            kinds.shuffle(&mut rng);
        }
        let strike = strike(&rig.servers, kinds.pop().expect("one"), &mut rng);
        rig.strike(&strike).await;
    }
    sleep(Duration::from_secs(1)).await;
    rig.end().await;
}

fn strike<S: Servers>(of: &S, kind: u32, rng: &mut SmallRng) -> Strike {
    let process = rng.random_range(0..2);
    let what = match kind {
        0 => What::Pause,
        1 => What::Kill,
        2 => What::Cut {
            process: (!S::ANNOUNCED && rng.random_bool(0.5)).then_some(process),
            ways: [&[Way::Up][..], &[Way::Down], &[Way::Up, Way::Down]]
                .choose(rng)
                .expect("one")
                .to_vec(),
            mode: *[Mode::Hold, Mode::Lose].choose(rng).expect("one"),
        },
        _ => What::Freeze { process },
    };
    let mut servers: Vec<usize> = (0..of.ports().len()).collect();
    servers.shuffle(rng);
    if rng.random_bool(0.5) {
        let leader = of.leader();
        servers.retain(|at| *at != leader);
        servers.insert(0, leader);
    }
    servers.truncate(match what {
        What::Freeze { .. } => 0,
        _ => rng.random_range(1..=S::MOST),
    });
    let survive = (1..=S::spare(&what)).contains(&servers.len()) && rng.random_bool(0.5);
    // Some are over before anybody could notice.
    let shortest = Duration::from_millis(20);
    let most = *[shortest * 15, LONGEST].choose(rng).expect("one");
    let time = rng.random_range(shortest..most);
    Strike {
        what,
        servers,
        time: (!survive).then_some(time),
    }
}
