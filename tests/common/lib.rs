//! Shared by the integration tests: coordinators with the settings of the test run, and controllable inner services.

pub mod modes;
pub mod services;
