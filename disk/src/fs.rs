//! What files need of a file system, and that of the operating system.

use std::fmt;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek as _, SeekFrom, Write};
use std::path::Path;
use std::thread;
use std::time::Duration;

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

/// Which file [`Fs::open`] opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Open {
    /// The one that is there.
    Existing,
    /// The one that is there, or a new one.
    OrCreate,
    /// A new one.
    New,
}

/// What those who write files need from a file system.
///
/// # For implementers
/// - **FS-1** The content of a file is durable when [`write_synced`](Fs::write_synced) or [`FsFile::sync`] returned; its
///   directory entry need not be.
/// - **FS-2** Entries made, renamed or removed in a directory are durable when [`sync_dir`](Fs::sync_dir) returned.
/// - **FS-3** [`rename`](Fs::rename) is atomic: after a crash the entry has the old or the new name.
/// - **FS-4** No method but [`open`](Fs::open) follows a link in the last component of its path.
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

    /// Opens a regular file for reading and writing. A new one is for its owner alone.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`], [`io::ErrorKind::AlreadyExists`], or when it cannot be opened.
    fn open(&self, path: &Path, which: Open) -> io::Result<Box<dyn FsFile>>;

    /// Gives `to` the permissions of `from`.
    ///
    /// # Errors
    /// When they cannot be read or given.
    fn copy_mode(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Gives a directory or a file another name in the same parent (FS-3). A file takes the place of one of that name.
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

    /// Gives a file a second name in the same parent.
    ///
    /// # Errors
    /// [`io::ErrorKind::AlreadyExists`] when there is one of that name, or when it cannot be named.
    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a name of a file.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`], or when it cannot be removed.
    fn remove_file(&self, path: &Path) -> io::Result<()>;

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

/// An open file. A lock on it is given back when it is dropped.
pub trait FsFile: fmt::Debug + Send + Sync {
    /// Its size, bytes.
    ///
    /// # Errors
    /// When that cannot be found out.
    fn size(&self) -> io::Result<u64>;

    /// Reads from byte `offset` on; 0 bytes at the end.
    ///
    /// # Errors
    /// When it cannot be read.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize>;

    /// Writes all of `bytes` at byte `offset`; durable after [`sync`](FsFile::sync) only.
    ///
    /// # Errors
    /// When some of it could not be written; a part of it may be there.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Cuts it off, or fills it up with zeros; durable after [`sync`](FsFile::sync) only.
    ///
    /// # Errors
    /// When its size stays.
    fn set_len(&self, bytes: u64) -> io::Result<()>;

    /// Makes its content durable (FS-1).
    ///
    /// # Errors
    /// When it may not be durable.
    fn sync(&self) -> io::Result<()>;

    /// Takes its exclusive advisory lock; false when somebody else has it.
    ///
    /// # Errors
    /// When it cannot be locked, [`io::ErrorKind::Unsupported`] where files have no locks.
    fn try_lock(&self) -> io::Result<bool>;

    /// Whether it is the file that `path` names.
    ///
    /// # Errors
    /// When that cannot be found out.
    fn is_at(&self, path: &Path) -> io::Result<bool>;

    /// How many names it has.
    ///
    /// # Errors
    /// When that cannot be found out.
    fn num_names(&self) -> io::Result<u64>;
}

/// Reads an open file, from a byte on.
#[derive(Debug)]
pub struct ReadFrom<'a> {
    file: &'a dyn FsFile,
    offset: u64,
}

impl<'a> ReadFrom<'a> {
    /// From byte `offset` on.
    #[must_use]
    pub fn new(file: &'a dyn FsFile, offset: u64) -> Self {
        Self { file, offset }
    }
}

impl Read for ReadFrom<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let num_read = self.file.read_at(self.offset, buffer)?;
        self.offset += num_read as u64;
        Ok(num_read)
    }
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

    fn open(&self, path: &Path, which: Open) -> io::Result<Box<dyn FsFile>> {
        let mut options = private_file_options();
        options.read(true).write(true);
        match which {
            Open::Existing => &mut options,
            Open::OrCreate => options.create(true).truncate(false),
            Open::New => options.create_new(true),
        };
        Ok(Box::new(StdFile(options.open(path)?)))
    }

    fn copy_mode(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::set_permissions(to, fs::metadata(from)?.permissions())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::hard_link(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
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
        Ok(take_lock(&file)?.then(|| LockGuard::new(file)))
    }
}

/// Takes the lock of `file` if nobody has it; `false` after a tenth of a second of another's. A process that is being
/// started has copies of the files of the one that starts it for a moment, and with them locks that this one has given
/// back: that is waited for.
fn take_lock(file: &File) -> io::Result<bool> {
    for _ in 0..10 {
        match file.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(10)),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Ok(false)
}

#[derive(Debug)]
struct StdFile(File);

impl FsFile for StdFile {
    fn size(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let mut file = &self.0;
        file.seek(SeekFrom::Start(offset))?;
        file.read(buffer)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut file = &self.0;
        file.seek(SeekFrom::Start(offset))?;
        file.write_all(bytes)
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.0.set_len(bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_all()
    }

    fn try_lock(&self) -> io::Result<bool> {
        take_lock(&self.0)
    }

    fn is_at(&self, path: &Path) -> io::Result<bool> {
        match fs::metadata(path) {
            Ok(there) => Ok(is_same_file(&there, &self.0.metadata()?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    #[cfg(unix)]
    fn num_names(&self) -> io::Result<u64> {
        use std::os::unix::fs::MetadataExt;
        Ok(self.0.metadata()?.nlink())
    }

    // Elsewhere the count is not stable in the standard library.
    #[cfg(not(unix))]
    fn num_names(&self) -> io::Result<u64> {
        Ok(1)
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

    #[test]
    fn a_lock_that_a_copy_of_the_file_has_for_a_moment_longer_is_had() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let held = File::create(&path).unwrap();
        held.lock().unwrap();
        let copy = held.try_clone().unwrap();
        drop(held);
        let ended = thread::spawn(move || {
            thread::sleep(Duration::from_millis(30));
            drop(copy);
        });
        assert!(StdFs.try_lock(&path).unwrap().is_some());
        ended.join().unwrap();
    }
}
