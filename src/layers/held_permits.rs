//! The permits of one request, and the detection of their loss.

use super::settings::OnLost;
use crate::permit::LossFuture;
use crate::{Error, Permit};
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};

/// The permits of one request. A single permit costs no allocation.
#[derive(Debug, Default)]
pub(crate) struct HeldPermits {
    first: Option<Permit>,
    others: Vec<Permit>,
}

/// [`HeldPermits`] that report a loss.
#[derive(Debug)]
pub(crate) struct WatchedPermits {
    permits: HeldPermits,
    /// How many of the permits have a [`LossFuture`]. Created at the first poll, so that a request that is answered at
    /// once needs none.
    watched: usize,
    /// One for each watched permit. Removed after a loss that does not end the request.
    losses: Vec<Pin<Box<LossFuture>>>,
}

// === impl HeldPermits ===

impl HeldPermits {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    fn iter(&self) -> impl Iterator<Item = &Permit> {
        self.first.iter().chain(&self.others)
    }

    fn push(&mut self, permit: Permit) {
        match self.first {
            None => self.first = Some(permit),
            Some(_) => self.others.push(permit),
        }
    }
}

impl From<Option<Permit>> for HeldPermits {
    #[inline]
    fn from(first: Option<Permit>) -> Self {
        let others = Vec::new();
        Self { first, others }
    }
}

// === impl WatchedPermits ===

impl WatchedPermits {
    #[inline]
    pub(crate) fn new(permits: HeldPermits) -> Self {
        Self {
            permits,
            watched: 0,
            losses: Vec::new(),
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.permits.is_empty()
    }

    /// Adds a permit. The caller must call [`poll_lost`](Self::poll_lost) afterwards.
    pub(crate) fn push(&mut self, permit: Permit) {
        self.permits.push(permit);
    }

    /// Resolves when a permit is lost in a way that ends the request.
    pub(crate) fn poll_lost(&mut self, on_lost: OnLost, cx: &mut Context<'_>) -> Poll<Error> {
        for permit in self.permits.iter().skip(self.watched) {
            self.watched += 1;
            self.losses.push(Box::pin(permit.lost_owned()));
        }
        let mut ending = None;
        self.losses.retain_mut(|loss| {
            let Poll::Ready(error) = loss.as_mut().poll(cx) else {
                return true;
            };
            if on_lost.ends(&error) {
                ending.get_or_insert(error);
            }
            false
        });
        ending.map_or(Poll::Pending, Poll::Ready)
    }

    /// Notes whether the reader of the response waits for its next part, or has one and has to ask for more.
    pub(crate) fn set_reading(&self, waits: bool) {
        self.permits
            .iter()
            .for_each(|permit| permit.set_reading(waits));
    }

    /// Removes all permits. Their losses are no longer reported here.
    #[inline]
    pub(crate) fn take(&mut self) -> HeldPermits {
        self.watched = 0;
        self.losses.clear();
        mem::take(&mut self.permits)
    }
}
