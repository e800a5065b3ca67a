//! Reads of a file at a place, and whether it is still the file that was opened.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use leyline::error::ErrorKind;
use leyline::source::SourceError;

/// Parts that a fingerprint is taken of, and bytes of each.
const NUM_PARTS: u64 = 64;
const PART: u64 = 64 * 1024;

/// An open file whose length and time of change are those of its opening, whenever it is read. Any number of threads read
/// it at once.
#[derive(Debug)]
pub struct FileReader {
    file: File,
    path: PathBuf,
    len: u64,
    modified: Option<SystemTime>,
}

impl FileReader {
    /// Opens a file.
    ///
    /// # Errors
    /// [`ErrorKind::Io`] where it cannot be opened, [`ErrorKind::Corrupt`] where it is no file.
    pub fn open(path: &Path) -> Result<Self, SourceError> {
        let failed = |cause| SourceError::io(path.display(), "it cannot be opened", cause);
        let file = File::open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        if !metadata.is_file() {
            return Err(SourceError::corrupt(path.display(), "expected a file"));
        }
        Ok(Self { file, path: path.to_owned(), len: metadata.len(), modified: modified(&metadata) })
    }

    /// The path that was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes, when it was opened.
    #[must_use]
    pub fn num_bytes(&self) -> u64 {
        self.len
    }

    /// Confirms that the file is the one that was opened.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] where its length or the time of its last change is another one.
    pub fn unchanged(&self) -> Result<(), SourceError> {
        let metadata = self.file.metadata().map_err(|cause| self.failed("it cannot be looked at", cause))?;
        if metadata.len() != self.len {
            let (found, expected) = (metadata.len(), self.len);
            let message =
                format!("it has {found} bytes, and had {expected} when it was opened; expected it to stay as it is");
            return Err(self.corrupt(message));
        }
        if modified(&metadata) != self.modified {
            return Err(self.corrupt("it was written to since it was opened; expected it to stay as it is"));
        }
        Ok(())
    }

    /// Fills `bytes` with what is at `offset`.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] where the file ends before, [`ErrorKind::Io`] where it cannot be read.
    pub fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), SourceError> {
        match self.file.read_exact_at(bytes, offset) {
            Ok(()) => Ok(()),
            Err(cause) if cause.kind() == io::ErrorKind::UnexpectedEof => {
                Err(self.corrupt(format!("expected {} bytes at {offset}, but it ends before", bytes.len())))
            }
            Err(cause) => Err(self.failed(&format!("{} bytes at {offset} cannot be read", bytes.len()), cause)),
        }
    }

    /// BLAKE3 of the length and of up to 64 parts of 64 KiB at even distances, the first and the last included: of files of
    /// up to 4 MiB all of it.
    ///
    /// # Errors
    /// As [`Self::read_at`].
    pub fn fingerprint(&self) -> Result<String, SourceError> {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.len.to_le_bytes());
        let mut part = vec![0; usize::try_from(PART).unwrap_or(usize::MAX)];
        let whole = self.len <= NUM_PARTS * PART;
        let num_parts = if whole { self.len.div_ceil(PART) } else { NUM_PARTS };
        for index in 0..num_parts {
            // Within u128: a file may have any length.
            let even = u128::from(self.len - PART.min(self.len)) * u128::from(index) / u128::from(NUM_PARTS - 1);
            let start = if whole { index * PART } else { u64::try_from(even).unwrap_or(u64::MAX) };
            let end = self.len.min(start.saturating_add(PART));
            let part = &mut part[..usize::try_from(end - start).unwrap_or(usize::MAX)];
            self.read_at(start, part)?;
            hasher.update(part);
        }
        Ok(hasher.finalize().to_string())
    }

    /// An error about the contents of this file.
    pub(super) fn corrupt(&self, message: impl Into<String>) -> SourceError {
        SourceError::corrupt(self.path.display(), message)
    }

    fn failed(&self, message: &str, cause: io::Error) -> SourceError {
        SourceError::io(self.path.display(), message, cause)
    }
}

/// Absent where the file system knows of no such time.
fn modified(metadata: &Metadata) -> Option<SystemTime> {
    metadata.modified().ok()
}

/// The kind of every error that a layout which fits no file gives.
pub(super) fn misfit(file: &FileReader, message: String) -> SourceError {
    SourceError { kind: ErrorKind::Rejected, ..file.corrupt(message) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.bin");
        std::fs::write(&path, bytes).unwrap();
        (dir, path)
    }

    #[test]
    fn what_is_no_file_is_refused_with_its_path() {
        let (dir, path) = file(b"abc");
        let error = FileReader::open(dir.path()).unwrap_err();
        assert!(error.to_string().contains("expected a file"), "{error}");
        let error = FileReader::open(&path.with_file_name("b.bin")).unwrap_err();
        assert!(error.kind == ErrorKind::Io && error.to_string().contains("b.bin"), "{error}");
    }

    #[test]
    fn a_file_that_changes_is_noticed_and_one_that_is_cut_ends_no_process() {
        let (_dir, path) = file(b"abcdef");
        let reader = FileReader::open(&path).unwrap();
        let mut bytes = [0; 3];
        reader.read_at(3, &mut bytes).unwrap();
        assert!(&bytes == b"def" && reader.unchanged().is_ok());

        File::options().write(true).open(&path).unwrap().set_len(4).unwrap();
        let error = reader.read_at(3, &mut bytes).unwrap_err();
        assert!(error.to_string().contains("a.bin: expected 3 bytes at 3, but it ends before"), "{error}");
        let error = reader.unchanged().unwrap_err();
        assert!(error.to_string().contains("it has 4 bytes, and had 6"), "{error}");

        let reader = FileReader::open(&path).unwrap();
        let later = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1);
        File::options().write(true).open(&path).unwrap().set_modified(later).unwrap();
        assert!(reader.unchanged().unwrap_err().to_string().contains("written to"));
    }

    #[test]
    fn a_fingerprint_sees_all_of_a_small_file_and_both_ends_of_a_large_one() {
        let print = |bytes: &[u8]| {
            let (_dir, path) = file(bytes);
            FileReader::open(&path).unwrap().fingerprint().unwrap()
        };
        assert_eq!(print(b"abc"), print(b"abc"));
        assert_ne!(print(b"abc"), print(b"abd"));
        assert_ne!(print(b""), print(b"\0"));
        let mut large = vec![7; usize::try_from(NUM_PARTS * PART).unwrap() + 12_345];
        let before = print(&large);
        for at in [0, large.len() - 1] {
            large[at] ^= 1;
            assert_ne!(print(&large), before, "the byte at {at} is not seen");
            large[at] ^= 1;
        }
    }
}
