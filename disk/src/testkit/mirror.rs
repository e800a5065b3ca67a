//! The operating system's disk, whose every effect a simulated disk is told: what a loss of power may leave of a real run.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::SimFs;
use crate::fs::{EntryKind, Fs, FsFile, LockGuard, Open, StdFs};

/// Everything is done below one directory, for real and in the model.
///
/// # Panics
/// All methods, when the model cannot do what the operating system did.
#[derive(Debug, Clone)]
pub struct MirrorFs {
    root: PathBuf,
    model: Arc<SimFs>,
    promised: fn(&Path) -> Option<u64>,
    syncs: bool,
}

impl MirrorFs {
    /// `root` exists, is empty, and is `/` of `model`.
    pub fn new(root: impl Into<PathBuf>, model: Arc<SimFs>) -> Self {
        Self { root: root.into(), model, promised: |_| None, syncs: true }
    }

    /// Before a directory is made, `promised` is asked what is durable by then, and the model is [told](SimFs::acknowledge).
    #[must_use]
    pub fn acknowledging(self, promised: fn(&Path) -> Option<u64>) -> Self {
        Self { promised, ..self }
    }

    /// The model is not told of open files that are made durable: a disk that lies, or a program that forgets.
    #[must_use]
    pub fn without_syncs(self) -> Self {
        Self { syncs: false, ..self }
    }

    fn at(&self, path: &Path) -> PathBuf {
        let below = path.strip_prefix(&self.root).unwrap_or_else(|_| panic!("{} is elsewhere", path.display()));
        Path::new("/").join(below)
    }
}

fn told<T>(told: io::Result<T>) -> T {
    told.unwrap_or_else(|error| panic!("the model differs: {error}"))
}

impl Fs for MirrorFs {
    fn kind(&self, path: &Path) -> io::Result<Option<EntryKind>> {
        StdFs.kind(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        StdFs.list(dir)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        if let Some(step) = (self.promised)(dir) {
            self.model.acknowledge(step);
        }
        StdFs.create_dir(dir)?;
        told(self.model.create_dir(&self.at(dir)));
        Ok(())
    }

    fn write_synced(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        StdFs.write_synced(path, bytes)?;
        told(self.model.write_synced(&self.at(path), bytes));
        Ok(())
    }

    fn open(&self, path: &Path, which: Open) -> io::Result<Box<dyn FsFile>> {
        let real = StdFs.open(path, which)?;
        Ok(Box::new(MirrorFile { real, model: told(self.model.open(&self.at(path), which)), syncs: self.syncs }))
    }

    fn copy_mode(&self, from: &Path, to: &Path) -> io::Result<()> {
        StdFs.copy_mode(from, to)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        StdFs.rename(from, to)?;
        told(self.model.rename(&self.at(from), &self.at(to)));
        Ok(())
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        StdFs.hard_link(from, to)?;
        told(self.model.hard_link(&self.at(from), &self.at(to)));
        Ok(())
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        StdFs.remove_file(path)?;
        told(self.model.remove_file(&self.at(path)));
        Ok(())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        // The directory around it is not part of the model.
        if let Ok(below) = dir.strip_prefix(&self.root) {
            told(self.model.sync_dir(&Path::new("/").join(below)));
        }
        Ok(())
    }

    fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        StdFs.read(path, limit)
    }

    fn remove_dir_all(&self, dir: &Path) -> io::Result<()> {
        StdFs.remove_dir_all(dir)?;
        told(self.model.remove_dir_all(&self.at(dir)));
        Ok(())
    }

    fn try_lock(&self, path: &Path) -> io::Result<Option<LockGuard>> {
        let Some(real) = StdFs.try_lock(path)? else { return Ok(None) };
        let model = told(self.model.try_lock(&self.at(path)));
        Ok(model.map(|model| LockGuard::new((real, model))))
    }
}

#[derive(Debug)]
struct MirrorFile {
    real: Box<dyn FsFile>,
    model: Box<dyn FsFile>,
    syncs: bool,
}

impl FsFile for MirrorFile {
    fn size(&self) -> io::Result<u64> {
        self.real.size()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.real.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.real.write_at(offset, bytes)?;
        told(self.model.write_at(offset, bytes));
        Ok(())
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.real.set_len(bytes)?;
        told(self.model.set_len(bytes));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        if self.syncs {
            told(self.model.sync());
        }
        Ok(())
    }

    fn try_lock(&self) -> io::Result<bool> {
        self.real.try_lock()
    }

    fn is_at(&self, path: &Path) -> io::Result<bool> {
        self.real.is_at(path)
    }

    fn num_names(&self) -> io::Result<u64> {
        self.real.num_names()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_done_for_real_is_in_the_model_too() {
        let (dir, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let fs = MirrorFs::new(dir.path(), Arc::default());
        let at = |name: &str| dir.path().join(name);
        fs.create_dir(&at("d")).unwrap();
        fs.write_synced(&at("d/a"), b"one").unwrap();
        let file = fs.open(&at("d/b"), Open::New).unwrap();
        file.write_at(0, b"two and more").unwrap();
        file.set_len(3).unwrap();
        fs.hard_link(&at("d/b"), &at("d/c")).unwrap();
        fs.rename(&at("d/b"), &at("d/a")).unwrap();
        fs.write_synced(&at("x"), b"").unwrap();
        fs.remove_file(&at("x")).unwrap();
        assert!(fs.try_lock(&at("lock")).unwrap().is_some());
        fs.model.export(copy.path()).unwrap();
        let tree = |root: &Path| {
            let mut found = Vec::new();
            for folder in ["", "d"] {
                for name in StdFs.list(&root.join(folder)).unwrap() {
                    found.push((format!("{folder}/{name}"), StdFs.read(&root.join(folder).join(&name), 99).ok()));
                }
            }
            found.sort();
            found
        };
        assert_eq!(tree(copy.path()), tree(dir.path()));
        assert_eq!(tree(copy.path()).len(), 4);
    }
}
