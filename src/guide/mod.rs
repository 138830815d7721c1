//! The guide: prose only, one page per question.
//!
//! | question | page |
//! | --- | --- |
//! | A limit, a limit per key, a mutex or a database constraint? Which backend? | [`choosing`] |
//! | In which order are layers stacked? How do `Balance`, `Buffer` and others work with a distributed limit? | [`layer_order`] |
//! | In which order are permits granted? What do hand-off and linger save, and what do they cost? | [`queue`] |
//! | What is guaranteed while a permit or a lock is held? | [`leases`] |
//! | What happens when something fails, and for how long? | [`failures`] |
//! | What is needed in production, and in tests? | [`operations`] |
//! | What about platforms that freeze a process after its response? | [`serverless`] |
//! | What about CPU-bound work, blocked runtimes and several runtimes in one process? | [`cpu_bound`] |
//! | What does a backend guarantee, what can it lose, and when is it the right choice? | [`redis`], [`redlock`], [`etcd`], [`zookeeper`] |
//! | What does each fault cost with each backend, and which test shows it? | [`guarantees`] |
//!
//! Times are stated for the default lease of 10 s. They scale with the lease that you
//! [set](crate::CoordinatorBuilder::lease).

pub mod choosing;
pub mod cpu_bound;
pub mod etcd;
pub mod failures;
pub mod guarantees;
pub mod layer_order;
pub mod leases;
pub mod operations;
pub mod queue;
pub mod redis;
pub mod redlock;
pub mod serverless;
pub mod zookeeper;
