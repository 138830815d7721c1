//! Decodes pushed grants: `kind:name ticket token ticket token …`.

use crate::backend::{Event, Grant};
use crate::name::Queue;
use redis::Value;

/// Returns the grants of a message on this channel. Any other message is ignored.
pub(super) fn grants(message: &[Value], channel: &str) -> Vec<Event> {
    let [Value::BulkString(received_on), Value::BulkString(payload)] = message else {
        return Vec::new();
    };
    if received_on != channel.as_bytes() {
        return Vec::new();
    }
    let payload = std::str::from_utf8(payload).ok();
    payload.and_then(decode).unwrap_or_default()
}

fn decode(payload: &str) -> Option<Vec<Event>> {
    let mut words = payload.split(' ');
    let (kind, name) = words.next()?.split_once(':')?;
    let queue = Queue::from_encoded(kind, name)?;
    let mut events = Vec::new();
    while let Some(ticket) = words.next() {
        let grant = Grant {
            ticket: ticket.parse().ok()?,
            token: words.next()?.parse().ok()?,
        };
        let queue = queue.clone();
        events.push(Event::Granted { queue, grant });
    }
    Some(events)
}
