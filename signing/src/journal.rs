//! The journal of accepted commands: what brings the replay window through a restart.
//!
//! # Format
//! Slots of 64 bytes, numbers little-endian. First `ESPRCMDJ`, a version `u32` and zeros; then one slot per accepted
//! command: key id `u32`, sequence `u64`, nonce (16 bytes), expiry in milliseconds since 1970-01-01 UTC `u64`, 24
//! zeros, and CRC-32C over the 60 bytes before it. Reading it, only key id and sequence count.
//!
//! # What a crash leaves
//! A slot is written and made durable before its command is carried out. Slots lie within sectors, so a write that
//! did not complete leaves less than a slot, or a slot of zeros: such a tail is cut off, and its command was never
//! carried out. Anything else that does not verify, the last slot included, was durable once and is damage: to cut it
//! off would let a command in again, so opening fails instead. Opening replaces a file that holds more than needed by
//! a short one: written beside it, made durable, renamed.
//!
//! # Who may write
//! Whoever holds the lock of the file that is found under the path. A file may be replaced between its opening and its
//! locking, so device and inode of both are compared once the lock is held, and opening starts again if they differ. The
//! first file is written and locked beside, and linked to the path, which fails if somebody else was first.

use std::fmt;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use esper_disk::{Fs, FsFile, Open, ReadFrom, StdFs, folder_of};
use leyline::command::{KeyId, Nonce};
use leyline::error::{Error as LeylineError, ErrorKind};

use crate::window::{Acceptance, ReplayWindow};

const MAGIC: &[u8; 8] = b"ESPRCMDJ";
const VERSION: u32 = 1;
/// Divides the size of every sector.
const SLOT: usize = 64;
const CHECKED: usize = SLOT - 4;
/// What is read into memory at most: 16 million commands between two openings.
const MAX_BYTES: u64 = 1 << 30;
/// Ends of the names of files that become the journal.
const FIRST: &str = ".first";
const NEW: &str = ".new";
/// Beginnings of an opening: another one is needed only when somebody else replaced or made the file meanwhile.
const MAX_ATTEMPTS: u32 = 100;

/// Where an opening stands when it lets others come in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// There is no file.
    Missing,
    /// The first file was opened beside the path.
    FirstOpened,
    /// It is locked and written.
    FirstWritten,
    /// The path has it.
    FirstLinked,
    /// The file was opened.
    Opened,
    /// It is locked, and the path still has it.
    Locked,
    /// What is to replace it is written.
    Replacing,
}

/// Bytes of a write that did not complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TornTail {
    /// Where they began, bytes from the start of the file.
    pub offset: u64,
    /// How many they were.
    pub bytes: u64,
}

impl fmt::Display for TornTail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes of a write that did not complete were cut off at byte {}", self.bytes, self.offset)
    }
}

/// Why a journal cannot be used.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file system failed.
    #[error("{action} the command journal {} failed", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Somebody else has it open.
    #[error("the command journal {} is in use", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// It does not begin as a journal does.
    #[error("{} is not a command journal", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// It has, or would have with one more command, more bytes than are read. Opening one within the limit shortens it.
    #[error("the command journal {} goes beyond {limit} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The most that is read, bytes.
        limit: u64,
    },
    /// It was written by another version.
    #[error("the command journal {} has version {found}: this build reads version {VERSION}", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// A slot does not verify.
    #[error("the command journal {} is damaged at byte {offset}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where the slot begins, bytes from the start of the file.
        offset: u64,
    },
}

impl LeylineError for JournalError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Io { .. } | Self::InUse { .. } => ErrorKind::Io,
            Self::Foreign { .. } | Self::Version { .. } | Self::Damaged { .. } | Self::TooLarge { .. } => {
                ErrorKind::Corrupt
            }
        }
    }
}

/// An open journal; nobody else can open it meanwhile.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: Box<dyn FsFile>,
    /// Through the last durable slot, bytes.
    len: u64,
    /// Whether a write failed and may have left something behind `len`.
    is_torn: bool,
    window: ReplayWindow,
    torn_tail: Option<TornTail>,
    /// The file that this one replaced: who opened it before the rename is kept out by its lock.
    _replaced: Option<Box<dyn FsFile>>,
}

impl Journal {
    /// Opens a journal, or makes an empty one. A file that holds more than the highest number of each key is shortened.
    ///
    /// # Errors
    /// [`JournalError`]; the file is as it was.
    pub fn open(path: &Path) -> Result<Self, JournalError> {
        Self::open_on(&StdFs, path)
    }

    /// As [`open`](Self::open), on another file system.
    ///
    /// # Errors
    /// As there.
    pub fn open_on(fs: &dyn Fs, path: &Path) -> Result<Self, JournalError> {
        Self::open_in_steps(fs, path, &mut |_| {})
    }

    /// As [`Self::open_on`]; `at` is called between the steps.
    fn open_in_steps(fs: &dyn Fs, path: &Path, at: &mut dyn FnMut(Step)) -> Result<Self, JournalError> {
        let file = take(fs, path, at)?;
        // Whoever holds the journal is the only one who needs them; a crash may have left them. They harm nobody.
        for ending in [FIRST, NEW] {
            fs.remove_file(&beside(path, ending)).ok();
        }
        let mut bytes = Vec::new();
        let io = |action| move |source| JournalError::Io { action, path: path.to_owned(), source };
        let size = file.size().map_err(io("reading"))?;
        if size > MAX_BYTES {
            return Err(JournalError::TooLarge { path: path.to_owned(), limit: MAX_BYTES });
        }
        ReadFrom::new(&*file, 0).take(size).read_to_end(&mut bytes).map_err(io("reading"))?;
        let (window, torn_tail) = read(path, &bytes)?;
        let compact = write(&window);
        let (file, replaced) = if bytes == compact {
            // Whoever put it there may have ended before that was durable.
            fs.sync_dir(folder_of(path)).map_err(io("opening"))?;
            (file, None)
        } else {
            (replace(fs, path, &compact, at)?, Some(file))
        };
        let (path, len) = (path.to_owned(), compact.len() as u64);
        Ok(Self { path, file, len, is_torn: false, window, torn_tail, _replaced: replaced })
    }

    /// What was cut off when it was opened.
    #[must_use]
    pub fn torn_tail(&self) -> Option<TornTail> {
        self.torn_tail
    }

    /// Whether it held a command of this key when it was opened: the key's id must not be given to another key.
    #[must_use]
    pub fn knows(&self, key_id: KeyId) -> bool {
        self.window.knows(key_id)
    }

    /// What it held when it was opened.
    pub(crate) fn window(&self) -> &ReplayWindow {
        &self.window
    }

    /// Makes an acceptance durable. After a failure the command may or may not be found when the journal is opened
    /// again; the next call cuts off what is left of it.
    pub(crate) fn append(&mut self, new: &Acceptance) -> Result<(), JournalError> {
        if self.len + SLOT as u64 > MAX_BYTES {
            return Err(JournalError::TooLarge { path: self.path.clone(), limit: MAX_BYTES });
        }
        let appended = self.try_append(new);
        self.is_torn = appended.is_err();
        appended.map_err(|source| JournalError::Io { action: "writing to", path: self.path.clone(), source })
    }

    fn try_append(&mut self, new: &Acceptance) -> io::Result<()> {
        if self.is_torn {
            self.file.set_len(self.len)?;
        }
        self.file.write_at(self.len, &slot(new))?;
        self.file.sync()?;
        self.len += SLOT as u64;
        Ok(())
    }
}

fn header() -> [u8; SLOT] {
    let mut header = [0; SLOT];
    header[..8].copy_from_slice(MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header
}

fn slot(new: &Acceptance) -> [u8; SLOT] {
    let mut slot = [0; SLOT];
    slot[..4].copy_from_slice(&new.key_id.0.to_le_bytes());
    slot[4..12].copy_from_slice(&new.sequence.to_le_bytes());
    slot[12..28].copy_from_slice(&new.nonce.0);
    slot[28..36].copy_from_slice(&new.expires_unix_ms.to_le_bytes());
    let sum = crc32c::crc32c(&slot[..CHECKED]);
    slot[CHECKED..].copy_from_slice(&sum.to_le_bytes());
    slot
}

/// Key and number; none when the slot does not verify.
fn number(slot: &[u8]) -> Option<(KeyId, u64)> {
    let (checked, sum) = slot.split_last_chunk::<4>()?;
    if crc32c::crc32c(checked) != u32::from_le_bytes(*sum) {
        return None;
    }
    let (key_id, rest) = checked.split_first_chunk::<4>()?;
    let (sequence, _) = rest.split_first_chunk::<8>()?;
    Some((KeyId(u32::from_le_bytes(*key_id)), u64::from_le_bytes(*sequence)))
}

/// The content of the shortest file that holds this window.
fn write(window: &ReplayWindow) -> Vec<u8> {
    let mut bytes = header().to_vec();
    for (key_id, sequence) in window.numbers() {
        let last = Acceptance { key_id, sequence, nonce: Nonce([0; 16]), expires_unix_ms: 0 };
        bytes.extend_from_slice(&slot(&last));
    }
    bytes
}

fn read(path: &Path, bytes: &[u8]) -> Result<(ReplayWindow, Option<TornTail>), JournalError> {
    let damaged = |offset: usize| JournalError::Damaged { path: path.to_owned(), offset: offset as u64 };
    let found = bytes.strip_prefix(MAGIC).ok_or_else(|| JournalError::Foreign { path: path.to_owned() })?;
    let found = u32::from_le_bytes(*found.first_chunk().ok_or_else(|| damaged(0))?);
    if found != VERSION {
        return Err(JournalError::Version { path: path.to_owned(), found });
    }
    let mut slots = bytes.strip_prefix(header().as_slice()).ok_or_else(|| damaged(0))?.chunks(SLOT).peekable();
    let mut window = ReplayWindow::default();
    let mut offset = SLOT;
    while let Some(slot) = slots.next() {
        let is_last = slots.peek().is_none();
        let is_unwritten = slot.len() < SLOT || slot.iter().all(|&byte| byte == 0);
        if is_last && is_unwritten {
            return Ok((window, Some(TornTail { offset: offset as u64, bytes: slot.len() as u64 })));
        }
        let (key_id, sequence) = number(slot).ok_or_else(|| damaged(offset))?;
        window.insert(key_id, sequence);
        offset += SLOT;
    }
    Ok((window, None))
}

/// The file under the path, locked; a new one if there is none.
fn take(fs: &dyn Fs, path: &Path, at: &mut dyn FnMut(Step)) -> Result<Box<dyn FsFile>, JournalError> {
    let io = |source| JournalError::Io { action: "opening", path: path.to_owned(), source };
    for _ in 0..MAX_ATTEMPTS {
        match fs.open(path, Open::Existing) {
            Ok(file) => {
                at(Step::Opened);
                lock(&*file, path)?;
                if file.is_at(path).map_err(io)? {
                    at(Step::Locked);
                    return Ok(file);
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                at(Step::Missing);
                create(fs, path, at)?;
            }
            Err(error) => return Err(io(error)),
        }
    }
    Err(JournalError::InUse { path: path.to_owned() })
}

/// Makes the first file, unless somebody else does.
fn create(fs: &dyn Fs, path: &Path, at: &mut dyn FnMut(Step)) -> Result<(), JournalError> {
    let io = |source| JournalError::Io { action: "creating", path: path.to_owned(), source };
    let first = beside(path, FIRST);
    // Emptied only once it is locked: whoever holds it is about to link it.
    let file = fs.open(&first, Open::OrCreate).map_err(io)?;
    at(Step::FirstOpened);
    lock(&*file, path)?;
    if !file.is_at(&first).map_err(io)? {
        return Ok(());
    }
    // A crash may have left it as a second name of a journal, which may have moved since: that one is not to be emptied.
    if file.num_names().map_err(io)? > 1 {
        return remove(fs, &first).map_err(io);
    }
    rewrite(&*file, &header()).map_err(io)?;
    at(Step::FirstWritten);
    match fs.hard_link(&first, path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(io(error)),
        _ => at(Step::FirstLinked),
    }
    remove(fs, &first).map_err(io)?;
    fs.sync_dir(folder_of(path)).map_err(io)
}

/// Removes a file, unless somebody else has tidied up.
fn remove(fs: &dyn Fs, path: &Path) -> io::Result<()> {
    match fs.remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(ending);
    path.with_file_name(name)
}

/// Gives a file that the caller has locked another content, durably.
fn rewrite(file: &dyn FsFile, bytes: &[u8]) -> io::Result<()> {
    file.set_len(0)?;
    file.write_at(0, bytes)?;
    file.sync()
}

/// Gives the path, whose file the caller has locked, another content: after a crash it has the old one or the new one, whole.
fn replace(fs: &dyn Fs, path: &Path, bytes: &[u8], at: &mut dyn FnMut(Step)) -> Result<Box<dyn FsFile>, JournalError> {
    let io = |source| JournalError::Io { action: "replacing", path: path.to_owned(), source };
    let new = beside(path, NEW);
    // Emptied only once it is locked: whoever holds it is about to rename it.
    let file = fs.open(&new, Open::OrCreate).map_err(io)?;
    lock(&*file, path)?;
    rewrite(&*file, bytes).map_err(io)?;
    at(Step::Replacing);
    fs.rename(&new, path).map_err(io)?;
    fs.sync_dir(folder_of(path)).map_err(io)?;
    Ok(file)
}

fn lock(file: &dyn FsFile, path: &Path) -> Result<(), JournalError> {
    match file.try_lock() {
        Ok(true) => Ok(()),
        Ok(false) => Err(JournalError::InUse { path: path.to_owned() }),
        Err(source) => Err(JournalError::Io { action: "locking", path: path.to_owned(), source }),
    }
}

#[cfg(test)]
mod tests;
