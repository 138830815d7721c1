use super::future::ResponseFuture;
use super::held::HeldKeys;
use super::key::KeyExtractor;
use super::layer::{Exclusive, Limited, OnMissingKey};
use super::line::{Entry, Line};
use crate::layers::rejection::{AsError, Refuse};
use crate::layers::response::{AtResponse, Hold};
use crate::layers::settings::Settings;
use crate::{Error, ErrorKind};
use std::fmt;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll};
use tower_service::Service;

/// A service with one request at a time inside for each key. Made by
/// [`KeyedMutexLayer`](super::KeyedMutexLayer); see the [module](self::super) for the guide.
pub type KeyedMutex<S, K, H = AtResponse, R = AsError> = Keyed<Exclusive, S, K, H, R>;

/// A service with at most so many requests at a time inside for each key. Made by
/// [`KeyedConcurrencyLimitLayer`](super::KeyedConcurrencyLimitLayer); see the [module](self::super) for the guide.
pub type KeyedConcurrencyLimit<S, K, H = AtResponse, R = AsError> = Keyed<Limited, S, K, H, R>;

/// What [`KeyedMutex`] and [`KeyedConcurrencyLimit`] are: the parameters are those of
/// [`KeyedLayer`](super::KeyedLayer), and the inner service.
pub struct Keyed<M, S, K, H = AtResponse, R = AsError> {
    inner: S,
    line: Arc<Line>,
    key: Arc<K>,
    choices: Choices,
    mode: PhantomData<fn(M, H, R)>,
}

/// The choices of one layer, copied into its services.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choices {
    pub(super) settings: Settings,
    pub(super) max_waiting_total: usize,
    pub(super) on_missing_key: OnMissingKey,
}

// === impl Keyed ===

impl<M, S, K, H, R> Keyed<M, S, K, H, R> {
    pub(super) fn new(inner: S, line: &Arc<Line>, key: &Arc<K>, choices: Choices) -> Self {
        Self {
            inner,
            line: Arc::clone(line),
            key: Arc::clone(key),
            choices,
            mode: PhantomData,
        }
    }

    /// The inner service.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The inner service, to be changed.
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The inner service.
    pub fn into_inner(self) -> S {
        self.inner
    }

    /// This request's way to its keys. `None` if it has none to take.
    fn enter<Req>(&self, request: &Req) -> Result<Option<Entry>, Error>
    where
        K: KeyExtractor<Req>,
    {
        if !self.choices.settings.enabled {
            return Ok(None);
        }
        let name = self.line.name();
        // Nothing of ours can be left half done by a panic: we only read what comes out.
        let key = catch_unwind(AssertUnwindSafe(|| self.key.key(request))).map_err(|_| {
            Error::new(
                ErrorKind::ExtractorPanicked,
                format!("the key extractor of the layer {name:?} panicked"),
            )
        })?;
        if let Some(key) = key.filter(|key| !key.is_empty()) {
            let most = self.choices.max_waiting_total;
            return self.line.enter(&key, most).map(Some);
        }
        match self.choices.on_missing_key {
            OnMissingKey::Pass => Ok(None),
            OnMissingKey::Reject => Err(Error::new(
                ErrorKind::MissingKey,
                format!("the request has no key for the layer {name:?}"),
            )),
        }
    }
}

impl<M, S, K, H, R, Req> Service<Req> for Keyed<M, S, K, H, R>
where
    S: Service<Req> + Clone,
    K: KeyExtractor<Req>,
    H: Hold<S::Response>,
    R: Refuse<Req, H::Response, S::Error>,
{
    type Response = R::Response;
    type Error = R::Error;
    type Future = ResponseFuture<S, Req, H, R>;

    /// Always ready: which key is wanted is not known before the request, and one that waits for its key must not keep
    /// back another with a different one. The inner service is made ready in the future, when the key is held.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Req) -> Self::Future {
        let protocol = R::protocol(&request);
        let settings = self.choices.settings;
        let entry = match self.enter(&request) {
            Ok(entry) => entry,
            Err(error) => return ResponseFuture::refused(error, settings, protocol),
        };
        if let Some(extensions) = K::extensions(&mut request) {
            // A handler that takes them finds them, whether or not there is anything to hold.
            let _ = HeldKeys::of(extensions);
        }
        let inner = self.inner.clone();
        match entry {
            Some(entry) => {
                ResponseFuture::waiting(inner, request, K::extensions, entry, settings, protocol)
            }
            None => ResponseFuture::passing(inner, request, settings, protocol),
        }
    }
}

impl<M, S: Clone, K, H, R> Clone for Keyed<M, S, K, H, R> {
    fn clone(&self) -> Self {
        Self::new(self.inner.clone(), &self.line, &self.key, self.choices)
    }
}

impl<M, S: fmt::Debug, K, H, R> fmt::Debug for Keyed<M, S, K, H, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyed")
            .field("inner", &self.inner)
            .field("line", &self.line)
            .field("choices", &self.choices)
            .finish_non_exhaustive()
    }
}
