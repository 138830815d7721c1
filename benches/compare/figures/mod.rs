//! What is measured, and what is to be reached.

pub(crate) mod fleet;
pub(crate) mod flood;
pub(crate) mod growth;
pub(crate) mod keyed;
pub(crate) mod latency;
pub(crate) mod single;

use crate::measure::{Plan, median};
use std::fmt;

/// One line of the output.
pub(crate) struct Figure {
    pub(crate) about: About,
    pub(crate) ours: f64,
    pub(crate) other: f64,
}

/// What the ratio should be.
#[derive(Clone, Copy)]
pub(crate) enum Target {
    AtLeast(f64),
    AtMost(f64),
    /// Shown for comparison.
    None,
}

/// What a figure says besides its numbers.
#[derive(Clone, Copy)]
pub(crate) struct About {
    pub(crate) name: &'static str,
    pub(crate) target: Target,
    /// What ours and the other's are.
    pub(crate) unit: &'static str,
    /// What is done, and who the other is.
    pub(crate) what: &'static str,
}

/// All waits of one way to wait, in milliseconds.
pub(crate) struct Waits {
    pub(crate) label: &'static str,
    pub(crate) millis: Vec<f64>,
}

/// What has been measured so far.
pub(crate) struct Results {
    pub(crate) plan: Plan,
    wanted: Vec<String>,
    pub(crate) figures: Vec<Figure>,
    pub(crate) waits: Vec<Waits>,
    /// Each with its reason.
    pub(crate) not_measured: Vec<String>,
}

// === impl Figure ===

impl Figure {
    /// Ours by the other's.
    pub(crate) fn ratio(&self) -> f64 {
        self.ours / self.other
    }

    /// What the ratio should be, and whether it is.
    pub(crate) fn verdict(&self) -> String {
        let (sign, bound, met) = match self.about.target {
            Target::AtLeast(bound) => (">=", bound, self.ratio() >= bound),
            Target::AtMost(bound) => ("<=", bound, self.ratio() <= bound),
            Target::None => return "-".to_owned(),
        };
        format!("{sign} {bound} {}", if met { "ok" } else { "missed" })
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:<36} {:>10} {:>10} {:>8} {:>16}",
            self.about.name,
            number(self.ours),
            number(self.other),
            number(self.ratio()),
            self.verdict()
        )
    }
}

// === impl Results ===

impl Results {
    pub(crate) fn new(plan: Plan, wanted: Vec<String>) -> Self {
        Self {
            plan,
            wanted,
            figures: Vec::new(),
            waits: Vec::new(),
            not_measured: Vec::new(),
        }
    }

    /// Whether a figure is asked for.
    pub(crate) fn wants(&self, about: About) -> bool {
        let mut wanted = self.wanted.iter();
        self.wanted.is_empty() || wanted.any(|part| about.name.contains(part))
    }

    /// Adds a figure by what each side gave in every round: the medians, and their ratio.
    pub(crate) fn add(&mut self, about: About, (ours, other): (Vec<f64>, Vec<f64>)) {
        let (ours, other) = (median(ours), median(other));
        self.add_values(about, ours, other);
    }

    /// Adds a figure, if it is wanted.
    pub(crate) fn add_values(&mut self, about: About, ours: f64, other: f64) {
        if !self.wants(about) {
            return;
        }
        let figure = Figure { about, ours, other };
        println!("{figure}");
        self.figures.push(figure);
    }
}

/// Three digits, or all before the point.
pub(crate) fn number(value: f64) -> String {
    let digits = match value.abs() {
        100.0.. => 0,
        10.0.. => 1,
        1.0.. => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}
