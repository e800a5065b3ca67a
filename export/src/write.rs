//! Writing an export: the folder is there whole, or not at all.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use candle_core::{DType, Tensor};
use esper_data::Preparation;
use esper_weights::{Dtype, Weights};
use kasmina::blueprint::Registry;
use kasmina::graft::NetworkSpec;

use crate::document::{DOCUMENT_FILE, Document, FORMAT, WEIGHTS_FILE, WeightsRecord};
use crate::error::Error;
use crate::network::fit;
use crate::onnx::ONNX_FILE;

/// The program that writes.
pub(crate) const WRITTEN_BY: &str = concat!("esper ", env!("CARGO_PKG_VERSION"));

/// What happens to an export that is there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfPresent {
    /// It stays, and nothing is written.
    Refuse,
    /// It is replaced.
    Replace,
}

/// A network that is to be exported, with what its users need to know. [`NetworkSpec::of_saved`] gives the first two.
#[derive(Debug, Clone)]
pub struct Export {
    /// The network.
    pub network: NetworkSpec,
    /// Its tensors by name.
    pub tensors: BTreeMap<String, Tensor>,
    /// How a sample becomes an input, and what the outputs mean.
    pub preparation: Preparation,
    /// What the network was trained for, as the settings of `[task]`: which loss is meant by its loss. Absent where nobody knows.
    pub task: Option<serde_json::Map<String, serde_json::Value>>,
}

impl Export {
    /// Writes the folder `dir`. It is made beside its place and moved there when it is complete and on the disk. A folder that
    /// is empty is taken; one that is to be replaced may hold an export and nothing else.
    ///
    /// # Errors
    /// [`Error::Occupied`], and [`Error::Field`], [`Error::Network`] and [`Error::Weights`] for what could not be loaded, before
    /// anything is written; [`Error::Write`].
    /// # Sync
    /// one device-to-host copy for each tensor
    pub fn write(&self, dir: &Path, if_present: IfPresent) -> Result<Document, Error> {
        self.write_files(dir, if_present, None)
    }

    /// As [`Self::write`], with the network as [`ONNX_FILE`] beside.
    ///
    /// # Errors
    /// As [`Self::write`] and [`Self::to_onnx`].
    /// # Sync
    /// three device-to-host copies for each tensor
    pub fn write_with_onnx(&self, dir: &Path, if_present: IfPresent) -> Result<Document, Error> {
        self.write_files(dir, if_present, Some(self.to_onnx()?))
    }

    fn write_files(&self, dir: &Path, if_present: IfPresent, onnx: Option<Vec<u8>>) -> Result<Document, Error> {
        let is_present = expect_free(dir, if_present)?;
        let (document, weights) = self.documented(dir)?;
        let Some(name) = dir.file_name() else {
            let (found, expected) = ("has no name".to_owned(), "the path of a new folder");
            return Err(Error::Occupied { dir: dir.to_owned(), found, expected });
        };
        let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let beside = |what: &str| parent.join(format!(".{}.{}.{what}", name.to_string_lossy(), std::process::id()));
        let (new, old) = (beside("new"), beside("old"));
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| Error::Write { path, source }
        };
        fs::create_dir_all(parent).map_err(failed(parent))?;
        let fill = || -> Result<(), Error> {
            fs::create_dir(&new).map_err(failed(&new))?;
            let json = document.to_json();
            let onnx = onnx.as_deref().map(|bytes| (ONNX_FILE, bytes));
            let files = [(WEIGHTS_FILE, &**weights.bytes()), (DOCUMENT_FILE, json.as_bytes())];
            for (file, bytes) in files.into_iter().chain(onnx) {
                let path = new.join(file);
                write_synced(&path, bytes).map_err(failed(&path))?;
            }
            sync(&new).map_err(failed(&new))?;
            if is_present {
                fs::rename(dir, &old).map_err(failed(dir))?;
            }
            fs::rename(&new, dir).map_err(failed(dir))
        };
        if let Err(error) = fill() {
            // The first failure is the one to tell; what can be put back is.
            fs::remove_dir_all(&new).ok();
            if is_present && old.exists() {
                fs::rename(&old, dir).ok();
            }
            return Err(error);
        }
        // Before the old files go: a loss of power could bring their name back without them.
        sync(parent).map_err(failed(parent))?;
        if is_present {
            fs::remove_dir_all(&old).map_err(failed(&old))?;
        }
        Ok(document)
    }

    /// What is written, once it is known that it can be loaded.
    pub(crate) fn documented(&self, dir: &Path) -> Result<(Document, Weights), Error> {
        let path = dir.join(WEIGHTS_FILE);
        let mut stored = Vec::with_capacity(self.tensors.len());
        for (name, tensor) in &self.tensors {
            stored.push((name.as_str(), Dtype::from(tensor.dtype()), tensor.dims(), values(tensor)?));
        }
        let forms = self.network.tensors(&Registry::all())?;
        let weights =
            Weights::from_network(stored).and_then(|weights| fit(&weights, &self.network, &forms).map(|_| weights));
        let weights = weights.map_err(|source| Error::Weights { path, source })?;
        let document = Document {
            format: FORMAT,
            written_by: WRITTEN_BY.to_owned(),
            network: self.network.clone(),
            preparation: self.preparation.clone(),
            task: self.task.clone(),
            weights: WeightsRecord {
                bytes: weights.bytes().len() as u64,
                blake3: blake3::hash(weights.bytes()).to_hex().to_string(),
            },
        };
        document.check(dir.join(DOCUMENT_FILE), &Registry::all())?;
        Ok((document, weights))
    }
}

/// Exact: every type of a network fits into `f64`.
#[expect(clippy::disallowed_methods, reason = "an export reads each tensor once, when nothing trains")]
pub(crate) fn values(tensor: &Tensor) -> candle_core::Result<Vec<f64>> {
    tensor.to_dtype(DType::F64)?.flatten_all()?.to_vec1()
}

/// Whether there is a folder with something in it, which may be replaced.
fn expect_free(dir: &Path, if_present: IfPresent) -> Result<bool, Error> {
    let occupied = |found: String, expected| Err(Error::Occupied { dir: dir.to_owned(), found, expected });
    let names = match fs::read_dir(dir) {
        Ok(entries) => entries.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            return occupied("is no folder".to_owned(), "a folder");
        }
        Err(error) => Err(error),
    };
    let names = names.map_err(|source| Error::Read { path: dir.to_owned(), source })?;
    let foreign = names.iter().find(|name| *name != DOCUMENT_FILE && *name != WEIGHTS_FILE && *name != ONNX_FILE);
    match (foreign, if_present) {
        _ if names.is_empty() => Ok(false),
        (Some(name), _) => occupied(format!("holds {}", PathBuf::from(name).display()), "a new or empty folder"),
        (None, IfPresent::Refuse) => occupied("holds an export".to_owned(), "a new or empty folder"),
        (None, IfPresent::Replace) => Ok(true),
    }
}

fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}
