//! From the columns of a target to classes, values or flags: which, why, and the same again for another file.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::column::{Cells, Column};
use super::config::TargetChoice;
use super::error::quoted;
use super::preparation::{mean_and_scale, shown};
use super::{Error, TargetKind, Targets};

/// Most classes: each costs an output of the network.
const MAX_CLASSES: usize = 10_000;
/// Whole numbers are classes up to so many different ones, where nothing else is said.
const FEW: usize = 20;
/// Or more of them, counted from 0 or 1 without gaps, each so often.
const ROWS_PER_CLASS: usize = 5;

/// What is learned, and how it is written down.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetPlan {
    /// Which targets.
    pub kind: TargetKind,
    /// Names of the outputs, in order: of the classes, which are words in the order of their bytes or numbers in theirs; of the
    /// columns of values or flags; none for tokens.
    pub names: Vec<String>,
    /// Values are learned as (value - mean) / scale: one per column of values, from the training rows. Empty otherwise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub means: Vec<f64>,
    /// As many; above 0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scales: Vec<f64>,
    /// Number of different tokens, for tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vocabulary: Option<usize>,
    /// Bytes of the text / tokens of its tokenizer, in the file that was learned from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_token: Option<f64>,
    /// Whether tokens are the bytes of a text.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_text: bool,
    /// Training samples of each class, for classes: what weights follow from. Empty in documents of earlier versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub class_counts: Vec<usize>,
}

impl TargetPlan {
    /// Of targets that need no reading.
    pub(super) fn of(targets: &Targets) -> Self {
        let vocabulary = (targets.kind() == TargetKind::Tokens).then(|| targets.num_outputs());
        let (kind, names) = (targets.kind(), targets.names().to_vec());
        let (means, scales, class_counts) = (Vec::new(), Vec::new(), Vec::new());
        Self { kind, names, means, scales, vocabulary, bytes_per_token: None, is_text: false, class_counts }
    }

    /// Outputs that a network needs, per sample or per token.
    #[must_use]
    pub fn num_outputs(&self) -> usize {
        self.vocabulary.unwrap_or(self.names.len())
    }

    /// Whether its classes are words: one that is a number is called as that number is written.
    pub(super) fn has_words(&self) -> bool {
        let is_number = |name: &String| name.parse::<f64>().is_ok_and(|number| number.to_string() == *name);
        self.kind == TargetKind::Classes && !self.names.iter().all(is_number)
    }

    /// Columns that it takes of a file of rows.
    pub(super) fn num_columns(&self) -> usize {
        match self.kind {
            TargetKind::Classes => 1,
            TargetKind::Values | TargetKind::Flags => self.names.len(),
            TargetKind::Tokens => 0,
        }
    }

    /// Which targets the columns hold, and a sentence that says why.
    ///
    /// # Errors
    /// [`Error::Content`] for columns that cannot be what was asked for, or are nothing at all.
    pub(super) fn decide(columns: &[Column], choice: TargetChoice, place: &str) -> Result<(Self, String), Error> {
        let wrong = |found: String, expected: &str| {
            Err(Error::Content { place: place.into(), found, expected: expected.into() })
        };
        let names: Vec<String> = columns.iter().map(|column| column.name.clone()).collect();
        let [first, rest @ ..] = columns else {
            return wrong("no target".into(), "a column of targets");
        };
        let is_flag = |column: &Column| match &column.cells {
            Cells::Numbers(values) => values.iter().all(|value| [0.0, 1.0].contains(value)),
            Cells::Words { .. } => false,
        };
        let words = columns.iter().find(|column| matches!(column.cells, Cells::Words { .. }));
        let flags = columns.iter().all(is_flag);
        let plan = |kind, names| {
            let (means, scales, class_counts) = (Vec::new(), Vec::new(), Vec::new());
            Self { kind, names, means, scales, vocabulary: None, bytes_per_token: None, is_text: false, class_counts }
        };
        let (kind, why) = match (choice, rest) {
            (TargetChoice::Auto, []) => why_alone(first),
            (TargetChoice::Auto, _) if flags => (TargetKind::Flags, "each holds 0 and 1 alone".to_owned()),
            (TargetChoice::Auto, _) => (TargetKind::Values, "there are several columns".to_owned()),
            (TargetChoice::Classes, _) => (TargetKind::Classes, "data.target_kind says so".to_owned()),
            (TargetChoice::Values, _) => (TargetKind::Values, "data.target_kind says so".to_owned()),
            (TargetChoice::Flags, _) => (TargetKind::Flags, "data.target_kind says so".to_owned()),
        };
        let of = format!("target: {}", shown(&names));
        match (kind, words) {
            (TargetKind::Classes, _) => {
                if !rest.is_empty() {
                    return wrong(
                        format!("{} columns for classes", columns.len()),
                        "one column, or another `data.target_kind`",
                    );
                }
                let classes = class_names(&first.cells);
                if classes.len() < 2 {
                    let only = classes.first().map_or(String::new(), |name| quoted(name));
                    return wrong(
                        format!("the label {only} in every row of {}", quoted(&first.name)),
                        "at least two classes",
                    );
                }
                if classes.len() > MAX_CLASSES {
                    return wrong(
                        format!("{} different labels in {}", classes.len(), quoted(&first.name)),
                        "at most 10000 classes, or `data.target_kind` = \"values\"",
                    );
                }
                let note = format!("{of}: {} classes ({}), since {why}", classes.len(), shown(&classes));
                Ok((plan(kind, classes), note))
            }
            (_, Some(column)) => wrong(
                format!("words in {}", quoted(&column.name)),
                "numbers for values or flags, or `data.target_kind` = \"classes\"",
            ),
            (TargetKind::Flags, None) if !flags => {
                wrong("numbers other than 0 and 1".into(), "0 or 1 in columns of flags")
            }
            (_, None) => {
                let note = format!("{of}: {kind}, since {why} (data.target_kind)");
                Ok((plan(kind, names), note))
            }
        }
    }

    /// The targets in these columns, by the names that are known.
    ///
    /// # Errors
    /// [`Error::Content`] for a label that is none of them, or for columns of another kind.
    pub(super) fn encode(&self, columns: &[Column], place: &str) -> Result<Targets, Error> {
        let wrong = |found: String, expected: String| Error::Content { place: place.into(), found, expected };
        if columns.len() != self.num_columns() {
            return Err(wrong(format!("{} columns of targets", columns.len()), self.num_columns().to_string()));
        }
        if self.kind == TargetKind::Classes {
            let classes: BTreeMap<&str, u32> = self.names.iter().map(String::as_str).zip(0..).collect();
            let class = |(row, label): (usize, &str)| {
                let known = classes.get(label).copied();
                known.ok_or_else(|| {
                    let found = format!("the label {} in sample {row}", quoted(label));
                    wrong(found, format!("one of {}", shown(&self.names)))
                })
            };
            let labels: Result<Vec<u32>, Error> = match &columns[0].cells {
                Cells::Numbers(values) => {
                    // What earlier versions wrote may call it `-0`.
                    let zero = if classes.contains_key("-0") { -0.0 } else { 0.0 };
                    let of = |value: f64| if value == 0.0 { zero } else { value };
                    values.iter().enumerate().map(|(row, value)| class((row, &of(*value).to_string()))).collect()
                }
                Cells::Words { codes, words } => {
                    codes.iter().enumerate().map(|(row, code)| class((row, &words[*code as usize]))).collect()
                }
            };
            return labels.map(|labels| Targets::Classes { labels, names: self.names.clone() });
        }
        let num_rows = columns.first().map_or(0, |column| column.cells.len());
        let mut values = vec![0_f32; num_rows * columns.len()];
        for (index, column) in columns.iter().enumerate() {
            let Cells::Numbers(numbers) = &column.cells else {
                return Err(wrong(format!("words in {}", quoted(&column.name)), "numbers".into()));
            };
            for (row, number) in values.chunks_exact_mut(columns.len()).zip(numbers) {
                row[index] = self.scaled(index, *number);
            }
        }
        let names = self.names.clone();
        let targets = if self.kind == TargetKind::Flags {
            Targets::Flags { values, names }
        } else {
            Targets::Values { values, names }
        };
        targets.check().map(|()| targets)
    }

    /// Tokens of another file, which may have fewer different ones and no others.
    ///
    /// # Errors
    /// [`Error::Content`] for a token that was not learned.
    pub(super) fn within_vocabulary(&self, tokens: Targets, place: &str) -> Result<Targets, Error> {
        let known = self.vocabulary.unwrap_or(0);
        match tokens {
            Targets::Tokens { tokens, window, vocabulary } if vocabulary <= known => {
                Ok(Targets::Tokens { tokens, window, vocabulary: known })
            }
            other => Err(Error::Content {
                place: place.into(),
                found: format!("{} outputs", other.num_outputs()),
                expected: format!("tokens below {known}, as were learned"),
            }),
        }
    }

    /// Learns mean and scale of each column of values from the training rows.
    pub(super) fn fit(&mut self, columns: &[Column], train: &[usize]) -> Option<String> {
        if self.kind != TargetKind::Values {
            return None;
        }
        let scaling = columns.iter().filter_map(|column| match &column.cells {
            Cells::Numbers(values) => Some(mean_and_scale(train.iter().map(|&row| values[row]))),
            Cells::Words { .. } => None,
        });
        (self.means, self.scales) = scaling.unzip();
        let shown: Vec<String> = self
            .means
            .iter()
            .zip(&self.scales)
            .take(4)
            .map(|(mean, scale)| format!("{mean:.4} ± {scale:.4}"))
            .collect();
        Some(format!(
            "the target is learned in deviations from its mean over {} training rows: {}",
            train.len(),
            shown.join(", ")
        ))
    }

    #[expect(clippy::cast_possible_truncation, reason = "targets are single precision")]
    fn scaled(&self, column: usize, value: f64) -> f32 {
        match (self.means.get(column), self.scales.get(column)) {
            (Some(mean), Some(scale)) => ((value - mean) / scale) as f32,
            _ => value as f32,
        }
    }
}

/// What one column holds, where nobody says it.
fn why_alone(column: &Column) -> (TargetKind, String) {
    let Cells::Numbers(values) = &column.cells else {
        return (TargetKind::Classes, "it holds words".into());
    };
    if let Some(value) = values.iter().find(|value| value.fract() != 0.0) {
        return (TargetKind::Values, format!("{value} is no whole number"));
    }
    let different: BTreeSet<u64> = values.iter().map(|value| unsigned_zero(*value).to_bits()).collect();
    let (lowest, highest) =
        values.iter().fold((f64::MAX, f64::MIN), |(low, high), &value| (low.min(value), high.max(value)));
    let count = different.len();
    let is_counted = [0.0, 1.0].contains(&lowest) && (highest - lowest + 1.0 - count as f64).abs() < 0.5;
    if count <= FEW && count * 2 <= values.len().max(4) {
        (TargetKind::Classes, format!("it holds {count} different whole numbers"))
    } else if is_counted && values.len() >= count * ROWS_PER_CLASS {
        (TargetKind::Classes, format!("it counts from {lowest} to {highest} without gaps"))
    } else {
        (TargetKind::Values, format!("it holds {count} different whole numbers in {} rows", values.len()))
    }
}

/// The number; 0 for -0, which is no other label.
fn unsigned_zero(value: f64) -> f64 {
    value + 0.0
}

/// Labels as text: words by their bytes, numbers by their values.
fn class_names(cells: &Cells) -> Vec<String> {
    match cells {
        Cells::Words { words, .. } => {
            let mut names = words.clone();
            names.sort_unstable();
            names
        }
        Cells::Numbers(values) => {
            let mut numbers: Vec<f64> = values.iter().map(|value| unsigned_zero(*value)).collect();
            numbers.sort_unstable_by(f64::total_cmp);
            numbers.dedup();
            numbers.iter().map(f64::to_string).collect()
        }
    }
}
