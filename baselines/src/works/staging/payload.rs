//! Data that differ at every step, with a checksum that a single-precision device gets exactly right.

use candle_core::Device;

use crate::models::Draw;

/// Whole numbers within this bound: the sum of 2^22 of them (16 MiB) stays below 2^24, where `f32` is exact in any order.
const BOUND: u32 = 3;

/// One stretch of numbers; the payload of a step is the stretch of `len` that starts one further at each step. It costs
/// the host nothing to make, and no two steps have the same.
#[derive(Debug)]
pub(super) struct Payloads {
    values: Vec<f32>,
    len: usize,
}

impl Payloads {
    /// Payloads of `len` elements for `num_steps` steps.
    pub(super) fn new(len: usize, num_steps: usize) -> Self {
        let mut draw = Draw::new(len as u64, &Device::Cpu);
        let mut value = || draw.below(2 * BOUND + 1) as f32 - BOUND as f32;
        Self { values: (0..len + num_steps - 1).map(|_| value()).collect(), len }
    }

    /// The payload of a step, counted from 0.
    pub(super) fn of(&self, step: usize) -> &[f32] {
        &self.values[step..step + self.len]
    }

    /// Steps there are payloads for.
    pub(super) fn num_steps(&self) -> usize {
        self.values.len() - self.len + 1
    }

    /// Sum of all payloads, that of step `i` times `i + 1`: payloads of the wrong step change it too.
    pub(super) fn checksum(&self) -> f64 {
        let mut sum: f64 = self.of(0).iter().copied().map(f64::from).sum();
        let mut checksum = sum;
        for step in 1..self.num_steps() {
            sum += f64::from(self.values[step + self.len - 1]) - f64::from(self.values[step - 1]);
            checksum += sum * (step + 1) as f64;
        }
        checksum
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_checksum_is_the_weighted_sum_of_all_payloads(len in 1..50_usize, num_steps in 1..20_usize) {
            let payloads = Payloads::new(len, num_steps);
            prop_assert_eq!(payloads.num_steps(), num_steps);
            let sum = |step: usize| payloads.of(step).iter().copied().map(f64::from).sum::<f64>();
            let expected: f64 = (0..num_steps).map(|step| (step + 1) as f64 * sum(step)).sum();
            prop_assert!((payloads.checksum() - expected).abs() < 0.5);
        }
    }

    #[test]
    fn payloads_differ_and_those_of_a_step_before_are_found_out() {
        let payloads = Payloads::new(4096, 100);
        assert!((1..100).all(|step| payloads.of(step) != payloads.of(step - 1)));
        let sum = |step: usize| payloads.of(step).iter().copied().map(f64::from).sum::<f64>();
        let late: f64 = (0..100_usize).map(|step| (step + 1) as f64 * sum(step.saturating_sub(1))).sum();
        assert!((payloads.checksum() - late).abs() >= 1.0, "{late}");
    }

    #[test]
    fn values_are_whole_and_small_enough_for_an_exact_sum() {
        let payloads = Payloads::new(1 << 12, 1);
        let whole = |value: &f32| value.fract().abs() < f32::EPSILON && value.abs() <= BOUND as f32;
        assert!(payloads.of(0).iter().all(whole));
        assert!(u64::from(BOUND) << 22 < 1 << 24);
    }
}
