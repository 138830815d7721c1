//! The last events of a run that failed.

use super::Time;
use std::cell::RefCell;
use std::collections::VecDeque;

/// How many events it keeps.
const SHOWN: usize = 150;

thread_local! {
    /// `None`: nothing is recorded.
    static TRACE: RefCell<Option<VecDeque<String>>> = const { RefCell::new(None) };
}

/// Adds an event to the trace, if there is one.
macro_rules! note {
    ($now:expr, $($what:tt)*) => {
        $crate::client::tests::simulation::trace::add($now, || format!($($what)*))
    };
}

pub(super) use note;

pub(super) fn add(now: Time, what: impl FnOnce() -> String) {
    TRACE.with_borrow_mut(|trace| {
        if let Some(trace) = trace {
            if trace.len() == SHOWN {
                trace.pop_front();
            }
            trace.push_back(format!("{:>9.3} ms  {}", now as f64 / 1e3, what()));
        }
    });
}

/// Returns the last events of `run`.
pub(super) fn of(run: impl FnOnce()) -> String {
    TRACE.set(Some(VecDeque::new()));
    run();
    let trace = TRACE.take().unwrap_or_default();
    Vec::from(trace).join("\n")
}
