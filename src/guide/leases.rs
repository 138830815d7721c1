//! What you may rely on while you hold something: leases, what is in doubt and what is lost, tokens, and what a paused
//! process can still do.
//!
//! # Leases
//!
//! A process that dies cannot give back what it holds. So everything it has, permits and places in line, lives under a
//! **lease**: 10 s unless [set](crate::CoordinatorBuilder::lease). The process renews it in the background every third
//! of a lease; nobody has to do anything for that, however long a request runs. Each process has its own lease.
//!
//! A lease that is short frees sooner what a dead process held. A lease that is long bears longer pauses: a process may
//! be stopped or cut off for about two thirds of a lease, at any moment, and loses nothing.
//!
//! # In doubt, and lost
//!
//! | | a [`Permit`] of a semaphore | a [`MutexGuard`] |
//! | --- | --- | --- |
//! | confirmed within the last lease | [`is_valid`](crate::Permit::is_valid) | [`is_valid`](crate::MutexGuard::is_valid) |
//! | not confirmed for a lease (cut off, paused, the server is down) | **in doubt**: `is_valid` is `false`, and may be `true` again when the backend answers | **lost**, at that moment, by a timer of its own, and for good |
//! | the backend says that it is gone (expired, evicted, flushed) | lost, for good | lost, for good |
//! | held for longer than `max_hold` | lost | – |
//! | taken back by a [shutdown](crate::Coordinator::shutdown) | lost | lost |
//!
//! Why the difference: one request too many for a short time is what a limit can bear; two holders are what a mutex is
//! there to prevent. The time is that of a monotonic clock which counts when the machine sleeps (on Linux and Android),
//! from before the call that confirmed was sent. So this process never believes that it holds for longer than the
//! backend does.
//!
//! Work for as long as the lock is held, and stop when it is not:
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
//! A layer does this for you. A [`KeyedMutexLayer`] ends the request by default, a limit lets it go on by default;
//! [`OnLost`] is the choice.
//!
//! # What a paused process can still do
//!
//! Nothing can stop a process from outside. One that was paused (a debugger, a container that was frozen, a swap storm)
//! goes on where it was: between the look at `is_valid` and the write there is always a moment, and a write that was
//! sent before the pause may arrive after it. Another one holds the lock by then. No lock over a network can prevent
//! that, whatever it promises.
//!
//! # Tokens
//!
//! What helps is a number. Each time a mutex is granted it comes with a [token](crate::MutexGuard::token) that is
//! higher than all before it. Let the place that is written to remember the highest one, and refuse a lower one:
//!
//! ```sql
//! UPDATE report SET text = ?, token = ? WHERE id = ? AND token < ?
//! ```
//!
//! No row changed: somebody newer was there, so give up. (With `<` a hold writes once; with `<=` as often as it likes.)
//!
//! If the new value depends on what you **read**, put the token there before you read. Otherwise the paused holder may
//! write between your read and your write: his token is the highest so far, and you overwrite what he did.
//!
//! ```
//! use rusqlite::{Connection, params};
//!
//! /// Sells one. `false`: there is none, or somebody with a newer token was here.
//! fn sell(db: &Connection, product: i64, token: u64) -> rusqlite::Result<bool> {
//!     let token = token as i64; // below 2^63
//!     // From here on nobody with an older token can write.
//!     let fenced = db.execute(
//!         "UPDATE product SET token = ?1 WHERE id = ?2 AND token < ?1",
//!         params![token, product],
//!     )?;
//!     if fenced == 0 {
//!         return Ok(false);
//!     }
//!     let stock: i64 =
//!         db.query_row("SELECT stock FROM product WHERE id = ?1", [product], |row| row.get(0))?;
//!     // … whatever takes time …
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
//! assert!(!sell(&db, 7, 10)?, "too old");
//! assert!(!sell(&db, 7, 12)?, "sold out");
//! # Ok(())
//! # }
//! ```
//!
//! With Redis a token is the server's time in microseconds, or the last one plus one if that is more. So tokens go on
//! rising over restarts and flushes of the server, as long as its clock does not fall behind in between. With etcd and
//! ZooKeeper it is the number of a write. All of them are multiplied by 1,024, to leave room for permits that go
//! [from hand to hand](super::queue): 64 bits are needed, and a number in JSON has 53. Semaphores have none. What
//! cannot compare numbers (a mail, a payment at a partner) cannot be fenced; give it a key of its own by which it
//! recognises a repetition.
//!
//! # How long at most
//!
//! Renewal goes on as long as the guard lives, also when the work hangs. `max_hold` ends that: the permit goes back,
//! the holder hears [`HeldTooLong`](crate::ErrorKind::HeldTooLong), one warning says so. In the layers it is 10 min
//! unless [set](crate::DistributedConcurrencyLimitLayer::max_hold), keyed ones too; for a
//! [`Semaphore`](crate::Semaphore) unbounded unless [set](crate::Semaphore::max_hold). A [`Mutex`](crate::Mutex)
//! without a layer has none: put a timeout round the work.
//!
//! # The same lock twice
//!
//! Two requests of one process are two holders, always; so a task that locks what it has locked waits for itself. A
//! [`lock_timeout`](crate::Mutex::lock_timeout) ends that with an error that says so. On purpose, use
//! [`MutexGuard::reenter`](crate::MutexGuard::reenter): a second guard of the same hold, with the same token; the last
//! one out unlocks. Inside a keyed layer the request's extensions have [`HeldKeys`](crate::HeldKeys), and an inner
//! layer of the same name and key enters by them.
//!
//! # Several at once
//!
//! [`Coordinator::lock_all`](crate::Coordinator::lock_all) takes up to 64 names, each once, in one order that all
//! processes share, so that `[a, b]` and `[b, a]` never wait for each other for ever. It takes them one after the
//! other: while it waits for the second it holds the first, and each costs a trip. What was taken goes back when one
//! fails or the wait ends. The set is lost when the first of it is; each guard has its own token.
//!
//! [`Permit`]: crate::Permit
//! [`MutexGuard`]: crate::MutexGuard
//! [`KeyedMutexLayer`]: crate::KeyedMutexLayer
//! [`OnLost`]: crate::layers::OnLost
