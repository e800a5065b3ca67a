//! The run folder: what lies where, and that one run owns it.
//!
//! | file | content |
//! |---|---|
//! | `config.toml` | the merged configuration, with where each value came from |
//! | `run.json` | versions, data digest, device, seed, commands to resume and to reproduce |
//! | `preparation.json` | how samples are prepared, as learned from the training part |
//! | `rows.json` | of a file of one's own, which rows were for training, validation and test |
//! | `run.lock` | empty; locked by the process that trains |
//! | `metrics.jsonl` | one line per epoch |
//! | `packets.bin`, `packets.jsonl` | telemetry packets, as frames and as text; `packets.1.*`: those before, see `telemetry.max_mib` |
//! | `checkpoints/` | durable generations |
//! | `commands.journal` | accepted commands, so that none is accepted twice |
//! | `emergency.signal` | the emergency level as the run tells it, and as it is ordered: `safety/src/signal.rs` |
//! | `summary.json` | the result, as printed by `--json` |
//! | `report.html` | the page |
//! | `*.damaged-N.*` | a file that was found damaged by a resume, which went on with what is readable |
//!
//! A run begins when its `config.toml` is there: before, it can be started again; from then on it can be resumed. All files
//! are for their owner alone.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use esper_disk::{Fs, LockGuard, is_left_over, make_dirs, replace_file};

use crate::exit::UsageError;
use crate::report::{CONFIG_FILE, METRICS_FILE, PAGE_FILE, PREPARATION_FILE, RECORD_FILE, ROWS_FILE, SUMMARY_FILE};

const LOCK_FILE: &str = "run.lock";
/// What is written whole or not at all.
const WHOLE_FILES: &[&str] =
    &[CONFIG_FILE, METRICS_FILE, PAGE_FILE, PREPARATION_FILE, RECORD_FILE, ROWS_FILE, SUMMARY_FILE];

/// A folder that belongs to one run.
#[derive(Debug)]
pub struct RunFolder {
    fs: Arc<dyn Fs>,
    dir: PathBuf,
    /// Held by the process that trains.
    lock: Option<LockGuard>,
}

impl RunFolder {
    /// Makes a folder for a new run, and locks it. A run that was killed before it began may have left it behind.
    ///
    /// # Errors
    /// [`UsageError`] when it holds something else already, or another process has it; nothing is changed then.
    pub fn create(fs: Arc<dyn Fs>, dir: &Path) -> anyhow::Result<Self> {
        let mut folder = Self { fs, dir: dir.to_owned(), lock: None };
        folder.expect_free()?;
        make_dirs(&*folder.fs, dir).with_context(|| format!("making the run folder {}", dir.display()))?;
        folder.lock()?;
        // Before the lock, another process may have begun and even ended a run here.
        folder.expect_free()?;
        Ok(folder)
    }

    /// Opens the folder of an earlier run, to look at it: it is not locked.
    ///
    /// # Errors
    /// [`UsageError`] when it holds no run.
    pub fn open(fs: Arc<dyn Fs>, dir: &Path) -> anyhow::Result<Self> {
        let folder = Self { fs, dir: dir.to_owned(), lock: None };
        if folder.config().is_file() {
            return Ok(folder);
        }
        let expected = if folder.expect_free().is_ok() && dir.join(LOCK_FILE).exists() {
            "the command without --resume, for its run was ended before it began"
        } else {
            "a folder that `esper train` wrote (with a config.toml)"
        };
        Err(UsageError(format!("--out {}: nothing to resume; expected {expected}", dir.display())).into())
    }

    /// Takes the folder for this process, until this is dropped, and removes what killed processes left half written.
    ///
    /// # Errors
    /// [`UsageError`] when another process has it.
    pub fn lock(&mut self) -> anyhow::Result<()> {
        let path = self.dir.join(LOCK_FILE);
        self.lock = self.fs.try_lock(&path).with_context(|| format!("locking {}", path.display()))?;
        if self.lock.is_none() {
            let dir = self.dir.display();
            return Err(UsageError(format!(
                "--out {dir}: another process is training in this folder; expected one that nobody uses"
            ))
            .into());
        }
        for name in self.names().with_context(|| format!("reading {}", self.dir.display()))? {
            if WHOLE_FILES.iter().any(|file| is_left_over(&name, file)) {
                self.remove(&name)?;
            }
        }
        Ok(())
    }

    /// Confirms that no run has begun here and that nothing else is here. What stands beside a lock file and before a
    /// `config.toml` is from a run that was killed before it began.
    fn expect_free(&self) -> anyhow::Result<()> {
        let names = match self.names() {
            Ok(names) => names,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => {
                return Err(UsageError(format!("--out {}: {error}; expected a folder", self.dir.display())).into());
            }
        };
        let is_left = |name: &String| WHOLE_FILES.iter().any(|file| is_left_over(name, file));
        let is_ours = |name: &String| {
            [LOCK_FILE, RECORD_FILE, PREPARATION_FILE, ROWS_FILE].contains(&name.as_str()) || is_left(name)
        };
        // After a loss of power what was left over may be there without the lock file.
        if names.iter().all(is_left) || names.iter().any(|name| name == LOCK_FILE) && names.iter().all(is_ours) {
            return Ok(());
        }
        let dir = self.dir.display();
        Err(UsageError(format!(
            "--out {dir}: the folder is not empty; expected a new or empty folder, or --resume to continue its run"
        ))
        .into())
    }

    fn names(&self) -> io::Result<Vec<String>> {
        self.fs.list(&self.dir)
    }

    /// What the folder is on.
    #[must_use]
    pub fn fs(&self) -> &Arc<dyn Fs> {
        &self.fs
    }

    /// The folder itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// The merged configuration.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.dir.join(CONFIG_FILE)
    }

    /// One line per epoch.
    #[must_use]
    pub fn metrics(&self) -> PathBuf {
        self.dir.join(METRICS_FILE)
    }

    /// Telemetry as frames.
    #[must_use]
    pub fn packets(&self) -> PathBuf {
        self.dir.join("packets.bin")
    }

    /// Telemetry as text.
    #[must_use]
    pub fn packets_text(&self) -> PathBuf {
        self.dir.join("packets.jsonl")
    }

    /// Durable generations.
    #[must_use]
    pub fn checkpoints(&self) -> PathBuf {
        self.dir.join("checkpoints")
    }

    /// Accepted commands.
    #[must_use]
    pub fn command_journal(&self) -> PathBuf {
        self.dir.join("commands.journal")
    }

    /// Through which other processes hear of the emergency level, and order one.
    #[must_use]
    pub fn emergency(&self) -> PathBuf {
        self.dir.join("emergency.signal")
    }

    /// Whether a process trains here.
    ///
    /// # Errors
    /// When that cannot be found out.
    pub fn is_in_use(&self) -> anyhow::Result<bool> {
        let path = self.dir.join(LOCK_FILE);
        let lock = self.fs.try_lock(&path).with_context(|| format!("looking at {}", path.display()))?;
        Ok(lock.is_none())
    }

    /// Writes a whole file of the folder, or leaves the old one.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, name: &str, text: &str) -> anyhow::Result<PathBuf> {
        let path = self.dir.join(name);
        replace_file(&*self.fs, &path, text.as_bytes()).with_context(|| format!("writing {}", path.display()))?;
        Ok(path)
    }

    /// Removes a file of the folder, if it is there: what it says is no longer so.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn remove(&self, name: &str) -> anyhow::Result<()> {
        let path = self.dir.join(name);
        match self.fs.remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("removing {}", path.display()))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use esper_disk::StdFs;

    use super::*;

    fn create(dir: &Path) -> anyhow::Result<RunFolder> {
        RunFolder::create(Arc::new(StdFs), dir)
    }

    fn open(dir: &Path) -> anyhow::Result<RunFolder> {
        RunFolder::open(Arc::new(StdFs), dir)
    }

    #[test]
    fn a_folder_that_holds_something_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("thesis.txt"), "years of work").unwrap();
        let refused = create(dir.path()).unwrap_err();
        assert!(refused.is::<UsageError>(), "{refused}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_a_loss_of_power_left_of_a_run_that_had_not_begun_is_in_nobodys_way() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(".run.json.p99l5v"), "{").unwrap();
        create(dir.path()).unwrap();
        // A record alone may be somebody's.
        let other = tempfile::tempdir().unwrap();
        fs::write(other.path().join(RECORD_FILE), "{}").unwrap();
        assert!(create(other.path()).unwrap_err().is::<UsageError>());
    }

    #[test]
    fn only_the_folder_of_a_run_can_be_opened() {
        let dir = tempfile::tempdir().unwrap();
        assert!(open(dir.path()).unwrap_err().is::<UsageError>());
        let folder = create(&dir.path().join("new")).unwrap();
        folder.write("config.toml", "").unwrap();
        assert!(open(folder.path()).is_ok());
    }

    #[test]
    fn a_folder_has_one_process_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let first = create(dir.path()).unwrap();
        let refused = create(dir.path()).unwrap_err();
        assert!(refused.is::<UsageError>() && refused.to_string().contains("another process"), "{refused}");
        drop(first);
        assert!(create(dir.path()).is_ok());
    }

    #[test]
    fn a_run_that_was_killed_before_it_began_can_be_started_again() {
        let dir = tempfile::tempdir().unwrap();
        for left in
            [&["run.lock"][..], &["run.lock", "run.json"], &["run.lock", ".run.json.aB3dE6", ".config.toml.aB3dE6"]]
        {
            for name in left {
                fs::write(dir.path().join(name), "").unwrap();
            }
            let refused = open(dir.path()).unwrap_err().to_string();
            assert!(refused.contains("without --resume"), "{refused}");
            drop(create(dir.path()).unwrap());
            assert!(
                fs::read_dir(dir.path()).unwrap().all(|entry| !entry
                    .unwrap()
                    .file_name()
                    .to_string_lossy()
                    .starts_with('.'))
            );
        }
        for foreign in ["thesis.txt", "config.toml"] {
            fs::write(dir.path().join(foreign), "years of work").unwrap();
            assert!(create(dir.path()).unwrap_err().is::<UsageError>(), "{foreign}");
            fs::remove_file(dir.path().join(foreign)).unwrap();
        }
        // Without a lock, `run.json` is not of this program.
        fs::remove_file(dir.path().join("run.lock")).unwrap();
        assert!(create(dir.path()).is_err());
    }
}
