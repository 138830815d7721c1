//! STUB: signatures are final, bodies are not.
use crate::Error;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A permit; dropping it gives it back.
#[derive(Debug)]
pub struct Permit {}

/// A weak handle: it holds nothing, but can be made into a guard while the permit is held.
#[derive(Clone, Debug)]
pub struct PermitHandle {}

/// Ends when the permit is lost, with `ErrorKind::Lost` or `ErrorKind::HeldTooLong`. `'static`, `Send`, `Sync`,
/// but `!Unpin`: it costs no allocation.
#[derive(Debug)]
pub(crate) struct WhenLost {}

impl Permit {
    /// Whether it is still held.
    pub fn is_valid(&self) -> bool {
        todo!()
    }
    /// A weak handle.
    pub fn handle(&self) -> PermitHandle {
        todo!()
    }
    /// Takes a reserved permit for good. `false`: it has gone back already. `true` for one that was never reserved.
    pub(crate) fn claim(&self) -> bool {
        todo!()
    }
    /// Lets a reservation end `ttl` from now instead. `false`: it has gone back already. `true`, without effect, for a
    /// permit that is not reserved.
    pub(crate) fn rearm(&self, _ttl: std::time::Duration) -> bool {
        todo!()
    }
    pub(crate) fn when_lost(&self) -> WhenLost {
        todo!()
    }
}

impl PermitHandle {
    /// Makes the handle a guard of the same permit: it is given back when the last guard is dropped.
    /// `None` if it has been given back or lost.
    pub fn keep(&self) -> Option<Permit> {
        todo!()
    }
}

impl Future for WhenLost {
    type Output = Error;
    fn poll(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Self::Output> {
        todo!()
    }
}
