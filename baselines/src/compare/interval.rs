//! Between which ratios the true one is.

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::quotient;
use crate::measure::Measurement;

const NUM_DRAWS: usize = 200;
/// From so many samples on both sides on, about 95 of 100 intervals have the true ratio in them; of four 93, of two 67.
const MIN_SAMPLES: usize = 5;

/// Middle 95 % of the ratios of medians of samples drawn with replacement, always the same draws (percentile
/// bootstrap). Absent where one side has fewer than five samples. Of more than [`crate::measure::MAX_SAMPLES`] values
/// not all are kept, so the interval is then wider than it would have to be.
pub(super) fn of_medians(before: &[f64], after: &[f64]) -> Option<[f64; 2]> {
    if before.len().min(after.len()) < MIN_SAMPLES {
        return None;
    }
    let mut random = ChaCha8Rng::seed_from_u64(0);
    let mut draw = || quotient(median_of_draw(after, &mut random), median_of_draw(before, &mut random));
    let mut ratios: Vec<f64> = (0..NUM_DRAWS).map(|_| draw()).collect();
    ratios.sort_by(f64::total_cmp);
    Some([ratios[NUM_DRAWS / 40], ratios[NUM_DRAWS - 1 - NUM_DRAWS / 40]])
}

/// From the least to the largest ratio of one sample to another. Absent where one side has a single sample.
pub(super) fn of_all(before: &Measurement, after: &Measurement) -> Option<[f64; 2]> {
    let num_samples = before.samples.len().min(after.samples.len());
    (num_samples > 1).then(|| [quotient(after.min, before.max), quotient(after.max, before.min)])
}

fn median_of_draw(values: &[f64], random: &mut ChaCha8Rng) -> f64 {
    let mut drawn: Vec<f64> = (0..values.len()).map(|_| values[random.random_range(0..values.len())]).collect();
    let middle = (drawn.len() - 1) / 2;
    *drawn.select_nth_unstable_by(middle, f64::total_cmp).1
}
