//! What a network is to learn: classes, values, flags, or the token that follows.
//!
//! Legend: N samples, C classes, W values, L flags, T tokens of a window.

use std::fmt;

use candle_core::{Device, Tensor};
use serde::{Deserialize, Serialize};

use super::Error;

/// Which targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TargetKind {
    /// One class per sample.
    Classes,
    /// One or more real values per sample.
    Values,
    /// One or more yes or no per sample.
    Flags,
    /// The token that follows each token of a window.
    Tokens,
}

impl fmt::Display for TargetKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Classes => "classes",
            Self::Values => "values",
            Self::Flags => "flags",
            Self::Tokens => "tokens",
        })
    }
}

/// The targets of N samples.
#[derive(Debug, Clone, PartialEq)]
pub enum Targets {
    /// N labels, each below C = the number of names.
    Classes {
        /// Number of the class, per sample.
        labels: Vec<u32>,
        /// Name of each class.
        names: Vec<String>,
    },
    /// N × W values, row-major.
    Values {
        /// Finite values.
        values: Vec<f32>,
        /// Name of each of the W columns.
        names: Vec<String>,
    },
    /// N × L flags, row-major, each 0 or 1.
    Flags {
        /// 0 or 1.
        values: Vec<f32>,
        /// Name of each of the L flags.
        names: Vec<String>,
    },
    /// N × T tokens, each below the size of the vocabulary.
    Tokens {
        /// The token behind each token of the inputs.
        tokens: Vec<u32>,
        /// T.
        window: usize,
        /// Number of different tokens.
        vocabulary: usize,
    },
}

impl Targets {
    /// Classes that are called by their numbers.
    pub fn numbered(labels: Vec<u32>, num_classes: usize) -> Self {
        Self::Classes { labels, names: (0..num_classes).map(|class| class.to_string()).collect() }
    }

    /// Which they are.
    pub fn kind(&self) -> TargetKind {
        match self {
            Self::Classes { .. } => TargetKind::Classes,
            Self::Values { .. } => TargetKind::Values,
            Self::Flags { .. } => TargetKind::Flags,
            Self::Tokens { .. } => TargetKind::Tokens,
        }
    }

    /// N.
    pub fn num_samples(&self) -> usize {
        match self {
            Self::Classes { labels, .. } => labels.len(),
            Self::Values { values, names } | Self::Flags { values, names } => values.len() / names.len().max(1),
            Self::Tokens { tokens, window, .. } => tokens.len() / (*window).max(1),
        }
    }

    /// Outputs that a network needs, per sample or per token: C, W, L, or the size of the vocabulary.
    pub fn num_outputs(&self) -> usize {
        match self {
            Self::Classes { names, .. } | Self::Values { names, .. } | Self::Flags { names, .. } => names.len(),
            Self::Tokens { vocabulary, .. } => *vocabulary,
        }
    }

    /// Names of the outputs; none for tokens.
    pub fn names(&self) -> &[String] {
        match self {
            Self::Classes { names, .. } | Self::Values { names, .. } | Self::Flags { names, .. } => names,
            Self::Tokens { .. } => &[],
        }
    }

    /// The labels, where there are classes.
    pub fn labels(&self) -> Option<&[u32]> {
        match self {
            Self::Classes { labels, .. } => Some(labels),
            Self::Values { .. } | Self::Flags { .. } | Self::Tokens { .. } => None,
        }
    }

    /// Those of these samples, in this order.
    pub(super) fn select(&self, rows: &[usize]) -> Self {
        match self {
            Self::Classes { labels, names } => Self::Classes { labels: gather(labels, 1, rows), names: names.clone() },
            Self::Values { values, names } => {
                Self::Values { values: gather(values, names.len(), rows), names: names.clone() }
            }
            Self::Flags { values, names } => {
                Self::Flags { values: gather(values, names.len(), rows), names: names.clone() }
            }
            Self::Tokens { tokens, window, vocabulary } => {
                let tokens = gather(tokens, *window, rows);
                Self::Tokens { tokens, window: *window, vocabulary: *vocabulary }
            }
        }
    }

    /// The same targets in another order: sample `i` gets that of sample `order[i]`.
    ///
    /// # Panics
    /// When `order` is not N rows long or names a row that does not exist.
    pub(super) fn reordered(&self, order: &[usize]) -> Self {
        assert_eq!(order.len(), self.num_samples(), "one source row per sample");
        self.select(order)
    }

    /// Row numbers per class, ascending, indexed by class; empty where there are no classes.
    pub(super) fn rows_by_class(&self) -> Vec<Vec<usize>> {
        let mut rows = vec![Vec::new(); if self.labels().is_some() { self.num_outputs() } else { 0 }];
        for (row, &label) in self.labels().unwrap_or_default().iter().enumerate() {
            rows[label as usize].push(row);
        }
        rows
    }

    /// Copies them to `device`: u32 (N,) for classes and (N, T) for tokens, f32 (N, W) for values and (N, L) for flags.
    ///
    /// # Errors
    /// [`Error::Tensor`] when the device refuses.
    ///
    /// # Sync
    /// One host-to-device copy.
    pub fn to_tensor(&self, device: &Device) -> Result<Tensor, Error> {
        let num_samples = self.num_samples();
        Ok(match self {
            Self::Classes { labels, .. } => Tensor::from_slice(labels, num_samples, device)?,
            Self::Values { values, names } | Self::Flags { values, names } => {
                Tensor::from_slice(values, (num_samples, names.len()), device)?
            }
            Self::Tokens { tokens, window, .. } => Tensor::from_slice(tokens, (num_samples, *window), device)?,
        })
    }

    /// What is wrong with the numbers in them.
    pub(super) fn check(&self) -> Result<(), Error> {
        let wrong = |found: String, expected: String| Err(Error::Table { field: "target", found, expected });
        let outside = |values: &[u32], limit: usize| values.iter().position(|&value| value as usize >= limit);
        match self {
            Self::Classes { labels, names } => match outside(labels, names.len()) {
                Some(index) => {
                    let last = names.len().saturating_sub(1);
                    wrong(
                        format!("{} in sample {index}", labels[index]),
                        format!("0 to {last} (classes: {})", names.len()),
                    )
                }
                None => Ok(()),
            },
            Self::Tokens { tokens, window, vocabulary } => match outside(tokens, *vocabulary) {
                _ if *window == 0 => wrong("a window of 0 tokens".into(), "1 or more".into()),
                Some(index) => wrong(
                    format!("{} in sample {}", tokens[index], index / window),
                    format!("below {vocabulary}, the size of the vocabulary"),
                ),
                None => Ok(()),
            },
            Self::Values { names, .. } | Self::Flags { names, .. } if names.is_empty() => {
                wrong("without a column".into(), "1 or more".into())
            }
            Self::Values { values, names } => match values.iter().position(|value| !value.is_finite()) {
                Some(index) => {
                    wrong(format!("{} in sample {}", values[index], index / names.len()), "finite values".into())
                }
                None => Ok(()),
            },
            Self::Flags { values, names } => {
                match values.iter().position(|value| value.to_bits() != 0 && value.to_bits() != 1_f32.to_bits()) {
                    Some(index) => {
                        wrong(format!("{} in sample {}", values[index], index / names.len()), "0 or 1".into())
                    }
                    None => Ok(()),
                }
            }
        }
    }
}

/// The rows of a row-major matrix, in this order.
pub(super) fn gather<T: Copy>(values: &[T], width: usize, rows: &[usize]) -> Vec<T> {
    rows.iter().flat_map(|&row| &values[row * width..][..width]).copied().collect()
}
