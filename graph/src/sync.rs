//! Locks and atomics of the graph manager: those of the standard library, or those of a model checker.
//!
//! Unit tests with the cargo feature `model-check` get the types of shuttle, which run on shuttle's scheduler and panic
//! outside of it. Shuttle explores interleavings under sequential consistency; it does not weaken memory orderings.

#[cfg(all(test, feature = "model-check"))]
pub(super) use shuttle::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, AtomicU64, Ordering},
};
#[cfg(not(all(test, feature = "model-check")))]
pub(super) use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

/// A value made once, by whoever asks first.
///
/// A lock and not `std::sync::OnceLock`, because the model checker has none; it is taken when an owner is set up, never
/// per step.
#[derive(Debug)]
pub(super) struct OnceSlot<T>(Mutex<Option<T>>);

impl<T: Clone> OnceSlot<T> {
    /// An empty slot.
    pub(super) const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// A clone of the value; `init` makes it if nobody did. If `init` panics, the slot stays empty.
    ///
    /// The lock is held while `init` runs, so `init` must not use the same slot.
    pub(super) fn get_or_init(&self, init: impl FnOnce() -> T) -> T {
        // A poisoned slot is an empty slot: the value is only stored after `init` has returned.
        let mut value = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        value.get_or_insert_with(init).clone()
    }
}
