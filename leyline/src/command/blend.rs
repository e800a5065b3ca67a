//! How a seed's output is mixed with the host's value. The formulas are documented where they are computed, in the
//! seed manager; here are the names, the wire numbers and the ranges.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::unit::{Alpha, RangeError};

/// The kind of a blend. The numbers are the wire numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum BlendMode {
    /// The seed takes the host's place.
    Convex = 1,
    /// The seed adds to the host.
    #[default]
    Residual = 2,
    /// The seed takes the host's place, with a fixed weight per channel.
    Channel = 3,
    /// The seed takes the host's place as far as it is sure of a sample.
    Confidence = 4,
    /// The seed scales the host.
    Multiply = 5,
    /// The seed adds to the host as far as a learned gate lets it.
    Gate = 6,
}

impl BlendMode {
    /// Every mode in wire order.
    pub const ALL: [Self; 6] =
        [Self::Convex, Self::Residual, Self::Channel, Self::Confidence, Self::Multiply, Self::Gate];

    /// The wire number.
    #[must_use]
    pub const fn wire(self) -> u8 {
        self as u8
    }

    /// The mode with this wire number; none for an unknown number.
    #[must_use]
    pub fn from_wire(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.wire() == number)
    }

    /// The name in snake case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Convex => "convex",
            Self::Residual => "residual",
            Self::Channel => "channel",
            Self::Confidence => "confidence",
            Self::Multiply => "multiply",
            Self::Gate => "gate",
        }
    }
}

impl fmt::Display for BlendMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How a seed is blended, with the settings of its mode.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Blend {
    /// [`BlendMode::Convex`].
    Convex,
    /// [`BlendMode::Residual`].
    #[default]
    Residual,
    /// [`BlendMode::Channel`].
    Channel(ChannelWeights),
    /// [`BlendMode::Confidence`].
    Confidence(ConfidenceGate),
    /// [`BlendMode::Multiply`].
    Multiply,
    /// [`BlendMode::Gate`].
    Gate,
}

impl Blend {
    /// Its kind.
    #[must_use]
    pub const fn mode(&self) -> BlendMode {
        match self {
            Self::Convex => BlendMode::Convex,
            Self::Residual => BlendMode::Residual,
            Self::Channel(_) => BlendMode::Channel,
            Self::Confidence(_) => BlendMode::Confidence,
            Self::Multiply => BlendMode::Multiply,
            Self::Gate => BlendMode::Gate,
        }
    }
}

/// One weight in `[0, 1]` per channel of a slot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Vec<f64>", into = "Vec<f64>")]
pub struct ChannelWeights(Vec<f64>);

impl ChannelWeights {
    /// Most channels that a command can weigh.
    pub const MAX_LEN: usize = 4096;

    /// # Errors
    /// [`RangeError`] for no weights, too many, or one outside `[0, 1]`.
    pub fn new(weights: Vec<f64>) -> Result<Self, RangeError> {
        if !(1..=Self::MAX_LEN).contains(&weights.len()) {
            #[expect(clippy::cast_precision_loss, reason = "for a message")]
            let value = weights.len() as f64;
            return Err(RangeError { quantity: "number of channel weights", value, expected: "1 to 4096" });
        }
        for &weight in &weights {
            Alpha::new(weight).map_err(|error| RangeError { quantity: "channel weight", ..error })?;
        }
        Ok(Self(weights))
    }

    /// The weights, in channel order.
    #[must_use]
    pub fn get(&self) -> &[f64] {
        &self.0
    }
}

impl TryFrom<Vec<f64>> for ChannelWeights {
    type Error = RangeError;
    fn try_from(weights: Vec<f64>) -> Result<Self, RangeError> {
        Self::new(weights)
    }
}

impl From<ChannelWeights> for Vec<f64> {
    fn from(weights: ChannelWeights) -> Self {
        weights.0
    }
}

/// When a seed is sure of a sample: a logistic function of the margin between its two strongest channels.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "ConfidenceForm", into = "ConfidenceForm")]
pub struct ConfidenceGate {
    steepness: f64,
    threshold: f64,
    low: f64,
    high: f64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfidenceForm {
    steepness: f64,
    threshold: f64,
    low: f64,
    high: f64,
}

impl ConfidenceGate {
    /// `steepness` in (0, 1000], `threshold` in `[0, 1]`, and the bounds of the gate, `0 ≤ low ≤ high ≤ 1`.
    ///
    /// # Errors
    /// [`RangeError`] naming the first value out of range.
    pub fn new(steepness: f64, threshold: f64, low: f64, high: f64) -> Result<Self, RangeError> {
        if !(steepness > 0.0 && steepness <= 1000.0) {
            return Err(RangeError {
                quantity: "gate steepness",
                value: steepness,
                expected: "more than 0, at most 1000",
            });
        }
        let within = |quantity, value| Alpha::new(value).map_err(|error| RangeError { quantity, ..error });
        within("gate threshold", threshold)?;
        within("lower bound of the gate", low)?;
        within("upper bound of the gate", high)?;
        if low > high {
            let (quantity, expected) = ("lower bound of the gate", "at most the upper bound");
            return Err(RangeError { quantity, value: low, expected });
        }
        Ok(Self { steepness, threshold, low, high })
    }

    /// Factor of the margin before the logistic function.
    #[must_use]
    pub const fn steepness(&self) -> f64 {
        self.steepness
    }

    /// The margin at which the gate is half open, in `[0, 1]`.
    #[must_use]
    pub const fn threshold(&self) -> f64 {
        self.threshold
    }

    /// Least value of the gate, in `[0, 1]`.
    #[must_use]
    pub const fn low(&self) -> f64 {
        self.low
    }

    /// Greatest value of the gate, in `[0, 1]`.
    #[must_use]
    pub const fn high(&self) -> f64 {
        self.high
    }
}

impl Default for ConfidenceGate {
    /// Steepness 4, threshold 0.2, bounds 0 and 1.
    fn default() -> Self {
        Self { steepness: 4.0, threshold: 0.2, low: 0.0, high: 1.0 }
    }
}

impl TryFrom<ConfidenceForm> for ConfidenceGate {
    type Error = RangeError;
    fn try_from(form: ConfidenceForm) -> Result<Self, RangeError> {
        Self::new(form.steepness, form.threshold, form.low, form.high)
    }
}

impl From<ConfidenceGate> for ConfidenceForm {
    fn from(gate: ConfidenceGate) -> Self {
        let ConfidenceGate { steepness, threshold, low, high } = gate;
        Self { steepness, threshold, low, high }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_numbers_and_names_are_kept() {
        let numbers: Vec<u8> = BlendMode::ALL.iter().map(|mode| mode.wire()).collect();
        assert_eq!(numbers, [1, 2, 3, 4, 5, 6]);
        for mode in BlendMode::ALL {
            assert_eq!(BlendMode::from_wire(mode.wire()), Some(mode));
            assert_eq!(serde_json::to_string(&mode).unwrap(), format!("\"{mode}\""));
        }
        assert_eq!((BlendMode::from_wire(0), BlendMode::from_wire(7)), (None, None));
    }

    #[test]
    fn settings_out_of_range_are_refused_in_code_and_in_text() {
        for bad in [vec![], vec![0.5; 4097], vec![1.5], vec![0.0, f64::NAN]] {
            assert!(ChannelWeights::new(bad.clone()).is_err(), "{} weights", bad.len());
        }
        for (steepness, threshold, low, high) in
            [(0.0, 0.2, 0.0, 1.0), (4.0, -0.1, 0.0, 1.0), (4.0, 0.2, 0.6, 0.5), (4.0, 0.2, 0.0, f64::NAN)]
        {
            assert!(ConfidenceGate::new(steepness, threshold, low, high).is_err());
        }
        for text in [r#"{"channel":[2.0]}"#, r#"{"confidence":{"steepness":4,"threshold":2,"low":0,"high":1}}"#] {
            assert!(serde_json::from_str::<Blend>(text).is_err(), "{text}");
        }
        let good = Blend::Confidence(ConfidenceGate::default());
        assert_eq!(serde_json::from_str::<Blend>(&serde_json::to_string(&good).unwrap()).unwrap(), good);
    }
}
