//! Shared by the integration tests: coordinators with the settings of the test run, controllable inner services, unusual
//! names.

pub mod modes;
pub mod names;
#[cfg(feature = "redis")]
pub mod redis;
pub mod services;
pub mod tasks;
