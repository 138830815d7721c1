//! tower-permit
#![forbid(unsafe_code)]
#![warn(missing_docs, missing_debug_implementations, unreachable_pub)]
#![cfg_attr(docsrs, feature(doc_cfg))]
#![allow(dead_code, unused_imports)] // STUB: goes when the parts are joined

mod backend;
mod clock;
mod coordinator;
mod error;
mod gate;
pub mod layers;
mod name;
mod permit;
mod semaphore;

pub use backend::memory::Memory;
#[cfg(feature = "redis")]
pub use backend::redis::Redis;
pub use backend::{Backend, Inspection, Promises, TicketInfo};
pub use coordinator::{Coordinator, CoordinatorBuilder};
pub use error::{BoxError, Error, ErrorKind};
pub use layers::limit::{DistributedConcurrencyLimit, DistributedConcurrencyLimitLayer};
pub use permit::{Permit, PermitHandle};
pub use semaphore::{Semaphore, Stats};
