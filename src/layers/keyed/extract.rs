//! Where the key of an HTTP request is found.

use super::key::{Key, KeyExtractor};
use http::HeaderName;
use percent_encoding::percent_decode_str;
use std::borrow::Cow;

/// The extractor that [`path`] makes.
#[derive(Clone, Copy, Debug)]
pub struct Path {}

/// The extractor that [`path_segment`] makes.
#[derive(Clone, Copy, Debug)]
pub struct PathSegment {
    index: usize,
}

/// The extractor that [`header`] makes.
#[derive(Clone, Debug)]
pub struct Header {
    name: HeaderName,
}

/// The extractor that [`query`] makes.
#[derive(Clone, Debug)]
pub struct Query {
    name: Cow<'static, str>,
}

/// The key is the whole path, segment by segment, each percent-decoded.
///
/// Different spellings of one path are one key: `/a%62` is `/ab`, but `/a%2Fb`, which is one segment, is not `/a/b`.
/// Upper and lower case, a slash at the end and dots all make a difference, as they do for a router. The query is no part
/// of it.
pub fn path() -> Path {
    Path {}
}

/// The key is one segment of the path, percent-decoded, counted from 0: of `/products/7/buy`, segment 1 is `7`.
///
/// `%37` is `7` too, so that two spellings of one product are one key; upper and lower case are kept apart, and so are `7`
/// and `07`: if the service takes them for one, let a closure do the same. A plus sign is a plus sign. A path that has no
/// such segment has no key; one that is empty (`/products//buy`) is the empty key.
///
/// The path is the one that the layer sees. Within a router that is nested, axum has cut the prefix off: for
/// `nest("/api", inner)`, a layer on `inner` counts from behind `/api`, and a layer on the outer router counts the `api`
/// too.
pub fn path_segment(index: usize) -> PathSegment {
    PathSegment { index }
}

/// The key is the value of this header, as it is. If there are several of the name, the first.
///
/// A value that nobody should see in the backend or the log, such as a password, is for a closure to hash.
pub fn header(name: HeaderName) -> Header {
    Header { name }
}

/// The key is the value of this parameter of the query, decoded as a form is: `%37` is `7`, and a plus sign is a space.
/// If there are several of the name, the first; a service that goes by the last, as a map of the parameters does, should
/// refuse such a request, or the key is not that of what it does.
pub fn query(name: impl Into<Cow<'static, str>>) -> Query {
    Query { name: name.into() }
}

// === impl KeyExtractor ===

macro_rules! extractors {
    ($($extractor:ty, |$this:ident, $request:ident| $key:expr;)*) => {$(
        impl<B> KeyExtractor<http::Request<B>> for $extractor {
            fn key(&self, $request: &http::Request<B>) -> Option<Key> {
                let $this = self;
                $key
            }

            fn extensions(request: &mut http::Request<B>) -> Option<&mut http::Extensions> {
                Some(request.extensions_mut())
            }
        }
    )*};
}

extractors! {
    Path, |_this, request| segments(request.uri()).map(Key::joined);
    PathSegment, |this, request| segments(request.uri())?.nth(this.index).map(Key::from);
    Header, |this, request| request.headers().get(&this.name).map(|value| value.as_bytes().into());
    Query, |this, request| parameter(request.uri(), &this.name);
}

/// Those of a path that has any: `*` and the authority of a `CONNECT` have none.
fn segments(uri: &http::Uri) -> Option<impl Iterator<Item = Vec<u8>>> {
    let path = uri.path().strip_prefix('/')?;
    Some(
        path.split('/')
            .map(|part| percent_decode_str(part).collect()),
    )
}

fn parameter(uri: &http::Uri, name: &str) -> Option<Key> {
    let mut pairs = form_urlencoded::parse(uri.query()?.as_bytes());
    let (_, value) = pairs.find(|(key, _)| key == name)?;
    Some(value.into())
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
    fn a_segment_is_decoded() {
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
        // Not an escape at all.
        assert_eq!(key(path_segment(1), "/products/100%"), some("100%"));
    }

    #[test]
    fn a_segment_may_be_missing_or_empty() {
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
    fn a_path_is_its_segments() {
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
    fn a_parameter_is_decoded() {
        let id = || query("id");
        assert_eq!(key(id(), "/?x=1&id=a+b%2B%37"), some("a b+7"));
        assert_eq!(key(id(), "/?%69d=7&id=8"), some("7"));
        assert_eq!(key(id(), "/?id"), some(""));
        assert_eq!(key(id(), "/?ID=7&idx=7"), None);
        assert_eq!(key(id(), "/id=7"), None);
    }

    #[test]
    fn a_header_is_taken_as_it_is() {
        let request = Request::get("/")
            .header("x-tenant", "Acme 7")
            .header("x-tenant", "other")
            .body(())
            .unwrap();
        let tenant = header(HeaderName::from_static("x-tenant"));
        assert_eq!(tenant.key(&request), some("Acme 7"));
        assert_eq!(header(http::header::HOST).key(&request), None);
    }

    #[test]
    fn all_of_a_tuple_must_be_there() {
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
