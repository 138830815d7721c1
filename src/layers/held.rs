//! What a request holds, and the news that it does not any more.

use super::settings::OnLost;
use crate::permit::WhenLost;
use crate::{Error, Permit};
use pin_project_lite::pin_project;
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

pin_project! {
    /// The same under watch. Inline and pinned, so that a single one costs no allocation here either.
    pub(crate) struct Holding {
        held: Held,
        // One for each permit, until it is lost in a way that does not matter.
        #[pin]
        first_lost: Option<WhenLost>,
        others_lost: Vec<Pin<Box<WhenLost>>>,
    }
}

// === impl Held ===

impl Held {
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    fn push(&mut self, permit: Permit) {
        match self.first {
            None => self.first = Some(permit),
            Some(_) => self.others.push(permit),
        }
    }
}

impl From<Option<Permit>> for Held {
    fn from(first: Option<Permit>) -> Self {
        let others = Vec::new();
        Self { first, others }
    }
}

// === impl Holding ===

impl Holding {
    pub(crate) fn new(held: Held) -> Self {
        Self {
            first_lost: held.first.as_ref().map(Permit::when_lost),
            others_lost: held.others.iter().map(watch).collect(),
            held,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// One more. Poll for its loss afterwards.
    pub(crate) fn push(self: Pin<&mut Self>, permit: Permit) {
        let mut this = self.project();
        if this.held.is_empty() {
            this.first_lost.set(Some(permit.when_lost()));
        } else {
            this.others_lost.push(watch(&permit));
        }
        this.held.push(permit);
    }

    /// Ends when a permit is lost in a way that ends its request too.
    pub(crate) fn poll_lost(
        self: Pin<&mut Self>,
        on_lost: OnLost,
        cx: &mut Context<'_>,
    ) -> Poll<Error> {
        let mut this = self.project();
        if let Some(lost) = this.first_lost.as_mut().as_pin_mut()
            && let Poll::Ready(error) = lost.poll(cx)
        {
            this.first_lost.set(None);
            if on_lost.ends(&error) {
                return Poll::Ready(error);
            }
        }
        let mut end = None;
        this.others_lost.retain_mut(|lost| {
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
    pub(crate) fn take(self: Pin<&mut Self>) -> Held {
        let mut this = self.project();
        this.first_lost.set(None);
        this.others_lost.clear();
        mem::take(this.held)
    }
}

fn watch(permit: &Permit) -> Pin<Box<WhenLost>> {
    Box::pin(permit.when_lost())
}
