//! The settings that choose a task.

use std::fmt;
use std::sync::Arc;

use candle_core::Device;
use leyline::config::ConfigIssue;
use leyline::task::Task;
use serde::{Deserialize, Serialize};

use super::{Classification, Flags, NextToken, Regression};

/// What a network is trained for; in a file, a table with its `kind`.
///
/// ```
/// use candle_core::Device;
/// use tolaria::task::{TargetFacts, TaskConfig};
///
/// let config: TaskConfig = serde_json::from_str(r#"{"kind": "auto"}"#)?;
/// let task = |facts| Ok::<_, leyline::config::ConfigIssue>(config.task(&facts, &Device::Cpu)?.describe());
/// assert_eq!(task(TargetFacts::Classes { counts: vec![5, 5, 5] }).unwrap(), "classification of 3");
/// assert_eq!(task(TargetFacts::Values { scales: vec![2.5] }).unwrap(), "regression of 1, squared error");
/// let config: TaskConfig = serde_json::from_str(r#"{"kind": "regression", "loss": "mae"}"#)?;
/// let refused = config.task(&TargetFacts::Flags { count: 3 }, &Device::Cpu).unwrap_err();
/// assert_eq!(refused.to_string(), "`kind` is regression: expected multi_label or auto, for the targets are 3 flags");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum TaskConfig {
    /// What the targets ask for.
    #[default]
    Auto,
    /// One of several classes.
    Classification {
        /// What a class counts for.
        #[serde(default, skip_serializing_if = "ClassWeights::is_equal")]
        class_weights: ClassWeights,
        /// The part of each target that is shared out evenly among all classes, in `[0, 1)`.
        #[serde(default)]
        label_smoothing: f64,
    },
    /// Real values.
    Regression {
        /// How far off a value is.
        #[serde(default)]
        loss: LossName,
        /// From where on the `huber` loss grows no steeper, above 0, in units of the targets; 1 where it is not said.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        delta: Option<f64>,
    },
    /// One flag, or one of two classes predicted by one output.
    Binary {
        /// How many times as much a set flag counts as another.
        #[serde(default = "one")]
        positive_weight: f64,
    },
    /// Several flags, each by itself.
    MultiLabel {
        /// How many times as much a set flag counts as another.
        #[serde(default = "one")]
        positive_weight: f64,
    },
    /// The next token of a sequence.
    NextToken {
        /// Bytes of text that a token stands for, on average; without it what the data say, where they say it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bytes_per_token: Option<f64>,
        /// Whether targets may be [`IGNORED`](super::IGNORED).
        #[serde(default)]
        has_ignored: bool,
    },
}

fn one() -> f64 {
    1.0
}

/// What a class counts for in the loss.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected `balanced` or a list of a number above 0 per class")]
pub enum ClassWeights {
    /// Every class the same.
    #[default]
    Equal,
    /// A word: `balanced`, where every class counts the same in all, however rare it is.
    Named(NamedWeights),
    /// A number above 0 per class, in their order; only their ratios matter.
    Given(Vec<f64>),
}

/// Weights that follow from the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NamedWeights {
    /// Samples / (classes · samples of the class).
    Balanced,
}

impl ClassWeights {
    fn is_equal(&self) -> bool {
        *self == Self::Equal
    }

    /// Weights whose mean over the samples is 1.
    fn of(&self, counts: &[u64]) -> Option<Vec<f32>> {
        let weights: Vec<f64> = match self {
            Self::Equal => return None,
            Self::Named(NamedWeights::Balanced) => counts.iter().map(|count| 1.0 / (*count).max(1) as f64).collect(),
            Self::Given(weights) => weights.clone(),
        };
        let samples = counts.iter().sum::<u64>() as f64;
        let total: f64 = weights.iter().zip(counts).map(|(weight, count)| weight * *count as f64).sum();
        // One that is refused is told as it was given: a share of a sum below 0 may be above it.
        let is_usable = weights.iter().all(|weight| weight.is_finite() && *weight > 0.0);
        #[expect(clippy::cast_possible_truncation, reason = "a weight needs no more digits")]
        let normalized = |weight: f64| (if is_usable { weight * samples / total } else { weight }) as f32;
        Some(weights.into_iter().map(normalized).collect())
    }
}

/// A [`RegressionLoss`] as it is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LossName {
    /// [`RegressionLoss::Mse`].
    #[default]
    Mse,
    /// [`RegressionLoss::Mae`].
    Mae,
    /// [`RegressionLoss::Huber`].
    Huber,
}

impl LossName {
    fn with(self, delta: Option<f64>) -> Result<RegressionLoss, ConfigIssue> {
        match (self, delta) {
            (Self::Huber, delta) => Ok(RegressionLoss::Huber { delta: delta.unwrap_or(1.0) }),
            (_, Some(_)) => {
                Err(ConfigIssue::new("delta", "belongs to `loss = \"huber\"`: expected none beside another"))
            }
            (Self::Mse, None) => Ok(RegressionLoss::Mse),
            (Self::Mae, None) => Ok(RegressionLoss::Mae),
        }
    }
}

/// How far off a value is.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub enum RegressionLoss {
    /// (output - target)².
    #[default]
    Mse,
    /// |output - target|.
    Mae,
    /// Half the square as far as `delta`, and as steep as there beyond it.
    Huber {
        /// From where on the loss grows no steeper, above 0, in units of the targets.
        delta: f64,
    },
}

impl fmt::Display for RegressionLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mse => f.write_str("squared error"),
            Self::Mae => f.write_str("absolute error"),
            Self::Huber { delta } => write!(f, "Huber error with delta {delta}"),
        }
    }
}

/// What targets are.
#[derive(Debug, Clone, PartialEq)]
pub enum TargetFacts {
    /// One of so many classes.
    Classes {
        /// Training samples of each class.
        counts: Vec<u64>,
    },
    /// Real values.
    Values {
        /// How many units of the data 1 is, for each value.
        scales: Vec<f64>,
    },
    /// Flags.
    Flags {
        /// How many a sample has.
        count: usize,
    },
    /// The next token, one of so many.
    Tokens {
        /// Tokens that there are.
        vocabulary: usize,
        /// Bytes of text that a token stands for, where that is known: 1 for a text.
        bytes_per_token: Option<f64>,
    },
}

impl TargetFacts {
    /// Outputs of a network for such targets; of a language model, per position.
    #[must_use]
    pub fn num_outputs(&self) -> usize {
        match self {
            Self::Classes { counts } => counts.len(),
            Self::Values { scales } => scales.len(),
            Self::Flags { count } => *count,
            Self::Tokens { vocabulary, .. } => *vocabulary,
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Classes { .. } => "classification",
            Self::Values { .. } => "regression",
            Self::Flags { count: 1 } => "binary",
            Self::Flags { .. } => "multi_label",
            Self::Tokens { .. } => "next_token",
        }
    }
}

impl fmt::Display for TargetFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Classes { counts } => write!(f, "{} classes", counts.len()),
            Self::Values { scales } => write!(f, "{} values", scales.len()),
            Self::Flags { count } => write!(f, "{count} flags"),
            Self::Tokens { vocabulary, .. } => write!(f, "tokens below {vocabulary}"),
        }
    }
}

impl TaskConfig {
    /// What each setting means, by its key inside of the section.
    pub const MEANINGS: &[(&str, &str)] = &[
        ("kind", "What the network learns: `auto` takes what the targets ask for."),
        (
            "class_weights",
            "classification: What a class counts for: `balanced`, where every class counts the same in all, or a list with a number above 0 per class; every sample the same when nothing is said.",
        ),
        ("label_smoothing", "classification: The part of each target that is shared out evenly among all classes."),
        ("loss", "regression: How far off a value is."),
        (
            "delta",
            "regression: From where on the `huber` loss grows no steeper, in units of the targets; 1 when nothing is said.",
        ),
        ("positive_weight", "binary, multi_label: How many times as much a set flag counts as another."),
        (
            "bytes_per_token",
            "next_token: Bytes of text that a token stands for, on average: 1 for a text when nothing is said; without it other tokens have no bits per byte.",
        ),
        ("has_ignored", "next_token: Whether targets may be left out of the loss, as 4294967295."),
    ];

    /// Sections of a file (TOML), one for each alternative; sizes are the largest, which limit others.
    pub const EXAMPLES: &[&str] = &[
        r#"{ kind = "classification" }"#,
        r#"{ kind = "regression" }"#,
        r#"{ kind = "binary" }"#,
        r#"{ kind = "multi_label" }"#,
        r#"{ kind = "next_token" }"#,
    ];

    /// The kinds, as they are written.
    pub const KINDS: [&'static str; 6] =
        ["auto", "classification", "regression", "binary", "multi_label", "next_token"];

    /// Whether the targets decide.
    #[must_use]
    pub fn is_auto(&self) -> bool {
        *self == Self::Auto
    }

    /// The kind, as it is written.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Classification { .. } => "classification",
            Self::Regression { .. } => "regression",
            Self::Binary { .. } => "binary",
            Self::MultiLabel { .. } => "multi_label",
            Self::NextToken { .. } => "next_token",
        }
    }

    /// The task for such targets, of a network on `device`.
    ///
    /// # Errors
    /// When the targets are of another kind, or a setting cannot work: its key, and what is accepted.
    /// # Sync
    /// may copy constants to the device
    pub fn task(&self, facts: &TargetFacts, device: &Device) -> Result<Arc<dyn Task>, ConfigIssue> {
        let wrong = |error: crate::Error| match error {
            crate::Error::InvalidConfig { key, message } => ConfigIssue::new(&key, message),
            other => ConfigIssue::new("kind", other.to_string()),
        };
        let of_regression =
            |loss: RegressionLoss, scales: &[f64]| Regression::new(loss, scales.to_vec()).map_err(wrong);
        let of_flags = |count: usize, weight: f64| Flags::new(count).with_positive_weight(weight).map_err(wrong);
        Ok(match (self, facts) {
            (Self::Auto, TargetFacts::Classes { counts }) => Arc::new(Classification::new(counts.len())),
            (Self::Auto, TargetFacts::Values { scales }) => Arc::new(of_regression(RegressionLoss::default(), scales)?),
            (Self::Auto, TargetFacts::Flags { count }) => Arc::new(Flags::new(*count)),
            (Self::Auto, TargetFacts::Tokens { vocabulary, bytes_per_token }) => {
                Arc::new(NextToken::new(*vocabulary).with_bytes_per_token(*bytes_per_token))
            }
            (Self::Classification { class_weights, label_smoothing }, TargetFacts::Classes { counts }) => {
                let task = Classification::new(counts.len());
                Arc::new(task.with(class_weights.of(counts), *label_smoothing, device).map_err(wrong)?)
            }
            (Self::Regression { loss, delta }, TargetFacts::Values { scales }) => {
                Arc::new(of_regression(loss.with(*delta)?, scales)?)
            }
            (Self::Binary { positive_weight }, TargetFacts::Flags { count: 1 }) => {
                Arc::new(of_flags(1, *positive_weight)?)
            }
            (Self::MultiLabel { positive_weight }, TargetFacts::Flags { count }) => {
                Arc::new(of_flags(*count, *positive_weight)?)
            }
            (
                Self::NextToken { bytes_per_token, has_ignored },
                TargetFacts::Tokens { vocabulary, bytes_per_token: known },
            ) => {
                if let Some(wrong) = bytes_per_token.filter(|bytes| !(bytes.is_finite() && *bytes > 0.0)) {
                    let message = format!("is {wrong}: expected a finite number above 0");
                    return Err(ConfigIssue::new("bytes_per_token", message));
                }
                let task = NextToken::new(*vocabulary).with_bytes_per_token(bytes_per_token.or(*known));
                Arc::new(if *has_ignored { task.with_ignored() } else { task })
            }
            (config, facts) => {
                let message =
                    format!("is {}: expected {} or auto, for the targets are {facts}", config.kind(), facts.kind());
                return Err(ConfigIssue::new("kind", message));
            }
        })
    }
}
