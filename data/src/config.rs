//! The `[data]` section.

use std::fmt;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use serde::de::{self, Unexpected};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::error::quoted;
use super::{Error, SplitPlan, format, mnist1d};

/// Which samples a run sees, and how they are divided.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DataConfig {
    /// `digits`, `mnist1d`, `mnist`, `fashion-mnist`, or the path of a file of one's own: see [`DataName`].
    pub name: DataName,
    /// Format of the file; follows from its name or its first bytes when nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
    /// Folder with the files of `mnist` and `fashion-mnist`; not used by the others.
    pub folder: PathBuf,
    /// Seed of the division and of the label permutation, apart from the training seed.
    pub split_seed: u64,
    /// Share of the rows for validation: of all rows, or of the training part where a test part was published.
    pub validation_fraction: Fraction,
    /// Share of the rows for the test; only for `digits` and CSV files, the others come with a test part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub test_fraction: Option<Fraction>,
    /// Permutes the labels of all samples: a control, with which accuracy must stay at chance.
    pub permute_labels: bool,
    /// Inputs of a file are divided by this number instead of standardized: 255 for bytes, 1 for values that are scaled already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub csv_scale: Option<Scale>,
    /// Whether inputs of a file are standardized by mean and deviation of the training part: yes, unless `csv_scale` is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standardize: Option<bool>,
    /// Column or columns of the target, by name or by number from 1; the last one when nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<ColumnRefs>,
    /// What the target is: `auto`, `classes`, `values` or `flags`.
    #[serde(skip_serializing_if = "is_default")]
    pub target_kind: TargetChoice,
    /// Columns of the inputs, by name or by number from 1; all but the target when nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub features: Option<Vec<ColumnRef>>,
    /// Columns that are left out.
    #[serde(skip_serializing_if = "is_default")]
    pub ignore: Vec<ColumnRef>,
    /// Whether the first row holds names: `auto`, `yes` or `no`.
    #[serde(skip_serializing_if = "is_default")]
    pub header: Header,
    /// What stands between cells: `comma`, `semicolon`, `tab` or `pipe`; found out when nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delimiter: Option<Delimiter>,
    /// Tokens of a sample of text; 64 when nothing is said.
    #[serde(skip_serializing_if = "is_usual_window")]
    pub window: NonZeroUsize,
    /// A `tokenizer.json` that turns a text into tokens; its bytes are the tokens when nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<PathBuf>,
    /// What becomes of missing values: `refuse`, `drop` for rows that have one, `mean` of the training rows.
    #[serde(skip_serializing_if = "is_default")]
    pub missing: Missing,
    /// Sizes of the generated set.
    pub mnist1d: Mnist1dConfig,
}

impl Default for DataConfig {
    /// The embedded digits.
    fn default() -> Self {
        Self::new(DataName::Digits)
    }
}

impl DataConfig {
    /// What holds for a data set when nothing but its name is said.
    pub fn new(name: DataName) -> Self {
        let fraction = |value| Fraction::new(value).expect("a fraction above 0 and below 1");
        let (folder, validation) = match &name {
            DataName::Mnist => ("data/mnist", 0.1),
            DataName::FashionMnist => ("data/fashion-mnist", 0.1),
            DataName::Digits | DataName::Mnist1d | DataName::File(_) => ("data", 0.2),
        };
        Self {
            folder: folder.into(),
            split_seed: 1,
            validation_fraction: fraction(validation),
            test_fraction: (!name.has_test_part()).then(|| fraction(0.2)),
            permute_labels: false,
            csv_scale: None,
            format: None,
            standardize: None,
            target: None,
            target_kind: TargetChoice::default(),
            features: None,
            ignore: Vec::new(),
            header: Header::default(),
            delimiter: None,
            missing: Missing::default(),
            window: USUAL_WINDOW,
            tokenizer: None,
            mnist1d: Mnist1dConfig::default(),
            name,
        }
    }

    /// How the samples are to be divided.
    ///
    /// # Errors
    /// [`Error::Config`] when the test fraction is missing, given beside a published test part, or leaves nothing to
    /// train on.
    pub fn split_plan(&self) -> Result<SplitPlan, Error> {
        let wrong = |problem: String| Err(Error::Config { key: "data.test_fraction", problem });
        let validation_fraction = self.validation_fraction.get();
        let test_fraction = match (self.name.has_test_part(), self.test_fraction) {
            (true, None) => 0.0,
            (true, Some(_)) => return wrong(format!("`{}` comes with a test part; expected no such key", self.name)),
            (false, None) => return wrong(format!("missing; expected {FRACTION} for `{}`", self.name)),
            (false, Some(fraction)) => fraction.get(),
        };
        if validation_fraction + test_fraction >= 1.0 {
            // Without the last digits, which are those of binary fractions: 1 - 0.7 is not 0.3.
            let limit = ((1.0 - validation_fraction) * 1e9).round() / 1e9;
            return wrong(format!("expected less than {limit} beside data.validation_fraction"));
        }
        Ok(SplitPlan { seed: self.split_seed, validation_fraction, test_fraction, permute_labels: self.permute_labels })
    }

    /// The keys for files of one's own that ask for something.
    pub(super) fn given_for_files(&self) -> Vec<&'static str> {
        // Runs of earlier versions have a scale of 1 in their configuration, whatever their data are.
        let is_scaled = self.csv_scale.is_some_and(|scale| scale.get().to_bits() != 1_f32.to_bits());
        let all = [
            ("data.format", self.format.is_some()),
            ("data.csv_scale", is_scaled),
            ("data.standardize", self.standardize.is_some()),
            ("data.target", self.target.is_some()),
            ("data.target_kind", !is_default(&self.target_kind)),
            ("data.features", self.features.is_some()),
            ("data.ignore", !self.ignore.is_empty()),
            ("data.header", !is_default(&self.header)),
            ("data.delimiter", self.delimiter.is_some()),
            ("data.missing", !is_default(&self.missing)),
            ("data.window", self.window != USUAL_WINDOW),
            ("data.tokenizer", self.tokenizer.is_some()),
        ];
        all.into_iter().filter_map(|(key, is_given)| is_given.then_some(key)).collect()
    }

    /// Whether the samples are windows of tokens, which language models and no others learn; nothing is read.
    #[must_use]
    pub fn holds_tokens(&self) -> bool {
        match &self.name {
            DataName::File(path) => {
                format::Format::by_name(path, self.format.as_deref()).is_some_and(|format| format.holds_tokens())
            }
            DataName::Digits | DataName::Mnist1d | DataName::Mnist | DataName::FashionMnist => false,
        }
    }

    /// Everything that cannot work, each naming its key.
    pub fn validate(&self) -> Vec<Error> {
        let mut wrong: Vec<Error> =
            [self.split_plan().err(), self.mnist1d.num_samples().err()].into_iter().flatten().collect();
        let is_file = matches!(self.name, DataName::File(_));
        for key in self.given_for_files().into_iter().filter(|_| !is_file) {
            let problem = format!("is for files of one's own, and `{}` is none; expected no such key", self.name);
            wrong.push(Error::Config { key, problem });
        }
        if let Some(scale) = self.csv_scale.filter(|_| self.standardize == Some(true)) {
            let problem = format!("is true beside data.csv_scale = {}; expected one of them", scale.get());
            wrong.push(Error::Config { key: "data.standardize", problem });
        }
        if let Some(format) = self.format.as_ref().filter(|format| format::names().all(|name| name != *format)) {
            let accepted = format::names().collect::<Vec<_>>().join(", ");
            wrong.push(Error::Config {
                key: "data.format",
                problem: format!("is `{format}`, expected one of {accepted}"),
            });
        }
        wrong
    }
}

/// Which targets a column holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TargetChoice {
    /// Words, or few whole numbers, are classes; several columns of 0 and 1 are flags; all else are values.
    #[default]
    Auto,
    /// One class per sample.
    Classes,
    /// One or more numbers per sample.
    Values,
    /// One or more yes (1) or no (0) per sample.
    Flags,
}

/// Whether the first row of a file holds names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Header {
    /// It does when it has no numbers.
    #[default]
    Auto,
    /// It does.
    Yes,
    /// It is a row as all others.
    No,
}

/// What stands between the cells of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Delimiter {
    /// `,`.
    Comma,
    /// `;`.
    Semicolon,
    /// A tab.
    Tab,
    /// `|`.
    Pipe,
}

impl Delimiter {
    pub(super) fn byte(self) -> u8 {
        match self {
            Self::Comma => b',',
            Self::Semicolon => b';',
            Self::Tab => b'\t',
            Self::Pipe => b'|',
        }
    }
}

/// What becomes of missing values: empty cells, `NA`, `n/a`, `NaN`, `null`, `none` and `?`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Missing {
    /// The first one is an error.
    #[default]
    Refuse,
    /// Rows that have one are left out.
    Drop,
    /// A missing number is the mean of the training rows, a missing word is a word of its own.
    Mean,
}

/// A column of a file of rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected the name of a column, or its number from 1")]
pub enum ColumnRef {
    /// From 1.
    Number(usize),
    /// As the first row says.
    Name(String),
}

impl fmt::Display for ColumnRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Name(name) => f.write_str(&quoted(name)),
        }
    }
}

/// One column or several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected the name of a column, its number from 1, or a list of them")]
pub enum ColumnRefs {
    /// One.
    One(ColumnRef),
    /// Several.
    Many(Vec<ColumnRef>),
}

impl ColumnRefs {
    pub(super) fn refs(&self) -> Vec<ColumnRef> {
        match self {
            Self::One(column) => vec![column.clone()],
            Self::Many(columns) => columns.clone(),
        }
    }
}

const USUAL_WINDOW: NonZeroUsize = NonZeroUsize::new(64).expect("above 0");

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes fields by reference")]
fn is_usual_window(window: &NonZeroUsize) -> bool {
    *window == USUAL_WINDOW
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Sizes and seed of a generated MNIST-1D set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Mnist1dConfig {
    /// Samples of the training part, before validation is cut from it; 4 000 in the publication.
    pub train_samples: NonZeroUsize,
    /// Samples of the test part; 1 000 in the publication.
    pub test_samples: NonZeroUsize,
    /// Seed of the generator.
    pub seed: u64,
}

impl Default for Mnist1dConfig {
    /// The published sizes.
    fn default() -> Self {
        let size = |count| NonZeroUsize::new(count).expect("a size above 0");
        Self { train_samples: size(4000), test_samples: size(1000), seed: 42 }
    }
}

impl Mnist1dConfig {
    /// 400 million values, 1.6 GB.
    const MAX_SAMPLES: usize = 10_000_000;

    /// Samples of both parts, a multiple of the number of classes.
    ///
    /// # Errors
    /// [`Error::Config`] when it is not.
    pub(super) fn num_samples(&self) -> Result<usize, Error> {
        let total = self.train_samples.get().saturating_add(self.test_samples.get());
        if total.is_multiple_of(mnist1d::NUM_CLASSES) && total <= Self::MAX_SAMPLES {
            return Ok(total);
        }
        let problem = format!(
            "train_samples + test_samples is {total}, expected a multiple of {}, at most {}",
            mnist1d::NUM_CLASSES,
            Self::MAX_SAMPLES
        );
        Err(Error::Config { key: "data.mnist1d", problem })
    }
}

/// A data set by name, or a file or folder.
///
/// A path is told from a name by a separator in it, or by an ending that some format has; `./` before a name makes it a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DataName {
    /// 1 797 embedded 8×8 digits.
    Digits,
    /// Generated signals of 40 points.
    Mnist1d,
    /// Handwritten digits, 28×28, from IDX files.
    Mnist,
    /// Clothes, 28×28, from IDX files.
    FashionMnist,
    /// A file or folder of one's own.
    File(PathBuf),
}

impl DataName {
    /// What may be written for a data set.
    pub const ACCEPTED: &'static [&'static str] =
        &["digits", "mnist1d", "mnist", "fashion-mnist", "PATH.csv", "DIR/FILE"];

    /// The data set of this name, or the file of this path.
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "digits" => Self::Digits,
            "mnist1d" => Self::Mnist1d,
            "mnist" => Self::Mnist,
            "fashion-mnist" => Self::FashionMnist,
            path if path.contains(['/', '\\']) || format::has_ending(path) => Self::File(path.into()),
            _ => return None,
        })
    }

    /// A path with the name of a format before it, as in `text:FILE`: that name, and the path as a data set.
    ///
    /// ```
    /// use esper_data::DataName;
    ///
    /// assert_eq!(DataName::with_format("text:notes"), Some(("text", DataName::File("./notes".into()))));
    /// assert_eq!(DataName::with_format("digits"), None);
    /// ```
    pub fn with_format(name: &str) -> Option<(&str, Self)> {
        let (format, path) = name.split_once(':').filter(|(format, _)| format::names().any(|name| name == *format))?;
        let file = |path: &str| Self::parse(path).filter(|name| matches!(name, Self::File(_)));
        Some((format, file(path).or_else(|| file(&format!("./{path}")))?))
    }

    /// Whether the publisher separated a test part.
    pub fn has_test_part(&self) -> bool {
        match self {
            Self::Digits | Self::File(_) => false,
            Self::Mnist1d | Self::Mnist | Self::FashionMnist => true,
        }
    }
}

impl fmt::Display for DataName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Digits => f.write_str("digits"),
            Self::Mnist1d => f.write_str("mnist1d"),
            Self::Mnist => f.write_str("mnist"),
            Self::FashionMnist => f.write_str("fashion-mnist"),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

impl Serialize for DataName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for DataName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        Self::parse(&name).ok_or_else(|| de::Error::unknown_variant(&name, Self::ACCEPTED))
    }
}

const FRACTION: &str = "a fraction above 0 and below 1";

/// A number above 0 and below 1.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Serialize)]
#[serde(transparent)]
pub struct Fraction(f64);

impl Fraction {
    /// `value`, when it is above 0 and below 1.
    pub fn new(value: f64) -> Option<Self> {
        (value > 0.0 && value < 1.0).then_some(Self(value))
    }

    /// The number.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl<'de> Deserialize<'de> for Fraction {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = f64::deserialize(deserializer)?;
        Self::new(value).ok_or_else(|| de::Error::invalid_value(Unexpected::Float(value), &FRACTION))
    }
}

/// A finite number above 0 to divide by.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd, Serialize)]
#[serde(transparent)]
pub struct Scale(f32);

impl Scale {
    /// `value`, when it is finite and above 0.
    pub fn new(value: f32) -> Option<Self> {
        (value > 0.0 && value.is_finite()).then_some(Self(value))
    }

    /// The number.
    pub fn get(self) -> f32 {
        self.0
    }
}

impl<'de> Deserialize<'de> for Scale {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = f32::deserialize(deserializer)?;
        let wrong = || de::Error::invalid_value(Unexpected::Float(f64::from(value)), &"a finite number above 0");
        Self::new(value).ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_name(name: &str, expected: Option<DataName>) {
        assert_eq!(DataName::parse(name), expected);
        if let Some(parsed) = expected {
            assert_eq!(parsed.to_string(), name);
        }
    }

    #[test]
    fn names_and_csv_paths_are_told_apart() {
        check_name("digits", Some(DataName::Digits));
        check_name("mnist1d", Some(DataName::Mnist1d));
        check_name("mnist", Some(DataName::Mnist));
        check_name("fashion-mnist", Some(DataName::FashionMnist));
        check_name("a/b.csv", Some(DataName::File("a/b.csv".into())));
        check_name("b.CSV.gz", Some(DataName::File("b.CSV.gz".into())));
        check_name("digits.gz", None);
        check_name("digts", None);
        check_name("", None);
    }

    #[track_caller]
    fn check_plan(name: &str, test: Option<f64>, expected: Result<f64, &str>) {
        let mut config = DataConfig::new(DataName::parse(name).unwrap());
        config.test_fraction = test.map(|fraction| Fraction::new(fraction).unwrap());
        let plan = config.split_plan().map(|plan| plan.test_fraction).map_err(|error| error.to_string());
        match (plan, expected) {
            (Ok(found), Ok(expected)) => assert!((found - expected).abs() < 1e-12, "{found} is not {expected}"),
            (Err(found), Err(expected)) => assert_eq!(found, expected),
            (found, expected) => panic!("{found:?} is not {expected:?}"),
        }
    }

    #[test]
    fn a_test_fraction_belongs_to_sets_without_a_test_part() {
        check_plan("digits", Some(0.3), Ok(0.3));
        check_plan("mnist1d", None, Ok(0.0));
        check_plan("mnist", Some(0.2), Err("data.test_fraction: `mnist` comes with a test part; expected no such key"));
        check_plan(
            "a.csv",
            None,
            Err("data.test_fraction: missing; expected a fraction above 0 and below 1 for `a.csv`"),
        );
        check_plan(
            "digits",
            Some(0.8),
            Err("data.test_fraction: expected less than 0.8 beside data.validation_fraction"),
        );
        let mut config = DataConfig::new(DataName::Digits);
        config.validation_fraction = Fraction::new(0.7).unwrap();
        config.test_fraction = Fraction::new(0.4);
        let error = config.split_plan().unwrap_err().to_string();
        assert_eq!(error, "data.test_fraction: expected less than 0.3 beside data.validation_fraction");
    }
}
