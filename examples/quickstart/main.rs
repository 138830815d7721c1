//! Twelve callers and three permits: prints when each caller runs.
//!
//! ```text
//! cargo run --example quickstart
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example quickstart    # run it twice at once: both share the limit
//! PERMIT_URL=etcd://127.0.0.1:2379 cargo run --example quickstart --features etcd    # or any other backend
//! ```

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tower_permit::Coordinator;

const LIMIT: u32 = 3;
const CALLERS: usize = 12;
const WORK: Duration = Duration::from_millis(400);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // One coordinator per process. In process, unless a URL is set.
    let url = std::env::var("PERMIT_URL").or_else(|_| std::env::var("REDIS_URL"));
    let permits = Coordinator::from_url(url.as_deref().unwrap_or("memory:"))?;
    permits.check().await?;
    let limit = LIMIT.min(permits.capabilities().max_limit);
    if limit < LIMIT {
        println!("this backend supports no limit above {limit}: using {limit} instead of {LIMIT}");
    }
    let printer = permits.semaphore("printer", limit)?;

    let start = Instant::now();
    let inside = Arc::new(AtomicUsize::new(0));
    let callers: Vec<_> = (0..CALLERS)
        .map(|_| {
            let (printer, permits, inside) = (printer.clone(), permits.clone(), inside.clone());
            tokio::spawn(async move {
                let permit = printer.acquire().await?;
                let started = start.elapsed();
                let here = inside.fetch_add(1, Ordering::SeqCst) + 1;
                let everywhere = permits.inspect("printer").await?.in_use;
                sleep(WORK).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                let finished = start.elapsed();
                permit.release().await?;
                Ok::<_, tower_permit::Error>((started, finished, here, everywhere))
            })
        })
        .collect();

    let (mut peak, mut peak_everywhere) = (0, 0);
    println!("{CALLERS} callers, {WORK:?} of work each (░ waits, █ runs)\n");
    for (n, caller) in callers.into_iter().enumerate() {
        let (started, finished, here, everywhere) = caller.await??;
        let columns = |time: Duration| (time.as_millis() / 50).min(80) as usize;
        let (waits, runs) = (columns(started), columns(finished - started));
        println!("{n:>4} {}{}", "░".repeat(waits), "█".repeat(runs));
        peak = peak.max(here);
        peak_everywhere = peak_everywhere.max(everywhere);
    }
    println!("\npeak {peak} of limit {limit} in this process");
    println!("peak {peak_everywhere} of limit {limit} over all processes");
    permits.shutdown(Duration::from_secs(5)).await?;
    Ok(())
}
