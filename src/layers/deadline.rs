//! The deadline of a request, which bounds its wait for a permit.

use crate::clock::{later, now};
use http::{HeaderMap, Request};
use std::time::Duration;
use tokio::time::Instant;

/// A request's own deadline, in its extensions: it waits for a permit until then at most, and is rejected with
/// [`WaitTimeout`](crate::ErrorKind::WaitTimeout).
///
/// The `grpc-timeout` header of a request is a deadline too; the earlier one applies. A wait in `poll_ready` belongs to no
/// request yet: [`acquire_in_call`](crate::DistributedConcurrencyLimitLayer::acquire_in_call) moves it to the request.
///
/// The limit sees deadlines with the policies [`AsResponse`](super::AsResponse) and
/// [`AsErrorWithHandle`](super::AsErrorWithHandle), which require HTTP requests. The keyed layers also see this value in the
/// extensions with [`AsError`](super::AsError).
///
/// ```
/// use std::time::Duration;
/// use http::Request;
/// use tower_permit::layers::Deadline;
///
/// let mut request = Request::new("");
/// request.extensions_mut().insert(Deadline::after(Duration::from_millis(200)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Instant);

// === impl Deadline ===

impl Deadline {
    /// Returns the deadline this long from now.
    pub fn after(timeout: Duration) -> Self {
        Self(later(now(), timeout))
    }

    /// Returns the deadline of a request that arrives now.
    pub(crate) fn of<B>(request: &Request<B>) -> Option<Self> {
        let set = request.extensions().get::<Self>().copied();
        let grpc = grpc_timeout(request.headers()).map(Self::after);
        [set, grpc].into_iter().flatten().min()
    }

    /// Returns the time until the deadline.
    pub(crate) fn remaining(self) -> Duration {
        self.0.saturating_duration_since(now())
    }
}

/// Returns the timeout of a gRPC request: at most eight digits and a unit. Others are ignored, as by other servers.
fn grpc_timeout(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = value.split_at_checked(value.len().checked_sub(1)?)?;
    if digits.len() > 8 || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(count * 3600),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grpc_timeout_has_digits_and_a_unit() {
        let timeout = |value: &str| {
            let request = Request::get("/").header("grpc-timeout", value).body(());
            grpc_timeout(request.unwrap().headers())
        };
        assert_eq!(timeout("200m"), Some(Duration::from_millis(200)));
        assert_eq!(
            timeout("99999999H"),
            Some(Duration::from_secs(359_999_996_400))
        );
        for (value, nanos) in [
            ("1S", 1_000_000_000),
            ("2M", 120_000_000_000),
            ("3u", 3000),
            ("4n", 4),
        ] {
            assert_eq!(timeout(value), Some(Duration::from_nanos(nanos)), "{value}");
        }
        for value in [
            "",
            "m",
            "1",
            "1s",
            "-1S",
            "+1S",
            "1.5S",
            "123456789S",
            "1 S",
            "ü",
        ] {
            assert_eq!(timeout(value), None, "{value:?}");
        }
    }
}
