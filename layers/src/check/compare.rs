//! Numbers to start from, and how far results are apart.

use candle_core::{DType, Device, Result, Tensor};

/// `SplitMix64`.
///
/// # Source
/// Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators", figure 19
pub(super) struct SplitMix(pub(super) u64);

impl SplitMix {
    pub(super) fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }
}

#[expect(clippy::disallowed_methods, reason = "a check reads what it compares; no step of training comes here")]
pub(super) fn read(tensor: &Tensor) -> Result<Vec<f64>> {
    tensor.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.flatten_all()?.to_vec1()
}

/// Infinite where a number is none, or the lengths differ.
pub(super) fn largest_difference(expected: &[f64], found: &[f64]) -> f64 {
    if expected.len() != found.len() {
        return f64::INFINITY;
    }
    let differences = expected.iter().zip(found).map(|(a, b)| (a - b).abs());
    // `max` alone would pass over what is not a number.
    differences.fold(0.0, |max: f64, value| if value.is_nan() { f64::INFINITY } else { max.max(value) })
}

/// The largest absolute value, and at least `smallest`.
pub(super) fn largest(values: &[f64], smallest: f64) -> f64 {
    values.iter().fold(smallest, |max, value| max.max(value.abs()))
}

#[cfg(test)]
mod tests {
    use super::largest_difference;

    #[test]
    fn what_is_no_number_or_has_another_length_is_an_error() {
        assert!(largest_difference(&[1.0, 2.0], &[1.0, f64::NAN]).is_infinite());
        assert!(largest_difference(&[1.0, f64::NAN, 2.0], &[1.0, 2.0, 2.0]).is_infinite());
        assert!(largest_difference(&[1.0, 2.0], &[1.0]).is_infinite());
        assert!(largest_difference(&[], &[]).abs() < f64::MIN_POSITIVE);
        assert!((largest_difference(&[1.0, 2.0], &[1.5, 2.0]) - 0.5).abs() < f64::EPSILON);
    }
}
