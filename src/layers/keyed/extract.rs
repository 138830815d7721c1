//! Extractors that find the key of an HTTP request in its path, query or headers.

use super::key::{Key, KeyExtractor};
use http::{HeaderName, Request};
use percent_encoding::percent_decode_str;
use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

/// The extractor returned by [`path`].
#[derive(Clone, Copy, Debug)]
pub struct Path {}

/// The extractor returned by [`path_segment`].
#[derive(Clone, Copy, Debug)]
pub struct PathSegment {
    index: usize,
}

/// The extractor returned by [`header`].
#[derive(Clone, Debug)]
pub struct Header {
    /// `None` if the given name is no header name.
    name: Option<HeaderName>,
}

/// The extractor returned by [`query`].
#[derive(Clone, Debug)]
pub struct Query {
    name: Cow<'static, str>,
}

/// An extractor that parses the text of another one: [`PathSegment::parse`], [`Header::parse`], [`Query::parse`] and
/// `RouteParam::parse`.
pub struct Parsed<E, T> {
    extractor: E,
    value: PhantomData<fn() -> T>,
}

/// The name of a header: a [`HeaderName`], or a text in any case. Sealed.
pub trait IntoHeaderName: sealed::Sealed {}

impl IntoHeaderName for HeaderName {}
impl IntoHeaderName for &'static str {}

/// Returns an extractor that uses the whole path as the key, as a list of percent-decoded segments.
///
/// Different encodings of one path are one key: `/a%62` is `/ab`, but `/a%2Fb`, which is one segment, is not `/a/b`. Paths
/// that differ in case, in a trailing slash or in dots are different keys, as they are different routes. The query is not
/// part of the key.
pub fn path() -> Path {
    Path {}
}

/// Returns an extractor that uses one percent-decoded segment of the path as the key, counted from 0: segment 1 of
/// `/documents/report/edit` is `report`.
///
/// The key is compared as text. `%37` and `7` are one key; `A` and `a` are two, and so are `7`, `07` and `+7`. **If the
/// handler parses the segment, [parse](PathSegment::parse) it here too**, or `/products/07` bypasses the lock of
/// `/products/7`: see [`KeyExtractor`]. A plus sign is not a space. A path without this segment has no key; an empty
/// segment (`/documents//edit`) is the empty key.
///
/// The path is the one that the layer sees. axum removes the prefix of a nested router: with `nest("/api", inner)`, a
/// layer on `inner` counts after `/api`, and a layer on the outer router counts `api` as segment 0. `route_param` (feature
/// `axum`) finds a parameter by its name instead.
pub fn path_segment(index: usize) -> PathSegment {
    PathSegment { index }
}

/// Returns an extractor that uses the unchanged value of this header as the key; the first value if the header occurs
/// several times. `name` is a `&'static str` in any case, or a [`HeaderName`].
///
/// The key appears in the backend and in the log. For a secret value, such as an API key, use a closure that hashes it.
///
/// With a text that is no header name, such as one with a space, no request has a key; an error is logged here.
pub fn header(name: impl IntoHeaderName) -> Header {
    let name = name.into_header_name();
    if let Err(name) = &name {
        tracing::error!(?name, "this is no header name: no request has a key");
    }
    Header { name: name.ok() }
}

/// Returns an extractor that uses the value of this query parameter as the key, decoded as a form: `%37` is `7`, and a plus
/// sign is a space. The key is compared as text, as with [`path_segment`].
///
/// If the parameter occurs several times, the first one counts. A handler that uses the last one, as a map of parameters
/// does, must reject such a request: the key would be another than the handler's.
pub fn query(name: impl Into<Cow<'static, str>>) -> Query {
    Query { name: name.into() }
}

pub(super) mod sealed {
    use http::{HeaderName, Request};
    use std::borrow::Cow;

    pub trait Sealed: Sized {
        /// Returns the name, or the text that is none.
        fn into_header_name(self) -> Result<HeaderName, &'static str>;
    }

    impl Sealed for HeaderName {
        fn into_header_name(self) -> Result<HeaderName, &'static str> {
            Ok(self)
        }
    }

    impl Sealed for &'static str {
        fn into_header_name(self) -> Result<HeaderName, &'static str> {
            HeaderName::from_bytes(self.as_bytes()).map_err(|_| self)
        }
    }

    /// An extractor that finds one text in a request.
    pub trait FindText {
        fn text<'a, B>(&self, request: &'a Request<B>) -> Option<Cow<'a, [u8]>>;
    }
}

use sealed::FindText;

impl FindText for PathSegment {
    fn text<'a, B>(&self, request: &'a Request<B>) -> Option<Cow<'a, [u8]>> {
        segments(request.uri())?.nth(self.index)
    }
}

impl FindText for Header {
    fn text<'a, B>(&self, request: &'a Request<B>) -> Option<Cow<'a, [u8]>> {
        let value = request.headers().get(self.name.as_ref()?)?;
        Some(Cow::Borrowed(value.as_bytes()))
    }
}

impl FindText for Query {
    fn text<'a, B>(&self, request: &'a Request<B>) -> Option<Cow<'a, [u8]>> {
        let mut pairs = form_urlencoded::parse(request.uri().query()?.as_bytes());
        let (_, value) = pairs.find(|(name, _)| *name == self.name)?;
        Some(match value {
            Cow::Borrowed(value) => Cow::Borrowed(value.as_bytes()),
            Cow::Owned(value) => Cow::Owned(value.into_bytes()),
        })
    }
}

// === impl KeyExtractor ===

macro_rules! extractors {
    ($([$($of:tt)*] $extractor:ty, |$this:ident, $request:ident| $key:expr;)*) => {$(
        impl<B, $($of)*> KeyExtractor<Request<B>> for $extractor {
            fn key(&self, $request: &Request<B>) -> Option<Key> {
                let $this = self;
                $key
            }

            fn extensions(request: &mut Request<B>) -> Option<&mut http::Extensions> {
                Some(request.extensions_mut())
            }
        }
    )*};
}

extractors! {
    [] Path, |_this, request| segments(request.uri()).map(Key::joined);
    [] PathSegment, |this, request| this.text(request).map(|text| Key::from(&*text));
    [] Header, |this, request| this.text(request).map(|text| Key::from(&*text));
    [] Query, |this, request| this.text(request).map(|text| Key::from(&*text));
    [E: FindText, T: FromStr + fmt::Display] Parsed<E, T>, |this, request| {
        let text = this.extractor.text(request)?;
        let value: T = std::str::from_utf8(&text).ok()?.parse().ok()?;
        Some(value.to_string().into())
    };
}

/// Adds `parse` to the extractors of a text.
macro_rules! parse {
    ($($extractor:ty),*) => {$(
        impl $extractor {
            /// Parses the text, and uses the value as the key: with `parse::<u64>()` `7`, `07` and `+7` are one key. The
            /// key is what `T` displays. A text that does not parse is no key.
            ///
            /// Parse what the handler parses, so that each spelling of a value has the same key.
            pub fn parse<T: std::str::FromStr + std::fmt::Display>(self) -> Parsed<Self, T> {
                Parsed::new(self)
            }
        }
    )*};
}

parse!(PathSegment, Header, Query);

#[cfg(feature = "axum")]
pub(super) use {extractors, parse};

// === impl Parsed ===

impl<E, T> Parsed<E, T> {
    pub(super) fn new(extractor: E) -> Self {
        Self {
            extractor,
            value: PhantomData,
        }
    }
}

impl<E: Clone, T> Clone for Parsed<E, T> {
    fn clone(&self) -> Self {
        Self::new(self.extractor.clone())
    }
}

impl<E: fmt::Debug, T> fmt::Debug for Parsed<E, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Parsed").field(&self.extractor).finish()
    }
}

/// Returns the decoded segments of the path. `*` and the authority of a `CONNECT` request have none.
fn segments(uri: &http::Uri) -> Option<impl Iterator<Item = Cow<'_, [u8]>>> {
    let path = uri.path().strip_prefix('/')?;
    Some(path.split('/').map(|part| percent_decode_str(part).into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn key(extractor: impl KeyExtractor<Request<()>>, uri: &str) -> Option<Key> {
        extractor.key(&Request::get(uri).body(()).unwrap())
    }

    fn some(name: impl Into<Key>) -> Option<Key> {
        Some(name.into())
    }

    #[test]
    fn a_path_segment_is_decoded() {
        for uri in [
            "/products/a%20%C3%BC/buy",
            "http://host/products/a%20%c3%bc?q=/1/2",
        ] {
            assert_eq!(key(path_segment(1), uri), some("a ü"), "{uri}");
            assert_eq!(key(path_segment(0), uri), some("products"));
        }
        assert_eq!(key(path_segment(1), "/products/a%2Fb"), some("a/b"));
        assert_eq!(key(path_segment(1), "/products/a+b"), some("a+b"));
        assert_eq!(
            key(path_segment(1), "/products/%FF"),
            some([0xff].as_slice())
        );
        assert_eq!(key(path_segment(1), "/products/A"), some("A"));
        assert_ne!(key(path_segment(1), "/products/A"), some("a"));
        // Not an escape sequence.
        assert_eq!(key(path_segment(1), "/products/100%"), some("100%"));
    }

    #[test]
    fn a_path_segment_may_be_missing_or_empty() {
        assert_eq!(key(path_segment(1), "/products"), None);
        assert_eq!(key(path_segment(1), "/products/"), some(""));
        assert_eq!(key(path_segment(1), "/products//buy"), some(""));
        assert_eq!(key(path_segment(0), "/"), some(""));
        assert_eq!(key(path_segment(usize::MAX), "/products"), None);
        for uri in ["*", "host:80"] {
            assert_eq!(key(path_segment(0), uri), None, "{uri}");
            assert_eq!(key(path(), uri), None, "{uri}");
        }
    }

    #[test]
    fn a_path_is_compared_by_segments() {
        assert_eq!(key(path(), "/a%62/c?q"), key(path(), "/ab/%63"));
        let different = [
            "/a/b", "/a%2Fb", "/a/b/", "/A/b", "//a/b", "/a", "/", "/a/./b",
        ];
        for (i, one) in different.iter().enumerate() {
            for other in &different[i + 1..] {
                assert_ne!(key(path(), one), key(path(), other), "{one} {other}");
            }
        }
    }

    #[test]
    fn a_query_parameter_is_decoded() {
        let id = || query("id");
        assert_eq!(key(id(), "/?x=1&id=a+b%2B%37"), some("a b+7"));
        assert_eq!(key(id(), "/?%69d=7&id=8"), some("7"));
        assert_eq!(key(id(), "/?id"), some(""));
        assert_eq!(key(id(), "/?ID=7&idx=7"), None);
        assert_eq!(key(id(), "/id=7"), None);
    }

    #[test]
    fn a_header_is_used_unchanged() {
        let request = Request::get("/")
            .header("x-tenant", "Acme 7")
            .header("x-tenant", "other")
            .body(())
            .unwrap();
        let tenant = header(HeaderName::from_static("x-tenant"));
        assert_eq!(tenant.key(&request), some("Acme 7"));
        assert_eq!(header("X-Tenant").key(&request), some("Acme 7"));
        assert_eq!(header("x tenant").key(&request), None);
        assert_eq!(header(http::header::HOST).key(&request), None);
    }

    #[test]
    fn each_spelling_of_a_parsed_value_is_one_key() {
        for uri in [
            "/products/7",
            "/products/07",
            "/products/+7",
            "/products/%37",
        ] {
            assert_eq!(
                key(path_segment(1).parse::<u64>(), uri),
                some(7_u64),
                "{uri}"
            );
        }
        for uri in [
            "/products/seven",
            "/products/-7",
            "/products/%FF",
            "/products",
        ] {
            assert_eq!(key(path_segment(1).parse::<u64>(), uri), None, "{uri}");
        }
        assert_eq!(key(query("id").parse::<u8>(), "/?id=%2B07"), some(7_u64));
        let request = Request::get("/")
            .header("x-account", "0042")
            .body(())
            .unwrap();
        assert_eq!(
            header("x-account").parse::<i32>().key(&request),
            some(42_u64)
        );
    }

    #[test]
    fn all_keys_of_a_tuple_must_be_present() {
        let pair = (path_segment(0), query("id"));
        assert_eq!(key(pair.clone(), "/a?id=b"), Some(Key::joined(["a", "b"])));
        assert_eq!(key(pair.clone(), "/a"), None);
        let more = (path_segment(0), |_: &Request<()>| 7, pair);
        assert_eq!(
            key(more, "/a?id=b"),
            Some(Key::joined(["a", "7", "a", "b"]))
        );
    }
}
