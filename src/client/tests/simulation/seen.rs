//! What happened in some runs.

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    pub(super) events: u64,
    pub(super) granted: u64,
    pub(super) refused: u64,
    pub(super) pushed: u64,
    pub(super) cancelled: u64,
    pub(super) lost: u64,
    pub(super) late: u64,
    pub(super) lapsed: u64,
    /// Went in on another's ticket.
    pub(super) passed_on: u64,
    /// Went in on a ticket that came from hand to hand.
    pub(super) handed_on: u64,
    /// Went in on a ticket that lingered.
    pub(super) lingered: u64,
    /// Had only renewals to say, and waited for the turn.
    pub(super) no_turn: u64,
}

impl Seen {
    pub(super) fn add(&mut self, other: Self) {
        self.events += other.events;
        self.granted += other.granted;
        self.refused += other.refused;
        self.pushed += other.pushed;
        self.cancelled += other.cancelled;
        self.lost += other.lost;
        self.late += other.late;
        self.lapsed += other.lapsed;
        self.passed_on += other.passed_on;
        self.handed_on += other.handed_on;
        self.lingered += other.lingered;
        self.no_turn += other.no_turn;
    }

    /// The runs are worth something only if everything happens in them.
    pub(super) fn check(self) {
        let Self {
            granted,
            refused,
            pushed,
            cancelled,
            lost,
            late,
            lapsed,
            passed_on,
            handed_on,
            lingered,
            no_turn,
            events: _,
        } = self;
        for often in [
            granted, refused, pushed, cancelled, lost, late, lapsed, passed_on, handed_on,
            lingered, no_turn,
        ] {
            assert!(often > 100, "{self:?}");
        }
    }
}
