//! What stands in etcd: keys, values, and what its errors mean.

use super::line::{Line, Place};
use crate::backend::tls::{self, System};
use crate::error::{Error, ErrorKind};
use crate::name::{Node, Queue};
use etcd_client::{GetOptions, GetResponse, KeyValue};

pub(super) const ETCD: System = System {
    name: "etcd",
    builder: "Etcd",
    plain: "an http:// address",
};

/// Why a call has failed.
#[derive(Clone, Debug)]
pub(super) enum Failure {
    /// The lease that the call was about has ended.
    LeaseGone,
    Other(Error),
}

/// What to do about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remedy {
    /// Another server may do, or the same one over a new connection.
    Elsewhere,
    None,
}

/// The keys of one name end with the ticket.
pub(super) fn line_prefix(prefix: &str, queue: &Queue) -> String {
    format!("{prefix}/{}/{}/", queue.kind().as_str(), queue.name())
}

/// The key of a session: who changes it fences off every write of that session that is still on its way.
pub(super) fn fence(prefix: &str, node: &Node) -> String {
    format!("{prefix}/session/{}", node.as_str())
}

/// What a ticket's key holds.
pub(super) fn value(limit: u32, lease: std::time::Duration) -> String {
    format!("{limit} {}", lease.as_millis())
}

/// Options that read all keys with a prefix.
pub(super) fn all() -> Option<GetOptions> {
    Some(GetOptions::new().with_prefix())
}

/// The ticket of a key. `None`: it is none of this line.
pub(super) fn ticket<'a>(key: &'a [u8], prefix: &str) -> Option<&'a str> {
    let ticket = std::str::from_utf8(key).ok()?.strip_prefix(prefix)?;
    let (node, number) = ticket.rsplit_once('-')?;
    let plain = !node.is_empty() && !ticket.contains('/') && number.parse::<u64>().is_ok();
    plain.then_some(ticket)
}

/// The place that a key is. What somebody else has put there is ignored.
pub(super) fn place(kv: &KeyValue, prefix: &str) -> Option<(i64, Place)> {
    let ticket = ticket(kv.key(), prefix)?;
    let (limit, lease) = kv.value_str().ok()?.split_once(' ')?;
    let place = Place {
        ticket: ticket.to_owned(),
        limit: limit.parse().ok()?,
        lease: lease.parse().ok()?,
        bound_to: kv.lease(),
    };
    Some((kv.create_revision(), place))
}

/// A listing, as of a revision.
pub(super) fn line(listing: &GetResponse, revision: i64, prefix: &str) -> Line {
    let places = listing.kvs().iter().filter_map(|kv| place(kv, prefix));
    Line::new(revision, places)
}

/// The number of a ticket of this node.
pub(super) fn own_number(ticket: &str, node: &Node) -> Option<u64> {
    let number = ticket.strip_prefix(node.as_str())?.strip_prefix('-')?;
    let number: u64 = number.parse().ok()?;
    (node.ticket(number) == ticket).then_some(number)
}

/// The queue and the number that a key of this node's is for.
pub(super) fn own_key(key: &[u8], prefix: &str, node: &Node) -> Option<(Queue, u64)> {
    let key = std::str::from_utf8(key).ok()?;
    let (kind, rest) = key
        .strip_prefix(prefix)?
        .strip_prefix('/')?
        .split_once('/')?;
    let (name, ticket) = rest.split_once('/')?;
    Some((Queue::from_encoded(kind, name)?, own_number(ticket, node)?))
}

// --- errors ---

/// etcd's error in our words, and what may help.
pub(super) fn failure(error: &etcd_client::Error, server: &str) -> (Failure, Remedy) {
    use etcd_client::Error as E;
    match error {
        E::GRpcStatus(status) => {
            if let Some(error) = of_tls(status, server) {
                return (Failure::Other(error), Remedy::Elsewhere);
            }
            let text = status.message();
            if text.contains("requested lease not found") {
                return (Failure::LeaseGone, Remedy::None);
            }
            refusal(text, server).map_or_else(
                || (unavailable(server, &with_cause(status)), Remedy::Elsewhere),
                |(error, remedy)| (Failure::Other(error), remedy),
            )
        }
        E::LeaseKeepAliveError(text) if text.contains("not found") => {
            (Failure::LeaseGone, Remedy::None)
        }
        E::TransportError(error) => {
            let of_tls = of_tls(error, server).map(Failure::Other);
            let failure = of_tls.unwrap_or_else(|| unavailable(server, &with_cause(error)));
            (failure, Remedy::Elsewhere)
        }
        other => (unavailable(server, &other.to_string()), Remedy::Elsewhere),
    }
}

/// What TLS has against it. Another server may have, or want, another certificate.
pub(super) fn of_tls(error: &(dyn std::error::Error + 'static), server: &str) -> Option<Error> {
    if let Some(said) = tls::said(error) {
        return Some(tls::in_words(said, &ETCD, server));
    }
    // A client's certificate is refused after the client thinks that all is well: the words are all that is left of it.
    let words = with_cause(error);
    (words.contains("fatal alert")).then(|| tls::not_let_in(&words, &ETCD, server))
}

/// It closed the connection, and did not say why; or it did, and nobody has heard it.
pub(super) fn hung_up(error: &etcd_client::Error) -> bool {
    use etcd_client::Error as E;
    let words = match error {
        E::GRpcStatus(status) => with_cause(status),
        E::TransportError(error) => with_cause(error),
        _ => return false,
    };
    words.contains("closed") || words.contains("eof")
}

/// What etcd refuses for good, by its own words: its codes say less.
fn refusal(text: &str, server: &str) -> Option<(Error, Remedy)> {
    let denied = |what: &str| Error::new(ErrorKind::Denied, format!("etcd at {server} {what}"));
    if text.contains("invalid auth token") || text.contains("revision in header is old") {
        // A new connection brings a new token.
        return Some((
            Error::new(
                ErrorKind::Unavailable,
                format!("etcd at {server} wants us to log in again"),
            ),
            Remedy::Elsewhere,
        ));
    }
    let error = if text.contains("invalid user ID or password") {
        denied("does not accept this user and password")
    } else if text.contains("user name is empty") || text.contains("user name not found") {
        denied("wants a user and a password")
    } else if text.contains("authentication is not enabled") {
        denied("has no authentication enabled, but a user is given: leave it out")
    } else if text.contains("permission denied") {
        denied("does not give this user the right to read and write under our prefix")
    } else {
        return None;
    };
    Some((error, Remedy::None))
}

/// An error with the innermost reason for it, which alone says something.
fn with_cause(error: &dyn std::error::Error) -> String {
    let mut innermost = error.source();
    while let Some(deeper) = innermost.and_then(|e| e.source()) {
        innermost = Some(deeper);
    }
    match innermost {
        Some(cause) => cause.to_string(),
        None => error.to_string(),
    }
}

fn unavailable(server: &str, why: &str) -> Failure {
    Failure::Other(Error::new(
        ErrorKind::Unavailable,
        format!("etcd at {server} does not answer: {why}"),
    ))
}

/// It took too long.
pub(super) fn silent(server: &str) -> Failure {
    Failure::Other(Error::new(
        ErrorKind::Unavailable,
        format!("etcd at {server} does not answer"),
    ))
}

pub(super) fn nonsense() -> Error {
    Error::new(
        ErrorKind::Incompatible,
        "etcd answered something that no etcd answers",
    )
}

/// The call began under a lease that has ended since.
pub(super) fn lease_ended() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the lease of this process ended during the call",
    )
}

// === impl Failure ===

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::LeaseGone => lease_ended(),
            Failure::Other(error) => error,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Other(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tickets_are_tickets() {
        let ticket = |key: &str| ticket(key.as_bytes(), "p/limit/a/").map(str::to_owned);
        assert_eq!(ticket("p/limit/a/n-1-ff-7").as_deref(), Some("n-1-ff-7"));
        for other in [
            "p/limit/a/",
            "p/limit/a/n",
            "p/limit/a/b/n-7",
            "p/limit/ab/n-7",
            "p/limit/a/-7",
        ] {
            assert_eq!(ticket(other), None, "{other}");
        }
    }

    #[test]
    fn a_number_is_written_in_one_way_only() {
        let node = Node::of_this_process();
        assert_eq!(own_number(&node.ticket(7), &node), Some(7));
        assert_eq!(own_number(&format!("{}-07", node.as_str()), &node), None);
        assert_eq!(own_number(&format!("x{}", node.ticket(7)), &node), None);
    }
}
