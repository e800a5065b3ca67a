//! What outputs mean.

use esper_data::{TargetKind, TargetPlan};

use crate::error::Error;

/// What a network answers to one sample, in the units of the data.
#[derive(Debug, Clone, PartialEq)]
pub enum Prediction {
    /// One class of several.
    Class {
        /// The one with the largest logit, by its place among the names; of equal ones the first.
        class: usize,
        /// The probability of each class: softmax.
        probabilities: Vec<f64>,
    },
    /// Values, one for each name.
    Values(Vec<f64>),
    /// The probability that each flag is set: the logistic function.
    Flags(Vec<f64>),
}

impl Prediction {
    /// What the outputs for each sample say. Tokens are classes: which one follows.
    ///
    /// # Errors
    /// [`Error::Outputs`] for the first sample whose outputs are not all finite, which say nothing.
    pub fn of(target: &TargetPlan, outputs: &[Vec<f32>]) -> Result<Vec<Self>, Error> {
        let of_sample = |(sample, outputs): (usize, &Vec<f32>)| match outputs.iter().find(|output| !output.is_finite())
        {
            Some(&found) => Err(Error::Outputs { sample: sample + 1, found }),
            None => Ok(Self::of_finite(target, outputs)),
        };
        outputs.iter().enumerate().map(of_sample).collect()
    }

    fn of_finite(target: &TargetPlan, outputs: &[f32]) -> Self {
        match target.kind {
            TargetKind::Classes | TargetKind::Tokens => {
                Self::Class { class: largest(outputs), probabilities: softmax(outputs) }
            }
            TargetKind::Values => {
                let (means, scales) = (target.means.iter().chain([&0.0].into_iter().cycle()), target.scales.iter());
                let scales = scales.chain([&1.0].into_iter().cycle());
                let value = |((output, mean), scale): ((&f32, &f64), &f64)| f64::from(*output) * scale + mean;
                Self::Values(outputs.iter().zip(means).zip(scales).map(value).collect())
            }
            TargetKind::Flags => Self::Flags(outputs.iter().map(|&x| 1.0 / (1.0 + f64::from(-x).exp())).collect()),
        }
    }
}

fn largest(logits: &[f32]) -> usize {
    (1..logits.len()).fold(0, |best, index| if logits[index] > logits[best] { index } else { best })
}

/// softmax(x) in `f64`, of the numbers as they are: the largest is taken off first, so nothing overflows.
fn softmax(logits: &[f32]) -> Vec<f64> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exponentials: Vec<f64> = logits.iter().map(|&x| (f64::from(x) - f64::from(largest)).exp()).collect();
    let sum: f64 = exponentials.iter().sum();
    exponentials.into_iter().map(|x| x / sum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(kind: TargetKind, names: &[&str], means: &[f64], scales: &[f64]) -> TargetPlan {
        let names = names.iter().map(|&name| name.to_owned()).collect();
        TargetPlan {
            kind,
            names,
            means: means.to_vec(),
            scales: scales.to_vec(),
            vocabulary: None,
            bytes_per_token: None,
            is_text: false,
            class_counts: vec![],
        }
    }

    #[test]
    fn probabilities_add_up_whatever_the_logits_are() {
        for (logits, expected, best) in [
            (&[0.0_f32, 0.0][..], &[0.5, 0.5][..], 0),
            (&[-1e30, 1e30, 0.0], &[0.0, 1.0, 0.0], 1),
            (&[-88.0, -88.0, -88.0, -88.0], &[0.25; 4], 0),
            (&[0.0, 3.0_f32.ln()], &[0.25, 0.75], 1),
        ] {
            let target = target(TargetKind::Classes, &["a", "b", "c", "d"][..logits.len()], &[], &[]);
            let Prediction::Class { class, probabilities } = Prediction::of_finite(&target, logits) else {
                panic!("classes")
            };
            assert_eq!(class, best, "{logits:?}");
            assert!(
                probabilities.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-7),
                "{logits:?}: {probabilities:?}"
            );
        }
    }

    #[test]
    fn values_come_back_in_the_units_of_the_data_and_flags_as_probabilities() {
        let values = target(TargetKind::Values, &["a", "b"], &[10.0, -1.0], &[2.0, 0.5]);
        assert_eq!(Prediction::of(&values, &[vec![1.5, -2.0]]).unwrap(), [Prediction::Values(vec![13.0, -2.0])]);
        let values = target(TargetKind::Values, &["a"], &[], &[]);
        assert_eq!(Prediction::of(&values, &[vec![1.5]]).unwrap(), [Prediction::Values(vec![1.5])]);
        let Prediction::Flags(flags) =
            Prediction::of_finite(&target(TargetKind::Flags, &["a", "b"], &[], &[]), &[0.0, 1e9])
        else {
            panic!("flags")
        };
        assert_eq!(flags, [0.5, 1.0]);
    }

    #[test]
    fn outputs_that_are_no_numbers_say_nothing() {
        for found in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for kind in [TargetKind::Classes, TargetKind::Values, TargetKind::Flags] {
                let outputs = [vec![0.0, 1.0], vec![1.0, found]];
                let error = Prediction::of(&target(kind, &["a", "b"], &[], &[]), &outputs).unwrap_err().to_string();
                assert_eq!(error, format!("the network gives {found} for sample 2: expected finite numbers"));
            }
        }
    }
}
