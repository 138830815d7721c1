use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tower_permit::{AnyBackend, Coordinator};
fn cpu() -> f64 {
    let s = std::fs::read_to_string("/proc/self/stat").unwrap();
    let f: Vec<&str> = s.rsplit_once(')').unwrap().1.split_whitespace().collect();
    (f[11].parse::<f64>().unwrap() + f[12].parse::<f64>().unwrap()) * 10_000.0
}
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let (url, tasks, workers, secs) = (
        a[1].clone(),
        a[2].parse::<usize>().unwrap(),
        a[3].parse::<usize>().unwrap(),
        a[4].parse::<f64>().unwrap(),
    );
    let mode = a.get(5).cloned().unwrap_or_default();
    let rt = if workers == 0 {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    } else {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(workers)
            .enable_all()
            .build()
            .unwrap()
    };
    rt.block_on(async {
        let n = Arc::new(AtomicU64::new(0)); let pairs = Arc::new(AtomicU64::new(0));
        let end = Instant::now() + Duration::from_secs_f64(secs);
        let c0 = cpu(); let t0 = Instant::now();
        let mut hs = vec![];
        if mode == "setnx" {
            let client = redis::Client::open(url).unwrap();
            let con = client.get_multiplexed_async_connection().await.unwrap();
            let script = Arc::new(redis::Script::new("if redis.call('GET',KEYS[1])==ARGV[1] then return redis.call('DEL',KEYS[1]) end return 0"));
            for t in 0..tasks { let (n, pairs, mut con, script) = (n.clone(), pairs.clone(), con.clone(), script.clone());
                hs.push(tokio::spawn(async move { while Instant::now() < end {
                    let k = format!("key:{}", n.fetch_add(1, Relaxed)); let tok = format!("tok-{t}");
                    let _: redis::Value = redis::cmd("SET").arg(&k).arg(&tok).arg("NX").arg("PX").arg(10000).query_async(&mut con).await.unwrap();
                    let _: i64 = script.key(&k).arg(&tok).invoke_async(&mut con).await.unwrap();
                    pairs.fetch_add(1, Relaxed);
                }}));
            }
        } else {
            let c = Coordinator::new(AnyBackend::from_url(url).unwrap());
            for _ in 0..tasks { let (n, pairs, c) = (n.clone(), pairs.clone(), c.clone());
                hs.push(tokio::spawn(async move { while Instant::now() < end {
                    let g = c.mutex(format!("key:{}", n.fetch_add(1, Relaxed))).unwrap().lock().await.unwrap();
                    g.unlock().await.unwrap(); pairs.fetch_add(1, Relaxed);
                }}));
            }
        }
        for h in hs { h.await.unwrap(); }
        let p = pairs.load(Relaxed) as f64;
        println!("{mode:6} tasks {tasks} workers {workers}: {:.0} pairs/s, client {:.2} us/pair", p / t0.elapsed().as_secs_f64(), (cpu() - c0) / p);
    });
}
