//! CPU-bound work, blocked runtimes and several runtimes in one process.
//!
//! # What runs where
//!
//! One task of the coordinator, the driver, makes all calls to the backend: it acquires, renews and releases for all
//! names. By default it runs on the runtime of a caller, as does the connection. When that runtime ends, the driver moves
//! to the runtime of another caller, and connects anew. Where no runtime is left, the next caller's takes over; until then
//! releases wait.
//!
//! # What a blocked runtime does
//!
//! A task that computes for long, or calls something that blocks, keeps its worker thread from everything else. If all
//! workers of the driver's runtime are blocked:
//!
//! * callers on that runtime wait, as they would for any timer or socket;
//! * callers on *other* runtimes wait as well: for 0.25 s, after which another runtime takes the driver over, and for a new
//!   connection, if the old one is on the blocked runtime;
//! * leases are not renewed. After two thirds of a lease (6.7 s by default) permits are in doubt, and after a lease they
//!   belong to other nodes: mutexes are lost, and [`Permit::is_valid`] is `false`.
//!
//! After the runtime goes on, the time that the process lost does not count as an outage of the backend.
//!
//! # What to do
//!
//! Work that computes belongs on [`spawn_blocking`](tokio::task::spawn_blocking) or a thread pool such as rayon. Where
//! that cannot be guaranteed, give the coordinator a thread of its own:
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
//! Leases are then renewed while every thread of the application computes, and runtimes in one process do not depend on
//! each other. The price is a hop between threads for each acquisition that needs a round trip (about 20 µs), and none
//! for one that is served by [hand-off or linger](super::queue). A process with a runtime for such things already passes
//! its handle to [`CoordinatorBuilder::runtime`] instead.
//!
//! Tests with one static coordinator and a runtime for each test need neither: the driver moves from test to test.
//!
//! [`Permit::is_valid`]: crate::Permit::is_valid
//! [`CoordinatorBuilder::runtime`]: crate::CoordinatorBuilder::runtime
