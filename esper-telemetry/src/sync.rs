//! Flags of the queue: those of the standard library, or those of a model checker.
//!
//! Unit tests with the cargo feature `model-check` get the types of shuttle, which run on its scheduler and panic outside of it.

#[cfg(all(test, feature = "model-check"))]
pub(crate) use shuttle::{
    sync::atomic::{AtomicBool, Ordering, fence},
    thread::yield_now as switch,
};
#[cfg(not(all(test, feature = "model-check")))]
pub(crate) use std::sync::atomic::{AtomicBool, Ordering, fence};

/// Before a channel is used, of which the model checker knows nothing: another thread may go first.
#[cfg(not(all(test, feature = "model-check")))]
pub(crate) const fn switch() {}
