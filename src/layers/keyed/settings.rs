//! The settings that only keyed layers have.

use crate::layers::settings::{OnLost, Settings};

/// What a keyed layer does with a request without a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnMissingKey {
    /// Rejects it with [`ErrorKind::MissingKey`](crate::ErrorKind::MissingKey); as a response, with status 400. The default:
    /// else a client would avoid its limit by leaving out the key.
    #[default]
    Reject,
    /// Admits it without a permit.
    Pass,
}

/// The settings of one keyed layer, copied into its services.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyedSettings {
    pub(super) common: Settings,
    pub(super) max_waiting_total: usize,
    pub(super) on_missing_key: OnMissingKey,
}

const MAX_WAITING_TOTAL: usize = 16 * 1024;

// === impl KeyedSettings ===

impl KeyedSettings {
    pub(super) fn new(on_lost: OnLost) -> Self {
        Self {
            common: Settings {
                on_lost,
                ..Settings::default()
            },
            max_waiting_total: MAX_WAITING_TOTAL,
            on_missing_key: OnMissingKey::default(),
        }
    }
}
