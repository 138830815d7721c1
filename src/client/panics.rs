//! Panics of the application's code, such as wakers and destructors: they stop neither the driver nor another caller.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex even if it is poisoned: a panic leaves no invalid state behind, since nothing here panics half-way.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs code that may wake a task of the application, or log. A panic ends here; the panic hook has reported it.
pub(super) fn caught(wake: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(wake));
}
