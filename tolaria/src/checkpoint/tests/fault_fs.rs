//! A file system whose n-th call fails, and which keeps a list of the calls.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::checkpoint::{EntryKind, Fs, LockGuard};

/// How a call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    /// It does nothing and fails; the next one works.
    Once,
    /// It does its work and reports a failure; the next one works.
    AfterTheEffect,
    /// It and all that follow do nothing and fail, as when the process has died or the disk is gone.
    FromThenOn,
    /// It and all that follow that need space write what fits, and fail; the others work.
    DiskFull,
}

/// Passes calls on, until the chosen one.
#[derive(Debug)]
pub(super) struct FaultFs {
    inner: Arc<dyn Fs>,
    plan: Option<(Failure, usize)>,
    calls: Mutex<Vec<String>>,
}

impl FaultFs {
    /// Nothing fails.
    pub(super) fn recording(inner: Arc<dyn Fs>) -> Self {
        Self { inner, plan: None, calls: Mutex::default() }
    }

    /// The call with index `n`, counted from 0, fails.
    pub(super) fn failing(inner: Arc<dyn Fs>, failure: Failure, n: usize) -> Self {
        Self { inner, plan: Some((failure, n)), calls: Mutex::default() }
    }

    /// Every call so far: `rename tmp-00000001`.
    pub(super) fn calls(&self) -> Vec<String> {
        self.calls.lock().unwrap().clone()
    }

    /// Whether the chosen call has been made.
    pub(super) fn has_failed(&self) -> bool {
        self.plan.is_some_and(|(_, n)| self.calls.lock().unwrap().len() > n)
    }

    fn call<T>(
        &self,
        name: &str,
        path: &Path,
        needs_space: bool,
        work: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        let index = {
            let mut calls = self.calls.lock().unwrap();
            calls.push(format!("{name} {}", path.file_name().unwrap_or_default().to_str().unwrap()));
            calls.len() - 1
        };
        let error = || Err(io::Error::other("injected"));
        match self.plan {
            Some((Failure::Once, n)) if index == n => error(),
            Some((Failure::AfterTheEffect, n)) if index == n => work().and_then(|_| error()),
            Some((Failure::FromThenOn, n)) if index >= n => error(),
            Some((Failure::DiskFull, n)) if index >= n && needs_space => Err(io::ErrorKind::StorageFull.into()),
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

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.call("rename", from, false, || self.inner.rename(from, to))
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
