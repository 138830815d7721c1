//! CPU-bound work, blocked runtimes and several runtimes in one process.
//!
//! # What runs where
//!
//! One task of the coordinator, the driver, makes all calls to the backend: it acquires, renews and releases for all
//! names. By default the driver and its connection run on the runtime of a caller. When that runtime ends, the driver moves to
//! the runtime of another caller and reconnects. If no runtime is left, it starts again on the runtime of the next caller; until
//! then releases are not sent.
//!
//! # What a blocked runtime does
//!
//! A task that computes for a long time, or calls a blocking function, occupies its worker thread. If all workers of the
//! driver's runtime are blocked:
//!
//! * callers on that runtime wait, as they would for any timer or socket;
//! * callers on *other* runtimes wait for 0.25 s, after which the driver moves to another runtime, and for a new connection if
//!   the existing one belongs to the blocked runtime;
//! * leases are not renewed. After two thirds of a lease (6.7 s by default) at the earliest, and after a lease at the latest,
//!   other nodes may be granted the permits: mutexes are lost, and [`Permit::is_valid`] returns `false`.
//!
//! The time for which the process was blocked does not count as an outage of the backend.
//!
//! # What to do
//!
//! Run CPU-bound work on [`spawn_blocking`](tokio::task::spawn_blocking) or on a thread pool such as rayon. Where that cannot be
//! guaranteed, give the coordinator a thread of its own:
//!
//! ```
//! # fn main() -> Result<(), tower_permit::Error> {
//! use tower_permit::{Coordinator, Memory};
//!
//! let permits = Coordinator::builder(Memory::new()).dedicated_thread().build()?;
//! # Ok(())
//! # }
//! ```
//!
//! Leases are then renewed while every thread of the application computes, and several runtimes in one process do not depend on
//! each other. The price is a switch between threads for each acquisition that needs a round trip (about 20 µs), and nothing
//! for one that is served by [hand-off or linger](super::queue). If the process already has a runtime for such purposes, pass
//! its handle to [`CoordinatorBuilder::runtime`] instead.
//!
//! Tests with one static coordinator and a runtime per test need neither: the driver moves from test to test.
//!
//! [`Permit::is_valid`]: crate::Permit::is_valid
//! [`CoordinatorBuilder::runtime`]: crate::CoordinatorBuilder::runtime
