//! Which faults a run has, and how often. All of it follows from the seed.

/// How likely each fault is in this run, in thousandths.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    pub(super) request_lost: u64,
    pub(super) reply_lost: u64,
    pub(super) slow: u64,
    pub(super) late: u64,
    pub(super) twice: u64,
    pub(super) push_lost: u64,
    pub(super) push_late: u64,
    pub(super) push_twice: u64,
    pub(super) pause: u64,
    pub(super) kill: u64,
    pub(super) stall: u64,
    pub(super) flush: u64,
    pub(super) evict: u64,
    pub(super) limits: u64,
    pub(super) resync: u64,
    pub(super) close: u64,
    pub(super) long_holds: u64,
    pub(super) driver_dropped: u64,
    /// The renewals of other names get the turn.
    pub(super) no_turn: u64,
}

/// SplitMix64: its sequence is the same on every platform and in every version.
pub(super) struct Rng(u64);

impl Faults {
    /// Returns the faults of the run with this seed. `brief`: everything takes a few milliseconds only.
    pub(super) fn of(seed: u64, brief: bool, rng: &mut Rng) -> Self {
        let mut level = |most: u64| {
            if rng.chance(400) {
                0
            } else {
                rng.below(most + 1)
            }
        };
        let mut faults = Self {
            request_lost: level(150),
            reply_lost: level(150),
            slow: level(200),
            late: level(200),
            twice: level(80),
            push_lost: level(300),
            push_late: level(400),
            push_twice: level(200),
            pause: level(20),
            kill: level(4),
            stall: level(6),
            flush: level(4),
            evict: level(10),
            limits: level(10),
            resync: level(10),
            close: level(2),
            long_holds: level(400),
            driver_dropped: level(20),
            no_turn: level(900),
        };
        // After a flush or an eviction much is allowed: most runs have none.
        if !seed.is_multiple_of(4) {
            faults.flush = 0;
        }
        if seed % 4 != 1 {
            faults.evict = 0;
        }
        // The strictest bound holds if all nodes have the same limit.
        if !seed.is_multiple_of(2) {
            faults.limits = 0;
        }
        if seed % 8 == 7 {
            faults.push_lost = 1000;
        }
        if brief {
            // Some permits are held for so long that they are renewed, and limits change while permits linger.
            faults.long_holds = faults.long_holds.min(20);
            faults.limits *= 10;
        }
        faults
    }
}

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `end`, which may be 0.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    pub(super) fn chance(&mut self, thousandths: u64) -> bool {
        self.below(1000) < thousandths
    }
}
