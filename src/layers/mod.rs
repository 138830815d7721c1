//! Middleware that acquires a permit for each request.
//!
//! | module | services | each request holds |
//! | --- | --- | --- |
//! | [`limit`] | [`DistributedConcurrencyLimit`](limit::DistributedConcurrencyLimit) | one of `limit` permits |
//! | [`keyed`] | [`KeyedMutex`](keyed::KeyedMutex) | the only permit of its key |
//! | | [`KeyedConcurrencyLimit`](keyed::KeyedConcurrencyLimit) | one of `limit` permits of its key |
//!
//! Both modules are guides. A [`Deadline`] bounds the wait of a single request. The other types in this module are the two
//! policies of a layer, which are independent of each other:
//!
//! * **When the permit is released** ([`HoldPolicy`]): [`UntilBodyEnd`], the default of both limits, or [`AtResponse`],
//!   the default of the keyed mutex. With `UntilBodyEnd` the response must implement [`HoldPermit`]; the body that holds the
//!   permit is a [`PermitBody`].
//! * **How a request is rejected** ([`RejectionPolicy`]): [`AsError`], the default; [`AsErrorWithHandle`], which also adds
//!   a handle of the permit to the request's extensions; or [`AsResponse`], with a [`RejectionBody`].

mod deadline;
mod held_future;
mod held_permits;
pub mod keyed;
pub mod limit;
mod oneshot;
mod rejection;
mod response;
mod settings;

pub use deadline::Deadline;
pub use rejection::{AsError, AsErrorWithHandle, AsResponse, RejectionBody, RejectionPolicy};
pub use response::{AtResponse, HoldPermit, HoldPolicy, PermitBody, ResponsePermit, UntilBodyEnd};
pub use settings::{OnLost, OnUnavailable};
