//! The `Service`s of the keyed mutex and the keyed limit.

use super::acquire_keys::AcquireKeys;
use super::future::ResponseFuture;
use super::held_keys::HeldKeys;
use super::key::KeyExtractor;
use super::keyspace::Keyspace;
use super::settings::{KeyedSettings, OnMissingKey};
use crate::layers::deadline::Deadline;
use crate::layers::rejection::{AsError, RejectionPolicy};
use crate::layers::response::{AtResponse, HoldPolicy, UntilBodyEnd};
use crate::{Error, ErrorKind};
use std::fmt;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll};
use tower_service::Service;

/// Middleware that runs one request at a time for each key. Created by [`KeyedMutexLayer`](super::KeyedMutexLayer); see
/// the [module](self::super) for the guide.
pub type KeyedMutex<S, K, H = AtResponse, R = AsError> = Keyed<Exclusive, S, K, H, R>;

/// Middleware that limits the concurrent requests of each key. Created by
/// [`KeyedConcurrencyLimitLayer`](super::KeyedConcurrencyLimitLayer); see the [module](self::super) for the guide.
pub type KeyedConcurrencyLimit<S, K, H = UntilBodyEnd, R = AsError> = Keyed<Limited, S, K, H, R>;

/// The type of [`KeyedMutex`] and [`KeyedConcurrencyLimit`]. `S` is the inner service; the other parameters are those of
/// [`KeyedLayer`](super::KeyedLayer).
pub struct Keyed<M, S, K, H = AtResponse, R = AsError> {
    inner: S,
    keyspace: Arc<Keyspace>,
    extractor: Arc<K>,
    settings: KeyedSettings,
    policies: PhantomData<fn(M, H, R)>,
}

/// Marks a keyed mutex: one request at a time for each key.
#[derive(Clone, Copy, Debug)]
pub enum Exclusive {}

/// Marks a keyed concurrency limit: at most `limit` concurrent requests for each key.
#[derive(Clone, Copy, Debug)]
pub enum Limited {}

// === impl Keyed ===

impl<M, S, K, H, R> Keyed<M, S, K, H, R> {
    pub(super) fn new(
        inner: S,
        keyspace: &Arc<Keyspace>,
        extractor: &Arc<K>,
        settings: KeyedSettings,
    ) -> Self {
        Self {
            inner,
            keyspace: Arc::clone(keyspace),
            extractor: Arc::clone(extractor),
            settings,
            policies: PhantomData,
        }
    }

    /// Returns a reference to the inner service.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// Returns a mutable reference to the inner service.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// Returns the inner service.
    pub fn into_inner(self) -> S {
        self.inner
    }

    /// Returns how this request acquires its keys, or `None` if it needs none.
    fn acquire_keys<Req>(
        &self,
        request: &Req,
        deadline: Option<Deadline>,
    ) -> Result<Option<AcquireKeys>, Error>
    where
        K: KeyExtractor<Req>,
    {
        if !self.settings.common.enabled {
            return Ok(None);
        }
        let name = self.keyspace.name();
        // A panic leaves no state of this crate half changed: only the returned key is used.
        let key = catch_unwind(AssertUnwindSafe(|| self.extractor.key(request))).map_err(|_| {
            Error::new(
                ErrorKind::ExtractorPanicked,
                format!(
                    "the key extractor of the layer {name:?} panicked: return `None` for a request without a key"
                ),
            )
        })?;
        if let Some(key) = key.filter(|key| !key.is_empty()) {
            let wanted = self.keyspace.queues(&key)?;
            return Ok(Some(AcquireKeys::new(
                &self.keyspace,
                wanted,
                self.settings,
                deadline,
            )));
        }
        match self.settings.on_missing_key {
            OnMissingKey::Pass => Ok(None),
            OnMissingKey::Reject => Err(Error::new(
                ErrorKind::MissingKey,
                format!("the request has no key for the layer {name:?}, which requires one"),
            )),
        }
    }
}

impl<M, S, K, H, R, Req> Service<Req> for Keyed<M, S, K, H, R>
where
    S: Service<Req> + Clone,
    K: KeyExtractor<Req>,
    H: HoldPolicy<S::Response>,
    R: RejectionPolicy<Req, H::Response, S::Error>,
{
    type Response = R::Response;
    type Error = R::Error;
    type Future = ResponseFuture<S, Req, H, R>;

    /// Always returns ready: the key is known only with the request, and a request that waits for its key must not delay
    /// one with another key. The future makes the inner service ready once it holds the key.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Req) -> Self::Future {
        let protocol = R::protocol(&request);
        let settings = &self.settings.common;
        let deadline = R::deadline(&request)
            .or_else(|| K::extensions(&mut request)?.get::<Deadline>().copied());
        let keys = match self.acquire_keys(&request, deadline) {
            Ok(keys) => keys,
            Err(error) => return ResponseFuture::rejected(error, settings, protocol),
        };
        if let Some(extensions) = K::extensions(&mut request) {
            // A handler that extracts `HeldKeys` finds it even if the request holds no key.
            let _ = HeldKeys::get_or_insert(extensions);
        }
        let inner = self.inner.clone();
        match keys {
            Some(keys) => ResponseFuture::waiting(inner, request, K::extensions, keys, protocol),
            None => ResponseFuture::running(inner, request, settings, protocol),
        }
    }
}

impl<M, S: Clone, K, H, R> Clone for Keyed<M, S, K, H, R> {
    fn clone(&self) -> Self {
        let inner = self.inner.clone();
        Self::new(inner, &self.keyspace, &self.extractor, self.settings)
    }
}

impl<M, S: fmt::Debug, K, H, R> fmt::Debug for Keyed<M, S, K, H, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyed")
            .field("inner", &self.inner)
            .field("keyspace", &self.keyspace)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
