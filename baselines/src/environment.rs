//! Where a result was measured.

use std::process::Command;

use serde::{Deserialize, Serialize};
use tolaria::graph::DeviceFacts;

/// Names the commit of a program that runs outside of its repository.
const COMMIT: &str = "ESPER_COMMIT";

/// Machine, tool chain and settings; unknown facts are absent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Environment {
    /// `ESPER_COMMIT`, else the commit of the working tree, with `-dirty` when it has changes.
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
    /// The GPU, as its driver names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
    /// Newest version of CUDA that the driver knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver_cuda: Option<String>,
    /// Seconds since 1970-01-01 UTC.
    pub measured_at_unix_s: u64,
}

impl Environment {
    /// Looks at this machine.
    #[must_use]
    pub fn detect(clock: &dyn leyline::clock::Clock) -> Self {
        Self {
            commit: std::env::var(COMMIT).ok().filter(|commit| !commit.is_empty()).or_else(commit),
            cpu: cpu(),
            num_cpus: std::thread::available_parallelism().map_or(1, Into::into),
            target: format!("{}-{}", std::env::consts::OS, std::env::consts::ARCH),
            profile: if cfg!(debug_assertions) { "debug" } else { "release" }.to_owned(),
            candle: locked_version("candle-core"),
            rayon_num_threads: std::env::var("RAYON_NUM_THREADS").ok(),
            gpu: None,
            driver_cuda: None,
            measured_at_unix_s: clock.unix().as_secs(),
        }
    }

    /// With the facts of the GPU that was measured.
    #[must_use]
    pub fn on_gpu(self, facts: &DeviceFacts) -> Self {
        Self { gpu: facts.gpu(), driver_cuda: facts.driver_cuda(), ..self }
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
    fn a_result_without_a_gpu_has_no_word_of_one() {
        let clock = leyline::clock::SystemClock::new();
        let plain = serde_json::to_string(&Environment::detect(&clock)).unwrap();
        assert!(!plain.contains("gpu") && !plain.contains("driver_cuda"), "{plain}");
        let name = Some("Some GPU".to_owned());
        let facts = DeviceFacts { name, driver_version: Some(13_000), ..DeviceFacts::default() };
        let found = Environment::detect(&clock).on_gpu(&facts);
        let read: Environment = serde_json::from_str(&serde_json::to_string(&found).unwrap()).unwrap();
        assert_eq!(read, found);
        assert_eq!([read.gpu, read.driver_cuda], [Some("Some GPU".to_owned()), Some("13.0".to_owned())]);
    }

    #[test]
    fn versions_come_from_the_lock_file() {
        assert!(locked_version("candle-core").is_some_and(|version| version.split('.').count() == 3));
        assert_eq!(locked_version("no-such-crate"), None);
    }
}
