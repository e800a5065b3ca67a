//! Seeded draws that give the same values on every machine and with every version of the libraries.
//!
//! Shuffles and ranges of `rand` may change their values between releases, and the logarithm and the cosine of the
//! system's mathematics library differ in the last bit between systems. A data digest in a run record must not depend
//! on either, so the few draws needed are made here from the raw ChaCha8 stream, with `libm` for the two functions.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// A generator for one purpose: two purposes with the same seed share nothing.
pub(super) fn generator(purpose: &'static str, seed: u64) -> ChaCha8Rng {
    ChaCha8Rng::from_seed(blake3::derive_key(purpose, &seed.to_le_bytes()))
}

/// Uniform in [0, 1), 53 bits.
pub(super) fn unit(rng: &mut ChaCha8Rng) -> f64 {
    const SCALE: f64 = 1.0 / (1_u64 << 53) as f64;
    (rng.next_u64() >> 11) as f64 * SCALE
}

/// Uniform in `0..bound` without bias; `bound` is above 0.
pub(super) fn below(rng: &mut ChaCha8Rng, bound: usize) -> usize {
    let bound = u64::try_from(bound).expect("a usize fits in 64 bits");
    let rejected_from = u64::MAX - (u64::MAX % bound + 1) % bound;
    loop {
        let draw = rng.next_u64();
        if draw <= rejected_from {
            return usize::try_from(draw % bound).expect("below a bound that is a usize");
        }
    }
}

/// Normal with mean 0 and standard deviation 1 (Box and Muller 1958; the second value of the pair is not used).
pub(super) fn standard_normal(rng: &mut ChaCha8Rng) -> f64 {
    let radius = (-2.0 * libm::log(1.0 - unit(rng))).sqrt();
    radius * libm::cos(std::f64::consts::TAU * unit(rng))
}

/// Reorders `items` uniformly (Fisher and Yates).
pub(super) fn shuffle<T>(rng: &mut ChaCha8Rng, items: &mut [T]) {
    for last in (1..items.len()).rev() {
        items.swap(last, below(rng, last + 1));
    }
}

/// A uniform permutation of `0..count`.
pub(super) fn permutation(rng: &mut ChaCha8Rng, count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    shuffle(rng, &mut order);
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: u32 = 40_000;

    #[test]
    fn draws_below_a_bound_are_even() {
        let mut rng = generator("test", 1);
        for bound in [1_usize, 2, 3, 7, 10] {
            let mut counts = vec![0_u32; bound];
            for _ in 0..DRAWS {
                counts[below(&mut rng, bound)] += 1;
            }
            let expected = f64::from(DRAWS) / bound as f64;
            // Five standard deviations of a binomial count.
            let tolerance = 5.0 * expected.sqrt();
            for count in counts {
                assert!((f64::from(count) - expected).abs() <= tolerance, "{count} of {expected} for {bound}");
            }
        }
    }

    #[test]
    fn normal_draws_have_the_moments_of_the_normal_distribution() {
        let mut rng = generator("test", 2);
        let draws: Vec<f64> = (0..DRAWS).map(|_| standard_normal(&mut rng)).collect();
        let moment = |power: i32| draws.iter().map(|x| x.powi(power)).sum::<f64>() / f64::from(DRAWS);
        // Five standard errors: the variances of x, x², x³ and x⁴ are 1, 2, 15 and 96.
        for (power, expected, variance) in [(1, 0.0, 1.0), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0)] {
            let tolerance = 5.0 * f64::sqrt(variance / f64::from(DRAWS));
            assert!((moment(power) - expected).abs() < tolerance, "moment {power} is {}", moment(power));
        }
    }

    #[test]
    fn a_permutation_holds_each_index_once_and_every_order_occurs() {
        let mut rng = generator("test", 3);
        let mut orders = std::collections::BTreeSet::new();
        for _ in 0..600 {
            let order = permutation(&mut rng, 4);
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, [0, 1, 2, 3]);
            orders.insert(order);
        }
        assert_eq!(orders.len(), 24);
    }

    #[test]
    fn purpose_and_seed_both_change_the_stream() {
        let first = |purpose, seed| generator(purpose, seed).next_u64();
        assert_eq!(first("a", 1), first("a", 1));
        assert_ne!(first("a", 1), first("a", 2));
        assert_ne!(first("a", 1), first("b", 1));
    }
}
