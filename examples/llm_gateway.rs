//! A gateway in front of a language model: at most two concurrent completions over all instances of the gateway. A
//! completion streams and counts until its last token. A request that would wait for longer than 3 s gets a `429`.
//!
//! ```text
//! cargo run --example llm_gateway             # then: curl -N localhost:3000/chat  and  curl localhost:3000/status
//! cargo run --example llm_gateway -- demo     # five concurrent clients, then the gateway exits
//! REDIS_URL=redis://127.0.0.1:6379 PORT=3001 cargo run --example llm_gateway     # another instance
//! ```
//!
//! `PERMIT_URL` is the URL of any backend that supports a limit of 2.

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::stream;
use std::convert::Infallible;
use std::error::Error;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep};
use tower_permit::{Coordinator, DistributedConcurrencyLimitLayer};

const NAME: &str = "llm:gpt-5";
const LIMIT: u32 = 2;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // In process, unless a URL is set.
    let url = std::env::var("PERMIT_URL").or_else(|_| std::env::var("REDIS_URL"));
    let permits = Coordinator::from_url(url.as_deref().unwrap_or("memory:"))?;
    permits.check().await?;

    let demo = std::env::args().nth(1).is_some_and(|arg| arg == "demo");
    let port = std::env::var("PORT").unwrap_or_else(|_| if demo { "0" } else { "3000" }.into());
    let listener = TcpListener::bind(format!("127.0.0.1:{port}")).await?;
    let address = listener.local_addr()?;
    let gateway = gateway(&permits, fake_model().await?)?;
    if demo {
        tokio::spawn(async move { axum::serve(listener, gateway).await });
        five_clients(&format!("http://{address}")).await?;
    } else {
        println!("try: curl -N {address}/chat     and: curl {address}/status");
        let stop = async { drop(tokio::signal::ctrl_c().await) };
        axum::serve(listener, gateway)
            .with_graceful_shutdown(stop)
            .await?;
    }
    // Releases all permits before this instance exits.
    permits.shutdown(Duration::from_secs(10)).await?;
    Ok(())
}

/// Builds the gateway. The limit applies to the route that costs money, not to the status page.
fn gateway(permits: &Coordinator, model: String) -> Result<Router, tower_permit::Error> {
    let limit = DistributedConcurrencyLimitLayer::new(permits.semaphore(NAME, LIMIT)?)
        .wait_timeout(Duration::from_secs(3))
        .reject_with_response();
    let client = reqwest::Client::new();
    Ok(Router::new()
        .route("/chat", get(chat).with_state((client, model)).layer(limit))
        .route("/status", get(status).with_state(permits.clone())))
}

/// Forwards the model's stream.
async fn chat(State((client, model)): State<(reqwest::Client, String)>) -> Response {
    match client.get(model).send().await {
        Ok(response) => {
            let headers = [("content-type", "text/event-stream")];
            (headers, Body::from_stream(response.bytes_stream())).into_response()
        }
        Err(error) => (StatusCode::BAD_GATEWAY, error.to_string()).into_response(),
    }
}

/// Lists the held and the queued tickets, over all instances.
async fn status(State(permits): State<Coordinator>) -> Result<String, (StatusCode, String)> {
    let inspection = permits.inspect(NAME).await;
    let inspection =
        inspection.map_err(|error| (StatusCode::SERVICE_UNAVAILABLE, error.to_string()))?;
    let mut page = format!(
        "{NAME}: {} of {LIMIT} in use, {} queued\n",
        inspection.in_use, inspection.queued
    );
    for (state, tickets) in [("held", &inspection.holders), ("queued", &inspection.queue)] {
        for ticket in tickets {
            page += &format!(
                "{state} {}  lease {:.1?}\n",
                ticket.ticket, ticket.lease_left
            );
        }
    }
    Ok(page)
}

/// Starts a substitute for the model and returns its URL. It streams ten words as server-sent events, one every 200 ms.
async fn fake_model() -> Result<String, Box<dyn Error>> {
    async fn complete() -> impl IntoResponse {
        let words = stream::unfold(0, |n| async move {
            sleep(Duration::from_millis(200)).await;
            let word = Bytes::from(format!("data: word {n}\n\n"));
            (n < 10).then_some((Ok::<_, Infallible>(word), n + 1))
        });
        (
            [("content-type", "text/event-stream")],
            Body::from_stream(words),
        )
    }
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    let model = Router::new().route("/", get(complete));
    tokio::spawn(async move { axum::serve(listener, model).await });
    Ok(url)
}

/// Sends five concurrent requests of 2 s each through a limit of two: two run at once, two wait, and one times out.
async fn five_clients(gateway: &str) -> Result<(), Box<dyn Error>> {
    let start = Instant::now();
    let clients: Vec<_> = (1..=5)
        .map(|n| {
            let url = format!("{gateway}/chat");
            tokio::spawn(async move {
                let response = reqwest::get(url).await?;
                let status = response.status();
                let retry_after = response.headers().get("retry-after").cloned();
                let words = response.text().await?.matches("data:").count();
                let elapsed = start.elapsed();
                println!(
                    "client {n}: {status}, {words} words, after {elapsed:.1?}, retry-after {retry_after:?}"
                );
                Ok::<_, reqwest::Error>(())
            })
        })
        .collect();
    sleep(Duration::from_secs(1)).await;
    println!(
        "{}",
        reqwest::get(format!("{gateway}/status"))
            .await?
            .text()
            .await?
    );
    for client in clients {
        client.await??;
    }
    Ok(())
}
