//! A file that only grows by whole records, also when writing fails in the middle of one.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use esper_disk::{Fs, FsFile, Open, folder_of};

use crate::error::Error;

/// An append-only file with one writer.
#[derive(Debug)]
pub(super) struct AppendFile {
    fs: Arc<dyn Fs>,
    path: PathBuf,
    file: Box<dyn FsFile>,
    /// Where the last whole record ends.
    end: u64,
    /// Part of a record may stand after `end`.
    torn: bool,
    /// Most bytes, unless a single record has more.
    limit: u64,
    /// Of every file, before its first record.
    header: Vec<u8>,
}

/// The name under which the full file before `path` is kept: `packets.1.bin` for `packets.bin`.
pub(super) fn older(path: &Path) -> PathBuf {
    let part = |part: Option<&std::ffi::OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
    path.with_file_name(format!("{}.1.{}", part(path.file_stem()), part(path.extension())))
}

impl AppendFile {
    /// Opens or creates `path`, readable and writable by its owner only, and locks it against other writers.
    /// The lock goes with the file; a file system without locks is used without.
    pub(super) fn open(fs: Arc<dyn Fs>, path: &Path) -> Result<Self, Error> {
        let (file, end) = open_locked(&*fs, path)?;
        Ok(Self { fs, path: path.to_owned(), file, end, torn: false, limit: u64::MAX, header: Vec::new() })
    }

    /// From now on the file has at most `bytes`: what does not fit begins a new one, and the full one is kept in the place of the
    /// one before it, see [`older`].
    pub(super) fn limit(&mut self, bytes: u64) {
        self.limit = bytes;
    }

    /// From now on every file that is begun begins with `bytes`, written with its first record.
    pub(super) fn begin_with(&mut self, bytes: Vec<u8>) {
        self.header = bytes;
    }

    /// Begins a new file. A failure leaves the full one to be tried again.
    fn rotate(&mut self) -> Result<(), Error> {
        // An attempt that failed later has moved it already, and may have begun the new one.
        if self.file.is_at(&self.path).map_err(Error::io("inspect", &self.path))? {
            self.fs.rename(&self.path, &older(&self.path)).map_err(Error::io("move", &self.path))?;
        }
        let (file, end) = open_locked(&*self.fs, &self.path)?;
        self.fs.sync_dir(folder_of(&self.path)).map_err(Error::io("sync the folder of", &self.path))?;
        (self.file, self.end, self.torn) = (file, end, false);
        Ok(())
    }

    pub(super) fn fs(&self) -> &dyn Fs {
        &*self.fs
    }

    pub(super) fn file(&self) -> &dyn FsFile {
        &*self.file
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of whole records.
    pub(super) fn len(&self) -> u64 {
        self.end
    }

    /// Cuts off everything from byte `end` on.
    pub(super) fn truncate(&mut self, end: u64) -> Result<(), Error> {
        self.file.set_len(end).map_err(Error::io("truncate", &self.path))?;
        self.end = end;
        self.torn = false;
        Ok(())
    }

    /// Appends one record, or nothing: what a failed write left behind is cut off, at the latest before the next one.
    pub(super) fn append(&mut self, record: &[u8]) -> Result<(), Error> {
        if self.torn {
            self.truncate(self.end)?;
        }
        if self.end > 0 && self.end.saturating_add(record.len() as u64) > self.limit {
            self.rotate()?;
        }
        let with_header = if self.end == 0 { [&self.header, record].concat() } else { Vec::new() };
        let record = if self.end == 0 { &with_header } else { record };
        if let Err(error) = self.file.write_at(self.end, record) {
            self.torn = true;
            if let Err(repair) = self.truncate(self.end) {
                tracing::debug!(%repair, "the torn record is cut off before the next one");
            }
            return Err(Error::io("append to", &self.path)(error));
        }
        self.end += record.len() as u64;
        Ok(())
    }

    pub(super) fn sync(&self) -> Result<(), Error> {
        self.file.sync().map_err(Error::io("sync", &self.path))
    }
}

fn open_locked(fs: &dyn Fs, path: &Path) -> Result<(Box<dyn FsFile>, u64), Error> {
    let file = fs.open(path, Open::OrCreate).map_err(Error::io("open for appending", path))?;
    match file.try_lock() {
        Ok(true) => {}
        Ok(false) => return Err(Error::InUse { path: path.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::Unsupported => {}
        Err(error) => return Err(Error::io("lock", path)(error)),
    }
    let end = file.size().map_err(Error::io("inspect", path))?;
    Ok((file, end))
}

#[cfg(test)]
mod tests {
    use esper_disk::StdFs;
    use esper_disk::testkit::{Failure, FaultFs, SimFs, Which};

    use super::*;

    #[test]
    fn a_disk_that_fails_at_any_call_holds_whole_records_only() {
        let path = Path::new("/records");
        for failure in [Failure::Once, Failure::AfterTheEffect, Failure::DiskFull] {
            for repairs_at_once in [true, false] {
                // The first three calls open it.
                for n in 3..7 {
                    let disk = Arc::new(SimFs::default()) as Arc<dyn Fs>;
                    let num_repairs = usize::from(repairs_at_once) * 99;
                    let repair = Which::Named("set_len records".to_owned(), num_repairs);
                    let repairing = Arc::new(FaultFs::failing_at(Arc::clone(&disk), Failure::Once, repair));
                    let faulty = FaultFs::failing(repairing, failure, n);
                    let mut file = AppendFile::open(Arc::new(faulty.clone()), path).unwrap();
                    let stored = (0..5_u8).filter(|index| file.append(&[*index; 4]).is_ok()).collect::<Vec<_>>();
                    assert!(faulty.has_failed() && stored.len() < 5, "{failure:?} of call {n}");
                    let bytes = disk.read(path, 99).unwrap();
                    let expected: Vec<u8> = stored.iter().flat_map(|index| [*index; 4]).collect();
                    assert_eq!(bytes, expected, "{failure:?} of call {n}");
                    assert_eq!(file.len(), expected.len() as u64);
                }
            }
        }
    }

    #[test]
    fn a_full_file_is_kept_beside_a_new_one_and_both_stay_within_the_limit() {
        let path = Path::new("/records.bin");
        let failures =
            [Failure::Once, Failure::AfterTheEffect].into_iter().flat_map(|failure| (0..60).map(move |n| (failure, n)));
        for failure in std::iter::once(None).chain(failures.map(Some)) {
            let disk = Arc::new(SimFs::default()) as Arc<dyn Fs>;
            let fs = match failure {
                None => Arc::clone(&disk),
                Some((failure, n)) => Arc::new(FaultFs::failing(Arc::clone(&disk), failure, n)),
            };
            let Ok(mut file) = AppendFile::open(fs, path) else { continue };
            file.limit(10);
            let stored: Vec<u8> = (0..20).filter(|index| file.append(&[*index; 4]).is_ok()).collect();
            assert!(stored.len() >= 18, "{failure:?}: {stored:?}");
            let read = |path: &Path| disk.read(path, 99).unwrap_or_default();
            let (before, now) = (read(&older(path)), read(path));
            assert!(before.len() <= 10 && now.len() <= 10, "{failure:?}: {} and {} bytes", before.len(), now.len());
            let kept: Vec<u8> = [before, now].concat().chunks(4).map(|record| record[0]).collect();
            assert!(stored.ends_with(&kept) && kept.len() >= 3, "{failure:?}: {kept:?} of {stored:?}");
        }
        // A record that is too large for any file has one to itself.
        let mut file = AppendFile::open(Arc::new(SimFs::default()), path).unwrap();
        file.limit(10);
        for bytes in [4, 40, 4] {
            file.append(&vec![1; bytes]).unwrap();
        }
        assert_eq!(file.len(), 4);
    }

    #[test]
    fn a_second_writer_is_refused_while_the_first_lives() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("records");
        let open = || AppendFile::open(Arc::new(StdFs), &path);
        let first = open().unwrap();
        assert!(matches!(open(), Err(Error::InUse { path: used }) if used == path));
        drop(first);
        open().unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn a_new_file_belongs_to_its_owner_alone() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("records");
        AppendFile::open(Arc::new(StdFs), &path).unwrap();
        assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
