//! Middleware: a service that takes a permit for each request.
//!
//! | module | its services | each request holds |
//! | --- | --- | --- |
//! | [`limit`] | [`DistributedConcurrencyLimit`](limit::DistributedConcurrencyLimit) | one of so many permits |
//! | [`keyed`] | [`KeyedMutex`](keyed::KeyedMutex) | the one permit of its key |
//! | | [`KeyedConcurrencyLimit`](keyed::KeyedConcurrencyLimit) | one of so many permits of its key |
//!
//! Both modules are guides. The other types here are the two choices that a layer offers, independent of each other:
//!
//! * **how long the permit is held**: [`UntilBodyEnd`], the default of the limit, or [`AtResponse`], that of the keyed
//!   layers. [`HoldPermit`] is what the former asks of a response, and [`PermitBody`] is the body that carries the permit;
//! * **how a refusal looks**: [`AsError`], the default ([`AsHttpError`] where the request's extensions get a handle of the
//!   permit), or [`AsResponse`], whose body is a [`RejectionBody`].

mod held;
pub mod keyed;
pub mod limit;
mod rejection;
mod response;
mod settings;

pub use rejection::{AsError, AsHttpError, AsResponse, Refuse, RejectionBody};
pub use response::{AtResponse, Hold, HoldPermit, PermitBody, ResponsePermit, UntilBodyEnd};
pub use settings::{OnLost, OnUnavailable};

use held::Held;

/// What becomes of the inner service's answer.
#[inline]
fn answer<Req, Res, E, H, R>(
    result: Result<Res, E>,
    held: Held,
    on_lost: OnLost,
) -> Result<R::Response, R::Error>
where
    H: Hold<Res>,
    R: Refuse<Req, H::Response, E>,
{
    match result {
        Ok(response) => {
            let permit = ResponsePermit::new(held, on_lost);
            Ok(R::pass(H::hold(response, permit)))
        }
        Err(error) => {
            drop(held);
            Err(R::pass_error(error))
        }
    }
}
