//! Machine code of generated kernels, kept in a folder from run to run.
//!
//! A file is used only when it is what was written under its key: the header names the format, the key and the length,
//! and a digest covers the code. Everything else counts as absent and is replaced. Files appear under their name in one
//! step, so that processes may share a folder.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// First bytes of a file: the format and its version.
const MAGIC: [u8; 8] = *b"espkern1";
/// Magic, key, length of the code, digest of the code.
const HEADER_BYTES: usize = 8 + 32 + 8 + 32;
/// More than any kernel has: a longer file is not read.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// Tells the temporary files of one process apart.
static NEXT_FILE: AtomicU64 = AtomicU64::new(0);

/// What machine code follows from.
#[derive(Debug, Clone, Copy)]
pub(super) struct KernelSource<'a> {
    /// The program text.
    pub(super) source: &'a str,
    /// The processor it is compiled for.
    pub(super) architecture: &'a str,
    /// Version of the compiler.
    pub(super) compiler: (i32, i32),
    /// Options of the compiler.
    pub(super) options: &'a [String],
}

/// Name of some machine code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KernelKey([u8; 32]);

/// A folder with machine code.
#[derive(Debug, Clone)]
pub(super) struct KernelCache {
    folder: PathBuf,
}

impl KernelKey {
    /// The key of what the compiler makes of a source.
    pub(super) fn of(kernel: &KernelSource<'_>) -> Self {
        let mut hasher = blake3::Hasher::new();
        let mut part = |bytes: &[u8]| {
            // The length first, so that no two lists of parts run into the same bytes.
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        part(kernel.source.as_bytes());
        part(kernel.architecture.as_bytes());
        part(&kernel.compiler.0.to_le_bytes());
        part(&kernel.compiler.1.to_le_bytes());
        for option in kernel.options {
            part(option.as_bytes());
        }
        Self(*hasher.finalize().as_bytes())
    }

    fn file_name(&self) -> String {
        format!("{}.cubin", blake3::Hash::from_bytes(self.0).to_hex())
    }
}

impl KernelCache {
    /// The cache in a folder, which need not be there yet.
    pub(super) fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// Whether nothing was stored, as far as can be seen.
    pub(super) fn is_empty(&self) -> bool {
        fs::read_dir(&self.folder).map_or(true, |mut entries| entries.next().is_none())
    }

    /// The machine code stored under a key, if it is there and whole.
    pub(super) fn load(&self, key: &KernelKey) -> Option<Vec<u8>> {
        let path = self.folder.join(key.file_name());
        let is_plausible = fs::metadata(&path).is_ok_and(|file| file.is_file() && file.len() <= MAX_FILE_BYTES);
        let code = fs::read(&path).ok().filter(|_| is_plausible).and_then(|bytes| code_in(&bytes, key));
        if code.is_none() && is_plausible {
            tracing::debug!(path = %path.display(), "a stored kernel is damaged and compiled again");
        }
        code
    }

    /// Stores machine code under a key. A folder that cannot be written to is no failure: the code is compiled again
    /// the next time.
    pub(super) fn store(&self, key: &KernelKey, code: &[u8]) {
        if let Err(error) = self.try_store(key, code) {
            tracing::debug!(folder = %self.folder.display(), %error, "a kernel was not stored");
        }
    }

    fn try_store(&self, key: &KernelKey, code: &[u8]) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        let target = self.folder.join(key.file_name());
        let unfinished = self.unfinished(&target);
        let written = write_new(&unfinished, key, code).and_then(|()| fs::rename(&unfinished, &target));
        if written.is_err() && fs::remove_file(&unfinished).is_err() {
            tracing::debug!(path = %unfinished.display(), "an unfinished file could not be removed");
        }
        written
    }

    /// A name that no other process and no other thread uses at the same time.
    fn unfinished(&self, target: &Path) -> PathBuf {
        let number = NEXT_FILE.fetch_add(1, Ordering::Relaxed);
        let mut name: OsString = target.file_name().map(OsString::from).unwrap_or_default();
        name.push(format!(".{}-{number}.tmp", std::process::id()));
        self.folder.join(name)
    }
}

fn write_new(path: &Path, key: &KernelKey, code: &[u8]) -> io::Result<()> {
    // What a process of the same number left behind when it was killed is in nobody's use.
    let mut file = fs::File::create(path)?;
    file.write_all(&header(key, code))?;
    file.write_all(code)?;
    // No wait for the disk: after a power cut the digest tells.
    file.flush()
}

fn header(key: &KernelKey, code: &[u8]) -> Vec<u8> {
    let mut header = Vec::with_capacity(HEADER_BYTES);
    header.extend_from_slice(&MAGIC);
    header.extend_from_slice(&key.0);
    header.extend_from_slice(&(code.len() as u64).to_le_bytes());
    header.extend_from_slice(blake3::hash(code).as_bytes());
    header
}

/// The code of a file that is whole.
fn code_in(bytes: &[u8], key: &KernelKey) -> Option<Vec<u8>> {
    let (found, code) = bytes.split_at_checked(HEADER_BYTES)?;
    (found == header(key, code).as_slice()).then(|| code.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &[u8] = b"\x7fELF machine code";

    fn key(source: &str) -> KernelKey {
        KernelKey::of(&KernelSource { source, architecture: "sm_90", compiler: (13, 0), options: &[] })
    }

    fn file_names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).expect("the folder is there");
        entries.map(|entry| entry.expect("it can be read").file_name().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn what_was_stored_is_loaded_by_another_cache_of_the_same_folder() {
        let folder = tempfile::tempdir().expect("a folder");
        let nested = folder.path().join("made/on/demand");
        let cache = KernelCache::new(&nested);
        assert_eq!(cache.load(&key("a")), None);
        assert!(cache.is_empty());
        cache.store(&key("a"), CODE);
        assert!(!cache.is_empty());
        cache.store(&key("b"), b"");
        let other = KernelCache::new(&nested);
        assert_eq!(other.load(&key("a")).as_deref(), Some(CODE));
        assert_eq!(other.load(&key("b")).as_deref(), Some(&b""[..]));
        assert_eq!(other.load(&key("c")), None);
        assert_eq!(file_names(&nested).len(), 2, "no unfinished file stays");
    }

    #[test]
    fn everything_that_the_code_follows_from_is_in_the_key() {
        let options = ["--fmad=false".to_owned()];
        let joined = ["--fmad=".to_owned(), "false".to_owned()];
        let base = KernelSource { source: "ab", architecture: "sm_90", compiler: (13, 0), options: &options };
        let others = [
            KernelSource { source: "a", ..base },
            KernelSource { architecture: "sm_80", ..base },
            KernelSource { compiler: (12, 0), ..base },
            KernelSource { compiler: (13, 1), ..base },
            KernelSource { options: &[], ..base },
            KernelSource { options: &joined, ..base },
            KernelSource { source: "a", architecture: "bsm_90", ..base },
        ];
        for other in others {
            assert_ne!(KernelKey::of(&base), KernelKey::of(&other), "{other:?}");
        }
        assert_eq!(KernelKey::of(&base), KernelKey::of(&base.clone()));
    }

    #[test]
    fn a_file_with_any_damage_counts_as_absent_and_is_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = KernelCache::new(folder.path());
        cache.store(&key("a"), CODE);
        let path = folder.path().join(key("a").file_name());
        let whole = fs::read(&path).expect("it was stored");
        let flipped = (0..whole.len()).map(|at| {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            bytes
        });
        let cut = (0..whole.len()).map(|len| whole[..len].to_vec());
        let longer = std::iter::once([whole.as_slice(), b"x"].concat());
        for damaged in flipped.chain(cut).chain(longer) {
            fs::write(&path, &damaged).expect("the folder can be written to");
            assert_eq!(cache.load(&key("a")), None, "{damaged:?}");
        }
        cache.store(&key("a"), CODE);
        assert_eq!(cache.load(&key("a")).as_deref(), Some(CODE));
    }

    #[test]
    fn the_code_of_another_key_is_not_taken() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = KernelCache::new(folder.path());
        cache.store(&key("a"), CODE);
        let renamed = fs::rename(folder.path().join(key("a").file_name()), folder.path().join(key("b").file_name()));
        renamed.expect("the folder can be written to");
        assert_eq!(cache.load(&key("b")), None);
    }

    #[test]
    fn a_folder_that_cannot_be_written_to_only_means_no_cache() {
        let folder = tempfile::tempdir().expect("a folder");
        let taken = folder.path().join("taken");
        fs::write(&taken, b"a file").expect("the folder can be written to");
        for path in [taken.clone(), taken.join("below")] {
            let cache = KernelCache::new(path);
            cache.store(&key("a"), CODE);
            assert_eq!(cache.load(&key("a")), None);
        }
        // A folder in the place of the file.
        let cache = KernelCache::new(folder.path());
        fs::create_dir(folder.path().join(key("a").file_name())).expect("the folder can be written to");
        cache.store(&key("a"), CODE);
        assert_eq!(cache.load(&key("a")), None);
        assert_eq!(file_names(folder.path()).len(), 2, "no unfinished file stays");
    }

    #[test]
    fn writers_of_one_key_do_not_disturb_each_other_or_readers() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = KernelCache::new(folder.path());
        let code = vec![7_u8; 100_000];
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..20).for_each(|_| cache.store(&key("a"), &code)));
            }
            scope.spawn(|| {
                for _ in 0..200 {
                    assert!(cache.load(&key("a")).is_none_or(|found| found == code));
                }
            });
        });
        assert_eq!(cache.load(&key("a")), Some(code));
        assert_eq!(file_names(folder.path()).len(), 1);
    }
}
