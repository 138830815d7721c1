//! A client of a service that can handle only two concurrent requests of a whole fleet. The limit wraps the HTTP client; a
//! rejection is an error like any other.
//!
//! ```text
//! cargo run --example outbound --features reqwest
//! REDIS_URL=redis://127.0.0.1:6379 cargo run --example outbound --features reqwest    # run it twice at once
//! ```
//!
//! `PERMIT_URL` is the URL of any backend that supports a limit of 2.

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
    // In process, unless a URL is set.
    let url = std::env::var("PERMIT_URL").or_else(|_| std::env::var("REDIS_URL"));
    let permits = Coordinator::from_url(url.as_deref().unwrap_or("memory:"))?;
    let url = fragile_service().await?;

    // The response holds the permit: the request counts until its body has been read.
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
                        Some(error) if error.kind() == ErrorKind::WaitTimeout => {
                            println!("{n}: not sent: {error}");
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

/// Starts a service that takes half a second for each response, and returns its URL.
async fn fragile_service() -> Result<reqwest::Url, Box<dyn Error + Send + Sync>> {
    async fn respond() -> &'static str {
        sleep(Duration::from_millis(500)).await;
        "a response"
    }
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/", listener.local_addr()?).parse()?;
    let service = Router::new().route("/", get(respond));
    tokio::spawn(async move { axum::serve(listener, service).await });
    Ok(url)
}
