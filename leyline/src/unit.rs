//! Quantities whose range is part of the type.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A number outside the range of its type.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("{value} is not a valid {quantity}: expected {expected}")]
pub struct RangeError {
    /// Which quantity was wanted.
    pub quantity: &'static str,
    /// What was found.
    pub value: f64,
    /// The accepted range.
    pub expected: &'static str,
}

/// Blend coefficient of a seed, in `[0, 1]`: 0 is the host alone, 1 the whole seed.
#[derive(Debug, Clone, Copy, Default, PartialEq, PartialOrd, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Alpha(f64);

impl Alpha {
    /// The host alone.
    pub const ZERO: Self = Self(0.0);
    /// The whole seed.
    pub const ONE: Self = Self(1.0);

    /// # Errors
    /// [`RangeError`] for NaN and for numbers outside `[0, 1]`.
    pub fn new(value: f64) -> Result<Self, RangeError> {
        if (0.0..=1.0).contains(&value) {
            Ok(Self(value))
        } else {
            Err(RangeError { quantity: "alpha", value, expected: "a number from 0 to 1" })
        }
    }

    /// The number in `[0, 1]`.
    #[must_use]
    pub const fn get(self) -> f64 {
        self.0
    }

    /// Whether the seed has no effect on the output.
    #[must_use]
    pub fn is_zero(self) -> bool {
        self <= Self::ZERO
    }

    /// Whether the seed acts in full.
    #[must_use]
    pub fn is_one(self) -> bool {
        self >= Self::ONE
    }
}

impl fmt::Display for Alpha {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl TryFrom<f64> for Alpha {
    type Error = RangeError;
    fn try_from(value: f64) -> Result<Self, Self::Error> {
        Self::new(value)
    }
}

impl From<Alpha> for f64 {
    fn from(alpha: Alpha) -> Self {
        alpha.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alpha_refuses_what_is_not_a_fraction() {
        for bad in [f64::NAN, f64::INFINITY, -0.1, 1.000_001] {
            assert!(Alpha::new(bad).is_err(), "{bad} was accepted");
        }
        assert!(Alpha::new(1.0).unwrap().is_one() && Alpha::new(0.0).unwrap().is_zero());
    }
}
