//! What a run must keep to be continued: it decides which samples a saved position means, and which were never trained on.

use std::fmt::Display;
use std::num::NonZeroUsize;

use leyline::task::Task;
use serde::{Deserialize, Serialize};

use crate::batch::BatchConfig;
use crate::error::Error;
use crate::trainer::run::Splits;

/// Stored with every checkpoint, and compared field by field before anything of it is restored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Setup {
    batch_size: NonZeroUsize,
    microbatches_per_step: NonZeroUsize,
    num_train: usize,
    num_validation: usize,
    num_test: usize,
    /// Dimensions of one sample.
    sample_shape: Vec<usize>,
    /// What the network is trained for.
    #[serde(default)]
    task: String,
    /// Of checkpoints from before there were other tasks than to classify.
    #[serde(default, skip_serializing)]
    num_classes: Option<usize>,
    /// Digests of the labels: the same number of samples may be other samples.
    train_labels: String,
    validation_labels: String,
    test_labels: String,
    /// Sampler and transforms; empty where every sample comes once, as it is.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    order: String,
    /// Of the validation data, as text; absent in a run that began before gains were confirmed, and stays so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    confirmation_fraction: Option<String>,
}

impl Setup {
    pub(super) fn of(
        batch: &BatchConfig,
        task: &dyn Task,
        data: &Splits,
        order: String,
        confirmation_fraction: Option<f64>,
    ) -> Self {
        let Splits { train, validation, test } = data;
        Self {
            batch_size: batch.batch_size,
            microbatches_per_step: batch.microbatches_per_step,
            num_train: train.len(),
            num_validation: validation.len(),
            num_test: test.len(),
            sample_shape: train.spec().inputs.dims().to_vec(),
            task: task.describe(),
            num_classes: None,
            train_labels: train.digest().to_owned(),
            validation_labels: validation.digest().to_owned(),
            test_labels: test.digest().to_owned(),
            order,
            confirmation_fraction: confirmation_fraction.map(|fraction| fraction.to_string()),
        }
    }

    /// Whether gains are confirmed in a run of this setup, on however many samples.
    pub(super) fn confirms(&self) -> bool {
        self.confirmation_fraction.is_some()
    }

    /// Whether `self`, which was saved, is what a run is `given`.
    ///
    /// # Errors
    /// [`Error::State`] with the first field that differs.
    pub(super) fn compare(&self, given: &Self) -> Result<(), Error> {
        if let (Some(saved), Some(given)) = (&self.confirmation_fraction, &given.confirmation_fraction)
            && saved != given
        {
            return Err(differs("trainer.confirmation_fraction", saved, given));
        }
        let pairs = self.fields().into_iter().zip(given.fields());
        let other = pairs.into_iter().find(|((_, saved), (_, given))| saved != given);
        other.map_or(Ok(()), |((field, saved), (_, given))| Err(differs(field, saved, given)))
    }

    fn fields(&self) -> [(&'static str, String); 11] {
        [
            ("trainer.batch_size", self.batch_size.to_string()),
            ("trainer.microbatches_per_step", self.microbatches_per_step.to_string()),
            ("trainer.num_train", self.num_train.to_string()),
            ("trainer.num_validation", self.num_validation.to_string()),
            ("trainer.num_test", self.num_test.to_string()),
            ("trainer.sample_shape", format!("{:?}", self.sample_shape)),
            ("trainer.task", self.num_classes.map_or_else(|| self.task.clone(), |n| format!("classification of {n}"))),
            ("trainer.train_labels", self.train_labels.clone()),
            ("trainer.validation_labels", self.validation_labels.clone()),
            ("trainer.test_labels", self.test_labels.clone()),
            ("trainer.order", self.order.clone()),
        ]
    }
}

/// A setting of the saved run that this run does not have.
pub(super) fn differs(field: &'static str, saved: impl Display, given: impl Display) -> Error {
    Error::State { field, message: format!("the checkpoint was trained with {saved}, but this run has {given}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setup_that_counts_classes_is_one_of_a_classification() {
        let text = |of: &str| {
            format!(
                r#"{{"batch_size":4,"microbatches_per_step":1,"num_train":9,"num_validation":2,"num_test":1,"sample_shape":[3],
                "train_labels":"a","validation_labels":"b","test_labels":"c",{of}}}"#
            )
        };
        let read = |of: &str| serde_json::from_str::<Setup>(&text(of)).unwrap();
        let (old, new) = (read(r#""num_classes":10"#), read(r#""task":"classification of 10""#));
        assert!(old.compare(&new).is_ok() && new.compare(&new).is_ok());
        let error = old.compare(&read(r#""task":"classification of 9""#)).unwrap_err().to_string();
        assert!(error.contains("trained with classification of 10, but this run has classification of 9"), "{error}");
        let task = r#""task":"classification of 10""#;
        let confirming = |fraction: &str| read(&format!(r#"{task},"confirmation_fraction":"{fraction}""#));
        assert!(old.compare(&confirming("0.5")).is_ok() && !old.confirms() && confirming("0").confirms());
        let error = confirming("0.5").compare(&confirming("0.25")).unwrap_err().to_string();
        assert!(error.contains("trained with 0.5, but this run has 0.25"), "{error}");
    }
}
