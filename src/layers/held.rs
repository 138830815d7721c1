//! What a request holds, and the news that it does not any more.

use super::settings::OnLost;
use crate::permit::WhenLost;
use crate::{Error, Permit};
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};

/// The permits of one request. A single one costs no allocation.
#[derive(Debug, Default)]
pub(crate) struct Held {
    first: Option<Permit>,
    others: Vec<Permit>,
}

/// The same under watch.
pub(crate) struct Holding {
    held: Held,
    /// How many of them are watched. Those of a request that is answered at once are not.
    watched: usize,
    /// One for each of these, until it is lost in a way that does not matter.
    lost: Vec<Pin<Box<WhenLost>>>,
}

// === impl Held ===

impl Held {
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

impl From<Option<Permit>> for Held {
    #[inline]
    fn from(first: Option<Permit>) -> Self {
        let others = Vec::new();
        Self { first, others }
    }
}

// === impl Holding ===

impl Holding {
    #[inline]
    pub(crate) fn new(held: Held) -> Self {
        Self {
            held,
            watched: 0,
            lost: Vec::new(),
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// One more. Poll for its loss afterwards.
    pub(crate) fn push(&mut self, permit: Permit) {
        self.held.push(permit);
    }

    /// Ends when a permit is lost in a way that ends its request too.
    pub(crate) fn poll_lost(&mut self, on_lost: OnLost, cx: &mut Context<'_>) -> Poll<Error> {
        for permit in self.held.iter().skip(self.watched) {
            self.watched += 1;
            self.lost.push(Box::pin(permit.when_lost()));
        }
        let mut end = None;
        self.lost.retain_mut(|lost| {
            let Poll::Ready(error) = lost.as_mut().poll(cx) else {
                return true;
            };
            if on_lost.ends(&error) {
                end.get_or_insert(error);
            }
            false
        });
        end.map_or(Poll::Pending, Poll::Ready)
    }

    /// Takes everything out; what becomes of it is not watched here any more.
    #[inline]
    pub(crate) fn take(&mut self) -> Held {
        self.watched = 0;
        self.lost.clear();
        mem::take(&mut self.held)
    }
}
