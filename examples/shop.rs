//! A flash sale: ten items, fifty concurrent buyers, and a handler that reads the stock, works for 20 ms outside the
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
//! `PERMIT_URL` is the URL of any backend.
//!
//! **A constraint in the database is the first line of defence.** `UPDATE … SET stock = stock - 1 WHERE stock > 0` sells
//! exactly ten without any lock. The lock adds that buyers are served in order, that they wait in a queue instead of
//! colliding in the database, and that there may be work outside it (a price, a payment) between the read and the write.
//!
//! A distributed lock can be lost while its holder is paused. Each lock therefore has a fencing token, higher than all
//! before, and the database refuses a token lower than the highest it has seen: in the write, and in the read before it,
//! since a late writer could write in between.

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
    // In process, unless a URL is set.
    let url = std::env::var("PERMIT_URL").or_else(|_| std::env::var("REDIS_URL"));
    let permits = Coordinator::from_url(url.as_deref().unwrap_or("memory:"))?;
    permits.check().await?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("shop.sqlite");
    let shop = Shop::open(std::env::var_os("SHOP_DB").unwrap_or(file.into()).as_ref())?;

    // Both routers have the same handler.
    let buying = Router::new().route("/products/{id}/buy", post(buy));
    let without = buying.clone().with_state(shop.clone());
    let with = buying.with_state(shop.clone());
    // The key is the product as the handler parses it: `/products/2/buy`, `/products/02/buy` and `/products/+2/buy` have one key.
    // With the text of the path as the key, the last two would bypass the lock of the first.
    let product = path_segment(1).parse::<i64>();
    let lock = KeyedMutexLayer::new(&permits, "buy", product)?.reject_with_response();

    println!("{STOCK} items, {BUYERS} concurrent buyers");
    rush(without, 1).await?;
    let (_, sold, _) = shop.status(1).await?;
    println!("without the lock: {sold} sold of {STOCK}");

    rush(with.route_layer(lock), 2).await?;
    let (stock, sold, token) = shop.status(2).await?;
    println!("with the lock:    {sold} sold of {STOCK}");

    // An earlier holder that was paused, and has not noticed that it lost the lock.
    let refused = !shop.write(2, STOCK - 1, token - 1).await?;
    let result = if refused { "refused" } else { "NOT refused" };
    println!("a late writer with an old token: {result}");

    permits.shutdown(Duration::from_secs(5)).await?;
    let correct = (stock, sold) == (0, STOCK) && refused;
    Ok(ExitCode::from(u8::from(!correct)))
}

/// All buyers at once, with different spellings of the product.
async fn rush(app: Router, product: i64) -> Result<(), BoxError> {
    let mut buyers = JoinSet::new();
    for buyer in 0..BUYERS {
        let prefix = ["", "0", "+"][buyer % 3];
        let path = format!("/products/{prefix}{product}/buy");
        buyers.spawn(
            app.clone()
                .oneshot(Request::post(path).body(Body::empty())?),
        );
    }
    while let Some(response) = buyers.join_next().await {
        let status = response??.status();
        if !matches!(status, StatusCode::OK | StatusCode::GONE) {
            println!("a buyer got {status}");
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
    let internal = |error| {
        eprintln!("{error}");
        StatusCode::INTERNAL_SERVER_ERROR
    };
    // `None`, `false`: a holder with a newer token has read the stock.
    let stock = shop.read(product, token).await.map_err(internal)?;
    let stock = stock.ok_or(StatusCode::CONFLICT)?;
    if stock <= 0 {
        return Err(StatusCode::GONE);
    }
    tokio::time::sleep(WORK).await;
    let written = shop
        .write(product, stock - 1, token)
        .await
        .map_err(internal)?;
    written.then_some("sold").ok_or(StatusCode::CONFLICT)
}

#[derive(Clone)]
struct Shop(Arc<Mutex<Connection>>);

impl Shop {
    /// Opens the database with one product for each rush. Existing products are not changed, since another instance may
    /// be selling them.
    fn open(path: &std::path::Path) -> Result<Self, BoxError> {
        let db = Connection::open(path)?;
        db.busy_timeout(Duration::from_secs(5))?;
        db.execute_batch(&format!(
            "CREATE TABLE IF NOT EXISTS product (id INTEGER PRIMARY KEY, stock INTEGER, sold INTEGER, token INTEGER);
             INSERT OR IGNORE INTO product VALUES (1, {STOCK}, 0, 0), (2, {STOCK}, 0, 0)"
        ))?;
        Ok(Self(Arc::new(Mutex::new(db))))
    }

    /// Returns the stock, and refuses writes with an older token from now on. `None` if this token is too old.
    async fn read(&self, product: i64, token: i64) -> Result<Option<i64>, BoxError> {
        let sql = "UPDATE product SET token = ?2 WHERE id = ?1 AND token <= ?2 RETURNING stock";
        self.run(move |db| {
            let read = db.query_row(sql, params![product, token], |row| row.get(0));
            read.optional()
        })
        .await
    }

    /// Writes the stock. Returns `false` if the token is too old.
    async fn write(&self, product: i64, stock: i64, token: i64) -> Result<bool, BoxError> {
        let sql = "UPDATE product SET stock = ?2, sold = sold + 1 WHERE id = ?1 AND token <= ?3";
        self.run(move |db| Ok(db.execute(sql, params![product, stock, token])? == 1))
            .await
    }

    /// Returns the stock, the number of items sold, and the highest token seen.
    async fn status(&self, product: i64) -> Result<(i64, i64, i64), BoxError> {
        let sql = "SELECT stock, sold, token FROM product WHERE id = ?1";
        self.run(move |db| {
            db.query_row(sql, [product], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?))
            })
        })
        .await
    }

    /// Runs a query on another thread, since SQLite blocks.
    async fn run<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, BoxError> {
        let db = Arc::clone(&self.0);
        let result = tokio::task::spawn_blocking(move || {
            query(&db.lock().unwrap_or_else(PoisonError::into_inner))
        });
        Ok(result.await??)
    }
}
