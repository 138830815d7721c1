//! Encoding of a batch for the script and decoding of its reply. `script/arguments.lua` describes both.

use super::keys::{Forms, add_keys};
use super::value::millis;
use crate::backend::{Call, Grant, Outcome, Reply, TicketState};
use crate::name::{Node, Queue};
use redis::{Cmd, RedisError, RedisWrite};
use std::io::Write;
use std::time::Duration;

/// How long keys outlive their tickets, in ms.
const HOUR: u64 = 3_600_000;
/// The kind of a call that names other than one ticket.
const OTHER: u8 = b'O';
/// Most digits of a number.
const DIGITS: usize = 20;

/// How many tickets a call releases, renews, acquires and tries to acquire.
pub(super) type Counts = [usize; 4];

/// The answer about one name.
#[derive(Debug, PartialEq)]
pub(super) struct Answer {
    pub(super) reply: Reply,
    /// The server refused to push to other nodes.
    pub(super) mute: bool,
    /// For each ticket to release: was it held or queued?
    pub(super) existed: Vec<bool>,
}

/// The unread part of a reply.
struct Reader<'a>(&'a [u8]);

pub(super) fn counts(call: &Call) -> Counts {
    groups(call).map(Vec::len)
}

fn groups(call: &Call) -> [&Vec<u64>; 4] {
    [&call.release, &call.renew, &call.acquire, &call.try_acquire]
}

// === encoding ===

/// Adds the arguments of a batch. All calls have the same lease.
pub(super) fn add_batch(
    command: &mut Cmd,
    prefix: &str,
    forms: Forms,
    node: &Node,
    calls: &[Call],
) {
    let queues = calls.iter().map(|call| &call.queue);
    add_keys(command, prefix, forms, node.as_str(), queues);
    let lease = calls.first().map_or(0, |call| millis(call.lease));
    add_node(command, node.as_str(), lease, calls.len());
    let mut data = command.writer_for_next_arg();
    for call in calls {
        let mut digits = [0; DIGITS];
        if let Some((kind, ticket)) = only_ticket(call) {
            add_head(&mut data, kind, call.number, call.limit);
            write(&mut data, &(ticket as f64).to_le_bytes());
            add_ticket(&mut data, decimal(ticket, &mut digits));
            continue;
        }
        add_head(&mut data, OTHER, call.number, call.limit);
        add_counts(&mut data, counts(call));
        for ticket in groups(call).into_iter().flatten() {
            add_ticket(&mut data, decimal(*ticket, &mut digits));
        }
    }
}

/// Returns the ticket of a call that acquires, releases or tries a single one, and the letter of that call.
fn only_ticket(call: &Call) -> Option<(u8, u64)> {
    let groups = groups(call);
    match groups.map(Vec::as_slice) {
        [[ticket], [], [], []] => Some((b'R', *ticket)),
        [[], [], [ticket], []] => Some((b'A', *ticket)),
        [[], [], [], [ticket]] => Some((b'T', *ticket)),
        _ => None,
    }
}

/// Adds the arguments of an eviction: an administrative release of one ticket of any node.
pub(super) fn add_eviction(
    command: &mut Cmd,
    prefix: &str,
    forms: Forms,
    queue: &Queue,
    ticket: &str,
) {
    add_keys(command, prefix, forms, "", [queue]);
    add_node(command, "", 0, 1);
    let mut data = command.writer_for_next_arg();
    add_head(&mut data, OTHER, 0, 0);
    add_counts(&mut data, EVICTION);
    add_ticket(&mut data, ticket.as_bytes());
}

/// The counts of an eviction.
pub(super) const EVICTION: Counts = [1, 0, 0, 0];

fn add_node(command: &mut Cmd, node: &str, lease: u64, names: usize) {
    command
        .arg(node)
        .arg(lease)
        .arg(HOUR + 2 * lease)
        .arg(names);
}

fn add_head(data: &mut impl Write, kind: u8, number: u64, limit: u32) {
    let mut head = [kind; 17];
    head[1..9].copy_from_slice(&(number as f64).to_le_bytes());
    head[9..].copy_from_slice(&f64::from(limit).to_le_bytes());
    write(data, &head);
}

fn add_counts(data: &mut impl Write, counts: Counts) {
    write(
        data,
        counts
            .map(|count| length(count).to_le_bytes())
            .as_flattened(),
    );
}

fn add_ticket(data: &mut impl Write, ticket: &[u8]) {
    write(data, &length(ticket.len()).to_le_bytes());
    write(data, ticket);
}

/// A length or count. Calls and tickets are far shorter.
fn length(count: usize) -> u16 {
    debug_assert!(u16::try_from(count).is_ok());
    count as u16
}

/// Appends to an argument of a command, which cannot fail.
fn write(argument: &mut impl Write, bytes: &[u8]) {
    let _ = argument.write_all(bytes);
}

/// Formats a number. `fmt` would take a measurable part of the time of a large batch.
fn decimal(mut number: u64, digits: &mut [u8; DIGITS]) -> &[u8] {
    let mut start = DIGITS;
    loop {
        start -= 1;
        digits[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &digits[start..];
        }
    }
}

// === decoding ===

/// Decodes the answers to calls with these counts of tickets: an error for each call that the server refused. `None` if the
/// reply is malformed.
pub(super) fn answers(
    reply: &[u8],
    counts: impl Iterator<Item = Counts>,
) -> Option<Vec<Result<Answer, RedisError>>> {
    let mut reader = Reader(reply);
    let answers = counts
        .map(|counts| reader.answer(counts))
        .collect::<Option<Vec<_>>>()?;
    reader.0.is_empty().then_some(answers)
}

// === impl Reader ===

impl<'a> Reader<'a> {
    fn answer(&mut self, counts: Counts) -> Option<Result<Answer, RedisError>> {
        let stale = Answer {
            reply: Reply::Stale,
            mute: false,
            existed: Vec::new(),
        };
        Some(match self.bytes::<1>()? {
            b"s" => Ok(stale),
            b"e" => Err(self.error()?),
            b"f" => Ok(self.outcome(counts, [0.0, 0.0, -1.0, 0.0, 0.0], 0)?),
            b"o" => {
                let token = self.number()?;
                Ok(self.outcome(counts, [1.0, 0.0, -1.0, token, 0.0], 0)?)
            }
            b"g" => {
                let mut numbers = [0.0; 5];
                for number in &mut numbers {
                    *number = self.number()?;
                }
                let grants = self.length()?;
                Ok(self.outcome(counts, numbers, grants)?)
            }
            _ => return None,
        })
    }

    fn outcome(
        &mut self,
        [release, renew, acquire, try_acquire]: Counts,
        [in_use, queued, poll_after, token, mute]: [f64; 5],
        grants: usize,
    ) -> Option<Answer> {
        let token = whole(token)?;
        let released = self.slice(release)?;
        let renewed = self.states(renew, token)?;
        let acquired = self.states(acquire, token)?;
        let tried = self.states(try_acquire, token)?;
        let granted = (0..grants)
            .map(|_| Some(Grant::new(whole(self.number()?)?, whole(self.number()?)?)))
            .collect::<Option<_>>()?;
        Some(Answer {
            existed: released.iter().map(|was| *was != b'0').collect(),
            mute: mute != 0.0,
            reply: Reply::Done(Outcome {
                released: released.iter().map(|was| *was == b'1').collect(),
                renewed,
                acquired,
                tried,
                granted,
                in_use: whole(in_use)?,
                queued: whole(queued)?,
                poll_after: whole(poll_after).map(Duration::from_millis),
            }),
        })
    }

    fn states(&mut self, count: usize, token: u64) -> Option<Vec<TicketState>> {
        let letters = self.slice(count)?;
        letters.iter().map(|letter| state(*letter, token)).collect()
    }

    /// Parses an error of the server, as the `redis` crate does.
    fn error(&mut self) -> Option<RedisError> {
        let length = self.length()?;
        let line = [b"-", self.slice(length)?, b"\r\n"].concat();
        let value = redis::parse_redis_value(&line);
        value.and_then(|value| value.extract_error()).err()
    }

    fn number(&mut self) -> Option<f64> {
        Some(f64::from_le_bytes(*self.bytes()?))
    }

    fn length(&mut self) -> Option<usize> {
        Some(u16::from_le_bytes(*self.bytes()?).into())
    }

    fn slice(&mut self, length: usize) -> Option<&'a [u8]> {
        let (slice, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(slice)
    }

    fn bytes<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(bytes)
    }
}

/// Converts a number of the script to a count.
fn whole(number: f64) -> Option<u64> {
    (number >= 0.0 && number.fract() == 0.0).then_some(number as u64)
}

fn state(letter: u8, token: u64) -> Option<TicketState> {
    match letter {
        b'h' => Some(TicketState::Held { token }),
        b'w' => Some(TicketState::Queued),
        b'r' => Some(TicketState::Refused),
        b'g' => Some(TicketState::Gone),
        _ => None,
    }
}
