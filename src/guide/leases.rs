//! What is guaranteed while a permit or a lock is held: leases, what is in doubt and what is lost, fencing tokens, and what a
//! paused process can still do.
//!
//! # Leases
//!
//! A process that crashes cannot release what it holds. Therefore its permits and queue entries live under a **lease**: 10 s
//! unless [set](crate::CoordinatorBuilder::lease). The process renews it in the background every third of a lease, however long a
//! request runs. Each process has its own lease.
//!
//! A short lease frees the permits of a crashed process sooner. A long lease tolerates longer pauses: a process can be paused or
//! cut off for about two thirds of a lease, at any moment, without losing anything.
//!
//! # In doubt, and lost
//!
//! | | a [`Permit`] of a semaphore | a [`MutexGuard`] |
//! | --- | --- | --- |
//! | confirmed within the last lease | [`is_valid`](crate::Permit::is_valid) | [`is_valid`](crate::MutexGuard::is_valid) |
//! | not confirmed for a lease (cut off, paused, the server is down) | **in doubt**: `is_valid` is `false`, and may become `true` again when the backend answers | **lost** at that moment, by a timer, and for good |
//! | the backend replies that it is gone (expired, evicted, flushed) | lost, for good | lost, for good |
//! | held for longer than `max_hold` | lost | – |
//! | still held at the end of a [shutdown](crate::Coordinator::shutdown) | lost | lost |
//!
//! The difference has a reason: a limit tolerates one request too many for a short time, while a mutex exists to prevent two
//! holders. The time is that of a monotonic clock which counts suspend (on Linux and Android), from before the confirming
//! call was sent. So a process never considers a permit valid for longer than the backend does.
//!
//! Work while the lock is held, and stop when it is lost:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tower_permit::Error> {
//! use tower_permit::{Coordinator, Memory};
//!
//! # async fn write_report(token: u64) {}
//! # let permits = Coordinator::new(Memory::new());
//! let guard = permits.mutex("report:2026-11")?.lock().await?;
//! tokio::select! {
//!     () = write_report(guard.token()) => {}
//!     error = guard.lost() => return Err(error),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The layers do this for a request. By default a [`KeyedMutexLayer`] ends the request and a limit lets it continue;
//! [`OnLost`] changes that.
//!
//! # What a paused process can still do
//!
//! A process cannot be stopped from outside. One that was paused (by a debugger, a frozen container, swapping) continues where
//! it was. There is always a moment between the check of `is_valid` and the write, and a write that was sent before the pause
//! may arrive after it. By then another process may hold the lock. No lock over a network can prevent that.
//!
//! # Tokens
//!
//! Each grant of a mutex carries a [fencing token](crate::MutexGuard::token), a number that is higher than all before. Let
//! the data store remember the highest token and reject a lower one:
//!
//! ```sql
//! UPDATE report SET text = ?, token = ? WHERE id = ? AND token < ?
//! ```
//!
//! If no row was changed, a newer holder has written: give up. (With `<` a holder can write once, with `<=` any number of times.)
//!
//! If the new value depends on what you **read**, store the token before you read. Otherwise a paused holder may write between
//! your read and your write: its token is the highest so far, and you overwrite its change.
//!
//! ```
//! use rusqlite::{Connection, params};
//!
//! /// Sells one piece. Returns `false` if there is none, or if a holder with a newer token was here.
//! fn sell(db: &Connection, product: i64, token: u64) -> rusqlite::Result<bool> {
//!     let token = token as i64; // below 2^63
//!     // From here on a holder with an older token cannot write.
//!     let fenced = db.execute(
//!         "UPDATE product SET token = ?1 WHERE id = ?2 AND token < ?1",
//!         params![token, product],
//!     )?;
//!     if fenced == 0 {
//!         return Ok(false);
//!     }
//!     let stock: i64 =
//!         db.query_row("SELECT stock FROM product WHERE id = ?1", [product], |row| row.get(0))?;
//!     // … work that takes time …
//!     let written = db.execute(
//!         "UPDATE product SET stock = ?1 WHERE id = ?2 AND token = ?3 AND ?1 >= 0",
//!         params![stock - 1, product, token],
//!     )?;
//!     Ok(written == 1)
//! }
//!
//! # fn main() -> rusqlite::Result<()> {
//! # let db = Connection::open_in_memory()?;
//! # db.execute_batch("CREATE TABLE product (id INTEGER PRIMARY KEY, stock INTEGER, token INTEGER);
//! #                   INSERT INTO product VALUES (7, 1, 0)")?;
//! assert!(sell(&db, 7, 11)?);
//! assert!(!sell(&db, 7, 10)?, "an old token");
//! assert!(!sell(&db, 7, 12)?, "sold out");
//! # Ok(())
//! # }
//! ```
//!
//! With Redis a token is the server's time in microseconds, or the previous token plus one if that is more. So tokens keep
//! increasing over restarts and flushes of the server, unless its clock falls behind in between. With etcd and ZooKeeper it is
//! the number of a write. All of them are multiplied by 1,024 to leave room for [hand-offs](super::queue). A token needs 64 bits;
//! a number in JSON has 53. Semaphores have no tokens. Operations that cannot compare numbers (an e-mail, a payment at a
//! partner) cannot be fenced; give them an idempotency key.
//!
//! # The maximum hold
//!
//! Renewal continues as long as the guard lives, even if the work hangs. `max_hold` ends that: the permit is released, the
//! holder gets [`HeldTooLong`](crate::ErrorKind::HeldTooLong), and a warning is logged. In the layers, the keyed ones too, it is
//! 10 min unless [set](crate::DistributedConcurrencyLimitLayer::max_hold); for a [`Semaphore`](crate::Semaphore) it is
//! unbounded unless [set](crate::Semaphore::max_hold). A [`Mutex`](crate::Mutex) without a layer has none: wrap the work in a
//! timeout.
//!
//! # The same lock twice
//!
//! Two requests of one process are always two holders, so a task that locks a mutex that it already holds waits for itself.
//! [`lock_timeout`](crate::Mutex::lock_timeout) ends that wait with an error that names the cause. To share a hold on purpose, use
//! [`MutexGuard::reenter`](crate::MutexGuard::reenter): a second guard of the same hold, with the same token; dropping the last
//! one unlocks. Inside a keyed layer the request's extensions contain [`HeldKeys`](crate::HeldKeys), by which an inner layer of
//! the same name and key re-enters.
//!
//! # Several at once
//!
//! [`Coordinator::lock_all`](crate::Coordinator::lock_all) locks up to 64 names, each once, in an order that all processes
//! share, so `[a, b]` and `[b, a]` never deadlock. It acquires them one after the other: while it waits for the second it
//! holds the first, and each costs a round trip. If one fails or the wait ends, those already acquired are released. The set is
//! lost when the first of it is lost; each guard has its own token.
//!
//! [`Permit`]: crate::Permit
//! [`MutexGuard`]: crate::MutexGuard
//! [`KeyedMutexLayer`]: crate::KeyedMutexLayer
//! [`OnLost`]: crate::layers::OnLost
