//! A file that only grows by whole records, also when writing fails in the middle of one.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use esper_disk::{Fs, FsFile, Open};

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
}

impl AppendFile {
    /// Opens or creates `path`, readable and writable by its owner only, and locks it against other writers.
    /// The lock goes with the file; a file system without locks is used without.
    pub(super) fn open(fs: Arc<dyn Fs>, path: &Path) -> Result<Self, Error> {
        let file = fs.open(path, Open::OrCreate).map_err(Error::io("open for appending", path))?;
        match file.try_lock() {
            Ok(true) => {}
            Ok(false) => return Err(Error::InUse { path: path.to_owned() }),
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {}
            Err(error) => return Err(Error::io("lock", path)(error)),
        }
        let end = file.size().map_err(Error::io("inspect", path))?;
        Ok(Self { fs, path: path.to_owned(), file, end, torn: false })
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
