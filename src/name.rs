//! Names, encoded so that every backend can store them, and the identity of this node.

use crate::error::Error;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use rustc_hash::FxBuildHasher;
use sha2::{Digest, Sha256};
use std::fmt;
use std::hash::BuildHasher;
use std::sync::Arc;

/// Longer names are an error, in bytes.
const MAX_NAME: usize = 64 * 1024;
/// Longer encoded names are cut and end with a hash, in characters.
const MAX_ENCODED: usize = 128;
/// How many characters of a cut name are kept before the hash.
const CUT_LENGTH: usize = 80;

/// Everything outside `A-Z a-z 0-9 - _ . :` is percent-encoded: no brace (Redis hash tags), no slash (paths), no `~`
/// (marks empty and cut names), no `+` (joins parts), no control character (logs).
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b':');

/// An encoded name with its kind: a semaphore and a mutex with one name are different queues.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Queue {
    kind: Kind,
    name: Arc<str>,
}

/// The kind of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// The queue of a semaphore.
    Limit,
    /// The queue of a mutex: its limit is 1, and its permits have fencing tokens.
    Mutex,
}

/// One run of one process, as the backend stores it: `host-pid-random`.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Node(Arc<str>);

// === impl Queue ===

impl Queue {
    /// Returns the queue of a semaphore with this name.
    pub(crate) fn limit(name: &[u8]) -> Result<Self, Error> {
        Self::new(Kind::Limit, &[name])
    }

    /// Returns the queue of a mutex with this name.
    pub(crate) fn mutex(name: &[u8]) -> Result<Self, Error> {
        Self::new(Kind::Mutex, &[name])
    }

    /// Returns the queue of these parts, joined: a layer's name and the parts of a key. Different parts give different
    /// queues.
    pub(crate) fn new(kind: Kind, parts: &[&[u8]]) -> Result<Self, Error> {
        let length = parts.iter().map(|part| part.len()).sum::<usize>();
        if length > MAX_NAME {
            return Err(Error::config(format!(
                "a name of {length} bytes is too long: use at most {MAX_NAME}"
            )));
        }
        let mut name = String::with_capacity(length + parts.len());
        for (index, part) in parts.iter().enumerate() {
            if index > 0 {
                name.push('+');
            }
            name.extend(percent_encode(part, ESCAPED));
        }
        let name = shorten(name).into();
        Ok(Self { kind, name })
    }

    /// Returns the queue with this kind and this encoded name, as a backend returns them. `None` if the name is not an
    /// encoded one: anyone with write access to the backend may have sent it.
    #[cfg_attr(not(feature = "redis"), allow(dead_code))]
    pub(crate) fn from_encoded(kind: &str, name: &str) -> Option<Self> {
        let kind = [Kind::Limit, Kind::Mutex]
            .into_iter()
            .find(|k| k.as_str() == kind)?;
        let safe = |c: char| c.is_ascii_alphanumeric() || "-_.:%~+".contains(c);
        let fits = !name.is_empty() && name.len() <= MAX_ENCODED && name.chars().all(safe);
        let name = name.into();
        fits.then_some(Self { kind, name })
    }

    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns a hash that names of one group share: the keys of one layer, or names that are equal up to their first digit.
    pub(crate) fn group(&self) -> u64 {
        let group = match self.name.split_once('+') {
            Some((layer, _)) => layer,
            None => {
                let escaped = |at: usize| {
                    self.name[..at]
                        .bytes()
                        .rev()
                        .take(2)
                        .any(|byte| byte == b'%')
                };
                let mut digits = self.name.match_indices(|c: char| c.is_ascii_digit());
                let end = digits.find(|(at, _)| !escaped(*at));
                &self.name[..end.map_or(self.name.len(), |(at, _)| at)]
            }
        };
        FxBuildHasher.hash_one((self.kind, group))
    }

    pub(crate) fn shared_name(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    /// Returns the encoded name, as keys of the backend, logs and errors show it.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind.as_str(), self.name)
    }
}

// === impl Kind ===

impl Kind {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::Mutex => "mutex",
        }
    }
}

// === impl Node ===

impl Node {
    /// Creates a node for this process. Each one is different.
    pub(crate) fn of_this_process() -> Self {
        let host: String = gethostname::gethostname()
            .to_string_lossy()
            .chars()
            .filter(|c| c.is_ascii_alphanumeric() || *c == '.')
            .take(32)
            .collect();
        let (pid, random) = (std::process::id(), rand::random::<u64>());
        Self(format!("{host}-{pid}-{random:016x}").into())
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns a ticket as the backend stores it and `inspect` shows it.
    pub(crate) fn ticket(&self, number: u64) -> String {
        format!("{}-{number}", self.0)
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Cuts a long encoded name. Different names stay different, unless SHA-256 collides.
fn shorten(mut encoded: String) -> String {
    if encoded.is_empty() {
        return "~".to_owned();
    }
    if encoded.len() > MAX_ENCODED {
        let hash = Sha256::digest(&encoded);
        encoded.truncate(CUT_LENGTH);
        encoded.push('~');
        encoded.extend(hash.iter().take(20).map(|byte| format!("{byte:02x}")));
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(parts: &[&[u8]]) -> String {
        Queue::new(Kind::Mutex, parts).unwrap().name().to_owned()
    }

    #[test]
    fn a_plain_name_is_not_encoded() {
        assert_eq!(name(&[b"llm:gpt-5_x.y"]), "llm:gpt-5_x.y");
        assert_eq!(name(&[b"buy", b"10086"]), "buy+10086");
    }

    #[test]
    fn encoded_names_are_distinct_and_safe() {
        let long = [b'a'; 10_000];
        let longer = [b'a'; 10_001];
        let names: &[&[u8]] = &[
            b"",
            b"~",
            b"*",
            b"{}",
            b"{a}",
            b"a}b",
            b"a\nb",
            b"a\0b",
            b"a/b",
            b"a%2Fb",
            b"A",
            b"a",
            b"aa",
            b"\xff\xfe",
            b"%FF",
            b":queue",
            b"a:queue",
            b"a:meta",
            b"a+b",
            b"a+",
            &long,
            &longer,
        ];
        let forms: std::collections::HashSet<String> = names
            .iter()
            .map(|n| name(&[n]))
            .chain([name(&[b"a", b"b"]), name(&[b"a", b""]), name(&[b"", b"a"])])
            .collect();
        assert_eq!(
            forms.len(),
            names.len() + 3,
            "two names have one encoding: {forms:?}"
        );
        for form in forms {
            assert!(form.len() <= MAX_ENCODED, "{form}");
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:%~+".contains(c);
            assert!(form.chars().all(plain), "{form}");
            let queue = Queue::from_encoded("mutex", &form).unwrap();
            assert_eq!(queue.name(), form, "from_encoded accepts it");
        }
    }

    #[test]
    fn names_of_one_layer_or_prefix_share_a_group() {
        let group = |name: &str| Queue::mutex(name.as_bytes()).unwrap().group();
        assert_eq!(group("order:17"), group("order:18"));
        assert_eq!(group("GET /orders/17"), group("GET /orders/18"));
        for (one, other) in [
            ("order:17", "user:17"),
            ("GET /orders/1", "GET /health"),
            ("a", "b"),
        ] {
            assert_ne!(group(one), group(other), "{one} and {other}");
        }
        let key =
            |layer: &str, key: &str| Queue::new(Kind::Limit, &[layer.as_bytes(), key.as_bytes()]);
        assert_eq!(
            key("v1", "a").unwrap().group(),
            key("v1", "b").unwrap().group()
        );
        assert_ne!(
            key("v1", "a").unwrap().group(),
            key("v2", "a").unwrap().group()
        );
    }

    #[test]
    fn from_encoded_rejects_names_that_are_not_encoded() {
        let long = "a".repeat(MAX_ENCODED + 1);
        for name in [
            "",
            "a}:{b",
            "a b",
            "a/b",
            "\n",
            "\u{1b}[31m",
            "\u{e4}",
            long.as_str(),
        ] {
            assert!(Queue::from_encoded("limit", name).is_none(), "{name:?}");
        }
        assert!(Queue::from_encoded("other", "a").is_none());
    }

    #[test]
    fn a_name_that_is_too_long_is_an_error() {
        let error = Queue::limit(&vec![b'a'; MAX_NAME + 1]).unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::InvalidConfig);
    }

    #[test]
    fn nodes_of_one_process_differ() {
        assert_ne!(Node::of_this_process(), Node::of_this_process());
    }
}
