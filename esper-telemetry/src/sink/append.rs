//! A file that only grows by whole records, also when writing fails in the middle of one.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::error::Error;

/// What [`AppendFile`] needs of a file; tests put a failing one in its place.
pub(super) trait Storage: Write {
    fn set_len(&self, bytes: u64) -> io::Result<()>;
    fn sync(&self) -> io::Result<()>;
}

impl Storage for File {
    fn set_len(&self, bytes: u64) -> io::Result<()> {
        Self::set_len(self, bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}

/// An append-only file with one writer.
#[derive(Debug)]
pub(super) struct AppendFile<S = File> {
    path: PathBuf,
    storage: S,
    /// Where the last whole record ends.
    end: u64,
    /// Part of a record may stand after `end`.
    torn: bool,
}

impl AppendFile {
    /// Opens or creates `path`, readable and writable by its owner only, and locks it against other writers.
    /// The lock goes with the file; a file system without locks is used without.
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let storage = private_options()
            .read(true)
            .append(true)
            .create(true)
            .open(path)
            .map_err(Error::io("open for appending", path))?;
        match storage.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(Error::InUse { path: path.to_owned() }),
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {}
            Err(TryLockError::Error(error)) => return Err(Error::io("lock", path)(error)),
        }
        let end = storage.metadata().map_err(Error::io("inspect", path))?.len();
        Ok(Self { path: path.to_owned(), storage, end, torn: false })
    }

    pub(super) fn file(&self) -> &File {
        &self.storage
    }
}

impl<S: Storage> AppendFile<S> {
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of whole records.
    pub(super) fn len(&self) -> u64 {
        self.end
    }

    /// Cuts off everything from byte `end` on.
    pub(super) fn truncate(&mut self, end: u64) -> Result<(), Error> {
        self.storage.set_len(end).map_err(Error::io("truncate", &self.path))?;
        self.end = end;
        self.torn = false;
        Ok(())
    }

    /// Appends one record, or nothing: what a failed write left behind is cut off, at the latest before the next one.
    pub(super) fn append(&mut self, record: &[u8]) -> Result<(), Error> {
        if self.torn {
            self.truncate(self.end)?;
        }
        if let Err(error) = self.storage.write_all(record) {
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
        self.storage.sync().map_err(Error::io("sync", &self.path))
    }
}

#[cfg(unix)]
pub(crate) fn private_options() -> OpenOptions {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = OpenOptions::new();
    options.mode(0o600);
    options
}

#[cfg(not(unix))]
pub(crate) fn private_options() -> OpenOptions {
    OpenOptions::new()
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;

    /// Holds bytes, accepts `room` more of them, and truncates only when allowed to.
    #[derive(Debug, Default)]
    struct Disk {
        bytes: RefCell<Vec<u8>>,
        room: Cell<usize>,
        truncates: Cell<bool>,
    }

    impl Write for &Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let accepted = bytes.len().min(self.room.get());
            if accepted == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.room.set(self.room.get() - accepted);
            self.bytes.borrow_mut().extend_from_slice(&bytes[..accepted]);
            Ok(accepted)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Storage for &Disk {
        fn set_len(&self, bytes: u64) -> io::Result<()> {
            if !self.truncates.get() {
                return Err(io::ErrorKind::ReadOnlyFilesystem.into());
            }
            self.bytes.borrow_mut().truncate(usize::try_from(bytes).unwrap());
            Ok(())
        }

        fn sync(&self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_disk_that_fills_up_at_any_byte_holds_whole_records_only() {
        for truncates_at_once in [true, false] {
            for room in 0..12 {
                let disk = Disk::default();
                disk.room.set(room);
                disk.truncates.set(truncates_at_once);
                let mut file = AppendFile { path: "records".into(), storage: &disk, end: 0, torn: false };
                let stored = (0..3).filter(|_| file.append(b"abcd").is_ok()).count();
                assert_eq!(stored, room / 4, "room for {room}");
                disk.room.set(100);
                disk.truncates.set(true);
                file.append(b"wxyz").unwrap();
                let expected = [b"abcd".repeat(stored), b"wxyz".to_vec()].concat();
                assert_eq!(*disk.bytes.borrow(), expected, "room for {room}");
                assert_eq!(file.len(), expected.len() as u64);
            }
        }
    }

    #[test]
    fn a_second_writer_is_refused_while_the_first_lives() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("records");
        let first = AppendFile::open(&path).unwrap();
        assert!(matches!(AppendFile::open(&path), Err(Error::InUse { path: used }) if used == path));
        drop(first);
        AppendFile::open(&path).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn a_new_file_belongs_to_its_owner_alone() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let file = AppendFile::open(&dir.path().join("records")).unwrap();
        assert_eq!(file.file().metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
}
