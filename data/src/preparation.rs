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
use super::config::{DataConfig, Delimiter, Header, Missing};
use super::error::quoted;
use super::format::{Features, Format, Reading, Records};
use super::{Error, Inputs, Scale, TargetKind, TargetPlan, Targets, Tokenizer, TokenizerFile};

/// What was learned from the training part of a data set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preparation {
    /// Of this document: 1.
    pub version: u32,
    /// What it was learned from, as `data.name`.
    pub source: String,
    /// `data.format`, where it was given: that of other files whose name has the same ending, or one that tells no format.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
    /// Shape of a sample as the network takes it.
    pub sample_shape: Vec<usize>,
    /// Of a file of rows, which columns become inputs and how; absent of files that hold inputs as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub columns: Option<ColumnPlan>,
    /// How inputs are scaled.
    pub scaling: Scaling,
    /// What is learned.
    pub target: TargetPlan,
    /// What turns texts into tokens, where these are not bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<TokenizerFile>,
}

/// Which columns of a file of rows are inputs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ColumnPlan {
    /// Whether columns are found by name; else by place.
    pub has_header: bool,
    /// Columns of the file that was learned from (count).
    pub num_columns: usize,
    /// `data.delimiter`, where it was given: that of other files whose first row has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delimiter: Option<Delimiter>,
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
    /// One per feature; one for all features, those that stand for words among them; none where inputs stay as they are.
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

/// The shape of samples, or that of the only channel that they have.
fn without_channel(shape: &[usize]) -> &[usize] {
    shape.strip_prefix(&[1]).unwrap_or(shape)
}

impl Preparation {
    /// The version that this build writes and reads.
    pub const VERSION: u32 = 1;

    /// Of inputs that come as the network takes them, but for a factor.
    pub(super) fn of_whole(source: String, sample_shape: Vec<usize>, divisor: f64, target: TargetPlan) -> Self {
        let scaling = Scaling { means: vec![0.0], scales: vec![divisor] };
        Self {
            version: Self::VERSION,
            source,
            format: None,
            sample_shape,
            columns: None,
            scaling,
            target,
            tokenizer: None,
        }
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
            Features::Whole(..) | Features::Exact(..) => None,
            Features::Columns(columns) => Some(ColumnPlan {
                has_header: records.has_header,
                num_columns: records.num_columns,
                delimiter: config.delimiter,
                features: columns.iter().map(|column| FeaturePlan::fit(column, train, config.missing)).collect(),
                targets: records.targets.iter().map(|column| (column.name.clone(), column.position)).collect(),
            }),
        };
        let mut preparation = Self {
            version: Self::VERSION,
            source,
            format: config.format.clone(),
            sample_shape: records.features.sample_shape(columns.as_ref()),
            columns,
            scaling: Scaling::default(),
            target,
            tokenizer: None,
        };
        preparation.scaling = match config.csv_scale {
            Some(scale) => preparation.divided_by(f64::from(scale.get())),
            None if config.standardize == Some(false) => Scaling::default(),
            None => preparation.fit_scaling(&records.features, train),
        };
        let inputs = preparation.scaled(records.features, notes)?;
        if let Inputs::Values(_) = &inputs {
            notes.push(preparation.described(train.len(), config.csv_scale));
        }
        Ok((preparation, inputs))
    }

    /// F.
    pub fn num_features(&self) -> usize {
        self.sample_shape.iter().product()
    }

    /// What turns texts into tokens; absent where these are bytes or numbers, or no tokens at all.
    ///
    /// # Errors
    /// [`Error::Content`] when it is not what the run learned with.
    pub fn open_tokenizer(&self) -> Result<Option<Tokenizer>, Error> {
        self.tokenizer.as_ref().map(|file| file.open("the tokenizer that was learned with")).transpose()
    }

    /// Reads another file by what was learned: with or without the target.
    ///
    /// # Errors
    /// As [`super::load`]; a file without the columns or the shape that were learned from, and targets that are none of those
    /// that were learned.
    pub fn apply(&self, path: &Path) -> Result<Applied, Error> {
        let format = self.format_of(path)?;
        let header = match &self.columns {
            Some(plan) if plan.has_header => Header::Yes,
            Some(_) => Header::No,
            None => Header::Auto,
        };
        let delimiter = self.columns.as_ref().and_then(|plan| plan.delimiter);
        let mut config = DataConfig { header, delimiter, ..DataConfig::default() };
        if self.target.kind == TargetKind::Tokens {
            config.window = NonZeroUsize::new(self.num_features()).unwrap_or(config.window);
        }
        let place = path.display().to_string();
        let plan = self.plan();
        let tokenizer = self.open_tokenizer()?;
        let has_word_labels = self.target.has_words();
        let reading = Reading { config: &config, learned: Some(&plan), has_word_labels, tokenizer: tokenizer.as_ref() };
        let records = (format.read)(path, &reading)?;
        let mut notes = records.notes.clone();
        let has_targets = !records.targets.is_empty();
        let targets = match records.following {
            // A tokenizer turns texts into the numbers that others hold already.
            Some(_) if self.tokenizer.is_none() && format.is_text() != self.target.is_text => {
                let [text, numbers] =
                    ["a text, whose bytes are tokens", "tokens that are numbers of another vocabulary"];
                let [found, expected] = if self.target.is_text { [numbers, text] } else { [text, numbers] };
                return Err(Error::Content {
                    place,
                    found: found.into(),
                    expected: format!("{expected}, as were learned"),
                });
            }
            Some(tokens) => Some(self.target.within_vocabulary(tokens, &place)?),
            None if has_targets => Some(self.target.encode(&records.targets, &place)?),
            None => None,
        };
        let features = if format.is_images() { self.in_channels(records.features) } else { records.features };
        let shape = features.sample_shape(Some(&plan));
        // Rows and columns are those of one channel.
        let is_alike = shape.len() < 2 || without_channel(&shape) == without_channel(&self.sample_shape);
        if shape.iter().product::<usize>() != self.num_features() || !is_alike {
            let (found, expected) = (format!("samples of {shape:?}"), format!("samples of {:?}", self.sample_shape));
            return Err(Error::Content { place, found, expected });
        }
        let by_columns = Self { columns: Some(plan), ..self.clone() };
        let inputs = by_columns.scaled(features, &mut notes)?;
        if let Inputs::Values(values) = &inputs
            && let Some(at) = values.iter().position(|value| !value.is_finite())
        {
            let found = format!("{} in sample {}, as it was to be scaled", values[at], at / self.num_features());
            return Err(Error::Content { place, found, expected: "finite numbers".into() });
        }
        Ok(Applied { inputs, sample_shape: self.sample_shape.clone(), targets, notes })
    }

    /// Grey images, in three channels where coloured ones were learned from.
    fn in_channels(&self, features: Features) -> Features {
        match features {
            Features::Whole(Inputs::Values(values), shape) if matches!(shape[..], [1, rows, columns] if self.sample_shape == [3, rows, columns]) =>
            {
                let images = values.chunks(shape.iter().product());
                let values = images.flat_map(|image| image.repeat(3)).collect();
                Features::Whole(Inputs::Values(values), self.sample_shape.clone())
            }
            others => others,
        }
    }

    /// The format of another file. One that was given holds for files that are named as the one that was learned from.
    fn format_of(&self, path: &Path) -> Result<Format, Error> {
        let is_named_alike = path.extension() == Path::new(&self.source).extension();
        match (Format::of(path, None), &self.format) {
            (Ok(found), Some(_)) if !is_named_alike => Ok(found),
            (_, Some(given)) => Format::of(path, Some(given)),
            (found, None) => found,
        }
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
                delimiter: None,
                features: (0..num_features).map(feature).collect(),
                targets,
            }
        })
    }

    /// All numbers by one divisor; inputs that stand for words stay as they are.
    fn divided_by(&self, divisor: f64) -> Scaling {
        let features = || self.columns.iter().flat_map(|plan| &plan.features);
        let is_number = |feature: &FeaturePlan| matches!(feature.kind, FeatureKind::Number { .. });
        let scales = if features().all(is_number) {
            vec![divisor]
        } else {
            let of = |feature| vec![if is_number(feature) { divisor } else { 1.0 }; feature.num_inputs()];
            features().flat_map(of).collect()
        };
        Scaling { means: vec![0.0; scales.len()], scales }
    }

    /// Inputs as the network takes them, N × F: numbers with gaps filled, words as flags, both scaled in f64 and rounded once.
    fn scaled(&self, features: Features, notes: &mut Vec<String>) -> Result<Inputs, Error> {
        let width = self.num_features();
        let columns = match features {
            Features::Whole(Inputs::Values(values), _) => {
                let f64s = values.into_iter().map(f64::from);
                return Ok(Inputs::Values(self.scaling.apply(f64s, width)));
            }
            Features::Whole(tokens, _) => return Ok(tokens),
            Features::Exact(values, _) => return Ok(Inputs::Values(self.scaling.apply(values.into_iter(), width))),
            Features::Columns(columns) => columns,
        };
        let plan = self.columns.as_ref().expect("columns are read by a plan");
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
            let num_unknown = feature.write(column, &self.scaling, &mut values, width, start);
            if num_unknown > 0 {
                notes.push(format!(
                    "{}: {num_unknown} rows have a word that no training row has: 0 in all inputs of the column",
                    quoted(&feature.name)
                ));
            }
            start += feature.num_inputs();
        }
        Ok(Inputs::Values(values))
    }

    /// By mean and deviation of the training rows: per feature of a vector, else over all values of a sample, whose places in a
    /// signal or an image mean the same. Inputs that stand for words stay as they are.
    fn fit_scaling(&self, features: &Features, train: &[usize]) -> Scaling {
        let (width, is_vector) = (self.num_features(), self.sample_shape.len() == 1);
        let scalings: Vec<(f64, f64)> = match features {
            Features::Whole(Inputs::Tokens(_), _) => return Scaling::default(),
            Features::Whole(Inputs::Values(values), _) => of_rows(values, width, is_vector, train),
            Features::Exact(values, _) => of_rows(values, width, is_vector, train),
            Features::Columns(columns) => {
                let plans = self.columns.iter().flat_map(|plan| &plan.features);
                let of = |(plan, column): (&FeaturePlan, &Column)| match (&plan.kind, &column.cells) {
                    (FeatureKind::Number { fill }, Cells::Numbers(values)) => {
                        vec![mean_and_scale(train.iter().map(|&row| filled(values[row], *fill)))]
                    }
                    _ => vec![(0.0, 1.0); plan.num_inputs()],
                };
                plans.zip(columns).flat_map(of).collect()
            }
        };
        let (means, scales) = scalings.into_iter().unzip();
        Scaling { means, scales }
    }

    fn described(&self, num_train: usize, divisor: Option<Scale>) -> String {
        let words: Vec<String> = self
            .columns
            .iter()
            .flat_map(|plan| &plan.features)
            .filter_map(|feature| match &feature.kind {
                FeatureKind::Words { values } => Some(format!("{}: {}", quoted(&feature.name), shown(values))),
                FeatureKind::Number { .. } => None,
            })
            .collect();
        let words =
            if words.is_empty() { String::new() } else { format!("; one input per word of {}", words.join("; ")) };
        let scaling = match (self.scaling.means.as_slice(), divisor) {
            ([], _) => "as they are".to_owned(),
            (_, Some(divisor)) => format!("numbers divided by {}", divisor.get()),
            ([mean], None) => format!(
                "less {mean:.4}, divided by {:.4}: mean and deviation of all values of {num_train} training samples",
                self.scaling.scales[0]
            ),
            (_, None) => {
                format!("numbers standardized by mean and deviation of {num_train} training rows (data.standardize)")
            }
        };
        format!("samples of {:?}, {scaling}{words}", self.sample_shape)
    }
}

/// 8 GB of inputs.
const MAX_VALUES: usize = 1 << 31;

/// The first of a list.
pub(super) fn shown(names: &[String]) -> String {
    const SHOWN: usize = 8;
    let first: Vec<String> = names.iter().take(SHOWN).map(|name| quoted(name)).collect();
    first.join(", ") + if names.len() > SHOWN { ", …" } else { "" }
}

impl FeaturePlan {
    fn fit(column: &Column, train: &[usize], missing: Missing) -> Self {
        let kind = match &column.cells {
            Cells::Numbers(values) => {
                let known = train.iter().map(|&row| values[row]).filter(|value| !value.is_nan());
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
    fn write(&self, column: &Column, scaling: &Scaling, to: &mut [f32], width: usize, start: usize) -> usize {
        let rows = to.chunks_exact_mut(width);
        match (&self.kind, &column.cells) {
            (FeatureKind::Number { fill }, Cells::Numbers(values)) => {
                for (row, value) in rows.zip(values) {
                    row[start] = scaling.of(start, filled(*value, *fill));
                }
                0
            }
            (FeatureKind::Words { values }, Cells::Words { codes, words }) => {
                let places: Vec<Option<usize>> = words.iter().map(|word| values.binary_search(word).ok()).collect();
                let flags = |value| (0..values.len()).map(|place| scaling.of(start + place, value)).collect::<Vec<_>>();
                let (clear, set) = (flags(0.0), flags(1.0));
                let mut num_unknown = 0;
                for (row, code) in rows.zip(codes) {
                    row[start..][..clear.len()].copy_from_slice(&clear);
                    match places[*code as usize] {
                        Some(place) => row[start + place] = set[place],
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

fn filled(value: f64, fill: Option<f64>) -> f64 {
    if value.is_nan() { fill.unwrap_or(0.0) } else { value }
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

/// Mean and scale of each place in the training rows of N × width values, or of all places together.
fn of_rows<T: Copy + Into<f64>>(values: &[T], width: usize, is_vector: bool, train: &[usize]) -> Vec<(f64, f64)> {
    if !is_vector {
        let all = train.iter().flat_map(|&row| &values[row * width..][..width]).map(|&value| value.into());
        return vec![mean_and_scale(all)];
    }
    let of = |place: usize| mean_and_scale(train.iter().map(|&row| values[row * width + place].into()));
    (0..width).map(of).collect()
}

impl Scaling {
    /// An input as the network takes it.
    #[expect(clippy::cast_possible_truncation, reason = "inputs are single precision")]
    fn of(&self, place: usize, value: f64) -> f32 {
        match (self.means.as_slice(), self.scales.as_slice()) {
            ([], _) => value as f32,
            ([mean], [scale]) => ((value - mean) / scale) as f32,
            (means, scales) => ((value - means[place]) / scales[place]) as f32,
        }
    }

    /// Scales N × `width` values.
    fn apply(&self, values: impl Iterator<Item = f64>, width: usize) -> Vec<f32> {
        values.enumerate().map(|(index, value)| self.of(index % width, value)).collect()
    }
}

impl Features {
    /// Shape of a sample; of columns, as they are planned.
    fn sample_shape(&self, plan: Option<&ColumnPlan>) -> Vec<usize> {
        match self {
            Self::Whole(_, shape) | Self::Exact(_, shape) => shape.clone(),
            Self::Columns(_) => {
                vec![plan.into_iter().flat_map(|plan| &plan.features).map(FeaturePlan::num_inputs).sum()]
            }
        }
    }
}

mod check;
#[cfg(test)]
mod tests;
