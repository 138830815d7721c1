//! The example `quickstart` over each backend, by URL: two concurrent processes that share the limit. The example `shop` in
//! process.
//!
//! Each test starts its own servers and stops them at its end.

use std::process::{Child, Command, Stdio};
use std::sync::Once;
use std::time::{Duration, Instant};
use support::certificates::Authority;
use support::cluster::RedisCluster;
use support::etcd::EtcdCluster;
use support::redis::RedisServer;
use support::sentinels::{MASTER, SentinelSet};
use support::zookeeper::ZooKeepers;
use test_support as support;

/// The callers of each process, and how long each works.
const CALLERS: u32 = 12;
const WORK: Duration = Duration::from_millis(400);

#[test]
fn quickstart_runs_in_process() {
    check_output(start("memory:", &[]), 3);
}

#[test]
fn quickstart_runs_over_redis() {
    let server = RedisServer::start();
    two_share(&server.url(), &[], 3);
}

#[test]
fn quickstart_accepts_redis_url() {
    let server = RedisServer::start();
    let mut quickstart = example("quickstart");
    quickstart.env("REDIS_URL", server.url());
    check_output(quickstart.spawn().expect("it runs"), 3);
    // The key of its name is still there.
    assert!(!server.command(&["KEYS", "permit:*"]).list().is_empty());
}

#[test]
fn quickstart_runs_over_redis_with_tls() {
    let authority = Authority::new();
    let certificate = authority.sign(&["127.0.0.1"]);
    let server = authority.start_server(&certificate, &["--tls-auth-clients", "no"]);
    let url = format!("rediss://127.0.0.1:{}", server.tls_port());
    let trusted = tempfile::tempdir().expect("a folder");
    let trusted = trusted.path().join("ca.pem");
    std::fs::write(&trusted, authority.pem()).expect("a file");
    let trusted = trusted.to_str().expect("a plain path");
    two_share(&url, &[("SSL_CERT_FILE", trusted)], 3);
}

#[test]
fn quickstart_runs_over_sentinel() {
    let set = SentinelSet::start(1);
    let sentinels = set.addresses().join(",");
    two_share(&format!("redis+sentinel://{sentinels}/{MASTER}"), &[], 3);
}

#[test]
fn quickstart_runs_over_cluster() {
    let cluster = RedisCluster::start(3, false);
    let nodes = cluster.addresses().join(",");
    two_share(&format!("redis+cluster://{nodes}"), &[], 3);
}

#[test]
fn quickstart_runs_over_redlock() {
    let servers = [(); 3].map(|()| RedisServer::start());
    for server in &servers {
        // As if it had been running for long, so that the first lock does not wait.
        server.command(&["SET", "permit:redlock:since", "1 1"]);
    }
    let urls = servers.each_ref().map(RedisServer::url).join(",");
    two_share(&format!("redlock:{urls}"), &[], 1);
}

#[test]
fn quickstart_runs_over_etcd() {
    let cluster = EtcdCluster::start(1);
    two_share(&format!("etcd://{}", cluster.endpoint(0)), &[], 3);
}

#[test]
fn quickstart_runs_over_zookeeper() {
    let servers = ZooKeepers::start(1);
    two_share(&format!("zookeeper://{}", servers.connect_string()), &[], 3);
}

/// The buyers use three spellings of the product, which must not bypass the lock.
#[test]
fn shop_sells_exactly_its_stock() {
    let output = example("shop").env_remove("SHOP_DB").output();
    let output = output.expect("it runs");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{stdout}");
    assert!(
        stdout.contains("with the lock:    10 sold of 10"),
        "{stdout}"
    );
    assert!(!stdout.contains("a buyer got"), "{stdout}");
}

/// Runs two processes at once. All their callers together took as long as one shared limit requires.
fn two_share(url: &str, env: &[(&str, &str)], limit: u32) {
    let start_of_both = Instant::now();
    let both = [(); 2].map(|()| start(url, env));
    for one in both {
        check_output(one, limit);
    }
    let (took, least) = (start_of_both.elapsed(), WORK * 2 * CALLERS / limit);
    assert!(took >= least, "both done after {took:?}, not {least:?}");
}

fn example(name: &str) -> Command {
    // If only this test is built, cargo has not rebuilt the examples.
    static BUILT: Once = Once::new();
    BUILT.call_once(|| {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args([
            "build",
            "--quiet",
            "--all-features",
            "--example",
            "quickstart",
            "--example",
            "shop",
        ]);
        let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml");
        let built = cargo.args(["--manifest-path", manifest]).status();
        assert!(built.expect("cargo runs").success(), "it does not build");
    });
    let here = std::env::current_exe().expect("this program");
    let target = here.parent().and_then(|deps| deps.parent());
    let program = target.expect("a target folder").join("examples").join(name);
    let mut command = Command::new(program);
    command.env_remove("PERMIT_URL").env_remove("REDIS_URL");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn start(url: &str, env: &[(&str, &str)]) -> Child {
    let mut command = example("quickstart");
    command.env("PERMIT_URL", url).envs(env.iter().copied());
    command.spawn().expect("it runs")
}

/// Asserts that the process succeeded, that each caller was served, and that the limit was kept.
fn check_output(quickstart: Child, limit: u32) {
    let output = quickstart.wait_with_output().expect("it ends");
    let (stdout, stderr) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{stdout}{stderr}");
    let served = stdout.lines().filter(|line| line.ends_with('█')).count();
    assert_eq!(served, CALLERS as usize, "{stdout}");
    for scope in ["in this process", "over all processes"] {
        let peak = peak(&stdout, limit, scope);
        assert!((1..=limit).contains(&peak), "{stdout}");
    }
    assert_eq!(stdout.contains("no limit above"), limit < 3, "{stdout}");
}

fn peak(stdout: &str, limit: u32, scope: &str) -> u32 {
    let end = format!(" of limit {limit} {scope}");
    let line = stdout
        .lines()
        .find_map(|line| line.strip_prefix("peak ")?.strip_suffix(&end));
    let number = line.and_then(|number| number.parse().ok());
    number.unwrap_or_else(|| panic!("no peak {scope}:\n{stdout}"))
}
