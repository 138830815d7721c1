//! The figures and their targets.

pub(crate) mod flood;
pub(crate) mod four_processes;
pub(crate) mod keyed;
pub(crate) mod latency;
pub(crate) mod one_process;
pub(crate) mod scaling;

use crate::measure::{Plan, median};
use std::fmt;

/// A figure: one line of the output.
pub(crate) struct Figure {
    pub(crate) about: About,
    pub(crate) ours: f64,
    pub(crate) other: f64,
}

/// The target for the ratio.
#[derive(Clone, Copy)]
pub(crate) enum Target {
    AtLeast(f64),
    AtMost(f64),
    /// Shown for comparison.
    None,
}

/// The description of a figure.
#[derive(Clone, Copy)]
pub(crate) struct About {
    pub(crate) name: &'static str,
    pub(crate) target: Target,
    /// The unit of both values.
    pub(crate) unit: &'static str,
    /// The work, and the implementation it is compared with.
    pub(crate) what: &'static str,
}

/// All waits of one implementation, in milliseconds.
pub(crate) struct Waits {
    pub(crate) label: &'static str,
    pub(crate) millis: Vec<f64>,
}

/// The figures measured so far.
pub(crate) struct Results {
    pub(crate) plan: Plan,
    wanted: Vec<String>,
    pub(crate) figures: Vec<Figure>,
    pub(crate) waits: Vec<Waits>,
    /// The figures that could not be measured, with the reason.
    pub(crate) not_measured: Vec<String>,
}

// === impl Figure ===

impl Figure {
    /// Returns the value of this crate divided by the other value.
    pub(crate) fn ratio(&self) -> f64 {
        self.ours / self.other
    }

    /// Returns the target of the ratio and whether it is met.
    pub(crate) fn verdict(&self) -> String {
        let (sign, bound, met) = match self.about.target {
            Target::AtLeast(bound) => (">=", bound, self.ratio() >= bound),
            Target::AtMost(bound) => ("<=", bound, self.ratio() <= bound),
            Target::None => return "-".to_owned(),
        };
        format!("{sign} {bound} {}", if met { "met" } else { "not met" })
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

    /// Whether a figure was selected on the command line.
    pub(crate) fn wants(&self, about: About) -> bool {
        let mut wanted = self.wanted.iter();
        self.wanted.is_empty() || wanted.any(|part| about.name.contains(part))
    }

    /// Adds a figure from the values of each round: the medians, and their ratio.
    pub(crate) fn add(&mut self, about: About, (ours, other): (Vec<f64>, Vec<f64>)) {
        let (ours, other) = (median(ours), median(other));
        self.add_values(about, ours, other);
    }

    /// Adds a figure, if it was selected.
    pub(crate) fn add_values(&mut self, about: About, ours: f64, other: f64) {
        if !self.wants(about) {
            return;
        }
        let figure = Figure { about, ours, other };
        println!("{figure}");
        self.figures.push(figure);
    }
}

/// Formats a number with three digits, or with all digits before the point.
pub(crate) fn number(value: f64) -> String {
    let digits = match value.abs() {
        100.0.. => 0,
        10.0.. => 1,
        1.0.. => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}
