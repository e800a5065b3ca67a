//! Cuts an epoch into accumulation windows of K microbatches of B samples.

use std::num::NonZeroUsize;
use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Sizes of microbatches and accumulation windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchConfig {
    /// Samples per microbatch (B).
    pub batch_size: NonZeroUsize,
    /// Microbatches per optimizer step (K).
    pub microbatches_per_step: NonZeroUsize,
}

impl BatchConfig {
    /// Samples of a full window (B · K).
    #[must_use]
    pub fn samples_per_step(&self) -> usize {
        self.batch_size.get().saturating_mul(self.microbatches_per_step.get())
    }
}

/// The samples of one optimizer step: positions in the order of the epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    positions: Range<usize>,
    batch_size: usize,
}

impl Window {
    /// Samples in the window.
    #[must_use]
    pub fn num_samples(&self) -> usize {
        self.positions.len()
    }

    /// Microbatches in the window.
    #[must_use]
    pub fn num_microbatches(&self) -> usize {
        self.num_samples().div_ceil(self.batch_size)
    }

    /// The positions of each microbatch, in order; none is empty.
    pub fn microbatches(&self) -> impl ExactSizeIterator<Item = Range<usize>> + use<> {
        let (positions, batch_size) = (self.positions.clone(), self.batch_size);
        (0..self.num_microbatches()).map(move |index| {
            let start = positions.start + index * batch_size;
            start..positions.end.min(start.saturating_add(batch_size))
        })
    }
}

/// Windows of an epoch of `num_samples`; the last one may be short, none is empty, no sample is dropped.
///
/// # Examples
/// ```
/// use std::num::NonZeroUsize;
/// use tolaria::batch::{BatchConfig, windows};
///
/// let count = |n| NonZeroUsize::new(n).expect("not 0");
/// let config = BatchConfig { batch_size: count(3), microbatches_per_step: count(2) };
/// let windows = windows(10, &config);
/// assert_eq!(windows.iter().map(|window| window.num_samples()).collect::<Vec<_>>(), [6, 4]);
/// assert_eq!(windows[1].microbatches().collect::<Vec<_>>(), [6..9, 9..10]);
/// ```
#[must_use]
pub fn windows(num_samples: usize, config: &BatchConfig) -> Vec<Window> {
    let size = config.samples_per_step();
    (0..num_windows(num_samples, config))
        .map(|index| {
            let start = index * size;
            let end = num_samples.min(start.saturating_add(size));
            Window { positions: start..end, batch_size: config.batch_size.get() }
        })
        .collect()
}

/// Optimizer steps of an epoch of `num_samples`.
#[must_use]
pub fn num_windows(num_samples: usize, config: &BatchConfig) -> usize {
    num_samples.div_ceil(config.samples_per_step())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `expected`: microbatch sizes by window.
    #[track_caller]
    fn check(num_samples: usize, batch_size: usize, microbatches: usize, expected: &[&[usize]]) {
        let count = |n| NonZeroUsize::new(n).unwrap();
        let config = BatchConfig { batch_size: count(batch_size), microbatches_per_step: count(microbatches) };
        let cut = windows(num_samples, &config);
        assert_eq!(cut.len(), num_windows(num_samples, &config));
        let sizes: Vec<Vec<usize>> = cut.iter().map(|w| w.microbatches().map(|m| m.len()).collect()).collect();
        assert_eq!(sizes, expected);
        let positions: Vec<usize> = cut.iter().flat_map(Window::microbatches).flatten().collect();
        assert!(positions.into_iter().eq(0..num_samples), "a sample is missing, repeated or out of order");
        for window in &cut {
            assert_eq!(window.num_microbatches(), window.microbatches().len());
            assert_eq!(window.num_samples(), window.microbatches().map(|m| m.len()).sum::<usize>());
        }
    }

    #[test]
    fn nothing_is_dropped_at_the_end_of_an_epoch() {
        check(0, 4, 2, &[]);
        check(1, 4, 2, &[&[1]]);
        check(8, 4, 2, &[&[4, 4]]);
        check(9, 4, 2, &[&[4, 4], &[1]]);
        check(13, 4, 2, &[&[4, 4], &[4, 1]]);
        check(5, 2, 1, &[&[2], &[2], &[1]]);
        check(3, usize::MAX, 2, &[&[3]]);
        check(3, 1, usize::MAX, &[&[1, 1, 1]]);
    }
}
