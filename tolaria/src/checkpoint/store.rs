//! Writing generations: aside, durable, visible by one rename; then the old ones go.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use esper_disk::{EntryKind, Fs, LockGuard, make_dirs};
use leyline::error::{Error as _, ErrorKind};

use super::error::CheckpointError;
use super::manifest::{MANIFEST_FILE, Manifest};
use super::payload::{Payload, STATE_FILE, TENSORS_FILE, encode};
use super::reader::{CheckpointReader, Loaded, generations};
use super::seal::{SIGNATURE_FILE, Signing};
use super::snapshot::{Generation, Snapshot, SnapshotMeta};

const LOCK_FILE: &str = "lock";

/// The one writer of a checkpoint directory.
#[derive(Debug)]
pub struct CheckpointStore {
    reader: CheckpointReader,
    keep_last: NonZeroUsize,
    /// Generations found whole by this store, and whether each is pinned; retention counts only these.
    sound: BTreeMap<Generation, bool>,
    _lock: LockGuard,
}

impl CheckpointStore {
    /// Opens `dir`, made when missing, for writing: takes its lock and removes what a crash left half done.
    ///
    /// # Errors
    /// [`CheckpointError::Locked`] while another store has it open; [`CheckpointError::Io`].
    pub fn open(dir: impl Into<PathBuf>, keep_last: NonZeroUsize, fs: Arc<dyn Fs>) -> Result<Self, CheckpointError> {
        let dir = dir.into();
        make_dirs(&*fs, &dir).map_err(CheckpointError::io("create", &dir))?;
        let lock_path = dir.join(LOCK_FILE);
        let lock = fs.try_lock(&lock_path).map_err(CheckpointError::io("lock", lock_path))?;
        let Some(lock) = lock else { return Err(CheckpointError::Locked { dir }) };
        let store = Self { reader: CheckpointReader::new(dir, fs), keep_last, sound: BTreeMap::new(), _lock: lock };
        store.sweep()?;
        Ok(store)
    }

    /// The same, which signs what it writes, and reads as [`CheckpointReader::with_signing`].
    #[must_use]
    pub fn with_signing(mut self, signing: Option<Signing>) -> Self {
        self.reader = self.reader.with_signing(signing);
        self
    }

    /// Stores `snapshot` as a new generation; when this returns, it is durable. Then removes what is older than the
    /// newest `keep_last` sound generations, the new one included; a pinned generation stays and does not count, and so
    /// does one with a file of its [`keep_name`](Generation::keep_name) beside it.
    ///
    /// # Errors
    /// [`CheckpointError::InvalidName`], [`UnsupportedDType`](CheckpointError::UnsupportedDType),
    /// [`Device`](CheckpointError::Device) and [`Unwritable`](CheckpointError::Unwritable) before the directory is
    /// touched. [`Io`](CheckpointError::Io) when writing failed, and [`Damaged`](CheckpointError::Damaged) when the
    /// generation reads back wrong: the snapshot is not acknowledged, and nothing older was removed.
    /// [`Retention`](CheckpointError::Retention) when only the removal failed; the snapshot is durable.
    ///
    /// # Sync
    /// One device-to-host copy per tensor that is not on the CPU.
    pub fn save(&mut self, snapshot: &Snapshot) -> Result<Generation, CheckpointError> {
        self.store(snapshot, false)
    }

    /// As [`save`](Self::save), of a generation that stays, however many are saved after it, until a newer pinned one has
    /// been read back: then the older pinned one goes. [`CheckpointReader::load_pinned`] finds it, and
    /// [`CheckpointReader::load_latest`] as any other.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Sync
    /// As there.
    pub fn save_pinned(&mut self, snapshot: &Snapshot) -> Result<Generation, CheckpointError> {
        self.store(snapshot, true)
    }

    fn store(&mut self, snapshot: &Snapshot, pinned: bool) -> Result<Generation, CheckpointError> {
        super::name::check_config_digest(&snapshot.meta.config_digest)?;
        let payload = encode(&snapshot.components)?;
        self.sweep()?;
        let generation = self.next_generation()?;
        let manifest = Manifest::new(generation, snapshot.meta.clone(), &payload, pinned)
            .to_bytes()
            .map_err(|fault| CheckpointError::Unwritable { file: MANIFEST_FILE, fault })?;

        let temporary = self.dir().join(generation.temporary_name());
        if let Err(error) = self.write_and_rename(generation, &temporary, &payload, &manifest) {
            // A full disk should not stay full until the next sweep.
            if let Err(left) = self.remove_if_present(&temporary) {
                tracing::warn!(
                    error = &left as &dyn std::error::Error,
                    "an unfinished checkpoint stays until the next sweep"
                );
            }
            return Err(error);
        }
        self.sync_dir(self.dir())?;

        self.reader.verify(generation)?;
        self.sound.insert(generation, pinned);
        self.retain_newest()
            .map_err(|source| CheckpointError::Retention { committed: generation, source: Box::new(source) })?;
        Ok(generation)
    }

    /// Reading, for those who only read.
    #[must_use]
    pub fn reader(&self) -> &CheckpointReader {
        &self.reader
    }

    /// [`CheckpointReader::dir`].
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.reader.dir()
    }

    /// [`CheckpointReader::list`].
    ///
    /// # Errors
    /// As there.
    pub fn list(&self) -> Result<Vec<Generation>, CheckpointError> {
        self.reader.list()
    }

    /// [`CheckpointReader::load_latest`].
    ///
    /// # Errors
    /// As there.
    pub fn load_latest(&self) -> Result<Option<Loaded>, CheckpointError> {
        self.reader.load_latest()
    }

    /// [`CheckpointReader::load_pinned`].
    ///
    /// # Errors
    /// As there.
    pub fn load_pinned(&self) -> Result<Option<Loaded>, CheckpointError> {
        self.reader.load_pinned()
    }

    /// [`CheckpointReader::load`].
    ///
    /// # Errors
    /// As there.
    pub fn load(&self, generation: Generation) -> Result<Snapshot, CheckpointError> {
        self.reader.load(generation)
    }

    /// [`CheckpointReader::verify`].
    ///
    /// # Errors
    /// As there.
    pub fn verify(&self, generation: Generation) -> Result<SnapshotMeta, CheckpointError> {
        self.reader.verify(generation)
    }

    fn fs(&self) -> &dyn Fs {
        self.reader.fs()
    }

    fn next_generation(&self) -> Result<Generation, CheckpointError> {
        let Some(newest) = self.list()?.last().copied() else { return Ok(Generation(1)) };
        let next = newest.0.checked_add(1).map(Generation);
        next.ok_or_else(|| CheckpointError::NumbersExhausted { dir: self.dir().to_owned(), newest })
    }

    /// Everything up to the moment at which the generation becomes visible.
    fn write_and_rename(
        &self,
        generation: Generation,
        temporary: &Path,
        payload: &Payload,
        manifest: &[u8],
    ) -> Result<(), CheckpointError> {
        self.fs().create_dir(temporary).map_err(CheckpointError::io("create", temporary))?;
        let signature = self.reader.signing().map(|signing| signing.to_bytes(manifest));
        let files = [(TENSORS_FILE, &*payload.tensors), (STATE_FILE, &*payload.state), (MANIFEST_FILE, manifest)];
        for (name, content) in files.into_iter().chain(signature.as_deref().map(|bytes| (SIGNATURE_FILE, bytes))) {
            let path = temporary.join(name);
            self.fs().write_synced(&path, content).map_err(CheckpointError::io("write", path))?;
        }
        self.sync_dir(temporary)?;
        let visible = self.dir().join(generation.directory_name());
        self.fs().rename(temporary, &visible).map_err(CheckpointError::io("rename", temporary))
    }

    /// Removes what is older than the newest `keep_last` sound generations, but for the newest sound one that is pinned and
    /// those that somebody keeps by a file.
    fn retain_newest(&mut self) -> Result<(), CheckpointError> {
        let (mut num_sound, mut has_pinned) = (0, false);
        let mut expired = Vec::new();
        let names = self.reader.names()?;
        let kept: BTreeSet<_> = names.iter().filter_map(|name| Generation::from_keep_name(name)).collect();
        for generation in generations(&names).into_iter().rev().filter(|generation| !kept.contains(generation)) {
            let is_needed = num_sound < self.keep_last.get();
            match self.look_at(generation, is_needed) {
                Ok(true) if !has_pinned => has_pinned = true,
                Ok(false) if is_needed => num_sound += 1,
                // Perhaps the pinned one, or one of the last: the next save looks again.
                Err(error) if is_needed || error.kind() == ErrorKind::Io => {}
                Ok(_) | Err(_) => expired.push(generation),
            }
        }
        let mut temporaries = Vec::new();
        for generation in expired {
            let visible = self.dir().join(generation.directory_name());
            let temporary = self.dir().join(generation.temporary_name());
            self.fs().rename(&visible, &temporary).map_err(CheckpointError::io("rename", visible))?;
            self.sound.remove(&generation);
            temporaries.push(temporary);
        }
        if temporaries.is_empty() {
            return Ok(());
        }
        // Otherwise a loss of power could bring the name back without the files.
        self.sync_dir(self.dir())?;
        temporaries.iter().try_for_each(|temporary| self.remove(temporary))
    }

    /// Whether a sound generation is pinned. Of one that is neither pinned nor needed, only the manifest is read.
    fn look_at(&mut self, generation: Generation, is_needed: bool) -> Result<bool, CheckpointError> {
        if let Some(pinned) = self.sound.get(&generation) {
            return Ok(*pinned);
        }
        let pinned = self.reader.is_pinned(generation)?;
        if pinned || is_needed {
            self.reader.verify(generation)?;
            self.sound.insert(generation, pinned);
        }
        Ok(pinned)
    }

    /// Removes temporary directories, which only a crash or a failure leaves behind.
    fn sweep(&self) -> Result<(), CheckpointError> {
        let mut names = self.reader.names()?;
        names.retain(|name| Generation::from_temporary_name(name).is_some());
        if names.is_empty() {
            return Ok(());
        }
        // One of them may be an expired generation whose new name is not durable yet, see `retain_newest`.
        self.sync_dir(self.dir())?;
        names.iter().try_for_each(|name| self.remove_if_present(&self.dir().join(name)))
    }

    fn remove_if_present(&self, dir: &Path) -> Result<(), CheckpointError> {
        match self.fs().kind(dir).map_err(CheckpointError::io("look at", dir))? {
            Some(EntryKind::Directory) => self.remove(dir),
            Some(EntryKind::File | EntryKind::Other) | None => Ok(()),
        }
    }

    fn remove(&self, dir: &Path) -> Result<(), CheckpointError> {
        self.fs().remove_dir_all(dir).map_err(CheckpointError::io("remove", dir))
    }

    fn sync_dir(&self, dir: &Path) -> Result<(), CheckpointError> {
        self.fs().sync_dir(dir).map_err(CheckpointError::io("sync", dir))
    }
}
