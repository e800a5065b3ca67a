//! Rounding to the type of the tensors.

/// Rounds to the nearest `f32`, as candle does with the scalars of its operations.
#[expect(clippy::cast_possible_truncation, reason = "rounding is the purpose")]
pub(crate) fn to_f32(value: f64) -> f32 {
    value as f32
}
