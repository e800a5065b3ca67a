//! Locks of an exchange: those of the standard library, or those of a model checker.
//!
//! Unit tests with the cargo feature `model-check` get the types of shuttle, which run on its scheduler and panic outside of
//! it. There a wait that may time out does so whenever the schedule says.

use std::time::Duration;

#[cfg(all(test, feature = "model-check"))]
pub(crate) use shuttle::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
#[cfg(not(all(test, feature = "model-check")))]
pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Waits while `is_open` says so, at most for as long.
#[cfg(not(all(test, feature = "model-check")))]
pub(crate) fn wait_while<'a, T>(
    change: &Condvar,
    guard: MutexGuard<'a, T>,
    time: Duration,
    is_open: impl FnMut(&mut T) -> bool,
) -> MutexGuard<'a, T> {
    change.wait_timeout_while(guard, time, is_open).unwrap_or_else(PoisonError::into_inner).0
}

#[cfg(all(test, feature = "model-check"))]
pub(crate) fn wait_while<'a, T>(
    change: &Condvar,
    mut guard: MutexGuard<'a, T>,
    _time: Duration,
    mut is_open: impl FnMut(&mut T) -> bool,
) -> MutexGuard<'a, T> {
    use shuttle::rand::Rng as _;
    while is_open(&mut guard) && shuttle::rand::thread_rng().gen_bool(0.5) {
        guard = change.wait(guard).unwrap_or_else(PoisonError::into_inner);
    }
    guard
}
