//! Formats of files: what each reads, and how a file tells its own.

mod array;
mod csv;
pub(super) mod idx;
mod images;
mod npy;
mod parquet;
mod safetensors;
mod sheet;
mod text;

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use super::column::Column;
use super::config::{DataConfig, Missing};
use super::preparation::ColumnPlan;
use super::{Error, Inputs, Targets, Tokenizer, unpack};

pub(super) use text::MAX_VOCABULARY;

/// All formats; a file has the first whose ending or first bytes it has.
const FORMATS: &[Format] = &[
    csv::FORMAT,
    npy::NPY,
    npy::NPZ,
    safetensors::FORMAT,
    parquet::FORMAT,
    images::FORMAT,
    text::TEXT,
    text::TOKENS_U16,
    text::TOKENS_U32,
    idx::FORMAT,
];

/// What formats with rows of cells follow; see [`Format::keys`].
const ROWS: &[&str] = &["data.target", "data.features", "data.ignore", "data.header", "data.delimiter", "data.missing"];
/// What formats of tokens follow.
const TOKENS: &[&str] = &["data.window"];
/// What texts follow.
const TEXTS: &[&str] = &["data.window", "data.tokenizer"];

/// A format of files.
#[derive(Debug, Clone, Copy)]
pub(super) struct Format {
    /// As in `data.format`.
    pub name: &'static str,
    /// How names of files end, in small letters; `/` for a folder.
    pub endings: &'static [&'static str],
    /// First bytes of a file, where its name says nothing.
    pub starts: &'static [&'static [u8]],
    /// Settings of the section `data` that it follows, of those that some formats have no use for.
    pub keys: &'static [&'static str],
    /// Reads a file; memory is bounded before it is taken.
    pub read: fn(&Path, &Reading<'_>) -> Result<Records, Error>,
}

/// What is asked of a file.
#[derive(Debug)]
pub(super) struct Reading<'a> {
    pub config: &'a DataConfig,
    /// The columns that a run has learned from: they are what is read.
    pub learned: Option<&'a ColumnPlan>,
    /// Whether the labels that a run has learned are words, whatever they look like here; else the cells say.
    pub has_word_labels: bool,
    /// What turns a text into tokens, other than its bytes.
    pub tokenizer: Option<&'a Tokenizer>,
}

impl Reading<'_> {
    /// Whether rows with gaps are left out. A prediction is needed for every row.
    pub(super) fn drops(&self) -> bool {
        self.learned.is_none() && self.config.missing == Missing::Drop
    }
}

/// What a file holds: N samples, not yet scaled, and their targets, where it has some.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Records {
    pub features: Features,
    pub targets: Vec<Column>,
    /// The targets of tokens: the tokens that follow.
    pub following: Option<Targets>,
    /// What was decided and why, one sentence each.
    pub notes: Vec<String>,
    pub has_header: bool,
    /// Of a file of rows.
    pub num_columns: usize,
    /// Of a text and a tokenizer.
    pub bytes_per_token: Option<f64>,
}

/// The inputs of N samples.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Features {
    /// Columns of a file of rows.
    Columns(Vec<Column>),
    /// N × F numbers of more digits than single precision has, and the shape of a sample.
    Exact(Vec<f64>, Vec<usize>),
    /// N × F values or tokens, and the shape of a sample.
    Whole(Inputs, Vec<usize>),
}

impl Records {
    pub(super) fn new(features: Features, notes: Vec<String>) -> Self {
        Self {
            features,
            targets: Vec::new(),
            following: None,
            notes,
            has_header: false,
            num_columns: 0,
            bytes_per_token: None,
        }
    }
}

/// Whether a name is that of a file of some format.
pub(super) fn has_ending(name: &str) -> bool {
    FORMATS.iter().any(|format| format.ends(name))
}

/// The names of all formats.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    FORMATS.iter().map(|format| format.name)
}

impl Format {
    /// Whether its samples are windows of tokens, which no first bytes tell.
    pub(super) fn holds_tokens(&self) -> bool {
        self.keys.starts_with(TOKENS)
    }

    /// Whether these are folders of images.
    pub(super) fn is_images(&self) -> bool {
        self.name == images::FORMAT.name
    }

    /// Whether these are bytes of a text.
    pub(super) fn is_text(&self) -> bool {
        self.name == text::TEXT.name
    }

    /// Confirms that nothing is asked for that files of this format have no use for: it would be passed over without a word.
    ///
    /// # Errors
    /// [`Error::Config`] for the first such key.
    pub(super) fn expect_followed(&self, path: &Path, config: &DataConfig) -> Result<(), Error> {
        if self.holds_tokens() && config.csv_scale.is_some() | (config.standardize == Some(true)) {
            let key = if config.csv_scale.is_some() { "data.csv_scale" } else { "data.standardize" };
            let problem = format!("is for numbers, and {} holds tokens; expected no such key", path.display());
            return Err(Error::Config { key, problem });
        }
        let is_idle = |key: &&str| [ROWS, TEXTS].concat().contains(key) && !self.keys.contains(key);
        config.given_for_files().into_iter().find(is_idle).map_or(Ok(()), |key| {
            let followers: Vec<&str> =
                FORMATS.iter().filter(|format| format.keys.contains(&key)).map(|format| format.name).collect();
            let (shown, name, followers) = (path.display(), self.name, followers.join(", "));
            let problem = format!("is for {followers}, and {shown} is read as {name}; expected no such key");
            Err(Error::Config { key, problem })
        })
    }

    /// The format that is named, or that the name of the file tells; nothing is read.
    pub(super) fn by_name(path: &Path, named: Option<&str>) -> Option<Self> {
        let shown = path.display().to_string();
        let is_it = |format: &&Self| named.map_or_else(|| format.ends(&shown), |named| format.name == named);
        FORMATS.iter().find(is_it).copied()
    }

    fn ends(&self, name: &str) -> bool {
        let name = name.to_lowercase();
        self.endings.iter().any(|ending| name.ends_with(ending))
    }

    /// The format that is named, or the one that the file has by its name or its first bytes.
    ///
    /// # Errors
    /// [`Error::Read`] for a file that is not there, [`Error::Config`] where nothing tells the format.
    pub(super) fn of(path: &Path, named: Option<&str>) -> Result<Self, Error> {
        if let Some(named) = named {
            let format = Self::by_name(path, Some(named));
            let problem = || format!("is `{named}`, expected one of {}", names().collect::<Vec<_>>().join(", "));
            return format.ok_or_else(|| Error::Config { key: "data.format", problem: problem() });
        }
        let failed = |source| Error::Read { path: path.into(), source };
        let kind = std::fs::metadata(path).map_err(failed)?.file_type();
        let is_folder = kind.is_dir();
        let (mut first, mut shown) = (Vec::new(), path.display().to_string());
        if is_folder {
            shown = shown.trim_end_matches('/').to_owned() + "/";
        } else {
            unpack::expect_file(path, kind)?;
            File::open(path).map_err(failed)?.take(16).read_to_end(&mut first).map_err(failed)?;
        }
        let starts = |format: &&Self| format.starts.iter().any(|start| first.starts_with(start));
        let found = FORMATS.iter().find(|format| format.ends(&shown)).or_else(|| FORMATS.iter().find(starts));
        found.copied().ok_or_else(|| {
            let all = names().collect::<Vec<_>>().join(", ");
            let problem =
                format!("missing: neither the name nor the first bytes of {shown} tell it; expected one of {all}");
            Error::Config { key: "data.format", problem }
        })
    }
}
