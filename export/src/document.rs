//! `model.json`: the description of an exported network.

use std::path::{Path, PathBuf};

use esper_data::Preparation;
use kasmina::blueprint::Registry;
use kasmina::graft::NetworkSpec;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::files;

/// The format that this version writes and reads.
pub const FORMAT: u32 = 1;
/// Name of the description.
pub const DOCUMENT_FILE: &str = "model.json";
/// Name of the weights.
pub const WEIGHTS_FILE: &str = "model.safetensors";
/// Most bytes of a description that are read. A seed has at most 4096 numbers in it.
const MAX_BYTES: u64 = 1 << 26;

/// The description of an exported network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// [`FORMAT`].
    pub format: u32,
    /// The program that wrote it, with its version: for people.
    pub written_by: String,
    /// The network.
    pub network: NetworkSpec,
    /// How a sample becomes an input, and what the outputs mean.
    pub preparation: Preparation,
    /// What it was trained for, as [`Export::task`](crate::Export::task); absent in exports of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<serde_json::Map<String, serde_json::Value>>,
    /// The file of weights.
    pub weights: WeightsRecord,
}

/// Which bytes the weights are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WeightsRecord {
    /// Their number.
    pub bytes: u64,
    /// Their BLAKE3 digest, 64 hexadecimal digits in lower case.
    pub blake3: String,
}

/// The part that every format has.
#[derive(Deserialize)]
struct AnyFormat {
    format: u64,
}

impl Document {
    /// Reads the description in a folder and checks what can be checked without the weights.
    ///
    /// # Errors
    /// [`Error::NotAnExport`], [`Error::Read`], [`Error::Size`], [`Error::Format`] for a newer one, [`Error::Document`] with
    /// line and column, [`Error::Field`] and [`Error::Network`].
    pub fn read(dir: &Path, registry: &Registry) -> Result<Self, Error> {
        let path = dir.join(DOCUMENT_FILE);
        let bytes = files::read(dir, DOCUMENT_FILE, MAX_BYTES)?;
        // A newer format may have any other field.
        let AnyFormat { format } = parse(&path, &bytes)?;
        if format != u64::from(FORMAT) {
            return Err(Error::Format { path, found: format, expected: FORMAT });
        }
        let document: Self = parse(&path, &bytes)?;
        document.check(path, registry)?;
        Ok(document)
    }

    /// Confirms that its parts fit each other.
    ///
    /// # Errors
    /// [`Error::Field`] and [`Error::Network`], at `path`.
    pub(crate) fn check(&self, path: PathBuf, registry: &Registry) -> Result<(), Error> {
        let wrong =
            |path, field: String, found: String, expected: String| Err(Error::Field { path, field, found, expected });
        if let Err(source) = self.network.tensors(registry) {
            return Err(Error::Network { path, source: Box::new(source) });
        }
        let host = &self.network.host;
        if let Some((field, found, expected)) = self.preparation.contradiction() {
            return wrong(path, format!("preparation.{field}"), found, expected);
        }
        let (features, inputs) = (self.preparation.num_features(), host.sample_shape().iter().product::<usize>());
        if features != inputs {
            let expected = format!("one of {inputs}, as `network.host` takes them");
            return wrong(path, "preparation.sample_shape".to_owned(), format!("one of {features} numbers"), expected);
        }
        let outputs = self.preparation.target.num_outputs();
        if outputs != host.num_outputs() {
            let expected = format!("{}, the outputs of `network.host`", host.num_outputs());
            return wrong(path, "preparation.target".to_owned(), format!("one of {outputs} outputs"), expected);
        }
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let digest = &self.weights.blake3;
        if digest.len() != 64 || !digest.bytes().all(is_digit) {
            let found = digest.chars().take(80).flat_map(char::escape_debug).collect();
            return wrong(path, "weights.blake3".to_owned(), found, "64 hexadecimal digits in lower case".to_owned());
        }
        Ok(())
    }

    /// As it is stored.
    pub(crate) fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a description has string keys and finite numbers") + "\n"
    }
}

fn parse<T: serde::de::DeserializeOwned>(path: &Path, bytes: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(bytes).map_err(|error| {
        let mut problem: String = error.to_string().chars().flat_map(char::escape_debug).collect();
        // The place is told already.
        if let Some(place) = problem.rfind(" at line ") {
            problem.truncate(place);
        }
        Error::Document { path: path.to_owned(), line: error.line(), column: error.column(), problem }
    })
}
