//! The guide: prose only, a page for each question.
//!
//! | the question | the page |
//! | --- | --- |
//! | A limit, a limit for each key, a mutex, or a constraint in the database? Which backend? | [`choosing`] |
//! | Which layer goes outside which? What do `Balance`, `Buffer` and the others do with a limit over a network? | [`order`] |
//! | Who gets the next permit? What do hand-off and linger save, and what do they cost? | [`queue`] |
//! | What may I rely on while I hold something? | [`leases`] |
//! | What happens when something breaks, and for how long? | [`failures`] |
//! | What does it need in production, and in tests? | [`running`] |
//! | What about platforms that freeze a process after its response? | [`serverless`] |
//! | What about CPU-bound work, blocked runtimes and several runtimes in one process? | [`cpu_bound`] |
//! | What does a backend promise, what can it lose when, and when is it the one to choose? | [`redis`], [`redlock`], [`etcd`], [`zookeeper`] |
//! | Which fault costs what, over which backend, and which test shows it? | [`guarantees`] |
//!
//! Times are written for the default lease of 10 s. They follow the lease that you
//! [set](crate::CoordinatorBuilder::lease).

pub mod choosing;
pub mod cpu_bound;
pub mod etcd;
pub mod failures;
pub mod guarantees;
pub mod leases;
pub mod order;
pub mod queue;
pub mod redis;
pub mod redlock;
pub mod running;
pub mod serverless;
pub mod zookeeper;
