//! Keys, and the trait of their extractors.

use crate::mutex::MAX_NAMES;
use crate::name::{Kind, Queue};
use crate::{Error, ErrorKind};
use std::borrow::Cow;
use std::fmt;

/// The key of a request: one name, or several that are acquired together.
///
/// A name consists of any bytes, or of several parts. Different lists of parts are different names:
/// `Key::joined(["a", "b"])` differs from `Key::from("ab")`, from `Key::from("a+b")`, and from
/// `Key::joined(["ab", ""])`. Names are compared byte by byte: `A` is not `a`. A number is its decimal text.
///
/// ```
/// use tower_permit::Key;
///
/// let product = Key::from(10086);
/// assert_eq!(product, Key::from("10086"));
///
/// let place = Key::joined(["warehouse 7", "shelf 12"]);
/// let both = Key::all([product, place]); // acquired together, all or none
///
/// let tenant = Key::from("tenant 4").with_limit(20); // for a keyed limit: the limit of this tenant
/// ```
///
/// Names appear in the backend and in the log. Hash secrets, such as access tokens, before you use them as a key.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    /// Sorted, without duplicates. At most `MAX_NAMES + 1`: the last one shows that there were too many.
    names: Vec<Name>,
}

#[derive(Clone, PartialEq, Eq)]
struct Name {
    parts: Vec<Vec<u8>>,
    limit: Option<u32>,
}

/// The queue of a name of a key, with this process's limit for it.
#[derive(Debug)]
pub(super) struct WantedQueue {
    pub(super) queue: Queue,
    pub(super) limit: u32,
}

/// Conversion of a closure's result into a key: anything that is `Into<Key>`, or an [`Option`] of that, where `None` means
/// that the request has no key.
pub trait IntoKey {
    /// Returns the key, if there is one.
    fn into_key(self) -> Option<Key>;
}

/// Extracts the key of a request.
///
/// For HTTP requests it is implemented by closures with an explicit argument type, by [`path`](super::path),
/// [`path_segment`](super::path_segment), [`header`](super::header) and [`query`](super::query), by `route_param` with the
/// feature `axum`, and by tuples of extractors: their keys are joined and must all be present. For other requests,
/// [`key_fn`] wraps a closure.
///
/// Requests about one thing must have one key: extract what the handler compares, not the text it parses. If a handler
/// parses a number, `7`, `07` and `+7` are one number and must be one key: see [`parse`](super::PathSegment::parse). A
/// request that does not parse has no key, and is rejected by default ([`OnMissingKey`](super::OnMissingKey)).
///
/// ```
/// use http::Request;
/// use tower_permit::layers::keyed::{KeyExtractor, header, path_segment};
///
/// fn is_extractor<Req>(extractor: impl KeyExtractor<Req>, request: &Req) {
///     assert!(extractor.key(request).is_some());
/// }
///
/// let request = Request::post("/products/7/buy?coupon=3").header("x-tenant", "acme").body(()).unwrap();
/// is_extractor(path_segment(1), &request);
/// is_extractor((header("x-tenant"), path_segment(1).parse::<u64>()), &request);
/// is_extractor(|request: &Request<()>| request.uri().path().len(), &request);
/// is_extractor(|request: &Request<()>| request.uri().query().map(str::to_owned), &request);
/// ```
///
/// A closure that borrows its key from the request does not compile: return an owned key.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not extract the key of a `{Req}`",
    note = "a closure for HTTP needs the type of its argument, and returns an owned key: \
            `|request: &http::Request<Body>| request.uri().path().to_owned()`",
    note = "for requests that are not `http::Request`, wrap the closure: `key_fn(|request: &MyRequest| request.id)`"
)]
pub trait KeyExtractor<Req> {
    /// Returns the key of this request; `None` if it has none.
    ///
    /// A panic is caught: the request is rejected with
    /// [`ExtractorPanicked`](crate::ErrorKind::ExtractorPanicked), unless panics abort the process.
    fn key(&self, request: &Req) -> Option<Key>;

    /// Returns the request's extensions, if its type has some. The layer adds [`HeldKeys`](super::HeldKeys) to them.
    /// Without extensions, handlers see no token, and an inner layer with the same name waits for its own request.
    fn extensions(request: &mut Req) -> Option<&mut http::Extensions>
    where
        Self: Sized,
    {
        let _ = request;
        None
    }
}

/// The extractor returned by [`key_fn`].
#[derive(Clone, Copy)]
pub struct KeyFn<F> {
    extract: F,
}

/// Returns an extractor that calls a closure, for requests of any type.
///
/// ```
/// use tower_permit::layers::keyed::key_fn;
/// use tower_permit::{Coordinator, KeyedMutexLayer, Memory};
///
/// struct Transfer { from: u64, to: u64 }
///
/// let permits = Coordinator::new(Memory::new());
/// let accounts = key_fn(|transfer: &Transfer| tower_permit::Key::all([transfer.from, transfer.to]));
/// let layer = KeyedMutexLayer::new(&permits, "account", accounts)?;
/// # let _: tower_permit::KeyedMutex<_, _> = tower::Layer::layer(&layer, ());
/// # Ok::<(), tower_permit::Error>(())
/// ```
pub fn key_fn<Req, F, T>(extract: F) -> KeyFn<F>
where
    F: Fn(&Req) -> T,
    T: IntoKey,
{
    KeyFn { extract }
}

// === impl Key ===

impl Key {
    /// Returns a key of one name, which consists of these parts. Without any part the key has no name, and the request
    /// counts as one without a key.
    pub fn joined<P: AsRef<[u8]>>(parts: impl IntoIterator<Item = P>) -> Self {
        let parts: Vec<_> = (parts.into_iter())
            .map(|part| part.as_ref().to_vec())
            .collect();
        let limit = None;
        let names = match parts.is_empty() {
            true => Vec::new(),
            false => vec![Name { parts, limit }],
        };
        Self { names }
    }

    /// Returns a key of all names of these keys. They are acquired together: each once, in an order that does not depend on
    /// the order given, all or none.
    ///
    /// A request with more than 64 different names is rejected with [`InvalidKey`](crate::ErrorKind::InvalidKey). Without
    /// any name the request counts as one without a key.
    pub fn all<K: Into<Self>>(keys: impl IntoIterator<Item = K>) -> Self {
        let mut all = Self { names: Vec::new() };
        for name in keys.into_iter().flat_map(|key| key.into().names) {
            all.insert(name);
            if all.names.len() > MAX_NAMES {
                break;
            }
        }
        all
    }

    /// Sets the limit of each name of this key, in place of the layer's limit, for a
    /// [`KeyedConcurrencyLimitLayer`](super::KeyedConcurrencyLimitLayer). A mutex ignores it.
    ///
    /// It becomes this process's limit for the name, also for requests that hold it or wait for it, so requests should
    /// agree on it. If a name occurs several times in one key, its lowest limit counts. A request with a limit that the
    /// backend does not support, such as 0, is rejected with [`InvalidConfig`](crate::ErrorKind::InvalidConfig).
    #[must_use]
    pub fn with_limit(mut self, limit: u32) -> Self {
        for name in &mut self.names {
            name.limit = Some(limit);
        }
        self
    }

    /// Joins each name of this key with each name of the other.
    pub(super) fn followed_by(self, then: Self) -> Self {
        let pairs = (self.names.iter()).flat_map(|a| then.names.iter().map(move |b| (a, b)));
        Self::all(pairs.map(|(a, b)| Self {
            names: vec![Name {
                parts: [&a.parts[..], &b.parts[..]].concat(),
                limit: min_limit(a.limit, b.limit),
            }],
        }))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    fn insert(&mut self, name: Name) {
        match (self.names).binary_search_by(|other| other.parts.cmp(&name.parts)) {
            Ok(at) => {
                if let Some(same) = self.names.get_mut(at) {
                    same.limit = min_limit(same.limit, name.limit);
                }
            }
            Err(at) => self.names.insert(at, name),
        }
    }

    /// Returns the queues of a layer with this name, last first, in an order that is the same in all processes.
    pub(super) fn queues(
        &self,
        kind: Kind,
        layer: &str,
        limit: u32,
    ) -> Result<Vec<WantedQueue>, Error> {
        if self.names.len() > MAX_NAMES {
            return Err(Error::new(
                ErrorKind::InvalidKey,
                format!("the key has more than {MAX_NAMES} names: use at most {MAX_NAMES}"),
            ));
        }
        let mut queues = Vec::with_capacity(self.names.len());
        for name in &self.names {
            queues.push(WantedQueue {
                queue: name.queue(kind, layer)?,
                limit: match kind {
                    Kind::Limit => name.limit.unwrap_or(limit),
                    Kind::Mutex => 1,
                },
            });
        }
        queues.sort_by(|a, b| b.queue.cmp(&a.queue));
        Ok(queues)
    }

    /// Returns the queue of a key of one name.
    pub(super) fn only_queue(&self, kind: Kind, layer: &str) -> Result<Queue, Error> {
        match &self.names[..] {
            [name] => name.queue(kind, layer),
            names => Err(Error::new(
                ErrorKind::InvalidKey,
                format!(
                    "the key has {} names: inspect and evict need a key of one name",
                    names.len()
                ),
            )),
        }
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(&self.names).finish()
    }
}

fn min_limit(a: Option<u32>, b: Option<u32>) -> Option<u32> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

// === impl Name ===

impl Name {
    fn queue(&self, kind: Kind, layer: &str) -> Result<Queue, Error> {
        let parts: Vec<&[u8]> = [layer.as_bytes()]
            .into_iter()
            .chain(self.parts.iter().map(Vec::as_slice))
            .collect();
        Queue::new(kind, &parts)
            .map_err(|error| Error::new(ErrorKind::InvalidKey, format!("invalid key: {error}")))
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut list = f.debug_list();
        for part in &self.parts {
            list.entry(&String::from_utf8_lossy(part));
        }
        list.finish()
    }
}

// === impl IntoKey ===

impl<T: Into<Key>> IntoKey for T {
    fn into_key(self) -> Option<Key> {
        Some(self.into())
    }
}

impl<T: Into<Key>> IntoKey for Option<T> {
    fn into_key(self) -> Option<Key> {
        self.map(Into::into)
    }
}

impl From<Vec<u8>> for Key {
    fn from(name: Vec<u8>) -> Self {
        let (parts, limit) = (vec![name], None);
        Self {
            names: vec![Name { parts, limit }],
        }
    }
}

impl From<String> for Key {
    fn from(name: String) -> Self {
        name.into_bytes().into()
    }
}

impl From<&[u8]> for Key {
    fn from(name: &[u8]) -> Self {
        name.to_vec().into()
    }
}

impl From<&str> for Key {
    fn from(name: &str) -> Self {
        name.as_bytes().into()
    }
}

impl From<&String> for Key {
    fn from(name: &String) -> Self {
        name.as_bytes().into()
    }
}

impl From<Cow<'_, str>> for Key {
    fn from(name: Cow<'_, str>) -> Self {
        name.into_owned().into()
    }
}

macro_rules! from_numbers {
    ($($number:ty)*) => {$(
        impl From<$number> for Key {
            fn from(name: $number) -> Self {
                name.to_string().into()
            }
        }
    )*};
}

from_numbers!(u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize);

// === impl KeyExtractor ===

impl<F, B, T> KeyExtractor<http::Request<B>> for F
where
    F: Fn(&http::Request<B>) -> T,
    T: IntoKey,
{
    fn key(&self, request: &http::Request<B>) -> Option<Key> {
        self(request).into_key()
    }

    fn extensions(request: &mut http::Request<B>) -> Option<&mut http::Extensions> {
        Some(request.extensions_mut())
    }
}

impl<F, Req, T> KeyExtractor<Req> for KeyFn<F>
where
    F: Fn(&Req) -> T,
    T: IntoKey,
{
    fn key(&self, request: &Req) -> Option<Key> {
        (self.extract)(request).into_key()
    }
}

impl<F> fmt::Debug for KeyFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyFn").finish_non_exhaustive()
    }
}

macro_rules! tuples {
    ($($first:ident $($then:ident)+;)*) => {$(
        impl<Req, $first, $($then),+> KeyExtractor<Req> for ($first, $($then),+)
        where
            $first: KeyExtractor<Req>,
            $($then: KeyExtractor<Req>),+
        {
            #[allow(non_snake_case)]
            fn key(&self, request: &Req) -> Option<Key> {
                let ($first, $($then),+) = self;
                let key = $first.key(request)?;
                $(let key = key.followed_by($then.key(request)?);)+
                Some(key)
            }

            fn extensions(request: &mut Req) -> Option<&mut http::Extensions> {
                $first::extensions(request)
            }
        }
    )*};
}

tuples! {
    A B;
    A B C;
    A B C D;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(key: &Key, layer: &str) -> Vec<String> {
        let queues = key.queues(Kind::Mutex, layer, 1).unwrap();
        let names = queues.iter().rev().map(|wanted| wanted.queue.name());
        names.map(str::to_owned).collect()
    }

    #[test]
    fn names_are_sorted_without_duplicates() {
        let one = Key::all(["b", "a", "a", "c", "b"]);
        assert_eq!(names(&one, "buy"), ["buy+a", "buy+b", "buy+c"]);
        assert_eq!(one, Key::all(["c", "b", "a"]));
    }

    #[test]
    fn names_of_layers_and_keys_do_not_collide() {
        let mut all = std::collections::HashSet::new();
        let keys = [
            Key::from("a"),
            Key::from("a+b"),
            Key::joined(["a", "b"]),
            Key::joined(["a", ""]),
            Key::joined(["", "a"]),
            Key::from(""),
            Key::from("ab"),
            Key::from(b"\xff\xfe".as_slice()),
            Key::from("A"),
        ];
        for layer in ["buy", "buy+a", "", "a"] {
            for key in &keys {
                for name in names(key, layer) {
                    assert!(all.insert(name), "{layer} {key:?}");
                }
            }
        }
    }

    #[test]
    fn too_many_names_are_rejected_and_not_stored() {
        assert_eq!(names(&Key::all(0..64), "n").len(), 64);
        let many = Key::all(0..1_000_000_000u64);
        assert_eq!(many.names.len(), 65);
        let error = many.queues(Kind::Mutex, "n", 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidKey);
        let joined = Key::all(0..60).followed_by(Key::all(0..60));
        assert_eq!(joined.names.len(), 65);
    }

    #[test]
    fn each_name_keeps_its_limit() {
        let key = Key::all([
            Key::from("a").with_limit(3),
            Key::from("b"),
            Key::from("a").with_limit(2),
        ]);
        let queues = key.queues(Kind::Limit, "n", 9).unwrap();
        let limits: Vec<_> = queues.iter().rev().map(|wanted| wanted.limit).collect();
        assert_eq!(limits, [2, 9]);
    }

    #[test]
    fn a_key_without_parts_is_empty() {
        let none: [&str; 0] = [];
        assert!(Key::joined(none).is_empty());
        assert!(Key::all(none).is_empty());
        assert!(!Key::from("").is_empty());
    }
}
