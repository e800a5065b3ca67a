//! Rounding to the type of the tensors, and what is left of a number then.

/// Rounds to the nearest `f32`, as candle does with the scalars of its operations.
#[expect(clippy::cast_possible_truncation, reason = "rounding is the purpose")]
pub(crate) fn to_f32(value: f64) -> f32 {
    value as f32
}

/// What [`is_single`] accepts.
pub(crate) const SINGLE: &str = "a number that is above 0 in single precision, from 1.2e-38 to 3.4e38";

/// Whether a number is above 0 and finite where it is used, as an `f32`.
pub(crate) fn is_single(value: f64) -> bool {
    (f64::from(f32::MIN_POSITIVE)..=f64::from(f32::MAX)).contains(&value)
}

/// What [`is_zero_or_single`] accepts.
pub(crate) const ZERO_OR_SINGLE: &str = "0, or a number from 1.2e-38 to 3.4e38";

/// Whether a number is 0, or above 0 and finite where it is used, as an `f32`.
pub(crate) fn is_zero_or_single(value: f64) -> bool {
    value == 0.0 || is_single(value)
}
