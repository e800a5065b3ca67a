//! A file system whose chosen call fails, and which keeps a list of the calls.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::fs::{EntryKind, Fs, FsFile, LockGuard, Open};

/// How a call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// It does nothing and fails; the next one works.
    Once,
    /// It does its work and reports a failure; the next one works.
    AfterTheEffect,
    /// It and all that follow do nothing and fail, as when the process has died or the disk is gone.
    FromThenOn,
    /// It and all that follow that need space write what fits, and fail; the others work.
    DiskFull,
    /// The process dies before it.
    DiesBefore,
    /// The process dies after it.
    DiesAfter,
}

/// Which call fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Which {
    /// The one with this index, counted from 0.
    Index(usize),
    /// Of those with this [name](FaultFs::points), the one with this index, counted from 0.
    Named(String, usize),
}

/// Passes calls on, until the chosen one.
#[derive(Debug, Clone)]
pub struct FaultFs {
    inner: Arc<dyn Fs>,
    plan: Arc<Plan>,
}

#[derive(Debug)]
struct Plan {
    failing: Option<(Failure, Which)>,
    calls: Mutex<Calls>,
}

#[derive(Debug, Default)]
struct Calls {
    made: Vec<String>,
    num_named: usize,
    has_failed: bool,
}

impl FaultFs {
    /// Nothing fails.
    pub fn recording(inner: Arc<dyn Fs>) -> Self {
        Self { inner, plan: Arc::new(Plan { failing: None, calls: Mutex::default() }) }
    }

    /// The call with index `n`, counted from 0, fails.
    pub fn failing(inner: Arc<dyn Fs>, failure: Failure, n: usize) -> Self {
        Self::failing_at(inner, failure, Which::Index(n))
    }

    /// The chosen call fails.
    pub fn failing_at(inner: Arc<dyn Fs>, failure: Failure, which: Which) -> Self {
        Self { inner, plan: Arc::new(Plan { failing: Some((failure, which)), calls: Mutex::default() }) }
    }

    /// Every call so far: `rename tmp-00000001`.
    #[must_use]
    pub fn calls(&self) -> Vec<String> {
        self.plan.calls().made.clone()
    }

    /// The names of the calls so far: as [`calls`](Self::calls), without what differs between runs, `rename tmp-#`.
    #[must_use]
    pub fn points(&self) -> Vec<String> {
        self.plan.calls().made.iter().map(|call| point(call)).collect()
    }

    /// Whether the chosen call has been made.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.plan.calls().has_failed
    }

    /// From now on every call works again, until the chosen one is made once more.
    pub fn recover(&self) {
        self.plan.calls().has_failed = false;
    }

    fn call<T>(&self, name: &str, path: &Path, needs: bool, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.plan.call(name, &path.file_name().unwrap_or_default().to_string_lossy(), needs, work)
    }
}

/// Numbers are `#`, and so is the random end of a name that begins with a dot.
fn point(call: &str) -> String {
    let (action, name) = call.split_once(' ').unwrap_or((call, ""));
    let name = match name.strip_prefix('.').and_then(|rest| rest.rsplit_once('.')) {
        Some((of, _random)) => format!(".{of}.#"),
        None => {
            let mut chars: Vec<char> = name.chars().map(|c| if c.is_ascii_digit() { '#' } else { c }).collect();
            chars.dedup_by(|next, c| *next == '#' && *c == '#');
            chars.into_iter().collect()
        }
    };
    format!("{action} {name}")
}

impl Plan {
    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().expect("nobody panics while holding it")
    }

    /// Whether the call that begins is the chosen one, or comes after it.
    fn has_come(&self, call: String) -> (bool, bool) {
        let mut calls = self.calls();
        let is_it = match &self.failing {
            None => false,
            Some((_, Which::Index(n))) => calls.made.len() == *n,
            Some((_, Which::Named(wanted, n))) if point(&call) == *wanted => {
                calls.num_named += 1;
                calls.num_named == n + 1
            }
            Some((_, Which::Named(..))) => false,
        };
        calls.made.push(call);
        calls.has_failed |= is_it;
        (is_it, calls.has_failed)
    }

    fn call<T>(&self, action: &str, name: &str, needs: bool, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let (is_it, has_come) = self.has_come(format!("{action} {name}"));
        let error = || Err(io::Error::other("injected"));
        match self.failing {
            Some((Failure::Once, _)) if is_it => error(),
            Some((Failure::AfterTheEffect, _)) if is_it => work().and_then(|_| error()),
            Some((Failure::FromThenOn, _)) if has_come => error(),
            Some((Failure::DiskFull, _)) if has_come && needs => Err(io::ErrorKind::StorageFull.into()),
            Some((Failure::DiesBefore, _)) if is_it => std::process::abort(),
            Some((Failure::DiesAfter, _)) if is_it => {
                drop(work());
                std::process::abort()
            }
            _ => work(),
        }
    }
}

impl Fs for FaultFs {
    fn kind(&self, path: &Path) -> io::Result<Option<EntryKind>> {
        self.call("kind", path, false, || self.inner.kind(path))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.call("list", dir, false, || self.inner.list(dir))
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.call("create_dir", dir, true, || self.inner.create_dir(dir))
    }

    fn write_synced(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let result = self.call("write", path, true, || self.inner.write_synced(path, bytes));
        if result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::StorageFull) {
            self.inner.write_synced(path, &bytes[..bytes.len() / 2])?;
        }
        result
    }

    fn open(&self, path: &Path, which: Open) -> io::Result<Box<dyn FsFile>> {
        let file = self.call("open", path, which != Open::Existing, || self.inner.open(path, which))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Box::new(FaultFile { file, name, plan: Arc::clone(&self.plan) }))
    }

    fn copy_mode(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.call("copy_mode", from, false, || self.inner.copy_mode(from, to))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.call("rename", from, false, || self.inner.rename(from, to))
    }

    fn hard_link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.call("link", from, true, || self.inner.hard_link(from, to))
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.call("remove_file", path, false, || self.inner.remove_file(path))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.call("sync_dir", dir, false, || self.inner.sync_dir(dir))
    }

    fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        self.call("read", path, false, || self.inner.read(path, limit))
    }

    fn remove_dir_all(&self, dir: &Path) -> io::Result<()> {
        self.call("remove", dir, false, || self.inner.remove_dir_all(dir))
    }

    fn try_lock(&self, path: &Path) -> io::Result<Option<LockGuard>> {
        self.call("lock", path, true, || self.inner.try_lock(path))
    }
}

#[derive(Debug)]
struct FaultFile {
    file: Box<dyn FsFile>,
    name: String,
    plan: Arc<Plan>,
}

impl FsFile for FaultFile {
    fn size(&self) -> io::Result<u64> {
        self.plan.call("size", &self.name, false, || self.file.size())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.plan.call("read_at", &self.name, false, || self.file.read_at(offset, buffer))
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let result = self.plan.call("write_at", &self.name, true, || self.file.write_at(offset, bytes));
        if result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::StorageFull) {
            self.file.write_at(offset, &bytes[..bytes.len() / 2])?;
        }
        result
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.plan.call("set_len", &self.name, false, || self.file.set_len(bytes))
    }

    fn sync(&self) -> io::Result<()> {
        self.plan.call("sync", &self.name, false, || self.file.sync())
    }

    fn try_lock(&self) -> io::Result<bool> {
        self.plan.call("lock_file", &self.name, false, || self.file.try_lock())
    }

    fn is_at(&self, path: &Path) -> io::Result<bool> {
        self.plan.call("is_at", &self.name, false, || self.file.is_at(path))
    }

    fn num_names(&self) -> io::Result<u64> {
        self.plan.call("num_names", &self.name, false, || self.file.num_names())
    }
}

#[cfg(test)]
mod tests {
    use super::super::SimFs;
    use super::*;

    #[test]
    fn points_name_calls_without_what_differs_between_runs() {
        for (call, expected) in [
            ("rename tmp-00000012", "rename tmp-#"),
            ("write a1.bin", "write a#.bin"),
            ("write .run.json.a1B2c3", "write .run.json.#"),
            ("sync packets.bin", "sync packets.bin"),
            ("list ", "list "),
        ] {
            assert_eq!(point(call), expected);
        }
    }

    #[test]
    fn only_the_chosen_call_of_a_name_fails() {
        let fs =
            FaultFs::failing_at(Arc::new(SimFs::default()), Failure::Once, Which::Named("create_dir d#".to_owned(), 1));
        let made: Vec<bool> =
            ["d1", "e", "d2", "d2"].map(|name| fs.create_dir(&Path::new("/").join(name)).is_ok()).into();
        assert_eq!(made, [true, true, false, true]);
        assert!(fs.has_failed());
        assert_eq!(fs.calls()[2], "create_dir d2");
    }

    #[test]
    fn a_full_disk_takes_a_part_of_what_is_written_into_an_open_file() {
        let disk = Arc::new(SimFs::default());
        let fs = FaultFs::failing(Arc::clone(&disk) as Arc<dyn Fs>, Failure::DiskFull, 1);
        let file = fs.open(Path::new("/log"), Open::New).unwrap();
        assert_eq!(file.write_at(0, b"abcd").unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(disk.read(Path::new("/log"), 9).unwrap(), b"ab");
        file.set_len(0).unwrap();
        assert_eq!(disk.read(Path::new("/log"), 9).unwrap(), b"");
    }
}
