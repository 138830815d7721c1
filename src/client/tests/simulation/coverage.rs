//! How often each kind of event happened in the runs.

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Coverage {
    pub(super) events: u64,
    pub(super) granted: u64,
    pub(super) refused: u64,
    pub(super) pushed: u64,
    pub(super) cancelled: u64,
    pub(super) lost: u64,
    pub(super) late: u64,
    pub(super) lapsed: u64,
    /// Served with another waiter's ticket.
    pub(super) swapped: u64,
    /// Served by hand-off.
    pub(super) handed_off: u64,
    /// Served with a lingering permit.
    pub(super) lingered: u64,
    /// Had only renewals to send, and waited for a turn.
    pub(super) no_turn: u64,
}

impl Coverage {
    pub(super) fn add(&mut self, other: Self) {
        self.events += other.events;
        self.granted += other.granted;
        self.refused += other.refused;
        self.pushed += other.pushed;
        self.cancelled += other.cancelled;
        self.lost += other.lost;
        self.late += other.late;
        self.lapsed += other.lapsed;
        self.swapped += other.swapped;
        self.handed_off += other.handed_off;
        self.lingered += other.lingered;
        self.no_turn += other.no_turn;
    }

    /// Checks that every kind of event happened often enough.
    pub(super) fn check(self) {
        let Self {
            granted,
            refused,
            pushed,
            cancelled,
            lost,
            late,
            lapsed,
            swapped,
            handed_off,
            lingered,
            no_turn,
            events: _,
        } = self;
        for often in [
            granted, refused, pushed, cancelled, lost, late, lapsed, swapped, handed_off, lingered,
            no_turn,
        ] {
            assert!(often > 100, "{self:?}");
        }
    }
}
