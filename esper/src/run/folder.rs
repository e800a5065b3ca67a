//! The run folder: what lies where, and that one run owns it.
//!
//! | file | content |
//! |---|---|
//! | `config.toml` | the merged configuration, with where each value came from |
//! | `run.json` | versions, data digest, device, seed, commands to resume and to reproduce |
//! | `metrics.jsonl` | one line per epoch |
//! | `packets.bin`, `packets.jsonl` | telemetry packets, as frames and as text |
//! | `checkpoints/` | durable generations |
//! | `commands.journal` | accepted commands, so that none is accepted twice |
//! | `summary.json` | the result, as printed by `--json` |
//! | `report.html` | the page |

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use atomic_write_file::AtomicWriteFile;
use std::io::Write as _;

use crate::exit::UsageError;

/// A folder that belongs to one run.
#[derive(Debug, Clone)]
pub struct RunFolder {
    dir: PathBuf,
}

impl RunFolder {
    /// Makes a folder for a new run.
    ///
    /// # Errors
    /// [`UsageError`] when it holds something already; nothing is changed then.
    pub fn create(dir: &Path) -> anyhow::Result<Self> {
        let occupied = match fs::read_dir(dir) {
            Ok(mut entries) => entries.next().is_some(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => false,
            Err(error) => {
                return Err(UsageError(format!("--out {}: {error}; expected a folder", dir.display())).into());
            }
        };
        if occupied {
            let dir = dir.display();
            return Err(UsageError(format!(
                "--out {dir}: the folder is not empty; expected a new or empty folder, or --resume to continue its run"
            ))
            .into());
        }
        fs::create_dir_all(dir).with_context(|| format!("making the run folder {}", dir.display()))?;
        Ok(Self { dir: dir.to_owned() })
    }

    /// Opens the folder of an earlier run.
    ///
    /// # Errors
    /// [`UsageError`] when it holds no run.
    pub fn open(dir: &Path) -> anyhow::Result<Self> {
        let folder = Self { dir: dir.to_owned() };
        if !folder.config().is_file() {
            let dir = dir.display();
            return Err(UsageError(format!(
                "--out {dir}: nothing to resume; expected a folder that `esper train` wrote (with a config.toml)"
            ))
            .into());
        }
        Ok(folder)
    }

    /// The folder itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// The merged configuration.
    #[must_use]
    pub fn config(&self) -> PathBuf {
        self.dir.join("config.toml")
    }

    /// One line per epoch.
    #[must_use]
    pub fn metrics(&self) -> PathBuf {
        self.dir.join("metrics.jsonl")
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

    /// Writes a whole file of the folder, or leaves the old one.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, name: &str, text: &str) -> anyhow::Result<PathBuf> {
        let path = self.dir.join(name);
        let write = || {
            let mut file = AtomicWriteFile::open(&path)?;
            file.write_all(text.as_bytes())?;
            file.commit()
        };
        write().with_context(|| format!("writing {}", path.display()))?;
        Ok(path)
    }

    /// Removes a file of the folder, if it is there: what it says is no longer so.
    ///
    /// # Errors
    /// When it cannot be removed.
    pub fn remove(&self, name: &str) -> anyhow::Result<()> {
        let path = self.dir.join(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("removing {}", path.display()))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_holds_something_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("thesis.txt"), "years of work").unwrap();
        let refused = RunFolder::create(dir.path()).unwrap_err();
        assert!(refused.is::<UsageError>(), "{refused}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn only_the_folder_of_a_run_can_be_opened() {
        let dir = tempfile::tempdir().unwrap();
        assert!(RunFolder::open(dir.path()).unwrap_err().is::<UsageError>());
        let folder = RunFolder::create(&dir.path().join("new")).unwrap();
        folder.write("config.toml", "").unwrap();
        assert!(RunFolder::open(folder.path()).is_ok());
    }
}
