//! A number of a parameter in two halves of 16 bits: what the network computes with, and what is left of it.
//!
//! A step of Adam is often less than what `bf16` can tell apart from the parameter: a parameter of `bf16` alone would stay where it
//! is. So what rounding leaves over is kept beside it (compensated updates: Zamirai et al. 2020, arXiv 2010.06192), here as the
//! 16 lower bits of the number itself (Kalamkar et al. 2020, arXiv 2005.04680): both together are an `f32`, and an update
//! is that of `f32`, bit for bit. A remainder in `bf16` takes as much room and holds 2⁻¹⁰ of the parameter's last place at best;
//! stochastic rounding takes none, and moves a number by its update only on average: `rounding.rs`.
//!
//! The upper half is the nearest `bf16`, away from zero where two are equally near, so that the lower half is its distance in units
//! of 2⁻¹⁶ of the last place. A lower half fits any finite upper one: what sets the parameter to another value moves it by less than
//! half of its last place at most, and 0 only away from it.

use half::bf16;

/// The halves of a number; `kernels/optimizer.cu` has the same. What is no number has one form.
#[inline(always)]
pub(super) fn halves(number: f32) -> (bf16, i16) {
    let bits = if number.is_nan() { f32::NAN.to_bits() } else { number.to_bits() };
    let [first, second, _, _] = bits.to_le_bytes();
    let low = i16::from_le_bytes([first, second]);
    let [_, _, third, fourth] = bits.wrapping_sub(extended(low)).to_le_bytes();
    (bf16::from_le_bytes([third, fourth]), low)
}

/// The number of two halves. Below 0 there is nothing but the other sign, which no number of [`halves`] has.
#[inline(always)]
pub(super) fn whole(high: bf16, low: i16) -> f32 {
    let low = if high == bf16::ZERO { low.max(0) } else { low };
    f32::from_bits((u32::from(high.to_bits()) << 16).wrapping_add(extended(low)))
}

#[inline(always)]
fn extended(low: i16) -> u32 {
    i32::from(low).cast_unsigned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_the_number_and_its_nearest_bf16() {
        let samples = (0..u32::MAX - 65_521).step_by(65_521).map(f32::from_bits);
        let edges =
            [0.0, -0.0, 1.0, f32::MIN_POSITIVE, f32::from_bits(1), f32::MAX, f32::MIN, f32::INFINITY, -f32::INFINITY];
        for number in samples.chain(edges).filter(|number| !number.is_nan()) {
            let (high, low) = halves(number);
            assert_eq!(whole(high, low).to_bits(), number.to_bits(), "{number:e}");
            // Between two neighbors candle takes the even one, and this the one further from zero.
            let is_between = low == i16::MIN;
            assert!(is_between || high.to_bits() == bf16::from_f32(number).to_bits(), "{number:e} became {high}");
        }
        for bits in [0x7f80_0001_u32, 0x7fff_ffff, 0xffff_ffff] {
            let (high, low) = halves(f32::from_bits(bits));
            assert!(high.is_nan() && whole(high, low).is_nan(), "{bits:x}");
        }
    }

    #[test]
    fn any_two_halves_are_a_number_near_the_upper_one() {
        for value in [1.0_f32, -3.0, 0.007, 0.0, -0.0] {
            let high = bf16::from_f32(value);
            for low in [i16::MIN, -1, 0, 1, i16::MAX] {
                let distance = (whole(high, low) - high.to_f32()).abs();
                // Half of the last of 8 bits.
                assert!(distance <= high.to_f32().abs() / 256.0 + f32::MIN_POSITIVE, "{value} and {low}");
            }
        }
    }
}
