//! What was learned from the training part, and has to be done to every other sample the network is given.
//!
//! One JSON document in the folder of a run. [`Preparation::apply`] reads another file by it: the same columns, found by name,
//! the same words as the same inputs, the same means and scales, the same names of classes.
//!
//! ```
//! use esper_data::{DataConfig, DataName, load};
//! # let folder = tempfile::tempdir()?;
//! # let (train, more) = (folder.path().join("train.csv"), folder.path().join("more.csv"));
//! # let rows = |count: u32| (0..count).map(|i| format!("{},{},{}\n", i % 7, i % 3, ["no", "yes"][(i % 2) as usize]));
//! std::fs::write(&train, format!("width,height,bought\n{}", rows(40).collect::<String>()))?;
//! std::fs::write(&more, "height,width\n2,3\n0,6\n")?; // another order, and no target
//! let prepared = load(&DataConfig::new(DataName::parse(&train.display().to_string()).unwrap()))?;
//! let applied = prepared.preparation.apply(&more)?;
//! assert_eq!((applied.num_samples(), applied.sample_shape.as_slice()), (2, [2].as_slice()));
//! assert_eq!(applied.targets, None);
//! assert_eq!(prepared.preparation.target.names, ["no", "yes"]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::path::Path;

use candle_core::{Device, Tensor};
use serde::{Deserialize, Serialize};

use super::column::{Cells, Column};
use super::config::{DataConfig, Header, Missing};
use super::format::{Features, Format, Reading, Records};
use super::{Error, Inputs, TargetKind, TargetPlan, Targets};

/// What was learned from the training part of a data set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preparation {
    /// Of this document: 1.
    pub version: u32,
    /// What it was learned from, as `data.name`.
    pub source: String,
    /// Shape of a sample as the network takes it.
    pub sample_shape: Vec<usize>,
    /// Of a file of rows, which columns become inputs and how; absent of files that hold inputs as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub columns: Option<ColumnPlan>,
    /// How inputs are scaled.
    pub scaling: Scaling,
    /// What is learned.
    pub target: TargetPlan,
}

/// Which columns of a file of rows are inputs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ColumnPlan {
    /// Whether columns are found by name; else by place.
    pub has_header: bool,
    /// Columns of the file that was learned from (count).
    pub num_columns: usize,
    /// Inputs, in order.
    pub features: Vec<FeaturePlan>,
    /// Names and places (from 0) of the target's columns.
    pub targets: Vec<(String, usize)>,
}

/// One column that becomes one or more inputs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FeaturePlan {
    /// Name of the column.
    pub name: String,
    /// Its place, from 0.
    pub position: usize,
    /// What stands in it.
    pub kind: FeatureKind,
}

/// What stands in a column.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum FeatureKind {
    /// One number: one input.
    Number {
        /// What stands for a missing one: the mean of the training rows. Without it none may be missing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        fill: Option<f64>,
    },
    /// A word: an input for each word of the training rows, in this order, which is 1 for that word and else 0. A missing one is
    /// the empty word; another word is 0 in all of them.
    Words {
        /// In the order of their bytes.
        values: Vec<String>,
    },
}

/// Inputs become (input - mean) / scale, computed in f64.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scaling {
    /// One per feature; one for all features; none where inputs stay as they are.
    pub means: Vec<f64>,
    /// As many; above 0.
    pub scales: Vec<f64>,
}

/// A file, read and prepared as what a run has learned from.
#[derive(Debug, Clone, PartialEq)]
pub struct Applied {
    /// N × F, as the network takes them.
    pub inputs: Inputs,
    /// Shape of a sample; its product is F.
    pub sample_shape: Vec<usize>,
    /// N targets in the units of the training, where the file has the columns of the target.
    pub targets: Option<Targets>,
    /// What was seen on the way, one sentence each.
    pub notes: Vec<String>,
}

impl Applied {
    /// N.
    pub fn num_samples(&self) -> usize {
        let width = self.sample_shape.iter().product::<usize>().max(1);
        match &self.inputs {
            Inputs::Values(values) => values.len() / width,
            Inputs::Tokens(tokens) => tokens.len() / width,
        }
    }

    /// The inputs on `device`, of shape (N, `sample_shape`…).
    ///
    /// # Errors
    /// [`Error::Tensor`] when the device refuses.
    ///
    /// # Sync
    /// One host-to-device copy.
    pub fn to_tensor(&self, device: &Device) -> Result<Tensor, Error> {
        self.inputs.to_tensor(&self.sample_shape, device)
    }
}

impl ColumnPlan {
    /// Whether a column may have gaps.
    pub(super) fn fills(&self, name: &str) -> bool {
        let feature = self.features.iter().find(|feature| feature.name == name);
        feature.is_some_and(|feature| match &feature.kind {
            FeatureKind::Number { fill } => fill.is_some(),
            FeatureKind::Words { values } => values.iter().any(String::is_empty),
        })
    }
}

impl Preparation {
    /// The version that this build writes and reads.
    pub const VERSION: u32 = 1;

    /// Of inputs that come as the network takes them, but for a factor.
    pub(super) fn of_whole(source: String, sample_shape: Vec<usize>, divisor: f64, target: TargetPlan) -> Self {
        let scaling = Scaling { means: vec![0.0], scales: vec![divisor] };
        Self { version: Self::VERSION, source, sample_shape, columns: None, scaling, target }
    }

    /// Learns from the training rows what all rows are prepared by, and prepares them.
    pub(super) fn fit(
        config: &DataConfig,
        records: Records,
        target: TargetPlan,
        train: &[usize],
        notes: &mut Vec<String>,
    ) -> Result<(Self, Inputs), Error> {
        let source = config.name.to_string();
        let columns = match &records.features {
            Features::Whole(..) => None,
            Features::Columns(columns) => Some(ColumnPlan {
                has_header: records.has_header,
                num_columns: records.num_columns,
                features: columns.iter().map(|column| FeaturePlan::fit(column, train, config.missing)).collect(),
                targets: records.targets.iter().map(|column| (column.name.clone(), column.position)).collect(),
            }),
        };
        let mut preparation = Self {
            version: Self::VERSION,
            source,
            sample_shape: Vec::new(),
            columns,
            scaling: Scaling::default(),
            target,
        };
        let (mut inputs, shape) = preparation.widened(records.features, notes)?;
        preparation.sample_shape = shape;
        if let Inputs::Values(values) = &mut inputs {
            let width = preparation.num_features();
            preparation.scaling = match config.csv_scale {
                Some(scale) => Scaling { means: vec![0.0], scales: vec![f64::from(scale.get())] },
                None if config.standardize == Some(false) => Scaling::default(),
                None => {
                    Scaling::fit(values, width, train, preparation.is_indicator(), preparation.sample_shape.len() == 1)
                }
            };
            preparation.scaling.apply(values, width);
            notes.push(preparation.described(train.len()));
        }
        Ok((preparation, inputs))
    }

    /// F.
    pub fn num_features(&self) -> usize {
        self.sample_shape.iter().product()
    }

    /// Reads another file by what was learned: with or without the target.
    ///
    /// # Errors
    /// As [`super::load`]; a file without the columns or the shape that were learned from, and targets that are none of those
    /// that were learned.
    pub fn apply(&self, path: &Path) -> Result<Applied, Error> {
        let format = Format::of(path, None)?;
        let header = match &self.columns {
            Some(plan) if plan.has_header => Header::Yes,
            Some(_) => Header::No,
            None => Header::Auto,
        };
        let mut config = DataConfig { header, ..DataConfig::default() };
        if self.target.kind == TargetKind::Tokens {
            config.window = NonZeroUsize::new(self.num_features()).unwrap_or(config.window);
        }
        let place = path.display().to_string();
        let plan = self.plan();
        let records = (format.read)(path, &Reading { config: &config, learned: Some(&plan) })?;
        let mut notes = records.notes.clone();
        let has_targets = !records.targets.is_empty();
        let targets = match records.following {
            Some(tokens) => Some(self.target.within_vocabulary(tokens, &place)?),
            None if has_targets => Some(self.target.encode(&records.targets, &place)?),
            None => None,
        };
        let by_columns = Self { columns: Some(plan), ..self.clone() };
        let (mut inputs, shape) = by_columns.widened(records.features, &mut notes)?;
        let num_features = shape.iter().product::<usize>();
        if num_features != self.num_features() || shape.len() > 1 && shape != self.sample_shape {
            let (found, expected) = (format!("samples of {shape:?}"), format!("samples of {:?}", self.sample_shape));
            return Err(Error::Content { place, found, expected });
        }
        if let Inputs::Values(values) = &mut inputs {
            self.scaling.apply(values, num_features);
        }
        Ok(Applied { inputs, sample_shape: self.sample_shape.clone(), targets, notes })
    }

    /// The columns of a file of rows; where none were learned from, the features in order and a target behind them.
    fn plan(&self) -> ColumnPlan {
        self.columns.clone().unwrap_or_else(|| {
            let feature = |position| FeaturePlan {
                name: format!("column {}", position + 1),
                position,
                kind: FeatureKind::Number { fill: None },
            };
            let num_features = self.num_features();
            let targets = num_features..num_features + self.target.num_columns();
            let targets: Vec<_> = targets.map(|position| (format!("column {}", position + 1), position)).collect();
            ColumnPlan {
                has_header: false,
                num_columns: num_features + targets.len(),
                features: (0..num_features).map(feature).collect(),
                targets,
            }
        })
    }

    /// Inputs that are not scaled, N × F, and the shape of a sample: numbers with gaps filled, words as flags.
    fn widened(&self, features: Features, notes: &mut Vec<String>) -> Result<(Inputs, Vec<usize>), Error> {
        let columns = match features {
            Features::Whole(inputs, shape) => return Ok((inputs, shape)),
            Features::Columns(columns) => columns,
        };
        let plan = self.columns.as_ref().expect("columns are read by a plan");
        let width: usize = plan.features.iter().map(FeaturePlan::num_inputs).sum();
        let num_rows = columns.first().map_or(0, |column| column.cells.len());
        let size = num_rows.checked_mul(width).filter(|&size| size <= MAX_VALUES);
        let size = size.ok_or_else(|| Error::Content {
            place: self.source.clone(),
            found: format!("{num_rows} rows × {width} inputs"),
            expected: format!("at most {MAX_VALUES} values"),
        })?;
        let mut values = vec![0_f32; size];
        let mut start = 0;
        for (feature, column) in plan.features.iter().zip(&columns) {
            let num_unknown = feature.write(column, &mut values, width, start);
            if num_unknown > 0 {
                notes.push(format!(
                    "`{}`: {num_unknown} rows have a word that no training row has: 0 in all inputs of the column",
                    feature.name
                ));
            }
            start += feature.num_inputs();
        }
        Ok((Inputs::Values(values), vec![width]))
    }

    /// Which inputs are 1 for a word, and stay as they are.
    fn is_indicator(&self) -> Vec<bool> {
        let features = self.columns.iter().flat_map(|plan| &plan.features);
        features
            .flat_map(|feature| {
                let is_word = matches!(feature.kind, FeatureKind::Words { .. });
                std::iter::repeat_n(is_word, feature.num_inputs())
            })
            .collect()
    }

    fn described(&self, num_train: usize) -> String {
        let words: Vec<String> = self
            .columns
            .iter()
            .flat_map(|plan| &plan.features)
            .filter_map(|feature| match &feature.kind {
                FeatureKind::Words { values } => Some(format!("`{}`: {}", feature.name, shown(values))),
                FeatureKind::Number { .. } => None,
            })
            .collect();
        let words =
            if words.is_empty() { String::new() } else { format!("; one input per word of {}", words.join("; ")) };
        let scaling = match self.scaling.means.as_slice() {
            [] => "as they are".to_owned(),
            [mean] if *mean == 0.0 => format!("divided by {}", self.scaling.scales[0]),
            [mean] => format!(
                "less {mean:.4}, divided by {:.4}: mean and deviation of all values of {num_train} training samples",
                self.scaling.scales[0]
            ),
            _ => format!("numbers standardized by mean and deviation of {num_train} training rows (data.standardize)"),
        };
        format!("samples of {:?}, {scaling}{words}", self.sample_shape)
    }
}

/// 8 GB of inputs.
const MAX_VALUES: usize = 1 << 31;

/// The first of a list.
pub(super) fn shown(names: &[String]) -> String {
    const SHOWN: usize = 8;
    let first: Vec<String> = names.iter().take(SHOWN).map(|name| super::error::quoted(name)).collect();
    first.join(", ") + if names.len() > SHOWN { ", …" } else { "" }
}

impl FeaturePlan {
    fn fit(column: &Column<f32>, train: &[usize], missing: Missing) -> Self {
        let kind = match &column.cells {
            Cells::Numbers(values) => {
                let known = train.iter().map(|&row| f64::from(values[row])).filter(|value| !value.is_nan());
                let fill = (missing == Missing::Mean).then(|| mean(known));
                FeatureKind::Number { fill }
            }
            Cells::Words { codes, words } => {
                let used: BTreeSet<u32> = train.iter().map(|&row| codes[row]).collect();
                let mut values: Vec<String> = used.into_iter().map(|code| words[code as usize].clone()).collect();
                values.sort_unstable();
                FeatureKind::Words { values }
            }
        };
        Self { name: column.name.clone(), position: column.position, kind }
    }

    fn num_inputs(&self) -> usize {
        match &self.kind {
            FeatureKind::Number { .. } => 1,
            FeatureKind::Words { values } => values.len(),
        }
    }

    /// Writes its inputs from `start` on in rows of `width`; returns the number of words that are none of its own.
    #[expect(clippy::cast_possible_truncation, reason = "inputs are single precision")]
    fn write(&self, column: &Column<f32>, to: &mut [f32], width: usize, start: usize) -> usize {
        let rows = to.chunks_exact_mut(width);
        match (&self.kind, &column.cells) {
            (FeatureKind::Number { fill }, Cells::Numbers(values)) => {
                for (row, value) in rows.zip(values) {
                    row[start] = if value.is_nan() { fill.unwrap_or(0.0) as f32 } else { *value };
                }
                0
            }
            (FeatureKind::Words { values }, Cells::Words { codes, words }) => {
                let places: Vec<Option<usize>> = words.iter().map(|word| values.binary_search(word).ok()).collect();
                let mut num_unknown = 0;
                for (row, code) in rows.zip(codes) {
                    match places[*code as usize] {
                        Some(place) => row[start + place] = 1.0,
                        None => num_unknown += 1,
                    }
                }
                num_unknown
            }
            (FeatureKind::Number { .. }, Cells::Words { .. }) | (FeatureKind::Words { .. }, Cells::Numbers(_)) => {
                unreachable!("a column is read as what it is to be")
            }
        }
    }
}

/// 0 of no values.
fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0_usize), |(sum, count), value| (sum + value, count + 1));
    if count == 0 { 0.0 } else { sum / count as f64 }
}

/// Mean and deviation (of the population); a deviation of 0, or one that cannot be told from rounding, becomes 1.
pub(super) fn mean_and_scale(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let center = mean(values.clone());
    let deviation = mean(values.map(|value| (value - center).powi(2))).sqrt();
    (center, if deviation > 1e-12 * center.abs().max(f64::MIN_POSITIVE) { deviation } else { 1.0 })
}

impl Scaling {
    /// By mean and deviation of the training rows: per feature of a vector, else over all values of a sample, whose places in a
    /// signal or an image mean the same. Inputs that stand for words stay as they are.
    fn fit(values: &[f32], width: usize, train: &[usize], is_indicator: Vec<bool>, is_vector: bool) -> Self {
        let is_indicator = |feature: usize| is_indicator.get(feature).copied().unwrap_or(false);
        if !is_vector {
            let all = train.iter().flat_map(|&row| &values[row * width..][..width]).map(|&value| f64::from(value));
            let (mean, scale) = mean_and_scale(all);
            return Self { means: vec![mean], scales: vec![scale] };
        }
        let of = |feature: usize| {
            if is_indicator(feature) {
                return (0.0, 1.0);
            }
            mean_and_scale(train.iter().map(|&row| f64::from(values[row * width + feature])))
        };
        let (means, scales) = (0..width).map(of).unzip();
        Self { means, scales }
    }

    /// Scales N × F values.
    #[expect(clippy::cast_possible_truncation, reason = "inputs are single precision")]
    pub(super) fn apply(&self, values: &mut [f32], width: usize) {
        let scaled = |value: f32, mean: f64, scale: f64| ((f64::from(value) - mean) / scale) as f32;
        match (self.means.as_slice(), self.scales.as_slice()) {
            ([], _) => {}
            ([mean], [scale]) => values.iter_mut().for_each(|value| *value = scaled(*value, *mean, *scale)),
            (means, scales) => {
                for row in values.chunks_exact_mut(width) {
                    for ((value, mean), scale) in row.iter_mut().zip(means).zip(scales) {
                        *value = scaled(*value, *mean, *scale);
                    }
                }
            }
        }
    }
}

mod check;
#[cfg(test)]
mod tests;
