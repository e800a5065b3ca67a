//! The network: one hidden layer, in plain Rust, for two small products are all that a decision needs.

use std::ops::Range;

use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use crate::policy::learned::features::{NUM_FEATURES, Row};
use crate::policy::learned::{Choice, Choosing};

/// Largest width of the hidden layer.
pub const MAX_HIDDEN: usize = 256;

/// What an output is the logit of.
pub const OUTPUTS: [&str; 7] = ["wait", "onward", "cull", "rest", "germinate", "slot", "blueprint"];
/// Outputs of the network.
pub const NUM_OUTPUTS: usize = OUTPUTS.len();

/// Normalized features are cut off here, so that no input makes a logit that is not finite.
const LARGEST_INPUT: f64 = 10.0;

/// Numbers that make no network.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum NetworkError {
    /// No width, or too large a one.
    #[error("the hidden layer has {found} units: expected 1 to {MAX_HIDDEN}")]
    Hidden {
        /// Units found.
        found: usize,
    },
    /// Another number of them.
    #[error("`{name}` has {found} numbers: expected {expected}")]
    Length {
        /// What they are.
        name: &'static str,
        /// Numbers found.
        found: usize,
        /// Numbers needed.
        expected: usize,
    },
    /// One that cannot be reckoned with.
    #[error("`{name}` has the number {value} at {index}: expected {expected}")]
    Value {
        /// What it is part of.
        name: &'static str,
        /// Where.
        index: usize,
        /// The number.
        value: f32,
        /// What is accepted.
        expected: &'static str,
    },
}

/// The numbers of a network with H hidden units, F features and K outputs: K × H products of tanh(W x + b), x = (features − mean) / scale.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parts {
    /// Mean of each feature (F).
    pub mean: Vec<f32>,
    /// Scale of each feature, above 0 (F).
    pub scale: Vec<f32>,
    /// W (H × F, row by row).
    pub hidden_weight: Vec<f32>,
    /// b (H).
    pub hidden_bias: Vec<f32>,
    /// Of the outputs (K × H, row by row).
    pub output_weight: Vec<f32>,
    /// Of the outputs (K).
    pub output_bias: Vec<f32>,
}

/// A network that was checked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Parts", into = "Parts")]
pub struct Network {
    parts: Parts,
    /// W with a column for each feature (F × H): one feature after the other, all units at once.
    columns: Vec<f64>,
}

impl Network {
    /// A network of these numbers.
    ///
    /// # Errors
    /// When they do not fit each other and the features, or are not finite.
    pub fn new(parts: Parts) -> Result<Self, NetworkError> {
        let hidden = parts.hidden_bias.len();
        if !(1..=MAX_HIDDEN).contains(&hidden) {
            return Err(NetworkError::Hidden { found: hidden });
        }
        let Parts { mean, scale, hidden_weight, hidden_bias, output_weight, output_bias } = &parts;
        for (name, numbers, expected) in [
            ("mean", mean, NUM_FEATURES),
            ("scale", scale, NUM_FEATURES),
            ("hidden_weight", hidden_weight, hidden * NUM_FEATURES),
            ("hidden_bias", hidden_bias, hidden),
            ("output_weight", output_weight, NUM_OUTPUTS * hidden),
            ("output_bias", output_bias, NUM_OUTPUTS),
        ] {
            if numbers.len() != expected {
                return Err(NetworkError::Length { name, found: numbers.len(), expected });
            }
            let refused = |index: usize, value: f32| {
                let expected = if name == "scale" { "a finite number above 0" } else { "a finite number" };
                NetworkError::Value { name, index, value, expected }
            };
            let is_bad = |value: f32| !value.is_finite() || name == "scale" && value <= 0.0;
            if let Some(index) = numbers.iter().position(|value| is_bad(*value)) {
                return Err(refused(index, numbers[index]));
            }
        }
        let column = |feature: usize| (0..hidden).map(move |unit| unit * NUM_FEATURES + feature);
        let columns = (0..NUM_FEATURES).flat_map(column).map(|index| f64::from(hidden_weight[index])).collect();
        Ok(Self { parts, columns })
    }

    /// Its numbers.
    #[must_use]
    pub const fn parts(&self) -> &Parts {
        &self.parts
    }

    /// The outputs for a row; finite whatever the weights are.
    #[must_use]
    pub fn outputs(&self, row: &Row) -> [f64; NUM_OUTPUTS] {
        let mut units = self.begun();
        self.add(&mut units, row, 0..NUM_FEATURES);
        units.iter_mut().for_each(|unit| *unit = unit.tanh());
        std::array::from_fn(|output| self.output(&units, output))
    }

    /// The hidden units before any feature.
    fn begun(&self) -> Vec<f64> {
        self.parts.hidden_bias.iter().map(|bias| f64::from(*bias)).collect()
    }

    /// Adds these features of a row to the hidden units, one after the other.
    fn add(&self, units: &mut [f64], row: &Row, features: Range<usize>) {
        let Parts { mean, scale, .. } = &self.parts;
        for feature in features {
            let x = (f64::from(row[feature]) - f64::from(mean[feature])) / f64::from(scale[feature]);
            let x = x.clamp(-LARGEST_INPUT, LARGEST_INPUT);
            let weights = &self.columns[feature * units.len()..][..units.len()];
            for (unit, weight) in units.iter_mut().zip(weights) {
                *unit += x * weight;
            }
        }
    }

    fn output(&self, units: &[f64], output: usize) -> f64 {
        let weights = &self.parts.output_weight[output * units.len()..][..units.len()];
        let sum: f64 = weights.iter().zip(units).map(|(weight, unit)| f64::from(*weight) * unit).sum();
        f64::from(self.parts.output_bias[output]) + sum
    }

    /// The logit of each option, with the bits of [`Self::outputs`]: what rows begin with alike is added up once, in the same order, and
    /// outputs that are no option are not reckoned.
    fn logits(&self, Choice { rows, options, .. }: &Choice) -> Vec<f64> {
        let Some((first, others)) = rows.split_first() else { return Vec::new() };
        let alike = |row: &Row| first.iter().zip(row).take_while(|(a, b)| a.to_bits() == b.to_bits()).count();
        let shared = others.iter().map(alike).min().unwrap_or(NUM_FEATURES);
        let mut begun = self.begun();
        self.add(&mut begun, first, 0..shared);
        let mut units = begun.repeat(rows.len());
        for (units, row) in units.chunks_exact_mut(begun.len()).zip(rows) {
            self.add(units, row, shared..NUM_FEATURES);
        }
        units.iter_mut().for_each(|unit| *unit = unit.tanh());
        let of_row = |row: usize| &units[row * begun.len()..][..begun.len()];
        options.iter().map(|&(row, output)| self.output(of_row(row), output)).collect()
    }

    /// The probability of each option: the softmax over their logits, and over nothing else.
    #[must_use]
    pub fn probabilities(&self, choice: &Choice) -> Vec<f64> {
        let logits = self.logits(choice);
        let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = logits.iter().map(|logit| (logit - largest).exp()).collect();
        let sum: f64 = weights.iter().sum();
        weights.into_iter().map(|weight| weight / sum).collect()
    }

    /// An option, and its probability.
    pub(super) fn take(&self, choice: &Choice, choosing: Choosing, rng: &mut ChaCha8Rng) -> (usize, f64) {
        let probabilities = self.probabilities(choice);
        let likeliest = |best: usize, one: usize| if probabilities[one] > probabilities[best] { one } else { best };
        let taken = match choosing {
            Choosing::Likeliest => (1..probabilities.len()).fold(0, likeliest),
            Choosing::Drawn => {
                let mut left: f64 = rng.random();
                let passes = |probability: &f64| {
                    left -= probability;
                    left < 0.0
                };
                // By rounding, the sum may stay below what was drawn: then the last one that can be.
                let last = probabilities.iter().rposition(|probability| *probability > 0.0);
                probabilities.iter().position(passes).or(last).unwrap_or(0)
            }
        };
        (taken, probabilities[taken])
    }
}

impl TryFrom<Parts> for Network {
    type Error = NetworkError;

    fn try_from(parts: Parts) -> Result<Self, NetworkError> {
        Self::new(parts)
    }
}

impl From<Network> for Parts {
    fn from(network: Network) -> Self {
        network.parts
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::ProptestConfig;
    use rand::SeedableRng as _;

    use super::*;
    use crate::policy::learned::About;

    fn parts(weight: f32, bias: [f32; NUM_OUTPUTS]) -> Parts {
        Parts {
            mean: vec![0.0; NUM_FEATURES],
            scale: vec![1.0; NUM_FEATURES],
            hidden_weight: vec![weight; 3 * NUM_FEATURES],
            hidden_bias: vec![weight; 3],
            output_weight: vec![weight; 3 * NUM_OUTPUTS],
            output_bias: bias.to_vec(),
        }
    }

    fn choice(options: &[usize]) -> Choice {
        let options = options.iter().map(|output| (0, *output)).collect();
        Choice { about: About::Germination, rows: vec![[1000.0; NUM_FEATURES]], options }
    }

    #[test]
    fn a_network_is_reckoned_as_documented() {
        let mut given = parts(0.0, [0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        (given.mean[2], given.scale[2], given.hidden_weight[2], given.hidden_bias[0]) = (1.0, 2.0, 3.0, -1.0);
        given.output_weight[0] = 4.0;
        let mut row = [0.0; NUM_FEATURES];
        row[2] = 2.0;
        let expected = 0.5 + 4.0 * (3.0_f64 * 0.5 - 1.0).tanh();
        assert!((Network::new(given).unwrap().outputs(&row)[0] - expected).abs() < 1e-12);
    }

    #[test]
    fn no_finite_weights_make_a_probability_that_is_none() {
        for weight in [f32::MAX, f32::MIN, f32::MIN_POSITIVE, 0.0] {
            for last in [f32::MAX, f32::MIN, 0.0] {
                let network = Network::new(parts(weight, [weight, last, weight, 0.0, last, 0.0, weight])).unwrap();
                let found = network.probabilities(&choice(&[0, 1, 2, 4]));
                assert!(found.iter().all(|p| (0.0..=1.0).contains(p)), "{weight}, {last}: {found:?}");
                assert!((found.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{found:?}");
            }
        }
    }

    #[test]
    fn numbers_that_make_no_network_are_told_with_their_place() {
        let good = parts(1.0, [0.0; NUM_OUTPUTS]);
        let told = |parts: Parts| Network::new(parts).unwrap_err().to_string();
        let mut nan = good.clone();
        nan.output_weight[4] = f32::NAN;
        assert_eq!(told(nan), "`output_weight` has the number NaN at 4: expected a finite number");
        let mut zero = good.clone();
        zero.scale[1] = 0.0;
        assert_eq!(told(zero), "`scale` has the number 0 at 1: expected a finite number above 0");
        let short = Parts { mean: vec![0.0; 3], ..good.clone() };
        assert_eq!(told(short), format!("`mean` has 3 numbers: expected {NUM_FEATURES}"));
        let none = Parts { hidden_bias: Vec::new(), ..good.clone() };
        assert_eq!(told(none), "the hidden layer has 0 units: expected 1 to 256");
        let json = serde_json::to_string(&Network::new(good.clone()).unwrap()).unwrap();
        assert_eq!(serde_json::from_str::<Network>(&json).unwrap().parts(), &good);
        assert!(
            serde_json::from_str::<Network>(&json.replace("\"hidden_bias\":[1.0", "\"hidden_bias\":[2.0,1.0")).is_err()
        );
    }

    proptest::proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn logits_of_rows_that_begin_alike_have_the_bits_of_rows_alone(
            seed: u64, num_rows in 1..9_usize, alike in 0..=NUM_FEATURES, hidden in 1..40_usize,
        ) {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let mut draw = |count: usize| (0..count).map(|_| rng.random_range(-2.0..2.0)).collect::<Vec<f32>>();
            let network = Network::new(Parts {
                mean: draw(NUM_FEATURES),
                scale: draw(NUM_FEATURES).iter().map(|scale| scale.abs() + 0.1).collect(),
                hidden_weight: draw(hidden * NUM_FEATURES),
                hidden_bias: draw(hidden),
                output_weight: draw(NUM_OUTPUTS * hidden),
                output_bias: draw(NUM_OUTPUTS),
            }).unwrap();
            let mut rows: Vec<Row> = (0..num_rows).map(|_| draw(NUM_FEATURES).try_into().unwrap()).collect();
            let first = rows[0];
            rows.iter_mut().for_each(|row| row[..alike].copy_from_slice(&first[..alike]));
            let options = (0..num_rows).flat_map(|row| [(row, row % NUM_OUTPUTS), (row, 5)]).collect();
            let choice = Choice { about: About::Germination, rows, options };
            let bits = |logits: Vec<f64>| logits.into_iter().map(f64::to_bits).collect::<Vec<_>>();
            let alone = choice.options.iter().map(|(row, output)| network.outputs(&choice.rows[*row])[*output]).collect();
            proptest::prop_assert_eq!(bits(network.logits(&choice)), bits(alone));
        }
    }

    #[test]
    fn drawn_options_come_as_often_as_they_are_likely_and_masked_ones_never() {
        let network = Network::new(parts(0.0, [0.0, 50.0, 1.0, 0.0, 0.0, 0.0, 0.0])).unwrap();
        let mut rng = ChaCha8Rng::seed_from_u64(7);
        // The likeliest output is no option.
        let masked = choice(&[0, 2]);
        let mut taken = [0_u32; 2];
        (0..4000).for_each(|_| taken[network.take(&masked, Choosing::Drawn, &mut rng).0] += 1);
        let share = f64::from(taken[1]) / 4000.0;
        assert!((share - network.probabilities(&masked)[1]).abs() < 0.03, "{taken:?}");
        assert_eq!(network.take(&masked, Choosing::Likeliest, &mut rng).0, 1);
    }
}
