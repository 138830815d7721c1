//! A gateway in front of a language model: at most two completions at a time, over all instances of the gateway.
//! A completion streams, and counts until its last token. Who would wait for longer than 3 s gets a `429`.
//!
//! ```text
//! cargo run --example llm_gateway             # then: curl -N localhost:3000/chat  and  curl localhost:3000/status
//! cargo run --example llm_gateway -- demo     # five clients at once, and the end
//! REDIS_URL=redis://127.0.0.1:6379 PORT=3001 cargo run --example llm_gateway     # one more instance
//! ```
//!
//! `PERMIT_URL` takes the URL of any backend that keeps a limit of 2.

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
    // In this process, or wherever the URL says.
    let url = std::env::var("PERMIT_URL").or_else(|_| std::env::var("REDIS_URL"));
    let permits = Coordinator::connect(url.as_deref().unwrap_or("memory:"))?;
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
    // Nothing stays held when this instance goes.
    permits.shutdown(Duration::from_secs(10)).await?;
    Ok(())
}

/// The gateway. The limit is on the route that costs money, not on the status page.
fn gateway(permits: &Coordinator, model: String) -> Result<Router, tower_permit::Error> {
    let limit = DistributedConcurrencyLimitLayer::new(permits.semaphore(NAME, LIMIT)?)
        .wait_timeout(Duration::from_secs(3))
        .reject_with_response();
    let client = reqwest::Client::new();
    Ok(Router::new()
        .route("/chat", get(chat).with_state((client, model)).layer(limit))
        .route("/status", get(status).with_state(permits.clone())))
}

/// Passes the model's stream on as it comes.
async fn chat(State((client, model)): State<(reqwest::Client, String)>) -> Response {
    match client.get(model).send().await {
        Ok(answer) => {
            let kind = [("content-type", "text/event-stream")];
            (kind, Body::from_stream(answer.bytes_stream())).into_response()
        }
        Err(error) => (StatusCode::BAD_GATEWAY, error.to_string()).into_response(),
    }
}

/// Who holds and who waits, over all instances.
async fn status(State(permits): State<Coordinator>) -> Result<String, (StatusCode, String)> {
    let seen = permits.inspect(NAME).await;
    let seen = seen.map_err(|error| (StatusCode::SERVICE_UNAVAILABLE, error.to_string()))?;
    let mut page = format!(
        "{NAME}: {} of {LIMIT} in use, {} waiting\n",
        seen.in_use, seen.queued
    );
    for (what, tickets) in [("holds", &seen.holders), ("waits", &seen.queue)] {
        for ticket in tickets {
            page += &format!(
                "{what} {}  lease {:.1?}\n",
                ticket.ticket, ticket.lease_left
            );
        }
    }
    Ok(page)
}

/// Stands for the model: ten words, one each 200 ms, as server-sent events.
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

/// Five at once through a limit of two, 2 s each: two go at once, two wait, and the last would wait too long.
async fn five_clients(gateway: &str) -> Result<(), Box<dyn Error>> {
    let start = Instant::now();
    let clients: Vec<_> = (1..=5)
        .map(|n| {
            let url = format!("{gateway}/chat");
            tokio::spawn(async move {
                let answer = reqwest::get(url).await?;
                let (status, after) = (
                    answer.status(),
                    answer.headers().get("retry-after").cloned(),
                );
                let words = answer.text().await?.matches("data:").count();
                let took = start.elapsed();
                println!(
                    "client {n}: {status}, {words} words, after {took:.1?}, retry-after {after:?}"
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
