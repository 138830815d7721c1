//! A client that asks a service which can only bear two requests at a time, over all processes of a fleet.
//! The limit sits round the HTTP client; a refusal is an error like any other.
//!
//! ```text
//! cargo run --example outbound --features reqwest
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example outbound --features reqwest    # twice at once: they share it
//! ```
//!
//! `PERMIT_URL` takes the URL of any backend that keeps a limit of 2.

use axum::Router;
use axum::routing::get;
use std::error::Error;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::time::sleep;
use tower::{Service, ServiceBuilder, ServiceExt};
use tower_permit::{Coordinator, DistributedConcurrencyLimitLayer, ErrorKind};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    // In this process, or wherever the URL says.
    let url = std::env::var("PERMIT_URL").or_else(|_| std::env::var("REDIS_URL"));
    let permits = Coordinator::connect(url.as_deref().unwrap_or("memory:"))?;
    let url = fragile_service().await?;

    // A response carries its permit: the request counts until its body has been read.
    let client = ServiceBuilder::new()
        .layer(
            DistributedConcurrencyLimitLayer::new(permits.semaphore("fragile", 2)?)
                .wait_timeout(Duration::from_millis(700)),
        )
        .service(reqwest::Client::new());

    let requests: Vec<_> = (1..=6)
        .map(|n| {
            // Clones share the limit.
            let (mut client, url) = (client.clone(), url.clone());
            tokio::spawn(async move {
                let request = reqwest::Request::new(reqwest::Method::GET, url);
                match client.ready().await?.call(request).await {
                    Ok(response) => println!("{n}: {}", response.text().await?),
                    Err(error) => match error.downcast_ref::<tower_permit::Error>() {
                        Some(ours) if ours.kind() == ErrorKind::WaitTimeout => {
                            println!("{n}: not sent: {ours}");
                        }
                        _ => return Err(error),
                    },
                }
                Ok(())
            })
        })
        .collect();
    for request in requests {
        request.await??;
    }
    permits.shutdown(Duration::from_secs(5)).await?;
    Ok(())
}

/// Takes half a second for each answer.
async fn fragile_service() -> Result<reqwest::Url, Box<dyn Error + Send + Sync>> {
    async fn answer() -> &'static str {
        sleep(Duration::from_millis(500)).await;
        "an answer"
    }
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/", listener.local_addr()?).parse()?;
    let service = Router::new().route("/", get(answer));
    tokio::spawn(async move { axum::serve(listener, service).await });
    Ok(url)
}
