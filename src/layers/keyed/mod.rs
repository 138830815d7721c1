//! stub
mod extract;
mod future;
mod held;
mod key;
mod layer;
mod line;
mod service;

pub use extract::{Header, Path, PathSegment, Query, header, path, path_segment, query};
pub use future::ResponseFuture;
pub use held::{HeldKey, HeldKeys};
pub use key::{IntoKey, Key, KeyExtractor, KeyFn, key_fn};
pub use layer::{
    Exclusive, KeyedConcurrencyLimitLayer, KeyedLayer, KeyedMutexLayer, Limited, OnMissingKey,
};
pub use service::{Keyed, KeyedConcurrencyLimit, KeyedMutex};
