//! The file system as an argument, so that tests can make it fail, lose power and forget.

use std::fmt;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::path::Path;

/// What a path names, links not followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A directory.
    Directory,
    /// A regular file.
    File,
    /// Anything else: a link, a pipe, a device.
    Other,
}

/// What the store needs from a file system.
///
/// # For implementers
/// - **FS-1** The content of a file is durable when [`write_synced`](Fs::write_synced) returned; its directory entry
///   need not be.
/// - **FS-2** Entries made, renamed or removed in a directory are durable when [`sync_dir`](Fs::sync_dir) returned.
/// - **FS-3** [`rename`](Fs::rename) is atomic: after a crash the entry has the old or the new name.
/// - **FS-4** No method follows a link in the last component of its path.
pub trait Fs: fmt::Debug + Send + Sync {
    /// What `path` names; `None` when it names nothing.
    ///
    /// # Errors
    /// When that cannot be found out.
    fn kind(&self, path: &Path) -> io::Result<Option<EntryKind>>;

    /// Names in the directory, in any order. A name that is not Unicode is none of ours and is left out.
    ///
    /// # Errors
    /// When the directory cannot be read.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;

    /// Makes a directory that only its owner can use; its parent exists.
    ///
    /// # Errors
    /// When it exists already, or cannot be made.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;

    /// Makes a new file that only its owner can use, writes `bytes` and makes them durable (FS-1).
    ///
    /// # Errors
    /// When it exists already or any of the three fails; what is left of the file is then undefined.
    fn write_synced(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;

    /// Gives a directory another name in the same parent (FS-3).
    ///
    /// # Errors
    /// When it cannot be renamed.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Makes the entries of a directory durable (FS-2).
    ///
    /// # Errors
    /// When the entries may not be durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// The content of a regular file, if it has at most `limit` bytes. Memory is taken only after that check.
    ///
    /// # Errors
    /// [`io::ErrorKind::FileTooLarge`] beyond the limit; anything else when it cannot be read.
    fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>>;

    /// Removes a directory and what is in it.
    ///
    /// # Errors
    /// When something could not be removed; the rest may be gone.
    fn remove_dir_all(&self, dir: &Path) -> io::Result<()>;

    /// Takes the exclusive advisory lock on a file, made when missing; `None` when somebody else has it.
    ///
    /// # Errors
    /// When the file cannot be made or locked.
    fn try_lock(&self, path: &Path) -> io::Result<Option<LockGuard>>;
}

/// A lock, held until this is dropped.
pub struct LockGuard {
    _held: Box<dyn Send + Sync>,
}

impl LockGuard {
    /// `held` gives the lock back when it is dropped.
    #[must_use]
    pub fn new(held: impl Send + Sync + 'static) -> Self {
        Self { _held: Box::new(held) }
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard").finish_non_exhaustive()
    }
}

/// The file system of the operating system.
#[derive(Debug, Clone, Copy, Default)]
pub struct StdFs;

impl Fs for StdFs {
    fn kind(&self, path: &Path) -> io::Result<Option<EntryKind>> {
        match fs::symlink_metadata(path) {
            Ok(metadata) if metadata.is_dir() => Ok(Some(EntryKind::Directory)),
            Ok(metadata) if metadata.is_file() => Ok(Some(EntryKind::File)),
            Ok(_) => Ok(Some(EntryKind::Other)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(dir)? {
            names.extend(entry?.file_name().into_string().ok());
        }
        Ok(names)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        private_dir_builder().create(dir)
    }

    fn write_synced(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        // `create_new` neither follows a link nor touches what is there.
        let mut file = private_file_options().write(true).create_new(true).open(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    #[cfg(unix)]
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }

    // Elsewhere a directory cannot be opened as a file; NTFS journals its entries.
    #[cfg(not(unix))]
    fn sync_dir(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }

    fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        let file = open_unlinked(path, OpenOptions::new().read(true))?;
        let size = file.metadata()?.len();
        if size > limit {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(usize::try_from(size).map_err(|_| io::ErrorKind::FileTooLarge)?)?;
        // The file may grow meanwhile; one byte beyond the limit tells.
        file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > limit {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok(bytes)
    }

    fn remove_dir_all(&self, dir: &Path) -> io::Result<()> {
        fs::remove_dir_all(dir)
    }

    fn try_lock(&self, path: &Path) -> io::Result<Option<LockGuard>> {
        match private_file_options().write(true).create_new(true).open(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            other => drop(other?),
        }
        // For writing, although nothing is written: NFS gives an exclusive lock to no other.
        let file = open_unlinked(path, OpenOptions::new().write(true))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(LockGuard::new(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

/// Opens a regular file, and proves that no link was followed on the way.
fn open_unlinked(path: &Path, options: &OpenOptions) -> io::Result<File> {
    let refused = || io::Error::new(io::ErrorKind::InvalidInput, "not a regular file");
    // Looked at before opening, because opening a pipe waits for its other end.
    let before = fs::symlink_metadata(path)?;
    if !before.is_file() {
        return Err(refused());
    }
    let file = options.open(path)?;
    if is_same_file(&before, &file.metadata()?) { Ok(file) } else { Err(refused()) }
}

#[cfg(unix)]
fn is_same_file(a: &fs::Metadata, b: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

#[cfg(not(unix))]
fn is_same_file(_: &fs::Metadata, b: &fs::Metadata) -> bool {
    b.is_file()
}

// The process's mask can only take bits away from these modes.
#[cfg(unix)]
fn private_dir_builder() -> fs::DirBuilder {
    use std::os::unix::fs::DirBuilderExt;
    let mut builder = fs::DirBuilder::new();
    builder.mode(0o700);
    builder
}

#[cfg(not(unix))]
fn private_dir_builder() -> fs::DirBuilder {
    fs::DirBuilder::new()
}

#[cfg(unix)]
fn private_file_options() -> OpenOptions {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = OpenOptions::new();
    options.mode(0o600);
    options
}

#[cfg(not(unix))]
fn private_file_options() -> OpenOptions {
    OpenOptions::new()
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_the_same_under_two_names_and_no_other_is() {
        let dir = tempfile::tempdir().unwrap();
        let (a, b, c) = (dir.path().join("a"), dir.path().join("b"), dir.path().join("c"));
        StdFs.write_synced(&a, b"same content").unwrap();
        StdFs.write_synced(&b, b"same content").unwrap();
        fs::hard_link(&a, &c).unwrap();
        let metadata = |path| fs::metadata(path).unwrap();
        assert!(is_same_file(&metadata(&a), &metadata(&c)));
        assert!(!is_same_file(&metadata(&a), &metadata(&b)));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_lock_is_held_on_a_file_that_is_open_for_writing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap().join("lock");
        for made in ["now", "before"] {
            let lock = StdFs.try_lock(&path).unwrap().unwrap();
            let mut names = fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().file_name());
            let is_it = |name: &std::ffi::OsString| fs::read_link(Path::new("/proc/self/fd").join(name)).ok();
            let name = names.find(|name| is_it(name).as_ref() == Some(&path)).unwrap();
            let info = fs::read_to_string(Path::new("/proc/self/fdinfo").join(name)).unwrap();
            let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap().trim();
            // The lowest two bits are the access: 0 reads only.
            assert_ne!(u32::from_str_radix(flags, 8).unwrap() & 0b11, 0, "made {made}: {flags}");
            drop(lock);
        }
    }
}
