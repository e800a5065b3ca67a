//! A network for `learned` in a folder: its numbers, a manifest with their digest and where they come from, and with a key the
//! signature of the manifest. Numbers are written first, so that who reads the old manifest beside them sees that they are others.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use esper_disk::{Fs, make_dirs, replace_file};
use esper_weights::{Dtype, Weights, WeightsError};
use leyline::error::ErrorKind;
use serde::{Deserialize, Serialize};
use tamiyo::policy::learned::{
    FEATURES, FEATURES_VERSION, Held, MAX_HIDDEN, NUM_FEATURES, NUM_OUTPUTS, Network, NetworkError, OUTPUTS, Parts,
};
use tolaria::checkpoint::Signing;

/// The numbers.
pub const WEIGHTS_FILE: &str = "policy.safetensors";
/// What they are.
pub const MANIFEST_FILE: &str = "policy.json";
/// The signature of the manifest, where it is signed.
pub const SIGNATURE_FILE: &str = "policy.hmac";

const FORMAT: u32 = 1;
/// Of a file; the largest network has 63 kB.
const MAX_BYTES: u64 = 1 << 20;

/// What the numbers are, and where they come from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Version of this file.
    pub format: u32,
    /// Version of the list of features that the network was trained for.
    pub features_version: u32,
    /// That list.
    pub features: Vec<String>,
    /// What the outputs are logits of.
    pub outputs: Vec<String>,
    /// Width of the hidden layer.
    pub hidden: usize,
    /// BLAKE3 of the file of the numbers.
    pub weights_blake3: String,
    /// How it was trained.
    pub training: Training,
}

/// How a network was trained.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Training {
    /// Data sets by name, with their digests.
    pub data: BTreeMap<String, String>,
    /// First random seed of the runs; the others follow.
    pub first_seed: u64,
    /// Settings on top of those of the data sets.
    pub set: Vec<String>,
    /// Runs so far (count).
    pub runs: u64,
    /// Commit that the program was built from; absent where it is not known.
    pub commit: Option<String>,
    /// Whether its sources differed from that commit.
    pub modified: bool,
    /// Mean rewards, part by part.
    pub curve: Vec<Point>,
    /// Mean rewards with random seeds of which nothing was learned, by who decides; absent before the end. The better of `cloned` and
    /// `learned` is the network of the folder, chosen by these runs: its reward here is too high an estimate.
    pub held_out: Option<BTreeMap<String, Point>>,
}

impl Training {
    /// What is not claimed of a run on `data` with this digest, where the network learned from such data: a sentence.
    #[must_use]
    pub fn learned_from(&self, data: &str, digest: &str) -> Option<String> {
        let how = match self.data.get(data) {
            _ if self.data.values().any(|of| of == digest) => "divided alike: the samples that confirm a gain here",
            Some(_) => "divided otherwise or since changed: samples that confirm a gain here may",
            None => return None,
        };
        Some(format!(
            "the policy was trained on these data ({data}), {how} have been part of its reward, so it is not claimed that at most 5 % of runs in which no seed helps keep one"
        ))
    }
}

/// Means over some runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Point {
    /// Runs until then, or in all (count).
    pub runs: u64,
    /// What is to be large: gain minus prices.
    pub reward: f64,
    /// Confirmed gains of the permanent seeds, each as a fraction of the validation loss when it was confirmed, added up.
    pub gain: f64,
    /// Compute for seeds in the shadow, as a fraction of the host's.
    pub looking: f64,
    /// ln(parameters at the end / at the beginning).
    pub growth: f64,
}

/// Why a folder has no network that can be used.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// A file cannot be read, or written.
    #[error("{}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file is too large.
    #[error("{} has more than {MAX_BYTES} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// The manifest is not signed as it has to be.
    #[error("{SIGNATURE_FILE}: {0}")]
    Signature(&'static str),
    /// The manifest is none.
    #[error("{MANIFEST_FILE} cannot be read")]
    Manifest(#[source] serde_json::Error),
    /// It has another form.
    #[error("{MANIFEST_FILE}: `format` is {found}: expected {FORMAT}")]
    Format {
        /// The form found.
        found: u32,
    },
    /// The network was trained for other features.
    #[error(
        "{MANIFEST_FILE}: `features_version` is {found}: expected {FEATURES_VERSION}; train it anew with this build"
    )]
    Features {
        /// The version found.
        found: u32,
    },
    /// No such width.
    #[error("{MANIFEST_FILE}: `hidden` is {found}: expected 1 to {MAX_HIDDEN}")]
    Hidden {
        /// The width found.
        found: usize,
    },
    /// The numbers are not those of the manifest.
    #[error("{WEIGHTS_FILE} is not the file that {MANIFEST_FILE} describes: it is half written, or was changed")]
    Digest,
    /// The numbers have another shape, or are none.
    #[error("{WEIGHTS_FILE}")]
    Weights(#[source] WeightsError),
    /// The numbers make no network.
    #[error("{WEIGHTS_FILE}")]
    Network(#[source] NetworkError),
}

impl leyline::error::Error for FileError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Io { .. } => ErrorKind::Io,
            _ => ErrorKind::Corrupt,
        }
    }
}

/// A folder as it was read: nothing of it is used before all of it is.
pub(super) struct Found {
    pub(super) held: Held,
    pub(super) manifest: Manifest,
    pub(super) bytes: [Vec<u8>; 2],
}

/// The digest that a network of this manifest has.
pub(super) fn digest(manifest: &[u8]) -> String {
    blake3::hash(manifest).to_hex().to_string()
}

pub(super) fn bytes_of(dir: &Path, name: &str) -> Result<Vec<u8>, FileError> {
    let path = dir.join(name);
    let mut bytes = Vec::new();
    let read = File::open(&path).and_then(|file| file.take(MAX_BYTES + 1).read_to_end(&mut bytes));
    match read {
        Ok(_) if bytes.len() as u64 > MAX_BYTES => Err(FileError::TooLarge { path }),
        Ok(_) => Ok(bytes),
        Err(source) => Err(FileError::Io { path, source }),
    }
}

/// The tensors of a network: name, shape, and its numbers.
fn tensors(parts: &Parts, hidden: usize) -> [(&'static str, Vec<usize>, &[f32]); 6] {
    [
        ("features.mean", vec![NUM_FEATURES], &parts.mean),
        ("features.scale", vec![NUM_FEATURES], &parts.scale),
        ("hidden.weight", vec![hidden, NUM_FEATURES], &parts.hidden_weight),
        ("hidden.bias", vec![hidden], &parts.hidden_bias),
        ("output.weight", vec![NUM_OUTPUTS, hidden], &parts.output_weight),
        ("output.bias", vec![NUM_OUTPUTS], &parts.output_bias),
    ]
}

/// Reads the network of a folder.
///
/// # Errors
/// The first thing that is wrong with it.
pub fn read(dir: &Path, signing: Option<&Signing>) -> Result<(Held, Manifest), FileError> {
    let manifest = bytes_of(dir, MANIFEST_FILE)?;
    let found = read_beside(dir, manifest, signing)?;
    Ok((found.held, found.manifest))
}

/// As [`read`], with the manifest that was read already.
pub(super) fn read_beside(dir: &Path, bytes: Vec<u8>, signing: Option<&Signing>) -> Result<Found, FileError> {
    if let Some(signing) = signing {
        let signature = match bytes_of(dir, SIGNATURE_FILE) {
            Ok(signature) => Some(signature),
            Err(FileError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        if let Some(fault) = signing.fault(&bytes, signature.as_deref()) {
            return Err(FileError::Signature(fault));
        }
    }
    let manifest = parse(&bytes)?;
    let weights = bytes_of(dir, WEIGHTS_FILE)?;
    if blake3::hash(&weights).to_hex().as_str() != manifest.weights_blake3 {
        return Err(FileError::Digest);
    }
    let network = network(&weights, manifest.hidden)?;
    let held = Held { digest: digest(&bytes), network };
    Ok(Found { held, manifest, bytes: [bytes, weights] })
}

fn parse(bytes: &[u8]) -> Result<Manifest, FileError> {
    #[derive(Deserialize)]
    struct Versions {
        format: u32,
        features_version: u32,
    }
    // Another version may have other fields.
    let Versions { format, features_version } = serde_json::from_slice(bytes).map_err(FileError::Manifest)?;
    if format != FORMAT {
        return Err(FileError::Format { found: format });
    }
    if features_version != FEATURES_VERSION {
        return Err(FileError::Features { found: features_version });
    }
    let manifest: Manifest = serde_json::from_slice(bytes).map_err(FileError::Manifest)?;
    if !(1..=MAX_HIDDEN).contains(&manifest.hidden) {
        return Err(FileError::Hidden { found: manifest.hidden });
    }
    Ok(manifest)
}

fn network(weights: &[u8], hidden: usize) -> Result<Network, FileError> {
    let weights = Weights::from_bytes(weights.to_vec()).map_err(FileError::Weights)?;
    let none = Parts::default();
    let shapes = tensors(&none, hidden);
    let shapes: Vec<(&str, Dtype, &[usize])> =
        shapes.iter().map(|(name, shape, _)| (*name, Dtype::F32, &**shape)).collect();
    let numbers = weights.fit(&shapes).map_err(FileError::Weights)?;
    #[expect(clippy::cast_possible_truncation, reason = "they were stored as f32")]
    let mut numbers = numbers.into_iter().map(|part| part.into_iter().map(|x| x as f32).collect::<Vec<f32>>());
    let mut next = || numbers.next().unwrap_or_default();
    let parts = Parts {
        mean: next(),
        scale: next(),
        hidden_weight: next(),
        hidden_bias: next(),
        output_weight: next(),
        output_bias: next(),
    };
    Network::new(parts).map_err(FileError::Network)
}

/// Writes a network into a folder, which is made where there is none; what was there is replaced.
///
/// # Errors
/// When a file cannot be written.
pub fn write(
    fs: &dyn Fs,
    dir: &Path,
    network: &Network,
    training: Training,
    signing: Option<&Signing>,
) -> Result<(), FileError> {
    let hidden = network.parts().hidden_bias.len();
    let weights = Weights::from_f32(tensors(network.parts(), hidden)).map_err(FileError::Weights)?;
    let manifest = Manifest {
        format: FORMAT,
        features_version: FEATURES_VERSION,
        features: FEATURES.iter().map(|(name, unit)| format!("{name}: {unit}")).collect(),
        outputs: OUTPUTS.map(str::to_owned).to_vec(),
        hidden,
        weights_blake3: blake3::hash(weights.bytes()).to_hex().to_string(),
        training,
    };
    let manifest = serde_json::to_string_pretty(&manifest).map_err(FileError::Manifest)? + "\n";
    let io = |path: &Path| {
        let path = path.to_owned();
        |source| FileError::Io { path, source }
    };
    make_dirs(fs, dir).map_err(io(dir))?;
    let put = |name: &str, bytes: &[u8]| {
        let path = dir.join(name);
        replace_file(fs, &path, bytes).map_err(io(&path))
    };
    put(WEIGHTS_FILE, weights.bytes())?;
    match signing {
        Some(signing) => put(SIGNATURE_FILE, &signing.to_bytes(manifest.as_bytes()))?,
        None => {
            let path = dir.join(SIGNATURE_FILE);
            fs.remove_file(&path)
                .or_else(|e| if e.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(io(&path)(e)) })?;
        }
    }
    put(MANIFEST_FILE, manifest.as_bytes())
}
