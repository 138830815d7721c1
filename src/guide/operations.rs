//! Running it: the Redis server, start and end of a process, inspection, logs and metrics, deployments, tests.
//!
//! # The Redis server
//!
//! * **Rights**: about two dozen commands on the keys of one prefix, and one channel. [`Redis`] has the line for `ACL SETUSER`.
//! * **Prefix**: one for each application and environment. Two applications with the same prefix share the queue of every
//!   name that both use.
//! * **Memory**: set `maxmemory-policy noeviction`. With any other policy a full server may evict permits. The crate stores
//!   little: one to three keys for each name in use, with 100 to 200 bytes for each permit, waiter and process. An idle name
//!   leaves nothing one lease later; after a crash, an hour later.
//! * **Replicas and failover**: [`Redis::sentinel`](crate::Redis::sentinel) and [`Redis::cluster`](crate::Redis::cluster)
//!   follow a failover, and [their page](super::redis#with-sentinel) lists the settings of the servers. With `Redis::new` let
//!   the address (a name, a proxy) move to the new master.
//! * A dedicated server is not necessary. Calls are short scripts, and none blocks.
//!
//! # At the start
//!
//! The coordinator connects when the first permit is acquired, so a service can start before its Redis.
//! [`Coordinator::check`] connects immediately, tries every command and right that will be needed, and reports what
//! is missing; it also logs a warning if the server evicts keys. Call it at the start. Whether its failure ends the
//! process is up to the application: end it for [`Denied`](crate::ErrorKind::Denied) and
//! [`Incompatible`](crate::ErrorKind::Incompatible), which do not resolve by waiting; continue for
//! [`Unavailable`](crate::ErrorKind::Unavailable). (A missing right to the channel of a Redis is `Denied` too; permits
//! work without it, but waiters have to poll.)
//!
//! # At the end
//!
//! First stop accepting requests, then let the running ones finish, then call [`Coordinator::shutdown`], so that the permits of
//! this process are free at once instead of one lease later. Stay within the grace period of the platform: `shutdown` takes
//! at most the time given to it, and about 2 s ([`outage_after`](crate::CoordinatorBuilder::outage_after) and a little more) if
//! the backend does not answer.
//!
//! ```no_run
//! use axum::{Router, routing::get};
//! use std::time::Duration;
//! use tower_permit::{Coordinator, DistributedConcurrencyLimitLayer, Memory};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let permits = Coordinator::new(Memory::new()); // or Redis
//! permits.check().await?;
//! let limit = DistributedConcurrencyLimitLayer::new(permits.semaphore("report", 20)?);
//! let app: Router =
//!     Router::new().route("/report", get(|| async { "…" })).layer(limit.reject_with_response());
//!
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
//! let interrupted = async { drop(tokio::signal::ctrl_c().await) };
//! axum::serve(listener, app).with_graceful_shutdown(interrupted).await?;
//!
//! if let Err(error) = permits.shutdown(Duration::from_secs(10)).await {
//!     eprintln!("{error}"); // a permit was held for longer, and was released
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A container is stopped by `SIGTERM`: listen for both signals, with `tokio::signal::unix`.
//!
//! On a platform that freezes the process after each response, [`Coordinator::flush`] replaces the shutdown: see
//! [`serverless`](super::serverless).
//!
//! # Holders and waiters
//!
//! [`Coordinator::inspect`] for a semaphore and [`Mutex::inspect`](crate::Mutex::inspect) for a mutex list the tickets
//! of all processes, with host and process id. [`Coordinator::evict`] and [`Mutex::evict`](crate::Mutex::evict) remove
//! one: a holder learns within a third of its lease that its permit is lost, a waiter moves to the end of the queue. Evicting
//! a holder does not stop its work; it only admits the next one. For the keys of a keyed layer: [`KeyedLayer::inspect`] and
//! [`KeyedLayer::evict`].
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tower_permit::Error> {
//! # use tower_permit::{Coordinator, Memory};
//! # let permits = Coordinator::new(Memory::new());
//! # let held = permits.semaphore("report", 20)?.acquire().await?;
//! let report = permits.inspect("report").await?;
//! println!("{} in use, {} queued", report.in_use, report.queued);
//! for holder in report.holders {
//!     println!("{} on {}, lease {:?}", holder.ticket, holder.node, holder.lease_left);
//!     if holder.lease_left.is_zero() {
//!         permits.evict("report", &holder.ticket).await?;
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Logs, spans and metrics
//!
//! Through `tracing`; a filter for `tower_permit` selects all of it:
//!
//! | level | what | when |
//! | --- | --- | --- |
//! | span `permit.wait` | `name`, `outcome`, `waited_ms` | each wait; `outcome` is `granted`, `cancelled`, or the kind of the error |
//! | `INFO` | a caller has been waiting for long: the holders, the number of waiters | after 2 s, then every 10 s for each name |
//! | `WARN` | the backend does not answer | once when an outage begins; one line at `INFO` when it ends |
//! | `WARN` | a permit was held for longer than `max_hold` | each time |
//! | `WARN` | a response was not read for `stall_timeout` | each time |
//! | `WARN` | pushes are refused; the server evicts keys | once each; during a check |
//! | `ERROR` | a permit was lost while it was in use | each time: investigate |
//!
//! Names appear in their encoded form. If a name contains a customer's number, so does the log.
//!
//! [`Semaphore::stats`] and [`Coordinator::stats`](crate::Coordinator::stats) return what this process has counted for a name,
//! [`Coordinator::names`](crate::Coordinator::names) the same for all names in use, mutexes and keys included: permits in use
//! and waiters now; grants, losses, and rejections by kind since the name came into use. Export it to your metrics at any
//! interval. Alert on `unavailable`, `lost`, and a `timed_out` that rises.
//!
//! # Deployments
//!
//! Old and new processes run side by side for a while. They may differ:
//!
//! * in the **limit**: a ticket is granted only while fewer permits than the limit of *its own* process are in use. So during the
//!   deployment the higher limit is the bound, and a waiter with the lower limit at the head of the queue blocks those behind it.
//!   Lowering a limit evicts no holder. Without a deployment: [`Semaphore::set_limit`](crate::Semaphore::set_limit);
//! * in the **lease**: each process uses its own;
//! * in the **name**: then there are two queues, which together admit the sum. The same goes for the prefix and the
//!   server. For a limit that must hold, stop the old processes first.
//!
//! # Tests
//!
//! [`Memory`] needs no server, and clones of one value act as several processes. It follows tokio's clock, so with paused
//! time a wait of half a minute takes no real time:
//!
//! ```
//! use std::time::Duration;
//! use tower_permit::{Coordinator, ErrorKind, Memory};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tower_permit::Error> {
//! tokio::time::pause(); // or #[tokio::test(start_paused = true)]; the feature `test-util` of tokio
//!
//! let memory = Memory::new();
//! let here = Coordinator::new(memory.clone()).semaphore("export", 1)?;
//! let there = Coordinator::new(memory).semaphore("export", 1)?; // acts as another process
//!
//! let held = here.acquire().await?;
//! let rejected = there.acquire_timeout(Duration::from_secs(30)).await;
//! assert_eq!(rejected.unwrap_err().kind(), ErrorKind::WaitTimeout);
//! assert!(held.is_valid(), "renewed meanwhile");
//! # Ok(())
//! # }
//! ```
//!
//! A static coordinator can be shared by tests that each have their own runtime: permits of a test that has ended are released
//! by the next one.
//!
//! To see what a service does when it loses a permit, evict it. To disable a limit in some environment without changing
//! types: [`enabled(false)`](crate::DistributedConcurrencyLimitLayer::enabled).
//!
//! [`Redis`]: crate::Redis
//! [`Memory`]: crate::Memory
//! [`Coordinator::check`]: crate::Coordinator::check
//! [`Coordinator::flush`]: crate::Coordinator::flush
//! [`Coordinator::shutdown`]: crate::Coordinator::shutdown
//! [`Coordinator::inspect`]: crate::Coordinator::inspect
//! [`Coordinator::evict`]: crate::Coordinator::evict
//! [`KeyedLayer::inspect`]: crate::layers::keyed::KeyedLayer::inspect
//! [`KeyedLayer::evict`]: crate::layers::keyed::KeyedLayer::evict
//! [`Semaphore::stats`]: crate::Semaphore::stats
