//! How an update leaves a parameter of `bf16`.
//!
//! Rounded to one of the two neighbors at random, with the probability that it is near it, an update moves a parameter on average by what
//! it is, however small (Zamirai et al. 2020, arXiv 2010.06192), and nothing has to be kept beside it. Random numbers are a hash of
//! what is drawn for the parameter in a step, which the host says with the constants of its rule, and of the place of the number in
//! it: no state, so that eager and replayed steps, threads, the CPU and a GPU round alike wherever the parameter stands.

use half::bf16;

use crate::random::{philox4x32, words};

/// What becomes of the bits of an updated number that a parameter of `bf16` has no room for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Rounding {
    /// They are kept beside it: 2 bytes more per element, and the numbers of `f32`.
    #[default]
    Compensated,
    /// They are the probability that the next number away from zero is taken, of its moments too, which are of `bf16`. Nothing is kept.
    Stochastic,
}

/// Of a parameter: what its draws are made of, beside the number of its updates.
#[derive(Debug, Clone, Copy)]
pub(super) struct DrawKey([u32; 2]);

impl DrawKey {
    pub(super) fn of(name: &str) -> Self {
        let [a, b, c, d, e, f, g, h, ..] = *blake3::hash(name.as_bytes()).as_bytes();
        Self([u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h])])
    }

    /// What is drawn for an update: 24 bits, which an `f32` holds.
    pub(super) fn draw(self, steps: u64) -> Draw {
        let [low, high] = words(steps);
        Draw(philox4x32([low, high, 0, 0], self.0)[0] >> 8)
    }
}

/// Of one update of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Draw(u32);

impl Draw {
    /// As the table of an update has it.
    #[expect(clippy::cast_precision_loss, reason = "24 bits")]
    pub(super) fn number(self) -> f32 {
        self.0 as f32
    }

    /// Rounds the numbers from place `start` of the parameter on; `stream` 0 is the parameter, others are its moments.
    #[inline(always)]
    pub(super) fn round(self, stream: u32, start: usize, numbers: &[f32], rounded: &mut [bf16]) {
        for (at, (number, rounded)) in (start..).zip(numbers.iter().zip(rounded)) {
            *rounded = round(*number, self.noise(stream, at));
        }
    }

    /// 16 bits for a place of the parameter; two neighbors share a word.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "beyond 2^33 numbers the words come again")]
    fn noise(self, stream: u32, at: usize) -> u32 {
        let key = self.0.wrapping_mul(SPREAD).wrapping_add(stream.wrapping_mul(NEXT_STREAM));
        mixed((at >> 1) as u32 ^ key) >> (16 * (at & 1)) & 0xffff
    }
}

/// The fractional part of the golden ratio: neighboring draws differ in many bits.
const SPREAD: u32 = 0x9E37_79B9;
/// The fractional part of the square root of 3.
const NEXT_STREAM: u32 = 0xBB67_AE85;

/// The finalizer of `MurmurHash3` (Appleby): each bit of the input changes each of the output in about half of all cases.
#[inline(always)]
fn mixed(mut word: u32) -> u32 {
    word ^= word >> 16;
    word = word.wrapping_mul(0x85EB_CA6B);
    word ^= word >> 13;
    word = word.wrapping_mul(0xC2B2_AE35);
    word ^ word >> 16
}

/// The neighbor away from zero in `distance` of 2¹⁶ cases, by 16 bits of `noise`. What is no number has one form.
#[inline(always)]
fn round(number: f32, noise: u32) -> bf16 {
    let bits = if number.is_nan() { f32::NAN.to_bits() } else { number.to_bits().wrapping_add(noise) };
    let [_, _, third, fourth] = bits.to_le_bytes();
    bf16::from_le_bytes([third, fourth])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_becomes_each_of_its_neighbors_in_as_many_cases_as_it_is_near_it() {
        for (number, low, high, cases) in [
            (1.0_f32, 1.0, 1.0, 0),
            (1.0 + 1.0 / 512.0, 1.0, 1.0 + 1.0 / 128.0, 1 << 14),
            (-1.0 - 3.0 / 512.0, -1.0, -1.0 - 1.0 / 128.0, 3 << 14),
            (f32::from_bits(1), 0.0, bf16::from_bits(1).to_f32(), 1),
            (f32::MAX, bf16::MAX.to_f32(), f32::INFINITY, 0xffff),
            (f32::INFINITY, f32::INFINITY, f32::INFINITY, 0),
            (-0.0, -0.0, -0.0, 0),
        ] {
            let taken: Vec<u32> = (0..0x1_0000).map(|noise| round(number, noise).to_f32().to_bits()).collect();
            assert!(taken.iter().all(|taken| [low.to_bits(), high.to_bits()].contains(taken)), "{number:e}");
            let away = taken.iter().filter(|taken| **taken != low.to_bits()).count();
            assert_eq!(away, cases, "{number:e}");
        }
        for bits in [0x7f80_0001_u32, 0x7fff_ffff, 0xffff_ffff] {
            assert!((0..0x1_0000).all(|noise| round(f32::from_bits(bits), noise).to_bits() == 0x7fc0), "{bits:x}");
        }
    }

    /// Chi-squared of pairs of four bits in 256 cells, of which each is as likely as any other.
    fn chi_squared(pairs: impl Iterator<Item = [u32; 2]>) -> f64 {
        let mut cells = [0.0_f64; 256];
        pairs.for_each(|[a, b]| cells[(a << 4 | b) as usize] += 1.0);
        let expected = cells.iter().sum::<f64>() / 256.0;
        cells.iter().map(|count| (count - expected).powi(2) / expected).sum()
    }

    /// Of places beside each other, of one place in updates one after the other, and of parameters of like names.
    #[test]
    fn noise_is_even_and_tells_nothing_of_other_noise() {
        const COUNT: usize = 1 << 16;
        let key = |index: u32| DrawKey::of(&format!("block{index}.weight"));
        for index in 0..8 {
            let (step, at) = (u64::from(index) + 1, index as usize * 1_000_003);
            let [first, other] = [index, index + 8].map(|index| key(index).draw(step));
            let places = || at..at + COUNT;
            let high = |of: Draw, stream, at| of.noise(stream, at) >> 12;
            let of_updates =
                (1..=COUNT as u64).map(|step| [step, step + 1].map(|step| high(key(index).draw(step), 0, at)));
            let found = [
                chi_squared(places().map(|at| [at, at + 1].map(|at| high(first, 0, at)))),
                chi_squared(places().map(|at| [at, at + 256].map(|at| high(first, 1, at)))),
                chi_squared(places().map(|at| [index % 2, 2].map(|stream| high(first, stream, at)))),
                chi_squared(places().map(|at| [first, other].map(|of| high(of, 0, at)))),
                chi_squared(of_updates),
                // The other bits of a number.
                chi_squared(places().map(|at| [first.noise(0, at) & 0xf, first.noise(0, at) >> 4 & 0xf])),
                chi_squared(places().map(|at| [first.noise(0, at) >> 8 & 0xf, high(first, 0, at)])),
            ];
            // 255 on average, with a deviation of 22.6; six of them.
            assert!(found.iter().all(|found| (119.0..391.0).contains(found)), "{found:?}");
        }
    }
}
