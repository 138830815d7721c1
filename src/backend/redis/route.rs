//! Where a command goes: a cluster has a node for each slot.

use crate::backend::{Call, call_time};
use crate::name::Queue;
use std::time::Duration;

#[cfg(feature = "redis-cluster")]
pub(super) const SLOTS: u16 = 16_384;

/// The slot of a command, and for how long it is sent again while the cluster is being changed.
#[derive(Clone, Copy)]
pub(super) struct Route {
    #[cfg(feature = "redis-cluster")]
    pub(super) slot: u16,
    #[cfg(feature = "redis-cluster")]
    pub(super) retry_for: Duration,
}

// === impl Route ===

impl Route {
    /// The route of a call, with retries that leave time for its answer.
    pub(super) fn of_call(call: &Call) -> Self {
        Self::of(&call.queue, call_time(call.lease) * 3 / 4)
    }

    #[cfg_attr(not(feature = "redis-cluster"), allow(unused_variables))]
    pub(super) fn of(queue: &Queue, retry_for: Duration) -> Self {
        Self {
            #[cfg(feature = "redis-cluster")]
            slot: slot(queue),
            #[cfg(feature = "redis-cluster")]
            retry_for,
        }
    }
}

/// Returns the slot of all keys of a queue: CRC16 of the hash tag.
#[cfg(feature = "redis-cluster")]
pub(super) fn slot(queue: &Queue) -> u16 {
    let crc = queue.name().bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| match crc & 0x8000 {
            0 => crc << 1,
            _ => (crc << 1) ^ 0x1021,
        })
    });
    crc % SLOTS
}
