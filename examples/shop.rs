//! A flash sale: ten pieces, fifty buyers at once, and a shop that reads the stock, works for 20 ms outside the
//! database, and writes the stock back. First without a lock, then with a [`KeyedMutexLayer`] by product.
//!
//! ```text
//! cargo run --example shop
//!
//! # Two instances, one lock, one database (a new file): together they sell no more than one alone.
//! export REDIS_URL=redis://127.0.0.1:6379 SHOP_DB=/tmp/shop.sqlite
//! cargo run --example shop & cargo run --example shop & wait
//! ```
//!
//! `PERMIT_URL` takes the URL of any backend.
//!
//! **A constraint in the database is the first line of defence.** `UPDATE … SET stock = stock - 1 WHERE stock > 0` sells
//! exactly ten, without any lock. What the lock adds: buyers are served in their order; they stand in a line instead
//! of colliding in the database; and there may be work outside it (a price, a payment) between the read and the write.
//!
//! A lock over a network can be lost while its holder sleeps. So each hold has a token, higher than all before, and the
//! database refuses a lower one than it has seen: in the write, and in the read before it, or a late writer could slip in
//! between.

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{Request, StatusCode};
use axum::routing::post;
use axum::{Extension, Router};
use rusqlite::{Connection, OptionalExtension, params};
use std::error::Error;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::JoinSet;
use tower::ServiceExt;
use tower_permit::layers::keyed::path_segment;
use tower_permit::{Coordinator, HeldKeys, KeyedMutexLayer};

const STOCK: i64 = 10;
const BUYERS: usize = 50;
const WORK: Duration = Duration::from_millis(20);

type BoxError = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<ExitCode, BoxError> {
    // In this process, or wherever the URL says.
    let url = std::env::var("PERMIT_URL").or_else(|_| std::env::var("REDIS_URL"));
    let permits = Coordinator::connect(url.as_deref().unwrap_or("memory:"))?;
    permits.check().await?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("shop.sqlite");
    let shop = Shop::open(std::env::var_os("SHOP_DB").unwrap_or(file.into()).as_ref())?;

    // The handler is the same in both. The second path segment, counted from 0, is the product's id.
    let buying = Router::new().route("/products/{id}/buy", post(buy));
    let without = buying.clone().with_state(shop.clone());
    let with = buying.with_state(shop.clone());
    let lock = KeyedMutexLayer::new(&permits, "buy", path_segment(1))?.reject_with_response();

    println!("{STOCK} pieces, {BUYERS} buyers at once");
    rush(without, 1).await?;
    let (_, sold, _) = shop.look(1).await?;
    println!("without the lock: {sold} sold of {STOCK}");

    rush(with.layer(lock), 2).await?;
    let (stock, sold, token) = shop.look(2).await?;
    println!("with the lock:    {sold} sold of {STOCK}");

    // Someone held the lock before the last one did, slept, and does not know that he has lost it.
    let refused = !shop.write(2, STOCK - 1, token - 1).await?;
    let says = if refused { "refused" } else { "NOT refused" };
    println!("a late writer with an old token: {says}");

    permits.shutdown(Duration::from_secs(5)).await?;
    let right = (stock, sold) == (0, STOCK) && refused;
    Ok(ExitCode::from(u8::from(!right)))
}

/// Everybody wants one.
async fn rush(app: Router, product: i64) -> Result<(), BoxError> {
    let mut buyers = JoinSet::new();
    for _ in 0..BUYERS {
        let request = Request::post(format!("/products/{product}/buy")).body(Body::empty())?;
        buyers.spawn(app.clone().oneshot(request));
    }
    while let Some(answer) = buyers.join_next().await {
        let status = answer??.status();
        if !matches!(status, StatusCode::OK | StatusCode::GONE) {
            println!("a buyer was told {status}");
        }
    }
    Ok(())
}

async fn buy(
    State(shop): State<Shop>,
    Path(product): Path<i64>,
    held: Option<Extension<HeldKeys>>,
) -> Result<&'static str, StatusCode> {
    let token = held.and_then(|held| held.token("buy")).unwrap_or(0);
    let token = i64::try_from(token).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)?;
    let broken = |error| {
        eprintln!("{error}");
        StatusCode::INTERNAL_SERVER_ERROR
    };
    // `None`, `false`: somebody with a newer token was here.
    let stock = shop.read(product, token).await.map_err(broken)?;
    let stock = stock.ok_or(StatusCode::CONFLICT)?;
    if stock <= 0 {
        return Err(StatusCode::GONE);
    }
    tokio::time::sleep(WORK).await;
    let written = shop
        .write(product, stock - 1, token)
        .await
        .map_err(broken)?;
    written.then_some("sold").ok_or(StatusCode::CONFLICT)
}

#[derive(Clone)]
struct Shop(Arc<Mutex<Connection>>);

impl Shop {
    /// One product for each way. Nothing is changed if they are there: another instance may be selling.
    fn open(path: &std::path::Path) -> Result<Self, BoxError> {
        let db = Connection::open(path)?;
        db.busy_timeout(Duration::from_secs(5))?;
        db.execute_batch(&format!(
            "CREATE TABLE IF NOT EXISTS product (id INTEGER PRIMARY KEY, stock INTEGER, sold INTEGER, token INTEGER);
             INSERT OR IGNORE INTO product VALUES (1, {STOCK}, 0, 0), (2, {STOCK}, 0, 0)"
        ))?;
        Ok(Self(Arc::new(Mutex::new(db))))
    }

    /// The stock, and from here on nobody with an older token can write. `None` if this one is too old.
    async fn read(&self, product: i64, token: i64) -> Result<Option<i64>, BoxError> {
        let sql = "UPDATE product SET token = ?2 WHERE id = ?1 AND token <= ?2 RETURNING stock";
        self.ask(move |db| {
            let read = db.query_row(sql, params![product, token], |row| row.get(0));
            read.optional()
        })
        .await
    }

    /// `false` if the token is too old.
    async fn write(&self, product: i64, stock: i64, token: i64) -> Result<bool, BoxError> {
        let sql = "UPDATE product SET stock = ?2, sold = sold + 1 WHERE id = ?1 AND token <= ?3";
        self.ask(move |db| Ok(db.execute(sql, params![product, stock, token])? == 1))
            .await
    }

    /// What is left, what was sold, and the highest token seen.
    async fn look(&self, product: i64) -> Result<(i64, i64, i64), BoxError> {
        let sql = "SELECT stock, sold, token FROM product WHERE id = ?1";
        self.ask(move |db| {
            db.query_row(sql, [product], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?))
            })
        })
        .await
    }

    /// SQLite blocks, so not on the threads that serve.
    async fn ask<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, BoxError> {
        let db = Arc::clone(&self.0);
        let answer = tokio::task::spawn_blocking(move || {
            job(&db.lock().unwrap_or_else(PoisonError::into_inner))
        });
        Ok(answer.await??)
    }
}
