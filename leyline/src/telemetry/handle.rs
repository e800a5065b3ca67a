//! Handles: a shared cell that is written with one relaxed atomic operation.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bit pattern of a gauge that was not set: a NaN that no arithmetic produces.
const ABSENT: u64 = u64::MAX;

/// A value that may go up and down, absent until set.
#[derive(Debug, Clone)]
pub struct Gauge {
    bits: Arc<AtomicU64>,
}

impl Gauge {
    /// A gauge of its own, absent.
    #[must_use]
    pub fn new() -> Self {
        Self { bits: Arc::new(AtomicU64::new(ABSENT)) }
    }

    /// Sets the value.
    pub fn set(&self, value: f64) {
        self.bits.store(value.to_bits(), Ordering::Relaxed);
    }

    /// Sets the value, or makes it absent.
    pub fn set_or_clear(&self, value: Option<f64>) {
        self.bits.store(value.map_or(ABSENT, f64::to_bits), Ordering::Relaxed);
    }

    /// The value, if one was set.
    #[must_use]
    pub fn get(&self) -> Option<f64> {
        let bits = self.bits.load(Ordering::Relaxed);
        (bits != ABSENT).then(|| f64::from_bits(bits))
    }
}

impl Default for Gauge {
    fn default() -> Self {
        Self::new()
    }
}

/// A count that never falls, 0 at the start.
#[derive(Debug, Clone, Default)]
pub struct Counter {
    count: Arc<AtomicU64>,
}

impl Counter {
    /// A counter of its own, at 0.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.count.fetch_add(n, Ordering::Relaxed);
    }

    /// The count.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gauge_is_absent_until_set_and_keeps_zero_apart() {
        let gauge = Gauge::new();
        assert_eq!(gauge.get(), None);
        gauge.set(0.0);
        assert_eq!(gauge.get(), Some(0.0));
        gauge.clone().set_or_clear(None);
        assert_eq!(gauge.get(), None);
    }
}
