//! Exponentials for many numbers at once.

/// Beyond it [`exp`] has the value that it has there.
pub(crate) const EXP_LIMIT: f32 = 86.0;

/// eˣ to 1.1·2⁻²² of it for |x| up to 86, and e^±86 beyond, in operations that a compiler forms for several numbers at once, with the
/// same bits on every processor: 2ⁿ·eʳ with |r| ≤ ln 2 / 2, and the series of eʳ.
pub(crate) fn exp(x: f32) -> f32 {
    /// 1.5·2²³: what is added to it is rounded to a whole number, which its last bits are.
    const WHOLE: f32 = 12_582_912.0;
    /// ln 2 in two parts, of which multiples of the first are exact.
    const LN_2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    let x = x.clamp(-EXP_LIMIT, EXP_LIMIT);
    let shifted = x * std::f32::consts::LOG2_E + WHOLE;
    let n = shifted - WHOLE;
    let r = x - n * LN_2[0] - n * LN_2[1];
    let series = [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0]
        .into_iter()
        .fold(0.0, |sum, next| sum * r + next);
    series * f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0_f32.to_bits()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponentials_are_those_of_f64() {
        for x in (-344_000..=344_000).map(|x: i32| x as f32 / 4_000.0) {
            let expected = f64::from(x).exp();
            assert!((f64::from(exp(x)) / expected - 1.0).abs() <= 1.1 / f64::from(1 << 22), "{x}: {}", exp(x));
        }
        let bits = |numbers: [f32; 3]| numbers.map(|x| exp(x).to_bits());
        assert_eq!(bits([88.0, f32::INFINITY, -88.0]), bits([86.0, 86.0, -86.0]));
        assert!(exp(f32::NAN).is_nan());
    }
}
