//! Reading generations back: newest first, nothing believed before its digest.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use esper_disk::{EntryKind, Fs};

use super::error::{CheckpointError, Fault};
use super::manifest::{FileEntry, MANIFEST_FILE, MAX_MANIFEST_BYTES, Manifest, ManifestError};
use super::payload::{assemble, parse_state, parse_tensors};
use super::seal::{SIGNATURE_BYTES, SIGNATURE_FILE, Signing};
use super::snapshot::{Generation, Snapshot, SnapshotMeta};

/// Reads a checkpoint directory. Takes no lock and changes nothing.
///
/// While a store writes to the same directory, a listed generation may be gone when it is loaded; everything that can
/// be loaded is whole all the same.
#[derive(Debug, Clone)]
pub struct CheckpointReader {
    dir: PathBuf,
    fs: Arc<dyn Fs>,
    signing: Option<Signing>,
}

/// A snapshot that was loaded.
#[derive(Debug)]
pub struct Loaded {
    /// The snapshot, tensors on the CPU.
    pub snapshot: Snapshot,
    /// The generation it came from.
    pub generation: Generation,
    /// Newer generations that could not be used, newest first, each with its reason; the reason's kind tells damage
    /// (`Corrupt`) from a device that could not be read (`Io`), and its source says what was found instead of what.
    pub skipped: Vec<(Generation, CheckpointError)>,
}

impl CheckpointReader {
    /// A reader of the generations in `dir`. Touches nothing yet.
    pub fn new(dir: impl Into<PathBuf>, fs: Arc<dyn Fs>) -> Self {
        Self { dir: dir.into(), fs, signing: None }
    }

    /// The same, which refuses generations whose signature is not right.
    #[must_use]
    pub fn with_signing(mut self, signing: Option<Signing>) -> Self {
        self.signing = signing;
        self
    }

    pub(super) fn signing(&self) -> Option<&Signing> {
        self.signing.as_ref()
    }

    /// The directory that holds the generations.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The generations there are, oldest first; they are not looked into.
    ///
    /// # Errors
    /// [`CheckpointError::Io`] when the directory cannot be read.
    pub fn list(&self) -> Result<Vec<Generation>, CheckpointError> {
        Ok(generations(&self.names()?))
    }

    /// Loads the newest generation that is whole; `None` when there is none at all.
    ///
    /// Damaged and unreadable generations are passed over and listed in [`Loaded::skipped`].
    ///
    /// # Errors
    /// [`CheckpointError::UnsupportedVersion`] when the newest undamaged generation has another format: an older one
    /// would silently lose its progress; [`CheckpointError::Untrusted`] when it is not signed as it should be, likewise.
    /// [`CheckpointError::NothingLoadable`] when there are generations and every one
    /// was passed over. [`CheckpointError::Io`] when the directory cannot be read.
    pub fn load_latest(&self) -> Result<Option<Loaded>, CheckpointError> {
        let mut skipped = Vec::new();
        for generation in self.list()?.into_iter().rev() {
            match self.load(generation) {
                Ok(snapshot) => return Ok(Some(Loaded { snapshot, generation, skipped })),
                Err(error @ (CheckpointError::UnsupportedVersion { .. } | CheckpointError::Untrusted { .. })) => {
                    return Err(error);
                }
                Err(reason) => skipped.push((generation, reason)),
            }
        }
        if skipped.is_empty() {
            Ok(None)
        } else {
            Err(CheckpointError::NothingLoadable { dir: self.dir.clone(), skipped })
        }
    }

    /// Loads the newest pinned generation that is whole; `None` when none is pinned.
    ///
    /// Damaged and unreadable generations are passed over; those that may have been pinned are in [`Loaded::skipped`].
    ///
    /// # Errors
    /// As [`load_latest`](Self::load_latest), of the generations that may be pinned.
    pub fn load_pinned(&self) -> Result<Option<Loaded>, CheckpointError> {
        let mut skipped = Vec::new();
        for generation in self.list()?.into_iter().rev() {
            match self.is_pinned(generation).and_then(|pinned| pinned.then(|| self.load(generation)).transpose()) {
                Ok(Some(snapshot)) => return Ok(Some(Loaded { snapshot, generation, skipped })),
                Ok(None) => {}
                Err(error @ (CheckpointError::UnsupportedVersion { .. } | CheckpointError::Untrusted { .. })) => {
                    return Err(error);
                }
                Err(reason) => skipped.push((generation, reason)),
            }
        }
        if skipped.is_empty() {
            Ok(None)
        } else {
            Err(CheckpointError::NothingLoadable { dir: self.dir.clone(), skipped })
        }
    }

    /// Loads one generation, tensors on the CPU.
    ///
    /// # Errors
    /// [`CheckpointError::NoSuchGeneration`], [`CheckpointError::Damaged`], [`CheckpointError::UnsupportedVersion`] or
    /// [`CheckpointError::Io`].
    pub fn load(&self, generation: Generation) -> Result<Snapshot, CheckpointError> {
        let Verified { manifest, documents, tensors } = self.read(generation)?;
        let components = parse_tensors(&tensors, &documents)
            .and_then(|stored| assemble(documents, stored))
            .map_err(|fault| self.damaged(generation, &manifest.tensors().name, fault))?;
        Ok(Snapshot { meta: manifest.meta, components })
    }

    /// Checks everything that [`load`](Self::load) checks, without building the tensors.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn verify(&self, generation: Generation) -> Result<SnapshotMeta, CheckpointError> {
        let Verified { manifest, documents, tensors } = self.read(generation)?;
        parse_tensors(&tensors, &documents)
            .map_err(|fault| self.damaged(generation, &manifest.tensors().name, fault))?;
        Ok(manifest.meta)
    }

    pub(super) fn fs(&self) -> &dyn Fs {
        &*self.fs
    }

    /// Names of everything in the directory.
    pub(super) fn names(&self) -> Result<Vec<String>, CheckpointError> {
        self.fs.list(&self.dir).map_err(CheckpointError::io("list", &self.dir))
    }

    /// Whether the manifest of a generation pins it; nothing else of it is looked at.
    pub(super) fn is_pinned(&self, generation: Generation) -> Result<bool, CheckpointError> {
        Ok(self.read_manifest(generation)?.pinned)
    }

    /// The files of a generation, sizes and digests checked.
    fn read(&self, generation: Generation) -> Result<Verified, CheckpointError> {
        let manifest = self.read_manifest(generation)?;
        let state = self.read_entry(generation, manifest.state())?;
        let documents = parse_state(&state).map_err(|fault| self.damaged(generation, &manifest.state().name, fault))?;
        let tensors = self.read_entry(generation, manifest.tensors())?;
        Ok(Verified { manifest, documents, tensors })
    }

    fn read_manifest(&self, generation: Generation) -> Result<Manifest, CheckpointError> {
        let dir = self.dir.join(generation.directory_name());
        match self.fs.kind(&dir).map_err(CheckpointError::io("look at", &dir))? {
            Some(EntryKind::Directory) => {}
            Some(_) => {
                let fault = Fault::WrongKind { expected: "a directory" };
                return Err(CheckpointError::Damaged { generation, path: dir, fault });
            }
            None => {
                let newest = self.list()?.last().copied();
                return Err(CheckpointError::NoSuchGeneration { dir: self.dir.clone(), generation, newest });
            }
        }
        let bytes = self.read_file(generation, MANIFEST_FILE, MAX_MANIFEST_BYTES)?;
        let manifest = Manifest::parse(&bytes, generation).map_err(|error| match error {
            ManifestError::Fault(fault) => self.damaged(generation, MANIFEST_FILE, fault),
            ManifestError::Version(found) => {
                CheckpointError::UnsupportedVersion { generation, path: dir.join(MANIFEST_FILE), found }
            }
        })?;
        self.require_trust(generation, &bytes)?;
        Ok(manifest)
    }

    /// After the digest: what was damaged by chance is passed over, what was written by others is refused.
    fn require_trust(&self, generation: Generation, manifest: &[u8]) -> Result<(), CheckpointError> {
        let Some(signing) = &self.signing else { return Ok(()) };
        let path = self.path(generation, SIGNATURE_FILE);
        let signature = match self.fs.kind(&path).map_err(CheckpointError::io("look at", &path))? {
            None => None,
            Some(EntryKind::File) => match self.fs.read(&path, SIGNATURE_BYTES) {
                Ok(content) => Some(content),
                Err(error) if error.kind() == io::ErrorKind::FileTooLarge => Some(Vec::new()),
                Err(error) => return Err(CheckpointError::io("read", &path)(error)),
            },
            // No signature, but not a missing one either.
            Some(_) => Some(Vec::new()),
        };
        let fault = signing.fault(manifest, signature.as_deref());
        fault.map_or(Ok(()), |found| Err(CheckpointError::Untrusted { generation, path, found }))
    }

    fn read_entry(&self, generation: Generation, entry: &FileEntry) -> Result<Vec<u8>, CheckpointError> {
        let content = self.read_file(generation, &entry.name, entry.bytes)?;
        entry.check(&content).map_err(|fault| self.damaged(generation, &entry.name, fault))?;
        Ok(content)
    }

    fn read_file(&self, generation: Generation, name: &str, limit: u64) -> Result<Vec<u8>, CheckpointError> {
        let path = self.path(generation, name);
        let fault = match self.fs.kind(&path).map_err(CheckpointError::io("look at", &path))? {
            Some(EntryKind::File) => match self.fs.read(&path, limit) {
                Ok(content) => return Ok(content),
                Err(error) if error.kind() == io::ErrorKind::FileTooLarge => Fault::TooLong { expected: limit },
                Err(error) => return Err(CheckpointError::io("read", &path)(error)),
            },
            Some(_) => Fault::WrongKind { expected: "a regular file" },
            None => Fault::Missing,
        };
        Err(CheckpointError::Damaged { generation, path, fault })
    }

    fn path(&self, generation: Generation, name: &str) -> PathBuf {
        self.dir.join(generation.directory_name()).join(name)
    }

    fn damaged(&self, generation: Generation, name: &str, fault: Fault) -> CheckpointError {
        CheckpointError::Damaged { generation, path: self.path(generation, name), fault }
    }
}

/// Those among names, oldest first.
pub(super) fn generations(names: &[String]) -> Vec<Generation> {
    let mut generations: Vec<_> = names.iter().filter_map(|name| Generation::from_directory_name(name)).collect();
    generations.sort_unstable();
    generations
}

/// A generation whose bytes are what was written.
struct Verified {
    manifest: Manifest,
    documents: BTreeMap<String, String>,
    tensors: Vec<u8>,
}
