//! Random numbers of one sample in one epoch, from a counter.

use crate::random::philox4x32;

/// Added to the seed of the run, so that no transform draws the numbers of a `Dropout` with the same seed.
const PURPOSE: u64 = 0x7472_616e_7366_6f72;

/// Where a sample stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Epochs before this one.
    pub epoch: u32,
    /// Place in the order of the epoch.
    pub position: u32,
    /// Index of the sample.
    pub sample: u32,
}

/// Numbers that follow from (seed, place, number of the transform): Philox, whose counter is the place. Any of 2^24 blocks of
/// four words and of 256 transforms are told apart; after that they repeat.
#[derive(Debug, Clone)]
pub struct SampleRandom {
    key: [u32; 2],
    counter: [u32; 4],
    block: [u32; 4],
    num_used: usize,
    /// The other one of a pair of normal numbers.
    spare: Option<f32>,
}

impl SampleRandom {
    /// The numbers of the transform with this number, for a sample at this place.
    #[must_use]
    pub fn new(seed: u64, place: Place, transform: u8) -> Self {
        let seed = seed.wrapping_add(PURPOSE);
        let counter = [u32::from(transform) << 24, place.sample, place.position, place.epoch];
        Self {
            key: [(seed & 0xFFFF_FFFF) as u32, (seed >> 32) as u32],
            counter,
            block: [0; 4],
            num_used: 4,
            spare: None,
        }
    }

    /// 32 random bits.
    pub fn bits(&mut self) -> u32 {
        if self.num_used == self.block.len() {
            self.block = philox4x32(self.counter, self.key);
            let [number, ..] = &mut self.counter;
            *number = (*number & 0xFF00_0000) | (number.wrapping_add(1) & 0x00FF_FFFF);
            self.num_used = 0;
        }
        let bits = self.block[self.num_used];
        self.num_used += 1;
        bits
    }

    /// Uniform in `0..bound` without bias; 0 for the bound 0.
    pub fn below(&mut self, bound: u32) -> u32 {
        if bound == 0 { 0 } else { crate::rng::below(bound, || self.bits()) }
    }

    /// Uniform in `[0, 1)`, a multiple of 2^-23.
    pub fn uniform(&mut self) -> f32 {
        f32::from_bits(0x3F80_0000 | (self.bits() >> 9)) - 1.0
    }

    /// Normal, with mean 0 and standard deviation 1 (Box and Muller 1958).
    #[expect(clippy::cast_possible_truncation, reason = "the result is one of f32")]
    pub fn normal(&mut self) -> f32 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        // In (0, 1]: no logarithm of 0.
        let radius = (-2.0 * ((f64::from(self.bits()) + 1.0) / 2_f64.powi(32)).ln()).sqrt();
        let angle = std::f64::consts::TAU * f64::from(self.bits()) / 2_f64.powi(32);
        self.spare = Some((radius * angle.sin()) as f32);
        (radius * angle.cos()) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: Place = Place { epoch: 3, position: 5, sample: 7 };

    fn words(seed: u64, place: Place, transform: u8) -> Vec<u32> {
        let mut random = SampleRandom::new(seed, place, transform);
        (0..9).map(|_| random.bits()).collect()
    }

    #[test]
    fn numbers_follow_from_seed_place_and_transform_and_from_nothing_else() {
        let straight = words(1, PLACE, 0);
        assert_eq!(straight, words(1, PLACE, 0));
        let others = [
            words(2, PLACE, 0),
            words(1 << 40, PLACE, 0),
            words(1, Place { epoch: 4, ..PLACE }, 0),
            words(1, Place { position: 6, ..PLACE }, 0),
            words(1, Place { sample: 8, ..PLACE }, 0),
            words(1, PLACE, 1),
        ];
        for (index, other) in others.iter().enumerate() {
            assert!(straight.iter().all(|word| !other.contains(word)), "case {index}");
        }
    }

    #[test]
    fn drawn_numbers_have_the_moments_of_their_distributions() {
        const COUNT: usize = 40_000;
        let mut random = SampleRandom::new(9, PLACE, 2);
        let mut moments = |draw: fn(&mut SampleRandom) -> f32| {
            let values: Vec<f64> = (0..COUNT).map(|_| f64::from(draw(&mut random))).collect();
            let mean = values.iter().sum::<f64>() / COUNT as f64;
            (mean, values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / COUNT as f64)
        };
        // Five standard errors of 40 000 draws each.
        let (mean, variance) = moments(SampleRandom::normal);
        assert!(mean.abs() < 0.025 && (variance - 1.0).abs() < 0.036, "{mean} {variance}");
        let (mean, variance) = moments(SampleRandom::uniform);
        assert!((mean - 0.5).abs() < 0.0073 && (variance - 1.0 / 12.0).abs() < 0.002, "{mean} {variance}");
        let (mean, variance) = moments(|random| random.below(3) as f32);
        assert!((mean - 1.0).abs() < 0.021 && (variance - 2.0 / 3.0).abs() < 0.012, "{mean} {variance}");
    }
}
