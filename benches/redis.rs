//! What a permit costs over Redis: ours beside a plain sorted set, on the same server, in turn, medians of several
//! rounds.
//!
//! ```text
//! cargo bench --bench redis             # starts its own redis-server
//! cargo bench --bench redis -- --quick
//! ```

#[path = "../tests/support/redis.rs"]
#[allow(dead_code, unreachable_pub)]
mod server;

use redis::aio::MultiplexedConnection;
use server::{Answer, RedisServer};
use std::future::Future;
use std::time::{Duration, Instant};
use tower_permit::{Coordinator, Redis};

const TASKS: [usize; 3] = [1, 16, 256];
/// Never reached: nobody waits.
const LIMIT: u32 = 10_000;

/// What everybody writes first: the members are the holders, the score is the deadline.
const PLAIN_ACQUIRE: &str = "
    local now = redis.call('TIME')
    now = now[1] * 1000 + math.floor(now[2] / 1000)
    redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
    if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[2]) then return 0 end
    redis.call('ZADD', KEYS[1], now + 10000, ARGV[1])
    redis.call('PEXPIRE', KEYS[1], 20000)
    return 1";
const PLAIN_RELEASE: &str = "return redis.call('ZREM', KEYS[1], ARGV[1])";

/// What one way of doing it took.
#[derive(Clone, Copy, Default)]
struct Cost {
    pairs: f64,
    seconds: f64,
    commands: f64,
    server_micros: f64,
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    // `cargo test --benches` only wants to know that this builds.
    if std::env::args().any(|arg| arg == "--test") {
        return;
    }
    let quick = std::env::args().any(|arg| arg == "--quick");
    let (rounds, time) = match quick {
        true => (3, Duration::from_millis(300)),
        false => (7, Duration::from_secs(1)),
    };
    let server = RedisServer::start();
    let client = redis::Client::open(server.url()).expect("a URL");
    let tcp = redis::io::tcp::TcpSettings::default().set_nodelay(true);
    let info = client.get_connection_info().clone().set_tcp_settings(tcp);
    let client = redis::Client::open(info).expect("a client");
    let connection = client
        .get_multiplexed_async_connection()
        .await
        .expect("a connection");
    let redis = Redis::new(server.url())
        .and_then(|r| r.prefix("bench"))
        .expect("a URL");
    let permits = Coordinator::new(redis);
    permits.check().await.expect("a fine server");

    println!(
        "{:<28} {:>11} {:>11} {:>7} {:>15} {:>22}",
        "uncontended pairs", "ours/s", "plain/s", "ratio", "commands a pair", "server us a pair"
    );
    for tasks in TASKS {
        for (what, one_name) in [("one name", true), ("a name each", false)] {
            let (mut ours, mut plain) = (Vec::new(), Vec::new());
            for _ in 0..rounds {
                ours.push(
                    measure(&server, tasks, time, |n| ours_pair(&permits, n, one_name)).await,
                );
                plain.push(
                    measure(&server, tasks, time, |n| {
                        plain_pair(&connection, n, one_name)
                    })
                    .await,
                );
            }
            let (ours, plain) = (median(ours), median(plain));
            println!(
                "{:<28} {:>11.0} {:>11.0} {:>7.2} {:>7.3} ({:>5.2}) {:>9.1} ({:>4.1}) {:>5.2}x",
                format!("{tasks} tasks, {what}"),
                ours.pairs / ours.seconds,
                plain.pairs / plain.seconds,
                (ours.pairs / ours.seconds) / (plain.pairs / plain.seconds),
                ours.commands / ours.pairs,
                plain.commands / plain.pairs,
                ours.server_micros / ours.pairs,
                plain.server_micros / plain.pairs,
                (ours.server_micros / ours.pairs) / (plain.server_micros / plain.pairs),
            );
        }
    }
    println!("(in brackets: the plain sorted set)");
}

/// So many tasks acquire and release in turn for so long.
async fn measure<F: Future<Output = u64> + Send + 'static>(
    server: &RedisServer,
    tasks: usize,
    time: Duration,
    mut work: impl FnMut(Task) -> F,
) -> Cost {
    server.command(&["CONFIG", "RESETSTAT"]);
    let start = Instant::now();
    let tasks: Vec<_> = (0..tasks)
        .map(|n| {
            tokio::spawn(work(Task {
                n,
                end: start + time,
            }))
        })
        .collect();
    let mut pairs = 0;
    for task in tasks {
        pairs += task.await.expect("no panic");
    }
    let seconds = start.elapsed().as_secs_f64();
    let (commands, server_micros) = scripts(server);
    Cost {
        pairs: pairs as f64,
        seconds,
        commands,
        server_micros,
    }
}

struct Task {
    n: usize,
    end: Instant,
}

fn ours_pair(
    permits: &Coordinator,
    task: Task,
    one_name: bool,
) -> impl Future<Output = u64> + Send + 'static {
    let name = if one_name {
        "bench".to_owned()
    } else {
        format!("bench{}", task.n)
    };
    let semaphore = permits.semaphore(name, LIMIT).expect("a fine limit");
    async move {
        let mut pairs = 0;
        while Instant::now() < task.end {
            let permit = semaphore.acquire().await.expect("a permit");
            permit.release().await.expect("an answer");
            pairs += 1;
        }
        pairs
    }
}

fn plain_pair(
    connection: &MultiplexedConnection,
    task: Task,
    one_name: bool,
) -> impl Future<Output = u64> + Send + 'static {
    let key = if one_name {
        "plain".to_owned()
    } else {
        format!("plain{}", task.n)
    };
    let mut connection = connection.clone();
    let (acquire, release) = (
        redis::Script::new(PLAIN_ACQUIRE),
        redis::Script::new(PLAIN_RELEASE),
    );
    async move {
        let mut pairs = 0;
        while Instant::now() < task.end {
            let member = format!("{}-{pairs}", task.n);
            let got: i64 = acquire
                .key(&key)
                .arg(&member)
                .arg(LIMIT)
                .invoke_async(&mut connection)
                .await
                .expect("an answer");
            assert_eq!(got, 1);
            let _: i64 = release
                .key(&key)
                .arg(&member)
                .invoke_async(&mut connection)
                .await
                .expect("an answer");
            pairs += 1;
        }
        pairs
    }
}

/// Scripts run since the statistics were reset, and the server's time for them in microseconds.
fn scripts(server: &RedisServer) -> (f64, f64) {
    let Answer::Text(stats) = server.command(&["INFO", "commandstats"]) else {
        return (0.0, 0.0);
    };
    let field = |line: &str, name: &str| -> f64 {
        let value = line
            .split([':', ','])
            .find_map(|part| part.strip_prefix(name));
        value.and_then(|value| value.parse().ok()).unwrap_or(0.0)
    };
    stats
        .lines()
        .filter(|line| line.starts_with("cmdstat_eval"))
        .fold((0.0, 0.0), |(calls, usec), line| {
            (calls + field(line, "calls="), usec + field(line, "usec="))
        })
}

/// The round in the middle, by pairs a second.
fn median(mut costs: Vec<Cost>) -> Cost {
    costs.sort_by(|a, b| (a.pairs / a.seconds).total_cmp(&(b.pairs / b.seconds)));
    costs.get(costs.len() / 2).copied().unwrap_or_default()
}
