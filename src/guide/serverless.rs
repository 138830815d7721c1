//! Serverless platforms, which freeze a process after its response.
//!
//! AWS Lambda, Cloud Run with CPU during requests only, and similar platforms stop a process between two requests: no
//! timer fires, and nothing is sent. This has two consequences for permits.
//!
//! # A release has to be acknowledged before the response
//!
//! Dropping a permit releases it in the background. If the process is frozen first, the permit stays in use until its
//! lease expires. [`Coordinator::flush`] resolves when the backend has acknowledged every release so far:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tower_permit::Error> {
//! use tower_permit::{Coordinator, Memory};
//!
//! # let permits = Coordinator::new(Memory::new());
//! async fn handle(permits: &Coordinator) -> Result<String, tower_permit::Error> {
//!     let permit = permits.semaphore("partner", 20)?.acquire().await?;
//!     let answer = "…".to_owned(); // the call to the partner
//!     drop(permit);
//!     permits.flush().await; // no permit is held or lingers when the response is returned
//!     Ok(answer)
//! }
//! # handle(&permits).await?;
//! # Ok(())
//! # }
//! ```
//!
//! [`Permit::release`] and [`MutexGuard::unlock`] wait for the acknowledgement of a single permit. A limit layer holds its
//! permit to the end of the response body, which such a platform sends after the function has returned. There, acquire in
//! the handler instead, or set [`release_at_response`] and flush outside the layer.
//!
//! A permit may also [linger](crate::CoordinatorBuilder::linger) for up to 10 ms after its release. `flush` ends that;
//! [`linger(Duration::ZERO)`](crate::CoordinatorBuilder::linger) disables it, which costs a round trip for each
//! acquisition.
//!
//! # A permit that is held across a freeze is lost
//!
//! Leases are not renewed while the process is frozen. A permit with an expired lease may belong to another node when the
//! process resumes: [`Permit::is_valid`] returns `false` at once, and writes under a lock need the
//! [fencing token](super::leases#tokens). Do not hold a permit from one invocation to the next.
//!
//! # The client between invocations
//!
//! Keep the coordinator in a `static`, so that its connection is reused. If the peer of a connection disappeared during the freeze, the
//! connection is replaced after one unanswered call (0.4 s by default), and the call is repeated.
//!
//! [`Coordinator::flush`]: crate::Coordinator::flush
//! [`Permit::release`]: crate::Permit::release
//! [`Permit::is_valid`]: crate::Permit::is_valid
//! [`MutexGuard::unlock`]: crate::MutexGuard::unlock
//! [`release_at_response`]: crate::DistributedConcurrencyLimitLayer::release_at_response
