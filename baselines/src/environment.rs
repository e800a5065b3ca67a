//! Where a result was measured.

use std::process::Command;

use serde::{Deserialize, Serialize};

/// Machine, tool chain and settings; unknown facts are absent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Environment {
    /// Commit of the working tree, with `-dirty` when it has changes.
    pub commit: Option<String>,
    /// Processor, as the operating system names it.
    pub cpu: Option<String>,
    /// Processors this process may use.
    pub num_cpus: usize,
    /// Operating system and architecture.
    pub target: String,
    /// `debug` or `release`.
    pub profile: String,
    /// Version of candle-core, from the lock file of this build.
    pub candle: Option<String>,
    /// `RAYON_NUM_THREADS` of the process.
    pub rayon_num_threads: Option<String>,
    /// Seconds since 1970-01-01 UTC.
    pub measured_at_unix_s: u64,
}

impl Environment {
    /// Looks at this machine.
    #[must_use]
    pub fn detect(clock: &dyn leyline::clock::Clock) -> Self {
        Self {
            commit: commit(),
            cpu: cpu(),
            num_cpus: std::thread::available_parallelism().map_or(1, Into::into),
            target: format!("{}-{}", std::env::consts::OS, std::env::consts::ARCH),
            profile: if cfg!(debug_assertions) { "debug" } else { "release" }.to_owned(),
            candle: locked_version("candle-core"),
            rayon_num_threads: std::env::var("RAYON_NUM_THREADS").ok(),
            measured_at_unix_s: clock.unix().as_secs(),
        }
    }
}

fn locked_version(name: &str) -> Option<String> {
    let lock = include_str!("../../Cargo.lock");
    let entry = lock.split("[[package]]").find(|entry| entry.contains(&format!("name = \"{name}\"\n")))?;
    let line = entry.lines().find_map(|line| line.strip_prefix("version = "))?;
    Some(line.trim_matches('"').to_owned())
}

fn commit() -> Option<String> {
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let head = git(&["rev-parse", "--short=12", "HEAD"])?;
    let clean = git(&["status", "--porcelain"]).is_some_and(|changes| changes.is_empty());
    Some(if clean { head } else { format!("{head}-dirty") })
}

fn cpu() -> Option<String> {
    let info = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = info.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_come_from_the_lock_file() {
        assert!(locked_version("candle-core").is_some_and(|version| version.split('.').count() == 3));
        assert_eq!(locked_version("no-such-crate"), None);
    }
}
