//! Where a result was measured.

use esper_graph::DeviceFacts;
use serde::{Deserialize, Serialize};

/// What the measuring program was built from, as its build script saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Build {
    /// The commit; none where the build saw no repository.
    pub commit: Option<&'static str>,
    /// Whether sources differed from the commit.
    pub dirty: bool,
}

impl Build {
    /// Whether results of this program say which code they belong to.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.commit.is_some() && !self.dirty
    }
}

/// Machine, tool chain and settings; unknown facts are absent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Environment {
    /// The commit that the measuring program was built from.
    pub commit: Option<String>,
    /// Whether its sources differed from that commit.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dirty: bool,
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
    /// Looks at this machine. The program's commit is told by [`Environment::built_from`].
    #[must_use]
    pub fn detect(clock: &dyn leyline::clock::Clock) -> Self {
        Self {
            commit: None,
            dirty: false,
            cpu: cpu(),
            num_cpus: std::thread::available_parallelism().map_or(1, Into::into),
            target: format!("{}-{}", std::env::consts::OS, std::env::consts::ARCH),
            profile: if cfg!(debug_assertions) { "debug" } else { "release" }.to_owned(),
            candle: option_env!("CANDLE_VERSION").map(str::to_owned),
            rayon_num_threads: std::env::var("RAYON_NUM_THREADS").ok(),
            gpu: None,
            driver_cuda: None,
            measured_at_unix_s: clock.unix().as_secs(),
        }
    }

    /// With what the program was built from.
    #[must_use]
    pub fn built_from(self, build: Build) -> Self {
        Self { commit: build.commit.map(str::to_owned), dirty: build.dirty, ..self }
    }

    /// With the facts of the GPU that was measured.
    #[must_use]
    pub fn on_gpu(self, facts: &DeviceFacts) -> Self {
        Self { gpu: facts.gpu(), driver_cuda: facts.driver_cuda(), ..self }
    }
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
    fn the_version_of_candle_comes_from_the_lock_file() {
        let candle = Environment::detect(&leyline::clock::SystemClock::new()).candle;
        assert!(candle.is_some_and(|version| version.split('.').count() == 3));
    }
}
