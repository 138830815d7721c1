//! The guide: prose only, a page for each question.
//!
//! | the question | the page |
//! | --- | --- |
//! | A limit, a limit for each key, a mutex, or a constraint in the database? Which backend? | [`choosing`] |
//! | Which layer goes outside which? What do `Balance`, `Buffer` and the others do with a limit over a network? | [`order`] |
//! | What may I rely on while I hold something? | [`leases`] |
//! | What happens when something breaks, and for how long? | [`failures`] |
//! | What does it need in production, and in tests? | [`running`] |
//! | What does ZooKeeper promise, and what does it cost? | [`zookeeper`] |
//!
//! Times are written for the default lease of 10 s. They follow the lease that you
//! [set](crate::CoordinatorBuilder::lease).

pub mod choosing;
pub mod failures;
pub mod leases;
pub mod order;
pub mod running;
pub mod zookeeper;
