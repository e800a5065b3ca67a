//! What the outputs of a network mean.

use serde::{Deserialize, Serialize};

/// What the outputs of a network mean.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Task {
    /// One class of several: an output for each, of which the softmax is the probability.
    Classification {
        /// Their names, in the order of the outputs.
        classes: Vec<String>,
    },
}

impl Task {
    /// Outputs that it speaks of (count).
    #[must_use]
    pub fn num_outputs(&self) -> usize {
        match self {
            Self::Classification { classes } => classes.len(),
        }
    }

    /// Names of the outputs, in their order.
    #[must_use]
    pub fn names(&self) -> &[String] {
        match self {
            Self::Classification { classes } => classes,
        }
    }
}

/// softmax(x) in `f64`, of the numbers as they are: the largest is taken off first, so nothing overflows.
pub(crate) fn softmax(logits: &[f32]) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exponentials: Vec<f64> = logits.iter().map(|&x| (f64::from(x) - f64::from(largest)).exp()).collect();
    let sum: f64 = exponentials.iter().sum();
    exponentials.into_iter().map(|x| x / sum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_add_up_whatever_the_logits_are() {
        for (logits, expected) in [
            (&[0.0_f32, 0.0][..], &[0.5, 0.5][..]),
            (&[1e30, 0.0, -1e30], &[1.0, 0.0, 0.0]),
            (&[-88.0, -88.0, -88.0, -88.0], &[0.25; 4]),
            (&[0.0, 3.0_f32.ln()], &[0.25, 0.75]),
        ] {
            let found = softmax(logits);
            assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-7), "{logits:?}: {found:?}");
        }
    }
}
