//! What it needs in production, and in tests.
//!
//! # The Redis server
//!
//! * **Rights**: a dozen commands on the keys of one prefix, and one channel. [`Redis`] has the line for `ACL SETUSER`.
//! * **Prefix**: one for each application and environment. Two applications with one prefix share every queue whose
//!   name they both use.
//! * **Memory**: set `maxmemory-policy noeviction`. With any other a full server may throw permits away. What we keep
//!   is small: for each name in use one key to three, with 100 to 200 bytes for each permit, waiter and process; an idle name
//!   leaves nothing one lease later, after a crash an hour later.
//! * **Replicas and failover**: [`Redis::sentinel`](crate::Redis::sentinel) and [`Redis::cluster`](crate::Redis::cluster)
//!   follow a failover, and [their page](super::redis#with-sentinel) says what to set on the servers; with `Redis::new` let
//!   the address (a name, a proxy) move to the new master.
//! * A server of its own is not needed. Calls are short scripts, and none blocks.
//!
//! # At the start
//!
//! Nothing connects before the first permit is asked for, so a service can start before its Redis.
//! [`Coordinator::check`] connects now, tries every command and right that will be needed, and says in plain words what
//! is missing; it also warns in the log when the server evicts. Call it at the start. Whether its failure ends the
//! process is up to you: end it for [`Denied`](crate::ErrorKind::Denied) and
//! [`Incompatible`](crate::ErrorKind::Incompatible), which waiting does not mend; go on for
//! [`Unavailable`](crate::ErrorKind::Unavailable). (A right to the channel of a Redis that is missing is `Denied` too; permits
//! work without it, but who waits has to poll.)
//!
//! # At the end
//!
//! First no new requests, then the end of those under way, then [`Coordinator::shutdown`], so that what this process
//! held is free at once and not one lease later. Stay within the time that your platform gives before it kills: what you
//! give it, and about 2 s ([`outage_after`](crate::CoordinatorBuilder::outage_after) and a bit) if the backend does not answer.
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
//!     eprintln!("{error}"); // something held on for longer, and was cut off
//! }
//! # Ok(())
//! # }
//! ```
//!
//! On a platform that freezes the process after each response, [`Coordinator::flush`] takes the place of the shutdown: see
//! [`serverless`](super::serverless).
//!
//! (In a container it is `SIGTERM` that comes: listen for both, with `tokio::signal::unix`.)
//!
//! # Who holds, who waits
//!
//! [`Coordinator::inspect`] for a semaphore and [`Mutex::inspect`](crate::Mutex::inspect) for a mutex list the tickets
//! of all processes, with host and process id. [`Coordinator::evict`] and [`Mutex::evict`](crate::Mutex::evict) take
//! one out: a holder hears that it is lost within a third of its lease, a waiter goes to the end of the line. Evicting
//! stops nobody from working; it only lets the next one in. For the keys of a keyed layer: [`KeyedLayer::inspect`] and
//! [`KeyedLayer::evict`].
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tower_permit::Error> {
//! # use tower_permit::{Coordinator, Memory};
//! # let permits = Coordinator::new(Memory::new());
//! # let held = permits.semaphore("report", 20)?.acquire().await?;
//! let seen = permits.inspect("report").await?;
//! println!("{} in use, {} waiting", seen.in_use, seen.queued);
//! for holder in seen.holders {
//!     println!("{} on {}, lease {:?}", holder.ticket, holder.node, holder.lease_left);
//!     if holder.lease_left.is_zero() {
//!         permits.evict("report", &holder.ticket).await?;
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Logs, spans, numbers
//!
//! With `tracing`; a filter for `tower_permit` has it all:
//!
//! | level | what | when |
//! | --- | --- | --- |
//! | span `permit.wait` | `name`, `outcome`, `waited_ms` | each wait; `outcome` is `granted`, `cancelled`, or the kind of the error |
//! | `INFO` | a caller has been waiting: who holds, how many wait | after 2 s, then every 10 s for each name |
//! | `WARN` | the backend does not answer | once when an outage begins; one line at `INFO` when it ends |
//! | `WARN` | held for longer than `max_hold` | each time |
//! | `WARN` | pushes are refused, the server evicts | once for each; at a check |
//! | `ERROR` | a permit was lost while it was in use | each time: look at it |
//!
//! Names appear in their safe form. A name with a customer's number in it is in the log.
//!
//! [`Semaphore::stats`] has what this process has seen of a name: in use and waiting now; granted, lost, and refused by
//! kind since the name came into use. Read it for your metrics at their pace. Worth an alarm: `unavailable`, `lost`,
//! and a `timed_out` that rises.
//!
//! # Deploys
//!
//! Old and new processes run side by side for a while. They may differ:
//!
//! * in the **limit**: each process is let in only while fewer than *its own* limit are in use. So during the deploy
//!   the higher one is the bound; and a waiter with the lower one, at the head of the line, holds up those behind it.
//!   Lowering throws nobody out. Without a deploy: [`Semaphore::set_limit`](crate::Semaphore::set_limit);
//! * in the **lease**: each counts for its own permits;
//! * in the **name**: then they are two queues, and both together let in the sum. The same goes for the prefix and the
//!   server. For a limit that must hold, stop the old ones first.
//!
//! # Tests
//!
//! [`Memory`] needs no server, and clones of one stand for several processes. It follows tokio's clock, so with paused
//! time a wait of half a minute takes no time at all:
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
//! let there = Coordinator::new(memory).semaphore("export", 1)?; // as if in another process
//!
//! let held = here.acquire().await?;
//! let refused = there.acquire_timeout(Duration::from_secs(30)).await;
//! assert_eq!(refused.unwrap_err().kind(), ErrorKind::WaitTimeout);
//! assert!(held.is_valid(), "renewed meanwhile");
//! # Ok(())
//! # }
//! ```
//!
//! A static coordinator may be shared by tests that each have a runtime of their own: permits of an ended test are released
//! by the next one.
//!
//! To see what your service does when it loses a permit, evict it. To have no limit in some environment, without other
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
