//! Twelve callers, three permits: who runs when.
//!
//! ```text
//! cargo run --example quickstart
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example quickstart    # twice at once: the two share the limit
//! ```

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tower_permit::{Coordinator, Memory, Redis};

const LIMIT: u32 = 3;
const CALLERS: usize = 12;
const WORK: Duration = Duration::from_millis(400);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // One coordinator for each process. Without Redis the permits live in this process.
    let permits = match std::env::var("REDIS_URL") {
        Ok(url) => Coordinator::new(Redis::new(url)?.prefix("quickstart")?),
        Err(_) => Coordinator::new(Memory::new()),
    };
    permits.check().await?;
    let printer = permits.semaphore("printer", LIMIT)?;

    let start = Instant::now();
    let inside = Arc::new(AtomicUsize::new(0));
    let callers: Vec<_> = (0..CALLERS)
        .map(|_| {
            let (printer, permits, inside) = (printer.clone(), permits.clone(), inside.clone());
            tokio::spawn(async move {
                let permit = printer.acquire().await?;
                let came_in = start.elapsed();
                let here = inside.fetch_add(1, Ordering::SeqCst) + 1;
                let everywhere = permits.inspect("printer").await?.in_use;
                sleep(WORK).await;
                inside.fetch_sub(1, Ordering::SeqCst);
                let went_out = start.elapsed();
                permit.release().await?;
                Ok::<_, tower_permit::Error>((came_in, went_out, here, everywhere))
            })
        })
        .collect();

    let (mut peak, mut peak_everywhere) = (0, 0);
    println!("{CALLERS} callers, each works for {WORK:?} (░ waits, █ runs)\n");
    for (n, caller) in callers.into_iter().enumerate() {
        let (came_in, went_out, here, everywhere) = caller.await??;
        let columns = |time: Duration| (time.as_millis() / 50) as usize;
        let (waits, runs) = (columns(came_in), columns(went_out - came_in));
        println!("{n:>4} {}{}", "░".repeat(waits), "█".repeat(runs));
        peak = peak.max(here);
        peak_everywhere = peak_everywhere.max(everywhere);
    }
    println!("\npeak {peak} of limit {LIMIT} in this process");
    println!("peak {peak_everywhere} of limit {LIMIT} over all processes");
    permits.shutdown(Duration::from_secs(5)).await?;
    Ok(())
}
