//! Arguments and reply of `script/inspect.lua`.

use super::keys::{Forms, GENERAL_SUFFIXES, SINGLE_SUFFIX, add_key};
use super::value::{text, unsigned};
use crate::backend::{Inspection, TicketInfo};
use crate::name::Queue;
use redis::{Cmd, Value};
use std::time::Duration;

/// How many tickets of each kind an inspection lists.
const MAX_LISTED: usize = 1_000;

/// Adds the arguments of an inspection.
pub(super) fn add_inspection(command: &mut Cmd, prefix: &str, forms: Forms, queue: &Queue) {
    let suffixes = match forms {
        Forms::GeneralOnly => &[][..],
        Forms::WithSingleHolder => &[SINGLE_SUFFIX],
    };
    command.arg(GENERAL_SUFFIXES.len() + suffixes.len());
    for suffix in GENERAL_SUFFIXES.iter().chain(suffixes) {
        add_key(command, prefix, queue, suffix);
    }
    command.arg(MAX_LISTED);
}

/// Decodes the reply. `None` if it is malformed.
pub(super) fn decode(value: Value) -> Option<Inspection> {
    let Value::Array(items) = value else {
        return None;
    };
    let [in_use, queued, holders, queue] = <[Value; 4]>::try_from(items).ok()?;
    Some(Inspection {
        holders: tickets(holders)?,
        queue: tickets(queue)?,
        in_use: unsigned(in_use)?,
        queued: unsigned(queued)?,
    })
}

fn tickets(value: Value) -> Option<Vec<TicketInfo>> {
    let Value::Array(items) = value else {
        return None;
    };
    let mut items = items.into_iter();
    let mut tickets = Vec::new();
    while let Some(ticket) = items.next() {
        let ticket = text(ticket)?;
        let left = unsigned(items.next()?)?;
        // A member that another application has added is shown as it is.
        let node = ticket
            .rsplit_once('-')
            .map_or("", |(node, _)| node)
            .to_owned();
        tickets.push(TicketInfo {
            ticket,
            node,
            lease_left: Duration::from_millis(left),
            lingering: false,
        });
    }
    Some(tickets)
}
